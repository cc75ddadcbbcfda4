"""Matching of jobs and workers: what jobs require, what a worker provides, and what it is running.

Jobs with requirements wait by the key of their requirements (``ojster.fleet.requirements``). A claim looks at each key
once, however many jobs share it, and finds jobs without requirements as if there were no others.

What jobs use of a worker (GPUs, memory, …) is counted from the jobs that it holds, and what they use of the budget of
a queue from the active jobs, so neither can drift.

Spec: ojs-ml-resources
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Final

from ojster.core.errors import InvalidRequest
from ojster.core.job import Job
from ojster.core.job_table import AVAILABLE_HERE, HELD_BY_WORKER, next_values
from ojster.core.json_objects import read_members
from ojster.fleet.ml_resources import ResourceLimits, read_resources
from ojster.fleet.requirements import Condition, Needs, ProvidedFacts
from ojster.jobs.claim_policy import UNLIMITED
from ojster.jobs.claim_position import last_places
from ojster.storage.memory import Local
from ojster.storage.transaction import Transaction, TryAgain

MAX_KINDS_PER_READ: Final = 200
"""Maximum number of kinds of requirements that a claim reads from one queue at a time."""

MAX_READS: Final = 20
"""Maximum number of such reads in a claim. It stops at the first that has a job for the worker's free resources."""

PREFERENCE_TIMEOUT_US: Final = 60_000_000
"""Wait after which a job is no longer passed over for jobs that prefer the worker, in microseconds."""

OVERDUE_PREFERENCE: Final = 1_000
"""Preference score of a job that has waited for longer than ``PREFERENCE_TIMEOUT_US``."""

_KINDS: Final = next_values("needs", AVAILABLE_HERE)
_FIRST: Final = f"SELECT seq {AVAILABLE_HERE} AND needs = :needs LIMIT 1"
_HELD: Final = f"SELECT seq, type, queue, needs {HELD_BY_WORKER}"
_ACTIVE: Final = """
    SELECT needs, min(seq), count(*)
    FROM jobs
    WHERE queue = :queue AND state = 'active' AND needs IS NOT NULL
    GROUP BY needs
"""

MAX_CACHED_REQUIREMENTS: Final = 10_000
"""Maximum number of kinds of requirements that a process caches."""

IMPOSSIBLE: Final = Needs(required=(Condition("nothing", "In"),))
"""Requirements that no worker meets."""

log = logging.getLogger("ojster")

known_requirements: Final = Local[dict[str, Needs]](dict)
"""Requirements of jobs that this process has seen, by key."""


def find_needs(tx: Transaction, key: str, seq: int, envelope: bytes | None = None) -> Needs:
    """Return the requirements of a key. If they are not cached, read them from the job with the number ``seq``."""
    known = known_requirements(tx)
    if key not in known:
        if envelope is None:
            rows = tx.execute(f"SELECT {tx.envelope} FROM payloads AS p WHERE p.seq = :seq", {"seq": seq})
            if not rows:
                raise TryAgain(f"Job number {seq} was deleted by another transaction. Run the transaction again.")
            ((envelope,),) = rows
        if len(known) >= MAX_CACHED_REQUIREMENTS:
            known.clear()
        try:
            known[key] = read_resources(read_members(envelope, "The job")).needs or Needs()
        except InvalidRequest as error:  # accepted by another version of the server
            log.warning("no worker gets jobs with the requirements %s, which are invalid: %s", key, error.message)
            known[key] = IMPOSSIBLE
    return known[key]


