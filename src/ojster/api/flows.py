"""``App.flow``: declares a function with durable steps, and starts it."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, Concatenate, Final, Generic, ParamSpec, Self, TypeVar, Unpack, cast, overload

import msgspec
from msgspec import Raw

from ojster.api.workflow_handle import Run
from ojster.client.plain_methods import plain
from ojster.core.json_objects import Members
from ojster.handlers import other_queues
from ojster.handlers.arguments import HandlerTypes
from ojster.handlers.context import JobContext
from ojster.handlers.flow import Flow
from ojster.handlers.flow_run import run_flow
from ojster.handlers.flow_updates import UpdateHandler, listen
from ojster.handlers.job_decorator import check_free
from ojster.handlers.job_options import JobOptions, JobOptionsDict, Retry, with_changes
from ojster.handlers.job_type import JobType
from ojster.handlers.named_arguments import Call
from ojster.jobs.names import read_type
from ojster.jobs.versions import ANY, parse_handled
from ojster.workflows.declaration import Workflow
from ojster.workflows.plan.rules import is_job
from ojster.workflows.read.info import WorkflowInfo

_encode: Final = msgspec.json.Encoder().encode

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
Q = ParamSpec("Q")


class FlowRun(Run[R]):
    """A started flow, whose result has the type that its function returns.

    Parameters
    ----------
    run:
        The started workflow.
    types:
        The types of the function.

    Examples
    --------
    >>> from ojster import App, Flow
    >>> app = App("sqlite:///:memory:")
    >>> @app.flow("greeting")
    ... async def greet(flow: Flow, name: str) -> str:
    ...     return await flow.receive("answer", str)
    >>> run = greet.start("Ada")
    >>> run.send("answer", "hello")
    >>> run.state
    'running'
    >>> app.close()
    """

    def __init__(self, run: Run, types: HandlerTypes) -> None:
        super().__init__(run._app, run.info, types.convert_result)
        self._types = types

    def _of(self, workflow: WorkflowInfo) -> Self:
        return type(self)(Run(self._app, workflow), self._types)


class FlowType(JobType[P, R], Generic[P, R]):
    """A declared flow. ``App.flow`` creates it from a coroutine function.

    Parameters
    ----------
    app, type, function, options, process:
        See ``JobType``; the function runs the flow in a job.

    Examples
    --------
    >>> import asyncio
    >>> from ojster import App, Flow, Worker
    >>> app = App("sqlite:///:memory:")
    >>> @app.flow("greeting")
    ... async def greet(flow: Flow, name: str) -> str:
    ...     answer = await flow.receive("answer", str)
    ...     return f"{name}: {answer}"
    >>> async def main() -> None:
    ...     run = await greet.astart("Ada")
    ...     await run.asend("answer", "hello")
    ...     await Worker(app).run(until_empty=True)
    ...     print(await run.aresult())
    ...     await app.aclose()
    >>> asyncio.run(main())
    Ada: hello
    """

    _updates: dict[str, UpdateHandler[..., Any]]
    is_flow = True
    _other_names = other_queues.OF_FLOWS

    def request(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], carried: Mapping[str, str] | None = None
    ) -> Members:
        """Refuse to make a plain job of the flow.

        Returns
        -------
        dict
            Never.

        Raises
        ------
        TypeError
            Always. A flow is started.
        """
        raise self._is_no_job()

    def _requests(self, calls: Sequence[Call], carried: Mapping[str, str]) -> Sequence[Members]:
        raise self._is_no_job()

    def _is_no_job(self) -> TypeError:
        return TypeError(f"{self.type!r} is a flow: start it with start(…), or make a step of it with s(…).")

    async def astart(self, /, *args: P.args, **kwargs: P.kwargs) -> FlowRun[R]:
        """Start the flow with these arguments.

        ``app.start(flow.s(…), timeout=…)`` starts it with options of the workflow.

        Parameters
        ----------
        args, kwargs:
            Arguments of the function, without the ``Flow``.

        Returns
        -------
        FlowRun
            The started flow.

        Raises
        ------
        TypeError
            The function does not take these arguments, or they are no JSON values.
        BackendUnavailable
            The server cannot be reached.
        """
        app: Any = self.app
        return FlowRun(await app.astart(self.with_data(args, kwargs), name=self.type), self.types)

    start = plain(astart)

    def update(self, function: Callable[Concatenate[Flow, Q], Coroutine[Any, Any, T]]) -> UpdateHandler[Q, T]:
        """Declare a coroutine function as an update of the flow: it answers a request while the flow runs.

        It shares ``Flow.state`` with the function of the flow, and may do all that this may. What it raises is the
        answer, too: check a request in its first lines.

        Parameters
        ----------
        function:
            The handler, whose first parameter is the ``Flow``. Its name is that of the update.

        Returns
        -------
        UpdateHandler
            The update, for ``Run.update``.

        Raises
        ------
        TypeError
            The function cannot be the handler of an update.
        ValueError
            The flow has an update with this name.
        """
        handler = UpdateHandler(self.type, function)
        if handler.name in self._updates:
            raise ValueError(f"{self.type!r} has an update {handler.name!r} already.")
        self._updates[handler.name] = handler
        return handler

    def start_in(self, connection: Any, /, *args: P.args, **kwargs: P.kwargs) -> FlowRun[R]:
        """Start the flow in the caller's transaction on ``connection``: it exists if and only if that commits.

        Parameters
        ----------
        connection:
            Connection with an open transaction, as in ``App.start_in``.
        args, kwargs:
            Arguments of the function, without the ``Flow``.

        Returns
        -------
        FlowRun
            The started flow. Others see it, and workers run it, after the commit.

        Raises
        ------
        TypeError
            See ``start``; or ``connection`` is of another type.
        InvalidRequest, NotInTransaction
            See ``App.start_in``.
        """
        app: Any = self.app
        return FlowRun(app.start_in(connection, self.with_data(args, kwargs), name=self.type), self.types)

    async def astart_in(self, connection: Any, /, *args: P.args, **kwargs: P.kwargs) -> FlowRun[R]:
        """Start the flow in the caller's transaction on ``connection``. See ``start_in`` and ``App.astart_in``.

        Parameters
        ----------
        connection:
            Connection with an open transaction, as in ``App.astart_in``.
        args, kwargs:
            Arguments of the function, without the ``Flow``.

        Returns
        -------
        FlowRun
            The started flow.
        """
        app: Any = self.app
        return FlowRun(await app.astart_in(connection, self.with_data(args, kwargs), name=self.type), self.types)

    def _wait(self, call: Coroutine[Any, Any, T]) -> T:
        return self.app._event_loop_thread.call(call)

    def s(self, *args: P.args, **kwargs: P.kwargs) -> Workflow[R]:
        """Return the flow with these arguments as a workflow, or as a step of one.

        Parameters
        ----------
        args, kwargs:
            Arguments of the function, without the ``Flow``.

        Returns
        -------
        Workflow
            The flow.

        Raises
        ------
        TypeError
            The function does not take these arguments, or they are no JSON values.
        """
        workflow: Workflow[R] = cast("Any", super()).s(*args, **kwargs)
        return workflow

    def with_data(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Workflow[R]:
        """Return the flow with these arguments, for a server that takes them as they are.

        Returns
        -------
        Workflow
            The flow.
        """
        members = super().request(args, kwargs)
        job = {name: value for name, value in members.items() if bytes(value) != b"{}"} | {"type": self.type}
        return Workflow({"type": "flow", "job": job}, self.types.convert_result)


class FlowDeclarations:
    """The decorator of flows, for ``App``."""

    @overload
    def flow(self, type: Callable[Concatenate[Flow, P], Coroutine[Any, Any, R]], /) -> FlowType[P, R]: ...

    @overload
    def flow(
        self, type: str | None = None, *, versions: str | None = None, **options: Unpack[JobOptionsDict]
    ) -> Callable[[Callable[Concatenate[Flow, P], Coroutine[Any, Any, R]]], FlowType[P, R]]: ...

    def flow(self, type: Any = None, *, versions: str | None = None, **options: Unpack[JobOptionsDict]) -> Any:
        """Declare a coroutine function as a flow: a process that outlives crashes, deploys and weeks of waiting.

        Parameters
        ----------
        type:
            Name of the flow, such as ``order.fulfil``; by default the name of the function. Or the function, for
            ``@app.flow`` without parentheses.
        versions:
            Which runs this code goes on with: those that were started with such a ``version`` (``2.0``, ``>=2.0 <4.0``,
            or ``*`` for all). By default those with the same ``version`` as this flow, or all if it has none. Runs
            without a version go on anywhere.
        options:
            Options of the job that runs the function; see ``JobOptions``. By default it is not retried if the function
            raises an exception, and always if its worker was lost.

        Returns
        -------
        Callable
            A decorator. It turns the function into a ``FlowType``.

        Raises
        ------
        InvalidRequest
            The name, the versions or an option is malformed. The decorator raises it.
        TypeError
            The function is no coroutine function whose first parameter is a ``Flow``, or an option does not exist. The
            decorator raises it.
        ValueError
            The type already has a handler. The decorator raises it.
        """

        def declare(function: Callable[Concatenate[Flow, P], Coroutine[Any, Any, R]]) -> FlowType[P, R]:
            name = read_type(_encode(function.__name__ if type is None or callable(type) else type))
            register: Any = self
            if not is_job({"type": Raw(_encode(name))}):
                raise ValueError(f"{name!r} is a word for steps of workflows. Give the flow another name.")
            check_free(name, register.handlers, function)
            updates: dict[str, UpdateHandler[..., Any]] = {}
            declared: FlowType[P, R] = FlowType(
                register,
                name,
                _handler_of(register, name, function, updates),
                with_changes(_OPTIONS, options),
                process=False,
            )
            declared._updates = updates
            declared.handled = parse_handled(name, versions or options.get("version") or ANY)
            register.handlers[name] = declared
            return declared

        return declare(type) if callable(type) else declare


_OPTIONS: Final = JobOptions(retry=Retry(max_attempts=100, give_up_on=[Exception]))
"""A function that fails is not run again: it would get the same. An attempt whose lease has expired is."""


def _handler_of(
    app: Any, name: str, function: Callable[..., Any], updates: Mapping[str, UpdateHandler[..., Any]]
) -> Callable[..., Any]:
    """Return the handler of the jobs that run a flow.

    Raises
    ------
    TypeError
        The function cannot be a flow.
    """
    parameters = list(inspect.signature(function).parameters.values())
    if not inspect.iscoroutinefunction(function) or not parameters:
        raise TypeError(
            f"{name}: a flow is a coroutine function whose first parameter is the Flow: async def {function.__name__}"
            "(flow: Flow, …)."
        )

    async def handler(context: JobContext, *args: Any, **provided: Any) -> Any:
        beside = [partial(listen, update) for update in updates.values()]
        return await run_flow(function, beside, app.handlers[name], context, *args, **provided)

    functools.update_wrapper(handler, function)
    first = parameters[0].replace(annotation=JobContext)
    handler.__dict__["__signature__"] = inspect.signature(function).replace(parameters=[first, *parameters[1:]])
    return handler
