"""A handler with nothing around it is called directly, and ends as it does with middleware around it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from ojster import App, Discard, JobContext, Snooze, Wait, Worker, current_job

pytestmark = pytest.mark.anyio

TOLD = ("type", "code", "message", "attempt", "retryable")
LIMIT = 60.0
"""Time after which a test gives up, in seconds."""


def handlers_of(app: App) -> dict[str, list[list[Any]]]:
    """Declare handlers; return the arguments of their jobs, by job type."""

    @app.job("add")
    async def add(a: int, b: int = 5, *more: int) -> int:
        return a + b + sum(more)

    @app.job("with.default")
    async def with_default(a: int, b: int | None = 5) -> list[int | None]:
        return [a, b]

    @app.job("named")
    async def named(a: Any, *, b: str = "b") -> list[Any]:
        return [a, b]

    @app.job("context")
    async def context(job: JobContext, a: float) -> list[Any]:
        job.progress(1, total=2)
        return [job.id == current_job().id, a, job.attempt]

    @app.job("ends", retry=1)
    async def ends(how: str) -> Any:
        match how:
            case "large":
                return "x" * 2_000_000
            case "no JSON":
                return object()
            case "discard":
                raise Discard("no")
            case "wait":
                raise Wait
            case "cancelled":
                raise asyncio.CancelledError
            case "exit":
                raise SystemExit(1)
            case "later":
                raise Snooze(3600)
            case "pause":
                await asyncio.sleep(0)
        return None

    @app.job("add.thread")
    def add_thread(a: int, b: int = 5, *more: int) -> int:
        return a + b + sum(more)

    @app.job("context.thread")
    def context_thread(job: JobContext, a: float) -> list[Any]:
        job.progress(1, total=2)
        return [job.id == current_job().id, a, job.attempt]

    @app.job("ends.thread", retry=1)
    def ends_thread(how: str) -> Any:
        if how == "stop iteration":
            raise StopIteration
        try:
            ends.function(how).send(None)
        except StopIteration as returned:
            return returned.value

    @app.job("another.type", retry=1)
    async def another_type() -> int:
        return "no number"  # type: ignore[return-value]

    sums: list[list[Any]] = [[1], [1, 2], [1, 2, 3], [], ["a"], [1.0], [None]]
    ways = ("", "large", "no JSON", "discard", "wait", "cancelled", "exit", "later")
    return {
        "add": sums,
        "add.thread": sums,
        "with.default": [[1], [1, 2], [1, None], [1, 2, 3], [], ["a"]],
        "named": [[1], [1, {"b": "c"}], [{"b": "c"}, {}], [1, 2]],
        "context": [[1], [1e300], ["1"]],
        "context.thread": [[1], [1e300], ["1"]],
        "ends": [[how] for how in (*ways, "pause")],
        "ends.thread": [[how] for how in (*ways, "stop iteration")],
        "another.type": [[]],
    }


async def through(context: JobContext, call: Callable[[], Awaitable[Any]]) -> Any:
    return await call()


async def outcomes(url: str, *, layered: bool) -> dict[str, Any]:
    """Return how each of the jobs ends."""
    app, sender = App(url), App(url)  # the sender does not know what the handlers take
    if layered:
        app.execution_middleware.append(through)
    calls = handlers_of(app)
    handles = {
        f"{type} {args}": await sender.job_type(type, retry=1).aenqueue(*args)
        for type, all_args in calls.items()
        for args in all_args
    }
    async with asyncio.timeout(LIMIT):
        await Worker(app).run(until_empty=True)
    ended = {}
    for name, handle in handles.items():
        job = await app.client().jobs.find(handle.id)
        errors = [[error.get(member) for member in TOLD] for error in json.loads(job.errors or b"[]")]
        ended[name] = (job.state, (job.result or b"")[:100], errors, job.attempt, job.progress is None)
    await app.aclose()
    await sender.aclose()
    return ended


async def test_a_direct_call_ends_as_one_with_middleware_around_it(shared_url: str) -> None:
    direct = await outcomes(shared_url, layered=False)
    assert direct == await outcomes(shared_url, layered=True)
    assert {state for state, *_ in direct.values()} == {"completed", "discarded", "pending", "scheduled"}
