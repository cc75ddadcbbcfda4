"""Workflows in Python: steps, and the containers that order them.

>>> from ojster import chain, group
>>> order = chain(validate.s(42), group(charge.s(), reserve.s()), ship.s())
>>> order = validate.s(42) | (charge.s() & reserve.s()) | ship.s()      # the same
>>> run = await app.astart(order)
>>> await run.aresult()
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from datetime import datetime
from typing import Any, Generic, Literal, Self, TypeVar, overload

import msgspec

from ojster.core.errors import InvalidRequest
from ojster.core.json_objects import MAX_NESTING_DEPTH, Members
from ojster.core.values import (
    Seconds,
    refuse_both,
    to_duration,
    to_expiration_delay,
    to_json,
    to_millis,
    to_seconds,
    to_timestamp,
)
from ojster.workflows.declared_results import Convert, T_co, all_by
from ojster.workflows.plan.rules import CONTAINERS
from ojster.workflows.read.drawing import draw
from ojster.workflows.read.preview import preview

Rule = Literal["succeeded", "finished", "failed"]

DrawingFormat = Literal["mermaid", "svg"]


U = TypeVar("U")
V = TypeVar("V")
W = TypeVar("W")


class Step(Generic[T_co]):
    """A part of a workflow: a job, a gate, a wait step, or a nested workflow; ``Step[int]``: its result is an ``int``.

    ``a | b`` is a chain, ``a & b`` a group. ``JobType.s`` and the functions of this module create steps.

    Parameters
    ----------
    wire:
        The step as JSON members. The attribute of the same name is a copy.
    convert:
        Makes of its result, a JSON value, what the return annotation of its handler says; by default it stays.

    Examples
    --------
    >>> from ojster import gate
    >>> review, release = gate("review"), gate("release")
    >>> (review | release).wire
    {'type': 'chain', 'steps': [{'type': 'gate', 'id': 'review'}, {'type': 'gate', 'id': 'release'}]}
    >>> (review & release).wire["type"]
    'group'
    """

    def __init__(self, wire: Mapping[str, Any], convert: Convert | None = None) -> None:
        self.wire = dict(wire)
        self.convert = convert
        self._inside: Sequence[Step] = ()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.wire.get('id') or self.wire.get('type')}>"

    @property
    def whole(self) -> Step:
        """What the step stands for in a container, or when it is started: itself, or the graph that it was added to."""
        return self

    def __or__(self, other: Step[U]) -> Workflow[U]:
        return chain(*_flat(self, "chain", "steps"), *_flat(other, "chain", "steps"))

    def __and__(self, other: Step[U]) -> Workflow[list[T_co | U]]:
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
        compensate_when: Literal["completed", "started"] | None = None,
        display_name: str | None = None,
        step: str | None = None,
        group: str | None = None,
        visible: bool | None = None,
        priority_adjustment: int | None = None,
        options: Mapping[str, Any] | None = None,
        provides: Sequence[str | Mapping[str, Any]] | None = None,
    ) -> Self:
        """Return a copy of this step with additional members. ``None``, the default of all parameters, adds nothing.

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
            Whether successor steps continue as if it had succeeded when it fails, is cancelled or is rejected. It does
            not hide an earlier failure: a step that never runs because of one lets no successor start.
        manual:
            Whether it needs an approval before it starts.
        fallback:
            The step that runs instead if this one does not succeed.
        compensate:
            The step that undoes this one if a container around it does not succeed.
        compensate_when:
            When this step needs to be undone: once it has ``completed``, the default of the server; or once it has
            ``started``, also if it failed or was stopped, or its worker was lost. A reference to its result is then
            ``None`` in the compensation if there is none.
        display_name, step, group:
            For display: a label, a stage, and a group. Drawings have a frame around the steps of a group.
        visible:
            Whether it is shown in pages of steps and in drawings; by default it is.
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

        Returns
        -------
        Step
            The copy, of the same class.

        Raises
        ------
        TypeError
            ``options`` is given for a step that is not a container.
        """
        if options is not None and self.wire.get("type") not in CONTAINERS:
            raise TypeError("Only a container has 'options' that jobs inherit. For a job, use job.using(…).s(…).")
        return self._with(
            {
                "id": id,
                "when": when,
                "if": if_,
                "allow_failure": allow_failure,
                "manual": manual,
                "fallback": fallback and fallback.whole.wire,
                "compensate": compensate and compensate.whole.wire,
                "compensate_when": compensate_when,
                "display_name": display_name,
                "step": step,
                "group": group,
                "visible": visible,
                "priority_adjustment": priority_adjustment,
                "options": options,
                "provides": provides,
            }
        )

    def _with(self, members: Mapping[str, Any]) -> Self:
        changed = copy(self)
        changed.wire = self.wire | {name: value for name, value in members.items() if value is not None}
        if members.get("fallback") is not None:  # the result may be that of the other step
            changed.convert = None
        return changed


class Workflow(Step[T_co]):
    """A workflow that can be started, or nested as a step of another.

    ``chain``, ``group``, ``batch``, ``saga``, ``each`` and ``Graph`` create workflows.

    Parameters
    ----------
    wire, convert:
        See ``Step``.

    Examples
    --------
    >>> from ojster import chain, gate
    >>> workflow = chain(gate("review"), gate("release"))
    >>> print(workflow.draw())
    flowchart LR
      n0{{"· review"}}:::waiting
      n1{{"· release"}}:::waiting
      n0 --> n1
      classDef waiting fill:#eef1f5,stroke:#8492a6,color:#1c2430
    <BLANKLINE>
    """

    def draw(self, format: DrawingFormat = "mermaid") -> str:
        """Return a diagram of the workflow.

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
        on_error: Step | Sequence[Step] | None = None,
        on_cancel: Step | Sequence[Step] | None = None,
        on_lost_worker: Literal["retry", "cancel"] | None = None,
        properties: Mapping[str, Any] | None = None,
        expiration_delay: Seconds | Literal["never"] | None = None,
    ) -> Members:
        """Return the request that creates the workflow. ``App.start`` describes the parameters.

        Returns
        -------
        dict
            The members of the request, as JSON, by name.

        Raises
        ------
        InvalidRequest
            ``timeout`` is negative, or ``scheduled_at`` has no time zone.
        TypeError
            A value is not JSON-serializable.
        """
        if timeout is not None and to_seconds(timeout) < 0:
            raise InvalidRequest(f"The timeout must be positive, or 0 for none, not {timeout}.", field="timeout")
        wire = dict(self.wire)
        own_options: dict[str, Any] = {
            "name": name,
            "params": params,
            "metadata": metadata,
            "options": options,
            "priority": priority,
            "timeout_ms": None if timeout is None else to_millis(timeout),
            "on_error": _branch(on_error),
            "on_cancel": _branch(on_cancel),
            "on_lost_worker": on_lost_worker,
            "properties": properties,
        }
        own_options |= _times(scheduled_at, delay, expires_in, expiration_delay)
        return _members(wire | {name: value for name, value in own_options.items() if value is not None})


