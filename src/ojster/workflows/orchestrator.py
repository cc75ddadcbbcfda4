"""How does a program lay out a workflow while it runs? By a class whose methods add steps, as often as they like.

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

What a step is called says which it is: one that is there already is not added again. All that a method adds is added
together with its end, or, if it fails, not at all. (Seed 003: orchestrators; W18 and W19 are not there.)
"""

from __future__ import annotations

import asyncio
import inspect
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final

import msgspec

from ojster.collections.items import INTERNAL, Item, Lookup, Where, read_lookup
from ojster.context import JobContext, Outcome
from ojster.core.errors import InvalidRequest, OjsterError
from ojster.core.references import lookups_in, may_hold_references
from ojster.workflow import Step
from ojster.workflows.info import StepInfo, WorkflowInfo
from ojster.workflows.orchestrator_request import CONFIGURE_FAILED, FIRST, MEMBER, ORCHESTRATOR_FAILED, orchestrating

_encode: Final = msgspec.json.Encoder().encode
_PROMISED_BY: Final = "step "


class OrchestratorError(Outcome):
    """A job in which an orchestrator ran fails with this; ``code`` says whether it could run at all."""

    retryable = False

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class Child:
    """A step that an orchestrator has added, now or before.

    Attributes
    ----------
    id:
        What it is called.
    info:
        How it stands; ``None``: it is being added.
    """

    def __init__(self, id: str, info: StepInfo | None = None) -> None:
        self.id = id
        self.info = info

    def __repr__(self) -> str:
        return f"<Child {self.id} {self.state}>"

    @property
    def state(self) -> str:
        """Its state, as ``StepInfo`` has it, or ``new``."""
        return "new" if self.info is None else self.info.state

    @property
    def result(self) -> Any:
        """What it has brought about; ``None`` as long as it has not."""
        raw = None if self.info is None else self.info.result
        return msgspec.json.decode(raw) if isinstance(raw, msgspec.Raw) else None

    @property
    def error(self) -> Any:
        """Why it failed, or ``None``."""
        raw = None if self.info is None else self.info.error
        return msgspec.json.decode(raw) if isinstance(raw, msgspec.Raw) else None


