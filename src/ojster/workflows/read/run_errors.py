"""Results and errors with which waiting for a workflow ends."""

from __future__ import annotations

from typing import Any

import msgspec

from ojster.workflows.read.info import WorkflowError, WorkflowInfo
from ojster.workflows.read.shapes import ResultShape, in_python, shape_of


class WorkflowFailed(Exception):
    """A caller waited for a workflow's result, but the workflow failed or was undone. ``error`` gives the reason.

    Parameters
    ----------
    message:
        The workflow, its state, and the reason.
    error:
        The error of the workflow, with ``code``, ``message`` and ``failed_step``; ``None`` if it has none.

    Examples
    --------
    >>> import asyncio
    >>> from ojster import App, Discard, Worker, WorkflowFailed
    >>> app = App("sqlite:///:memory:")
    >>> @app.job("card.charge")
    ... def charge() -> None:
    ...     raise Discard("the card has expired")
    >>> async def main() -> None:
    ...     run = await app.astart(charge.s().set(id="charge"))
    ...     await Worker(app).run(until_empty=True)
    ...     try:
    ...         await run.aresult()
    ...     except WorkflowFailed as failed:
    ...         print(failed.error.failed_step)
    ...     await app.aclose()
    >>> asyncio.run(main())
    charge
    """

    def __init__(self, message: str, error: WorkflowError | None) -> None:
        super().__init__(message)
        self.error = error


class WorkflowCancelled(Exception):
    """A caller waited for a workflow's result, but the workflow was cancelled.

    Parameters
    ----------
    args:
        The message, with the id of the workflow.

    Examples
    --------
    >>> from ojster import App, WorkflowCancelled, gate
    >>> app = App("sqlite:///:memory:")
    >>> run = app.start(gate("review"))
    >>> run.cancel()
    >>> try:
    ...     run.result()
    ... except WorkflowCancelled:
    ...     print("cancelled")
    cancelled
    >>> app.close()
    """


def result_of(workflow: WorkflowInfo, shape: ResultShape | None = None) -> Any:
    """Return the result of a workflow that has ended.

    ``shape`` says what is a list in it; ``None``, the default: the steps that are shown do.

    Raises
    ------
    WorkflowCancelled, WorkflowFailed
        It has not completed.
    """
    why = f": {workflow.error.message}" if workflow.error is not None else ""
    match workflow.state:
        case "completed":
            result: Any = None if workflow.result is msgspec.UNSET else msgspec.json.decode(workflow.result)
            return in_python(shape_of(workflow) if shape is None else shape, result)
        case "cancelled":
            raise WorkflowCancelled(f"The workflow {workflow.id} was cancelled{why or '.'}")
        case _:
            raise WorkflowFailed(f"The workflow {workflow.id} is {workflow.state}{why}", workflow.error)
