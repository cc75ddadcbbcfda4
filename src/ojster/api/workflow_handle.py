"""Handles for started workflows: read their state, result and diagram, and control them."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Any, Final, Generic, Self

import msgspec

from ojster.api.forks import Forkable
from ojster.api.run_messages import RunMessages
from ojster.api.run_stream import Connected
from ojster.client.file_transfer import restore
from ojster.client.plain_methods import plain, plain_iterator
from ojster.core.declared_options import NonNegativeSpan, checks_options
from ojster.core.values import to_json, to_seconds
from ojster.handlers import job_handle
from ojster.jobs.failure import Failure
from ojster.workflows.declaration import DrawingFormat
from ojster.workflows.declared_results import Convert, T_co, converted
from ojster.workflows.read.drawing import draw
from ojster.workflows.read.info import WorkflowInfo
from ojster.workflows.read.run_errors import result_of
from ojster.workflows.read.shapes import ResultShape
from ojster.workflows.read.status import WorkflowStatus
from ojster.workflows.run.control import Review
from ojster.workflows.run.dependencies import NewDependencies
from ojster.workflows.run.steps import StepAddress
from ojster.workflows.run.suspensions import WorkflowResumption

MAX_POLL_SECONDS: Final = 30.0
"""Maximum long-poll wait for a workflow's result, in seconds."""

MAX_WATCH_POLL_SECONDS: Final = 1.0
"""Maximum long-poll wait while watching, in seconds: a step that becomes active may leave the version as it is."""


