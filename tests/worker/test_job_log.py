"""A worker says what it does: which job begins, and how it ends."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from ojster import App, Flow, JobContext, Retry, Snooze, Worker
from ojster.cli.logs import JsonFormatter
from ojster.reactions import retry_after
from ojster.testing import JobTester
from ojster.worker.job_log import escaped
from ojster.worker.registration import named_queues

pytestmark = pytest.mark.anyio


def records(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [record for record in caplog.records if record.name == "ojster.jobs"]


async def run(app: App, type: str, *args: Any) -> None:
    await app.handlers[type].aenqueue(*args)
    await Worker(app).run(until_empty=True)
    await app.aclose()


async def test_a_failure_is_logged_with_its_place_and_its_job(caplog: pytest.LogCaptureFixture) -> None:
    app = App("sqlite:///:memory:")

    @app.job("email.send", retry=1)
    def send(to: str) -> None:
        raise ValueError(f"no such mailbox: {to}")

    with caplog.at_level(logging.INFO, "ojster"):
        await run(app, "email.send", "ada")
    (record,) = records(caplog)
    text = record.getMessage()
    assert record.levelname == "ERROR"
    assert "email.send failed after" in text
    assert "attempt 1 of 1: ValueError: no such mailbox: ada" in text
    assert "test_job_log.py" in text
    assert 'raise ValueError(f"no such mailbox: {to}")' in text
    members = vars(record)
    assert (members["job_type"], members["queue"], members["attempt"]) == ("email.send", "default", 1)
    assert members["job_id"] in text
    assert members["duration"] >= 0


async def test_a_failure_that_may_be_retried_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    app = App("sqlite:///:memory:")

    @app.job("flaky", retry=Retry(max_attempts=2, initial_interval=60))
    async def flaky() -> None:
        raise OSError("the network is down")

    with caplog.at_level(logging.INFO, "ojster"):
        await run(app, "flaky")
    (record,) = records(caplog)
    assert record.levelname == "WARNING"
    assert "attempt 1 of 2, and may be tried again: OSError: the network is down" in record.getMessage()


async def test_the_attempts_that_a_reaction_adds_count(caplog: pytest.LogCaptureFixture) -> None:
    app = App("sqlite:///:memory:")
    seen = []

    @app.job("flaky", retry=2, reactions={"on_failure": [retry_after("1d")]})
    async def flaky(context: JobContext) -> None:
        seen.append((context.attempt, context.max_attempts, context.is_last_attempt))
        raise OSError

    async with JobTester(app) as jobs:
        await flaky.aenqueue()
        await jobs.adrain(check=False)
    assert seen == [(1, 3, False), (2, 3, False), (3, 3, True)]
    said = [(record.levelname, record.getMessage()) for record in records(caplog)]
    assert [level for level, _ in said] == ["WARNING", "WARNING", "ERROR"]
    assert ["attempt 2 of 3, and may be" in said[1][1], "attempt 3 of 3:" in said[2][1]] == [True, True]


async def test_starts_and_successes_are_logged_as_well(caplog: pytest.LogCaptureFixture) -> None:
    app = App("sqlite:///:memory:")

    @app.job("fine")
    async def fine() -> None: ...

    @app.job("later")
    async def later() -> None:
        raise Snooze(3600)

    with caplog.at_level(logging.DEBUG, "ojster.jobs"):
        await fine.aenqueue()
        await run(app, "later")
    said = sorted((record.levelname, record.getMessage().split(" ", 2)[2]) for record in records(caplog))
    assert [level for level, _ in said] == ["DEBUG", "DEBUG", "INFO", "INFO"]
    texts = " | ".join(text for _, text in said)
    for part in ("fine begins, attempt 1 of", "later begins", "fine completed in", "later gave its lease back"):
        assert part in texts


async def test_a_flow_that_waits_is_not_called_stopped(caplog: pytest.LogCaptureFixture) -> None:
    app = App("sqlite:///:memory:")

    @app.flow("order")
    async def order(flow: Flow) -> None:
        await flow.receive("approval", bool)

    with caplog.at_level(logging.INFO, "ojster.jobs"):
        await order.astart()
        await Worker(app).run(until_empty=True)
        await app.aclose()
    (record,) = records(caplog)
    assert " order began to wait after " in record.getMessage()


async def test_the_traceback_of_a_flow_begins_at_its_function(caplog: pytest.LogCaptureFixture) -> None:
    app = App("sqlite:///:memory:")

    @app.flow("order")
    async def order(flow: Flow) -> None:
        raise ValueError("not approved")

    with caplog.at_level(logging.ERROR, "ojster.jobs"):
        await order.astart()
        await Worker(app).run(until_empty=True)
        await app.aclose()
    (record,) = records(caplog)
    said, *places = [line for line in record.getMessage().splitlines() if not line.startswith("    ")]
    assert said.endswith("ValueError: not approved")
    assert [place.split(" in ")[1] for place in places] == ["order"]


async def test_no_job_writes_a_line_of_its_own(caplog: pytest.LogCaptureFixture) -> None:
    app = App("sqlite:///:memory:")

    @app.job("sly", retry=1)
    def sly() -> None:
        raise ValueError("x\n2026-01-01 INFO ojster all is well\x1b[2J")

    with caplog.at_level(logging.INFO, "ojster"):
        await run(app, "sly")
    (record,) = records(caplog)
    assert "ValueError: x\\n2026-01-01 INFO ojster all is well\\x1b[2J" in record.getMessage()
    assert "\x1b" not in record.getMessage()


def test_only_control_characters_are_escaped() -> None:
    assert escaped("Zürich 東京 ok") == "Zürich 東京 ok"
    assert escaped("a\tb\u202ec\x00") == "a\\tb\\u202ec\\x00"


def test_json_lines_have_the_members_of_the_job_and_the_exception() -> None:
    record = logging.makeLogRecord(
        {"name": "ojster.jobs", "levelname": "ERROR", "msg": "job %s", "args": ("7",), "job_id": "7", "duration": 0.5}
    )
    shown = json.loads(JsonFormatter().format(record))
    assert (shown["message"], shown["level"], shown["job_id"], shown["duration"]) == ("job 7", "error", "7", 0.5)
    assert shown["timestamp"].endswith("Z")
    try:
        raise KeyError("x")
    except KeyError as error:
        record.exc_info = (KeyError, error, error.__traceback__)
    record.strange = object()
    assert "KeyError: 'x'" in json.loads(JsonFormatter().format(record))["exception"]


async def test_a_worker_serves_all_queues_that_its_handlers_name() -> None:
    app = App("sqlite:///:memory:")

    @app.job("a", queue="mail")
    async def a() -> int:
        return 1

    @app.job("b", queue="audio")
    async def b() -> int:
        return 2

    @app.job("c")
    async def c() -> int:
        return 3

    assert named_queues(app) == ["default", "audio", "mail"]
    handles = [await one.aenqueue() for one in (a, b, c)]
    worker = Worker(app)
    assert (worker.queues, worker.sharing.strategy) == (("default", "audio", "mail"), "round-robin")
    await worker.run(until_empty=True)
    assert [await handle.aresult() for handle in handles] == [1, 2, 3]
    assert (Worker(app, queues=("mail",)).queues, Worker(app, queues=("mail", "audio")).sharing.strategy) == (
        ("mail",),
        "strict",
    )
    await app.aclose()
