"""Extension points in the life of a job.

The transactions of this folder know no other capability. Each capability that takes part in the life of a job derives
from ``Extension`` and overrides what it needs; ``ojster.capabilities`` lists them. An unused extension point
costs the look at an empty tuple.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence, Set
from functools import cache
from typing import Any, Final, NamedTuple

import msgspec

from ojster.core.errors import OjsterError
from ojster.core.job import Job
from ojster.core.json_objects import Members
from ojster.jobs.claim_policy import STEPS, Claim, ClaimPolicy, UsageProbes
from ojster.jobs.failure import Failure
from ojster.jobs.messages import Acknowledgement, EndWithoutSuccess, Release
from ojster.jobs.new_job import NewJob
from ojster.jobs.reason import LimitUse, Reason
from ojster.jobs.scope import Scope
from ojster.storage.memory import Local, Memory
from ojster.storage.transaction import Query, Row, Transaction

Group = Sequence[NewJob]
"""Jobs that are pushed together: all of them are inserted, or none."""

DeletedCounts = Counter[str]
"""Numbers of deleted items, by kind; ``rows`` counts all rows."""


class Due(msgspec.Struct, frozen=True):
    """What is due next.

    Parameters
    ----------
    at:
        When something is due next, in microseconds since the epoch; ``None``: nothing is known.
    has_more:
        Whether more is due already.
    """

    at: int | None
    has_more: bool = False


Completer = Callable[[Members], Members]
"""Returns an enqueue request with what it leaves out, or raises its refusal."""


class Erasure(msgspec.Struct, frozen=True):
    """The erasure of what is left elsewhere of workflows and jobs that were deleted on request, in bounded steps.

    Parameters
    ----------
    subjects:
        The ids of all that was deleted.
    deleted_at:
        When it was deleted, in microseconds since the epoch.
    eraser, position:
        Which of the places is next, by its number, and how far it has been examined.
    """

    subjects: frozenset[str]
    deleted_at: int
    eraser: int = 0
    position: int = 0


class Foresight(NamedTuple):
    """What an extension reads in one message with what comes before it: locks on reported jobs, a look for jobs."""

    queries: Sequence[Query]
    keep: Callable[[Sequence[list[Row]]], None]
    """Keeps the rows of each query. They are to be used only if nothing has changed them since."""


class Extension:
    """What a capability adds to the life of a job. Every method here does nothing."""

    # Push

    async def completer(self, scope: Scope) -> Completer | None:
        """Return what completes and checks enqueue requests as operators want; ``None``: nothing.

        The answer is kept until the process hears that an operator has changed something (``Memory.version``).
        """
        return None

    def check(self, tx: Transaction, new: NewJob) -> None:
        """Check what the reactions of a new job refer to, or raise its refusal; called for jobs with reactions."""

    def refuse_push(self, tx: Transaction, groups: Sequence[Group]) -> Sequence[OjsterError | None]:
        """Return for each group of jobs why it must not be pushed, or ``None``.

        A group of copies (``jobs/models.py``) has the first job as often as there are jobs.
        """
        return [None for _ in groups]

    def announced(self, tx: Transaction, tenant: str) -> int:
        """Return the number of a tenant's jobs that do not exist yet, but count towards its limits."""
        return 0

    def admit(self, tx: Transaction, new: Sequence[NewJob], jobs: Sequence[Job]) -> None:
        """Complete the rows of new jobs that are about to be inserted, or raise the refusal of them all.

        Of jobs with one model (``NewJob.model``) it gets the first: the rows of the others are copies of its row.
        """

    # Changes of state

    def stop(self, tx: Transaction, jobs: Sequence[Job]) -> Set[str]:
        """Suspend or cancel those of the jobs that must not become available; return their ids."""
        return frozenset()

    def enqueued(self, tx: Transaction, jobs: Sequence[Job]) -> None:
        """Follow up on jobs that have become available again."""

    def freed(self, tx: Transaction, jobs: Sequence[Job]) -> None:
        """Wake the fetches that wait for what these jobs no longer use."""

    def failed(self, tx: Transaction, job: Job, failure: Failure) -> None:
        """Follow up on a failed attempt."""

    def last_retry(self, job: Job) -> int | None:
        """Return the delay, in microseconds, of one more retry after a job has used all attempts of its policy."""
        return None

    def before_growth(self, tx: Transaction, ids: Sequence[str]) -> None:
        """Lock what limits the steps that jobs, given by their ids, are about to add, before the jobs are locked."""

    def lock(self, tx: Transaction, jobs: Iterable[Job]) -> None:
        """Lock what changes together with locked jobs, all at once, so that no two transactions deadlock."""

    def succeeded_late(self, tx: Transaction, job: Job, result: bytes) -> None:
        """Note that the attempt of an ended job, which was stopped, has succeeded all the same, with this result."""

    def died(self, tx: Transaction, jobs: Sequence[Job]) -> Set[str]:
        """Return the ids of the jobs with an expired lease whose workers count as dead."""
        return frozenset()

    def progressed(self, tx: Transaction, jobs: Sequence[Job]) -> Set[str]:
        """Return the ids of jobs whose attempt, which ends with the death of its worker, has done lasting work."""
        return frozenset()

    def lose(self, tx: Transaction, job: Job) -> None:
        """Follow up on an attempt that ended because its worker was lost."""

    def settle(self, tx: Transaction) -> None:
        """Carry out what follows from the jobs that have ended in this transaction."""

    def finish(self, tx: Transaction) -> None:
        """Carry out what follows from a transaction, before it is committed; runs again if more happens in it."""

    def pushed(self, tx: Transaction, queues: Iterable[str]) -> None:
        """Follow up on jobs that were pushed; ``queues`` has the queue of each."""

    def check_move(self, tx: Transaction, job: Job, queue: str) -> None:
        """Check that a job may move to a queue, or raise its refusal."""

    def moved(self, tx: Transaction, jobs: Sequence[Job]) -> None:
        """Follow up on waiting or finished jobs that have changed their queue."""

    def revived(self, tx: Transaction, job: Job) -> None:
        """Follow up on a finished job that runs again as if it were new."""

    def deleted(self, tx: Transaction, jobs: Sequence[int]) -> None:
        """Delete what is kept beside jobs, given by ``seq``, that are deleted."""

    def results_deleted(self, tx: Transaction, jobs: Sequence[int]) -> None:
        """Delete what is kept beside results that are deleted before their jobs, given by ``seq``."""

    def erase(self, tx: Transaction, erasure: Erasure) -> int | None:
        """Erase what is left of what was deleted on request; return where the next step begins, ``None`` at the end."""
        return None

    # Maintenance

    def due(self, tx: Transaction, *, in_maintenance: bool) -> Due:
        """Process what is due at ``tx.now``; return when to look again."""
        return Due(None)

    def go_on(self, tx: Transaction) -> Due:
        """Go on with large work by one step; return what is left. Without ``has_more``, others have locked it now."""
        return Due(None)

    def end_wait(self, tx: Transaction, job: Job) -> bool:
        """End the wait of a pending job that is due; return ``False`` if it waits for its expiry."""
        return False

    def forget(self, tx: Transaction, room: int) -> DeletedCounts:
        """Delete what is past its retention, at most about ``room`` rows; return the numbers, by kind."""
        return Counter()

    def forgettable(self, tx: Transaction) -> DeletedCounts:
        """Return what repeated calls of ``forget`` would delete, by kind."""
        return Counter()

    # Reports of workers

    def foresee(self, tx: Transaction, nodes: Sequence[int]) -> Foresight | None:
        """Return what to read ahead about these steps, whose jobs are reported as completed; ``None``: nothing."""
        return None

    def refuse_result(self, tx: Transaction, job: Job, report: Acknowledgement) -> OjsterError | None:
        """Return why the result of a job is refused. Plain jobs (``ojster.core.plain_end``) may not be asked about."""
        return None

    def acknowledge(self, tx: Transaction, job: Job, report: Acknowledgement) -> None:
        """Carry out what an acknowledgement says beside its result, or raise its refusal."""

    def result_of(self, tx: Transaction, job: Job, report: Acknowledgement) -> bytes | None:
        """Return the result to store in the place of the one in the acknowledgement, or raise its refusal."""
        return None

    def refuse_end(self, tx: Transaction, job: Job, report: EndWithoutSuccess) -> OjsterError | None:
        """Carry out what the end of an attempt says beside its outcome, or return why it is refused."""
        return None

    def release(self, tx: Transaction, job: Job, report: Release) -> bool:
        """Release a job in a way other than back into its queue; tell whether that was done."""
        return False

    # Claim

    def selects(self, memory: Memory, request: Claim) -> str | None:
        """Return a name for the jobs that the worker of a claim can take; ``None`` if it can take every job.

        Parked claims with the same name are woken by as many jobs as there are; claims with other names as well.
        """
        return None

    def limits_on(self, tx: Transaction, job: Job) -> Iterable[LimitUse]:
        """Return the limits that an unfinished job is under, with their use."""
        return ()

    def why_waiting(self, tx: Transaction, job: Job) -> Iterable[Reason]:
        """Return why an available job is not handed out."""
        return ()

    def claim_policies(self) -> Sequence[tuple[type[ClaimPolicy], UsageProbes]]:
        """Return the policies that decide which jobs are handed out, and what shows that each is in use."""
        return ()

    def foresee_start(self, tx: Transaction, limit: int) -> Foresight | None:
        """Return what to read ahead for a claim that starts at most so many jobs; ``None``: nothing."""
        return None

    def start(self, tx: Transaction, jobs: Sequence[Job]) -> None:
        """Give jobs that are handed out what their handlers need."""


