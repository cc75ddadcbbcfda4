"""Retention: delete finished jobs after their retention period, in bounded batches.

The period comes from the job or workflow itself (expiration delay), else from its queue, its workspace, or the server's
settings. Jobs with a period of their own have a separate index. Jobs of queues and workspaces with a configured period
are left out of the common scan and are found by walks instead: see ``Service.retain_by_walks``. The common scan then
stores its position, so that it does not read the jobs that it leaves out each time.

Workflows are deleted as a whole, with all their jobs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from ojster.core.durations import HOUR
from ojster.core.job_flags import RESULT_LIMITS
from ojster.core.settings import ServiceRetention
from ojster.core.states import FINISHED
from ojster.jobs.extension import DeletedCounts, hooks
from ojster.jobs.filter_walk import JobFilter
from ojster.jobs.idempotency import forget_replies
from ojster.jobs.interventions import delete_jobs
from ojster.jobs.job_logs import count_expired_lines, forget_lines
from ojster.jobs.result_retention import prune_results
from ojster.queues.configuration import QueueRetention, configured_retention
from ojster.storage.system import RETENTION_POSITION, note, recall
from ojster.storage.transaction import Transaction
from ojster.tenancy.tenant import tenants_retention

BATCH: Final = 500

_KINDS: Final = (("completed", 0), ("cancelled", 0), ("discarded", 0), ("dead_letter", 1))
"""The retention periods, and whether each applies to dead letters (1) or to other jobs (0)."""

_NOT_IN_COLLECTION: Final = (
    "NOT EXISTS (SELECT 1 FROM collection_items AS i WHERE i.job_id = jobs.id AND i.removed_at IS NULL)"
)
"""Leaves out jobs that an item in a collection refers to."""

# The result of a completed job that has limits is deleted first; only then are its limits lifted.
_OWN: Final = f"""
    state = :state
    AND due_at <= :now
    AND node IS NULL
    AND (state <> 'completed' OR flags & {RESULT_LIMITS} = 0)
    AND {_NOT_IN_COLLECTION}
"""
_USUAL: Final = f"""
    state = :state
    AND dead = :dead
    AND finished_at < :before
    AND node IS NULL
    AND due_at IS NULL
    AND {_NOT_IN_COLLECTION}
"""


def forget(tx: Transaction, requests: Sequence[None]) -> list[DeletedCounts]:
    """Delete at most about ``BATCH`` rows past their retention, and do other periodic maintenance.

    Return the number of deleted items by kind.
    """
    done: DeletedCounts = Counter(rows=prune_results(tx, BATCH))
    for state in sorted(FINISHED):
        done += _delete(tx, f"{_OWN} ORDER BY due_at", {"state": state, "now": tx.now}, BATCH - done["rows"])
    others, marks = _left_out(tx)
    position = _position(tx) if marks else {}
    for kind, parameters in _usual(tx):
        room = BATCH - done["rows"]
        since = {"since": position.get(kind, 0)} if marks else {}
        condition = _USUAL + others + " AND finished_at >= :since" * bool(marks)
        deleted = _delete(tx, f"{condition} ORDER BY finished_at", parameters | marks | since, room)
        if deleted["rows"] < room and marks:
            position[kind] = parameters["before"] - HOUR  # rows that are locked now were skipped
        done += deleted
    if marks:
        note(tx, RETENTION_POSITION, position)
    queues = sorted(_queues(tx))
    done += _prune_dead_letters(tx, None, queues, tx.settings.retention.most_dead_letters, BATCH - done["rows"])
    lines = forget_lines(tx, BATCH - done["rows"])
    done += Counter(rows=lines, log_lines=lines)
    for forget_more in hooks(tx).forget:
        if done["rows"] < BATCH:
            done += forget_more(tx, BATCH - done["rows"])
    tx.forget_events()
    forget_replies(tx)
    return [done for _ in requests]


def count_forgettable(tx: Transaction, requests: Sequence[None]) -> list[DeletedCounts]:
    """Return the number of items, by kind, that repeated calls of ``forget`` would delete."""
    counts: DeletedCounts = Counter()
    for state in sorted(FINISHED):
        counts["jobs"] += _count(tx, _OWN, {"state": state, "now": tx.now})
    others, marks = _left_out(tx)
    for _, parameters in _usual(tx):
        counts["jobs"] += _count(tx, _USUAL + others, parameters | marks)
    counts["jobs"] += _surplus(tx, *_dead(None, sorted(_queues(tx))), tx.settings.retention.most_dead_letters)
    counts["log_lines"] += count_expired_lines(tx)
    for count_more in hooks(tx).forgettable:
        counts += count_more(tx)
    return [counts for _ in requests]


def _usual(tx: Transaction) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the kinds of jobs with a period in the server's settings, with the parameters of ``_USUAL``."""
    for kind, dead in _KINDS:
        period = getattr(tx.settings.retention, kind)
        if period is not None:
            state = "discarded" if dead else kind
            yield kind, {"state": state, "dead": dead, "before": tx.now - period}


