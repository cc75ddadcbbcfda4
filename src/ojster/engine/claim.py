"""Which jobs does a worker get? (FETCH, ojs-core.md section 7.2)"""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import Final

import msgspec

from ojster.database.transaction import Transaction
from ojster.engine.advance import advance, emit
from ojster.engine.checkpoints import give_checkpoints
from ojster.engine.graph import WORKFLOW_COLUMNS, Workflow
from ojster.engine.results import give_inputs
from ojster.engine.transitions import stop_jobs
from ojster.model.duration import SECOND
from ojster.model.envelope import Job
from ojster.model.node import NUMBER_BITS

MOST_CLAIMED: Final = 1_000

LOCKED_GATE: Final = 20_000
"""When to try again to open a gate that somebody else is at, in microseconds."""


class Claim(msgspec.Struct, frozen=True):
    """A worker's request for jobs.

    Parameters
    ----------
    queues:
        Where to look, the first first.
    count:
        The most jobs to hand out.
    worker_id:
        Who will hold the lease.
    lease:
        How long, in microseconds, where the job does not say; ``None``: the server's default.
    """

    queues: tuple[str, ...]
    count: int = 1
    worker_id: str | None = None
    lease: int | None = None


class _Gate(msgspec.Struct):
    """A queue that does not hand out its jobs freely."""

    paused: bool
    allowance: int | None = None
    window_started_at: int = 0
    window_used: int = 0


def claim(tx: Transaction, claims: Sequence[Claim]) -> list[list[Job]]:
    """Hand out available jobs, queues from left to right, then by priority, then first in, first out.

    Requests for the same queues are served together, in their order.
    """
    gates, idle = _obstacles(tx, {queue for request in claims for queue in request.queues})
    results: dict[int, list[Job]] = {}
    alike: dict[tuple[str, ...], list[int]] = {}
    for index, request in enumerate(claims):
        if request.worker_id in idle:
            results[index] = []
        else:
            alike.setdefault(request.queues, []).append(index)
    for queues, indices in alike.items():
        jobs = _take(tx, queues, sum(min(claims[index].count, MOST_CLAIMED) for index in indices), gates)
        if tx.skip_locked:
            jobs = _without_stopped(tx, jobs)
        position = 0
        started: list[Job] = []
        for index in indices:
            request = claims[index]
            results[index] = jobs[position : position + min(request.count, MOST_CLAIMED)]
            position += len(results[index])
            _start(tx, results[index], request)
            started += results[index]
        if started:  # before others look into the same queues
            tx.start_jobs(started)
            _begin_workflows(tx, started)
            give_inputs(tx, started)
            give_checkpoints(tx, started)
    return [results[index] for index in range(len(claims))]


def _take(tx: Transaction, queues: Sequence[str], wanted: int, gates: dict[str, _Gate]) -> list[Job]:
    taken: list[Job] = []
    for queue in dict.fromkeys(queues):
        limit = wanted - len(taken)
        gate = gates.get(queue)
        if gate is not None:
            limit = 0 if gate.paused else limit if gate.allowance is None else min(limit, gate.allowance)
        jobs = _available(tx, queue, limit) if limit else []
        if gate is not None and gate.allowance is not None:
            gate.allowance -= len(jobs)
            _write_window(tx, queue, gate, len(jobs))
        taken += jobs
    return taken


def _available(tx: Transaction, queue: str, limit: int) -> list[Job]:
    """The jobs to hand out next, one at most of those that share an exclusive key."""
    asked = limit
    while True:
        found = tx.available_jobs(queue, asked)
        keys = [job.exclusive_key for job in found]
        if not any(keys):
            return found
        chosen = [job for place, job in enumerate(found) if keys[place] is None or keys[place] not in keys[:place]]
        if len(chosen) < len(found):
            tx.effects.opened.add(queue)  # those left out were locked, and somebody else may have passed them over
        if len(chosen) >= limit or len(found) < asked:
            return chosen[:limit]
        asked *= 2  # some were left out; there may be others behind them


def _without_stopped(tx: Transaction, jobs: list[Job]) -> list[Job]:
    """Leave out jobs whose workflow was held or cancelled while somebody else was looking at them."""
    nodes = [job.node for job in jobs if job.node is not None]
    if not nodes:
        return jobs
    rows = tx.execute(
        "SELECT n.id FROM nodes AS n JOIN workflows AS w ON w.seq = n.id >> 20 "
        f"WHERE n.id {tx.among} AND (n.verdict IS NOT NULL OR w.held_at IS NOT NULL)",
        (tx.integers(nodes),),
    )
    if not rows:
        return jobs
    stopped = {id for (id,) in rows}
    left_out = stop_jobs(tx, [job for job in jobs if job.node in stopped])
    advance(tx)
    return [job for job in jobs if job.id not in left_out]


