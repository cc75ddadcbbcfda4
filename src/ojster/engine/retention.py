"""When is a finished job forgotten? After its state's retention period, a bounded batch at a time.

Queues may have periods of their own (``ojster.engine.queue_config``). Their jobs are left out here, and found by walks
instead: see ``Engine``. How far the others are forgotten is noted then, so that those are not looked at each time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from ojster.database.transaction import Transaction
from ojster.engine.control import delete_jobs
from ojster.engine.idempotency import forget_replies
from ojster.engine.queue_config import Kept, configured_retention
from ojster.engine.selection import JobFilter
from ojster.engine.settings import Retention
from ojster.engine.statistics import sum_up
from ojster.engine.system import FORGOTTEN, note, recall
from ojster.engine.workflows import forget_workflows
from ojster.model.duration import HOUR

BATCH: Final = 500


def forget(tx: Transaction, requests: Sequence[None]) -> list[int]:
    """Delete at most ``BATCH`` finished jobs whose retention is over; return how many were deleted."""
    retention = tx.settings.retention
    (configured,) = configured_retention(tx, (None,))
    left_out = sorted(configured)
    others, marks = _without(left_out)
    position = _position(tx) if marks else {}
    room = BATCH
    for state, dead, period in (
        ("completed", 0, retention.completed),
        ("cancelled", 0, retention.cancelled),
        ("discarded", 0, retention.discarded),
        ("discarded", 1, retention.dead_letter),
    ):
        if period is None or not room:
            continue
        since, before = position.get(f"{state}{dead}", 0), tx.now - period
        rows = tx.execute(
            "SELECT seq, queue, tenant, state FROM jobs WHERE state = :state AND dead = :dead "
            f"AND finished_at < :before AND finished_at >= :since AND node IS NULL{others} "
            "ORDER BY finished_at LIMIT :room" + tx.skip_locked,
            {"state": state, "dead": dead, "before": before, "since": since, "room": room} | marks,
        )
        delete_jobs(tx, [(seq, queue, tenant, state) for seq, queue, tenant, state in rows])
        if len(rows) < room and marks:
            position[f"{state}{dead}"] = before - HOUR  # some may be locked at this moment
        room -= len(rows)
    if marks:
        note(tx, FORGOTTEN, position)
    if room:
        room -= _prune_dead_letters(tx, None, left_out, retention.most_dead_letters, room)
    if room:
        room -= forget_workflows(tx, room)
    tx.forget_events()
    forget_replies(tx)
    sum_up(tx)
    return [BATCH - room for _ in requests]


def _without(queues: Sequence[str]) -> tuple[str, dict[str, str]]:
    """Return a condition that leaves out queues, to stand behind others, and its parameters."""
    marks = {f"queue_{number}": name for number, name in enumerate(queues)}
    return (f" AND queue NOT IN (:{', :'.join(marks)})" if marks else ""), marks


def _position(tx: Transaction) -> dict[str, int]:
    known = recall(tx, FORGOTTEN)
    return {} if known is None else msgspec.json.decode(known, type=dict[str, int])


def own_retention(queue: str, kept: Kept, usual: Retention, now: int) -> list[JobFilter]:
    """Return which jobs of a queue with periods of its own are to be forgotten now."""
    filters = []
    for state, dead, period in (
        ("completed", None, usual.completed if kept.completed is None else kept.completed),
        ("cancelled", None, usual.cancelled if kept.cancelled is None else kept.cancelled),
        ("discarded", False, usual.discarded if kept.discarded is None else kept.discarded),
        ("discarded", True, usual.dead_letter if kept.dead_letter is None else kept.dead_letter),
    ):
        if period is not None:
            filters.append(JobFilter(states=(state,), queue=queue, dead=dead, finished_before=now - period))
    return filters


def prune_own(tx: Transaction, queues: Sequence[tuple[str, int]]) -> list[int]:
    """Delete the oldest dead letters of queues that may keep only so many; return how many were deleted."""
    return [_prune_dead_letters(tx, queue, (), most, BATCH) for queue, most in queues]


def _prune_dead_letters(
    tx: Transaction, queue: str | None, left_out: Sequence[str], most: int | None, room: int
) -> int:
    """Delete the oldest dead letters if there are too many (ojs-dead-letter.md section 8.1)."""
    if most is None:
        return 0
    where, parameters = _without(left_out) if queue is None else (" AND queue = :queue", {"queue": queue})
    dead = f"FROM jobs WHERE dead = 1 AND node IS NULL{where}"
    ((count,),) = tx.execute(f"SELECT count(*) {dead}", parameters)
    if count <= most:
        return 0
    rows = tx.execute(
        f"SELECT seq, queue, tenant, state {dead} ORDER BY seq LIMIT :surplus{tx.skip_locked}",
        parameters | {"surplus": min(room, count - most)},
    )
    delete_jobs(tx, [(seq, name, tenant, state) for seq, name, tenant, state in rows])
    if rows:
        tx.emit_about("dead_letter.pruned", queue or "all", queue, count=len(rows))
    return len(rows)