class Orchestrator:
    """The base of classes that lay out workflows.

    A subclass may say by an annotation what its ``params`` are; they are checked before ``validate`` is called.
    ``populate`` and callbacks may be ``async``; plain ones run in a thread. Those of one workflow never run at the same
    time.

    Attributes
    ----------
    params:
        The parameters of the workflow: a dictionary, or what the annotation says.
    children:
        The steps that were there when the method began, by what they are called.
    items:
        What is in the collection of the workflow, and what is promised to be.
    job:
        The job in which it runs; not in ``validate``, and not in an orchestrator that another one lays out with it.
    """

    name: ClassVar[str] = ""
    params: Any

    def __init__(self, params: Any) -> None:
        self.given = params
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
        """Check the parameters when a workflow is started. To be overridden.

        Raises
        ------
        ValueError, InvalidRequest
            No workflow is to be started; the message says why.
        """

    def populate(self) -> Any:
        """Add steps. To be overridden; it may run several times, and must add the same then."""
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
        """Add a step, unless there is one of this name; return it.

        Parameters
        ----------
        id:
            What it is called: letters, digits, ``_`` and ``-``, beginning with a letter.
        step:
            A job (``build.s(…)``), or a whole workflow.
        after:
            Which steps of this orchestrator must have succeeded before.
        requires:
            Lookups, as ``found`` takes them: it comes after the steps that have promised what they find. Lookups among
            its arguments need not be said again.
        provides:
            What it promises to put into the workflow's collection, as ``Step.set`` has it.
        said:
            What else ``Step.set`` knows: ``allow_failure``, ``manual``, ``group``, ``display_name``, …

        Raises
        ------
        LookupError
            A single item that is required is neither there nor promised.
        ValueError
            Another step has this name; or what is required is promised outside of here.
        """
        wire = step.set(id=id, provides=list(provides) or None, **said).wire
        return self._add(id, wire, {_id_of(one): None for one in after} | self._required(requires))

    def callback(
        self,
        step: str,
        *,
        after: Iterable[Child | str] = (),
        requires: Sequence[str | Mapping[str, Any]] = (),
        **said: Any,
    ) -> Child:
        """Let ``callback_STEP`` (with ``_`` for ``-``) of this class run after others; parameters as of ``ensure``.

        Raises
        ------
        ValueError
            There is no such method.
        """
        self.method_of(step)
        wire = Step(orchestrating(self.name, step, self.given, self._queue)).set(id=step, step=step, **said).wire
        return self._add(step, wire, {_id_of(one): None for one in after} | self._required(requires))

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

        If it comes after nothing, it is laid out at once, so that others can require what its steps promise; else
        when those before it have succeeded.

        Raises
        ------
        ValueError, LookupError, InvalidRequest
            As of ``ensure``, ``validate`` and its ``populate``; or that is asynchronous, and it comes after nothing.
        """
        if id in self.children or id in self._new:
            return Child(id, self.children[id].info if id in self.children else None)
        inner = kind({} if params is None else params)
        inner.validate()
        before = {_id_of(one): None for one in after} | self._required(requires)
        steps: list[dict[str, Any]] = []
        if not before:
            inner.items, inner._path, inner._outer = self.items, (*self._path, id), self
            inner._queue = self._queue
            laid_out = inner.populate()
            if inspect.isawaitable(laid_out):
                if inspect.iscoroutine(laid_out):
                    laid_out.close()
                raise ValueError(f"{kind.__name__}.populate is async: let it come after a step, such as 'populate'.")
            steps = list(inner._new.values())
        first = {"id": FIRST, **orchestrating(kind.name, None, inner.given, self._queue)}
        wire = Step({"type": "graph", "steps": steps or [first]}).set(id=id, **said).wire
        return self._add(id, wire, before | inner._needed_outside)

    def find(self, lookup: str | Mapping[str, Any] | Sequence[Any]) -> list[Item]:
        """Return the items and promises of the workflow's collection that a lookup means."""
        internal = _internal(_encode(lookup))
        return [item for item in self.items if any(_means(one, item) for one in internal)]

    # Inside

    def _add(self, id: str, wire: dict[str, Any], before: dict[str, None]) -> Child:
        """Add a step that comes after others; one that is there already must be of the same type."""
        if id == FIRST:
            raise ValueError(f"{FIRST!r} is what the step is called that lays out the workflow.")
        if id in self.children:
            known = self.children[id]
            if known.info is not None and "fallback" not in wire and wire.get("type") != known.info.type:
                raise ValueError(f"There is a step {id!r} of the type {known.info.type!r}; call this one otherwise.")
            return known
        for raw in lookups_in(_encode(wire)):
            before |= dict.fromkeys(self._promisers(raw))
        before.pop(id, None)  # what is inside of it may promise what others inside look up
        if self._own is not None and not before:
            before[self._own] = None
        if before:
            wire = wire | {"depends_on": list(before)}
        if _encode(self._new.setdefault(id, wire)) != _encode(wire):
            raise ValueError(f"There are two different steps {id!r}.")
        return Child(id)

    def _required(self, requires: Sequence[str | Mapping[str, Any]]) -> dict[str, None]:
        """The steps that have promised what lookups find, or promise it now."""
        found: dict[str, None] = {}
        for lookup in requires:
            raw = _encode(lookup)
            found |= dict.fromkeys([*self._promisers(raw), *self._new_promisers(raw)])
            outside = list(self._outer._new_promisers(raw)) if self._outer is not None else []
            self._needed_outside |= dict.fromkeys(outside)
            for one in _internal(raw):
                is_there = any(_means(one, item) for item in self.items) or found or outside
                if one.single and not is_there:
                    raise LookupError(f"The workflow's collection has no item {one.name!r}, and nobody promises it.")
        return found

    def _new_promisers(self, raw: bytes | msgspec.Raw) -> Iterator[str]:
        """The steps that are being added and promise what a lookup finds."""
        for id, wire in self._new.items():
            promises = [(str(name), category) for name, category in _promises_in(wire)]
            if any(one.may_match(name, category) for one in _internal(raw) for name, category in promises):
                yield id

    def _promisers(self, raw: bytes | msgspec.Raw) -> Iterator[str]:
        """The steps of this orchestrator that have promised before what a lookup finds."""
        for item in self.items:
            if item.kind != "promise" or not any(_means(one, item) for one in _internal(raw)):
                continue
            place = tuple((item.created_by or "").removeprefix(_PROMISED_BY).split("."))
            if place[: len(self._path)] == self._path and len(place) > len(self._path):
                yield place[len(self._path)]
            elif self._outer is not None:
                self._needed_outside |= dict.fromkeys(self._outer._promisers(raw))
            else:
                raise ValueError(
                    f"What {'.'.join(self._path)!r} requires, {item.name!r}, is promised by the step "
                    f"{'.'.join(place)!r} outside of it: let the whole come after that."
                )

    def method_of(self, step: str) -> Callable[[], Any]:
        """Return the method of a callback.

        Raises
        ------
        ValueError
            There is none.
        """
        method = getattr(self, f"callback_{step.replace('-', '_')}", None)
        if not callable(method):
            raise ValueError(f"{type(self).__name__} has no callback_{step.replace('-', '_')}.")
        return typing.cast("Callable[[], Any]", method)

    def see(self, job: JobContext, place: str, info: WorkflowInfo, items: list[Item]) -> None:
        """Let it know how the workflow stands in which it runs; ``place`` is that of its job."""
        *path, self._own = place.split(".")
        self._path = tuple(path)
        self.job, self.items, self._queue = job, items, job.job.queue
        for step in info.walk():
            *container, name = step.path.split(".")
            if tuple(container) == self._path:
                self.children[name] = Child(name, step)

    @property
    def added(self) -> list[Step]:
        """The steps that it has added, in order."""
        return [Step(wire) for wire in self._new.values()]