def _start(tx: Transaction, jobs: list[Job], request: Claim) -> None:
    now, settings, effects = tx.now, tx.settings, tx.effects
    for job in jobs:
        tx.move(job, "active")
        job.attempt += 1
        job.started_at = now
        job.worker_id = request.worker_id
        due = lease_end(job, now, request.lease or settings.default_lease, settings.default_timeout)
        job.due_at = due
        tx.expect(due)
        effects.available[job.queue].discard(job.id)
        effects.tallies[job.queue].waited += now - (job.enqueued_at or now)
        tx.emit("job.started", job, attempt=job.attempt, worker_id=request.worker_id)


def _begin_workflows(tx: Transaction, jobs: list[Job]) -> None:
    """Note which workflows have begun, now that the first of their jobs is active."""
    seqs = {job.node >> NUMBER_BITS for job in jobs if job.node is not None}
    if not seqs:
        return
    # Whoever has locked one waits for nobody, and neither must we: the end of the job will tell that it began.
    waiting = tx.execute(
        f"SELECT seq FROM workflows WHERE seq {tx.among} AND started_at IS NULL ORDER BY seq{tx.skip_locked}",
        (tx.integers(sorted(seqs)),),
    )
    for (seq,) in waiting:
        begun = tx.execute(
            "UPDATE workflows SET started_at = :now, version = version + 1 WHERE seq = :seq AND started_at IS NULL "
            f"RETURNING {WORKFLOW_COLUMNS}",
            {"now": tx.now, "seq": seq},
        )
        for row in begun:
            workflow = Workflow(*row)
            tx.effects.workflows[workflow.id] = None
            emit(tx, "workflow.started", workflow, total_steps=workflow.jobs)


def lease_end(job: Job, now: int, lease: int, default_timeout: int | None) -> int:
    """When an active job must have been heard of, or have ended: its lease or its timeout, whichever is first."""
    end = now + (job.lease or lease)
    timeout = job.timeout or default_timeout
    if timeout is not None and job.started_at is not None:
        end = min(end, job.started_at + timeout)
    return end


def _obstacles(tx: Transaction, wanted: Set[str]) -> tuple[dict[str, _Gate], set[str]]:
    """Return the queues that do not hand out their jobs freely, and the workers that are to get none.

    One statement for both: every claim asks it.
    """
    gates = {}
    idle = set()
    for kind, name, paused_at, limit in tx.execute(
        "SELECT 'queue' AS kind, name, paused_at, max_per_second FROM queues "
        "WHERE paused_at IS NOT NULL OR max_per_second IS NOT NULL "
        "UNION ALL SELECT 'worker', id, NULL, NULL FROM workers WHERE state <> 'running' OR directive <> 'running' "
        "ORDER BY 1, 2"
    ):
        if kind == "worker":
            idle.add(name)
        elif name in wanted:
            gates[name] = _Gate(paused=paused_at is not None)
            if limit is not None and paused_at is None:
                _read_window(tx, name, limit, gates[name])
    return gates, idle


def _read_window(tx: Transaction, queue: str, limit: int, gate: _Gate) -> None:
    """Find out how many jobs a rate-limited queue may hand out now; no other transaction may until this one ends."""
    window = "SELECT window_started_at, window_used FROM queues WHERE name = :queue"
    ((started_at, used),) = tx.execute(window, {"queue": queue})
    if tx.now - started_at < SECOND and used >= limit:
        gate.allowance = 0  # without a lock, which might keep the chores from opening the gate in time
        return
    ((started_at, used),) = tx.execute(window + tx.for_update, {"queue": queue})
    if tx.now - started_at >= SECOND:
        started_at, used = tx.now, 0
    gate.window_started_at, gate.window_used = started_at, used
    gate.allowance = max(0, limit - used)


def _write_window(tx: Transaction, queue: str, gate: _Gate, used: int) -> None:
    if not used:
        return
    gate.window_used += used
    tx.execute(
        "UPDATE queues SET window_started_at = :started_at, window_used = :used WHERE name = :queue",
        {"started_at": gate.window_started_at, "used": gate.window_used, "queue": queue},
    )
    if gate.allowance == 0:
        tx.expect(gate.window_started_at + SECOND)


def open_gates(tx: Transaction) -> int | None:
    """Let those who wait for a rate-limited queue look again when its window is over; return when the next one is."""
    moments = []
    for name, started_at in tx.execute(
        "SELECT name, window_started_at FROM queues WHERE max_per_second IS NOT NULL AND window_used > 0"
    ):
        if started_at + SECOND > tx.now:
            moments.append(started_at + SECOND)
        elif tx.execute(
            "SELECT name FROM queues WHERE name = :queue AND window_started_at = :started_at" + tx.skip_locked,
            {"queue": name, "started_at": started_at},
        ):
            tx.execute("UPDATE queues SET window_used = 0 WHERE name = :queue", {"queue": name})
            tx.effects.opened.add(name)
        else:
            moments.append(tx.now + LOCKED_GATE)
    return min(moments, default=None)
