"""How queues decide which jobs are claimed: maintenance, pauses, limits, pools and fairness."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import islice
from typing import Final

import msgspec

from ojster.core.job import Job
from ojster.core.job_table import WITH_LIMIT
from ojster.core.states import JobState
from ojster.core.tenant import called
from ojster.fleet.claim_policies import MatchingPolicy
from ojster.fleet.matching import Budget
from ojster.jobs.available import by_priority, one_of_each, pass_over, select_available
from ojster.jobs.claim_policy import UNLIMITED, Claim, ClaimPolicy, Pipeline, Share, Take, UsageProbes
from ojster.jobs.claim_position import last_places
from ojster.jobs.failure import Failure
from ojster.jobs.transitions import discard, write_states
from ojster.queues.fairness import STRICT, FairnessState, Sharing
from ojster.queues.gates import Gate, Head, look_at_keys
from ojster.queues.limits import RESCHEDULE_DELAY_US, Limit, count_active, find_limit, key_of_queue
from ojster.queues.pool import Pool, pools_by_name
from ojster.queues.pools import count_active_jobs, is_starved, pool_capacity
from ojster.queues.rules import queue_rules
from ojster.queues.turns import turns_of

MAINTENANCE: Final[UsageProbes] = {"maintenance": "name FROM system WHERE name = 'maintenance'"}
PAUSED_QUEUES: Final[UsageProbes] = {"paused": "name FROM queues WHERE paused_at IS NOT NULL"}
LIMITED_QUEUES: Final[UsageProbes] = {
    "limited": "substr(key, 8) FROM rate_limits WHERE key >= '/queue/' AND key < '/queue0'"
}
LIMITED_JOBS_WAIT: Final[UsageProbes] = {
    "limits": "'' WHERE EXISTS (SELECT 1 FROM jobs WHERE state = 'available' AND limit_key IS NOT NULL)"
}

FIRST_KEYS: Final = 200
"""Number of keys that a claim first looks at in a queue."""

MOST_KEYS: Final = 1_600
"""Maximum number of keys that a claim looks at in one statement, after others of which none had room."""

MAX_WINDOWS: Final = 10
"""Maximum number of times a claim looks at more keys of a queue, while those before have no room."""

MAX_TURNED_AWAY: Final = 100
"""Maximum number of jobs of each key that a claim drops or delays."""

SHARING: Final = "sharing"
POOL: Final = "pool"
"""Traits of a share: how its queues share the worker, and the worker's pool."""


class MaintenancePolicy(ClaimPolicy):
    """Nothing is handed out during maintenance."""

    def answer(self, request: Claim) -> list[Job] | None:
        """Return no jobs; the worker may wait for the end of maintenance."""
        return []


class PausePolicy(ClaimPolicy):
    """Paused queues hand out nothing."""

    def __init__(self, pipeline: Pipeline) -> None:
        super().__init__(pipeline)
        self.paused: set[str] = set()

    def note_use(self, kind: str, name: str) -> None:
        """Note a paused queue."""
        self.is_used = True
        self.paused.add(name)

    def room_in_queue(self, queue: str, wanted: int) -> int:
        """Return 0 for a paused queue."""
        return 0 if queue in self.paused else wanted