def _means(lookup: Lookup, item: Item) -> bool:
    return lookup.matches(item.name, item.category, None if item.kind == "promise" else item.data)


def _id_of(child: Child | str) -> str:
    return child.id if isinstance(child, Child) else child


def _internal(raw: bytes | msgspec.Raw) -> list[Lookup]:
    """What a lookup says of the workflow's own collection; one that is known only later says nothing."""
    if may_hold_references(raw):
        return []
    lookups, _ = read_lookup(raw)
    return [one for one in lookups if one.collection == INTERNAL]


def _promises_in(wire: Mapping[str, Any]) -> Iterator[tuple[Any, Any]]:
    """What a step promises, or those inside it: names and categories."""
    for one in wire.get("provides") or ():
        yield (one, None) if isinstance(one, str) else (one.get("name", ""), one.get("category"))
    for inner in [*wire.get("steps", ()), *wire.get("jobs", ())]:
        if isinstance(inner, Mapping):
            yield from _promises_in(inner)


class Orchestrators(dict[str, type[Orchestrator]]):
    """The orchestrators of an application, by name; ``run`` is the handler of their jobs."""

    def check(self, name: str, params: Any) -> None:
        """Check the parameters of a workflow that is to be started.

        Raises
        ------
        InvalidRequest
            There is no such orchestrator here, or it refuses them.
        """
        if name not in self:
            known = ", ".join(sorted(self)) or "none"
            raise InvalidRequest(f"There is no orchestrator {name!r:.80} here; there are: {known}.", field=MEMBER)
        try:
            self[name](params).validate()
        except (ValueError, LookupError, TypeError) as error:
            raise InvalidRequest(f"{name!r} refuses its parameters: {error}", field="params") from None

    async def run(self, job: JobContext, name: str, step: str | None, params: Any) -> None:
        """Run an orchestrator, in a job of the workflow that it lays out; what it adds goes with the job's end.

        Raises
        ------
        OrchestratorError
            It could not be run, or failed.
        """
        shown = msgspec.json.decode(job.job.envelope, type=_Membership)
        if shown.workflow_id is None or shown.workflow_step is None:
            raise OrchestratorError(CONFIGURE_FAILED, "An orchestrator runs only in the workflow that it lays out.")
        try:
            self.check(name, params)
            orchestrator = self[name](params)
            method = orchestrator.populate if step is None else orchestrator.method_of(step)
        except (OjsterError, ValueError) as error:
            raise OrchestratorError(CONFIGURE_FAILED, str(error)) from error
        info = await job.client.show_workflow(shown.workflow_id)
        if not any(step.path == shown.workflow_step and step.job_id == job.id for step in info.walk()):
            raise OrchestratorError(CONFIGURE_FAILED, "An orchestrator runs only in the workflow that it lays out.")
        items = await job.client.items(Where(workflow_id=shown.workflow_id))
        orchestrator.see(job, shown.workflow_step, info, items)
        try:
            done = method() if inspect.iscoroutinefunction(method) else await asyncio.to_thread(method)
            if inspect.isawaitable(done):
                await done
        except Exception as error:
            raise OrchestratorError(ORCHESTRATOR_FAILED, f"Orchestrator failed: {error}") from error
        job.append(*orchestrator.added)


class _Membership(msgspec.Struct):
    workflow_id: str | None = None
    workflow_step: str | None = None
