"""Ready-made middleware around handlers: time limits, and the context of logs and errors."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from ojster.core.declared_options import PositiveSeconds, checks_options
from ojster.handlers.context import JobContext
from ojster.handlers.middleware import ExecutionMiddleware, ThreadMiddleware
from ojster.handlers.outcomes import Released
from ojster.worker.failures import failure_of, may_be_retried

__all__ = ["ExecutionMiddleware", "ThreadMiddleware", "sentry_errors", "structlog_context", "timeouts"]


@checks_options
def timeouts(seconds: Mapping[str, PositiveSeconds]) -> ExecutionMiddleware:
    """Return an execution middleware that limits how long the jobs of some types run, whatever their own timeout.

    Parameters
    ----------
    seconds:
        The longest run time by job type, in seconds.

    Returns
    -------
    ExecutionMiddleware
        The middleware. An attempt that takes longer fails with ``TimeoutError``.

    Examples
    --------
    >>> from ojster import App
    >>> from ojster.middleware import timeouts
    >>> app = App("sqlite:///:memory:")
    >>> app.execution_middleware.append(timeouts({"email.send": 10}))
    >>> app.close()
    """

    async def limit(context: JobContext, call_next: Callable[[], Awaitable[Any]]) -> Any:
        allowed = seconds.get(context.job.type)
        try:
            async with asyncio.timeout(allowed) as timeout:
                return await call_next()
        except TimeoutError:
            if timeout.expired():
                message = f"The middleware lets a job of type {context.job.type} run for {allowed:g} seconds at most."
                raise TimeoutError(message) from None
            raise

    return limit


async def structlog_context(context: JobContext, call_next: Callable[[], Awaitable[Any]]) -> Any:
    """Bind ``job_id``, ``job_type``, ``queue`` and ``attempt`` to what handlers log with structlog.

    An execution middleware: ``app.execution_middleware.append(structlog_context)``. Needs ``structlog``, whose
    processor ``merge_contextvars`` adds the values.
    """
    from structlog.contextvars import bound_contextvars

    job = context.job
    with bound_contextvars(job_id=job.id, job_type=job.type, queue=job.queue, attempt=job.attempt):
        return await call_next()


@checks_options
def sentry_errors(*, only_final: bool = False) -> ExecutionMiddleware:
    """Return an execution middleware that reports what handlers raise to Sentry, with the job that it was.

    Each attempt has an isolation scope and a transaction of its own, named after the job type. What is no failure, such
    as ``Snooze``, is not reported. Needs ``sentry-sdk``, which the application has set up with ``sentry_sdk.init``.

    Parameters
    ----------
    only_final:
        Whether to report only failures after which no attempt follows. The default is false.

    Examples
    --------
    >>> from ojster import App
    >>> from ojster.middleware import sentry_errors
    >>> app = App("sqlite:///:memory:")
    >>> app.execution_middleware.append(sentry_errors(only_final=True))
    >>> app.close()
    """
    import sentry_sdk
    from sentry_sdk.integrations.logging import ignore_logger
    from sentry_sdk.tracing import TransactionSource

    ignore_logger("ojster.jobs")  # the worker logs the same failures, which would be reported twice

    async def report(context: JobContext, call_next: Callable[[], Awaitable[Any]]) -> Any:
        job = context.job
        with sentry_sdk.isolation_scope() as scope:
            scope.set_tag("ojster.job_type", job.type)
            scope.set_tag("ojster.queue", job.queue)
            scope.set_context(
                "ojster", {"job_id": job.id, "attempt": job.attempt, "max_attempts": context.max_attempts}
            )
            transaction = sentry_sdk.start_transaction(op="queue.process", name=job.type, source=TransactionSource.TASK)
            with transaction:
                try:
                    return await call_next()
                except Released:
                    raise
                except Exception as error:
                    transaction.set_status("internal_error")
                    if not only_final or not may_be_retried(job, failure_of(error, job)):
                        sentry_sdk.capture_exception(error)
                    raise

    return report
