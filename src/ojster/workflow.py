"""Workflows in Python: steps, and the containers that order them.

>>> order = chain(validate.s(42), group(charge.s(), reserve.s()), ship.s())
>>> order = validate.s(42) | (charge.s() & reserve.s()) | ship.s()      # the same
>>> run = await app.astart(order)
>>> await run.result()
"""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, Literal

import msgspec

from ojster.core.errors import InvalidRequest
from ojster.core.json_objects import Members
from ojster.core.values import Seconds, to_duration, to_expiration_delay, to_json, to_millis, to_timestamp
from ojster.workflows.drawing import draw
from ojster.workflows.plan_rules import CONTAINERS
from ojster.workflows.preview import preview

Rule = Literal["succeeded", "finished", "failed"]


DrawingFormat = Literal["mermaid", "svg"]


_encode: Final = msgspec.json.Encoder().encode


class Reference(dict[str, Any]):
    """A placeholder in the arguments of a step, for a value that is known only when the step starts.

    ``reference["member"]`` and ``reference[0]`` refer to a part of the value.
    """

    def __init__(self, text: str) -> None:
        super().__init__({"$ref": text})
        self._text = text

    def __getitem__(self, part: str | int) -> Reference:
        return Reference(f"{self._text}.{part}")

    def __repr__(self) -> str:
        return f"<Reference {self._text}>"

    def __format__(self, specification: str) -> str:
        raise TypeError(f"The value of {self._text} is unknown until its step starts. Pass it as an argument.")


def result_of(step: str | int | Step) -> Any:
    """Return a reference to the result of a step: given by its id, by its index in a chain, or as a step with an id."""
    return Reference(f"steps.{_name_of(step)}.result")


def error_of(step: str | int | Step) -> Any:
    """Return a reference to the error of a step; the error is ``None`` if the step succeeded."""
    return Reference(f"steps.{_name_of(step)}.error")


def param(name: str) -> Any:
    """Return a reference to a parameter of the workflow."""
    return Reference(f"params.{name}")


def found(lookup: str | Mapping[str, Any] | Sequence[Any]) -> Any:
    """Return a reference to what a lookup finds in a collection when the step starts.

    Steps that promise a matching item are predecessors of the step.

    Parameters
    ----------
    lookup:
        ``"internal/build-1"``: an item that must exist, as an object with ``name``, ``category`` and ``data``;
        ``{"collection": "internal", "name_startswith": "build-"}`` (also ``name_endswith``, ``name_contains``,
        ``category``, and ``data`` with members that it must have): a list of items, the oldest first; or a list of
        both, with the items joined into one list.
    """
    return {"$lookup": lookup}


def element(name: str = "item") -> Any:
    """Return a reference to the current element of a map. ``name`` is the name that the map gives it."""
    return Reference(name)


INDEX: Final[Any] = Reference("index")
"""A reference to the index, from 0, of the current element of a map."""


def _name_of(step: str | int | Step) -> str:
    name = step.wire.get("id") if isinstance(step, Step) else step
    if name is None:
        raise ValueError("Only a step with an id can be referred to: step.set(id='…').")
    return str(name)


