"""Orchestrators: classes that lay out a workflow while it runs. Their methods add steps.

>>> @app.orchestrator("release")
... class Release(Orchestrator):
...     params: ReleaseParams
...
...     def populate(self) -> None:
...         for arch in self.params.archs:
...             self.ensure(f"build-{arch}", build.s(arch), provides=[f"build-{arch}"])
...         check = self.ensure("check", check_all.s(found({"collection": "internal", "name_startswith": "build-"})))
...         self.callback("judge", after=[check])
...
...     def callback_judge(self) -> None:
...         if not self.children["check"].result["good"]:
...             self.ensure("tell", tell.s())
>>> run = app.start(Release, params={"archs": ["amd64", "arm64"]})

A step is identified by its name: a step that exists already is not added again. The steps that a method adds are added
together when it ends, or not at all if it fails.
"""

from __future__ import annotations

import asyncio
import inspect
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final

import msgspec

from ojster.collections.items import INTERNAL, Item, Lookup, Where, read_lookup
from ojster.core.errors import InvalidRequest, OjsterError
from ojster.core.job import membership_of
from ojster.core.references import lookups_in, may_hold_references
from ojster.handlers.child import Child, OrchestratorError
from ojster.handlers.context import JobContext
from ojster.handlers.job_decorator import is_defined_again
from ojster.handlers.steps_around import steps_around
from ojster.workflows.declaration import Step
from ojster.workflows.orchestrator_request import (
    CONFIGURE_FAILED,
    ORCHESTRATOR_FAILED,
    ORCHESTRATOR_MEMBER,
    POPULATE_STEP,
    orchestrating,
)
from ojster.workflows.read.info import StepInfo

_encode: Final = msgspec.json.Encoder().encode

_PROMISED_BY: Final = "step "