class QueueLimitPolicy(ClaimPolicy):
    """Queues hand out no more jobs than their limits allow."""

    def __init__(self, pipeline: Pipeline) -> None:
        super().__init__(pipeline)
        self._limited: set[str] = set()
        self._gates: dict[str, Gate] = {}

    def note_use(self, kind: str, name: str) -> None:
        """Note a queue that has limits."""
        self.is_used = True
        self._limited.add(name)

    def enter(self, shares: Collection[Share]) -> None:
        """Look at the limits of the queues."""
        for queue in _queues_of(shares):
            if queue in self._limited:
                key = key_of_queue(queue)
                self._gates[queue] = Gate(self.tx, find_limit(self.tx, key) or Limit(key), count_active(self.tx, key))

    def room_in_queue(self, queue: str, wanted: int) -> int:
        """Lock the limit of a queue, if it has room, and return how much."""
        gate = self._gates.get(queue)
        return wanted if gate is None else min(wanted, gate.enter())

    def taken_from(self, queue: str, jobs: Sequence[Job]) -> None:
        """Count jobs, and mark them, so that their ends are known to make room in their queue."""
        gate = self._gates.get(queue)
        if gate is None:
            return
        gate.start(jobs)
        if gate.counts_active:
            marked = [job for job in jobs if job.limit_key is None]
            for job in marked:
                job.limit_key = gate.limit.key
            self.tx.execute_many(
                "UPDATE jobs SET limit_key = ? WHERE seq = ?", [(job.limit_key, job.seq) for job in marked]
            )

    def close(self) -> None:
        """Write what was used."""
        for gate in self._gates.values():
            gate.close()


class KeyLimitPolicy(ClaimPolicy):
    """Jobs that share a key start no faster than its limit allows."""

    def __init__(self, pipeline: Pipeline) -> None:
        super().__init__(pipeline)
        self._gates: dict[str, Gate] = {}

    def find(self, share: Share, queue: str, tenant: str, room: int, available: list[Job]) -> list[Job]:
        """Add jobs with keys whose turn it is and whose limits have room."""
        jobs = list(available)
        matching = self.pipeline.policy(MatchingPolicy)
        met = None if matching is None else matching.met(share, queue, tenant)
        for some in self._windows(queue, tenant):
            for head in sorted(some, key=lambda head: (-head.priority, head.seq)):
                if len(jobs) >= room and by_priority(sorted(jobs, key=by_priority)[room - 1]) < (
                    -head.priority,
                    head.seq,
                ):
                    break
                gate = self._gate(head)
                if gate.enter():
                    jobs += self._select(share, queue, tenant, gate, min(room, gate.room), met)
                elif gate.strategy is not None and gate.limit.on_limit != "wait":
                    anyone = Share(share.queues, share.tenant)
                    self._turn_away(self._select(anyone, queue, tenant, gate, MAX_TURNED_AWAY, None), gate)
            if len(jobs) >= room:
                break
        chosen = one_of_each(self.tx, queue, sorted(jobs, key=by_priority))[:room]
        pass_over(self.tx, queue, jobs, chosen)
        return chosen

    def _gate(self, head: Head) -> Gate:
        """Return the limit of a key: the same for all queues, so that all is counted."""
        key = head.limit.key
        if key not in self._gates:
            self._gates[key] = Gate(self.tx, head.limit, head.active)
        return self._gates[key]

    def _select(
        self, share: Share, queue: str, tenant: str, gate: Gate, limit: int, met: Sequence[str] | None
    ) -> list[Job]:
        """Return the next jobs with a key; those with requirements only if these are in ``met`` (``None``: all)."""
        kind, parameters = WITH_LIMIT, [queue, tenant, gate.limit.key]
        if met is not None:
            kind += f" AND (j.needs IS NULL OR j.needs IN ({', '.join('?' * len(met)) or 'NULL'}))"
            parameters += met
        return select_available(self.tx, share, kind, parameters, limit)

    def _windows(self, queue: str, tenant: str) -> Iterator[list[Head]]:
        """Return keys that have jobs in a queue and may have room, some at a time, from where the last claim ended."""
        places, here = last_places(self.tx), (queue, tenant)
        start = after = places.get(here, "")
        most, wrapped = FIRST_KEYS, False
        for _ in range(MAX_WINDOWS):
            look = look_at_keys(self.tx, queue, tenant, after, most)
            some, is_last = look.heads, look.is_end
            if look.last is not None:
                places[here] = after = look.last
            if wrapped:
                is_last = is_last or after >= start
                some = [head for head in some if head.limit.key <= start]  # later keys were examined before
            if some:
                yield some
            else:
                most = min(2 * most, MOST_KEYS)
            if is_last:
                if wrapped or not start:
                    places.pop(here, None)
                    return
                after, wrapped = "", True

    def _turn_away(self, jobs: list[Job], gate: Gate) -> None:
        """Drop or delay jobs for which there is no room, as they ask (ojs-rate-limiting 6.2).

        Those that were suspended have started; they wait.
        """
        tx = self.tx
        for job in jobs:
            if job.suspension is not None:
                continue
            if gate.limit.on_limit == "drop":
                key = called(job.limit_key or "")
                discard(tx, job, _dropped(key), "rate_limit.dropped", key=key)
                tx.note_event(job, "on_failure")
            else:
                tx.move(job, JobState.SCHEDULED.value)
                tx.emit("job.scheduled", job, scheduled_at=gate.opens_at, reason="rate_limit")
                job.due_at = gate.opens_at or tx.now + RESCHEDULE_DELAY_US
                tx.expect(job.due_at)
                write_states(tx, [job])
        self.pipeline.settle()

    def taken(self, tenant: str, jobs: Sequence[Job]) -> None:
        """Count jobs with keys."""
        for job in jobs:
            if job.limit_key is not None:
                self._gates[job.limit_key].start((job,))

    def close(self) -> None:
        """Write what was used."""
        for gate in self._gates.values():
            gate.close()


