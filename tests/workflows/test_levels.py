"""Levels of a workflow's graph: what is in a container, in pages, with the arrows between the steps."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conftest import Bench, Http

pytestmark = pytest.mark.anyio

V1 = "/ojs/v1/workflows"


async def create(http: Http, body: dict[str, Any]) -> str:
    answer = await http("POST", V1, body)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["workflow"]["id"])


async def level(http: Http, id: str, query: str = "") -> Any:
    answer = await http("GET", f"{V1}/{id}/graph{query}")
    assert answer.status_code == 200, answer.text
    return answer.json()


def step(id: str, *after: str, **more: Any) -> dict[str, Any]:
    return {"id": id, "type": f"do.{id}", "args": [], **({"depends_on": list(after)} if after else {}), **more}


def job(number: int = 0) -> dict[str, Any]:
    return {"type": "row.import", "args": [number]}


async def test_steps_of_a_graph_say_which_they_follow(http: Http) -> None:
    id = await create(http, {"type": "graph", "steps": [step("a"), step("b", "a"), step("c", "a", "b")]})
    steps = (await level(http, id))["steps"]
    numbers = {one["path"]: one["number"] for one in steps}
    arrows = {one["path"]: one.get("after", []) for one in steps}
    assert arrows == {"a": [], "b": [numbers["a"]], "c": [numbers["a"], numbers["b"]]}
    assert [one["type"] for one in steps] == ["do.a", "do.b", "do.c"]


async def test_containers_are_folded_and_unfold_by_their_number(http: Http) -> None:
    group = {"id": "rows", "type": "group", "jobs": [job(number) for number in range(5)], "depends_on": ["list"]}
    id = await create(http, {"type": "graph", "steps": [step("list"), group]})
    folded = (await level(http, id))["steps"][1]
    assert (folded["path"], folded["is_container"], folded["total"]) == ("rows", True, 5)
    first = await level(http, id, f"?of={folded['number']}&limit=3")
    assert [one["path"] for one in first["steps"]] == ["rows.0", "rows.1", "rows.2"]
    assert (first["total"], first["next_cursor"]) == (5, "2")
    rest = await level(http, id, f"?of={folded['number']}&limit=3&cursor={first['next_cursor']}")
    assert [one["path"] for one in rest["steps"]] == ["rows.3", "rows.4"]
    assert rest["next_cursor"] is None


async def test_a_chain_is_one_after_the_other(http: Http) -> None:
    id = await create(http, {"type": "chain", "steps": [job(0), job(1)]})
    first, second = (await level(http, id))["steps"]
    assert second["after"] == [first["number"]]


async def test_callbacks_are_branches_beside_the_jobs_of_a_batch(http: Http) -> None:
    body = {"type": "batch", "jobs": [job(0), job(1)], "callbacks": {"on_complete": {"type": "done", "args": []}}}
    id = await create(http, body)
    steps = (await level(http, id))["steps"]
    (root,) = [one for one in steps if one.get("is_container")] or [{"number": 0}]
    inside = (await level(http, id, f"?of={root['number']}"))["steps"] if root["number"] else steps
    assert [one["path"] for one in inside if not one.get("is_branch")] == ["0", "1"]
    assert [one["type"] for one in inside if one.get("is_branch")] == ["done"]


async def test_states_follow_the_jobs(http: Http, bench: Bench) -> None:
    id = await create(http, {"type": "chain", "steps": [job(0), job(1)]})
    await bench.ack(await bench.fetch_one("default"))
    first, second = (await level(http, id))["steps"]
    assert (first["state"], second["state"], second["job_state"]) == ("completed", "active", "available")


async def test_what_is_not_there_is_not_found(http: Http) -> None:
    id = await create(http, {"type": "chain", "steps": [job()]})
    for path in (f"{V1}/{id}/graph?of=999999", f"{V1}/01a20ec4-8313-762c-a6e8-3947d66dfc23/graph", f"{V1}/x/graph"):
        assert (await http("GET", path)).status_code == 404, path
    foreign = await http("GET", f"{V1}/{id}/graph", headers={"X-OJS-Tenant": "acme"})
    assert foreign.status_code == 404
    (only,) = (await level(http, id))["steps"]
    assert (await http("GET", f"{V1}/{id}/graph?of={only['number']}")).status_code == 404, "a job is no container"
    assert (await http("GET", f"{V1}/{id}/graph?of=x")).status_code == 400


async def test_a_large_group_is_read_in_pages_of_bounded_size(http: Http) -> None:
    id = await create(http, {"type": "group", "jobs": [job(number) for number in range(700)]})
    first = await level(http, id, "?limit=10000")
    assert (len(first["steps"]), first["total"]) == (500, 700)


async def test_a_workflow_without_its_steps_says_what_it_waits_for(http: Http) -> None:
    id = await create(http, {"type": "graph", "steps": [step("go", manual=True)]})
    shown = (await http("GET", f"{V1}/{id}?steps=false")).json()["workflow"]
    assert shown["waiting_for"] == ["gate"]
