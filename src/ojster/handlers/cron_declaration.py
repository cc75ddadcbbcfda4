"""Cron jobs that an application declares: of job types, flows and workflows."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

import msgspec

from ojster.handlers.job_decorator import is_interactive
from ojster.handlers.job_type import JobType
from ojster.handlers.orchestrator import Orchestrator
from ojster.handlers.workflow_requests import Startable, workflow_request
from ojster.schedules.cron import Cron
from ojster.workflows.declaration import Step

J = TypeVar("J", bound=JobType[..., Any])

_OF_CRON: Final = ("name", "timezone", "overlap_policy", "description")
"""Options of the cron job itself."""

_encode: Final = msgspec.json.Encoder().encode


class CronDeclaration:
    """A cron job that is being declared, and the decorator of the job type or the flow that it starts.

    Parameters
    ----------
    crons:
        The cron jobs of the application, to which it is added.
    expression, args, options:
        What was passed to ``App.cron``.
    """

    def __init__(self, crons: list[Cron], expression: str, args: Sequence[Any], options: Mapping[str, Any]) -> None:
        self._crons = crons
        self._args = args
        self._own = {name: options[name] for name in _OF_CRON if options.get(name) is not None}
        self._own["expression"] = expression
        self._options = {name: value for name, value in options.items() if name not in _OF_CRON}
        self._definition: str | None = self._options.pop("definition", None)

    @property
    def is_of_workflow(self) -> bool:
        """Whether it starts a workflow that was passed, or a definition, and decorates nothing."""
        first = next(iter(self._args), None)
        is_orchestrator = isinstance(first, type) and issubclass(first, Orchestrator)
        return self._definition is not None or isinstance(first, Step) or is_orchestrator

    def workflow(self) -> Cron:
        """Declare a cron job that starts the workflow or the definition."""
        if len(self._args) != (self._definition is None):
            raise TypeError(
                f"app.cron starts one workflow or one definition, not {len(self._args)} workflows"
                f"{'' if self._definition is None else ' beside a definition'}. Declare a cron job for each."
            )
        return self._declare_workflow(self._args[0] if self._definition is None else self._definition)

    def __call__(self, declared: J) -> J:
        """Schedule a declared job type, or a flow; return it."""
        if not isinstance(declared, JobType):
            raise TypeError(
                f"@app.cron schedules a job type, and {getattr(declared, '__qualname__', declared)!r} is none. "
                "Write @app.cron above @app.job, which makes the job type."
            )
        try:
            flow = declared.s(*self._args) if declared.is_flow else None
            template = b"" if flow is not None else _encode(declared.request(self._args, {}))
        except TypeError as error:
            message = f"{error} The arguments of its jobs follow the expression: @app.cron('…', argument)."
            raise TypeError(message) from None
        if flow is not None:
            self._declare_workflow(flow)
            return declared
        if self._options:
            raise TypeError(f"{min(self._options)!r} is an option of workflows. Set those of jobs in @app.job(…).")
        self._add(declared.type, template=template)
        return declared

    def _declare_workflow(self, startable: Startable) -> Cron:
        request = workflow_request(startable, self._options)
        if isinstance(startable, Step) and startable.wire.get("type") == "flow":  # as if the flow is started
            request.setdefault("name", msgspec.Raw(_encode(startable.wire["job"]["type"])))
        return self._add(_name_of(startable), workflow=_encode(request))

    def _add(self, otherwise: str | None, **starts: bytes) -> Cron:
        if "name" not in self._own and not otherwise:
            raise TypeError("The cron job has no name. Add one: app.cron('…', chain(…), name='nightly').")
        name = (otherwise or "").replace("_", "-")
        cron = Cron(**({"name": name} | self._own | starts))
        _ = cron.schedule
        if is_interactive():  # the cell of a notebook runs again
            self._crons[:] = [other for other in self._crons if other.name != cron.name]
        check_free_cron({cron.name}, self._crons)
        self._crons.append(cron)
        return cron


def check_free_cron(names: Collection[str], crons: Iterable[Cron]) -> None:
    """Check that no cron job has one of these names: workers would register one, and the other would never fire.

    Raises
    ------
    ValueError
        One has.
    """
    if taken := {cron.name for cron in crons}.intersection(names):
        raise ValueError(
            f"The cron job {min(taken)!r} is already declared. Give one of them a name of its own: name='…'."
        )


def _name_of(startable: Startable) -> str | None:
    """Return the name of what is started, if it has one."""
    if isinstance(startable, str):
        return startable
    if isinstance(startable, type):
        return startable.name
    wire = startable.whole.wire
    name: str | None = wire["job"]["type"] if wire.get("type") == "flow" else wire.get("name")
    return name
