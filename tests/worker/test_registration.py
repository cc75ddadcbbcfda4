"""What the workers of an application register when they start."""

from __future__ import annotations

import asyncio

import pytest

from ojster import App, Flow, Worker
from ojster.core.errors import BackendError, BackendUnavailable
from ojster.schedules.cron import Cron
from ojster.worker import drain_check
from ojster.worker.registration import register
from tests.waiting import PATIENCE

pytestmark = pytest.mark.anyio


async def test_a_worker_announces_the_arguments_of_its_handlers(shared_url: str) -> None:
    app = App(shared_url)
    app.job("report")(lambda day: None)

    @app.flow("order")
    async def order(flow: Flow, items: list[str]) -> None: ...

    await register(app.client(), app)
    signatures = {one.type: one for one in await app.client().job_types.signatures()}
    await app.aclose()
    assert [signatures[type].schema["prefixItems"][0]["title"] for type in ("report", "order")] == ["day", "items"]
    assert (signatures["report"].is_flow, signatures["order"].is_flow) == (False, True)


async def test_what_an_earlier_version_of_the_application_has_declared_is_told(
    shared_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    earlier, later = App(shared_url), App(shared_url)

    @earlier.cron("0 9 * * *", name="daily")
    @earlier.job("report", queue="old")
    async def report() -> None: ...

    later.job("report")(report.function)
    for app in (earlier, later):
        assert caplog.messages == [] or app is later
        await register(app.client(), app)
        await app.aclose()
    told = "\n".join(caplog.messages)
    assert "`ojster job-types delete report`" in told
    assert "`ojster cron remove daily`" in told


async def test_a_worker_that_runs_until_empty_ends_with_the_error_that_keeps_it_from_registering(
    shared_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drain_check, "ERROR_PATIENCE_SECONDS", 0.0)
    app = App(shared_url)
    done: list[int] = []

    @app.cron("0 9 * * *", name="daily")
    @app.job("report")
    async def report() -> None:
        done.append(1)

    async def refuse(cron: Cron) -> None:
        raise BackendUnavailable("The database cannot be used: permission denied for table crons (42501)")

    await report.aenqueue()
    monkeypatch.setattr(app.client().schedules, "register", refuse)
    with pytest.raises(BackendError, match="The log says why"):
        await asyncio.wait_for(Worker(app).run(until_empty=True), PATIENCE)
    await app.aclose()
    assert done == [1]


async def test_a_worker_that_runs_for_ever_registers_what_the_database_has_refused_for_long(
    shared_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ojster.worker.backoff.FIRST_PAUSE_SECONDS", 0.0)
    app = App(shared_url)
    app.cron("0 9 * * *", name="daily")(app.job("report")(lambda: None))
    register_cron, refusals = app.client().schedules.register, [BackendUnavailable("permission denied")] * 3

    async def refuse_first(cron: Cron) -> object:
        if refusals:
            raise refusals.pop()
        return await register_cron(cron)

    monkeypatch.setattr(app.client().schedules, "register", refuse_first)
    await register(app.client(), app)
    assert [cron.name for cron in await app.client().schedules.all()] == ["daily"]
    await app.aclose()
