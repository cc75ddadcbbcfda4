"""What does a workflow look like that a program lays out while it runs? Its first step runs the program. (seed 003)

The jobs in which orchestrators run are of one type, and in a queue of each; those of one workflow never run at the
same time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from ojster.core.errors import InvalidRequest

ORCHESTRATE_TYPE: Final = "ojster.orchestrate"
"""The type of the jobs in which orchestrators run."""

_QUEUE: Final = "orchestrators."
_ATTEMPTS: Final = 5
"""How often a job of an orchestrator runs at most: again only if its worker was lost."""

MEMBER: Final = "orchestrator"
"""Says in the request for a workflow which orchestrator lays it out."""

FIRST: Final = "populate"
"""What the step is called that lays a workflow out."""

CONFIGURE_FAILED: Final = "configure_failed"
"""The code of an error: there is no such orchestrator, or its parameters are none."""

ORCHESTRATOR_FAILED: Final = "orchestrator_failed"
"""The code of an error: the orchestrator raised an exception."""

_encode: Final = msgspec.json.Encoder().encode


def queue_of(name: str) -> str:
    """Return the queue of the jobs of workflows that an orchestrator lays out: others may know nothing of it."""
    return _QUEUE + name


def orchestrating(name: str, step: str | None, params: Any, queue: str | None = None) -> dict[str, Any]:
    """Return the job that lets an orchestrator lay out a workflow, or (``step``) go on with it.

    All of a workflow are in one queue, that of the first: who waits there for the end of one gets the next.
    """
    return {
        "type": ORCHESTRATE_TYPE,
        "args": [name, step, params],
        "options": {"queue": queue or queue_of(name), "retry": {"max_attempts": _ATTEMPTS}},
    }


def expand(members: Mapping[str, msgspec.Raw]) -> tuple[dict[str, msgspec.Raw], str, Any]:
    """Return the request for a workflow that an orchestrator is to lay out, its name, and the parameters.

    Raises
    ------
    InvalidRequest
        It says steps, too, or the name is no string.
    """
    given = dict(members)
    try:
        name = msgspec.json.decode(given.pop(MEMBER), type=str)
    except msgspec.DecodeError:
        raise InvalidRequest(f"{MEMBER!r} must be the name of one.", field=MEMBER) from None
    for wrong in ("steps", "jobs", "definition", "over", "do"):
        if wrong in given:
            raise InvalidRequest(f"An orchestrator lays out the workflow; leave out {wrong!r}.", field=wrong)
    params = msgspec.json.decode(given.get("params", b"{}"))
    given["type"] = msgspec.Raw(b'"graph"')
    given.setdefault("name", msgspec.Raw(_encode(name)))
    given["steps"] = msgspec.Raw(_encode([{"id": FIRST, **orchestrating(name, None, params)}]))
    return given, name, params
