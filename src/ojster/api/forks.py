"""Handles of workflows that can run again from a step on, as new workflows."""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from typing import Any, Self, TypeVar

from msgspec import UNSET

from ojster.api.run_stream import Connected
from ojster.core.values import to_json
from ojster.workflows.read.info import WorkflowInfo
from ojster.workflows.run.fork import Fork

R = TypeVar("R")


class Forkable:
    """The part of ``Run`` that runs a workflow again."""

    _app: Connected
    _info: WorkflowInfo

    def _wait(self, call: Coroutine[Any, Any, R], /) -> R:
        return self._app._event_loop_thread.call(call)

    async def afork(
        self, from_step: str | None = None, *, args: Sequence[Any] | None = None, result: Any = UNSET
    ) -> Self:
        """Run the workflow again from a step on, as a new workflow. This one stays as it is.

        What had ended before the step is kept. The step, all that follows it, and all that did not succeed runs again.

        Parameters
        ----------
        from_step:
            The path of a step; of a flow the key of what it has asked for, such as ``charge`` or ``quote#2``. By
            default everything runs again.
        args:
            New arguments of the step, which is a job or a flow; without a step, of the flow that this is.
        result:
            The result of the step, which then does not run: any JSON value. Codecs do not encode it.

        Returns
        -------
        Run
            The new run, with a new id.

        Raises
        ------
        NotFound
            There is no such step. The error names those that there are.
        Conflict
            The workflow has not finished, and is no flow; or the step never ran.
        InvalidRequest
            The step takes no arguments, or no result.
        TypeError
            An argument, or the result, is no JSON value.
        """
        new_args = None if args is None else to_json(self._app.codecs.encode_list(list(args)))
        fork = Fork(self._info.id, from_step, new_args, None if result is UNSET else to_json(result))
        return self._of(await self._app.client().workflows.fork(fork))

    def fork(self, from_step: str | None = None, *, args: Sequence[Any] | None = None, result: Any = UNSET) -> Self:
        """Run the workflow again from a step on, as a new workflow. See ``afork``.

        Parameters
        ----------
        from_step, args, result:
            See ``afork``.

        Returns
        -------
        Run
            The new run, with a new id.

        Raises
        ------
        NotFound, Conflict, InvalidRequest, TypeError
            See ``afork``.
        """
        return self._wait(self.afork(from_step, args=args, result=result))

    def _of(self, workflow: WorkflowInfo) -> Self:
        """Return another run of the same kind."""
        kind: Any = type(self)
        made: Self = kind(self._app, workflow)
        return made
