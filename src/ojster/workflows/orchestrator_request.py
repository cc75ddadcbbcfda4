"""Requests for workflows that an orchestrator lays out while they run. The first step runs the orchestrator.

The jobs of orchestrators have one type, and one queue per orchestrator. Those of one workflow never run at the same
time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from ojster.core.errors import InvalidRequest

ORCHESTRATE_TYPE: Final = "ojster.orchestrate"
"""Type of the jobs that run orchestrators."""

_QUEUE: Final = "orchestrators."
_ATTEMPTS: Final = 5
"""Maximum number of attempts of an orchestrator's job. It is retried only if its worker was lost."""

ORCHESTRATOR_MEMBER: Final = "orchestrator"
"""Member of a workflow request that names the orchestrator."""

POPULATE_STEP: Final = "populate"
"""Id of the step that lays out the workflow."""

CONFIGURE_FAILED: Final = "configure_failed"
"""Error code: the orchestrator could not be run, because it is unknown or its parameters are invalid."""

ORCHESTRATOR_FAILED: Final = "orchestrator_failed"
"""Error code: the orchestrator raised an exception."""

_encode: Final = msgspec.json.Encoder().encode


def queue_of(name: str) -> str:
    """Return the queue of an orchestrator's jobs. It has its own, since other workers may not know the orchestrator."""
    return _QUEUE + name


def orchestrating(name: str, step: str | None, params: Any, queue: str | None = None) -> dict[str, Any]:
    """Return the job that lets an orchestrator lay out a workflow or, with ``step``, run its callback.

    All of these jobs of a workflow use the queue of the first, so the worker that waits for the end of one gets the
    next.
    """
    return {
        "type": ORCHESTRATE_TYPE,
        "args": [name, step, params],
        "options": {"queue": queue or queue_of(name), "retry": {"max_attempts": _ATTEMPTS}},
    }


def expand(members: Mapping[str, msgspec.Raw]) -> tuple[dict[str, msgspec.Raw], str, Any]:
    """Return the request for a workflow that an orchestrator lays out, the orchestrator's name, and the parameters.

    Raises
    ------
    InvalidRequest
        The request also has steps, or the name is not a string.
    """
    rest = dict(members)
    try:
        name = msgspec.json.decode(rest.pop(ORCHESTRATOR_MEMBER), type=str)
    except msgspec.DecodeError:
        raise InvalidRequest(
            f"{ORCHESTRATOR_MEMBER!r} must be a string, the name of an orchestrator.", field=ORCHESTRATOR_MEMBER
        ) from None
    for wrong in ("steps", "jobs", "definition", "over", "do"):
        if wrong in rest:
            raise InvalidRequest(f"The orchestrator lays out the workflow; leave out {wrong!r}.", field=wrong)
    params = msgspec.json.decode(rest.get("params", b"{}"))
    rest["type"] = msgspec.Raw(b'"graph"')
    rest.setdefault("name", msgspec.Raw(_encode(name)))
    rest["steps"] = msgspec.Raw(_encode([{"id": POPULATE_STEP, **orchestrating(name, None, params)}]))
    return rest, name, params
