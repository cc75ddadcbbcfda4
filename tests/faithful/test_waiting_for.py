"""The status of a workflow says for whom or what its steps wait."""

from __future__ import annotations

from typing import Any

import pytest

from ojster.jobs.messages import Release
from tests.conftest import Http
from tests.workflows.bench import WorkflowBench, graph, group, job

pytestmark = pytest.mark.anyio


async def test_the_status_says_what_each_step_waits_for(http: Http, flow: WorkflowBench) -> None:
    await flow.create(
        group(
            graph(
                group(job("maker", provides=["x"]), id="early"),
                group(job("user", {"$lookup": "internal/x"}, id="user"), id="late"),
                id="items",
            ),
            {"type": "gate", "id": "release"},
            job("careful", id="careful", manual=True),
            {"type": "wait", "id": "answer", "form": {"type": "object"}},
            {"type": "wait", "id": "tomorrow", "delay": "P1D"},
            job("paused", id="paused"),
            job("busy", id="busy"),
        )
    )
    jobs = {one.type: one for one in await flow.take(10)}
    paused = jobs["paused"]
    await flow.service.jobs.release([Release(paused.id, paused.worker_id, paused.attempt, then="wait")])
    answer = await http("GET", f"/ojs/v1/workflows/{flow.id}/status")
    current = {step["path"]: step for step in answer.json()["status"]["current"]}
    assert {path: step.get("waiting_for") for path, step in current.items()} == {
        "release": "gate",
        "careful": "gate",
        "answer": "form",
        "tomorrow": "delay",
        "paused": "suspension",
        "busy": None,
        "items.early.0": None,
        "items.late.user": "promise",
    }
    assert current["release"]["state"] == "blocked"
    assert current["tomorrow"]["state"] == "waiting"


async def test_lists_say_and_select_what_workflows_wait_for(http: Http, flow: WorkflowBench) -> None:
    waits: dict[str, dict[str, Any]] = {
        "gate": {"type": "gate", "id": "release"},
        "form": {"type": "wait", "id": "answer", "form": {"type": "object"}},
        "delay": {"type": "wait", "id": "tomorrow", "delay": "P1D"},
        "promise": graph(
            group(job("busy", provides=["x"]), id="early"), group(job("b", {"$lookup": "internal/x"}), id="late")
        ),
        "suspension": job("paused"),
    }
    ids = {what: (await flow.create(group(step, job("busy")))).id for what, step in waits.items()}
    both = (await flow.create(group(waits["gate"], waits["form"]))).id
    for one in await flow.take(10):
        if one.type == "paused":
            await flow.service.jobs.release([Release(one.id, one.worker_id, one.attempt, then="wait", again=True)])

    async def listed(**query: str) -> dict[str, list[str]]:
        answer = (await http("GET", "/ojs/v1/workflows", params=query)).json()
        assert answer["pagination"]["total"] == len(answer["workflows"])
        return {one["id"]: one.get("waiting_for", []) for one in answer["workflows"]}

    assert await listed() == {id: [what] for what, id in ids.items()} | {both: ["gate", "form"]}
    for what, id in ids.items():
        assert set(await listed(waiting_for=what)) == {id, *([both] if what in ("gate", "form") else [])}
    assert await listed(waiting_for="delay", state="completed") == {}
    refused = await http("GET", "/ojs/v1/workflows", params={"waiting_for": "godot"})
    assert (refused.status_code, refused.json()["error"]["details"]["field"]) == (400, "waiting_for")


async def test_what_no_longer_waits_is_not_listed(http: Http, flow: WorkflowBench) -> None:
    await flow.create(group({"type": "gate", "id": "release"}, job("busy")))
    await flow.review("release", "approve")
    answer = await http("GET", "/ojs/v1/workflows", params={"waiting_for": "gate"})
    assert answer.json()["workflows"] == []


async def test_who_waited_for_an_item_waits_no_more_when_it_is_there_or_all_is_over(
    http: Http, flow: WorkflowBench
) -> None:
    async def waiting() -> list[str]:
        answer = await http("GET", "/ojs/v1/workflows", params={"waiting_for": "promise"})
        return [one["id"] for one in answer.json()["workflows"]]

    maker = group(job("maker", provides=["x"]), job("slow"), id="early")
    await flow.create(graph(maker, group(job("user", {"$lookup": "internal/x"}), id="late")))
    jobs = {one.type: one for one in await flow.take(2)}
    assert await waiting() == [flow.id]
    await flow.ack(jobs["maker"])
    assert await waiting() == []
    await flow.create(graph(maker, group(job("user", {"$lookup": "internal/x"}), id="late")))
    assert await waiting() == [flow.id]
    await flow.service.workflows.cancel(flow.id)
    assert await waiting() == []
