"""Which jobs can a worker run? What jobs need, what the worker provides, and what it is at. (ojs-ml-resources.md)

Jobs with requirements wait by the key of their requirements (``ojster.fleet.requirements``). A claim looks at each key
once, however many jobs share it, and finds jobs without requirements as if there were no others.

What jobs take of a worker (GPUs, memory, …) is counted from the jobs that it holds, and what they take of the budget of
a queue from those that are active, so neither can drift.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Final

from ojster.core.errors import InvalidRequest
from ojster.core.job import Job
from ojster.fleet.ml_resources import ResourceLimits, read_resources
from ojster.fleet.requirements import Condition, Needs, Provided
from ojster.jobs.claim_policy import UNLIMITED
from ojster.jobs.places import last_places
from ojster.jobs.request import read_members
from ojster.storage.memory import Local
from ojster.storage.transaction import Transaction, TryAgain

MOST_KINDS: Final = 200
"""At how many kinds of needs of one queue a claim looks at once."""

MOST_WINDOWS: Final = 20
"""How often it looks at some more of them, as long as it has found none that the worker can take now."""

PATIENCE: Final = 60_000_000
"""A job that has waited for so long, in microseconds, is no longer passed over for those that prefer a worker."""

FULL_LIKING: Final = 1_000

_WAITS: Final = "FROM jobs WHERE queue = :queue AND tenant = :tenant AND state = 'available' AND needs"
_KINDS: Final = (
    "SELECT name FROM (WITH RECURSIVE kinds(name) AS ("
    f"SELECT (SELECT min(needs) {_WAITS} > :after) "
    f"UNION ALL SELECT (SELECT min(needs) {_WAITS} > kinds.name) FROM kinds WHERE kinds.name IS NOT NULL"
    ") SELECT name FROM kinds WHERE name IS NOT NULL LIMIT :most) AS kinds"
)
"""Each kind is looked up behind the one before it, so that the cost is that of the kinds, not of their jobs."""

_FIRST: Final = f"SELECT seq {_WAITS} = :needs LIMIT 1"
_HELD: Final = (
    "SELECT seq, type, queue, needs FROM jobs WHERE state = 'active' AND due_at IS NOT NULL AND worker_id = :worker_id"
)
_ACTIVE: Final = (
    "SELECT needs, min(seq), count(*) FROM jobs WHERE queue = :queue AND state = 'active' AND needs IS NOT NULL "
    "GROUP BY needs"
)

MOST_REMEMBERED: Final = 10_000
"""How many kinds of needs a process remembers."""


IMPOSSIBLE: Final = Needs(required=(Condition("nothing", "In"),))
"""What no worker provides."""

log = logging.getLogger("ojster")


known_requirements: Final = Local[dict[str, Needs]](dict)
"""Requirements of jobs that this process has seen, by key."""


def find_needs(tx: Transaction, key: str, seq: int, envelope: bytes | None = None) -> Needs:
    """Return the needs of a key, which the job with this number has."""
    known = known_requirements(tx)
    if key not in known:
        if envelope is None:
            rows = tx.execute("SELECT envelope FROM payloads WHERE seq = :seq", {"seq": seq})
            if not rows:
                raise TryAgain("A job that was looked at was deleted meanwhile.")
            ((envelope,),) = rows
        if len(known) >= MOST_REMEMBERED:
            known.clear()
        try:
            known[key] = read_resources(read_members(envelope, "The job")).needs or Needs()
        except InvalidRequest as error:  # another version of the server has let it in
            log.warning("jobs with the needs %s are given to nobody: %s", key, error.message)
            known[key] = IMPOSSIBLE
    return known[key]


class Budget:
    """How many more jobs with GPUs may run in a queue, and how many GPUs they may take (section 10.3).

    Until the transaction ends, nobody else finds that out.
    """

    def __init__(self, tx: Transaction, queue: str, limits: ResourceLimits) -> None:
        tx.execute("SELECT name FROM queues WHERE name = :name" + tx.for_update, {"name": queue})
        rows = tx.execute(_ACTIVE, {"queue": queue})
        active = [(find_needs(tx, key, seq), jobs) for key, seq, jobs in rows]
        self.jobs = self.gpus = UNLIMITED
        if limits.max_concurrent_gpu_jobs is not None:
            self.jobs = max(0, limits.max_concurrent_gpu_jobs - sum(jobs for needs, jobs in active if needs.gpus))
        if limits.max_total_gpus is not None:
            self.gpus = max(0, limits.max_total_gpus - sum(jobs * needs.gpus for needs, jobs in active))

    def room(self, needs: Needs) -> int:
        """Return how many jobs with these needs may start."""
        return min(self.jobs, self.gpus // needs.gpus) if needs.gpus else UNLIMITED

    def take(self, needs: Needs) -> None:
        """Note that a job with these needs starts."""
        if needs.gpus:
            self.jobs -= 1
            self.gpus -= needs.gpus


class Match:
    """Which jobs fit a worker, as it is now.

    Parameters
    ----------
    worker_id:
        Which worker; ``None``: any that provides nothing.
    """

    def __init__(self, tx: Transaction, worker_id: str | None, provided: Provided, budgets: dict[str, Budget]) -> None:
        self._tx = tx
        self._provided = provided
        self._budgets = budgets
        self._held: list[dict[str, str]] = []
        self._free: dict[str, float] = {name: provided.amount(name) for name in provided.facts}
        self._kinds: dict[tuple[str, str], list[tuple[str, Needs]]] = {}
        self._is_elsewhere = worker_id is not None and bool(tx.lock_keys({f"worker:{worker_id}"}))
        """Whether another transaction finds jobs for the worker: what that leaves of it is not known yet."""
        if worker_id is not None:
            for seq, type, queue, key in tx.execute(_HELD, {"worker_id": worker_id}):
                self._hold(type, queue, None if key is None else find_needs(tx, key, seq))

    def _hold(self, type: str, queue: str, needs: Needs | None) -> None:
        self._held.append({"job_type": type, "queue": queue})
        for name, amount in needs.used if needs is not None else ():
            self._free[name] = self._free.get(name, 0.0) - amount

    def kinds(self, queue: str, tenant: str) -> list[tuple[str, Needs]]:
        """Return what the jobs that wait in a queue need, by key, as far as the worker provides it."""
        here = (queue, tenant)
        if here not in self._kinds:
            self._kinds[here] = []
            for some in () if self._is_elsewhere else self._windows(queue, tenant):
                found = [(key, self._needs_of(queue, tenant, key)) for key in some]
                self._kinds[here] += [(key, needs) for key, needs in found if self._provided.meets(needs)]
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
        """The kinds of needs in a queue, some at a time; where there are many, from where the last claim ended."""
        tx = self._tx
        places, here = last_places(tx), ("needs", queue, tenant)
        start = after = places.pop(here, "")
        has_wrapped = not start
        for _ in range(MOST_WINDOWS):
            rows = tx.execute(_KINDS, {"queue": queue, "tenant": tenant, "after": after, "most": MOST_KINDS})
            some = [key for (key,) in rows]
            is_last = len(some) < MOST_KINDS
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
        """Return how many jobs of a queue with these needs may start beside those that the worker is at."""
        if any(condition.holds((job[condition.key],)) for condition in needs.apart for job in self._held):
            return 0
        left = (self._free.get(name, 0.0) / amount for name, amount in needs.used)
        room = int(min((UNLIMITED, *left)))
        budget = self._budgets.get(queue)
        return max(0, room if budget is None else min(room, budget.room(needs)))

    def take(self, job: Job) -> bool:
        """Whether a job fits, beside those that were taken before; if it does, it is taken."""
        needs = self._needs(job)
        if needs is not None:
            if not self.room(job.queue, needs):
                return False
            if job.queue in self._budgets:
                self._budgets[job.queue].take(needs)
        self._hold(job.type, job.queue, needs)
        return True

    def turn(self, job: Job) -> tuple[int, int, int, int]:
        """Return by what jobs are sorted: priority, class, how much each prefers this worker, and age."""
        waited = self._tx.now - (job.enqueued_at or self._tx.now)
        rank = liking = 0
        if (needs := self._needs(job)) is not None:
            rank, liking = needs.rank_after(waited), self._provided.liking(needs)
        return -job.priority, -rank, -(FULL_LIKING if waited > PATIENCE else liking), job.seq

    def _needs(self, job: Job) -> Needs | None:
        return None if job.needs is None else find_needs(self._tx, job.needs, job.seq, job.envelope)
