"""Which failures are retried, and which results fail an attempt."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from datetime import date, timedelta
from decimal import Decimal
from typing import Any

import pytest

from ojster import App, RateLimited, Retry, Worker
from ojster.core.json_objects import read_members
from ojster.handlers.job_handle import JobHandle
from ojster.worker.failures import described
from tests.waiting import PATIENCE
from tests.worker import handlers

pytestmark = pytest.mark.anyio


async def run(app: App) -> None:
    async with asyncio.timeout(PATIENCE):
        await Worker(app).run(until_empty=True)


class Refused(Exception):
    """An error of a payment provider."""


class CardRefused(Refused):
    """A kind of it."""


class Named(Exception):
    """An exception with an error type of its own."""

    error_type = "auth.failed"


class NamedToo(Named):
    """A kind of it with another error type."""

    error_type = "quota.exceeded"


def _class(module: str, name: str, base: type[Exception] = Exception) -> type[Exception]:
    return type(name, (base,), {"__module__": module})


SHOP = _class("shop", "Refused")
OTHER_SHOP = _class("other", "Refused")
SCRIPT = _class("__main__", "Refused")
OWN_CONNECTION_ERROR = _class("shop", "ConnectionError")

GIVEN_UP: list[tuple[type[BaseException] | str, type[BaseException], bool]] = [
    (ValueError, ValueError, True),
    (OSError, FileNotFoundError, True),
    (FileNotFoundError, OSError, False),
    (Exception, CardRefused, True),
    (BaseException, SystemExit, True),
    (Exception, SystemExit, False),
    (Refused, CardRefused, True),
    (CardRefused, Refused, False),
    (StopIteration, StopIteration, True),
    (SHOP, SHOP, True),
    (SHOP, OTHER_SHOP, False),
    (SHOP, SCRIPT, True),  # a script is a module of another name for those that import it
    (SCRIPT, SHOP, True),
    (SCRIPT, ValueError, False),
    (ConnectionError, OWN_CONNECTION_ERROR, False),
    (OWN_CONNECTION_ERROR, ConnectionError, False),
    (Named, Named, True),
    (Named, NamedToo, True),
    (NamedToo, Named, False),
    ("Refused", Refused, True),
    ("Refused", CardRefused, False),
    ("auth.*", Named, True),
    ("auth.failed", NamedToo, True),
    ("auth.*", NamedToo, False),
]
"""An entry of ``give_up_on``, an exception, and whether its job gets no other attempt."""


async def test_give_up_on_means_a_class_with_its_subclasses_and_no_other(app: App) -> None:
    raised: list[type[BaseException]] = [kind for _, kind, _ in GIVEN_UP]

    @app.job
    def fail(number: int) -> None:
        raise raised[number]

    handles = [
        await fail.using(
            retry=Retry(max_attempts=2, initial_interval=0.001, jitter=False, give_up_on=[entry])
        ).aenqueue(number)
        for number, (entry, _, _) in enumerate(GIVEN_UP)
    ]
    await run(app)
    jobs = [(await handle.arefresh()).job for handle in handles]
    while any(job.state in ("retryable", "available") for job in jobs):  # the second attempt is due at once
        await run(app)
        jobs = [(await handle.arefresh()).job for handle in handles]
    ends = [(entry, kind, job.attempt == 1) for (entry, kind, _), job in zip(GIVEN_UP, jobs, strict=True)]
    assert ends == GIVEN_UP


async def test_give_up_on_holds_in_child_processes(shared_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handlers.app, "url", shared_url)
    fail = handlers.app.handlers["process.fail"]
    handle = await fail.using(retry=Retry(max_attempts=5, initial_interval=60, give_up_on=[Exception])).aenqueue()
    await run(handlers.app)
    assert (await handle.arefresh()).job.state == "discarded"
    await handlers.app.aclose()


@dataclass
class Point:
    """A result."""

    x: int


RESULTS: list[tuple[Any, Any, bool]] = [
    (int, 1, True),
    (int, "1", False),
    (int, 1.5, False),
    (float, 1, True),
    (float, "1", False),
    (str, "a", True),
    (str, 1, False),
    (list[str], ["a"], True),
    (list[str], ("a",), True),
    (list[str], [1], False),
    (int | None, 1, True),
    (int | None, None, True),
    (int | None, "1", False),
    (date, date(2030, 1, 2), True),
    (date, "2030-01-02", True),
    (date, "tomorrow", False),
    (timedelta, timedelta(1), True),
    (Decimal, Decimal("1.5"), True),
    (Point, Point(1), True),
    (Point, {"x": 1}, True),
    (Point, {"y": 1}, False),
    (dict[str, int], {"a": 1}, True),
    (dict[str, int], {"a": "1"}, False),
    (None, None, True),
    (None, 1, False),
    (Any, {"a": [1]}, True),
]
"""A return annotation, what the handler returns, and whether that is what the annotation says."""


async def test_a_result_that_is_not_what_the_annotation_says_fails_the_attempt(app: App) -> None:
    """The result of a completed job can be read by its callers."""
    handles: list[JobHandle[Any]] = []
    for place, (annotation, result, _) in enumerate(RESULTS):

        def handler(result: Any = result) -> Any:
            return result

        handler.__annotations__ = {"return": annotation}
        handles.append(await app.job(f"job.n{place}", retry=1)(handler).using().aenqueue())
    await run(app)
    jobs = [(await handle.arefresh()).job for handle in handles]
    ends = [
        (annotation, result, job.state == "completed")
        for (annotation, result, _), job in zip(RESULTS, jobs, strict=True)
    ]
    assert ends == RESULTS
    for handle, job in zip(handles, jobs, strict=True):
        if job.state == "completed":
            await handle.aresult()
        else:
            (error,) = json.loads(job.errors or b"[]")
            assert (error["type"], "return annotation" in error["message"]) == ("TypeError", True)


async def test_arguments_that_the_annotations_forbid_are_not_tried_again(app: App) -> None:
    @app.job("double")
    def double(number: int) -> int:
        return 2 * number

    (pushed,) = await app.client().jobs.enqueue([read_members(b'{"type":"double","args":["two"]}')])
    await run(app)
    job = await app.client().jobs.find(pushed.job.id)
    assert (job.state, job.attempt) == ("discarded", 1)


async def test_a_pause_that_a_handler_asks_for_is_as_long_if_the_clock_of_the_worker_is_wrong() -> None:
    assert described(RateLimited(timedelta(minutes=1))).rate_limit_until == "+PT60.0S"
