"""Calls about jobs: push, claim, complete, look up and change."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

import msgspec

from ojster.core import access
from ojster.core.errors import BackendUnavailable, Forbidden, NotFound, OjsterError
from ojster.core.job import Job
from ojster.core.json_objects import Members, read_members
from ojster.core.parsing import check_bounds
from ojster.core.printable import refuses_surrogates
from ojster.core.queue_names import names_heard
from ojster.core.states import FINISHED as FINISHED_STATES
from ojster.core.tenant import DEFAULT_TENANT, qualify
from ojster.core.turns import read_aside
from ojster.jobs import checkpoints, completion, interventions, job_logs, pages, progress, queries
from ojster.jobs.answer_wire import JobResultsAnswer, RetriedAnswer, show_result
from ojster.jobs.calls import JobCalls
from ojster.jobs.checkpoints import Checkpoint, NewCheckpoint
from ojster.jobs.claim import NoJobsAllowed, claim, should_not_wait, should_wait
from ojster.jobs.claim_policy import Claim
from ojster.jobs.explanation import Explanation, explain
from ojster.jobs.extension import hooks
from ojster.jobs.filter_walk import JobFilter
from ojster.jobs.history import Entry, Lineage, purge_history, read_history, trace_lineage
from ojster.jobs.job_logs import JobLog, NewLines
from ojster.jobs.messages import Acknowledgement, FailureReport, LeaseReport, Progress, Release, hand_back
from ojster.jobs.middleware import EnqueueMiddleware, MiddlewareChain
from ojster.jobs.new_job import NewJob
from ojster.jobs.preparation import Preparation, Preparations, log_warnings
from ojster.jobs.push import Pushed, push
from ojster.jobs.queries import JobPage, Page
from ojster.jobs.scope import CapabilityService, Scope, accepted, merged
from ojster.jobs.transitions import ChangedJob
from ojster.jobs.wire import JobIds
from ojster.storage.call import LongPoll, TransactionFunction, has_arrived
from ojster.storage.wakeups import FINISHED, job_topic

W = TypeVar("W", bound=LeaseReport)

MAX_WAIT_SECONDS: Final = 60.0
"""Maximum long-poll wait, in seconds."""

RESULTS_AT_ONCE: Final = 16
"""Number of jobs that are read together for their results, each of which may be large."""

LARGEST_RESULTS: Final = 16 << 20
"""Size of results, in bytes, from which those of further jobs are left to another call."""

IDLE_PAUSE: Final = 1.0
"""Maximum delay of an empty answer to a worker that may take no jobs, in seconds; prevents a busy loop."""


class JobService(CapabilityService, JobCalls):
    """Calls about jobs.

    Parameters
    ----------
    middleware:
        Wraps every push, the first outermost.
    shrink:
        Replaces large results by references to files, before they are stored.
    """

    def __init__(
        self,
        scope: Scope,
        middleware: MiddlewareChain[EnqueueMiddleware],
        shrink: Callable[[Sequence[Acknowledgement]], Awaitable[Sequence[Acknowledgement]]],
    ) -> None:
        super().__init__(scope)
        self._preparations = Preparations(scope, middleware)
        self._shrink = shrink
        self._hooks = hooks.of(self.database.memory)

    async def prepare(self, members: Members) -> NewJob:
        """Run the enqueue middleware over a request, and return the job that it describes. See ``Preparation.job``."""
        job = self._preparations.copy(members)
        return await (await self._preparations.begin(of_many=False)).job(members) if job is None else job

    async def prepare_body(self, body: bytes) -> NewJob:
        """Return the job that the body of a request describes. See ``prepare``."""
        if (job := self._preparations.copy_of_body(body)) is not None:
            return job
        members = await read_aside(len(body), read_members, body)
        return self._preparations.remember_body(body, bytes(members.get("args", b"")), await self.prepare(members))

    async def preparation(self) -> Preparation:
        """Look up what is the same for all jobs of a request."""
        return await self._preparations.begin()

    async def push(self, jobs: Sequence[NewJob]) -> list[Pushed]:
        """Insert jobs, all or none (PUSH).

        Raises
        ------
        Duplicate
            An id or a unique key is taken.
        """
        (pushed,) = await self.database.run_many(push, (jobs,), len(jobs))
        return accepted(pushed)

    async def enqueue(self, requests: Sequence[Members]) -> list[Pushed]:
        """Prepare and push jobs, all or none."""
        is_one = len(requests) == 1
        jobs = [await self.prepare(requests[0])] if is_one else await (await self.preparation()).jobs(requests)
        pushed = accepted((await self.database.run_many(push, (jobs,), len(jobs)))[0])  # as in push, a coroutine less
        log_warnings(jobs)
        return pushed

    async def fetch(self, request: Claim, wait: float = 0.0) -> list[Job]:
        """Hand out jobs (FETCH). If there are none, wait for one: ``wait`` seconds, at most ``MAX_WAIT_SECONDS``."""
        return await self._fetch(request, wait)

    @refuses_surrogates
    async def _fetch(self, request: Claim, wait: float = 0.0, *, joins: bool = False) -> list[Job]:
        """Hand out jobs. ``joins``: in the transaction of the call that was just made."""
        waits = wait > 0 and not self.database.draining
        queues = request.queues
        for queue in queues:
            self.scope.check_queue(queue)
        if self.scope.tenant is not None:
            worker_id = self.scope.named(request.worker_id) if request.worker_id else None
            request = msgspec.structs.replace(request, tenant=self.scope.tenant, worker_id=worker_id)
            queues = tuple(qualify(self.scope.tenant or DEFAULT_TENANT, queue) for queue in queues)
        prefix = ""  # calls that cannot take every job of a queue are parked under a name of their own
        for selects in self._hooks.selects:
            if (kind := selects(self.database.memory, request)) is not None:
                prefix = f"/choosy/{kind}/"
                break
        topics = {prefix + queue: names_heard(queue) for queue in queues} if waits else {}
        poll = LongPoll(topics, self._should_wait if waits else should_not_wait, self.give_back)
        call = self.database.run_or_park(claim, request, poll, joins=joins)
        try:
            if waits:
                await asyncio.wait((call,), timeout=min(wait, MAX_WAIT_SECONDS))
                if not call.done():
                    self.database.hurry(poll)
            jobs = (await call)[0]
            if waits and isinstance(jobs, NoJobsAllowed):
                await asyncio.sleep(min(wait, IDLE_PAUSE))
            return jobs
        except asyncio.CancelledError:
            if has_arrived(call):
                self.give_back(call.result()[0])
            call.cancel()
            raise

    def _should_wait(self, jobs: Sequence[Job]) -> bool:
        # A claim that began before the end of all long polls, and ends after it, must not begin a new one.
        return should_wait(jobs) and not self.database.draining

    def give_back(self, jobs: Sequence[Job]) -> None:
        """Release jobs after their fetch was cancelled; their attempts do not count."""
        if jobs:
            with contextlib.suppress(BackendUnavailable):  # their leases expire instead
                self.database.run_many(completion.release, [hand_back(job, job.worker_id) for job in jobs])

    async def acknowledge(self, items: Sequence[Acknowledgement]) -> list[Job | OjsterError]:
        """Complete jobs (ACK); return each job, or the refusal of its acknowledgement.

        With a file store, results of more than 64 KiB become files, unless a transaction must read them, for example
        for steps that refer to them. It is refused with ``Forbidden`` if there are steps to append that the caller may
        not push: it is limited to certain queues, or the steps carry code, set recipients, or react in a way that the
        caller may not.
        """
        outcomes, _ = await self.acknowledge_and_fetch(items, None)
        return outcomes

    async def acknowledge_and_fetch(
        self, items: Sequence[Acknowledgement], request: Claim | None
    ) -> tuple[list[Job | OjsterError], list[Job] | OjsterError]:
        """Complete jobs, and hand out further ones after that, in the same transaction.

        ``request``: which jobs; ``None``: none. Return the outcomes, and the jobs or why there are none.
        """
        items, refusals = await self.scope.check_reports(await self._shrink(items), self._refuse_append)
        acknowledging = self.database.run_many(completion.acknowledge, items) if items else None
        fetched: list[Job] | OjsterError = []
        if request is not None:
            try:
                fetched = await self._fetch(request, joins=acknowledging is not None)
            except OjsterError as error:
                fetched = error
        try:
            outcomes = () if acknowledging is None else await acknowledging
        except BaseException:
            self.give_back(fetched if isinstance(fetched, list) else ())
            raise
        return merged(refusals, outcomes), fetched

    def _refuse_append(self, item: Acknowledgement) -> OjsterError | None:
        """Return why the caller may not append the steps of an acknowledgement, or ``None``."""
        if not item.append:
            return None
        try:
            self.scope.need_all_queues("A step to append")
        except Forbidden as refusal:
            return refusal
        return self.scope.refuse_contents(*item.append)

    async def fail(self, items: Sequence[FailureReport]) -> list[Job | OjsterError]:
        """Fail attempts (FAIL); return each job, or the refusal of its report."""
        return await self._deliver(completion.fail, items)

    async def release(self, items: Sequence[Release]) -> list[Job | OjsterError]:
        """Release jobs that a worker could not finish; their attempts do not count."""
        return await self._deliver(completion.release, items)

    async def _deliver(
        self, operation: TransactionFunction[W, Job | OjsterError], items: Sequence[W]
    ) -> list[Job | OjsterError]:
        """Apply workers' reports on jobs of the caller's tenant; refuse reports on other jobs."""
        items, refusals = await self.scope.check_reports(items)
        return merged(refusals, await self.database.run_many(operation, items) if items else ())

    async def report(self, item: Progress) -> Job:
        """Record the progress of a job.

        Raises
        ------
        NotFound, Conflict
            The job does not exist, or the caller does not hold its lease.
        """
        (results,) = await self._deliver(progress.report, (item,))
        return accepted(results)

    async def save_checkpoint(self, item: NewCheckpoint) -> Checkpoint:
        """Save the checkpoint of a job, in place of the previous one.

        Raises
        ------
        NotFound, Conflict
            The job does not exist, or is finished, or the caller does not hold its lease.
        PayloadTooLarge
            The state is larger than 1 MiB.
        """
        await self.scope.check_job(item.job_id)
        return await self.scope.do(checkpoints.save, self.scope.with_worker(item))

    async def find_checkpoint(self, job_id: str) -> Checkpoint:
        """Return the checkpoint of a job.

        Raises
        ------
        NotFound
            The job does not exist, or has no checkpoint.
        """
        await self.scope.check_job(job_id)
        return await self.scope.look(checkpoints.find_checkpoints, job_id)

    async def clear_checkpoint(self, job_id: str) -> bool:
        """Delete the checkpoint of a job; return whether it had one.

        Raises
        ------
        NotFound
            The job does not exist.
        """
        await self.scope.check_job(job_id)
        return await self.scope.do(checkpoints.clear, job_id)

    async def add_to_log(self, item: NewLines) -> int:
        """Add lines to the log of a job; return the number of the last one.

        Raises
        ------
        NotFound, Conflict
            The job does not exist, or is in another attempt.
        """
        await self.scope.check_job(item.job_id)
        return await self.scope.do(job_logs.add_lines, self.scope.with_worker(item))

    async def log(self, job_id: str, after: int = 0) -> JobLog:
        """Return the lines of a job's log after the line with a number.

        Raises
        ------
        NotFound
            The job does not exist.
        """
        await self.scope.check_job(job_id)
        return await self.scope.look(job_logs.read_log, (job_id, after))

    async def find(self, job_id: str) -> Job:
        """Return a job (INFO), given by its id, or by the beginning of its id.

        Raises
        ------
        NotFound, Conflict
            There is no such job, or several whose ids begin so.
        """
        job = await self.scope.look(queries.find, (job_id, self.scope.tenant, self.scope.covers_all_queues))
        if not self.scope.sees(job.tenant):
            raise queries.no_job(job_id)
        self.scope.check_queue(job.queue)
        return job

    async def wait_for(self, job_id: str, wait: float) -> Job:
        """Return a job when it is finished, or as it is after ``wait`` seconds, at most ``MAX_WAIT_SECONDS``.

        Raises
        ------
        NotFound
            The job does not exist.
        """

        async def look() -> Job:
            self.database.announce_wait()
            return await self.find(job_id)

        topics = (job_topic(job_id), FINISHED)
        seconds = min(wait, MAX_WAIT_SECONDS)
        return await self.database.look_until(topics, look, lambda job: job.state in FINISHED_STATES, seconds)

    async def history(self, job_id: str) -> list[Entry]:
        """Return the last 1,000 history entries of a job, oldest first.

        Raises
        ------
        NotFound
            The job does not exist.
        """
        await self.scope.check_job(job_id)
        return await self.scope.look(read_history, job_id)

    async def explain(self, job_id: str) -> Explanation:
        """Return why a job waits.

        Raises
        ------
        NotFound
            The job does not exist.
        """
        await self.scope.check_job(job_id)
        return await self.scope.look(explain, job_id)

    async def purge_history(self, job_id: str) -> int:
        """Delete the history of a job; return the number of deleted entries.

        Raises
        ------
        NotFound
            The job does not exist.
        """
        await self.scope.check_job(job_id)
        return await self.scope.do(purge_history, job_id)

    async def lineage(self, job_id: str) -> Lineage:
        """Return the jobs of its workflow that precede and that follow a job.

        Raises
        ------
        NotFound
            The job does not exist.
        """
        await self.scope.check_job(job_id)
        return await self.scope.look(trace_lineage, job_id)

    async def cancel(self, job_id: str) -> ChangedJob:
        """Cancel an unfinished job (CANCEL).

        Raises
        ------
        NotFound, Conflict
            There is no such job, or it is finished.
        Forbidden
            The caller may cancel only its own jobs.
        """
        await self.scope.check_job(job_id)
        refusals = await self.scope.refuse_cancellation((job_id,))
        accepted(refusals[job_id])
        order = interventions.Cancellation(job_id, self.scope.who, is_shown=True)
        return await self.scope.do(interventions.cancel, order)

    async def adjust(self, change: interventions.Adjustment) -> interventions.Adjusted:
        """Change the priority of an unfinished job: its difference from the priority at its push, or the priority.

        Raises
        ------
        NotFound, Conflict
            The job does not exist, or is finished, or is to get a given priority and does not wait in a queue.
        InvalidRequest
            The resulting priority is not between -100 and 100.
        Forbidden
            The priority is raised, and the caller is not an administrator.
        """
        if self.scope.access is not None and not self.scope.access.may(access.Operation.ADMIN):
            change = msgspec.structs.replace(change, may_raise=False)
        await self.scope.check_job(change.job_id)
        return await self.scope.do(interventions.adjust, change)

    async def select(self, chosen: JobFilter = JobFilter(), page: Page = Page()) -> JobPage:  # noqa: B008  (frozen)
        """Return a page of the jobs that match, newest first unless the page says otherwise.

        Raises
        ------
        Forbidden
            The caller is limited to some queues, and the filter names none of them.
        """
        self.scope.check_queue(chosen.queue)
        return await self.database.survey(pages.list_jobs, (self.scope.of_tenant(chosen), page))

    async def results(self, ids: list[str]) -> JobResultsAnswer:
        """Return the results of several jobs.

        Parameters
        ----------
        ids:
            The ids of at most a thousand jobs.

        Returns
        -------
        JobResultsAnswer
            The results by id, without jobs that do not exist; and the ids that are ``omitted`` because the results
            before them have ``LARGEST_RESULTS`` bytes.

        Raises
        ------
        InvalidRequest
            There are no ids, or more than a thousand.
        Forbidden
            The caller is limited to some queues, and one of the jobs is in another.
        """
        check_bounds("ids", ids, JobIds)
        answer, size = JobResultsAnswer({}), 0
        for start in range(0, len(ids), RESULTS_AT_ONCE):
            if size > LARGEST_RESULTS:
                answer.omitted = ids[start:]
                break
            part = ids[start : start + RESULTS_AT_ONCE]
            jobs = await asyncio.gather(*map(self.find, part), return_exceptions=True)
            for job_id, job in zip(part, jobs, strict=True):
                if isinstance(job, Job):
                    answer.results[job_id] = show_result(job)
                    size += len(job.result or b"") + len(job.errors or b"")
                elif not isinstance(job, NotFound):
                    raise job
        return answer

    async def count(self, queue: str | None = None) -> dict[str, dict[str, int]]:
        """Return the number of jobs by queue and state."""
        self.scope.check_queue(queue)
        if self.scope.tenant:
            counts = await self.database.read(queries.count_jobs_of_tenant, self.scope.tenant)
            return counts if queue is None else {name: states for name, states in counts.items() if name == queue}
        return await self.database.read(queries.count_jobs, queue)

    async def retry_dead(self, job_id: str, revival: interventions.DeadLetterRetry | None = None) -> Job:
        """Run a dead letter again as if it were new, with the changes of ``revival``.

        Raises
        ------
        NotFound, Conflict
            The job does not exist, or is not a dead letter.
        InvalidRequest
            The changed job is invalid.
        """
        await self.scope.check_job(job_id)
        if revival is not None and revival.queue is not None:
            self.scope.check_queue(revival.queue)
        wanted = msgspec.structs.replace(revival or interventions.DeadLetterRetry(job_id), id=job_id)
        return await self.scope.do(interventions.retry_dead, wanted)

    async def retry(self, job_id: str) -> RetriedAnswer:
        """Run a discarded or cancelled job again, with attempts and errors reset.

        Raises
        ------
        NotFound, Conflict
            The job does not exist, or is in another state.
        """
        await self.scope.check_job(job_id)
        job = await self.scope.do(interventions.revive, job_id)
        return RetriedAnswer(job.id, job.state, job.attempt)

    async def delete_dead(self, job_id: str) -> None:
        """Delete a discarded job permanently.

        Raises
        ------
        NotFound, Conflict
            The job does not exist, or is not a dead letter.
        """
        await self.scope.check_job(job_id)
        await self.scope.do(interventions.delete_dead, job_id)
