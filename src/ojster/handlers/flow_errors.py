"""What goes wrong in flows: as it is recorded, and as the function of the flow gets it."""

from __future__ import annotations

import inspect
import logging
import traceback
from importlib import import_module
from typing import Any, Final

from ojster.core.errors import OjsterError
from ojster.core.job import Job
from ojster.handlers.outcomes import Discard, JobCancelled, JobFailed, Snooze
from ojster.handlers.raised import message_of
from ojster.jobs.failure import clean
from ojster.workflows.flow import FlowRecord, NewRecord

log = logging.getLogger(__name__)


class FlowChanged(Discard):
    """The function of a flow asks for something else than what is recorded at the same place. Nothing is lost.

    Correct the function and retry the workflow: it goes on where it was.

    Parameters
    ----------
    args:
        What is recorded, and what the function asks for.

    Examples
    --------
    >>> from ojster import FlowChanged
    >>> FlowChanged("At 'charge' the flow has recorded something else.").code
    'flow_changed'
    """

    code = "flow_changed"


def change_of(known: FlowRecord, asked: NewRecord) -> FlowChanged | None:
    """Return the error of a function that asks for something else than what is recorded under its key, if it does."""
    is_other = known.input is not None and asked.input is not None and known.input != asked.input
    if is_other and _key_id(known) != _key_id(asked):  # digests with different keys say nothing about each other
        is_other = False
    if (known.kind, known.name) == (asked.kind, asked.name) and not is_other:
        return None
    how = " with other arguments" if is_other and known.name == asked.name else ""
    return FlowChanged(
        f"At {asked.key!r} the flow has recorded {known.kind} {known.name!r}, and its function now asks for "
        f"{asked.kind} {asked.name!r}{how}. Give the new one a key of its own (flow.keyed), or restore the order; then "
        "retry the workflow."
    )


def _key_id(record: FlowRecord | NewRecord) -> str:
    return (record.input or "").rpartition(":")[0]


class StepFailed(Exception):
    """A local step of a flow has failed, with an exception that cannot be made again here.

    Parameters
    ----------
    message:
        The name of the step, and the type and message of the exception.
    error:
        The exception: ``type``, ``message`` and ``backtrace``.

    Examples
    --------
    >>> from ojster import StepFailed
    >>> StepFailed("total failed: Odd: 12", {"type": "Odd", "message": "12"}).error["type"]
    'Odd'
    """

    def __init__(self, message: str, error: dict[str, Any]) -> None:
        super().__init__(message)
        self.error = error


class UpdateFailed(Exception):
    """An update of a flow has failed: its handler has raised an exception, or the flow has ended without an answer.

    Parameters
    ----------
    message:
        The name of the update, and the type and message of the exception.
    error:
        The exception: ``type`` and ``message``.

    Examples
    --------
    >>> from ojster import UpdateFailed
    >>> UpdateFailed("rename failed: ValueError: empty", {"type": "ValueError", "message": "empty"}).error["message"]
    'empty'
    """

    def __init__(self, message: str, error: dict[str, Any]) -> None:
        super().__init__(message)
        self.error = error


class Restarted(Exception):
    """The function of a flow begins anew."""


class RecordFailed(Exception):
    """What a flow has asked for has failed.

    Parameters
    ----------
    error:
        The error of the record.
    """

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(error)
        self.error = error


RETRY_SECONDS: Final = 1.0
"""Pause after which a flow runs again whose worker could not reach the server, or no longer knew it, in seconds."""


def run_again(job: Job, error: OjsterError) -> Snooze:
    """Return how an attempt ends in which a flow could not say what it has done: it goes on where it was."""
    log.warning("the flow of job %s could not talk to the server, and runs again: %s", job.id, error)
    return Snooze(RETRY_SECONDS)


def described(error: BaseException) -> dict[str, Any]:
    """Return the error of a local step, whatever its class."""
    kind = type(error)
    return {
        "type": kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}",
        "message": clean(message_of(error)),
        "backtrace": [clean(line) for line in traceback.format_tb(error.__traceback__)],
    }


def job_error(name: str, error: dict[str, Any]) -> Exception:
    """Return the exception for a step of the graph that did not succeed."""
    cause = error.get("error") or {}
    if error.get("state") == "cancelled":
        return JobCancelled(f"{name} was cancelled.")
    message = f"{name} failed: {cause.get('type', cause.get('code', 'error'))}: {cause.get('message', '')}"
    return JobFailed(message, cause)


def step_error(name: str, error: dict[str, Any]) -> Exception:
    """Return the exception that a local step has raised, made again from its type and its message."""
    module, _, qualname = error["type"].rpartition(".")
    try:
        kind: Any = import_module(module or "builtins")
    except Exception:
        kind = None
    for part in qualname.split("."):
        kind = getattr(kind, part, None)
    if inspect.isclass(kind) and issubclass(kind, Exception):
        try:
            made = kind(error["message"])
        except Exception:  # its class takes other arguments
            made = None
        if made is not None and str(made) == error["message"]:
            return made
    return StepFailed(f"{name} failed: {error['type']}: {error['message']}", error)