class Budget:
    """Remaining GPU jobs and GPUs of a queue.

    The row of the queue stays locked until the transaction ends.

    Spec: ojs-ml-resources 10.3
    """

    def __init__(self, tx: Transaction, queue: str, limits: ResourceLimits) -> None:
        # Claims that count at the same time would all take the last GPU.
        tx.execute("SELECT name FROM queues WHERE name = :name" + tx.for_update, {"name": queue})
        rows = tx.execute(_ACTIVE, {"queue": queue})
        active = [(find_needs(tx, key, seq), jobs) for key, seq, jobs in rows]
        self.jobs = self.gpus = UNLIMITED
        if limits.max_concurrent_gpu_jobs is not None:
            self.jobs = max(0, limits.max_concurrent_gpu_jobs - sum(jobs for needs, jobs in active if needs.gpus))
        if limits.max_total_gpus is not None:
            self.gpus = max(0, limits.max_total_gpus - sum(jobs * needs.gpus for needs, jobs in active))

    def room(self, needs: Needs) -> int:
        """Return the number of jobs with these requirements that may start."""
        return min(self.jobs, self.gpus // needs.gpus) if needs.gpus else UNLIMITED

    def take(self, needs: Needs) -> None:
        """Record that a job with these requirements starts."""
        if needs.gpus:
            self.jobs -= 1
            self.gpus -= needs.gpus


class Match:
    """Selects the jobs that fit a worker in its current state.

    Parameters
    ----------
    worker_id:
        The worker; ``None``: any worker without capabilities.
    """

    def __init__(
        self, tx: Transaction, worker_id: str | None, provided: ProvidedFacts, budgets: dict[str, Budget]
    ) -> None:
        self._tx = tx
        self._provided = provided
        self._budgets = budgets
        self._held: list[dict[str, str]] = []
        self._used: dict[str, float] = {}
        """What the jobs that the worker holds use of its resources, by name."""
        self._kinds: dict[tuple[str, str], list[tuple[str, Needs]]] = {}
        # Two claims for one worker would both fill the same resources. The other one serves the worker: do not wait.
        self._is_elsewhere = worker_id is not None and bool(tx.lock_keys({f"worker:{worker_id}"}))
        """Whether another transaction claims jobs for the worker, so that its free resources are unknown."""
        if worker_id is not None:
            for seq, type, queue, key in tx.execute(_HELD, {"worker_id": worker_id}):
                self._hold(type, queue, None if key is None else find_needs(tx, key, seq))

    def _hold(self, type: str, queue: str, needs: Needs | None) -> None:
        self._held.append({"job_type": type, "queue": queue})
        for name, amount in needs.used if needs is not None else ():
            self._used[name] = self._used.get(name, 0.0) + amount

    def kinds(self, queue: str, tenant: str) -> list[tuple[str, Needs]]:
        """Return the requirements of waiting jobs in a queue that the worker's capabilities meet, with their keys."""
        here = (queue, tenant)
        if here not in self._kinds:
            self._kinds[here] = []
            for some in () if self._is_elsewhere else self._windows(queue, tenant):
                with_needs = [(key, self._needs_of(queue, tenant, key)) for key in some]
                self._kinds[here] += [(key, needs) for key, needs in with_needs if self._provided.meets(needs)]
                if any(self.room(queue, needs) for _, needs in self._kinds[here]):
                    break
            if self._is_elsewhere:
                self._tx.effects.opened.add(queue)
        return self._kinds[here]

    def _needs_of(self, queue: str, tenant: str, key: str) -> Needs:
        known = known_requirements(self._tx).get(key)
        if known is None:
            rows = self._tx.execute(_FIRST, {"queue": queue, "tenant": tenant, "needs": key})
            known = find_needs(self._tx, key, rows[0][0] if rows else 0)
        return known

    def _windows(self, queue: str, tenant: str) -> Iterator[list[str]]:
        """Yield the kinds of requirements in a queue in windows; if there are many, from where the last claim ended."""
        tx = self._tx
        places, here = last_places(tx), ("needs", queue, tenant)
        start = after = places.pop(here, "")
        has_wrapped = not start
        for _ in range(MAX_READS):
            rows = tx.execute(_KINDS, {"queue": queue, "tenant": tenant, "after": after, "most": MAX_KINDS_PER_READ})
            some = [key for (key,) in rows]
            is_last = len(some) < MAX_KINDS_PER_READ
            if not is_last:
                places[here] = after = some[-1]
            yield some
            if is_last:
                places.pop(here, None)
                if has_wrapped:
                    return
                after, has_wrapped = "", True
            elif has_wrapped and start and after >= start:
                return

    def room(self, queue: str, needs: Needs) -> int:
        """Return the number of jobs with these requirements that may start beside those that the worker holds."""
        if any(condition.holds((job[condition.key],)) for condition in needs.apart for job in self._held):
            return 0
        left = ((self._provided.amount(name) - self._used.get(name, 0.0)) / amount for name, amount in needs.used)
        room = int(min((UNLIMITED, *left)))
        budget = self._budgets.get(queue)
        return max(0, room if budget is None else min(room, budget.room(needs)))

    def take(self, job: Job) -> bool:
        """Take a job if it fits beside those that were taken before; return whether it does."""
        needs = self._needs(job)
        if needs is not None:
            if not self.room(job.queue, needs):
                return False
            if job.queue in self._budgets:
                self._budgets[job.queue].take(needs)
        self._hold(job.type, job.queue, needs)
        return True

    def turn(self, job: Job) -> tuple[int, int, int, int]:
        """Return the sort key of a job: priority, class, preference for this worker, age."""
        waited = self._tx.now - (job.enqueued_at or self._tx.now)
        rank = liking = 0
        if (needs := self._needs(job)) is not None:
            rank, liking = needs.rank_after(waited), self._provided.liking(needs)
        return -job.priority, -rank, -(OVERDUE_PREFERENCE if waited > PREFERENCE_TIMEOUT_US else liking), job.seq

    def _needs(self, job: Job) -> Needs | None:
        return None if job.needs is None else find_needs(self._tx, job.needs, job.seq, job.envelope)
