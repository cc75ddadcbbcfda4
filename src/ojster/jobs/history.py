"""Execution history and lineage of jobs.

The creation, the last attempt and the success of a job are read from its row and are not stored a second time, so a
job that succeeds at once costs nothing. ``Transaction.emit`` records everything else when it happens. This module
merges the two. The history is kept as long as the job.

Spec: ojs-execution-history
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from types import MappingProxyType
from typing import Any, Final

import msgspec

from ojster.core.errors import OjsterError
from ojster.core.job import NODE_BITS, Job
from ojster.core.origins import origin_of
from ojster.core.outcome import SKIPPED
from ojster.core.states import JobState
from ojster.core.tenant import called
from ojster.core.timestamps import parse_timestamp
from ojster.core.wire import Json
from ojster.jobs.queries import for_each_job
from ojster.storage.transaction import HISTORY_COLUMNS, Transaction

MAX_HISTORY_ENTRIES: Final = 1_000
"""Maximum number of entries returned for a job: the newest ones. Spec: ojs-execution-history 6"""

MAX_LINEAGE_SUCCESSORS: Final = 1_000
"""Maximum number of successors in the lineage of a job."""

PURGED: Final = "history.purged"
"""Type of the stored entry that marks a purge: only entries after it are returned."""

_ENDS: Final = frozenset({"job.discarded", "job.expired", "rate_limit.dropped", "backpressure.dropped"})

_RELEASED: Final = frozenset({"job.enqueued", "job.scheduled", "job.pending"})

_CLIENT: Final = {"type": "client"}
_SYSTEM: Final = {"type": "system"}


class Entry(msgspec.Struct, frozen=True):
    """An entry in the execution history of a job.

    Parameters
    ----------
    at:
        Time of the event, in microseconds since the epoch.
    actor:
        Worker, client or system that caused the event.
    is_estimated:
        Whether the time was derived from other data instead of being recorded.
    """

    type: str
    at: int
    data: dict[str, Json]
    actor: Mapping[str, Any] = MappingProxyType(_SYSTEM)
    is_estimated: bool = False


@for_each_job
def read_history(tx: Transaction, job: Job) -> list[Entry]:
    """Return the history of each job, oldest entry first, or ``NotFound``."""
    rows = tx.execute(_NEWEST, {"seq": job.seq, "most": MAX_HISTORY_ENTRIES, "purged": PURGED})
    noted = [(at, type, msgspec.json.decode(data)) for at, type, data in rows]
    since = max((at for at, type, _ in noted if type == PURGED), default=None)
    told = sorted(_entries(job, noted), key=lambda entry: entry.at)
    return [entry for entry in told if since is None or entry.at > since][-MAX_HISTORY_ENTRIES:]


# A purge counts whatever its age: it also hides entries that follow from the job's row.
_OLD: Final = """
    id <= (
        SELECT id
        FROM job_history
        WHERE seq = :seq
        ORDER BY id DESC
        LIMIT 1 OFFSET :most
    ) AND type <> :purged
"""

_NEWEST: Final = f"""
    SELECT at, type, data
    FROM job_history
    WHERE seq = :seq AND (({_OLD}) IS NOT TRUE)
    ORDER BY id
"""


def trim_history(tx: Transaction, seq: int) -> None:
    """Delete the stored entries of a job, by its number, that no history shows, because there are newer ones."""
    tx.execute(
        f"DELETE FROM job_history WHERE seq = :seq AND {_OLD}",
        {"seq": seq, "most": MAX_HISTORY_ENTRIES, "purged": PURGED},
    )


def purge_history(tx: Transaction, ids: Sequence[str]) -> list[int | OjsterError]:
    """Purge the history of jobs; return the number of purged entries of each job, or ``NotFound``."""
    known = read_history(tx, ids)
    # An event of the job that is being recorded comes either before the purge or after it.
    jobs = tx.lock_jobs(ids)
    results: list[int | OjsterError] = []
    for id, entries in zip(ids, known, strict=True):
        if isinstance(entries, OjsterError):
            results.append(entries)
            continue
        seq = jobs[id].seq
        tx.execute("DELETE FROM job_history WHERE seq = :seq", {"seq": seq})
        tx.insert_rows("job_history", HISTORY_COLUMNS, [(seq, tx.now, PURGED, b"{}")])
        results.append(len(entries))
    return results


def _entries(job: Job, noted: Sequence[tuple[int, str, Mapping[str, Any]]]) -> Iterator[Entry]:
    facts = _facts_of(job.envelope)
    size = len(facts.args)
    created = {"queue": job.queue, "type": job.type, "args_size_bytes": size}
    yield Entry("job.created", job.created_at, created, _client(facts.created_by))
    planned = parse_timestamp(facts.scheduled_at) if facts.scheduled_at else None
    moves = [data["from"] for _, _, data in noted if "from" in data]
    was_due = JobState.SCHEDULED not in moves and (bool(moves) or job.enqueued_at is not None)
    if was_due and planned is not None and planned > job.created_at:
        at = planned if moves or job.enqueued_at is None else job.enqueued_at
        moved = {"from": "scheduled", "to": "available"}
        yield Entry("job.state_changed", at, moved, _SYSTEM, is_estimated=bool(moves))
    begun: set[int] = set()
    for place, (at, type, data) in enumerate(noted):
        attempt, started_at = int(data.get("attempt") or 0), data.get("started_at")
        if started_at is not None and started_at not in begun:
            begun.add(started_at)
            was_released = type in _RELEASED and data.get("reason") != "waiting"  # a released attempt does not count
            yield from _start(attempt + was_released, started_at, data.get("worker_id"))
        worker = {"type": "worker", "id": data["worker_id"]} if data.get("worker_id") else _SYSTEM
        if type == "job.failed":
            follows = noted[place + 1][2].get("to") if place + 1 < len(noted) else None
            told = {"error": data.get("error"), "attempt": attempt, "will_retry": follows != JobState.DISCARDED}
            yield Entry("job.attempt_failed", at, told, worker)
        if "to" in data:
            actor = _client(data.get("cancelled_by")) if type == "job.cancelled" else _SYSTEM
            yield Entry("job.state_changed", at, {"from": data["from"], "to": data["to"]}, actor)
        if type == "job.cancelled":
            yield Entry("job.cancelled", at, {"reason": data.get("reason")}, _client(data.get("cancelled_by")))
        elif type == "job.reaction_failed":
            yield Entry(type, at, {"reaction": data.get("reaction"), "error": data.get("error")})
        elif type == "job.skipped":
            yield Entry(type, at, {"reason": data.get("reason"), "adopted_job_id": data.get("adopted_job_id")})
            yield Entry("job.state_changed", at, {"from": "available", "to": "completed"})
        elif type == "job.resumed":
            yield Entry(type, at, {}, _client(data.get("resumed_by")))
        elif type in _ENDS:
            yield Entry("job.discarded", at, {"total_attempts": job.attempt, "last_error": data.get("error")})
    yield from _last_attempt(job, begun)


def _client(name: str | None) -> Mapping[str, Any]:
    """Return the actor for a client, with the name of its token if that is known."""
    return _CLIENT if name is None else {"type": "client", "id": name}


def _last_attempt(job: Job, begun: Set[int]) -> Iterator[Entry]:
    """Yield the entries of an attempt that has not failed, derived from the job's row alone."""
    if job.started_at is None or job.suspension == SKIPPED:
        return
    if job.started_at in begun:
        if job.state == JobState.COMPLETED and job.finished_at is not None:  # it was resumed with a result
            yield Entry("job.state_changed", job.finished_at, {"from": "pending", "to": "completed"}, _CLIENT)
        return
    if job.state not in (JobState.ACTIVE, JobState.COMPLETED):
        return
    worker_id = None if job.worker_id is None else called(job.worker_id)
    yield from _start(job.attempt, job.started_at, worker_id)
    if job.state == JobState.COMPLETED and job.finished_at is not None:
        worker = {"type": "worker", "id": worker_id}
        duration = (job.finished_at - job.started_at) // 1000
        yield Entry("job.attempt_completed", job.finished_at, {"duration_ms": duration, "attempt": job.attempt}, worker)
        yield Entry("job.state_changed", job.finished_at, {"from": "active", "to": "completed"}, worker)


