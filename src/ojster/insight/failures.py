"""Failures in groups: jobs that gave up, and jobs that wait for another attempt, by type, error and message.

Messages that differ in numbers, ids and quoted values alone are one group.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec

from ojster.core.durations import HOUR
from ojster.core.timestamps import format_timestamp, parse_timestamp
from ojster.jobs.filter_walk import JobFilter, conditions
from ojster.jobs.scope import Scope
from ojster.storage.transaction import Row, Transaction

MAX_EXAMINED: Final = 5_000
"""Number of jobs of each kind that are looked at: dead letters, others that gave up, and those to be retried."""

MAX_GROUPS: Final = 100
"""Number of groups that are shown, the largest."""

MAX_PATTERN: Final = 200
"""Length of a message's pattern, in characters."""

TREND_HOURS: Final = 24
"""Number of hours of which a group tells how many of its jobs failed in each."""

_VARIABLE: Final = re.compile(
    r"[0-9a-fA-F]{8}-[0-9a-fA-F-]{27}|0x[0-9a-fA-F]+|'[^']*'|\"[^\"]*\"|\b[0-9a-fA-F]*\d[0-9a-fA-F]*\b|\d+"
)
"""What differs between messages of the same error: UUIDs, addresses, quoted values and numbers."""

_REPEATED: Final = re.compile(r"…(?:[.:,/-]?…)+")
"""Several of them in a row, such as an address and its port."""

_COLUMNS: Final = "id, type, queue, error_type, errors, finished_at"

_errors: Final = msgspec.json.Decoder(list[dict[str, Any]]).decode


class FailureQuestion(msgspec.Struct, frozen=True):
    """A filter, of which ``queue``, ``type`` and ``error_type`` count, and what its caller may see."""

    chosen: JobFilter
    scope: Scope


class FailureGroup(msgspec.Struct):
    """Jobs of one type that failed with the same error.

    Parameters
    ----------
    pattern:
        Their message, with ``…`` in place of what differs.
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


class Failures(msgspec.Struct, frozen=True):
    """Groups of failures, the largest first.

    Parameters
    ----------
    examined:
        Number of jobs that were looked at.
    is_complete:
        Whether all failures were looked at, and all groups are shown.
    """

    groups: list[FailureGroup]
    examined: int
    is_complete: bool


def pattern_of(message: str) -> str:
    """Return a message with ``…`` in place of ids, numbers and quoted values."""
    line = message.strip().partition("\n")[0][: 2 * MAX_PATTERN]
    return _REPEATED.sub("…", _VARIABLE.sub("…", line))[:MAX_PATTERN]


def group_failures(tx: Transaction, questions: Sequence[FailureQuestion]) -> list[Failures]:
    """Return the failures in groups, for each filter."""
    return [_group(tx, one.chosen, one.scope) for one in questions]


def _group(tx: Transaction, chosen: JobFilter, scope: Scope) -> Failures:
    groups: dict[tuple[str, str, str], FailureGroup] = {}
    examined = 0
    is_complete = True
    for is_final, rows in _rows(tx, chosen, scope.tenant):
        examined += len(rows)
        is_complete &= len(rows) < MAX_EXAMINED
        for row in rows:
            if scope.covers(row[2]):
                _add(groups, row, tx.now, is_final=is_final)
    ordered = sorted(groups.values(), key=lambda one: (-one.discarded - one.retrying, one.type, one.pattern))
    for one in ordered:
        one.queues.sort()
    return Failures(ordered[:MAX_GROUPS], examined, is_complete and len(ordered) <= MAX_GROUPS)


def _rows(tx: Transaction, chosen: JobFilter, tenant: str | None) -> Iterator[tuple[bool, Sequence[Row]]]:
    known = JobFilter(queue=chosen.queue, type=chosen.type, error_type=chosen.error_type, tenant=tenant)
    where, parameters = conditions(known)
    given = parameters | {"most": MAX_EXAMINED}
    for is_dead in (1, 0):
        final = f"state = 'discarded' AND dead = {is_dead} AND finished_at IS NOT NULL"
        query = f"SELECT {_COLUMNS} FROM jobs WHERE {final} AND {where} ORDER BY finished_at DESC LIMIT :most"
        yield True, tx.execute(query, given)
    query = f"SELECT {_COLUMNS} FROM jobs WHERE state = 'retryable' AND due_at IS NOT NULL "
    yield False, tx.execute(f"{query} AND {where} ORDER BY due_at LIMIT :most", given)


def _add(groups: dict[tuple[str, str, str], FailureGroup], row: Row, now: int, *, is_final: bool) -> None:
    id, type, queue, error_type, errors, finished_at = row
    last = _errors(errors)[-1] if errors else {}
    message = str(last.get("message", ""))
    failed_at = str(last.get("occurred_at") or format_timestamp(finished_at or now))
    key = (type, error_type or "Unknown", pattern_of(message))
    group = groups.get(key)
    if group is None:
        group = groups[key] = FailureGroup(*key, first_at=failed_at, trend=[0] * TREND_HOURS)
    group.discarded += is_final
    group.retrying += not is_final
    group.first_at = min(group.first_at, failed_at)
    if failed_at >= group.last_at:
        group.last_at, group.job_id, group.message = failed_at, id, message
    if queue not in group.queues:
        group.queues.append(queue)
    hours = (now - parse_timestamp(failed_at)) // HOUR
    if 0 <= hours < TREND_HOURS:
        group.trend[TREND_HOURS - 1 - hours] += 1
