"""What does a handler see of its job, and how does it say what is to become of it?"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from datetime import datetime
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Final

import msgspec

from ojster.agents.handler import AgentTask
from ojster.client.interface import Client
from ojster.collections.handles import SharedCollection
from ojster.collections.items import Where
from ojster.core.errors import Unsupported
from ojster.core.job import Job
from ojster.core.values import to_json, to_micros
from ojster.files.file import JSON, may_refer
from ojster.files.transfer import restore, restore_json, upload
from ojster.jobs.checkpoints import NewCheckpoint
from ojster.jobs.messages import Progress, Release
from ojster.workflows.notes import NewNote
from ojster.workflows.property_values import Changes
from ojster.workflows.shared_properties import SharedProperties, wait_in_thread

if TYPE_CHECKING:
    from ojster.workflow import Step

PROGRESS_INTERVAL: Final = 0.25
"""How often at most the progress of a job is sent, in seconds. What comes between is left out."""


LONGEST_PAUSE: Final = 3_153_600_000.0
"""For how long a job can be put off at most, in seconds: a hundred years."""


class JobFailed(Exception):
    """A job whose result was waited for was discarded. ``error`` is the last attempt's error."""

    def __init__(self, message: str, error: dict[str, Any]) -> None:
        super().__init__(message)
        self.error = error


class JobCancelled(Exception):
    """A job whose result was waited for was cancelled."""


class Outcome(Exception):
    """Raised by a handler to say what is to become of its job (ojs-retry.md section 7)."""

    code: str = "RETRY"
    retryable: bool | None = None


class Discard(Outcome):
    """Do not try this job again, and do not keep it as a dead letter."""

    code = "DISCARD"


class DeadLetter(Outcome):
    """Do not try this job again, and keep it as a dead letter."""

    code = "DEAD_LETTER"


def _check_seconds(seconds: float, name: str) -> None:
    if not 0 <= seconds <= LONGEST_PAUSE:
        raise ValueError(f"The {name} must be from 0 to {LONGEST_PAUSE:.0f} seconds, not {seconds}.")


class Released(Exception):
    """The base of what a handler raises that lets go of its job: it has neither succeeded nor failed (seed 002)."""

    def release(self, job_id: str, worker_id: str, attempt: int) -> Release:
        """Return what the worker is to tell the server."""
        raise NotImplementedError


class Snooze(Released):
    """Run this job again later, without counting this attempt.

    Parameters
    ----------
    delay:
        When, in seconds from now.
    until:
        Instead of that: not before when; it needs a time zone.
    """

    def __init__(self, delay: float = 0.0, *, until: datetime | None = None) -> None:
        super().__init__(f"again in {delay:g} s" if until is None else f"again at {until}")
        _check_seconds(delay, "delay")
        self.delay = delay
        self.not_before = None if until is None else to_micros(until, "until")

    def release(self, job_id: str, worker_id: str, attempt: int) -> Release:
        """Return what the worker is to tell the server."""
        return Release(job_id, worker_id, attempt, round(self.delay * 1e6), not_before=self.not_before)


class Wait(Released):
    """Put this job on hold until somebody resumes it, or its workflow, with what it waits for.

    Nothing is held meanwhile, neither a worker nor a lease. What it is resumed with is its result, unless it is to run
    ``again``; if it is resumed with an error, it fails for good.

    Parameters
    ----------
    timeout:
        For how long at most, in seconds; then the attempt fails. ``None``: for ever.
    deadline:
        The same as a time, which needs a time zone.
    again:
        Run again when it is resumed, without counting this attempt: ``job.resumed`` is then what it was resumed with.
    """

    def __init__(self, timeout: float | None = None, *, deadline: datetime | None = None, again: bool = False) -> None:
        super().__init__("until somebody resumes it")
        _check_seconds(timeout or 0.0, "timeout")
        self.timeout = timeout
        self.deadline = None if deadline is None else to_micros(deadline, "deadline")
        self.again = again

    def release(self, job_id: str, worker_id: str, attempt: int) -> Release:
        """Return what the worker is to tell the server."""
        return Release(
            job_id,
            worker_id,
            attempt,
            then="wait",
            again=self.again,
            deadline=self.deadline,
            wait=None if self.timeout is None else round(self.timeout * 1e6),
        )


class RetryWorkflow(Released):
    """End the workflow of this job, and run it again from the beginning, as a new one.

    How often, and after what delays, the ``retry`` policy of its definition says: 10 attempts by default. After the
    last of them, and in a workflow without a definition, the job fails for good instead.
    """

    def release(self, job_id: str, worker_id: str, attempt: int) -> Release:
        """Return what the worker is to tell the server."""
        return Release(job_id, worker_id, attempt, then="retry")