class Step:
    """A part of a workflow: a job, a gate, a wait step, or a nested workflow.

    ``a | b`` is a chain, ``a & b`` a group. ``wire`` is the step as JSON members.
    """

    def __init__(self, wire: Mapping[str, Any]) -> None:
        self.wire = dict(wire)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.wire.get('id') or self.wire.get('type')}>"

    def __or__(self, other: Step) -> Workflow:
        return chain(*_flat(self, "chain", "steps"), *_flat(other, "chain", "steps"))

    def __and__(self, other: Step) -> Workflow:
        return group(*_flat(self, "group", "jobs"), *_flat(other, "group", "jobs"))

    def set(
        self,
        *,
        id: str | None = None,
        when: Rule | None = None,
        if_: str | None = None,
        allow_failure: bool | None = None,
        manual: bool | None = None,
        fallback: Step | None = None,
        compensate: Step | None = None,
        display_name: str | None = None,
        step: str | None = None,
        group: str | None = None,
        priority_adjustment: int | None = None,
        options: Mapping[str, Any] | None = None,
        provides: Sequence[str | Mapping[str, Any]] | None = None,
    ) -> Step:
        """Return a copy of this step with additional members.

        Parameters
        ----------
        id:
            The name by which other steps refer to it.
        when:
            When it starts after its predecessors have ended: if all ``succeeded``, always (``finished``), or if one
            ``failed``.
        if_:
            A condition in the Common Expression Language, such as ``steps.check.result.total > 100``. If it is false,
            the step is skipped.
        allow_failure:
            Whether successor steps continue as if it had succeeded, however it ends.
        manual:
            Whether it needs an approval before it starts.
        fallback:
            The step that runs instead if this one does not succeed.
        compensate:
            The step that undoes this one if the workflow does not succeed.
        display_name, step, group:
            For display: a label, a stage, and a group.
        priority_adjustment:
            Difference to the priority that it inherits.
        options:
            For a container: options that its jobs inherit, such as ``{"queue": "reports"}``. Set those of a job with
            ``job.using(…)``.
        provides:
            For a job: names of items that it puts into the workflow's collection when it has succeeded, with its result
            as their data; or objects with ``name``, ``category`` and ``data``, in which references lead to the job, and
            ``artifact``: which of its artifacts the item is, such as ``{"category": "tarball"}``.
            Steps that look them up (``found``) are successors of this step.
        """
        if options is not None and self.wire.get("type") not in CONTAINERS:
            raise TypeError("Only a container has 'options' that jobs inherit. For a job, use job.using(…).s(…).")
        given: dict[str, Any] = {
            "id": id,
            "when": when,
            "if": if_,
            "allow_failure": allow_failure,
            "manual": manual,
            "fallback": fallback and fallback.wire,
            "compensate": compensate and compensate.wire,
            "display_name": display_name,
            "step": step,
            "group": group,
            "priority_adjustment": priority_adjustment,
            "options": options,
            "provides": provides,
        }
        return type(self)(self.wire | {name: value for name, value in given.items() if value is not None})


class Workflow(Step):
    """A workflow that can be started, or nested as a step of another."""

    def draw(self, format: DrawingFormat = "mermaid") -> str:
        """Return a diagram of the workflow: the text of a Mermaid diagram, or an SVG document."""
        return draw(preview(self.wire), format)

    def request(
        self,
        *,
        name: str | None = None,
        params: Mapping[str, Any] | None = None,
        metadata: Mapping[str, Any] | None = None,
        options: Mapping[str, Any] | None = None,
        priority: int | None = None,
        timeout: Seconds | None = None,
        scheduled_at: datetime | None = None,
        delay: Seconds | None = None,
        expires_in: Seconds | None = None,
        on_error: Step | None = None,
        on_cancel: Step | None = None,
        on_lost_worker: Literal["retry", "cancel"] | None = None,
        properties: Mapping[str, Any] | None = None,
        expiration_delay: Seconds | Literal["never"] | None = None,
    ) -> Members:
        """Return the request that creates the workflow. See ``App.start``."""
        if timeout is not None and to_millis(timeout) == 0:
            raise InvalidRequest(f"The timeout must be positive, not {timeout}.", field="timeout")
        wire = dict(self.wire)
        given: dict[str, Any] = {
            "name": name,
            "params": params,
            "metadata": metadata,
            "options": options,
            "priority": priority,
            "timeout_ms": None if timeout is None else to_millis(timeout),
            "on_error": on_error and on_error.wire,
            "on_cancel": on_cancel and on_cancel.wire,
            "on_lost_worker": on_lost_worker,
            "properties": properties,
        }
        return _members(wire | given | _times(scheduled_at, delay, expires_in, expiration_delay))