def _branch(steps: Step | Sequence[Step] | None) -> Any:
    """Return the JSON form of a branch: of one step, or of several that run one after the other."""
    if steps is None or isinstance(steps, Step):
        return steps and steps.whole.wire
    return [step.whole.wire for step in steps] or None


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
    options: dict[str, Any] = {
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
    return _members(options | _times(scheduled_at, delay, expires_in, expiration_delay))


def _times(
    scheduled_at: datetime | None,
    delay: Seconds | None,
    expires_in: Seconds | None,
    expiration_delay: Seconds | Literal["never"] | None,
) -> dict[str, Any]:
    """Return the members for the start, the latest start, and the retention time of a workflow."""
    refuse_both({"delay": delay, "scheduled_at": scheduled_at})
    start = None if scheduled_at is None else to_timestamp(scheduled_at, "scheduled_at")
    if delay is not None:
        start = "+" + to_duration(delay)
    return {
        "scheduled_at": start,
        "expires_at": None if expires_in is None else "+" + to_duration(expires_in),
        "expiration_delay": None if expiration_delay is None else to_expiration_delay(expiration_delay),
    }


def _members(members: Mapping[str, Any]) -> Members:
    """Return the given values, except ``None``, as members of a request."""
    return {
        name: msgspec.Raw(to_json(value, MAX_NESTING_DEPTH)) for name, value in members.items() if value is not None
    }


@overload
def chain(*steps: *tuple[*tuple[Step, ...], Step[U]], name: str | None = None) -> Workflow[U]: ...


@overload
def chain(*steps: Step | Iterable[Step], name: str | None = None) -> Workflow: ...


def chain(  # type: ignore[misc]  # mypy takes the unpacked tuple of the first signature for another argument
    *steps: Step | Iterable[Step], name: str | None = None
) -> Workflow:
    """Return a chain: steps run one after another, each with the results of all before it.

    Parameters
    ----------
    steps:
        The steps, in order. Iterables of steps are unpacked.
    name:
        Name of the workflow; none by default.

    Returns
    -------
    Workflow
        The chain. Its result is that of its last step.

    Raises
    ------
    TypeError
        An argument is not a step.

    Examples
    --------
    >>> from ojster import chain, gate
    >>> chain(gate("review"), gate("release"), name="publish").wire
    {'type': 'chain', 'steps': [{'type': 'gate', 'id': 'review'}, {'type': 'gate', 'id': 'release'}], 'name': 'publish'}
    """
    return container("chain", "steps", unpacked(steps), name)


@overload
def group(first: Step[U], second: Step[V], /, *, name: str | None = None) -> Workflow[list[U | V]]: ...


@overload
def group(
    first: Step[U], second: Step[V], third: Step[W], /, *, name: str | None = None
) -> Workflow[list[U | V | W]]: ...


@overload
def group(*jobs: Step[U] | Iterable[Step[U]], name: str | None = None) -> Workflow[list[U]]: ...


def group(*jobs: Step | Iterable[Step], name: str | None = None) -> Workflow[Any]:
    """Return a group: steps run at the same time.

    Parameters
    ----------
    jobs:
        The steps. Iterables of steps are unpacked.
    name:
        Name of the workflow; none by default.

    Returns
    -------
    Workflow
        The group. Its result is the list of theirs.

    Raises
    ------
    TypeError
        An argument is not a step.

    Examples
    --------
    >>> from ojster import gate, group
    >>> group(gate(name) for name in ("legal", "design")).wire
    {'type': 'group', 'jobs': [{'type': 'gate', 'id': 'legal'}, {'type': 'gate', 'id': 'design'}]}
    """
    return container("group", "jobs", unpacked(jobs), name)


def container(type: str, noun: str, steps: Iterable[Step], name: str | None) -> Workflow:
    """Return a container of a type, with its steps in the member that is called ``noun``."""
    inside = list(steps)
    wire: dict[str, Any] = {"type": type, noun: [step.wire for step in inside]}
    converts = [step.convert for step in inside]
    convert = all_by(converts) if noun == "jobs" else converts[-1] if converts else None
    made: Workflow = Workflow(wire if name is None else wire | {"name": name}, convert)
    made._inside = inside
    return made


def unpacked(steps: Iterable[Step | Iterable[Step]]) -> list[Step]:
    """Return the steps, with those in iterables in their place."""
    collected: list[Step] = []
    for step in steps:
        collected += [step] if isinstance(step, Step) or not isinstance(step, Iterable) else step
    for inner_step in collected:
        if not isinstance(inner_step, Step):
            raise TypeError(f"{inner_step!r} is not a step. Create a step of a job with job.s(…).")
    return [step.whole for step in collected]


def _flat(step: Step, type: str, noun: str) -> list[Step]:
    """Return the steps of a plain chain or group, so that ``a | b | c`` is one container; otherwise the step itself."""
    if set(step.wire) == {"type", noun} and step.wire["type"] == type:
        return list(step._inside) or [Step(inner) for inner in step.wire[noun]]
    return [step]