class Hooks:
    """The extension points, each with the methods of those extensions that override it, in their order."""

    def __init__(self, extensions: Sequence[Extension] = ()) -> None:
        def overriding(name: str) -> tuple[Callable[..., Any], ...]:
            return tuple(
                getattr(extension, name)
                for extension in extensions
                if getattr(type(extension), name) is not getattr(Extension, name)
            )

        self.refuse_push = overriding("refuse_push")
        self.completer = overriding("completer")
        self.check = overriding("check")
        self.selects = overriding("selects")
        self.announced = overriding("announced")
        self.admit = overriding("admit")
        self.stop = overriding("stop")
        self.enqueued = overriding("enqueued")
        self.freed = overriding("freed")
        self.failed = overriding("failed")
        self.last_retry = overriding("last_retry")
        self.before_growth, self.lock = overriding("before_growth"), overriding("lock")
        self.due = overriding("due")
        self.go_on = overriding("go_on")
        self.end_wait = overriding("end_wait")
        self.forget = overriding("forget")
        self.forgettable = overriding("forgettable")
        self.succeeded_late = overriding("succeeded_late")
        self.died, self.progressed, self.lose = overriding("died"), overriding("progressed"), overriding("lose")
        self.settle = overriding("settle")
        self.finish = overriding("finish")
        self.pushed = overriding("pushed")
        self.check_move, self.moved = overriding("check_move"), overriding("moved")
        self.revived = overriding("revived")
        self.deleted, self.results_deleted = overriding("deleted"), overriding("results_deleted")
        self.erase = overriding("erase")
        self.foresee, self.foresee_start = overriding("foresee"), overriding("foresee_start")
        self.refuse_result = overriding("refuse_result")
        self.acknowledge = overriding("acknowledge")
        self.result_of = overriding("result_of")
        self.refuse_end = overriding("refuse_end")
        self.release = overriding("release")
        self.start = overriding("start")
        self.limits_on = overriding("limits_on")
        self.why_waiting = overriding("why_waiting")
        policies = [policy for extension in extensions for policy in extension.claim_policies()]
        self.claim_policies = tuple(policy for policy, _ in policies)
        self.claim_steps = {
            step: tuple(
                number
                for number, policy in enumerate(self.claim_policies)
                if getattr(policy, step) is not getattr(ClaimPolicy, step)
            )
            for step in STEPS
        }
        """The policies, by number, that take part in each step of a claim."""
        self.usage_probes = " UNION ALL ".join(
            f"SELECT {number} AS policy, '{kind}' AS kind, {select}"
            for number, (_, probes) in enumerate(policies)
            for kind, select in probes.items()
        )
        """One statement for all usage probes: every claim runs it."""


hooks: Final = Local[Hooks](Hooks)
"""The extensions in force: ``hooks(tx)``."""


@cache
def _hooks_of(extensions: tuple[Extension, ...]) -> Hooks:
    """Return the hooks of extensions, found once: transactions on connections of callers install them each time."""
    return Hooks(extensions)


def install(memory: Memory, extensions: Sequence[Extension]) -> None:
    """Put extensions in force for all transactions of a database in this process."""
    known = _hooks_of(tuple(extensions))
    memory.locals[hooks] = known
    memory.finishers = known.finish


def settle(tx: Transaction) -> None:
    """Carry out what follows from the jobs that have ended in this transaction; every change of jobs ends with it."""
    for step in hooks(tx).settle:
        step(tx)


def lock_with(tx: Transaction, jobs: Iterable[Job]) -> None:
    """Lock what changes together with jobs that were just locked."""
    locked = list(jobs)
    for lock in hooks(tx).lock:
        lock(tx, locked)
