"""The failure that a worker reports for what a handler has raised."""

from __future__ import annotations

import concurrent.futures.thread
import traceback
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from ojster import middleware, raised
from ojster.core.values import to_timestamp
from ojster.job_options import error_type
from ojster.jobs.failure import Failure, clean
from ojster.outcomes import Outcome, RateLimited
from ojster.raised import original
from ojster.sandbox.sandbox import CodeFailed
from ojster.worker.children import ChildCrashed

_INTERNAL_FRAMES: Final = (
    str(Path(__file__).parent),
    concurrent.futures.thread.__file__,
    middleware.__file__,
    raised.__file__,
)
"""Path prefixes of frames left out of backtraces, because they are the same for every job."""


def failure_of(error: BaseException) -> Failure:
    """Return the failure to report for an exception of a handler. It never raises one itself."""
    if isinstance(error, ChildCrashed | CodeFailed):
        return error.failure
    error = original(error)
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith(_INTERNAL_FRAMES)]
    lines = [line.rstrip("\n") for line in traceback.format_list(own)]
    return Failure(
        rate_limit_until=_blocked_until(error) if isinstance(error, RateLimited) else None,
        type=clean(_type_of(error)),
        message=clean(_message_of(error)),
        code=error.code if isinstance(error, Outcome) else "handler_error",
        retryable=error.retryable if isinstance(error, Outcome) else None,
        backtrace=tuple(clean(line) for line in lines),
    )


def _blocked_until(error: RateLimited) -> str:
    return to_timestamp(datetime.now(UTC) + timedelta(seconds=error.delay), "delay")


def _type_of(error: BaseException) -> str:
    """Return the error type; the name of the class if ``error_type``, which the application computes, fails."""
    try:
        return error_type(error)
    except BaseException:
        return type(error).__name__


def _message_of(error: BaseException) -> str:
    """Return the message; ``__str__`` is code of the application, and may fail as any other."""
    try:
        return str(error) or type(error).__name__
    except BaseException as problem:
        return f"The exception has no message: its __str__ raised {type(problem).__name__}."
