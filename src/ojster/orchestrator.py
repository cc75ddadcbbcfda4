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

import inspect
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final

import msgspec

from ojster.job import JobContext, Outcome
from ojster.model.collection import INTERNAL, Item, Lookup, Where, read_lookup
from ojster.model.errors import InvalidRequest, OjsterError
from ojster.model.orchestrator import CONFIGURE_FAILED, FIRST, MEMBER, ORCHESTRATOR_FAILED, orchestrating
from ojster.model.workflow_info import StepInfo, WorkflowInfo
from ojster.workflow import Step

_encode: Final = msgspec.json.Encoder().encode
_PROMISED_BY: Final = "step "


class OrchestratorError(Outcome):
    """A job in which an orchestrator ran fails with this; ``code`` says whether it could run at all."""

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

    A subclass may say by an annotation what its ``params`` are; they are checked before ``validate`` is called. All its
    methods may be ``async``. Those of one workflow never run at the same time.

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
        return self._add(id, wire, after, requires)

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
        wire = Step(orchestrating(self.name, step, self.given)).set(id=step, step=step, **said).wire
        return self._add(step, wire, after, requires)

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
        """
        inner = kind({} if params is None else params)
        inner.validate()
        if id in self.children or id in self._new:
            return self._add(id, {}, (), ())
        steps: list[dict[str, Any]] = []
        if not after and not requires:
            inner.items = self.items
            laid_out = inner.populate()
            if inspect.isawaitable(laid_out):
                if inspect.iscoroutine(laid_out):
                    laid_out.close()
                raise ValueError(f"{kind.__name__}.populate is async: let it come after something, such as itself.")
            steps = list(inner._new.values())
        first = {"id": FIRST, **orchestrating(kind.name, None, inner.given)}
        wire = Step({"type": "graph", "steps": steps or [first]}).set(id=id, **said).wire
        return self._add(id, wire, after, requires)

    def find(self, lookup: str | Mapping[str, Any] | Sequence[Any]) -> list[Item]:
        """Return the items and promises of the workflow's collection that a lookup means."""
        lookups, _ = read_lookup(_encode(lookup))
        internal = [one for one in lookups if one.collection == INTERNAL]
        return [item for item in self.items if any(_means(one, item) for one in internal)]

    # Inside

    def _add(
        self,
        id: str,
        wire: dict[str, Any],
        after: Iterable[Child | str],
        requires: Sequence[str | Mapping[str, Any]],
    ) -> Child:
        before = {one.id if isinstance(one, Child) else one: None for one in after}
        for lookup in requires:
            self._need(lookup)
            before |= dict.fromkeys(self._promisers(lookup))
        if id in self.children:
            known = self.children[id]
            if known.info is not None and "fallback" not in wire and wire.get("type") not in (None, known.info.type):
                raise ValueError(f"There is a step {id!r} of the type {known.info.type!r}; call this one otherwise.")
            return known
        for lookup in _lookups_in(wire):
            before |= dict.fromkeys(self._promisers(lookup))
        if self._own is not None and not before:
            before[self._own] = None
        if before:
            wire = wire | {"depends_on": list(before)}
        if self._new.setdefault(id, wire) != wire:
            raise ValueError(f"There are two different steps {id!r}.")
        return Child(id)

    def _need(self, lookup: Any) -> None:
        lookups, _ = read_lookup(_encode(lookup))
        for one in lookups:
            promised = any(
                one.may_match(_name_of(provided), None)
                for wire in self._new.values()
                for provided in wire.get("provides", ())
            )
            if one.single and not promised and not any(_means(one, item) for item in self.items):
                raise LookupError(f"The workflow's collection has no item {one.name!r}, and nobody promises it.")

    def _promisers(self, lookup: Any) -> Iterator[str]:
        """The steps of this orchestrator that have promised before what a lookup finds."""
        for item in self.find(lookup):
            if item.kind != "promise":
                continue
            place = tuple((item.created_by or "").removeprefix(_PROMISED_BY).split("."))
            if place[: len(self._path)] != self._path or len(place) == len(self._path):
                raise ValueError(
                    f"What {'.'.join(self._path)!r} requires, {item.name!r}, is promised by the step "
                    f"{'.'.join(place)!r} outside of it: let the whole come after that."
                )
            yield place[len(self._path)]

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
        self.job, self.items = job, items
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


def _name_of(provided: str | Mapping[str, Any]) -> str:
    return provided if isinstance(provided, str) else str(provided.get("name", ""))


def _lookups_in(value: Any) -> Iterator[Any]:
    """The lookups of the workflow's own collection that stand somewhere in a step."""
    if isinstance(value, Mapping):
        if value.keys() == {"$lookup"}:
            yield value["$lookup"]
        for inner in value.values():
            yield from _lookups_in(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _lookups_in(inner)


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
        items = await job.client.items(Where(workflow_id=shown.workflow_id))
        orchestrator.see(job, shown.workflow_step, info, items)
        try:
            done = method()
            if inspect.isawaitable(done):
                await done
        except Exception as error:
            raise OrchestratorError(ORCHESTRATOR_FAILED, f"Orchestrator failed: {error}") from error
        job.append(*orchestrator.added)


class _Membership(msgspec.Struct):
    workflow_id: str | None = None
    workflow_step: str | None = None
