"""Which failures are retried."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from ojster import App, Retry, Worker
from tests.worker import handlers

pytestmark = pytest.mark.anyio


@pytest.fixture
async def app(shared_url: str) -> AsyncIterator[App]:
    made = App(shared_url)
    yield made
    await made.aclose()


async def run(app: App) -> None:
    async with asyncio.timeout(60):
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

    retry = {"max_attempts": 2, "initial_interval": 0.001, "jitter": False}
    handles = [
        await fail.using(retry=Retry(give_up_on=[entry], **retry)).aenqueue(number)
        for number, (entry, _, _) in enumerate(GIVEN_UP)
    ]
    await run(app)
    jobs = [(await handle.arefresh()).job for handle in handles]
    while any(job.state == "retryable" for job in jobs):
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
