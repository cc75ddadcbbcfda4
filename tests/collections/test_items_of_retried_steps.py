"""Items of steps that run again: nobody finds what an attempt has added that counts no more."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from ojster.collections.items import NewItem, Where
from tests.workflows.bench import WorkflowBench, chain, graph, job, ref

pytestmark = pytest.mark.anyio

BUILT = {"$lookup": {"collection": "internal", "name_startswith": "build-"}}


async def listed(flow: WorkflowBench, **more: Any) -> list[tuple[str, str, Any]]:
    items = await flow.service.collections.items(Where(workflow_id=flow.id), **more)
    return sorted((item.name, item.kind, msgspec.json.decode(item.data)) for item in items)


async def test_a_retried_workflow_finds_no_item_of_a_clean_up_that_it_does_not_need_again(flow: WorkflowBench) -> None:
    clean_up = job("clean-up", id="clean-up", depends_on=["build"], when="failed", provides=["report"])
    await flow.create(graph(job("build", id="build"), clean_up, job("read", {"$lookup": "internal/report"}, id="read")))
    assert await flow.work("build") == ["build", "clean-up", "read"]
    await flow.service.workflows.retry(flow.id)
    assert await listed(flow) == [("report", "promise", None)]
    assert await flow.work() == ["build"]
    assert await flow.states() == {"build": "completed", "clean-up": "skipped", "read": "failed"}
    assert msgspec.json.decode((await flow.step("read")).error or b"")["code"] == "unresolvable_reference"
    kept = [("report", "data", {"from": "clean-up"}), ("report", "promise", None), ("report", "promise", None)]
    assert await listed(flow, history=True) == kept


async def test_an_item_is_a_promise_while_its_step_runs_again(flow: WorkflowBench) -> None:
    report = job("report", id="report", depends_on=["build"], when="finished", provides=["report"])
    await flow.create(graph(job("build", id="build"), report, job("other", id="other", provides=["other"])))
    assert await flow.work("build") == ["build", "other", "report"]
    await flow.retry_step("build")
    assert await listed(flow) == [("other", "data", {"from": "other"}), ("report", "promise", None)]
    await flow.work(results={"report": 2})
    assert await listed(flow) == [("other", "data", {"from": "other"}), ("report", "data", 2)]


async def test_a_map_over_another_list_leaves_no_items_of_elements_that_it_had_before(flow: WorkflowBench) -> None:
    build = job("build", ref("item"), provides=["build-{job.args.0}"])
    builds = {"type": "map", "over": ref("steps.list.result"), "do": build}
    undone = {"type": "saga", "steps": [job("list", id="list"), builds, job("check", BUILT, compensate=job("undo"))]}
    await flow.create(chain(undone))
    assert await flow.work("check", results={"list": ["a", "b"]}) == ["list", "build", "build", "check"]
    await flow.service.workflows.retry(flow.id)
    await flow.work(results={"list": ["b", "c"]})
    assert [item["name"] for item in flow.arguments["check"][0]] == ["build-b", "build-c"]


async def test_an_item_that_somebody_else_has_put_in_its_place_stays(flow: WorkflowBench) -> None:
    report = job("report", id="report", depends_on=["build"], when="finished", provides=["report"])
    await flow.create(graph(job("build", id="build"), report))
    await flow.work("build")
    await flow.service.collections.add(Where(workflow_id=flow.id), NewItem("report", b'"by hand"', replace=True))
    await flow.retry_step("build")
    assert await listed(flow) == [("report", "data", "by hand")]
