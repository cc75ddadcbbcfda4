"""What the workers of an application register when they start."""

from __future__ import annotations

import pytest

from ojster import App, Flow
from ojster.worker.registration import register

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
