"""The kinds of middleware: around the whole execution of a job, and in the thread of a plain handler."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from ojster.core.job import Job
from ojster.handlers.context import JobContext
from ojster.jobs.middleware import MiddlewareChain, in_use

ExecutionMiddleware = Callable[[JobContext, Callable[[], Awaitable[Any]]], Awaitable[Any]]
"""Wraps the execution of every job. It gets the job's context and ``next``, which runs the rest and returns the result.
"""

ThreadMiddleware = Callable[[Job, Callable[[], Any]], Any]
"""Wraps plain handlers, in the thread or child process that runs them: what is bound to a thread, such as database
connections of Django. It gets the job and ``next``, which runs the rest and returns the result.
"""


def through_thread_middleware(layers: MiddlewareChain[ThreadMiddleware], job: Job, call: Callable[[], Any]) -> Any:
    """Call a plain handler through the middleware, the first outermost, and return its result."""
    if not layers:
        return call()
    for layer in reversed(layers):
        call = partial(layer, job, call)
    with in_use(layers):  # also in a child process, where no worker holds the chain
        return call()