def _dropped(key: str) -> Failure:
    message = (
        f"The job was dropped: the limit {key!r} had no room, and its 'on_limit' is 'drop'. Use 'wait' or 'reschedule' "
        "to keep such jobs."
    )
    return Failure("rate_limit_dropped", message, code="rate_limit_dropped", retryable=False)


class ResourceBudgetPolicy(ClaimPolicy):
    """Jobs with GPUs use no more than the budget of their queue."""

    def __init__(self, pipeline: Pipeline) -> None:
        super().__init__(pipeline)
        self.is_used = True

    def enter(self, shares: Collection[Share]) -> None:
        """Count what the jobs of a queue use."""
        matching = self.pipeline.policy(MatchingPolicy)
        if matching is None:
            return
        rules = queue_rules(self.tx)
        for queue in _queues_of(shares):
            limits = rules[queue].ml_limits if queue in rules else None
            if limits is not None and (limits.max_concurrent_gpu_jobs, limits.max_total_gpus) != (None, None):
                matching.budgets[queue] = Budget(self.tx, queue, limits)


class PoolPolicy(ClaimPolicy):
    """Workers of a pool serve the queues of the pool, within its concurrency."""

    def __init__(self, pipeline: Pipeline) -> None:
        super().__init__(pipeline)
        self._pools = pools_by_name(self.tx)
        self.is_used = bool(self._pools)
        self._members: dict[str, str] = {}
        if self._pools:
            self._members = dict(self.tx.execute("SELECT id, pool FROM workers WHERE pool IS NOT NULL"))
        self._room: dict[str, int] = {}

    def _pool_of(self, worker_id: str | None) -> Pool | None:
        name = self._members.get(worker_id or "")
        return None if name is None else self._pools.get(name)

    def join(self, share: Share, request: Claim) -> Share:
        """Keep to the queues of the worker's pool; without one, leave out those that are isolated."""
        pool = self._pool_of(request.worker_id)
        if pool is not None:
            queues = tuple(queue for queue in pool.queues if queue in request.queues)
            share = msgspec.structs.replace(share, queues=queues).with_trait(POOL, pool.name)
            return share.with_trait(SHARING, pool.sharing)
        shut = {queue for pool in self._pools.values() if pool.isolated for queue in pool.queues}
        return msgspec.structs.replace(share, queues=tuple(queue for queue in share.queues if queue not in shut))

    def enter(self, shares: Collection[Share]) -> None:
        """Lock the pools, and count how many more jobs may run in each."""
        for name in sorted({name for share in shares if (name := share.trait(POOL)) is not None}):
            self._room[name] = pool_capacity(self.tx, self._pools[name], turns_of(self.tx, name))

    def room(self, share: Share, wanted: int) -> int:
        """Return how many more jobs may run in the pool."""
        name = share.trait(POOL)
        return wanted if name is None else min(wanted, self._room[name])

    def started(self, share: Share, jobs: Sequence[Job]) -> None:
        """Count jobs that run in the pool."""
        if (name := share.trait(POOL)) is not None:
            self._room[name] -= len(jobs)