def _delete(tx: Transaction, condition: str, parameters: Mapping[str, Any], room: int) -> DeletedCounts:
    if room <= 0:
        return Counter()
    # A locked job is deleted by another server, or revived. Deletion is in no hurry, so it goes around such jobs and
    # does not wait with up to 500 others locked; a later round finds those that are still to be deleted.
    rows = tx.execute(
        f"SELECT seq, queue, tenant, state FROM jobs WHERE {condition} LIMIT :room{tx.skip_locked}",
        {**parameters, "room": room},
    )
    delete_jobs(tx, [(seq, queue, tenant, state) for seq, queue, tenant, state in rows])
    return Counter(rows=len(rows), jobs=len(rows))


def _count(tx: Transaction, condition: str, parameters: Mapping[str, Any]) -> int:
    ((count,),) = tx.execute(f"SELECT count(*) FROM jobs WHERE {condition}", parameters)
    return int(count)


def _queues(tx: Transaction) -> dict[str, QueueRetention]:
    (configured,) = configured_retention(tx, (None,))
    return configured


def _left_out(tx: Transaction) -> tuple[str, dict[str, str]]:
    """Return the condition, beginning with ``AND``, that leaves out jobs found by walks, and its parameters."""
    condition, parameters = "", dict[str, str]()
    for column, names in (("queue", sorted(_queues(tx))), ("tenant", sorted(tenants_retention(tx)))):
        marks = {f"{column}_{number}": name for number, name in enumerate(names)}
        condition += f" AND {column} NOT IN (:{', :'.join(marks)})" if marks else ""
        parameters |= marks
    return condition, parameters


def _position(tx: Transaction) -> dict[str, int]:
    known = recall(tx, RETENTION_POSITION)
    return {} if known is None else msgspec.json.decode(known, type=dict[str, int])


# Periods of queues and workspaces


class ConfiguredRetention(msgspec.Struct, frozen=True):
    """Retention of finished jobs by queue and by workspace. Workspaces: in microseconds; 0: forever."""

    queues: dict[str, QueueRetention]
    tenants: dict[str, int]


def own_retention(tx: Transaction, requests: Sequence[None]) -> list[ConfiguredRetention]:
    """Return the retention that queues and workspaces configure, for each request."""
    retention = ConfiguredRetention(_queues(tx), tenants_retention(tx))
    return [retention for _ in requests]


def walks(own: ConfiguredRetention, usual: ServiceRetention, now: int) -> list[JobFilter]:
    """Return filters for the expired jobs of these, by the period of the queue, else workspace, else server."""
    filters = []
    for kind, dead in _KINDS:
        state = "discarded" if dead else kind
        is_dead = bool(dead) if state == "discarded" else None
        which = JobFilter(states=(state,), dead=is_dead, has_own_expiration=False, internal=True)
        silent = [queue for queue, kept in own.queues.items() if getattr(kept, kind) is None]
        telling = tuple(sorted(own.queues.keys() - set(silent)))
        for queue in telling:
            before = now - getattr(own.queues[queue], kind)
            filters.append(msgspec.structs.replace(which, queue=queue, finished_before=before))
        for tenant, delay in own.tenants.items():
            if delay:
                theirs = msgspec.structs.replace(which, tenant=tenant, except_queues=telling)
                filters.append(msgspec.structs.replace(theirs, finished_before=now - delay))
        period = getattr(usual, kind)
        if period is not None:
            rest = msgspec.structs.replace(which, except_tenants=tuple(sorted(own.tenants)))
            rest = msgspec.structs.replace(rest, finished_before=now - period)
            filters += [msgspec.structs.replace(rest, queue=queue) for queue in silent]
    return filters


def prune_own(tx: Transaction, queues: Sequence[tuple[str, int]]) -> list[int]:
    """Delete the oldest dead letters of queues beyond their maximum; return the number deleted for each queue."""
    return [_prune_dead_letters(tx, queue, (), most, BATCH)["jobs"] for queue, most in queues]


def _dead(queue: str | None, left_out: Sequence[str]) -> tuple[str, dict[str, str]]:
    if queue is not None:
        return "dead = 1 AND node IS NULL AND due_at IS NULL AND queue = :queue", {"queue": queue}
    marks = {f"queue_{number}": name for number, name in enumerate(left_out)}
    others = f" AND queue NOT IN (:{', :'.join(marks)})" if marks else ""
    return f"dead = 1 AND node IS NULL AND due_at IS NULL{others}", marks


def _surplus(tx: Transaction, condition: str, parameters: Mapping[str, Any], most: int | None) -> int:
    return 0 if most is None else max(0, _count(tx, condition, parameters) - most)


def _prune_dead_letters(
    tx: Transaction, queue: str | None, left_out: Sequence[str], most: int | None, room: int
) -> DeletedCounts:
    """Delete the oldest dead letters beyond the maximum, at most ``room``.

    Spec: ojs-dead-letter 8.1
    """
    condition, parameters = _dead(queue, left_out)
    surplus = _surplus(tx, condition, parameters, most) if room > 0 else 0
    done = _delete(tx, f"{condition} ORDER BY seq", parameters, min(room, surplus))
    if done["jobs"]:
        tx.emit_about("dead_letter.pruned", queue or "all", queue, count=done["jobs"])
    return done