class Run(RunMessages, Forkable, Generic[T_co]):
    """A started workflow: its state, its result, and what can be done with it.

    ``App.start`` and ``App.find_workflow`` return it, and ``astart`` and ``afind_workflow`` in asynchronous code. The
    asynchronous methods begin with ``a``; the others block.

    Parameters
    ----------
    app:
        The application that the workflow belongs to.
    info:
        The workflow.
    convert:
        Makes of its result, a JSON value, what the return annotations of its handlers say; by default it stays.
    shape:
        What is known of its result without its steps, which a server leaves out if they are many; by default nothing.

    Examples
    --------
    >>> from ojster import App, gate
    >>> app = App("sqlite:///:memory:")
    >>> run = app.start(gate("review"))
    >>> run.state
    'running'
    >>> run.approve("review", notes="looks good")
    >>> run.state
    'completed'
    >>> app.close()
    """

    def __init__(
        self,
        app: Connected,
        info: WorkflowInfo,
        convert: Convert | None = None,
        shape: ResultShape | None = None,
    ) -> None:
        self._app = app
        self._info = info
        self._convert = convert
        self._shape = shape

    def __repr__(self) -> str:
        return f"<Run {self.id} {self._info.label} {self.state}>"

    @property
    def id(self) -> str:
        """The workflow's id."""
        return self._info.id

    @property
    def state(self) -> str:
        """The workflow's state at the last read. ``refresh`` reads it again."""
        return self._info.state

    @property
    def info(self) -> WorkflowInfo:
        """The workflow with all its steps, as of the last read."""
        return self._info

    def _of(self, workflow: WorkflowInfo) -> Self:
        return type(self)(self._app, workflow, self._convert, self._shape)

    async def arefresh(self) -> WorkflowInfo:
        """Read the workflow again.

        Returns
        -------
        WorkflowInfo
            The workflow with all its steps.

        Raises
        ------
        NotFound
            The workflow does not exist any more.
        """
        self._info = await self._app.client().workflows.show(self.id)
        return self._info

    refresh = plain(arefresh)

    @checks_options
    async def aresult(self, timeout: NonNegativeSpan | None = None) -> T_co:
        """Wait until the workflow has finished, and return its result.

        If the workflow is retried as a whole, this object switches to the new workflow, which has another id.

        Parameters
        ----------
        timeout:
            Maximum wait, in seconds or as a ``timedelta``. ``None``, the default: no limit.

        Returns
        -------
        Any
            The result of the workflow: a list for a group, a batch or a map. If it was started here from steps of
            declared jobs, it is converted as their return annotations say; otherwise it is a JSON value.

        Raises
        ------
        TimeoutError
            The workflow has not finished in time.
        WorkflowFailed
            The workflow failed, or was undone.
        WorkflowCancelled
            The workflow was cancelled.
        """
        seconds = None if timeout is None else to_seconds(timeout)
        deadline = None if seconds is None else time.monotonic() + seconds
        client = self._app.client()
        longest = job_handle.TAKEN_WITHIN_SECONDS
        while True:
            left = MAX_POLL_SECONDS if deadline is None else max(0.0, deadline - time.monotonic())
            head = await client.workflows.show(self.id, wait=min(left, longest), steps=False)
            if head.next_attempt is not None:
                self._info = await client.workflows.show(head.next_attempt)
                continue
            if head.finished:
                info = await self.arefresh()
                ended_with = result_of(info, self._shape if info.steps_omitted else None)
                result: T_co = converted(await restore(client, ended_with), self._convert)
                return result
            if deadline is not None and time.monotonic() >= deadline:
                raise TimeoutError(
                    f"Workflow {self.id} is still {head.state} after {seconds:g} s. Use a longer timeout."
                )
            if longest == job_handle.TAKEN_WITHIN_SECONDS:
                await self._log_if_not_taken()
            longest = MAX_POLL_SECONDS

    result = plain(aresult)

    async def _log_if_not_taken(self) -> None:
        """Log that no worker has taken a job of the workflow, if none has: perhaps none runs."""
        jobs = [step for step in (await self.arefresh()).walk() if step.job_id]
        if jobs and not any(step.started_at for step in jobs):
            job_handle.log_if_not_taken(await self._app.client().jobs.find(str(jobs[0].job_id)))

    async def awatch(self) -> AsyncIterator[WorkflowInfo]:
        """Yield the workflow now and after each change, until it has finished.

        Yields
        ------
        WorkflowInfo
            The workflow with all its steps.
        """
        client = self._app.client()
        workflow, shown = await self.arefresh(), b""
        while True:
            if (raw := workflow.to_json()) != shown:
                shown = raw
                yield workflow
            if workflow.finished:
                return
            workflow = self._info = await client.workflows.show(
                self.id, wait=MAX_WATCH_POLL_SECONDS, version=workflow.version
            )

    watch = plain_iterator(awatch)

    @checks_options
    def draw(self, format: DrawingFormat = "mermaid") -> str:
        """Return a diagram of the workflow as of the last read.

        Parameters
        ----------
        format:
            ``mermaid`` (the default) or ``svg``.

        Returns
        -------
        str
            The text of a Mermaid diagram, or an SVG document.

        Raises
        ------
        ValueError
            The format is unknown.
        """
        return draw(self._info, format)

    @checks_options
    async def acancel(self, *, stop_active: bool = False) -> None:
        """Cancel the workflow: no further step starts; active jobs may finish, or are cancelled with ``stop_active``.

        Raises
        ------
        Conflict
            The workflow is in a final state.
        """
        self._info = await self._app.client().workflows.cancel(self.id, stop_active=stop_active)

    cancel = plain(acancel)

    async def aterminate(self) -> None:
        """End the workflow without letting it clean up: active jobs are stopped, and nothing is compensated.

        Also one that was cancelled and still cleans up.

        Raises
        ------
        Conflict
            Nothing of the workflow runs.
        """
        self._info = await self._app.client().workflows.terminate(self.id)

    terminate = plain(aterminate)

    @checks_options
    async def aretry(self, step: str | None = None) -> None:
        """Run the steps that did not succeed again, or only ``step``, which may be done while others still run.

        Raises
        ------
        Conflict
            The workflow has not finished, or it is completed; or the step has not ended, or it has succeeded.
        """
        calls = self._app.client().workflows
        self._info = await (calls.retry(self.id) if step is None else calls.retry_step(StepAddress(self.id, step)))

    retry = plain(aretry)

    async def ahold(self) -> None:
        """Hold the workflow: no step starts until ``arelease``; active jobs may finish."""
        self._info = await self._app.client().workflows.hold(self.id)

    hold = plain(ahold)

    async def arelease(self) -> None:
        """Release the workflow after ``ahold``, so that its steps start again."""
        self._info = await self._app.client().workflows.release(self.id)

    release = plain(arelease)

    @checks_options
    async def aapprove(self, step: str, notes: str | None = None, *, author: str | None = None) -> None:
        """Approve a step.

        Parameters
        ----------
        step:
            Path of the step.
        notes:
            Text for people; none by default.
        author:
            Name of the reviewer; none by default.

        Raises
        ------
        NotFound, Conflict
            The step does not exist, or it does not wait for an approval.
        """
        self._info = await self._app.client().workflows.review_step(Review(self.id, step, "approve", notes, author))

    approve = plain(aapprove)

    @checks_options
    async def areject(self, step: str, notes: str | None = None, *, author: str | None = None) -> None:
        """Reject a step that waits for an approval, which cancels the step. See ``aapprove``."""
        self._info = await self._app.client().workflows.review_step(Review(self.id, step, "reject", notes, author))

    reject = plain(areject)

    @checks_options
    async def anote(self, step: str, notes: str, *, author: str | None = None) -> None:
        """Add a note to a step that waits for an approval, without a decision. See ``aapprove``."""
        self._info = await self._app.client().workflows.review_step(Review(self.id, step, None, notes, author))

    note = plain(anote)

    async def acancel_step(self, step: str) -> None:
        """Cancel a step with all steps inside it, including active jobs.

        Parameters
        ----------
        step:
            Path of the step.

        Raises
        ------
        NotFound, Conflict
            The step does not exist, or it has ended.
        """
        self._info = await self._app.client().workflows.cancel_step(StepAddress(self.id, step))

    cancel_step = plain(acancel_step)

    async def aadd_dependencies(self, step: str, *others: str) -> None:
        """Let a step of a graph, given by its path, wait for others of the graph, too, given by their ids.

        Raises
        ------
        NotFound, Conflict, InvalidRequest
            A step does not exist; the step has started; it is in no graph, or they would wait for each other.
        """
        self._info = await self._app.client().workflows.add_dependencies(NewDependencies(self.id, step, others))

    add_dependencies = plain(aadd_dependencies)

    @checks_options
    async def aresume(self, result: Any = None, *, error: str | None = None, step: str | None = None) -> None:
        """Resume the workflow's suspended job (``Wait``) or wait step (``wait``).

        Parameters
        ----------
        result:
            The value that the job waits for: any JSON value; ``None`` by default.
        error:
            The reason why the value will not come; none by default. If given, the job fails without a retry and
            ``result`` is ignored.
        step:
            The path of the suspended step. Required if several steps are suspended, and if it does not wait yet: the
            answer is then kept until it does.

        Raises
        ------
        NotFound, Conflict
            The step does not exist, has ended, or has an answer already; or ``step`` is missing, and no step is
            suspended, or several are.
        TypeError
            ``result`` is not a JSON value.
        """
        failure = None if error is None else Failure("ResumedWithError", error, "resumed_with_error", retryable=False)
        item = WorkflowResumption(self.id, step, None if failure else to_json(result), failure)
        self._info = await self._app.client().workflows.resume(item)

    resume = plain(aresume)

    async def astatus(self) -> WorkflowStatus:
        """Return the results of ended steps, and the current steps.

        Returns
        -------
        WorkflowStatus
            The results, by branch and in the order in which the steps ended, and the steps in progress.
        """
        return await self._app.client().workflows.status(self.id)

    status = plain(astatus)

    async def aproperties(self) -> dict[str, Any]:
        """Return the workflow's shared properties.

        Returns
        -------
        dict
            The values, by name.
        """
        return {
            name: stored.decoded() for name, stored in (await self._app.client().workflows.properties(self.id)).items()
        }

    properties = plain(aproperties)

    async def anotes(self) -> list[Any]:
        """Return the notes on the workflow and its jobs.

        Returns
        -------
        list
            The notes, oldest first.
        """
        return [msgspec.json.decode(entry.note) for entry in await self._app.client().notes.of_workflow(self.id)]

    notes = plain(anotes)