class FairnessPolicy(ClaimPolicy):
    """Queues share a worker as it, or its pool, asks."""

    def __init__(self, pipeline: Pipeline) -> None:
        super().__init__(pipeline)
        self.is_used = True

    def join(self, share: Share, request: Claim) -> Share:
        """Add how the queues share, unless the pool has set it."""
        if request.sharing is None or request.sharing == STRICT or share.trait(POOL) is not None:
            return share
        return share.with_trait(SHARING, request.sharing)

    def divide(self, share: Share, claims: Mapping[int, Claim], room: dict[int, int]) -> dict[int, int]:
        """Give the least loaded workers their jobs first, where the load is to be balanced."""
        if (share.trait(SHARING) or STRICT).strategy != "least-loaded":
            return room
        active = count_active_jobs(self.tx, [worker for index in room if (worker := claims[index].worker_id)])
        places: dict[str, int] = dict(
            self.tx.execute("SELECT id, concurrency FROM workers WHERE concurrency IS NOT NULL")
        )
        left = {}
        for index in sorted(room, key=lambda index: active.get(claims[index].worker_id or "", 0)):
            worker = claims[index].worker_id or ""
            left[index] = min(room[index], max(0, places.get(worker, UNLIMITED) - active.get(worker, 0)))
        return left

    def serve_queues(self, share: Share, wanted: int, take: Take) -> Iterator[list[Job]] | None:
        """Find jobs in the order in which the queues share; ``None`` if they are served one after the other."""
        sharing: Sharing = share.trait(SHARING) or STRICT
        return None if sharing.is_plain else self._serve(share, sharing, wanted, take)

    def _serve(self, share: Share, sharing: Sharing, wanted: int, take: Take) -> Iterator[list[Job]]:
        tx, is_mixed = self.tx, self.pipeline.is_mixed(share)
        turns: FairnessState = turns_of(tx, share.trait(POOL) or share)
        pauses = self.pipeline.policy(PausePolicy)
        paused = pauses.paused if pauses is not None else ()
        queues = [queue for queue in dict.fromkeys(share.queues) if queue not in paused]
        while wanted and queues:
            backlog = self._backlog() if sharing.strategy == "least-loaded" else {}
            starved = list(islice((queue for queue in queues if is_starved(tx, queue, sharing, turns)), wanted))
            plan = turns.plan(queues, wanted, sharing, backlog, starved)
            parts = Counter(plan)
            taken = {queue: take((queue,), part) for queue, part in parts.items()}
            queues = [
                queue for queue in queues if len(some := taken.get(queue, ())) == parts[queue] or (is_mixed and some)
            ]
            left = {queue: iter(jobs) for queue, jobs in taken.items()}
            jobs = [job for queue in plan if (job := next(left[queue], None)) is not None]
            for job in jobs:
                turns.note(job.queue, sharing, tx.now)
            wanted -= len(jobs)
            if jobs:
                yield jobs

    def _backlog(self) -> dict[str, int]:
        return dict(self.tx.execute("SELECT queue, jobs FROM job_counts WHERE state = 'available'"))


def _queues_of(shares: Collection[Share]) -> list[str]:
    return sorted({queue for share in shares for queue in share.queues})