class SkipRest(Released):
    """Complete this job, and with it its workflow: what has not started is skipped; active jobs may finish.

    Parameters
    ----------
    result:
        The result of this job: what JSON can say.
    """

    def __init__(self, result: Any = None) -> None:
        super().__init__("the rest is not needed")
        self.result = None if result is None else to_json(result)

    def release(self, job_id: str, worker_id: str, attempt: int) -> Release:
        """Return what the worker is to tell the server."""
        return Release(job_id, worker_id, attempt, then="skip", result=self.result)


class RateLimited(Exception):
    """What the job needs has had enough: let no job with the same rate limit start for a while. Counts as a failure.

    Parameters
    ----------
    delay:
        For how long, in seconds, such as a ``Retry-After`` says.
    """

    def __init__(self, delay: float, message: str = "") -> None:
        super().__init__(message or f"not before {delay:g} s from now")
        self.delay = delay


class JobContext:
    """A job that is being run.

    A handler gets it as its first argument, if that is annotated so; any code that it calls gets it from
    ``current_job``. It may be used from the handler's thread.
    """

    def __init__(
        self,
        job: Job,
        worker_id: str,
        client: Client,
        send: Callable[[Progress], Coroutine[Any, Any, None]],
        extend: Callable[[], Coroutine[Any, Any, None]],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.job = job
        self.worker_id = worker_id
        self._client = client
        self._send = send
        self._extend = extend
        self._loop = loop
        self._stopped = threading.Event()
        self.appended: list[bytes] = []
        """Steps that the job adds to its workflow, as JSON."""
        self.changes: Changes | None = None
        """What is to become of the properties of its workflow together with the end of this attempt."""
        self._sent_at = 0.0
        self._pending: Progress | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def id(self) -> str:
        """The job's id."""
        return self.job.id

    @property
    def client(self) -> Client:
        """What the worker talks to the server with, or the engine of its database."""
        return self._client

    @property
    def attempt(self) -> int:
        """Which attempt this is, from 1."""
        return self.job.attempt

    @property
    def max_attempts(self) -> int:
        """How many attempts there are."""
        return self.job.max_attempts

    @property
    def is_last_attempt(self) -> bool:
        """Whether a failure would be final."""
        return self.attempt >= self.max_attempts

    @property
    def meta(self) -> dict[str, Any]:
        """The job's metadata."""
        return self.job.meta

    @property
    def workflow_id(self) -> str | None:
        """The workflow that the job is a step of; ``None`` if it is of none."""
        found: str | None = _membership(self.job.envelope).workflow_id
        return found

    @property
    def parent_results(self) -> dict[str, Any]:
        """What the steps before this one have brought about (seed 000, "Data Passing").

        In a chain, the results of all steps before it, by index (``"0"``, ``"1"``, …); in a graph, those of the steps
        that it depends on, by id; for a callback or a branch, those of all steps that it comes after. A step that
        failed is there with its ``state`` and ``error``; one that was skipped is ``None``.
        """
        given = msgspec.json.decode(self.job.parent_results or b"[]")
        return given if isinstance(given, dict) else {str(index): result for index, result in enumerate(given)}

    def append(self, *steps: Step) -> None:
        """Add steps to the container in which this job stands: after all others in a chain, beside them elsewhere.

        They are added together with the job's acknowledgement, or, if it fails, not at all.
        """
        self.appended += [msgspec.json.encode(step.wire) for step in steps]

    @cached_property
    def agent(self) -> AgentTask:
        """The job as an agent's task: for asynchronous handlers that ask models (ojs-ai-agents.md)."""
        return AgentTask(self.job, self.worker_id, self._client.account)

    @cached_property
    def properties(self) -> SharedProperties:
        """What the tasks of the job's workflow share."""
        return SharedProperties(self._client, self.job, self.workflow_id, self.worker_id, self._loop)

    @cached_property
    def collection(self) -> SharedCollection:
        """The collection of the job's workflow, where its steps promise and find things.

        Raises
        ------
        LookupError
            The job is of no workflow.
        """
        if self.workflow_id is None:
            raise LookupError(f"The job {self.job.id} is of no workflow that could have a collection.")
        return self._shared(Where(workflow_id=self.workflow_id))

    def collection_named(self, name: str) -> SharedCollection:
        """The collection of this name, of the workspace of the job."""
        return self._shared(Where(name, job_id=self.job.id))

    @cached_property
    def artifacts(self) -> SharedCollection:
        """What this job brings about beside its result: files with names, which reactions can put into collections.

        They are there as long as the job is.
        """
        return self._shared(Where(job_id=self.job.id))

    def _shared(self, where: Where) -> SharedCollection:
        wait = partial(wait_in_thread, loop=self._loop)
        return SharedCollection(lambda: self._client, where, wait, self.job.id)

    async def keep_result(self, result: bytes) -> str | None:
        """Keep a result as a file that is too large to be said; return its id, or ``None`` if there are no files."""
        try:
            kept = await upload(self._client, result, content_type=JSON, job_id=self.job.id)
        except Unsupported:
            return None
        return kept.id

    async def restored_args(self) -> list[Any]:
        """Return the arguments of the job; results of others in them that are kept as files are fetched."""
        args: list[Any] = self.job.args
        if not may_refer(self.job.envelope):
            return args
        return [await restore(self._client, arg, self.job.id) for arg in args]

    async def restore_parent_results(self) -> None:
        """Fetch what the steps before this one have brought about that is kept as files."""
        if self.job.parent_results is not None:
            self.job.parent_results = await restore_json(self._client, self.job.parent_results, self.job.id)

    @property
    def resumed(self) -> Any:
        """What the job was resumed with, if it was, after ``Wait(again=True)``; else ``None``."""
        return None if self.job.resumed is None else msgspec.json.decode(self.job.resumed)

    async def anote(self, note: Any) -> None:
        """Note something for people and others to read while the job runs, and after it.

        Parameters
        ----------
        note:
            What JSON can say, at most 16 KiB; a job has at most 1,000 notes.

        Raises
        ------
        PayloadTooLarge, Conflict
            It is larger, or there are too many.
        """
        await self._client.add_note(NewNote(to_json(note), job_id=self.job.id))

    def note(self, note: Any) -> None:
        """Note something, as ``anote`` does; for plain functions."""
        wait_in_thread(self.anote(note), self._loop)

    @property
    def cancelled(self) -> bool:
        """Whether the handler should stop: the job was cancelled, has lost its lease, or the worker is shutting down.

        Asynchronous handlers are cancelled then; plain functions must look.
        """
        return self._stopped.is_set()

    def wait_cancelled(self, seconds: float) -> bool:
        """Sleep in a plain function, but no longer than until the job is cancelled; tell whether it is."""
        return self._stopped.wait(seconds)

    def stop(self) -> None:
        """Tell the handler to stop; for the worker."""
        self._stopped.set()

    def progress(self, done: float, total: float = 1.0, message: str | None = None) -> None:
        """Report how far the job is. Cheap: it is sent a few times a second at most.

        Parameters
        ----------
        done, total:
            How much is done, of how much.
        message:
            Words for people.
        """
        fraction = min(1.0, max(0.0, done / total)) if total else 1.0
        item = Progress(self.job.id, fraction, message, self.worker_id, self.job.attempt)
        self._loop.call_soon_threadsafe(self._offer, item)

    def restored(self, default: Any = None) -> Any:
        """Return the state that an attempt before this one saved last, or ``default`` if none did."""
        return _saved(self.job.checkpoint).state if self.job.checkpoint is not None else default

    async def acheckpoint(self, state: Any) -> None:
        """Save how far the job has got: if this attempt fails or is lost, the next one gets it from ``restored``.

        It is saved when this returns, in the place of what was saved before.

        Parameters
        ----------
        state:
            What JSON can say, at most 1 MiB.

        Raises
        ------
        TypeError
            JSON has no words for it.
        PayloadTooLarge
            It is larger.
        Conflict
            The job was cancelled or has lost its lease; the handler should stop.
        """
        await self._client.save_checkpoint(NewCheckpoint(self.job.id, to_json(state), self.worker_id, self.job.attempt))

    def checkpoint(self, state: Any) -> None:
        """Save how far the job has got, as ``acheckpoint`` does; for plain functions.

        Raises
        ------
        RuntimeError
            It is called in an asynchronous handler, which would wait for itself.
        """
        wait_in_thread(self.acheckpoint(state), self._loop)

    async def heartbeat(self) -> None:
        """Extend the job's lease now. The worker does so by itself every few seconds."""
        await self._extend()

    def _offer(self, item: Progress) -> None:
        self._pending = item
        if self._timer is None:
            wait = max(0.0, self._sent_at + PROGRESS_INTERVAL - time.monotonic())
            self._timer = self._loop.call_later(wait, self._flush)

    def _flush(self) -> None:
        self._timer = None
        item, self._pending = self._pending, None
        if item is not None and not self.cancelled:
            self._sent_at = time.monotonic()
            self._loop.create_task(self._send(item))

    def finish(self) -> None:
        """Forget progress that is not sent yet; for the worker."""
        if self._timer is not None:
            self._timer.cancel()


class _Membership(msgspec.Struct):
    workflow_id: str | None = None


class _Saved(msgspec.Struct):
    state: Any


_saved: Final[Callable[[bytes], _Saved]] = msgspec.json.Decoder(_Saved).decode
_membership: Final = msgspec.json.Decoder(_Membership).decode

_current: ContextVar[JobContext] = ContextVar("ojster_job")


def current_job() -> JobContext:
    """Return the context of the job that the calling code works for.

    Raises
    ------
    LookupError
        It works for none.
    """
    context = _current.get(None)
    if context is None:
        raise LookupError("This code works for no job: current_job() is for handlers, and what they call.")
    return context


def enter_job(context: JobContext) -> None:
    """Make ``context`` the one that ``current_job`` returns from here on; for the worker."""
    _current.set(context)