class Orchestrator:
    """The base of classes that lay out workflows.

    Where what follows depends on results, a flow (``app.flow``) is simpler: a function with loops and conditions.
    A subclass may annotate the type of ``params``; they are then checked before ``validate`` is called. ``populate``
    and callbacks may be ``async``; others run in a thread. Those of one workflow never run at the same time.

    Parameters
    ----------
    params:
        The parameters of the workflow, a JSON value.

    Attributes
    ----------
    params:
        The parameters of the workflow: a dictionary, or the annotated type.
    children:
        The steps that existed when the method began, by name.
    items:
        The items in the collection of the workflow, and its promises.
    job:
        The job that runs the orchestrator; ``None`` in ``validate``, and if another orchestrator lays this one out.

    Raises
    ------
    InvalidRequest
        The parameters do not have the annotated type.

    Examples
    --------
    >>> from ojster import App, Orchestrator
    >>> app = App("sqlite:///:memory:")
    >>> @app.job("package.build")
    ... def build(arch: str) -> None: ...
    >>> @app.orchestrator("release")
    ... class Release(Orchestrator):
    ...     params: list[str]
    ...
    ...     def populate(self) -> None:
    ...         for arch in self.params:
    ...             self.ensure(f"build-{arch}", build.s(arch))
    >>> release = Release(["amd64", "arm64"])
    >>> release.populate()
    >>> release.added
    [<Step build-amd64>, <Step build-arm64>]
    >>> app.close()
    """

    name: ClassVar[str] = ""
    params: Any

    def __init__(self, params: Any) -> None:
        self._raw_params = params
        wanted = typing.get_type_hints(type(self)).get("params", Any)
        try:
            self.params = params if wanted is Any else msgspec.convert(params, wanted)
        except msgspec.ValidationError as error:
            raise InvalidRequest(f"The parameters of {self.name!r} are malformed: {error}.", field="params") from None
        self.children: dict[str, Child] = {}
        self.items: list[Item] = []
        self.job: JobContext | None = None
        self._path: tuple[str, ...] = ()
        self._own: str | None = None
        self._queue: str | None = None
        self._outer: Orchestrator | None = None
        self._needed_outside: dict[str, None] = {}
        self._new: dict[str, dict[str, Any]] = {}

    def validate(self) -> Any:
        """Check the parameters when a workflow is started. Override it if needed.

        Returns
        -------
        Any
            Ignored.

        Raises
        ------
        ValueError, InvalidRequest
            The workflow must not be started; the message says why.
        """

    def populate(self) -> Any:
        """Add steps. Override it; it may run several times, and must then add the same steps.

        Returns
        -------
        Any
            Ignored, except the coroutine of an ``async`` override.

        Raises
        ------
        NotImplementedError
            The subclass does not override it.
        """
        raise NotImplementedError(f"{type(self).__name__} has no populate().")

    def ensure(
        self,
        id: str,
        step: Step,
        *,
        after: Iterable[Child | str] = (),
        requires: Sequence[str | Mapping[str, Any]] = (),
        provides: Sequence[str | Mapping[str, Any]] = (),
        **said: Any,
    ) -> Child:
        """Add a step, unless there is one of this name.

        Parameters
        ----------
        id:
            Its name: letters, digits, ``_`` and ``-``, beginning with a letter.
        step:
            A job (``build.s(…)``), or a whole workflow.
        after:
            Steps of this orchestrator that must have succeeded before; none by default.
        requires:
            Lookups, as ``found`` takes them: the step comes after the steps that promised the items. Lookups in its
            arguments count without being repeated here.
        provides:
            Items that it promises to put into the workflow's collection, as in ``Step.set``.
        said:
            Other parameters of ``Step.set``: ``allow_failure``, ``manual``, ``group``, ``display_name``, …

        Returns
        -------
        Child
            The step, new or existing.

        Raises
        ------
        LookupError
            A required single item neither exists nor is promised.
        ValueError
            A different step has this name, or a requirement is promised outside of this orchestrator.
        """
        wire = step.whole.set(id=id, provides=list(provides) or None, **said).wire
        return self._add(id, wire, {_id_of(earlier): None for earlier in after} | self._required(requires))

    def callback(
        self,
        step: str,
        *,
        after: Iterable[Child | str] = (),
        requires: Sequence[str | Mapping[str, Any]] = (),
        **said: Any,
    ) -> Child:
        """Run ``callback_STEP`` (with ``_`` for ``-``) of this class after other steps.

        Parameters
        ----------
        step:
            Name of the step and of the method.
        after, requires, said:
            As in ``ensure``.

        Returns
        -------
        Child
            The step, new or existing.

        Raises
        ------
        ValueError
            There is no such method; or the callback has begun, and is to run again after what has not ended.
        LookupError
            As in ``ensure``.
        """
        self.method_of(step)
        wire = Step(orchestrating(self.name, step, self._raw_params, self._queue)).set(id=step, step=step, **said).wire
        before = {_id_of(earlier): None for earlier in after} | self._required(requires)
        ended = {id for id, child in self.children.items() if child.has_ended}
        is_own = step == self._own
        if (is_own or step in ended) and (not before.keys() <= ended or (is_own and not before)):
            raise ValueError(f"The callback {step!r} runs once, and has begun. For rounds, write a flow with a loop.")
        return self._add(step, wire, before)

    def workflow(
        self,
        id: str,
        kind: type[Orchestrator],
        params: Any = None,
        *,
        after: Iterable[Child | str] = (),
        requires: Sequence[str | Mapping[str, Any]] = (),
        **said: Any,
    ) -> Child:
        """Add a workflow of another orchestrator inside this one; it shares the collection.

        Without predecessors it is laid out at once, so that others can require what its steps promise; otherwise it is
        laid out after its predecessors have succeeded.

        Parameters
        ----------
        id:
            Its name, as in ``ensure``.
        kind:
            Class of the other orchestrator.
        params:
            Its parameters; by default an empty object.
        after, requires, said:
            As in ``ensure``.

        Returns
        -------
        Child
            The step, new or existing.

        Raises
        ------
        ValueError, LookupError, InvalidRequest
            As in ``ensure``, ``validate`` and its ``populate``; or ``populate`` is asynchronous and there are no
            predecessors.
        """
        if id in self.children or id in self._new:
            return Child(id, self.children[id].info if id in self.children else None)
        inner = kind({} if params is None else params)
        inner.validate()
        before = {_id_of(earlier): None for earlier in after} | self._required(requires)
        steps: list[dict[str, Any]] = []
        if not before:
            inner.items, inner._path, inner._outer = self.items, (*self._path, id), self
            inner._queue = self._queue
            laid_out = inner.populate()
            if inspect.isawaitable(laid_out):
                if inspect.iscoroutine(laid_out):
                    laid_out.close()
                raise ValueError(f"{kind.__name__}.populate is async: add it after a step, such as 'populate'.")
            steps = list(inner._new.values())
        first = {"id": POPULATE_STEP, **orchestrating(kind.name, None, inner._raw_params, self._queue)}
        wire = Step({"type": "graph", "steps": steps or [first]}).set(id=id, **said).wire
        return self._add(id, wire, before | inner._needed_outside)

    def find(self, lookup: str | Mapping[str, Any] | Sequence[Any]) -> list[Item]:
        """Return the items and promises in the workflow's collection that match a lookup.

        Parameters
        ----------
        lookup:
            A lookup, as ``found`` takes it.

        Returns
        -------
        list of Item
            The items and promises.
        """
        internal = _internal(_encode(lookup))
        return [item for item in self.items if any(_means(lookup, item) for lookup in internal)]

    # Internal

    def _add(self, id: str, wire: dict[str, Any], before: dict[str, None]) -> Child:
        """Add a step after others; an existing step of this name must have the same type."""
        if id == POPULATE_STEP:
            raise ValueError(f"The name {POPULATE_STEP!r} is reserved for the step that lays out the workflow.")
        if id in self.children:
            known = self.children[id]
            if known.info is not None and "fallback" not in wire and wire.get("type") != known.info.type:
                raise ValueError(f"There is a step {id!r} of the type {known.info.type!r}; call this one otherwise.")
            return known
        for raw in lookups_in(_encode(wire)):
            before |= dict.fromkeys(self._promisers(raw))
        before.pop(id, None)  # steps inside it may promise what others inside it look up
        if self._own is not None and not before:
            before[self._own] = None
        if before:
            wire = wire | {"depends_on": list(before)}
        if _encode(self._new.setdefault(id, wire)) != _encode(wire):
            raise ValueError(f"There are two different steps {id!r}.")
        return Child(id)

    def _required(self, requires: Sequence[str | Mapping[str, Any]]) -> dict[str, None]:
        """Return the steps that promised the items of the lookups, or promise them now."""
        promisers: dict[str, None] = {}
        for lookup in requires:
            raw = _encode(lookup)
            promisers |= dict.fromkeys([*self._promisers(raw), *self._new_promisers(raw)])
            outside = list(self._outer._new_promisers(raw)) if self._outer is not None else []
            self._needed_outside |= dict.fromkeys(outside)
            for wanted in _internal(raw):
                is_there = any(_means(wanted, item) for item in self.items) or promisers or outside
                if wanted.single and not is_there:
                    raise LookupError(
                        f"The workflow's collection has no item {wanted.name!r}, and no step promises it."
                    )
        return promisers

    def _new_promisers(self, raw: bytes | msgspec.Raw) -> Iterator[str]:
        """Yield the steps being added that promise an item of a lookup."""
        for id, wire in self._new.items():
            promises = [(str(name), category) for name, category in _promises_in(wire)]
            if any(lookup.may_match(name, category) for lookup in _internal(raw) for name, category in promises):
                yield id

    def _promisers(self, raw: bytes | msgspec.Raw) -> Iterator[str]:
        """Yield the existing steps of this orchestrator that promised an item of a lookup."""
        for item in self.items:
            if item.kind != "promise" or not any(_means(lookup, item) for lookup in _internal(raw)):
                continue
            place = tuple((item.created_by or "").removeprefix(_PROMISED_BY).split("."))
            if place[: len(self._path)] == self._path and len(place) > len(self._path):
                yield place[len(self._path)]
            elif self._outer is not None:
                self._needed_outside |= dict.fromkeys(self._outer._promisers(raw))
            else:
                raise ValueError(
                    f"{'.'.join(self._path)!r} requires {item.name!r}, which the step "
                    f"{'.'.join(place)!r} outside of it promises. Add the whole workflow after that step."
                )

    def method_of(self, step: str) -> Callable[[], Any]:
        """Return the method of a callback.

        Parameters
        ----------
        step:
            Name of the callback.

        Returns
        -------
        Callable
            The bound method.

        Raises
        ------
        ValueError
            There is no such method.
        """
        method = getattr(self, f"callback_{step.replace('-', '_')}", None)
        if not callable(method):
            raise ValueError(f"{type(self).__name__} has no callback_{step.replace('-', '_')}.")
        return typing.cast("Callable[[], Any]", method)

    def see(self, job: JobContext, place: str, steps: Iterable[StepInfo], items: list[Item]) -> None:
        """Set the status of the workflow in which it runs. The handler of its jobs calls it.

        Parameters
        ----------
        job:
            The job that runs the orchestrator.
        place:
            Path of the job's step.
        steps:
            The steps in the container of that step.
        items:
            The items and promises in the collection of the workflow.
        """
        *path, self._own = place.split(".")
        self._path = tuple(path)
        self.job, self.items, self._queue = job, items, job.job.queue
        self.children |= {(name := step.path.rpartition(".")[2]): Child(name, step) for step in steps}

    @property
    def added(self) -> list[Step]:
        """The steps that it added, in order."""
        return [Step(wire) for wire in self._new.values()]


