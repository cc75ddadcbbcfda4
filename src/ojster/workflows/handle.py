"""What is known of a workflow that was started? Its state, its result, its picture; and how to steer it."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any, Final

import msgspec

from ojster.core.values import to_json
from ojster.files.transfer import restore
from ojster.jobs.failure import Failure
from ojster.workflow import DrawingFormat
from ojster.workflows.drawing import draw
from ojster.workflows.info import WorkflowError, WorkflowInfo
from ojster.workflows.status import WorkflowStatus
from ojster.workflows.suspensions import WorkflowResumption
from ojster.workflows.workflows import Review, StepAddress

if TYPE_CHECKING:
    from ojster.app import App

LONGEST_POLL: Final = 30.0
LIVELY_POLL: Final = 1.0
"""How long to wait for a change at most before looking again, in seconds: steps become active without one."""


class WorkflowFailed(Exception):
    """A workflow whose result was waited for failed, or was undone. ``error`` says why."""

    def __init__(self, message: str, error: WorkflowError | None) -> None:
        super().__init__(message)
        self.error = error


class WorkflowCancelled(Exception):
    """A workflow whose result was waited for was cancelled."""


class AsyncRun:
    """A workflow that was started, for asynchronous code. ``Run`` is the same for plain code."""

    def __init__(self, app: App, info: WorkflowInfo) -> None:
        self._app = app
        self._info = info

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} {self._info.name or self._info.type} {self.state}>"

    @property
    def id(self) -> str:
        """The workflow's id."""
        return self._info.id

    @property
    def state(self) -> str:
        """The state that it was in when it was last looked at; ``refresh`` looks again."""
        return self._info.state

    @property
    def info(self) -> WorkflowInfo:
        """The workflow as it was when it was last looked at, with all its steps."""
        return self._info

    async def refresh(self) -> WorkflowInfo:
        """Look at it again, and return how it stands."""
        self._info = await self._app.client().show_workflow(self.id)
        return self._info

    async def result(self, timeout: float | None = None) -> Any:
        """Wait until it has finished, and return its result: of a group, a batch or a map, a list.

        If it is run again as a whole, it is the new one from then on, which has another id.

        Parameters
        ----------
        timeout:
            How long to wait, in seconds; ``None``: as long as it takes.

        Raises
        ------
        TimeoutError
            It has not finished in time.
        WorkflowFailed
            It failed, or was undone.
        WorkflowCancelled
            It was cancelled.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        client = self._app.client()
        while True:
            left = LONGEST_POLL if deadline is None else max(0.0, deadline - time.monotonic())
            head = await client.show_workflow(self.id, wait=min(left, LONGEST_POLL), steps=False)
            if head.next_attempt is not None:
                self._info = await client.show_workflow(head.next_attempt)
                continue
            if head.finished:
                return await restore(client, _result_of(await self.refresh()))
            if deadline is not None and time.monotonic() >= deadline:
                raise TimeoutError(f"The workflow {self.id} is {head.state}, not finished, after {timeout} s.")

    async def watch(self) -> AsyncIterator[WorkflowInfo]:
        """Yield how it stands, again and again as it changes, until it has finished."""
        client = self._app.client()
        info, shown = await self.refresh(), b""
        while True:
            if (raw := info.to_json()) != shown:
                shown = raw
                yield info
            if info.finished:
                return
            info = self._info = await client.show_workflow(self.id, wait=LIVELY_POLL, version=info.version)

    def draw(self, format: DrawingFormat = "mermaid") -> str:
        """Return a picture of it as it was last looked at: the text of a Mermaid diagram, or an SVG document."""
        return draw(self._info, format)

    async def cancel(self) -> None:
        """Cancel it: what has not started never does, active jobs may finish.

        Raises
        ------
        Conflict
            It is in a final state.
        """
        self._info = await self._app.client().cancel_workflow(self.id)

    async def retry(self) -> None:
        """Run again what did not succeed.

        Raises
        ------
        Conflict
            It has not finished, or it is completed.
        """
        self._info = await self._app.client().retry_workflow(self.id)

    async def hold(self) -> None:
        """Let nothing of it start until ``release``; active jobs may finish."""
        self._info = await self._app.client().hold_workflow(self.id)

    async def release(self) -> None:
        """Let it go on after ``hold``."""
        self._info = await self._app.client().release_workflow(self.id)

    async def approve(self, step: str, notes: str | None = None, *, author: str | None = None) -> None:
        """Approve a step that waits for it, named by its path.

        Raises
        ------
        NotFound, Conflict
            There is no such step, or it does not wait for an approval.
        """
        self._info = await self._app.client().review_step(Review(self.id, step, "approve", notes, author))

    async def reject(self, step: str, notes: str | None = None, *, author: str | None = None) -> None:
        """Reject a step that waits for an approval: it is cancelled. See ``approve``."""
        self._info = await self._app.client().review_step(Review(self.id, step, "reject", notes, author))

    async def note(self, step: str, notes: str, *, author: str | None = None) -> None:
        """Note something on a step that waits for an approval, without deciding. See ``approve``."""
        self._info = await self._app.client().review_step(Review(self.id, step, None, notes, author))

    async def cancel_step(self, step: str) -> None:
        """Cancel a step, named by its path, and all that is inside it, active jobs too.

        Raises
        ------
        NotFound, Conflict
            There is no such step, or it has ended.
        """
        self._info = await self._app.client().cancel_step(StepAddress(self.id, step))

    async def resume(self, result: Any = None, *, error: str | None = None, step: str | None = None) -> None:
        """Let the job go on that waits (``Wait``).

        Parameters
        ----------
        result:
            What it waits for: what JSON can say.
        error:
            Instead of that: why it will not come; the job fails for good.
        step:
            Which is meant, named by its path, if several wait.

        Raises
        ------
        NotFound, Conflict
            There is no such step, none waits, or several do and it is not said which is meant.
        """
        failure = None if error is None else Failure("ResumedWithError", error, "resumed_with_error", retryable=False)
        item = WorkflowResumption(self.id, step, None if failure else to_json(result), failure)
        self._info = await self._app.client().resume_workflow(item)

    async def status(self) -> WorkflowStatus:
        """Return what became of each step so far, by branch and in order, and what is under way."""
        return await self._app.client().workflow_status(self.id)

    async def properties(self) -> dict[str, Any]:
        """Return what its tasks share, by name."""
        return {name: one.decoded() for name, one in (await self._app.client().properties(self.id)).items()}

    async def notes(self) -> list[Any]:
        """Return what was noted of it and its jobs, the oldest first."""
        return [msgspec.json.decode(one.note) for one in await self._app.client().workflow_notes(self.id)]


class Run:
    """A workflow that was started, for plain code. See ``AsyncRun``."""

    def __init__(self, app: App, info: WorkflowInfo) -> None:
        self._app = app
        self._run = AsyncRun(app, info)

    def __repr__(self) -> str:
        return repr(self._run).replace("AsyncRun", "Run")

    @property
    def id(self) -> str:
        """The workflow's id."""
        return self._run.id

    @property
    def state(self) -> str:
        """The state that it was in when it was last looked at."""
        return self._run.state

    @property
    def info(self) -> WorkflowInfo:
        """The workflow as it was when it was last looked at."""
        return self._run.info

    def refresh(self) -> WorkflowInfo:
        """Look at it again. See ``AsyncRun.refresh``."""
        return self._app._portal.call(self._run.refresh())

    def result(self, timeout: float | None = None) -> Any:
        """Wait until it has finished, and return its result. See ``AsyncRun.result``."""
        return self._app._portal.call(self._run.result(timeout))

    def watch(self) -> Iterator[WorkflowInfo]:
        """Yield how it stands as it changes, until it has finished. See ``AsyncRun.watch``."""
        changes = self._run.watch()
        while True:
            try:
                yield self._app._portal.call(_next(changes))
            except StopAsyncIteration:
                return

    def draw(self, format: DrawingFormat = "mermaid") -> str:
        """Return a picture of it. See ``AsyncRun.draw``."""
        return self._run.draw(format)

    def cancel(self) -> None:
        """Cancel it. See ``AsyncRun.cancel``."""
        self._app._portal.call(self._run.cancel())

    def retry(self) -> None:
        """Run again what did not succeed. See ``AsyncRun.retry``."""
        self._app._portal.call(self._run.retry())

    def hold(self) -> None:
        """Let nothing of it start. See ``AsyncRun.hold``."""
        self._app._portal.call(self._run.hold())

    def release(self) -> None:
        """Let it go on. See ``AsyncRun.release``."""
        self._app._portal.call(self._run.release())

    def approve(self, step: str, notes: str | None = None, *, author: str | None = None) -> None:
        """Approve a step. See ``AsyncRun.approve``."""
        self._app._portal.call(self._run.approve(step, notes, author=author))

    def reject(self, step: str, notes: str | None = None, *, author: str | None = None) -> None:
        """Reject a step. See ``AsyncRun.reject``."""
        self._app._portal.call(self._run.reject(step, notes, author=author))

    def note(self, step: str, notes: str, *, author: str | None = None) -> None:
        """Note something on a step. See ``AsyncRun.note``."""
        self._app._portal.call(self._run.note(step, notes, author=author))

    def resume(self, result: Any = None, *, error: str | None = None, step: str | None = None) -> None:
        """Let the job go on that waits. See ``AsyncRun.resume``."""
        self._app._portal.call(self._run.resume(result, error=error, step=step))

    def status(self) -> WorkflowStatus:
        """Return what became of each step so far, and what is under way. See ``AsyncRun.status``."""
        return self._app._portal.call(self._run.status())

    def properties(self) -> dict[str, Any]:
        """Return what its tasks share, by name."""
        return self._app._portal.call(self._run.properties())

    def notes(self) -> list[Any]:
        """Return what was noted of it and its jobs, the oldest first."""
        return self._app._portal.call(self._run.notes())

    def cancel_step(self, step: str) -> None:
        """Cancel a step. See ``AsyncRun.cancel_step``."""
        self._app._portal.call(self._run.cancel_step(step))


async def _next(changes: AsyncIterator[WorkflowInfo]) -> WorkflowInfo:
    return await anext(changes)


def _result_of(info: WorkflowInfo) -> Any:
    why = f": {info.error.message}" if info.error is not None else ""
    match info.state:
        case "completed":
            result: Any = None if info.result is msgspec.UNSET else msgspec.json.decode(info.result)
            is_list = info.type in ("group", "batch", "map") and isinstance(result, dict)
            return list(result.values()) if is_list else result
        case "cancelled":
            raise WorkflowCancelled(f"The workflow {info.id} was cancelled{why or '.'}")
        case _:
            raise WorkflowFailed(f"The workflow {info.id} is {info.state}{why}", info.error)
