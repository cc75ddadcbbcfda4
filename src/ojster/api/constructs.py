"""What workflows are made of besides chains and groups: batches, sagas, gates, waits, code, graphs, and references."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, Self, TypeVar, overload

from ojster.core.declared_options import checks_options
from ojster.core.values import Seconds, to_duration, to_millis, to_timestamp
from ojster.handlers.arguments import converter_to
from ojster.handlers.code_source import source_of
from ojster.workflows.declaration import Step, Workflow, container, unpacked
from ojster.workflows.declared_results import each_by
from ojster.workflows.placeholders import Placeholder

T = TypeVar("T")


def result_of(step: str | int | Step) -> Any:
    """Return a reference to the result of a step, for the arguments of a later step.

    Parameters
    ----------
    step:
        The id of the step, its index in a chain (from 0), or a step with an id.

    Returns
    -------
    Reference
        The reference. ``reference["member"]`` and ``reference[0]`` refer to a part of the result.

    Raises
    ------
    ValueError
        The step has no id.

    Examples
    --------
    >>> from ojster import result_of
    >>> result_of("fetch")["rows"]
    <Reference steps.fetch.result.rows>
    """
    return Placeholder(f"steps.{_name_of(step)}.result")


def error_of(step: str | int | Step) -> Any:
    """Return a reference to the error of a step; the error is ``None`` if the step succeeded.

    Parameters
    ----------
    step:
        The id of the step, its index in a chain (from 0), or a step with an id.

    Returns
    -------
    Reference
        The reference. ``reference["message"]`` refers to the message of the error.

    Raises
    ------
    ValueError
        The step has no id.

    Examples
    --------
    >>> from ojster import error_of
    >>> error_of("charge")["message"]
    <Reference steps.charge.error.message>
    """
    return Placeholder(f"steps.{_name_of(step)}.error")


def _name_of(step: str | int | Step) -> str:
    name = step.wire.get("id") if isinstance(step, Step) else step
    if name is None:
        raise ValueError("Only a step with an id can be referred to: step.set(id='…').")
    return str(name)


def batch(
    *jobs: Step[T] | Iterable[Step[T]],
    on_complete: Step | None = None,
    on_success: Step | None = None,
    on_failure: Step | None = None,
    name: str | None = None,
) -> Workflow[list[T]]:
    """Return a batch: steps run at the same time, then callbacks. A batch needs at least one callback.

    Parameters
    ----------
    jobs:
        The steps. Iterables of steps are unpacked.
    on_complete:
        Callback that always runs.
    on_success:
        Callback that runs if all steps succeeded.
    on_failure:
        Callback that runs if a step did not succeed.
    name:
        Name of the workflow; none by default.

    Returns
    -------
    Workflow
        The batch.

    Raises
    ------
    TypeError
        An argument is not a step.

    Examples
    --------
    >>> from ojster import batch, gate
    >>> batch(gate("legal"), gate("design"), on_success=gate("release")).wire["callbacks"]
    {'on_success': {'type': 'gate', 'id': 'release'}}
    """
    made = container("batch", "jobs", unpacked(jobs), name)
    callbacks = {"on_complete": on_complete, "on_success": on_success, "on_failure": on_failure}
    made.wire["callbacks"] = {name: step.whole.wire for name, step in callbacks.items() if step is not None}
    return made


@overload
def saga(
    *steps: *tuple[*tuple[Step, ...], Step[T]],
    failure_policy: Literal["compensate", "retry", "skip"] = "compensate",
    name: str | None = None,
) -> Workflow[T]: ...


@overload
def saga(
    *steps: Step | Iterable[Step],
    failure_policy: Literal["compensate", "retry", "skip"] = "compensate",
    name: str | None = None,
) -> Workflow: ...


def saga(  # type: ignore[misc]  # as in ``chain``
    *steps: Step | Iterable[Step],
    failure_policy: Literal["compensate", "retry", "skip"] = "compensate",
    name: str | None = None,
) -> Workflow:
    """Return a saga: a chain in which, if a step fails, completed steps are undone in reverse order.

    ``step.set(compensate=…)`` gives the step that undoes another.

    Parameters
    ----------
    steps:
        The steps, in order. Iterables of steps are unpacked.
    failure_policy:
        Action if a step fails: ``compensate``, the default, undoes the completed steps after one attempt of the failed
        step; ``retry`` does so after the usual retries; ``skip`` continues with the next step.
    name:
        Name of the workflow; none by default.

    Returns
    -------
    Workflow
        The saga.

    Raises
    ------
    TypeError
        An argument is not a step.

    Examples
    --------
    >>> from ojster import App, saga
    >>> app = App("sqlite:///:memory:")
    >>> @app.job("card.charge")
    ... def charge(order: int) -> None: ...
    >>> @app.job("card.refund")
    ... def refund(order: int) -> None: ...
    >>> order = saga(charge.s(42).set(compensate=refund.s(42)))
    >>> order.wire["failure_policy"]
    'compensate'
    >>> app.close()
    """
    made = container("saga", "steps", unpacked(steps), name)
    made.wire["failure_policy"] = failure_policy
    if failure_policy == "skip":  # the last step may be one that was skipped
        made.convert = None
    return made


def each(
    over: Sequence[Any] | Placeholder, do: Step[T], *, element: str = "item", name: str | None = None
) -> Workflow[list[T]]:
    """Return a map: the same step for each element of a list, which may be known only when the map starts.

    Parameters
    ----------
    over:
        The list, or a reference to it.
    do:
        The step. ``element`` refers to the element, and ``INDEX`` to its index.
    element:
        Name of the element in references; ``item`` by default.
    name:
        Name of the workflow; none by default.

    Returns
    -------
    Workflow
        The map.

    Examples
    --------
    >>> from ojster import App, each, element, result_of
    >>> app = App("sqlite:///:memory:")
    >>> @app.job("page.fetch")
    ... def fetch(url: str) -> None: ...
    >>> each(result_of("list"), fetch.s(element())).wire["over"]
    <Reference steps.list.result>
    >>> app.close()
    """
    do = do.whole
    wire = {"type": "map", "over": over if isinstance(over, Placeholder) else list(over), "as": element, "do": do.wire}
    return Workflow(wire if name is None else wire | {"name": name}, each_by(do.convert))


@overload
def definition(name: str, *, params: Mapping[str, Any] | None = None, version: int | None = None) -> Step: ...


@overload
def definition(
    name: str, *, params: Mapping[str, Any] | None = None, version: int | None = None, returns: type[T]
) -> Step[T]: ...


def definition(
    name: str, *, params: Mapping[str, Any] | None = None, version: int | None = None, returns: Any = Any
) -> Step:
    """Return a step that runs the steps of a definition.

    Parameters
    ----------
    name:
        Name of the definition, which has no ``on_error``, ``on_cancel`` or timeout.
    params:
        Its parameters, which may refer to earlier steps; none by default.
    version:
        Its version; by default the latest when the workflow is started.
    returns:
        The type of its result, which the server does not know; by default any JSON value.

    Returns
    -------
    Step
        The step. Its result is that of the definition.

    Examples
    --------
    >>> from ojster import definition, result_of
    >>> definition("release", params={"tarball": result_of("build")}).wire
    {'definition': 'release', 'params': {'tarball': <Reference steps.build.result>}}
    """
    new: dict[str, Any] = {"definition": name, "params": dict(params or {})}
    return Step(new if version is None else new | {"definition_version": version}, converter_to(returns))


def gate(id: str | None = None, *, timeout: Seconds | None = None, display_name: str | None = None) -> Step:
    """Return a gate: a step that waits for an approval.

    Parameters
    ----------
    id:
        Name by which other steps refer to it; none by default.
    timeout:
        Longest wait for the approval, in seconds or as a ``timedelta``. Then the gate fails with the code
        ``wait_timeout``. ``None``, the default: no limit.
    display_name:
        Label for display; none by default.

    Returns
    -------
    Step
        The gate. ``Run.approve`` and ``Run.reject`` end its wait.

    Examples
    --------
    >>> from ojster import gate
    >>> gate("review").wire
    {'type': 'gate', 'id': 'review'}
    """
    limit = {} if timeout is None else {"timeout_ms": to_millis(timeout)}
    return Step({"type": "gate"} | limit).set(id=id, display_name=display_name)


@checks_options
def code(
    body: str | Callable[..., Any],
    *args: Any,
    modules: Sequence[str] | None = None,
    timeout: Seconds | None = None,
    attempts: int | None = None,
    queue: str | None = None,
) -> Step:
    """Return a step that carries its code. Workers that are configured to run code run it in a sandbox.

    Parameters
    ----------
    body:
        Python source with a function ``body(job, …)``, or a function; then its source is used. Nothing else of its
        module is included: the function must contain its imports. Annotations are ignored.
    args:
        Arguments after the job; they may contain references.
    modules:
        Modules that the code may import, among those that the worker allows; ``None``, the default: all of those.
    timeout:
        Timeout, in seconds or as a ``timedelta``; then the code is killed. ``None``, the default: the server decides.
    attempts:
        Maximum number of attempts; ``None``, the default: the server decides.
    queue:
        Queue of the job; ``None``, the default: the server decides.

    Returns
    -------
    Step
        The step.

    Raises
    ------
    OSError
        The source of the function is not available.
    TypeError
        The function cannot be sent as source, such as a lambda or a decorated function, or does not take the arguments.

    Examples
    --------
    >>> from ojster import code, result_of
    >>> step = code("def body(job, n): return n + 1", result_of("count"), timeout=10)
    >>> step.wire["args"], step.wire["options"]
    ([<Reference steps.count.result>], {'timeout_ms': 10000})
    """
    if not isinstance(body, str):
        inspect.signature(body).bind(None, *args)  # raises TypeError
        body = source_of(body)
    options: dict[str, Any] = {
        "timeout_ms": None if timeout is None else to_millis(timeout),
        "retry": None if attempts is None else {"max_attempts": attempts},
        "queue": queue,
    }
    wire: dict[str, Any] = {"body": body, "args": list(args)}
    if modules is not None:
        wire["modules"] = list(modules)
    if chosen := {name: value for name, value in options.items() if value is not None}:
        wire["options"] = chosen
    return Step(wire)


def wait(
    id: str | None = None,
    *,
    delay: Seconds | None = None,
    until: datetime | None = None,
    form: Mapping[str, Any] | None = None,
    timeout: Seconds | None = None,
    remind: Sequence[Seconds] = (),
    reactions: Mapping[str, Sequence[Mapping[str, Any]]] | None = None,
    display_name: str | None = None,
) -> Step:
    """Return a wait step: no worker runs it; it waits for a time, or for an answer, which becomes its result.

    Parameters
    ----------
    id:
        Name by which other steps refer to it; none by default.
    delay, until:
        Wait in seconds (or as a ``timedelta``) from when the step is reached, or end of the wait, a datetime with a
        time zone. The step then completes; with a form, it fails unless it was answered.
    form:
        JSON Schema of the answer, which ``run.resume(answer, step=…)`` gives.
    timeout:
        Longest wait for an answer, in seconds or as a ``timedelta``, without ``delay`` and ``until``. Then the step
        fails with the code ``wait_timeout``. ``None``, the default: no limit.
    remind:
        When to send reminders of a missing answer, in seconds from when the step is reached; none by default.
    reactions:
        Actions on events, such as reminders: ``{"on_reminder": [notify("ops")]}``. The functions of
        ``ojster.reactions`` make them.
    display_name:
        Label for display; none by default.

    Returns
    -------
    Step
        The wait step.

    Raises
    ------
    InvalidRequest
        ``until`` has no time zone.

    Examples
    --------
    >>> from ojster import wait
    >>> wait("cool-down", delay=60).wire
    {'type': 'wait', 'delay': 'PT60.0S', 'id': 'cool-down'}
    """
    members = {
        "delay": None if delay is None else to_duration(delay),
        "until": None if until is None else to_timestamp(until, "until"),
        "form": form,
        "timeout_ms": None if timeout is None else to_millis(timeout),
        "remind": [to_duration(reminder) for reminder in remind] or None,
        "event_reactions": reactions,
    }
    wire = {"type": "wait"} | {name: value for name, value in members.items() if value is not None}
    return Step(wire).set(id=id, display_name=display_name)


class GraphStep(Step):
    """A step that was added to a graph. Started, or put into a container, it stands for the graph.

    Parameters
    ----------
    wire:
        The step as JSON members, which the graph has, too.
    graph:
        The graph.
    """

    def __init__(self, wire: dict[str, Any], graph: Graph) -> None:
        self.wire, self.graph = wire, graph

    @property
    def whole(self) -> Step:
        """The graph that the step was added to."""
        return self.graph

    def add(self, id: str, step: Step, *, after: Sequence[str | Step] | str | Step = ()) -> GraphStep:
        """Add a further step to the graph, so that calls can be chained. See ``Graph.add``."""
        return self.graph.add(id, step, after=after)

    def _with(self, members: Mapping[str, Any]) -> Self:
        self.wire |= {name: value for name, value in members.items() if value is not None}
        return self


class Graph(Workflow):
    """Steps with dependencies, without cycles.

    Parameters
    ----------
    name:
        Name of the workflow, none by default; or the graph as JSON members.

    Examples
    --------
    >>> from ojster import App, Graph, result_of
    >>> app = App("sqlite:///:memory:")
    >>> @app.job("table.fetch")
    ... def fetch(table: str) -> list[int]: ...
    >>> @app.job("report.build")
    ... def report(orders: list[int]) -> None: ...
    >>> graph = Graph("nightly")
    >>> orders = graph.add("orders", fetch.s("orders"))
    >>> prices = graph.add("prices", fetch.s("prices"))
    >>> graph.add("report", report.s(result_of(orders)), after=[orders, prices])
    <GraphStep report>
    >>> app.close()
    """

    def __init__(self, name: str | Mapping[str, Any] | None = None) -> None:
        new: dict[str, Any] = {"type": "graph", "steps": []} | ({} if name is None else {"name": name})
        super().__init__(name if isinstance(name, Mapping) else new)

    def add(self, id: str, step: Step, *, after: Sequence[str | Step] | str | Step = ()) -> GraphStep:
        """Add a step. Calls can be chained: ``Graph().add("a", …).add("b", …, after="a")`` stands for the graph.

        Parameters
        ----------
        id:
            Name by which other steps refer to it.
        step:
            The step, which is copied.
        after:
            The predecessor steps, or their ids; none by default.

        Returns
        -------
        GraphStep
            The step in the graph, for ``after`` and references. ``set`` changes it.

        Raises
        ------
        ValueError
            A step in ``after`` has no id.
        """
        before = [_name_of(earlier) for earlier in ([after] if isinstance(after, str | Step) else after)]
        wire = step.whole.wire | {"id": id, "depends_on": before}
        self.wire["steps"] = [*self.wire["steps"], wire]
        return GraphStep(wire, self)