def _means(lookup: Lookup, item: Item) -> bool:
    if item.kind == "promise":
        return lookup.may_match(item.name, item.category)
    return lookup.matches(item.name, item.category, item.data)


def _id_of(child: Child | str) -> str:
    return child.id if isinstance(child, Child) else child


def _internal(raw: bytes | msgspec.Raw) -> list[Lookup]:
    """Return the lookups in the workflow's own collection; none if they contain references."""
    if may_hold_references(raw):
        return []
    lookups, _ = read_lookup(raw)
    return [lookup for lookup in lookups if lookup.collection == INTERNAL]


def _promises_in(wire: Mapping[str, Any]) -> Iterator[tuple[Any, Any]]:
    """Yield the names and categories that a step, or the steps inside it, promise."""
    for promised in wire.get("provides") or ():
        yield (promised, None) if isinstance(promised, str) else (promised.get("name", ""), promised.get("category"))
    for inner in [*wire.get("steps", ()), *wire.get("jobs", ())]:
        if isinstance(inner, Mapping):
            yield from _promises_in(inner)


class Orchestrators(dict[str, type[Orchestrator]]):
    """The orchestrators of an application, by name; ``run`` is the handler of their jobs."""

    def check_free(self, name: str, kind: type[Orchestrator]) -> None:
        """Check that no other class is an orchestrator with this name.

        Raises
        ------
        ValueError
            There is one.
        """
        if name in self and not is_defined_again(self[name], kind):
            raise ValueError(f"The orchestrator {name!r} already exists: {self[name]!r}.")

    def check(self, name: str, params: Any) -> None:
        """Check the parameters of a workflow before it is started.

        Raises
        ------
        InvalidRequest
            The orchestrator is unknown, or rejects the parameters.
        """
        if name not in self:
            known = ", ".join(sorted(self)) or "none"
            raise InvalidRequest(f"Unknown orchestrator {name!r:.80}; known here: {known}.", field=ORCHESTRATOR_MEMBER)
        try:
            self[name](params).validate()
        except (ValueError, LookupError, TypeError) as error:
            raise InvalidRequest(f"{name!r} rejects the parameters: {error}", field="params") from None

    async def run(self, job: JobContext, name: str, step: str | None, params: Any) -> None:
        """Run an orchestrator in a job of the workflow that it lays out. The steps are added when the job completes.

        Raises
        ------
        OrchestratorError
            It could not run, or failed.
        """
        shown = membership_of(job.job.envelope)
        if shown.workflow_id is None or shown.workflow_step is None:
            raise OrchestratorError(CONFIGURE_FAILED, "An orchestrator runs only in the workflow that it lays out.")
        try:
            self.check(name, params)
            orchestrator = self[name](params)
            method = orchestrator.populate if step is None else orchestrator.method_of(step)
        except (OjsterError, ValueError) as error:
            raise OrchestratorError(CONFIGURE_FAILED, str(error)) from error
        steps = await steps_around(job, shown.workflow_id, shown.workflow_step)
        if not any(step.path == shown.workflow_step and step.job_id == job.id for step in steps):
            raise OrchestratorError(CONFIGURE_FAILED, "An orchestrator runs only in the workflow that it lays out.")
        items = await job.client.collections.items(Where(workflow_id=shown.workflow_id))
        orchestrator.see(job, shown.workflow_step, steps, items)
        try:
            done = method() if inspect.iscoroutinefunction(method) else await asyncio.to_thread(method)
            if inspect.isawaitable(done):
                await done
        except Exception as error:
            raise OrchestratorError(ORCHESTRATOR_FAILED, f"Orchestrator failed: {error}") from error
        job.append(*orchestrator.added)
