"""Failures in groups: jobs that gave up, and jobs that wait for another attempt, by type, error and message.

Messages that differ in numbers, ids and quoted values alone are one group.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec

from ojster.core.calls import Whole
from ojster.core.durations import HOUR
from ojster.core.timestamps import format_timestamp, parse_timestamp
from ojster.core.wire import Count
from ojster.jobs.failure import pattern_of
from ojster.jobs.filter_walk import IS_NOT_INTERNAL, JobFilter, conditions, last_errors
from ojster.jobs.scope import Scope
from ojster.storage.call import for_each
from ojster.storage.transaction import Row, Transaction

MAX_EXAMINED: Final = 2_000
"""Number of jobs of each kind that are looked at: dead letters, others that gave up, and those to be retried."""

MAX_AMONG: Final = 20_000
"""Number of jobs among which the failures of a tenant, or those of users' work, are looked for."""

MAX_MESSAGE: Final = 2_000
"""Length of the message of a group, in characters."""

UNKNOWN: Final = "Unknown"
"""What the error of jobs is called that have none."""

MAX_GROUPS: Final = 100
"""Number of groups that are shown, the largest."""

TREND_HOURS: Final = 24
"""Number of hours of which a group tells how many of its jobs failed in each."""

_COLUMNS: Final = "seq, id, type, queue, tenant, error_type, finished_at"


class FailureQuestion(msgspec.Struct, frozen=True):
    """A filter, of which ``queue``, ``type`` and ``error_type`` count, and what its caller may see."""

    chosen: JobFilter
    scope: Scope


class FailureGroup(msgspec.Struct):
    """Jobs of one type that failed with the same error.

    Parameters
    ----------
    pattern:
        Their message, with ``…`` in place of what differs: the ``error_pattern`` of a filter that selects them.
    discarded, retrying:
        Number of jobs that gave up, dead letters among them, and of jobs that wait for another attempt.
    first_at, last_at:
        Time of the first and of the last failure, RFC 3339.
    trend:
        Number of last failures in each of the last ``TREND_HOURS`` hours, the oldest first.
    queues:
        Their queues, sorted.
    job_id, message:
        The job that failed last, and its message.
    """

    type: str
    error_type: str
    pattern: str
    discarded: int = 0
    retrying: int = 0
    first_at: str = ""
    last_at: str = ""
    trend: list[int] = []
    queues: list[str] = []
    job_id: str = ""
    message: str = ""


class Failures(Whole):
    """Failures in groups, the largest first.

    Parameters
    ----------
    examined:
        Number of jobs that were looked at.
    is_complete:
        Whether all failures were looked at, and all groups are shown.
    """

    groups: list[FailureGroup]
    examined: Count
    is_complete: bool


@for_each
def group_failures(tx: Transaction, question: FailureQuestion) -> Failures:
    """Return the failures in groups, for each filter."""
    chosen, scope = question.chosen, question.scope
    groups: dict[tuple[str, str, str], FailureGroup] = {}
    examined = 0
    is_complete = True
    patterns: dict[str, str] = {}
    for is_final, rows, has_all in _rows(tx, chosen, scope.tenant):
        examined += len(rows)
        is_complete &= has_all
        seen = {row[0]: row for row in rows if scope.covers(row[3])}
        for seq, last in last_errors(tx, list(seen)):
            message = str(last.get("message", ""))
            if (pattern := patterns.get(message)) is None:
                pattern = patterns[message] = pattern_of(message)
            _add(groups, seen[seq], last, pattern, tx.now, is_final=is_final)
    ordered = sorted(groups.values(), key=lambda group: (-group.discarded - group.retrying, group.type, group.pattern))
    for group in ordered:
        group.queues.sort()
    return Failures(ordered[:MAX_GROUPS], examined, is_complete and len(ordered) <= MAX_GROUPS)


def _rows(tx: Transaction, chosen: JobFilter, tenant: str | None) -> Iterator[tuple[bool, Sequence[Row], bool]]:
    """Yield failures without their errors; whether they are final, and whether there are no others of their kind."""
    known = msgspec.structs.replace(chosen, tenant=tenant)
    where, parameters = conditions(known)
    bounds = parameters | {"most": MAX_EXAMINED, "newest": MAX_AMONG}
    for is_final, condition, order in (
        (True, "state = 'discarded' AND dead = 1", "finished_at DESC"),
        (True, "state = 'discarded' AND dead = 0", "finished_at DESC"),
        (False, "state = 'retryable' AND due_at IS NOT NULL", "due_at"),
    ):
        window = f"SELECT {_COLUMNS} FROM jobs WHERE {condition} ORDER BY {order} LIMIT :most"
        if tenant:  # its own newest jobs, because those of others could fill the window
            newest = "SELECT * FROM jobs WHERE tenant = :tenant AND tenant <> '' ORDER BY seq DESC LIMIT :newest"
            window = f"SELECT {_COLUMNS} FROM ({newest}) AS own WHERE {condition} ORDER BY {order} LIMIT :most"
        elif known.hides_internal:  # deliveries that nobody accepts could fill the window
            newest = f"SELECT * FROM jobs WHERE {condition} ORDER BY {order} LIMIT :newest"
            window = f"SELECT {_COLUMNS} FROM ({newest}) AS near WHERE {IS_NOT_INTERNAL} ORDER BY {order} LIMIT :most"
        ((examined,),) = tx.execute(f"SELECT count(*) FROM ({window}) AS newest", bounds)
        rows = tx.execute(f"SELECT * FROM ({window}) AS newest WHERE {where}", bounds)
        yield is_final, rows, examined < MAX_EXAMINED and (bool(tenant) or _has_few(tx, condition))


def _has_few(tx: Transaction, condition: str) -> bool:
    """Return whether all jobs for which a condition holds are looked at, whoever's they are."""
    query = f"SELECT count(*) FROM (SELECT 1 FROM jobs WHERE {condition} LIMIT :most) AS looked_at"
    return bool(tx.execute(query, {"most": MAX_AMONG})[0][0] < MAX_AMONG)


def _add(
    groups: dict[tuple[str, str, str], FailureGroup],
    row: Row,
    last: dict[str, Any],
    pattern: str,
    now: int,
    *,
    is_final: bool,
) -> None:
    _, id, type, queue, _, error_type, finished_at = row
    message = str(last.get("message", ""))
    failed_at = str(last.get("occurred_at") or format_timestamp(finished_at or now))
    key = (type, error_type or UNKNOWN, pattern)
    group = groups.get(key)
    if group is None:
        group = groups[key] = FailureGroup(*key, first_at=failed_at, trend=[0] * TREND_HOURS)
    group.discarded += is_final
    group.retrying += not is_final
    group.first_at = min(group.first_at, failed_at)
    if failed_at >= group.last_at:
        group.last_at, group.job_id, group.message = failed_at, id, message[:MAX_MESSAGE]
    if queue not in group.queues:
        group.queues.append(queue)
    hours = (now - parse_timestamp(failed_at)) // HOUR
    if 0 <= hours < TREND_HOURS:
        group.trend[TREND_HOURS - 1 - hours] += 1
