"""Which jobs does a worker get? (FETCH, ojs-core.md section 7.2)"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Final

import msgspec

from ojster.database.transaction import Transaction
from ojster.engine.advance import advance, emit
from ojster.engine.checkpoints import give_checkpoints
from ojster.engine.configuration import Pool
from ojster.engine.graph import WORKFLOW_COLUMNS, Workflow
from ojster.engine.limits import (
    MOST_KEYS,
    TRY_AGAIN,
    UNLIMITED,
    Gate,
    Head,
    Limit,
    count_active,
    find_limit,
    heads,
    key_of_queue,
)
from ojster.engine.pools import count_active_jobs, is_starved, room_in
from ojster.engine.results import give_inputs
from ojster.engine.sharing import STRICT, Sharing, Turns
from ojster.engine.transitions import finish, stop_jobs, write_outcomes
from ojster.model.envelope import Job
from ojster.model.node import NUMBER_BITS
from ojster.model.states import JobState

MOST_CLAIMED: Final = 1_000


MOST_WINDOWS: Final = 20
"""How often a claim looks at some more of the keys of a queue, as long as there is no room in those before."""

MOST_SHARES: Final = 1_000
"""Of how many sets of queues that share it is remembered whose turn it is."""

MOST_TURNED_AWAY: Final = 100
"""How many jobs that are not to wait a claim drops, or puts off, of each key."""


class Nobody(list[Job]):
    """What a worker gets that is to be given nothing: it is not worth waiting for more."""


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
    sharing:
        How the queues share what the worker has room for, unless its pool says otherwise.
    """

    queues: tuple[str, ...]
    count: int = 1
    worker_id: str | None = None
    lease: int | None = None
    sharing: Sharing = STRICT


class _Share(msgspec.Struct, frozen=True):
    """Which queues a worker gets jobs from, and how these share: the same for claims that are served together."""

    queues: tuple[str, ...]
    sharing: Sharing
    pool: str | None


def claim(tx: Transaction, claims: Sequence[Claim]) -> list[list[Job]]:
    """Hand out available jobs, by priority, then first in, first out; queues from left to right, or as they share.

    Requests for the same queues are served together, in their order.
    """
    way = _Way(tx)
    results: dict[int, list[Job]] = {}
    alike: dict[_Share, list[int]] = {}
    for index, request in enumerate(claims):
        if request.worker_id in way.idle:
            results[index] = Nobody()
        elif way.is_closed:
            results[index] = []
        else:
            alike.setdefault(way.share(request), []).append(index)
    way.enter_pools(alike)
    way.approach({queue for share in alike for queue in share.queues})
    for share, indices in alike.items():
        room = {index: min(claims[index].count, MOST_CLAIMED) for index in indices}
        results |= {index: [] for index in indices}
        if share.sharing.strategy == "least-loaded":
            room = way.spare(claims, room)
        for jobs in _batches(tx, share, sum(room.values()), way):
            ready = iter(_without_stopped(tx, jobs) if tx.skip_locked else jobs)
            started: list[Job] = []
            for index, most in room.items():
                some = list(islice(ready, most - len(results[index])))
                _start(tx, some, claims[index])
                results[index] += some
                started += some
            if started:  # before others look into the same queues
                tx.start_jobs(started)
                _begin_workflows(tx, started)
                give_inputs(tx, started)
                give_checkpoints(tx, started)
            if share.pool is not None:
                way.room[share.pool] -= len(started)
    for gate in (*way.gates.values(), *way.keys.values()):
        gate.close()
    return [results[index] for index in range(len(claims))]


def _batches(tx: Transaction, share: _Share, wanted: int, way: _Way) -> Iterator[list[Job]]:
    """Find jobs to hand out, some at a time; each batch is to be started before the next is asked for."""
    sharing = share.sharing
    if share.pool is not None:
        wanted = min(wanted, way.room[share.pool])
    if sharing.is_plain:
        yield _take(tx, share.queues, wanted, way)
        return
    turns = way.turns(share)
    queues = [queue for queue in dict.fromkeys(share.queues) if queue not in way.paused]
    while wanted and queues:
        backlog = _backlog(tx) if sharing.strategy == "least-loaded" else {}
        starved = list(islice((queue for queue in queues if is_starved(tx, queue, sharing, turns)), wanted))
        plan = turns.plan(queues, wanted, sharing, backlog, starved)
        parts = Counter(plan)
        found = {queue: _take(tx, (queue,), part, way) for queue, part in parts.items()}
        queues = [queue for queue in queues if len(found.get(queue, ())) == parts[queue]]
        left = {queue: iter(jobs) for queue, jobs in found.items()}
        jobs = [job for queue in plan if (job := next(left[queue], None)) is not None]
        for job in jobs:
            turns.note(job.queue, sharing, tx.now)
        wanted -= len(jobs)
        if jobs:
            yield jobs


def _backlog(tx: Transaction) -> dict[str, int]:
    return dict(tx.execute("SELECT queue, jobs FROM job_counts WHERE state = 'available'"))


