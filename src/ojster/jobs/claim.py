"""Which jobs does a worker get? (FETCH, ojs-core.md section 7.2)"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final

from ojster.collections.contents import empty
from ojster.collections.items import LOOKS_UP, key_of_job
from ojster.collections.outputs import give_found
from ojster.core.states import JobState
from ojster.core.tenant import NOBODY, called
from ojster.events.reaction_rules import SKIPS
from ojster.fleet.matching import Match
from ojster.insight.task_history import adoption_of, skip
from ojster.jobs.checkpoints import give_checkpoints
from ojster.jobs.claim_context import Claim, Share, Way
from ojster.jobs.envelope import Job
from ojster.jobs.transitions import finish, given_up_nodes, stop_jobs, write_outcomes
from ojster.queues.limits import MOST_KEYS, TRY_AGAIN, UNLIMITED, Gate, Head, heads
from ojster.queues.pools import is_starved
from ojster.storage.configuration import Abilities
from ojster.storage.transaction import Transaction
from ojster.workflows.advance import advance, emit
from ojster.workflows.graph import WORKFLOW_COLUMNS, Workflow
from ojster.workflows.node import NUMBER_BITS
from ojster.workflows.results import give_inputs
from ojster.workflows.suspensions import give_resumptions

MOST_CLAIMED: Final = 1_000


MOST_WINDOWS: Final = 20
"""How often a claim looks at some more of the keys of a queue, as long as there is no room in those before."""

_LOOKS_AROUND: Final = SKIPS | LOOKS_UP
"""How the rows of jobs say that something is to be looked up before they are handed out."""

MOST_SKIPPED: Final = 100
"""How many jobs that need not run a claim completes; those behind them are the next one's."""

MOST_TURNED_AWAY: Final = 100
"""How many jobs that are not to wait a claim drops, or puts off, of each key."""


class Nobody(list[Job]):
    """What a worker gets that is to be given nothing: it is not worth waiting for more."""


def claim(tx: Transaction, claims: Sequence[Claim]) -> list[list[Job]]:
    """Hand out available jobs, by priority, then first in, first out; queues from left to right, or as they share.

    Requests for the same queues are served together, in their order.
    """
    way = Way(tx)
    results: dict[int, list[Job]] = {}
    alike: dict[Share, list[int]] = {}
    for index, request in enumerate(claims):
        if request.worker_id in way.idle:
            results[index] = Nobody()
        elif way.is_closed:
            results[index] = []
        else:
            alike.setdefault(way.share(request), []).append(index)
    way.enter_pools(alike)
    way.approach(alike)
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
                _hand_out(tx, started)
            if share.pool is not None:
                way.room[share.pool] -= len(started)
    for gate in (*way.gates.values(), *way.keys.values()):
        gate.close()
    return [results[index] for index in range(len(claims))]


def _hand_out(tx: Transaction, started: list[Job]) -> None:
    """Write that jobs are active, and give them what they are to know."""
    tx.start_jobs(started)
    _begin_workflows(tx, started)
    give_inputs(tx, started)
    give_checkpoints(tx, started)
    give_resumptions(tx, started)
    again = [job.seq for job in started if job.attempt > 1 and not job.checkpoint_number and job.hold is None]
    if again:  # what the attempts before have brought about is nothing that this one has
        empty(tx, [key_of_job(seq) for seq in again])


def _batches(tx: Transaction, share: Share, wanted: int, way: Way) -> Iterator[list[Job]]:
    """Find jobs to hand out, some at a time; each batch is to be started before the next is asked for."""
    sharing = share.sharing
    if share.pool is not None:
        wanted = min(wanted, way.room[share.pool])
    is_mixed = share.tenant is None and way.has_tenants
    if sharing.is_plain:
        while wanted and (jobs := _take(tx, share.queues, wanted, way, share)):
            yield jobs
            wanted = wanted - len(jobs) if is_mixed else 0
        return
    turns = way.turns(share)
    queues = [queue for queue in dict.fromkeys(share.queues) if queue not in way.paused]
    while wanted and queues:
        backlog = _backlog(tx) if sharing.strategy == "least-loaded" else {}
        starved = list(islice((queue for queue in queues if is_starved(tx, queue, sharing, turns)), wanted))
        plan = turns.plan(queues, wanted, sharing, backlog, starved)
        parts = Counter(plan)
        found = {queue: _take(tx, (queue,), part, way, share) for queue, part in parts.items()}
        queues = [queue for queue in queues if len(some := found.get(queue, ())) == parts[queue] or (is_mixed and some)]
        left = {queue: iter(jobs) for queue, jobs in found.items()}
        jobs = [job for queue in plan if (job := next(left[queue], None)) is not None]
        for job in jobs:
            turns.note(job.queue, sharing, tx.now)
        wanted -= len(jobs)
        if jobs:
            yield jobs


