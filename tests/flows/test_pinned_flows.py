"""Old and new code side by side: a run goes on with the version of the code with which it was started."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from ojster import App, Flow, InvalidRequest, Worker
from ojster.api.flows import FlowType
from ojster.insight.attention import find_attention
from ojster.service import Service
from tests.waiting import PATIENCE
from tests.worker.test_worker import working

pytestmark = pytest.mark.anyio

Deploy = Callable[..., FlowType[Any, str]]


@pytest.fixture
async def deploy(shared_url: str) -> AsyncIterator[Deploy]:
    """Declare a flow in a new application, as a deploy does: its result is the name of the code that has ended it."""
    apps: list[App] = []

    def declare(code: str, **options: Any) -> FlowType[Any, str]:
        app = App(shared_url)
        apps.append(app)

        @app.flow("order", **options)
        async def order(flow: Flow) -> str:
            await flow.receive("paid")
            return code

        return order

    yield declare
    for app in apps:
        await app.aclose()


async def work(*flows: FlowType[Any, str]) -> None:
    for flow in flows:
        await Worker(flow.app).run(until_empty=True)  # type: ignore[arg-type]  # it is an App


async def test_each_run_goes_on_with_the_version_that_it_was_started_with(deploy: Deploy) -> None:
    old, new = deploy("old", version="1.0"), deploy("new", version="2.0")
    before, after = await old.astart(), await new.astart()
    await work(old, new)
    for run in (before, after):
        await run.asend("paid")
    async with working(new.app):  # type: ignore[arg-type]  # it is an App
        assert await after.aresult(PATIENCE) == "new"
        assert (await before.arefresh()).state == "running"
        service = new.app.client()
        assert isinstance(service, Service)
        findings = await service.database.survey(find_attention, None)
    (finding,) = [finding for finding in findings if finding.kind == "unrunnable"]
    assert "not 1.0.0" in finding.message
    await work(old)
    assert await before.aresult() == "old"


@pytest.mark.parametrize("versions", ["*", ">=1.0", "1.0"])
async def test_code_that_supports_an_older_version_takes_over_its_runs(deploy: Deploy, versions: str) -> None:
    old = deploy("old", version="1.0")
    run = await old.astart()
    await work(old)
    await run.asend("paid")
    await work(deploy("new", version="2.0", versions=versions))
    assert await run.aresult() == "new"


async def test_a_run_without_a_version_goes_on_anywhere(deploy: Deploy) -> None:
    run = await deploy("old").astart()
    await run.asend("paid")
    await work(deploy("new", version="2.0"))
    assert await run.aresult() == "new"


async def test_versions_that_are_no_range_are_refused(deploy: Deploy) -> None:
    with pytest.raises(InvalidRequest, match="is not a version range"):
        deploy("new", version="2.0", versions="two")