def _take(tx: Transaction, queues: Sequence[str], wanted: int, way: _Way) -> list[Job]:
    taken: list[Job] = []
    for queue in dict.fromkeys(queues):
        if len(taken) == wanted or queue in way.paused:
            continue
        if queue not in way.limited and not way.has_keys:
            taken += _available(tx, queue, wanted - len(taken))
            continue
        gate = way.gates.get(queue)
        room = min(wanted - len(taken), gate.enter() if gate else UNLIMITED)
        jobs = _available(tx, queue, room) if room else []
        if room and way.has_keys:
            jobs = _with_limited(tx, queue, room, jobs, way)
        if gate is not None:
            gate.start(jobs)
            if gate.counts_active:
                _mark(tx, jobs, gate)
        taken += jobs
    return taken


def _available(tx: Transaction, queue: str, limit: int) -> list[Job]:
    """The jobs to hand out next of those without a limit, one at most of those that share an exclusive key."""
    asked = limit
    while True:
        found = tx.available_jobs(queue, asked)
        chosen = _one_of_each(tx, queue, found)
        if len(chosen) >= limit or len(found) < asked or len(chosen) == len(found):
            return chosen[:limit]
        asked *= 2  # some were left out; there may be others behind them


def _one_of_each(tx: Transaction, queue: str, found: list[Job]) -> list[Job]:
    """Leave out jobs that share an exclusive key with one before them."""
    keys = [job.exclusive_key for job in found]
    if not any(keys):
        return found
    chosen = [job for place, job in enumerate(found) if keys[place] is None or keys[place] not in keys[:place]]
    if len(chosen) < len(found):
        tx.effects.opened.add(queue)  # those left out were locked, and somebody else may have passed them over
    return chosen


def _with_limited(tx: Transaction, queue: str, room: int, unlimited: list[Job], way: _Way) -> list[Job]:
    """Return the jobs to hand out next, those with limits among them where it is their turn."""
    found = list(unlimited)
    for some in _windows(tx, queue):
        for head in sorted(some, key=lambda head: (-head.priority, head.seq)):
            if len(found) >= room and _turn(sorted(found, key=_turn)[room - 1]) < (-head.priority, head.seq):
                break
            gate = way.gate(head)
            if gate.enter():
                found += tx.limited_jobs(queue, gate.limit.key, min(room, gate.room))
            elif gate.strategy is not None and gate.limit.on_limit != "wait":
                _turn_away(tx, tx.limited_jobs(queue, gate.limit.key, MOST_TURNED_AWAY), gate)
        if len(found) >= room:
            break
    chosen = _one_of_each(tx, queue, sorted(found, key=_turn))[:room]
    if tx.skip_locked and len(chosen) < len(found):
        tx.effects.opened.add(queue)  # those left out were locked, and somebody else may have passed them over
    started: dict[str, list[Job]] = {}
    for job in chosen:
        if job.limit_key is not None:
            started.setdefault(job.limit_key, []).append(job)
    for key, jobs in started.items():
        way.keys[key].start(jobs)
    return chosen


def _windows(tx: Transaction, queue: str) -> Iterator[list[Head]]:
    """The keys that have jobs in a queue, some at a time; where there are many, from where the last claim ended."""
    places = tx.configuration.places
    start = after = places.get(queue, "")
    wrapped = False
    for _ in range(MOST_WINDOWS):
        some = heads(tx, queue, after)
        is_last = len(some) < MOST_KEYS
        if wrapped:
            is_last = is_last or some[-1].limit.key >= start
            some = [head for head in some if head.limit.key <= start]  # those behind were looked at
        if some:
            places[queue] = after = some[-1].limit.key
            yield some
        if is_last:
            if wrapped or not start:
                places.pop(queue, None)
                return
            after, wrapped = "", True


def _turn(job: Job) -> tuple[int, int]:
    return -job.priority, job.seq


def _turn_away(tx: Transaction, jobs: list[Job], gate: Gate) -> None:
    """Drop jobs for which there is no room, or put them off, as they want (ojs-rate-limiting.md section 6.2)."""
    for job in jobs:
        if gate.limit.on_limit == "drop":
            finish(tx, job, JobState.DISCARDED)
            tx.emit_about("rate_limit.dropped", job.id, job.queue, key=job.limit_key, job_id=job.id, job_type=job.type)
        else:
            tx.move(job, JobState.SCHEDULED.value)
            job.due_at = gate.opens_at or tx.now + TRY_AGAIN
            tx.expect(job.due_at)
            write_outcomes(tx, [job])
    advance(tx)


def _mark(tx: Transaction, jobs: list[Job], gate: Gate) -> None:
    """Let the ends of jobs be known to make room in their queue."""
    marked = [job for job in jobs if job.limit_key is None]
    for job in marked:
        job.limit_key = gate.limit.key
    tx.execute_many("UPDATE jobs SET limit_key = ? WHERE seq = ?", [(job.limit_key, job.seq) for job in marked])


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
        effects.tallies[job.queue].count_wait(now - (job.enqueued_at or now))
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


