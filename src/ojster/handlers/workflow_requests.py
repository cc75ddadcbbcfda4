"""Requests that start workflows, from what a program says: steps, a definition or an orchestrator, and options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from inspect import signature
from typing import Any, Final, Literal, TypedDict

import msgspec

from ojster.core.json_objects import Members
from ojster.core.values import Seconds, check_options
from ojster.handlers.job_options import Retry
from ojster.handlers.orchestrator import Orchestrator
from ojster.workflows.declaration import Step, Workflow, chain, start_request
from ojster.workflows.orchestrator_request import ORCHESTRATOR_MEMBER as ORCHESTRATOR

Startable = Step | str | type[Orchestrator]
"""Anything that can be started as a workflow: steps, the name of a definition, or an orchestrator class."""

_encode: Final = msgspec.json.Encoder().encode


class StartOptions(TypedDict, total=False):
    """The options of a workflow, as keyword arguments. See ``App.start``."""

    name: str | None
    params: Mapping[str, Any] | None
    metadata: Mapping[str, Any] | None
    options: Mapping[str, Any] | None
    priority: int | None
    timeout: Seconds | None
    scheduled_at: datetime | None
    delay: Seconds | None
    expires_in: Seconds | None
    on_error: Step | Sequence[Step] | None
    on_cancel: Step | Sequence[Step] | None
    on_lost_worker: Literal["retry", "cancel"] | None
    properties: Mapping[str, Any] | None
    expiration_delay: Seconds | Literal["never"] | None
    version: int | None
    target: str | None
    locks: str | None


class DefinitionOptions(TypedDict, total=False):
    """The options that a definition has for all its workflows, as keyword arguments. See ``App.define``."""

    options: Mapping[str, Any] | None
    timeout: Seconds | None
    on_error: Step | Sequence[Step] | None
    on_cancel: Step | Sequence[Step] | None
    on_lost_worker: Literal["retry", "cancel"] | None
    metadata: Mapping[str, Any] | None
    retry: Retry | Mapping[str, Any] | None
    params_schema: Mapping[str, Any] | None


OPTIONS_OF_STEPS: Final = tuple(signature(Workflow.request).parameters)[1:]
"""The options of a workflow that is started from steps."""

OPTIONS_OF_NAMES: Final = tuple(signature(start_request).parameters)[1:]
"""The options of a workflow that is started from a definition."""

OPTIONS_OF_DEFINITIONS: Final = (
    *("options", "timeout", "on_error", "on_cancel", "on_lost_worker", "metadata", "retry", "params_schema"),
)
"""The options that a definition has for all its workflows."""

_ONLY_NAMES: Final = dict.fromkeys(
    sorted({*OPTIONS_OF_NAMES, "retry", "params_schema"} - {*OPTIONS_OF_STEPS}),
    "Only workflows of a definition have it: create one with app.define(…), and start it by its name.",
)
_ONLY_DEFINITIONS: Final = dict.fromkeys(
    OPTIONS_OF_DEFINITIONS, "The definition sets it for all its workflows: pass it to app.define(…)."
)
ONLY_STARTS: Final = dict.fromkeys(
    sorted({*OPTIONS_OF_STEPS, *OPTIONS_OF_NAMES} - {*OPTIONS_OF_DEFINITIONS}),
    "Each workflow has its own: pass it to app.start(…).",
)
"""Why a definition does not have the options of single workflows."""


def workflow_request(workflow: Startable, options: Mapping[str, Any]) -> Members:
    """Return the request that starts a workflow from steps, a definition or an orchestrator.

    Raises
    ------
    TypeError
        An option does not exist.
    """
    if isinstance(workflow, str):
        check_options(options, OPTIONS_OF_NAMES, _ONLY_DEFINITIONS)
        return start_request(workflow, **options)
    check_options(options, OPTIONS_OF_STEPS, _ONLY_NAMES)
    if isinstance(workflow, type):
        return Workflow({}).request(**options) | {ORCHESTRATOR: msgspec.Raw(_encode(workflow.name))}
    return whole(workflow).request(**options)


def whole(step: Step) -> Workflow:
    """Return the workflow that is started for a step: a single one becomes a chain of one."""
    return step.whole if isinstance(step.whole, Workflow) else chain(step)
