"""The job as its handler sees it: its context, and the exceptions that end an attempt other than by success."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextvars import ContextVar
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from ojster.client.file_transfer import restore, restore_json, upload
from ojster.client.interface import Client
from ojster.client.plain_methods import plain
from ojster.collections.items import Where
from ojster.core.errors import Unsupported
from ojster.core.job import Job, membership_of
from ojster.core.property_values import Changes
from ojster.core.values import to_json
from ojster.events.reaction_rules import most_attempts
from ojster.files.file import JSON, may_refer
from ojster.handlers.agent import AgentTask
from ojster.handlers.codec import Codecs
from ojster.handlers.collection_handle import SharedCollection
from ojster.handlers.kept_logs import LogReports
from ojster.handlers.progress_reports import ProgressReports
from ojster.handlers.shared_properties import SharedProperties, run_from_thread
from ojster.handlers.stop_signal import StopSignal
from ojster.handlers.streams import JobStream
from ojster.jobs.checkpoints import NewCheckpoint
from ojster.jobs.messages import Acknowledgement, Holder, Progress
from ojster.workflows.stream import StreamAppend

if TYPE_CHECKING:
    from ojster.workflows.declaration import Step

R = TypeVar("R")


class JobContext:
    """The context of a running job.

    A handler gets it as its first argument if that is annotated with ``JobContext``; code called by the handler gets
    it from ``current_job``. It may be used from the handler's thread. The worker creates it. Methods that begin with
    ``a`` are for asynchronous handlers; where there is one without the ``a``, it is for plain functions, and raises
    ``RuntimeError`` in a coroutine.

    Parameters
    ----------
    job:
        The job.
    worker_id:
        Id of the worker.
    client:
        Client of the worker.
    send, extend:
        Functions that send progress, and that extend the lease.
    loop:
        Event loop of the worker.

    Attributes
    ----------
    job:
        The job.
    worker_id:
        Id of the worker.

    Examples
    --------
    >>> import asyncio
    >>> from ojster import App, JobContext, Worker
    >>> app = App("sqlite:///:memory:")
    >>> @app.job("report.build")
    ... def build(job: JobContext, month: str) -> str:
    ...     job.progress(1, total=2)
    ...     return f"{month}, attempt {job.attempt} of {job.max_attempts}"
    >>> async def main() -> None:
    ...     handle = await build.aenqueue("January")
    ...     await Worker(app).run(until_empty=True)
    ...     print(await handle.aresult())
    ...     await app.aclose()
    >>> asyncio.run(main())
    January, attempt 1 of 3
    """

    codecs: Codecs | None = None
    """What encodes the values that the handler appends to streams; the worker sets it."""
    is_given_up = False
    """Whether the worker has given up the attempt: it then decides what happens to the job if the handler stops."""
    thread_ended: asyncio.Event | None = None
    """Set when the function returns; ``None`` unless it still runs in a thread although its attempt has ended."""
    threads_left = 0
    """The number of threads of a flow that still run although its attempt has ended."""
    has_seen_stop = False
    """Whether the handler has asked whether to stop, and learned that it should: it may return early."""
    late_success: Acknowledgement | None = None
    """The report that the function has succeeded in its thread after it was stopped, if so."""
    time_limit: asyncio.Timeout | None = None
    """The timeout of the attempt, while it runs."""
    appended: Sequence[bytes] = ()
    """Steps that the job appends to its workflow, as JSON; ``append`` makes the list in one step, for all threads."""
    changes: Changes | None = None
    """Changes to the properties of its workflow, applied when this attempt ends."""
    must_finish = False  # whether ``finish`` has anything to do
    kept_log: LogReports | None = None  # the worker sets it for a type with keep_logs
    runs_flow = False
    kept_flows: Any = None  # the waiting flows that the worker keeps: ``KeptFlows``

    def __init__(
        self,
        job: Job,
        worker_id: str,
        client: Client,
        send: Callable[[Progress], Coroutine[Any, Any, None]],
        extend: Callable[[], Coroutine[Any, Any, object]],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.job = job
        self.worker_id = worker_id
        self._client = client
        self._send = send
        self._extend = extend
        self._loop = loop
        self._stop = StopSignal()

    @property
    def _progress(self) -> ProgressReports:
        made: dict[str, ProgressReports] = self.__dict__  # in one step: other threads may report, too
        return made.get("_reports") or made.setdefault("_reports", ProgressReports(self._send, self._loop))

    @property
    def id(self) -> str:
        """The job's id."""
        return self.job.id

    @property
    def client(self) -> Client:
        """The worker's client: an HTTP client, or the service of its database."""
        return self._client

    @property
    def attempt(self) -> int:
        """The number of this attempt, from 1."""
        return self.job.attempt

    @property
    def max_attempts(self) -> int:
        """The maximum number of attempts, with those that the reaction ``retry_after`` adds."""
        return most_attempts(self.job)

    @property
    def is_last_attempt(self) -> bool:
        """Whether this is the last attempt, after which a failure is final."""
        return self.job.counted_attempts >= self.max_attempts

    @property
    def meta(self) -> dict[str, Any]:
        """The job's metadata."""
        return self.job.meta

    @property
    def workflow_id(self) -> str | None:
        """The id of the job's workflow; ``None`` if it is not a step of one."""
        return membership_of(self.job.envelope).workflow_id

    @property
    def parent_results(self) -> dict[str, Any]:
        """The results of the predecessor steps.

        In a chain, the results of the last 100 steps before it, by index (``"0"``, ``"1"``, …); in a graph, those of
        the dependencies, by id; in a callback or a branch, those of all steps before it. The entry of a failed step has
        its ``state`` and ``error``; the entry of a skipped step is ``None``.
        """
        results = msgspec.json.decode(self.job.parent_results or b"[]")
        return results if isinstance(results, dict) else {str(index): result for index, result in enumerate(results)}

    def append(self, *steps: Step) -> None:
        """Add steps to the container of this job: at the end of a chain, in parallel in a group or graph.

        They are added when the job is acknowledged; if it fails, they are dropped.

        Parameters
        ----------
        steps:
            Steps to add.

        Raises
        ------
        RuntimeError
            The job runs a flow.
        """
        if self.runs_flow:
            raise RuntimeError("A flow appends no steps. Run them: await flow.run(step).")
        self.__dict__.setdefault("appended", []).extend([msgspec.json.encode(step.whole.wire) for step in steps])

    @cached_property
    def agent(self) -> AgentTask:
        """The job as an agent task, for asynchronous handlers that call language models.

        Spec: ojs-ai-agents
        """
        return AgentTask(self.job, self.worker_id, self._client.agents.account)

    @cached_property
    def properties(self) -> SharedProperties:
        """The properties shared by the jobs of the workflow."""
        return SharedProperties(self._client, self.job, self.workflow_id, self.worker_id, self._loop)

    @cached_property
    def collection(self) -> SharedCollection:
        """The collection of the job's workflow, with the items that its steps provide.

        Raises
        ------
        LookupError
            The job belongs to no workflow.
        """
        if self.workflow_id is None:
            raise LookupError(f"The job {self.job.id} belongs to no workflow, so it has no collection.")
        return self._shared(Where(workflow_id=self.workflow_id, holder=self.holder))

    def collection_named(self, name: str) -> SharedCollection:
        """Return the collection with this name in the workspace of the job.

        Parameters
        ----------
        name:
            Name of the collection.

        Returns
        -------
        SharedCollection
            The collection.
        """
        return self._shared(Where(name, job_id=self.job.id, holder=self.holder))

    @cached_property
    def artifacts(self) -> SharedCollection:
        """The artifacts of this job: named files beside its result, which reactions can put into collections.

        They are deleted with the job.
        """
        return self._shared(Where(job_id=self.job.id, holder=self.holder))

    def _wait(self, call: Coroutine[Any, Any, R], /) -> R:
        return run_from_thread(call, self._loop)

    def _shared(self, where: Where) -> SharedCollection:
        return SharedCollection(lambda: self._client, where, self._wait, self.holder)

    async def keep_result(self, result: bytes) -> str | None:
        """Store a large result, as JSON, as a file. The worker calls it.

        Returns
        -------
        str or None
            Id of the file; ``None`` if the server has no file store.
        """
        try:
            kept = await upload(self._client, result, content_type=JSON, holder=self.holder)
        except Unsupported:
            return None
        return kept.id

    async def restored_args(self) -> list[Any]:
        """Return the arguments of the job. The worker calls it.

        Returns
        -------
        list
            The arguments. Results that are stored as files are fetched.
        """
        args = self.job.args
        if not may_refer(self.job.envelope):
            return args
        return [await restore(self._client, arg, self.job.id) for arg in args]

    @property
    def holder(self) -> Holder:
        """The attempt in which the handler runs; what it does is refused once the job has another."""
        return Holder(self.job.id, self.worker_id, self.job.attempt)

    async def restore_parent_results(self) -> None:
        """Fetch those results of predecessor steps that are stored as files. The worker calls it."""
        if self.job.parent_results is not None:
            self.job.parent_results = await restore_json(self._client, self.job.parent_results, self.job.id)

    @property
    def resumed(self) -> Any:
        """The data with which the job was resumed after ``Wait(again=True)``; ``None`` if it was not resumed."""
        return None if self.job.resumed is None else msgspec.json.decode(self.job.resumed)

    @property
    def was_resumed(self) -> bool:
        """Whether the job was resumed after ``Wait(again=True)``, if only with nothing."""
        return self.job.resumed is not None

    async def anote(self, note: Any) -> None:
        """Add a note to the job, readable while the job runs and afterwards.

        Parameters
        ----------
        note:
            A JSON value of at most 16 KiB. A job has at most 1,000 notes.

        Raises
        ------
        PayloadTooLarge
            The note is too large.
        Conflict
            The job has too many notes.
        """
        await self._client.notes.add_to_job(self.job.id, to_json(note), self.holder.worker_id, self.holder.attempt)

    note = plain(anote)

    @property
    def cancelled(self) -> bool:
        """Whether the handler should stop: the job was cancelled, has lost its lease, or the worker is shutting down.

        Asynchronous handlers are cancelled then; synchronous handlers must check this property.
        """
        self.has_seen_stop |= self._stop.is_set
        return self._stop.is_set

    def wait_cancelled(self, seconds: float) -> bool:
        """Sleep in a synchronous handler, at most until the handler should stop.

        Parameters
        ----------
        seconds:
            Maximum time to sleep, in seconds.

        Returns
        -------
        bool
            Whether the handler should stop.
        """
        self.has_seen_stop |= (stopped := self._stop.wait(seconds))
        return stopped

    def stop(self) -> None:
        """Signal the handler to stop. The worker calls it."""
        self._stop.set()

    def give_up(self) -> None:
        """Signal the handler to stop; the worker, which calls it, decides what then happens to the job."""
        self.is_given_up = True
        self.stop()

    def lift_timeout(self) -> None:
        """Let the handler clean up: its timeout must not cancel it again. The worker calls it."""
        if self.time_limit is not None and not self.time_limit.expired():
            self.time_limit.reschedule(None)

    def stream(self, name: str) -> JobStream[Any]:
        """Return a stream of the workflow, to append to; readers follow it (``Run.stream``).

        A handler that runs again appends again: give chunks a number if readers must know what came twice.

        Parameters
        ----------
        name:
            Name of the stream, of at most 255 characters.

        Returns
        -------
        JobStream
            The stream; await ``aappend``, or call ``append`` in a plain function.

        Raises
        ------
        ValueError
            The name is empty or too long.
        """

        def attempt() -> StreamAppend:
            return StreamAppend(self.id, name, (), None, self.worker_id, self.attempt, self.job.started_at)

        return JobStream(self._client, name, attempt, self._wait, self.codecs)

    def progress(
        self, done: float, total: float = 1.0, message: str | None = None, data: Mapping[str, Any] | None = None
    ) -> None:
        """Report the progress of the job: a report is sent at most every 0.25 seconds, and the last one at the end.

        Parameters
        ----------
        done, total:
            Amount of work done, and total amount of work; ``total`` is 1 by default.
        message:
            Text for people, cut to 1,000 characters; none by default.
        data:
            Details, as JSON members, such as ``{"rows": 14_000}``; none by default.

        Raises
        ------
        TypeError
            ``data`` cannot be encoded as JSON.
        """
        fraction = min(1.0, max(0.0, done / total)) if total else 1.0
        details = None if data is None else to_json(dict(data))
        self.must_finish = True
        self._progress.offer(Progress(self.job.id, fraction, message, self.worker_id, self.job.attempt, details))

    def restored(self, default: Any = None) -> Any:
        """Return the last checkpoint saved by an earlier attempt.

        Parameters
        ----------
        default:
            Value to return if there is no checkpoint; ``None`` by default.

        Returns
        -------
        Any
            The state that was saved, a JSON value, or ``default``.
        """
        return msgspec.json.decode(self.job.checkpoint)["state"] if self.job.checkpoint is not None else default

    async def acheckpoint(self, state: Any) -> None:
        """Save a checkpoint: if this attempt fails or is lost, the next one gets it from ``restored``.

        The checkpoint is saved when this returns, and replaces the previous one.

        Parameters
        ----------
        state:
            A JSON value of at most 1 MiB.

        Raises
        ------
        TypeError
            ``state`` is not a JSON value.
        PayloadTooLarge
            ``state`` is too large.
        Conflict
            The job was cancelled or has lost its lease; the handler should stop.
        """
        await self._client.jobs.save_checkpoint(
            NewCheckpoint(self.job.id, to_json(state), self.worker_id, self.job.attempt)
        )

    checkpoint = plain(acheckpoint)

    async def aheartbeat(self) -> None:
        """Extend the job's lease now. The worker also does so every few seconds."""
        await self._extend()

    heartbeat = plain(aheartbeat)

    async def finish(self) -> None:
        """Send what waits; drop the progress if the attempt was given up. The worker calls it."""
        try:
            await self._progress.finish(drop=self.is_given_up)
        finally:
            if self.kept_log is not None:
                await self.kept_log.finish()


_current: ContextVar[JobContext | None] = ContextVar("ojster_job")


def current_job() -> JobContext:
    """Return the context of the job that the calling code runs in.

    Returns
    -------
    JobContext
        The context of the running job.

    Raises
    ------
    LookupError
        The calling code does not run in a job, or in a child process.

    Examples
    --------
    >>> from ojster import App, current_job
    >>> with App(eager=True) as app:
    ...     @app.job("report.build")
    ...     def build() -> str:
    ...         return f"attempt {current_job().attempt}"
    ...     build.enqueue().result()
    'attempt 1'
    """
    if (context := _current.get(None)) is None:
        raise LookupError("This code does not run in a job, or has process=True. Call current_job() in other handlers.")
    return context


def enter_job(context: JobContext | None) -> None:
    """Set the context that ``current_job`` returns; ``None``: it finds no job. The worker calls it."""
    _current.set(context)