def start_request(
    definition: str,
    *,
    version: int | None = None,
    params: Mapping[str, Any] | None = None,
    target: str | None = None,
    locks: str | None = None,
    properties: Mapping[str, Any] | None = None,
    name: str | None = None,
    metadata: Mapping[str, Any] | None = None,
    priority: int | None = None,
    scheduled_at: datetime | None = None,
    delay: Seconds | None = None,
    expires_in: Seconds | None = None,
    expiration_delay: Seconds | Literal["never"] | None = None,
) -> Members:
    """Return the request that starts a workflow from a definition. See ``App.start``."""
    given: dict[str, Any] = {
        "definition": definition,
        "definition_version": version,
        "params": params,
        "target": target,
        "locks": locks,
        "properties": properties,
        "name": name,
        "metadata": metadata,
        "priority": priority,
    }
    return _members(given | _times(scheduled_at, delay, expires_in, expiration_delay))


def _times(
    scheduled_at: datetime | None,
    delay: Seconds | None,
    expires_in: Seconds | None,
    expiration_delay: Seconds | Literal["never"] | None,
) -> dict[str, Any]:
    """Return the members for the start, the latest start, and the retention time of a workflow."""
    start = None if scheduled_at is None else to_timestamp(scheduled_at, "scheduled_at")
    if delay is not None:
        start = "+" + to_duration(delay)
    return {
        "scheduled_at": start,
        "expires_at": None if expires_in is None else "+" + to_duration(expires_in),
        "expiration_delay": None if expiration_delay is None else to_expiration_delay(expiration_delay),
    }


def _members(given: Mapping[str, Any]) -> Members:
    """Return the given values, except ``None``, as members of a request."""
    return {name: msgspec.Raw(to_json(value)) for name, value in given.items() if value is not None}


def chain(*steps: Step | Iterable[Step], name: str | None = None) -> Workflow:
    """Return a chain: steps run one after another, each with the results of all before it. Iterables are unpacked."""
    return _container("chain", "steps", _unpacked(steps), name)


def group(*jobs: Step | Iterable[Step], name: str | None = None) -> Workflow:
    """Return a group: steps run at the same time. Iterables of steps are unpacked."""
    return _container("group", "jobs", _unpacked(jobs), name)


def batch(
    *jobs: Step | Iterable[Step],
    on_complete: Step | None = None,
    on_success: Step | None = None,
    on_failure: Step | None = None,
    name: str | None = None,
) -> Workflow:
    """Return a batch: steps run at the same time, then callbacks.

    ``on_complete`` always runs, ``on_success`` if all steps succeeded, ``on_failure`` if one did not.
    """
    made = _container("batch", "jobs", _unpacked(jobs), name)
    callbacks = {"on_complete": on_complete, "on_success": on_success, "on_failure": on_failure}
    made.wire["callbacks"] = {name: step.wire for name, step in callbacks.items() if step is not None}
    return made


def saga(
    *steps: Step | Iterable[Step],
    failure_policy: Literal["compensate", "retry", "skip"] = "compensate",
    name: str | None = None,
) -> Workflow:
    """Return a saga: a chain in which, if a step fails, completed steps are undone in reverse order.

    ``step.set(compensate=…)`` gives the step that undoes another.
    """
    made = _container("saga", "steps", _unpacked(steps), name)
    made.wire["failure_policy"] = failure_policy
    return made


def each(over: Sequence[Any] | Reference, do: Step, *, element: str = "item", name: str | None = None) -> Workflow:
    """Return a map: the same step for each element of a list, which may be known only when the map starts."""
    wire = {"type": "map", "over": over if isinstance(over, Reference) else list(over), "as": element, "do": do.wire}
    return Workflow(wire if name is None else wire | {"name": name})


