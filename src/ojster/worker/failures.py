"""The failure that a worker reports for what a handler has raised."""

from __future__ import annotations

import concurrent.futures.thread
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from ojster.core.job import Job
from ojster.core.values import to_duration
from ojster.events.reaction_rules import most_attempts
from ojster.handlers import middleware, raised
from ojster.handlers.arguments import InvalidArguments
from ojster.handlers.error_types import class_name, error_type
from ojster.handlers.outcomes import HandlerOutcome, RateLimited
from ojster.handlers.raised import message_of, original
from ojster.jobs.failure import Failure, clean
from ojster.jobs.job_json import retry_policy
from ojster.jobs.retry import HANDLER_CODES
from ojster.sandbox.sandbox import CodeFailed
from ojster.worker.children import ChildCrashed

_PACKAGE: Final = Path(__file__).parents[1]

_INTERNAL_FRAMES: Final = (
    str(_PACKAGE / "worker"),
    *(str(_PACKAGE / name) for name in ("api/flows.py", "handlers/flow_execution.py", "handlers/flow_run.py")),
    concurrent.futures.thread.__file__,
    middleware.__file__,
    raised.__file__,
)
"""Path prefixes of frames left out of backtraces, because they are the same for every job."""

_SCRIPT: Final = "__main__."


def failure_of(error: BaseException, job: Job) -> Failure:
    """Return the failure to report for an exception of a handler. It never raises one itself."""
    failure = error.failure if isinstance(error, ChildCrashed | CodeFailed) else described(error)
    names = error.class_names if isinstance(error, ChildCrashed | CodeFailed) else class_names(error)
    if failure.retryable is None and _is_given_up(job, names):
        return msgspec.structs.replace(failure, retryable=False)
    return failure


def described(error: BaseException) -> Failure:
    """Return the failure that an exception is, for a job of any policy."""
    error = original(error)
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith(_INTERNAL_FRAMES)]
    lines = [line.rstrip("\n") for line in traceback.format_list(own)]
    return Failure(
        # A duration: the clock of this machine may be wrong.
        rate_limit_until=f"+{to_duration(error.delay)}" if isinstance(error, RateLimited) else None,
        type=clean(_type_of(error)),
        message=clean(message_of(error) or type(error).__name__),
        code=error.code if isinstance(error, HandlerOutcome) else "handler_error",
        retryable=_retryable(error),
        backtrace=tuple(clean(line) for line in lines),
    )


def may_be_retried(job: Job, failure: Failure) -> bool:
    """Return whether another attempt may follow; the server decides it, which knows the whole retry policy."""
    return (
        failure.retryable is not False
        and failure.code not in HANDLER_CODES
        and job.counted_attempts < most_attempts(job)
    )


def class_names(error: BaseException) -> list[str]:
    """Return the names, as in ``give_up_on``, of the classes that an exception belongs to."""
    return [class_name(kind) for kind in type(original(error)).__mro__ if issubclass(kind, BaseException)]


def _is_given_up(job: Job, names: Sequence[str]) -> bool:
    """Tell whether the retry policy names a class of the exception. A server knows only the type of the last one.

    A module that runs as a script has another name in processes that import it, so a class of ``__main__`` matches
    those of its name in all modules.
    """
    entries = retry_policy(job).non_retryable_errors
    return any(_matches(entry, name) for entry in entries for name in names)


def _matches(entry: str, name: str) -> bool:
    if entry == name or not (entry.startswith(_SCRIPT) or name.startswith(_SCRIPT)):
        return entry == name
    return entry.rpartition(".")[2] == name.rpartition(".")[2]


def _retryable(error: BaseException) -> bool | None:
    """Return the judgement of the handler; arguments that its annotations forbid are as wrong the next time."""
    if isinstance(error, InvalidArguments):
        return False
    return error.retryable if isinstance(error, HandlerOutcome) else None


def _type_of(error: BaseException) -> str:
    """Return the error type; the name of the class if ``error_type``, which the application computes, fails."""
    try:
        return error_type(error)
    except BaseException:
        return type(error).__name__
