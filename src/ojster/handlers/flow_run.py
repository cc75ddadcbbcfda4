"""Runs the function of a flow in its job, as far as it comes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Concatenate, ParamSpec, TypeVar

import msgspec

from ojster.core.errors import OjsterError
from ojster.handlers.context import JobContext
from ojster.handlers.flow import Flow
from ojster.handlers.flow_check import warn_of
from ojster.handlers.flow_errors import Restarted, run_again
from ojster.handlers.flow_execution import FlowExecution
from ojster.handlers.flow_keeping import KeptFlows
from ojster.handlers.job_type import JobType

P = ParamSpec("P")
R = TypeVar("R")


async def run_flow(
    function: Callable[Concatenate[Flow, P], Awaitable[R]],
    beside: Iterable[Callable[[Flow, FlowExecution], Coroutine[Any, Any, None]]],
    declared: JobType[Any, Any],
    context: JobContext,
    *args: P.args,
    **kwargs: P.kwargs,
) -> R:
    """Run the function of a flow in the job of a context, as far as it comes, and anew when it restarts.

    Parameters
    ----------
    function, declared:
        The function, and the flow that it was declared as.
    beside:
        What runs beside it: the updates of the flow.
    context, args, kwargs:
        The job, and the arguments of the function.
    """
    warn_of(function)
    context.runs_flow = True
    kept: KeptFlows | None = None if kwargs else context.kept_flows  # dependencies end with their attempt
    execution = None if kept is None else kept.take(context.job)
    while True:
        try:
            after = None if execution is None else execution.last_end
            records = await context.client.flows.records(context.job.id, after)
        except BaseException as error:
            if execution is not None:
                execution.close()
            if isinstance(error, OjsterError):
                raise run_again(context.job, error) from error
            raise
        try:
            if execution is not None:
                going_on: R = await execution.go_on(context, records)
                return going_on
            execution = FlowExecution(context, records, declared.app.codecs)
            execution.may_rest = kept is not None
            flow = execution.loop.flow = Flow(execution)
            flow._declared = declared
            own, named = (args, kwargs) if execution.args is None else arguments_of(declared, execution.args, kwargs)
            call: Any = function
            result: R = await execution.run(
                call(flow, *own, **named), *(listens(flow, execution) for listens in beside)
            )
            return result
        except Restarted:
            execution = None
        finally:  # it waits; the worker may also have stopped it at this moment
            if kept is not None and execution is not None and execution.is_resting:
                kept.keep(execution)


def arguments_of(
    declared: JobType[Any, Any], args: bytes | msgspec.Raw, before: Mapping[str, Any]
) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """Return the arguments with which a function begins anew; of those that it had by name, it keeps what it needs."""
    own, named = declared.types.convert(declared.app.codecs.decode_list(msgspec.json.decode(args)))
    return own, {name: before[name] for name in before.keys() & declared.needed} | dict(named)
