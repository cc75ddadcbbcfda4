"""Old and new code side by side: a run goes on with the version of the code with which it was started."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from ojster import App, Flow, InvalidRequest, Worker, batch, chain, definition, each, group, result_of
from ojster.api.flows import FlowType
from ojster.insight.attention import find_attention
from ojster.jobs.claim_policy import Claim
from ojster.jobs.messages import Acknowledgement
from ojster.jobs.sweeps import Sweep
from ojster.jobs.versions import version_number
from ojster.service import Service
from ojster.workflows.read.selection import WorkflowConditions
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
    assert "move them to another version with `ojster flows pin order VERSION`" in finding.message
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


async def pin(flow: FlowType[Any, str], version: str, from_version: str | None = None, **chosen: Any) -> Sweep:
    """Pin runs of a flow; a dry run before says the same."""
    bulk = flow.app.client().workflow_bulk
    conditions = WorkflowConditions(**chosen or {"name": "order"})
    foreseen, swept = [
        await bulk.pin(conditions, flow="order", version=version, from_version=from_version, dry_run=dry_run)
        for dry_run in (True, False)
    ]
    assert [str(refusal) for _, refusal in foreseen.items] == [str(refusal) for _, refusal in swept.items]
    return swept


async def test_an_operator_moves_runs_to_another_version(deploy: Deploy) -> None:
    old, new = deploy("old", version="1.0"), deploy("new", version="2.0")
    one, two, other = [await old.astart() for _ in range(3)]
    await work(old)
    assert [id for id, _ in (await pin(old, "2.0", ids=(one.id,))).items] == [one.id]
    for run in (one, two, other):
        await run.asend("paid")
    async with working(new.app):  # type: ignore[arg-type]  # it is an App
        assert await one.aresult(PATIENCE) == "new"
        assert (await two.arefresh()).state == "running"
        swept = await pin(old, "2.0", "1.0")  # wakes the worker
        assert {id for id, _ in swept.items} == {two.id, other.id}
        assert [await run.aresult(PATIENCE) for run in (two, other)] == ["new", "new"]


async def test_a_retry_and_a_fork_stay_with_the_version_to_which_a_run_was_moved(deploy: Deploy) -> None:
    old = deploy("old", version="1.0")
    run = await old.astart()
    await work(old)
    await pin(old, "2.0")
    await run.acancel()
    new = deploy("new", version="2.0")
    await work(old, new)
    await run.aretry()
    fork = await run.afork()
    for one in (run, fork):
        await one.asend("paid")
    await work(old)
    assert {(await one.arefresh()).state for one in (run, fork)} == {"running"}
    await work(new)
    assert {await one.aresult() for one in (run, fork)} == {"new"}


async def test_flows_inside_others_and_those_that_have_not_begun_are_moved(deploy: Deploy) -> None:
    old, new = deploy("old", version="1.0"), deploy("new", version="2.0")

    assert isinstance(old.app, App)

    @old.app.job("first")
    def first() -> None:
        return None

    run = await old.app.astart(chain(first.s(), old.s()), name="shop")
    assert (await pin(old, "2.0", name="shop")).succeeded == 1
    await run.asend("paid", step="1")
    await work(old)
    assert (await run.arefresh()).state == "running"
    await work(new)
    assert await run.aresult() == "new"


async def test_flows_that_maps_and_definitions_create_later_are_moved(deploy: Deploy) -> None:
    old = deploy("old", version="1.0")
    app = old.app
    assert isinstance(app, App)

    @app.job("first")
    def first() -> list[int]:
        return [1, 2]

    await app.adefine("part", batch(group(old.s(), first.s()), on_success=old.s()))
    listed = chain(first.s().set(id="first"), each(result_of("first"), chain(definition("part"), old.s())))
    runs = [await app.astart(steps, name="shop") for steps in (listed, each(list(range(20)), old.s()))]
    assert (await pin(old, "3.0", "2.0", name="shop")).matched == 0
    assert (await pin(old, "2.0", "1.0", name="shop")).succeeded == 2
    assert (await pin(old, "2.0", name="shop")).matched == 0
    service = app.client()
    assert isinstance(service, Service)
    versions: set[str] = set()
    while jobs := await service.jobs.fetch(Claim(("default",), 100, "w1")):
        versions |= {str(job.version) for job in jobs if job.type == "order"}
        done = [Acknowledgement(job.id, b"[1,2]", "w1", job.attempt) for job in jobs]
        await service.jobs.acknowledge(done)
    for run in runs:
        assert (await run.arefresh()).state == "completed"
    assert versions == {str(version_number("2.0"))}


async def test_what_has_ended_runs_or_is_another_flow_is_not_moved(deploy: Deploy) -> None:
    flow = deploy("old", version="1.0")
    ended, waiting, running = [await flow.astart() for _ in range(3)]
    await ended.asend("paid")
    await work(flow)
    service = flow.app.client()
    assert isinstance(service, Service)
    await running.asend("paid")
    assert await service.jobs.fetch(Claim(("default",), 1, "w1"))
    swept = await pin(flow, "2.0", ids=(ended.id, running.id))
    reasons = {id: str(refusal) for id, refusal in swept.items}
    assert "is completed, and keeps its version" in reasons[ended.id]
    assert "runs on the worker 'w1'" in reasons[running.id]
    for version, from_version in (("1.0", None), ("1.0.0", None), ("2.0", "3.0")):
        assert (await pin(flow, version, from_version)).matched == 0
        ((_, refusal),) = (await pin(flow, version, from_version, ids=(waiting.id,))).items
        assert "has no flow 'order'" in str(refusal)
    for version, from_version in (("two", None), ("2.0", "x")):
        with pytest.raises(InvalidRequest, match="is not a version"):
            await pin(flow, version, from_version)


async def test_a_run_that_is_moved_before_it_begins_is_not_counted_as_enqueued_again(deploy: Deploy) -> None:
    flow = deploy("old", version="1.0")
    await flow.astart()
    for version in ("2.0", "3.0"):
        assert (await pin(flow, version)).succeeded == 1
    assert (await flow.app.client().queues.statistics("default")).enqueued == 1


async def test_a_run_without_a_version_goes_on_anywhere(deploy: Deploy) -> None:
    run = await deploy("old").astart()
    await run.asend("paid")
    await work(deploy("new", version="2.0"))
    assert await run.aresult() == "new"


async def test_versions_that_are_no_range_are_refused(deploy: Deploy) -> None:
    with pytest.raises(InvalidRequest, match="is not a version range"):
        deploy("new", version="2.0", versions="two")