def gate(id: str | None = None, *, display_name: str | None = None) -> Step:
    """Return a gate: a step that waits for an approval."""
    return Step({"type": "gate"}).set(id=id, display_name=display_name)


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
        module is included: the function must contain its imports.
    args:
        Arguments after the job; they may contain references.
    modules:
        Modules that the code may import, among those that the worker allows; ``None``: all of those.
    timeout:
        Timeout, in seconds; then the code is killed.
    attempts:
        Maximum number of attempts.
    queue:
        Queue of the job.
    """
    if not isinstance(body, str):
        source = textwrap.dedent(inspect.getsource(body))
        call = f"\n\ndef body(job, *args):\n    return {body.__name__}(job, *args)\n"
        body = source if body.__name__ == "body" else source + call
    options: dict[str, Any] = {
        "timeout_ms": None if timeout is None else to_millis(timeout),
        "retry": None if attempts is None else {"max_attempts": attempts},
        "queue": queue,
    }
    wire: dict[str, Any] = {"body": body, "args": list(args)}
    if modules is not None:
        wire["modules"] = list(modules)
    if given := {name: value for name, value in options.items() if value is not None}:
        wire["options"] = given
    return Step(wire)


def wait(
    id: str | None = None,
    *,
    delay: Seconds | None = None,
    until: datetime | None = None,
    form: Mapping[str, Any] | None = None,
    remind: Sequence[Seconds] = (),
    reactions: Mapping[str, Sequence[Mapping[str, Any]]] | None = None,
    display_name: str | None = None,
) -> Step:
    """Return a wait step: no worker runs it; it waits for a time, or for an answer, which becomes its result.

    Parameters
    ----------
    delay, until:
        Wait in seconds from when the step is reached, or end of the wait. The step then completes; with a form, it
        fails unless it was answered.
    form:
        JSON Schema of the answer, which ``run.resume(answer, step=…)`` gives.
    remind:
        When to send reminders of a missing answer, in seconds from when the step is reached.
    reactions:
        Actions on events, such as reminders: ``{"on_reminder": [notify("ops")]}``.
    """
    given = {
        "delay": None if delay is None else to_duration(delay),
        "until": None if until is None else to_timestamp(until, "until"),
        "form": form,
        "remind": [to_duration(one) for one in remind] or None,
        "event_reactions": reactions,
    }
    wire = {"type": "wait"} | {name: value for name, value in given.items() if value is not None}
    return Step(wire).set(id=id, display_name=display_name)


class Graph(Workflow):
    """Steps with dependencies, without cycles.

    >>> graph = Graph("nightly")
    >>> orders = graph.add("orders", fetch.s("orders"))
    >>> prices = graph.add("prices", fetch.s("prices"))
    >>> graph.add("report", report.s(result_of(orders)), after=[orders, prices])
    """

    def __init__(self, name: str | Mapping[str, Any] | None = None) -> None:
        if isinstance(name, Mapping):
            super().__init__(name)
        else:
            super().__init__({"type": "graph", "steps": []} | ({} if name is None else {"name": name}))

    def add(self, id: str, step: Step, *, after: Sequence[str | Step] | str | Step = ()) -> Step:
        """Add a step, and return it as it is stored in the graph.

        Parameters
        ----------
        after:
            The predecessor steps, or their ids.
        """
        before = [after] if isinstance(after, str | Step) else list(after)
        added = step.set(id=id)
        added.wire["depends_on"] = [_name_of(one) for one in before]
        self.wire["steps"] = [*self.wire["steps"], added.wire]
        return added


def _container(type: str, noun: str, steps: Iterable[Step], name: str | None) -> Workflow:
    wire: dict[str, Any] = {"type": type, noun: [step.wire for step in steps]}
    return Workflow(wire if name is None else wire | {"name": name})


def _unpacked(steps: Iterable[Step | Iterable[Step]]) -> list[Step]:
    found: list[Step] = []
    for step in steps:
        found += [step] if isinstance(step, Step) or not isinstance(step, Iterable) else step
    for one in found:
        if not isinstance(one, Step):
            raise TypeError(f"{one!r} is not a step. Create a step of a job with job.s(…).")
    return found


def _flat(step: Step, type: str, noun: str) -> list[Step]:
    """Return the steps of a plain chain or group, so that ``a | b | c`` is one container; otherwise the step itself."""
    if set(step.wire) == {"type", noun} and step.wire["type"] == type:
        return [Step(inner) for inner in step.wire[noun]]
    return [step]
