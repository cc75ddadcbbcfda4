"""What handlers log is kept with their jobs if their types ask for it, and costs nothing if they do not."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from ojster import App, JobHandle, Worker, current_job
from ojster.handlers import kept_logs
from ojster.jobs.job_logs import MAX_LOG_LINES, NewLine, NewLines
from ojster.jobs.messages import Holder
from ojster.service import Service
from tests.serving import serving
from tests.time_limits import exhaust_time
from tests.waiting import PATIENCE

pytestmark = pytest.mark.anyio

shop = logging.getLogger("shop")


@pytest.fixture(autouse=True)
def informed() -> Iterator[None]:
    before = logging.getLogger().level
    logging.getLogger().setLevel(logging.INFO)
    yield
    logging.getLogger().setLevel(before)
    assert not [handler for handler in logging.getLogger().handlers if isinstance(handler, kept_logs._Collector)]


async def said(handle: JobHandle[Any]) -> list[tuple[str, str, str]]:
    return [(line.level, line.logger, line.message) for line in await handle.alogs()]


@pytest.mark.parametrize("kind", ["coroutine", "thread"])
@pytest.mark.parametrize("end", ["result", "failure", "timeout"])
async def test_lines_are_kept_however_an_attempt_ends(app: App, kind: str, end: str) -> None:
    stop = threading.Event()

    def work() -> None:
        shop.info("order %s", 7)
        shop.debug("too fine")
        try:
            raise KeyError("price")
        except KeyError:
            shop.exception("no price")
        if end == "failure":
            raise ValueError("no")

    @app.job("thread", retry=1, keep_logs="info", timeout=2 * PATIENCE)
    def thread() -> None:
        work()
        if end == "timeout":
            exhaust_time(current_job())
            stop.wait(PATIENCE)

    @app.job("coroutine", retry=1, keep_logs="info", timeout=2 * PATIENCE)
    async def coroutine() -> None:
        work()
        if end == "timeout":
            exhaust_time(current_job())
            await asyncio.sleep(PATIENCE)

    handle = await app.handlers[kind].aenqueue()
    worker = Worker(app)
    running = asyncio.create_task(worker.run())
    while not worker.processed:
        await asyncio.sleep(0.001)
    stop.set()
    worker.stop()
    await running
    first, second = await said(handle)
    assert first == ("info", "shop", "order 7")
    assert second[:2] == ("error", "shop")
    assert second[2].startswith("no price\nTraceback")
    assert second[2].endswith("KeyError: 'price'")


async def test_each_job_keeps_its_own_lines_and_those_of_other_types_nothing(app: App) -> None:
    @app.job("kept", keep_logs="info")
    async def kept(name: str) -> None:
        shop.info("%s begins", name)
        await asyncio.sleep(0)
        shop.info("%s ends", name)

    @app.job("plain")
    async def plain() -> None:
        shop.info("plain")

    handles = [await kept.aenqueue(name) for name in "ab"]
    other = await plain.aenqueue()
    await Worker(app).run(until_empty=True)
    for name, handle in zip("ab", handles, strict=True):
        assert [text for _, _, text in await said(handle)] == [f"{name} begins", f"{name} ends"]
        assert [line.message for line in await handle.alogs(after=1)] == [f"{name} ends"]
    assert await said(other) == []


async def test_nothing_is_installed_or_sent_if_no_type_keeps_its_log(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> Any:
        raise AssertionError

    seen: list[logging.Handler] = []

    @app.job("plain")
    def plain() -> None:
        seen.extend(logging.getLogger().handlers)
        shop.info("plain")

    monkeypatch.setattr(kept_logs.LogReports, "__init__", refuse)
    monkeypatch.setattr(type(app.client().jobs), "add_to_log", refuse)
    before = list(logging.getLogger().handlers)
    handle = await plain.aenqueue()
    await Worker(app).run(until_empty=True)
    assert (await handle.arefresh()).state == "completed"
    assert seen == before


async def test_lines_can_be_read_while_the_handler_runs(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_logs, "LOG_INTERVAL_SECONDS", 0.001)
    go = asyncio.Event()

    @app.job("slow", keep_logs="info")
    async def slow() -> None:
        shop.info("one")
        await go.wait()

    handle = await slow.aenqueue()
    running = asyncio.create_task(Worker(app).run(until_empty=True))
    while not await said(handle):
        await asyncio.sleep(0.001)
    go.set()
    await running


async def test_lines_are_sent_together_and_what_is_logged_meanwhile_is_no_line(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[NewLines] = []

    @app.job("many", keep_logs="info")
    async def many() -> None:
        for number in range(3 * MAX_LOG_LINES):
            shop.info("%s", number)

    jobs = app.client().jobs
    keep = jobs.add_to_log

    async def add_to_log(item: NewLines) -> int:
        shop.info("a line about lines")
        sent.append(item)
        return await keep(item)

    monkeypatch.setattr(jobs, "add_to_log", add_to_log)
    handle = await many.aenqueue()
    await Worker(app).run(until_empty=True)
    assert [(len(item.lines), item.dropped) for item in sent] == [(MAX_LOG_LINES, 2 * MAX_LOG_LINES)]
    assert {text for _, _, text in await said(handle)} == {str(n) for n in range(2 * MAX_LOG_LINES, 3 * MAX_LOG_LINES)}


async def test_a_job_ends_as_it_would_although_its_lines_cannot_be_kept(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    @app.job("kept", keep_logs="info")
    async def kept() -> int:
        shop.info("one")
        shop.info("wrong %d", "text")
        return 7

    async def stuck(_: NewLines) -> int:
        await asyncio.Event().wait()
        return 0

    monkeypatch.setattr(logging, "raiseExceptions", False)
    monkeypatch.setattr(kept_logs, "LAST_LINES_SECONDS", 0.01)
    monkeypatch.setattr(app.client().jobs, "add_to_log", stuck)
    handle = await kept.aenqueue()
    await Worker(app).run(until_empty=True)
    assert await handle.aresult() == 7


async def test_events_of_structlog_become_texts() -> None:
    lines: list[NewLine] = []
    with kept_logs.collecting("info", lines.append):
        shop.info({"event": "order paid", "order": 7})  # as ProcessorFormatter.wrap_for_formatter hands them over
    assert [line.message for line in lines] == ["order paid order=7"]


async def test_a_level_that_the_root_logger_stops_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    logging.getLogger().setLevel(logging.WARNING)
    kept_logs._collector._too_quiet.clear()
    for _ in range(2):
        with kept_logs.collecting("info", lambda _: None):
            pass
    (warning,) = [record for record in caplog.records if record.name == "ojster.jobs"]
    assert warning.getMessage() == (
        "keep_logs='info' keeps no line below WARNING, the level of the root logger. "
        "Call logging.basicConfig(level='INFO')."
    )


@pytest.mark.parametrize("others", [[], [logging.NullHandler()]])
def test_warnings_that_nothing_else_handles_stay_on_standard_error(
    others: list[logging.Handler], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", others)
    with kept_logs.collecting("info", lambda _: None):
        shop.info("order 7")
        shop.warning("no price")
    assert capsys.readouterr().err == ("" if others else "no price\n")


async def test_lines_after_the_end_are_dropped() -> None:
    async def refuse(_: NewLines) -> int:
        raise AssertionError

    reports = kept_logs.LogReports("info", Holder("a"), refuse, asyncio.get_running_loop())
    await reports.finish()
    reports.offer(NewLine(0, "info", "shop", "late"))
    await asyncio.sleep(0)


async def test_child_processes_send_their_lines_while_they_run(app: App, caplog: pytest.LogCaptureFixture) -> None:
    from ojster.worker.children import ChildPool
    from tests.worker import handlers

    lines: list[NewLine] = []

    async def keep(item: NewLines) -> None:
        lines.extend(item.lines)

    pool = ChildPool()
    reports = kept_logs.LogReports("info", Holder("a"), keep, asyncio.get_running_loop())
    assert await pool.run(handlers.app.handlers["process.logs"], ["order 7"], None, reports) == 1
    await reports.finish()
    assert await pool.run(handlers.app.handlers["process.logs"], ["order 8"]) == 0
    await pool.close()
    assert [(line.level, line.message) for line in lines] == [("info", "order 7")]
    written = [record for record in caplog.records if record.name == "shop"]
    assert [record.getMessage() for record in written] == ["order 7", "order 8"], "the worker writes them as its own"
    assert {record.process for record in written}.isdisjoint({os.getpid(), None})
    assert [getattr(record, "path", None) for record in written] == ["."] * 2


async def test_workers_of_a_server_send_lines_over_http(service: Service) -> None:
    async with serving(service) as (_, port):
        app = App(f"http://127.0.0.1:{port}")

        name = os.fsdecode(b"caf\xe9")

        @app.job("kept", keep_logs="info")
        async def kept() -> int:
            shop.info("order 7")
            logging.getLogger("sh\0p").info({"event": f"file {name}"})  # a text would break the report of this test
            return 7

        handle = await kept.aenqueue()
        await Worker(app).run(until_empty=True)
        assert {("info", "shop", "order 7"), ("info", "sh\ufffdp", "file caf?")} <= set(await said(handle))
        assert await handle.aresult() == 7
        await app.aclose()


@pytest.mark.parametrize("level", ["INFO", "loud", True])
def test_a_level_that_does_not_exist_is_refused(level: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="keep_logs"):
        App("sqlite:///:memory:").job("a", keep_logs=level)