def _backlog(tx: Transaction) -> dict[str, int]:
    return dict(tx.execute("SELECT queue, jobs FROM job_counts WHERE state = 'available'"))


def _take(tx: Transaction, queues: Sequence[str], wanted: int, way: Way, share: Share) -> list[Job]:
    taken: list[Job] = []
    for queue in dict.fromkeys(queues):
        if len(taken) == wanted or queue in way.paused:
            continue
        gate = way.gates.get(queue)
        room = min(wanted - len(taken), gate.enter() if gate else UNLIMITED)
        if not room:
            continue
        if share.tenant is None and way.has_tenants:
            jobs = _of_all(tx, queue, room, way, share)
        else:
            jobs = _of_one(tx, queue, share.tenant or NOBODY, room, way, share)
        if gate is not None:
            gate.start(jobs)
            if gate.counts_active:
                _mark(tx, jobs, gate)
        taken += jobs
    return taken


def _of_all(tx: Transaction, queue: str, wanted: int, way: Way, share: Share) -> list[Job]:
    """The jobs to hand out next whosever they are: the tenants take turns (ojs-multi-tenancy.md section 7).

    Each is asked once, for as many as are its turn, so more may be left if they are wanted.
    """
    jobs: list[Job] = []
    asked: set[str] = set()
    while len(jobs) < wanted and (tenants := way.next_tenants(queue, asked)):
        sharing = way.weights_of(tenants)
        plan = way.tenants_turns.plan(tenants, wanted - len(jobs), sharing, {})
        left = {}
        for tenant, part in Counter(plan).items():
            found = _of_one(tx, queue, tenant, part, way, share)
            left[tenant] = iter(found)
            if len(found) < part:
                way.exhausted.add((queue, tenant))
        asked |= left.keys()
        chosen = [job for tenant in plan if (job := next(left[tenant], None)) is not None]
        for job in chosen:
            way.tenants_turns.note(job.tenant, sharing, tx.now)
        jobs += chosen
    return jobs


def _of_one(tx: Transaction, queue: str, tenant: str, wanted: int, way: Way, share: Share) -> list[Job]:
    """The jobs of a tenant to hand out next, of those that the worker can run."""
    room = min(wanted, way.tenants_room.get(tenant, UNLIMITED))
    if not room:
        return []
    match = way.match(share) if way.has_needs else None
    while True:
        jobs = _available(tx, queue, tenant, room, share.abilities)
        if match is not None:
            jobs = _with_needing(tx, queue, tenant, room, jobs, match, share)
        if way.has_keys:
            jobs = _with_limited(tx, queue, tenant, room, jobs, way, share)
        if not any(job.reacts & _LOOKS_AROUND for job in jobs):
            break
        before = way.skipped
        jobs = _needed(tx, queue, jobs, way)
        if way.skipped > before:
            advance(tx)  # what comes after them may be what the worker gets
        if way.skipped == before or way.skipped >= MOST_SKIPPED:
            break
    if match is not None:
        jobs = _that_fit_together(tx, queue, jobs, match)
    for job in jobs:
        if job.limit_key is not None:
            way.keys[job.limit_key].start((job,))
    if tenant in way.tenants_room:
        way.tenants_room[tenant] -= len(jobs)
    return jobs


def _needed(tx: Transaction, queue: str, jobs: list[Job], way: Way) -> list[Job]:
    """Complete those of the jobs about to be handed out that say that they need not run; return the others.

    A job whose workflow somebody else is changing is left for later; one whose lookups find nothing has failed.
    """
    needed = []
    for job in jobs:
        if job.reacts & SKIPS:
            if way.skipped >= MOST_SKIPPED or not _is_free(tx, job):
                tx.effects.opened.add(queue)  # it, or what is behind it, is looked at again, in another transaction
                continue
            if (adopted := adoption_of(tx, job)) is not None:
                _begin_workflows(tx, [job])
                skip(tx, job, adopted)
                way.skipped += 1
                continue
        if job.reacts & LOOKS_UP and not give_found(tx, job):
            way.skipped += 1
        else:
            needed.append(job)
    return needed


def _is_free(tx: Transaction, job: Job) -> bool:
    """Whether the workflow of a job, if it has one, can be changed now, and lets it run."""
    if job.node is None:
        return True
    rows = tx.execute(
        f"SELECT held_at FROM workflows WHERE seq = :seq{tx.skip_locked}", {"seq": job.node >> NUMBER_BITS}
    )
    return bool(rows) and rows[0][0] is None and not given_up_nodes(tx, [job.node])


