"""Flows that do not go on are in the list of what needs attention, and in a metric."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from ojster import App, Flow
from ojster.fleet.workers import Heartbeat
from ojster.insight.attention import find_attention
from ojster.insight.flow_troubles import find_flow_troubles
from ojster.server.gauges import GAUGES
from ojster.service import Service
from tests.conftest import Clock
from tests.flows.driver import FlowBench

pytestmark = pytest.mark.anyio


@pytest.fixture
async def bench(service: Service, clock: Clock, url: str) -> AsyncIterator[FlowBench]:
    app = App(url)
    yield FlowBench(service, clock, app)
    await app.aclose()


async def troubles(bench: FlowBench) -> list[tuple[str, str, int, str]]:
    found = await bench.service.database.survey(find_flow_troubles, None)
    return [(one.kind, one.name, one.count, one.workflow_id) for one in found]


async def findings(bench: FlowBench) -> list[Any]:
    found = await bench.service.database.survey(find_attention, None)
    return [one for one in found if one.kind == "flows"]


async def metric(bench: FlowBench) -> dict[tuple[str, str], float]:
    (family,) = await GAUGES["insight"](bench.service)
    return {(one.labels["reason"], one.labels["name"]): one.value for one in family.samples}


async def test_a_flow_whose_code_does_not_fit_its_records_is_an_error_until_it_is_retried(bench: FlowBench) -> None:
    @bench.app.flow("order")
    async def order(flow: Flow) -> None:
        await flow.step("one", abs, 1)
        await flow.receive("paid")

    await bench.start(order.s())
    await bench.work()
    assert (await troubles(bench), await findings(bench), await metric(bench)) == ([], [], {})
    del bench.app.handlers["order"]

    @bench.app.flow("order")
    async def changed(flow: Flow) -> None:
        await flow.step("one", abs, 2)
        await flow.receive("paid")

    await bench.send("paid", None)
    await bench.work()
    assert (await bench.look()).state == "failed"
    assert await troubles(bench) == [("mismatched", "order", 1, bench.id)]
    (finding,) = await findings(bench)
    assert (finding.level, finding.subject, finding.count) == ("error", bench.id, 1)
    assert "1 flow order stopped" in finding.message
    assert await metric(bench) == {("mismatched", "order"): 1.0}
    await bench.service.workflows.retry(bench.id)
    assert await findings(bench) == []


async def test_a_flow_that_a_worker_runs_for_hours_is_a_warning(bench: FlowBench) -> None:
    @bench.app.flow("order")
    async def order(flow: Flow) -> None:
        await flow.receive("paid")

    await bench.start(order.s())
    await bench.push("plain", queue="other")
    job, plain = await bench.fetch_one(), await bench.fetch_one("other")
    for _ in range(8):
        bench.clock.advance(600)
        await bench.service.fleet.beat(Heartbeat("w1", (job.id, plain.id), lease=3_600_000_000))
    assert await troubles(bench) == [("stuck", "order", 1, bench.id)]
    (finding,) = await findings(bench)
    assert (finding.level, finding.subject) == ("warning", bench.id)


async def test_a_flow_that_no_worker_runs_is_counted_and_found_among_the_jobs_that_none_can_run(
    bench: FlowBench,
) -> None:
    @bench.app.flow("order")
    async def order(flow: Flow) -> None:
        await flow.receive("paid")

    await bench.start(order.s())
    await bench.push("plain", queue="other")
    await bench.service.fleet.beat(Heartbeat("elsewhere", queues=("elsewhere",)))
    assert await troubles(bench) == [("unrunnable", "order", 1, bench.id)]
    assert await findings(bench) == [], "it is a finding of its own kind"
    found = await bench.service.database.survey(find_attention, None)
    assert [one.kind for one in found] == ["unrunnable", "unrunnable"]
    assert await metric(bench) == {("unrunnable", "order"): 1.0}
