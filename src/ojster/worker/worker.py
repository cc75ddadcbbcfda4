"""Worker: fetches jobs while it has capacity, reports outcomes in batches, sends heartbeats, and shuts down gracefully.

The states are ``running``, ``quiet`` and ``terminate``.

Spec: ojs-worker-protocol
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

from ojster.client.interface import Client
from ojster.core.declared_options import NonNegativeCount, NonNegativeSpan, Places, PositiveSpan, checks_options
from ojster.core.errors import OjsterError
from ojster.core.ids import new_id
from ojster.core.job import Job
from ojster.core.values import to_seconds
from ojster.core.wire import Identifier
from ojster.fleet.requirements import ProvidedFacts, check_capabilities
from ojster.fleet.workers import Heartbeat
from ojster.handlers.context import JobContext
from ojster.handlers.register import HandlerRegister
from ojster.jobs.claim_policy import Claim
from ojster.jobs.code import CODE_CAPABILITY, CODE_TYPE
from ojster.jobs.messages import hand_back
from ojster.jobs.middleware import in_use
from ojster.queues.fairness import STRICT, Sharing, check_sharing
from ojster.sandbox.sandbox import Sandbox
from ojster.service import Service
from ojster.worker import job_log
from ojster.worker.arrival import arrive
from ojster.worker.attempts import Attempts
from ojster.worker.backoff import UNREACHABLE, Backoff
from ojster.worker.backup_heartbeat import BackupHeartbeat
from ojster.worker.children import FAREWELL_SECONDS, ChildLimits, ChildPool
from ojster.worker.code import CodeRunner
from ojster.worker.drain_check import DRAIN_CHECK_SECONDS, DrainCheck
from ojster.worker.execution import Ending, Executor, report_failure
from ojster.worker.failures import failure_of
from ojster.worker.heartbeats import beat_for_ever, heartbeat_of, interval_between
from ojster.worker.identity import Identity
from ojster.worker.local_queue import MAX_HELD_SECONDS, MAX_PREFETCH, LocalQueue
from ojster.worker.outbox import LAST_REPORT_SECONDS, OutcomeReports
from ojster.worker.registration import NoHandlers, deregister, named_queues, register
from ojster.worker.reporting import Reporter
from ojster.worker.stopping import Stopping
from ojster.workflows.orchestrator_request import queue_of

log = logging.getLogger(__name__)

State = Literal["running", "quiet", "terminate"]

DEFAULT_CONCURRENCY: Final = 10
DEFAULT_GRACE: Final = 25.0
"""Default time jobs get to finish after a stop signal, in seconds. Spec: ojs-worker-protocol 7.3"""

DEFAULT_LEASE: Final = 30.0
"""Default lease of a job, in seconds. Heartbeats extend it."""

MAX_POLL_SECONDS: Final = 20.0
"""Long-poll wait of a fetch, in seconds."""


class Worker:
    """Runs the jobs of an application.

    Parameters
    ----------
    app:
        The application with the handlers, and the database or server to fetch from.
    queues:
        The queues to fetch from, by descending priority; by default ``default`` and all that the handlers name. The
        queues of the application's orchestrators are added.
    concurrency:
        Maximum number of jobs that run at once; 10 by default.
    grace:
        Time jobs get to finish after ``stop``, in seconds or as a ``timedelta``; 25 by default. Then the worker cancels
        their handlers, and hands back each job whose handler stops within 2 seconds.
    lease:
        Lease of a job, in seconds or as a ``timedelta``; 30 by default. Heartbeats extend it. After a crash, other
        workers get the job when it expires.
    labels:
        Labels that describe the worker to operators; none by default.
    sharing:
        Fairness between the queues. The default is strict: the first queue that has a job is served; it is round-robin
        if no queues are given.
    pool:
        The pool that the worker joins; none by default. If configured, it determines the queues and their fairness.
    capabilities:
        Resources for jobs with requirements: ``gpu``, ``memory_gb``, ``labels``, …; none by default.
    code:
        The sandbox for jobs that carry code. ``None``, the default: it runs none.
    identity:
        The file with the worker's id. After a restart the worker keeps its id, and the jobs that it held before are
        handed back at once. ``None``, the default: the worker gets a new id at every start.
    children:
        When child processes of handlers with ``process=True`` are replaced; never by default. ``None``: none are used.
    prefetch:
        Maximum number of short jobs to fetch beyond those that can begin at once: as many as end within 50 ms; 500 by
        default. Those that have not begun after 250 ms are handed back. 0: none.

    Raises
    ------
    ValueError, TypeError
        An option has another type or is out of bounds, ``queues`` is empty, ``sharing`` has weights without effect, or
        an annotation of a handler cannot be used.
    InvalidRequest
        The capabilities, or the name of a queue, are malformed.
    IdentityTaken, OSError
        Another worker runs with the identity, or its file cannot be read or created.

    Examples
    --------
    >>> import asyncio
    >>> from ojster import App, Worker
    >>> app = App("sqlite:///:memory:")
    >>> @app.job("number.double")
    ... def double(number: int) -> int:
    ...     return 2 * number
    >>> async def main() -> None:
    ...     handle = await double.aenqueue(21)
    ...     await Worker(app, concurrency=4).run(until_empty=True)
    ...     print(await handle.aresult())
    ...     await app.aclose()
    >>> asyncio.run(main())
    42

    Spec: ojs-ml-resources 11
    """

    on_end: Callable[[Job, Ending | None, float], None] | None = None
    """Called with each ended job, its outcome (``None`` if it was stopped, or waits), and its run time in seconds."""
    on_beat: Callable[[], None] | None = None
    """Called after each heartbeat that the server has answered."""
    provided: ProvidedFacts | None = None
    """What the worker provides to jobs instead of its capabilities, which the server knows from its heartbeats."""

    @checks_options
    def __init__(
        self,
        app: HandlerRegister,
        *,
        queues: Sequence[str] | None = None,
        concurrency: Places = DEFAULT_CONCURRENCY,
        grace: NonNegativeSpan = DEFAULT_GRACE,
        lease: PositiveSpan = DEFAULT_LEASE,
        labels: Sequence[str] = (),
        sharing: Sharing | None = None,
        pool: Identifier | None = None,
        capabilities: Mapping[str, Any] | None = None,
        code: Sandbox | None = None,
        identity: Path | None = None,
        children: ChildLimits | None = ChildLimits(),  # noqa: B008  (it is frozen)
        prefetch: NonNegativeCount = MAX_PREFETCH,
    ) -> None:
        named = named_queues(app, queues)
        if sharing is not None:
            check_sharing(sharing, named if pool is None else None)
        self.app = app
        self.queues = tuple(dict.fromkeys((*named, *map(queue_of, app.orchestrators))))
        self.concurrency = concurrency
        self.grace = to_seconds(grace)
        self.lease = to_seconds(lease)
        self.labels = tuple(labels)
        self.sharing = sharing or (STRICT if queues is not None or len(named) == 1 else Sharing("round-robin"))
        self.pool = pool
        self.capabilities = dict(capabilities or {})
        self.code = code
        self.children = children
        self.prefetch = prefetch
        if code is not None:
            self.capabilities["labels"] = {**self.capabilities.get("labels", {}), CODE_CAPABILITY: code.guarantee}
        check_capabilities(self.capabilities)
        for handler in app.handlers.values():
            handler.types.resolve()
        self._identity = None if identity is None else Identity(identity)
        self.id = f"worker_{new_id()}" if self._identity is None else self._identity.id
        self.state: State = "running"
        self.processed = 0
        self._attempts = Attempts(self.id, self._run, self._note_ends)
        self._reporter = Reporter(self.id, self.lease)
        self._stopping = Stopping(self.id, self._attempts)
        self._fetching: asyncio.Task[list[Job]] | None = None
        self._patience = float("inf")
        """Silence after which the server counts this worker as lost, in seconds."""
        self._is_known = False
        """Whether the server has received a heartbeat, and thus knows the job types, pool and capabilities."""
        self._refusal: OjsterError | None = None
        """Why the server refused the first heartbeat, if it did; trying again would not help."""
        self._changed = asyncio.Event()
        self._outbox = OutcomeReports(self._reporter, self.id, self._changed.set, lambda: len(self._held) > 0)
        self._held = LocalQueue(prefetch, lambda job: self._outbox.tell(self.app.client(), hand_back(job, self.id)))
        self._news = asyncio.Event()
        """Set to send the next heartbeat now."""
        self._quiet_by_signal = False

    @property
    def abandoned(self) -> int:
        """The number of handlers that still run although their jobs were given up: threads, or stubborn coroutines."""
        executor: Executor | None = getattr(self, "_executor", None)  # before ``run``
        return (executor.busy_threads if executor else 0) + sum(each.is_given_up for each in self._attempts.contexts)

    @property
    def job_types(self) -> tuple[str, ...]:
        """The job types that the worker has handlers for, sorted. It gets no others."""
        return tuple(sorted([*self.app.handlers, *([CODE_TYPE] if self.code is not None else [])]))

    @property
    def active(self) -> int:
        """The number of running jobs."""
        return len(self._attempts)

    # Commands

    def quiet(self) -> None:
        """Fetch no more jobs, but finish running ones. ``resume`` ends this."""
        if self.state == "running":
            self._quiet_by_signal = True
            self._become("quiet")

    def resume(self) -> None:
        """Fetch jobs again."""
        if self.state == "quiet":
            self._quiet_by_signal = False
            self._become("running")

    def stop(self, grace: float | None = None) -> None:
        """Finish running jobs within the grace period, which another call can end; then let ``run`` return.

        Parameters
        ----------
        grace:
            Grace period, in seconds; ``None``, the default: the worker's own.
        """
        if grace is not None:
            self.grace = grace
        self._become("terminate")

    def _become(self, state: State) -> None:
        if self.state != "terminate" and state != self.state:
            log.info("worker %s is in the state %s now", self.id, state)
            self.state = state
            self._news.set()
            if self._fetching is not None and state != "running":
                self._fetching.cancel()
        self._changed.set()

    # Main loop

    async def run(self, *, until_empty: bool = False) -> None:
        """Run jobs until ``stop``.

        Parameters
        ----------
        until_empty:
            Return as soon as no job is available, no workflow has steps to start (beside a server: for half a second),
            and all is registered and reported; functions that run on get the grace period. False by default.

        Raises
        ------
        NoHandlers
            The application has no handlers, and the worker runs no code that jobs carry.
        BackendUnavailable, BackendError, Unsupported
            The database cannot be opened or used, or the server has no workers. What the lifespan raises comes, too.
        NotConfined
            The worker is configured to run code that jobs carry, and this platform cannot confine it.
        """
        if not self.job_types:
            what = "Declare functions with @app.job(...), and import the modules that declare them before it starts."
            raise NoHandlers(f"The application has no job handlers, so that the worker would get no job. {what}")
        if self.code is not None:
            log.info("jobs that carry code are confined by %s", ", ".join(await self.code.check()) or "nothing")
        try:
            async with self.app.lifespan.running(self.app):
                with in_use(self.app.execution_middleware, self.app.thread_middleware, self.app.enqueue_middleware):
                    await self._live(until_empty)
        finally:
            if self._identity is not None:
                self._identity.close()

    async def _live(self, until_empty: bool) -> None:
        client = self.app.client()
        if isinstance(client, Service):
            client.maintenance.start(after_outage=not until_empty)
        # before anything starts that would have to end if this fails
        await arrive(client, self.id, self._identity, self._held, lambda: self.state == "terminate")
        self._children = None if self.children is None else ChildPool(self.children)
        runner = None if self.code is None else CodeRunner(self.code, client)
        self._executor = Executor(self.app, self.concurrency, self._children, self._changed.set, runner)
        self._attempts.open(client, partial(self._beat, client))
        self._executor.watch.backup_heartbeat = BackupHeartbeat(
            self.app.client, self._heartbeat, self._heartbeat_interval, lambda: self._running_jobs, self._held
        )
        beats = beat_for_ever(lambda wait: self._beat(client, wait), self._heartbeat_interval, self._news)
        beating = asyncio.create_task(beats, name="ojster-heartbeat")
        registering = asyncio.create_task(register(client, self.app), name="ojster-registration")
        try:
            await self._work(client, until_empty, registering)
            await self._finish_or_hand_back(client)
        finally:
            self.state = "terminate"  # also if this is cancelled, or an error: nothing begins any more
            for helper in (beating, registering, self._stopping):
                helper.cancel()
            await asyncio.gather(beating, registering, return_exceptions=True)
            if left := self._stopping.stop_all(lambda _: None):  # it leaves, or is lost
                await asyncio.wait(left, timeout=LAST_REPORT_SECONDS)
            await self._outbox.hand_back_now(client, self._held.take_all())
            if self._children is not None:
                await self._children.close(max(LAST_REPORT_SECONDS, min(self.grace, FAREWELL_SECONDS)))
            self._executor.close()
        await deregister(client, self.id, self.abandoned)

    async def _work(self, client: Client, until_empty: bool, registering: asyncio.Task[None]) -> None:
        while not self._is_known and self.state == "running":  # it would get jobs that it has no handlers for
            await self._wait_for_change()
            if self._refusal is not None:
                raise self._refusal
        backoff = Backoff()
        check = DrainCheck(client, registering)
        while self.state != "terminate":
            self._begin_held()  # it may have been quiet for a moment
            room = self._room
            wanted = room + self._held.room if self._executor.may_hold else room
            if wanted <= 0 or self.state == "quiet":
                if until_empty and self.state == "running" and self._is_idle and self._executor.has_waited(self.grace):
                    return  # functions that do not end take all places
                await self._wait_for_room(client, DRAIN_CHECK_SECONDS if until_empty else None)
                continue
            wait = check.wait if until_empty else MAX_POLL_SECONDS
            was_idle = until_empty and self._is_idle  # else what is reported meanwhile may make jobs available
            request = Claim(self.queues, wanted, self.id, round(self.lease * 1e6), self.sharing, None, self.provided)
            self._fetching = asyncio.create_task(self._outbox.fetch(client, request, wait, max(1, room), self._known))
            try:
                jobs = await self._fetching
                backoff = Backoff()
            except asyncio.CancelledError:
                if (task := asyncio.current_task()) is not None and task.cancelling():
                    raise
                continue  # the fetch was cancelled, because the state had changed
            except UNREACHABLE as error:
                level = logging.DEBUG if backoff.is_longest else logging.WARNING
                log.log(level, "cannot fetch jobs, trying again in %.1f s: %s", backoff.seconds, error)
                await backoff.wait()
                continue
            finally:
                self._fetching = None
            self._take_in(client, jobs)
            self._outbox.waits_for_fetch = self._room <= 0 < len(jobs) and not self._held
            if jobs:
                check.note_jobs()
                await asyncio.sleep(0)  # let them begin: one that runs alone changes how many to fetch next
            elif was_idle and await check.is_over():
                return
            elif until_empty and not self._is_idle:
                await self._wait_for_change(DRAIN_CHECK_SECONDS)  # what runs may enqueue jobs, and wait for them

    async def _wait_for_change(self, seconds: float | None = None) -> None:
        self._changed.clear()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._changed.wait(), seconds)

    async def _wait_for_room(self, client: Client, seconds: float | None) -> None:
        """Wait for a change, such as the end of a job; report what no fetch will take along."""
        if self.state == "quiet":
            self._held.hand_back_all()
            self._outbox.send(client)
        await self._wait_for_change(seconds)
        if self._room <= 0 and not self._held:
            self._outbox.send(client)

    @property
    def _room(self) -> int:
        """How many jobs to fetch next; none are fetched while it is 0 or less."""
        return self._executor.room(self.concurrency - self.active)

    @property
    def _is_idle(self) -> bool:
        waits = self._stopping.is_waiting and not self._executor.has_waited(self.grace)
        return not (self._stopping.left(self.grace) or self._held or waits) and self._outbox.is_empty

    def _take_in(self, client: Client, jobs: Sequence[Job]) -> None:
        """Begin fetched jobs, as many as there is room for, and hold the others."""
        accepted = self._executor.accept(jobs, self.id, partial(self._outbox.tell, client))
        begun = 0
        # The room is asked for each job: one that begins alone limits the next fetch to 1, and not what has come.
        while begun < len(accepted) and not self._held and self._room > 0:
            self._attempts.begin(accepted[begun])
            begun += 1
        if held := accepted[begun:]:
            self._held.hold(held)
            asyncio.get_running_loop().call_later(MAX_HELD_SECONDS, self._held.hand_back_overdue)
        if not self._executor.may_hold:  # what is held would be lost with a job that kills its worker again
            self._held.hand_back_all()

    def _begin_held(self) -> None:
        self._held.hand_back_overdue()  # the event loop may have been blocked
        room = self._room if self.state == "running" else 0
        while room > 0 and (job := self._held.take()) is not None:
            self._attempts.begin(job)
            room -= 1

    async def _run(self, context: JobContext) -> None:
        started = time.perf_counter()
        ending: Ending | None = None
        job_log.begins(context.job)
        try:
            ending = await self._executor.run(context)
        except asyncio.CancelledError as error:
            if not context.is_given_up:  # by something else than the worker, before the handler began
                ending = report_failure(context, failure_of(error, context.job))
        except Exception as error:
            log.exception("cannot run job %s", context.id)
            ending = report_failure(context, failure_of(error, context.job))
        if ending is not None:
            self._stopping.tell_when_stopped(context, ending, partial(self._outbox.tell, context.client))
        lasted = time.perf_counter() - started
        job_log.ends(context.job, ending, lasted, was_stopped=context.is_given_up)
        if self.on_end is not None:
            self.on_end(context.job, ending, lasted)

    def _note_ends(self, count: int) -> None:
        self.processed += count
        self._held.note_ends(count)
        self._begin_held()
        self._changed.set()

    # Heartbeats

    def _heartbeat_interval(self) -> float:
        return interval_between(self.lease, self._patience, self._running_jobs)

    @property
    def _running_jobs(self) -> list[Job]:
        return [context.job for context in self._attempts.contexts] + self._held.jobs

    def _known(self) -> set[str]:
        """Return the ids of the jobs that this worker has: those that wait or run here, also after their attempts."""
        return {*self._heartbeat().attempts, *self._executor.runs}

    def _heartbeat(self) -> Heartbeat:
        attempts = {job.id: job.attempt for job in self._held.jobs}
        attempts |= {context.id: context.attempt for context in self._attempts.contexts if not context.is_given_up}
        return heartbeat_of(self, attempts)

    async def _beat(self, client: Client, wait: float = 0.0) -> bool:
        """Send a heartbeat, and do what the server says; return whether there is more to learn."""
        wait = wait if self._is_known else 0.0  # until then it gets no jobs
        named = {job.id: job for job in self._running_jobs}
        try:
            pulse = await client.fleet.beat(self._heartbeat(), wait)
        except OjsterError as error:
            if not self._is_known and not isinstance(error, UNREACHABLE):
                self._refusal = error
                self._changed.set()
            raise
        self._patience = pulse.timeout / 1e6
        if not self._is_known:
            self._is_known = True
            self._changed.set()
        unwanted = [named[job_id] for job_id in (*pulse.cancelled, *pulse.lost) if job_id in named]
        self._held.hand_back(unwanted)  # but not a job that was fetched again since the heartbeat
        for task, context in self._attempts.with_tasks if unwanted else ():
            if context.is_given_up or not any(context.job is job for job in unwanted):
                continue
            log.info("stopping job %s: it was cancelled, or its lease was lost", context.id)
            self._stopping.stop(task, context, partial(self._outbox.tell, client))
        match pulse.directive:
            case "quiet" if self.state == "running":
                self._become("quiet")
            case "terminate":
                self.stop()
            case "running" if self.state == "quiet" and not self._quiet_by_signal:
                self._become("running")
        if self.on_beat is not None:
            self.on_beat()
        return pulse.woken or bool(pulse.cancelled or pulse.lost) or not wait

    # Shutdown

    async def _finish_or_hand_back(self, client: Client) -> None:
        """Let jobs finish within the grace period, hand back those that then stop, and report all outcomes."""
        began = time.monotonic()
        self._reporter.deadline = began + self.grace + LAST_REPORT_SECONDS
        self._held.hand_back_all()
        self._outbox.send(client)
        while self._stopping.left(self.grace) and (left := began + self.grace - time.monotonic()) > 0:
            await self._wait_for_change(left)  # another order may shorten the grace period
        if late := self._stopping.stop_all(partial(self._outbox.tell, client)):
            log.warning("handing back %d jobs that did not finish in time", len(late))
        deadline = self._reporter.deadline = time.monotonic() + LAST_REPORT_SECONDS
        while (self._attempts or self._executor.abandoned) and (left := deadline - time.monotonic()) > 0:
            await self._wait_for_change(left)
        await self._outbox.drain(client)
