"""Claims: handing out available jobs to workers.

``claim`` is a pipeline. It knows queues, priorities and leases; everything else that decides which jobs a worker gets
is a policy of another capability (``ojster.jobs.claim_policy``).

Spec: ojs-core 7.2.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import islice
from typing import Any, Final, TypeVar

from ojster.core.job import Job
from ojster.core.job_flags import ENQUEUE_TTL
from ojster.core.states import JobState
from ojster.core.tenant import NOBODY, called
from ojster.jobs.available import MANY_QUEUES, FirstLook, next_plain, one_of_each
from ojster.jobs.checkpoints import give_checkpoints
from ojster.jobs.claim_policy import Claim, ClaimPolicy, Share
from ojster.jobs.deadlines import end_waits
from ojster.jobs.extension import hooks, settle
from ojster.jobs.leases import lease_end
from ojster.jobs.progress import clear_progress
from ojster.storage.transaction import Transaction

P = TypeVar("P", bound=ClaimPolicy)

MAX_CLAIMED: Final = 1_000
"""Maximum number of jobs for one claim."""


class NoJobsAllowed(list[Job]):
    """The answer to a worker that gets no jobs at present: a long poll is not worth it."""


def claim(tx: Transaction, claims: Sequence[Claim]) -> list[list[Job]]:
    """Hand out available jobs by priority, then first in, first out; return the jobs of each claim.

    Claims that look into the same queues are served together, in their order.
    """
    pipeline = ClaimPipeline(tx, claims)
    results: dict[int, list[Job]] = {}
    alike: dict[Share, list[int]] = {}
    for index, request in enumerate(claims):
        answer = pipeline.answer(request)
        if answer is None:
            alike.setdefault(pipeline.share(request), []).append(index)
        else:
            results[index] = answer
    pipeline.enter(alike)
    for share, indices in alike.items():
        results |= {index: [] for index in indices}
        room = pipeline.divide(share, {index: claims[index] for index in indices})
        for jobs in pipeline.batches(share, sum(room.values())):
            ready = iter(pipeline.still_available(pipeline.can_start(jobs)))
            started: list[Job] = []
            for index, most in room.items():
                some = list(islice(ready, most - len(results[index])))
                _start(tx, some, claims[index])
                results[index] += some
                started += some
            if started:  # before the next requests look into the same queues
                _hand_out(tx, started)
                pipeline.started(share, started)
    pipeline.close()
    return [pipeline.still_active(results[index]) for index in range(len(claims))]


class ClaimPipeline:
    """The steps of a claim, in their order, with the policies that take part in each."""

    def __init__(self, tx: Transaction, claims: Sequence[Claim]) -> None:
        self.tx = tx
        known = hooks(tx)
        self._overriding = known.claim_steps
        self._policies = [policy(self) for policy in known.claim_policies]
        self._answers, self._joins = self._steps("answer"), self._steps("join")  # they are asked for each claim
        self._first_look = FirstLook(tx)
        if known.usage_probes:
            share = self.share(claims[0]) if len(claims) == 1 else None
            for number, kind, name in self._first_look.look(share, _most(claims[0])):
                self._policies[number].note_use(kind, name)
            self._answers, self._joins = self._steps("answer"), self._steps("join")
        self._has_settled = False
        self._taken_keys: set[str] = set()

    def _steps(self, name: str) -> list[Callable[..., Any]]:
        """Return the step of each policy in use that has one of this name."""
        policies = self._policies
        return [getattr(policies[number], name) for number in self._overriding[name] if policies[number].is_used]

    def policy(self, kind: type[P]) -> P | None:
        """Return a policy, if it is in use."""
        return next((policy for policy in self._policies if isinstance(policy, kind) and policy.is_used), None)

    def answer(self, request: Claim) -> list[Job] | None:
        """Return what a worker gets at once, without a look at the queues."""
        for ask in self._answers:
            if (answer := ask(request)) is not None:
                return answer  # type: ignore[no-any-return]
        return None

    def share(self, request: Claim) -> Share:
        """Return what a claim has in common with others: where it looks, and what it can take."""
        share = Share(request.queues, request.tenant)
        for join in self._joins:
            share = join(share, request)
        return share

    def enter(self, shares: Collection[Share]) -> None:
        """Look at limits, and lock them."""
        for enter in self._steps("enter"):
            enter(shares)

    def divide(self, share: Share, claims: dict[int, Claim]) -> dict[int, int]:
        """Return how many jobs each of the claims of a share may get, the first first."""
        room = {index: _most(request) for index, request in claims.items()}
        for divide in self._steps("divide"):
            room = divide(share, claims, room)
        return room

    def is_mixed(self, share: Share) -> bool:
        """Whether jobs of several tenants are handed out together."""
        return share.tenant is None and bool(self._steps("serve_tenants"))

    def batches(self, share: Share, wanted: int) -> Iterator[list[Job]]:
        """Find jobs to hand out, some at a time; each batch is started before the next is asked for."""
        for limit in self._steps("room"):
            wanted = limit(share, wanted)

        def take(queues: Sequence[str], count: int) -> list[Job]:
            return self._take(share, queues, count)

        for serve in self._steps("serve_queues"):
            if (batches := serve(share, wanted, take)) is not None:
                yield from batches
                return
        is_mixed = self.is_mixed(share)
        while wanted and (jobs := take(share.queues, wanted)):
            yield jobs
            wanted = wanted - len(jobs) if is_mixed else 0

    def _take(self, share: Share, queues: Sequence[str], wanted: int) -> list[Job]:
        """Take jobs from queues, those of the first queue first."""
        limits, notes = self._steps("room_in_queue"), self._steps("taken_from")
        mix = self._steps("serve_tenants") if share.tenant is None else []
        taken: list[Job] = []
        looked: Sequence[str] = list(dict.fromkeys(queues))
        if len(looked) > MANY_QUEUES:
            looked = self.tx.queues_with_jobs(looked)
        for queue in looked:
            room = wanted - len(taken)
            for limit in limits:
                room = room and limit(queue, room)
            if not room:
                continue
            if mix:
                jobs = mix[0](queue, room, lambda tenant, part, queue=queue: self._take_of(share, queue, tenant, part))
            else:
                jobs = self._take_of(share, queue, share.tenant or NOBODY, room)
            for note in notes:
                note(queue, jobs)
            taken += jobs
        return taken

    def _take_of(self, share: Share, queue: str, tenant: str, wanted: int) -> list[Job]:
        room = wanted
        for limit in self._steps("room_of_tenant"):
            room = room and limit(tenant, room)
        if not room:
            return []
        finders, checks = self._steps("find"), self._steps("need_run")
        again = True
        while again:
            ahead = self._first_look.take(share, queue, tenant, room)
            jobs = next_plain(self.tx, share, queue, tenant, room, ahead)
            for find in finders:
                jobs = find(share, queue, tenant, room, jobs)
            if self._taken_keys:  # by jobs of other queues or tenants, which are not active yet
                jobs = one_of_each(self.tx, queue, jobs, self._taken_keys)
            again = False
            for need_run in checks:
                jobs, more = need_run(queue, jobs)
                again = again or more
        for fit in self._steps("fit"):
            jobs = fit(share, queue, jobs)
        for note in self._steps("taken"):
            note(tenant, jobs)
        self._taken_keys.update(key for job in jobs if (key := job.exclusive_key) is not None)
        return jobs

    def can_start(self, jobs: list[Job]) -> list[Job]:
        """Leave out jobs that another transaction has stopped meanwhile."""
        for check in self._steps("can_start"):
            jobs = check(jobs)
        return jobs

    def settle(self) -> None:
        """Carry out what follows from jobs that a policy has ended; it may end jobs that are found already."""
        settle(self.tx)
        self._has_settled = True

    def still_available(self, jobs: list[Job]) -> list[Job]:
        """Leave out found jobs that have been replaced meanwhile."""
        return self._in_state(jobs, JobState.AVAILABLE)

    def still_active(self, jobs: list[Job]) -> list[Job]:
        """Leave out started jobs that have been replaced meanwhile."""
        return self._in_state(jobs, JobState.ACTIVE)

    def _in_state(self, jobs: list[Job], state: JobState) -> list[Job]:
        if not self._has_settled or not jobs:
            return jobs
        stored = self.tx.find_jobs([job.id for job in jobs])
        return [job for job in jobs if stored[job.id].state == state]

    def started(self, share: Share, jobs: Sequence[Job]) -> None:
        """Note that jobs of a share have started."""
        for note in self._steps("started"):
            note(share, jobs)

    def close(self) -> None:
        """Write what was used."""
        self._first_look.close()
        for close in self._steps("close"):
            close()


def _most(request: Claim) -> int:
    return min(request.count, MAX_CLAIMED)


def _start(tx: Transaction, jobs: list[Job], request: Claim) -> None:
    """Make jobs active, leased to the worker of a claim."""
    now, settings, waits = tx.now, tx.settings, tx.effects.waits
    shown = called(request.worker_id or "")
    lease = request.lease or settings.default_lease
    ends: dict[tuple[int | None, int | None], int] = {}
    told: list[dict[str, Any]] = []
    for job in jobs:
        job.attempt += 1
        job.started_before = job.started_at
        job.started_at = now
        job.worker_id = request.worker_id
        if job.flags:
            job.due_at = lease_end(tx, job, lease)
            tx.expect(job.due_at)
            tx.note_event(job, "on_assignment")
        else:
            alike = (job.lease, job.timeout)
            if alike not in ends:
                ends[alike] = lease_end(tx, job, lease)
            job.due_at = ends[alike]
        waited = now - (job.enqueued_at or now)
        waits.append((job.queue, job.tenant, waited))
        told.append({"attempt": job.attempt, "worker_id": shown, "wait_ms": waited // 1000})
    tx.expect(min(ends.values(), default=None))
    tx.make_taken(*jobs)
    tx.move_all(jobs, JobState.ACTIVE.value, "job.started", told)


def _hand_out(tx: Transaction, started: list[Job]) -> None:
    """Write that jobs are active, and give them what their handlers need."""
    tx.start_jobs(started)
    if limited := [job for job in started if job.flags & ENQUEUE_TTL]:
        end_waits(tx, limited)
    if begun := [job for job in started if job.checkpoint_number]:
        give_checkpoints(tx, begun)
    if again := [job for job in started if job.progress is not None]:
        clear_progress(tx, again)
    for give in hooks(tx).start:
        give(tx, started)


def should_wait(jobs: Sequence[Job]) -> bool:
    """Whether a fetch should wait: it found no job, and the worker may take jobs."""
    return not jobs and not isinstance(jobs, NoJobsAllowed)


def should_not_wait(jobs: Sequence[Job]) -> bool:
    """Return ``False``: a fetch without a wait takes what it finds."""
    return False