def _start(attempt: int, at: int, worker_id: str | None) -> Iterator[Entry]:
    worker = {"type": "worker", "id": worker_id}
    yield Entry("job.state_changed", at, {"from": "available", "to": "active"}, worker)
    yield Entry("job.attempt_started", at, {"worker_id": worker_id, "attempt": attempt}, worker)


class _Facts(msgspec.Struct):
    args: msgspec.Raw
    scheduled_at: str | None = None
    created_by: str | None = None


_facts_of: Final = msgspec.json.Decoder(_Facts).decode


# Lineage


class Lineage(msgspec.Struct, frozen=True):
    """Ancestors and successors of a job, by job id.

    Spec: ojs-execution-history 5

    Parameters
    ----------
    parents, children:
        Jobs directly before and after it in its workflow; ``children`` maps the id of each job to its own children.
    """

    job_id: str
    parent_id: str | None
    root_id: str | None
    workflow_id: str | None
    superseded_by: str | None
    parents: list[str]
    children: dict[str, Json]


class _Named(msgspec.Struct):
    parent_id: Any = None
    root_id: Any = None
    workflow_id: Any = None


_names_of: Final = msgspec.json.Decoder(_Named).decode


@for_each_job
def trace_lineage(tx: Transaction, job: Job) -> Lineage:
    """Return the lineage of each job, or ``NotFound``."""
    names = _names_of(job.envelope)
    before, after, root = _relatives(tx, job)
    origin = origin_of(job.envelope)
    parent = names.parent_id or (before[0] if before else origin.parent_id)
    root_id = names.root_id or origin.root_id or root
    return Lineage(job.id, parent, root_id, names.workflow_id, job.superseded_by, before, after)


def _relatives(tx: Transaction, job: Job) -> tuple[list[str], dict[str, Json], str | None]:
    """Return the direct predecessors of a job, the tree of its successors, and its first ancestor.

    The first ancestor is found by following the first predecessor of each step.
    """
    if job.node is None:
        return [], {}, None
    base = job.node >> NODE_BITS << NODE_BITS
    numbers = {"low": base, "high": base + (1 << NODE_BITS) - 1}
    names: dict[int, str] = dict(
        tx.execute(
            "SELECT id, job_id FROM nodes WHERE id BETWEEN :low AND :high AND job_id IS NOT NULL ORDER BY id", numbers
        )
    )
    later: dict[int, list[int]] = {}
    earlier: dict[int, list[int]] = {}
    for source, target in tx.execute(
        "SELECT source, target FROM node_edges WHERE source BETWEEN :low AND :high ORDER BY source, target", numbers
    ):
        later.setdefault(source, []).append(target)
        earlier.setdefault(target, []).append(source)
    room = MAX_LINEAGE_SUCCESSORS

    def below(node: int) -> dict[str, Json]:
        nonlocal room
        tree: dict[str, Json] = {}
        for target in later.get(node, ()):
            if target in names and room > 0:
                room -= 1
                tree[names[target]] = below(target)
        return tree

    root = job.node
    while before := [source for source in earlier.get(root, ()) if source in names]:
        root = before[0]
    parents = [names[source] for source in earlier.get(job.node, ()) if source in names]
    return parents, below(job.node), names.get(root)