def _available(tx: Transaction, queue: str, tenant: str, limit: int, abilities: Abilities) -> list[Job]:
    """The jobs to hand out next without a limit or needs, one at most of those that share an exclusive key."""
    asked = limit
    while True:
        found = tx.available_jobs(queue, tenant, asked, abilities)
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


def _with_needing(
    tx: Transaction, queue: str, tenant: str, room: int, plain: list[Job], match: Match, share: Share
) -> list[Job]:
    """Return the jobs to hand out next, those among them that need what the worker provides."""
    found = list(plain)
    for key, needs in match.kinds(queue, tenant):
        if fitting := match.room(queue, needs):
            found += tx.needing_jobs(queue, tenant, key, min(room, fitting), share.abilities)
    chosen = _one_of_each(tx, queue, sorted(found, key=match.turn))[:room]
    _pass_over(tx, queue, found, chosen)
    return chosen


def _that_fit_together(tx: Transaction, queue: str, jobs: list[Job], match: Match) -> list[Job]:
    """Leave out jobs for which those before them leave too little of the worker."""
    chosen = [job for job in jobs if match.take(job)]
    _pass_over(tx, queue, jobs, chosen)
    return chosen


def _pass_over(tx: Transaction, queue: str, found: list[Job], chosen: list[Job]) -> None:
    """Let others look again who passed over those that were left out, as they were locked."""
    if tx.skip_locked and len(chosen) < len(found):
        tx.effects.opened.add(queue)


def _with_limited(
    tx: Transaction, queue: str, tenant: str, room: int, unlimited: list[Job], way: Way, share: Share
) -> list[Job]:
    """Return the jobs to hand out next, those with limits among them where it is their turn."""
    found = list(unlimited)
    met = [key for key, _ in way.match(share).kinds(queue, tenant)] if way.has_needs else None
    for some in _windows(tx, queue, tenant):
        for head in sorted(some, key=lambda head: (-head.priority, head.seq)):
            if len(found) >= room and _turn(sorted(found, key=_turn)[room - 1]) < (-head.priority, head.seq):
                break
            gate = way.gate(head)
            if gate.enter():
                found += tx.limited_jobs(queue, tenant, gate.limit.key, min(room, gate.room), share.abilities, met)
            elif gate.strategy is not None and gate.limit.on_limit != "wait":
                _turn_away(tx, tx.limited_jobs(queue, tenant, gate.limit.key, MOST_TURNED_AWAY), gate)
        if len(found) >= room:
            break
    chosen = _one_of_each(tx, queue, sorted(found, key=_turn))[:room]
    _pass_over(tx, queue, found, chosen)
    return chosen


def _windows(tx: Transaction, queue: str, tenant: str) -> Iterator[list[Head]]:
    """The keys that have jobs in a queue, some at a time; where there are many, from where the last claim ended."""
    places, here = tx.configuration.places, (queue, tenant)
    start = after = places.get(here, "")
    wrapped = False
    for _ in range(MOST_WINDOWS):
        some = heads(tx, queue, tenant, after)
        is_last = len(some) < MOST_KEYS
        if wrapped:
            is_last = is_last or some[-1].limit.key >= start
            some = [head for head in some if head.limit.key <= start]  # those behind were looked at
        if some:
            places[here] = after = some[-1].limit.key
            yield some
        if is_last:
            if wrapped or not start:
                places.pop(here, None)
                return
            after, wrapped = "", True


def _turn(job: Job) -> tuple[int, int]:
    return -job.priority, job.seq


def _turn_away(tx: Transaction, jobs: list[Job], gate: Gate) -> None:
    """Drop jobs for which there is no room, or put them off, as they want (ojs-rate-limiting.md section 6.2)."""
    for job in jobs:
        if gate.limit.on_limit == "drop":
            finish(tx, job, JobState.DISCARDED)
            tx.emit("rate_limit.dropped", job, key=called(job.limit_key or ""))
        else:
            tx.move(job, JobState.SCHEDULED.value)
            tx.emit("job.scheduled", job, scheduled_at=gate.opens_at, reason="rate_limit")
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
    now, settings = tx.now, tx.settings
    shown = called(request.worker_id) if request.worker_id else None
    for job in jobs:
        tx.move(job, "active")
        job.attempt += 1
        job.started_at = now
        job.worker_id = request.worker_id
        due = lease_end(job, now, request.lease or settings.default_lease, settings.default_timeout)
        job.due_at = due
        tx.expect(due)
        tx.make_taken(job)
        for tally in tx.tallies_of(job):
            tally.count_wait(now - (job.enqueued_at or now))
        tx.emit("job.started", job, attempt=job.attempt, worker_id=shown)
        if job.reacts:
            tx.note_event(job, "on_assignment")


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