class _Way:
    """What stands between jobs and those who claim them.

    Attributes
    ----------
    paused, limited:
        Queues that hand out nothing, and those that have limits.
    gates:
        The limits of the queues that are looked into.
    idle:
        Workers that are to be given nothing.
    is_closed:
        Whether nothing at all is handed out.
    has_keys:
        Whether jobs with limits of their own wait in some queue.
    keys:
        The limits of jobs that were looked at.
    room:
        How many more jobs may run in each pool that is looked into.
    """

    def __init__(self, tx: Transaction) -> None:
        self._tx = tx
        self.paused: set[str] = set()
        self.limited: set[str] = set()
        self.idle: set[str | None] = set()
        self.is_closed = False
        self.has_keys = False
        self.gates: dict[str, Gate] = {}
        self.keys: dict[str, Gate] = {}
        self.room: dict[str, int] = {}
        self._pools = tx.configuration.pools(tx)
        self._members: dict[str, str] = {}
        if self._pools:
            self._members = dict(tx.execute("SELECT id, pool FROM workers WHERE pool IS NOT NULL"))
        for kind, name in tx.execute(_OBSTACLES):
            if kind == "worker":
                self.idle.add(name)
            elif kind == "maintenance":
                self.is_closed = True
            elif kind == "limits":
                self.has_keys = True
            elif kind == "paused":
                self.paused.add(name)
            else:
                self.limited.add(name)

    def share(self, request: Claim) -> _Share:
        """Return from which queues a worker gets jobs, and how they share: as its pool has it, if it is of one."""
        pool = self._pool_of(request)
        if pool is not None:
            return _Share(tuple(queue for queue in pool.queues if queue in request.queues), pool.sharing, pool.name)
        queues = request.queues
        if self._pools:
            shut = {queue for pool in self._pools.values() if pool.isolated for queue in pool.queues}
            queues = tuple(queue for queue in queues if queue not in shut)
        return _Share(queues, request.sharing, None)

    def _pool_of(self, request: Claim) -> Pool | None:
        name = self._members.get(request.worker_id or "")
        return None if name is None else self._pools.get(name)

    def enter_pools(self, shares: Iterable[_Share]) -> None:
        """Find out how much room there is in pools; where that is limited, one claim at a time."""
        for name in sorted({share.pool for share in shares if share.pool is not None}):
            self.room[name] = room_in(self._tx, self._pools[name], self._turns_of(name))

    def turns(self, share: _Share) -> Turns:
        """Return what the queues that share have got so far."""
        return self._turns_of(share.pool or share)

    def _turns_of(self, key: object) -> Turns:
        known = self._tx.configuration.turns
        if key not in known:
            while len(known) >= MOST_SHARES:
                del known[next(iter(known))]
            known[key] = Turns()
        return known[key]

    def spare(self, claims: Sequence[Claim], room: dict[int, int]) -> dict[int, int]:
        """Return how many jobs each of some claims may get where the load is balanced, the least loaded first."""
        active = count_active_jobs(self._tx, [worker for index in room if (worker := claims[index].worker_id)])
        places: dict[str, int] = dict(
            self._tx.execute("SELECT id, concurrency FROM workers WHERE concurrency IS NOT NULL")
        )
        left = {}
        for index in sorted(room, key=lambda index: active.get(claims[index].worker_id or "", 0)):
            worker = claims[index].worker_id or ""
            left[index] = min(room[index], max(0, places.get(worker, UNLIMITED) - active.get(worker, 0)))
        return left

    def approach(self, queues: Iterable[str]) -> None:
        """Look at the limits of the queues that are looked into."""
        for queue in sorted(queues):
            if queue in self.limited:
                key = key_of_queue(queue)
                self.gates[queue] = Gate(self._tx, find_limit(self._tx, key) or Limit(key), count_active(self._tx, key))

    def gate(self, head: Head) -> Gate:
        """Return the limit of a job with a key: the same for all queues, so that all is counted."""
        key = head.limit.key
        if key not in self.keys:
            self.keys[key] = Gate(self._tx, head.limit, head.active)
        return self.keys[key]


_OBSTACLES: Final = (
    "SELECT 'paused' AS kind, name FROM queues WHERE paused_at IS NOT NULL "
    "UNION ALL SELECT 'worker', id FROM workers WHERE state <> 'running' OR directive <> 'running' "
    "UNION ALL SELECT 'limited', substr(key, 8) FROM rate_limits WHERE key >= '/queue/' AND key < '/queue0' "
    "UNION ALL SELECT 'maintenance', name FROM system WHERE name = 'maintenance' "
    "UNION ALL SELECT 'limits', '' WHERE EXISTS "
    "(SELECT 1 FROM jobs WHERE state = 'available' AND limit_key IS NOT NULL)"
)
"""All that keeps jobs from being handed out, in one statement: every claim asks it."""
