"""Ids and names that people choose: of workflows, steps and definitions."""

from __future__ import annotations

from urllib.parse import quote

import pytest

from tests.conftest import Http

pytestmark = pytest.mark.anyio

CHOSEN = [
    "wf_019539a4-chain-example",
    "order 17 of 3",
    "Größe#1?",
    "100%",
    "WF:1;a=b",
    "x" * 128,
]


@pytest.mark.parametrize("id", CHOSEN)
async def test_a_workflow_is_found_by_the_id_that_its_creator_chose(http: Http, id: str) -> None:
    made = await http("POST", "/ojs/v1/workflows", {"type": "chain", "id": id, "steps": [{"type": "a", "args": []}]})
    assert made.status_code == 201, made.text
    path = made.headers["location"]
    assert path == f"/ojs/v1/workflows/{quote(id, safe='')}"
    (job,) = await http.fetch()
    assert job["workflow_id"] == id
    await http("POST", "/ojs/v1/workers/nack", {"job_id": job["id"], "error": {"code": "DISCARD", "message": "no"}})
    shown = (await http("GET", path)).json()["workflow"]
    assert shown["id"] == id
    again = await http("POST", "/ojs/v1/workflows", {"type": "chain", "id": id, "steps": [{"type": "a", "args": []}]})
    assert again.status_code == 409
    assert (await http("GET", f"{path}/status")).status_code == 200
    note = await http("POST", f"{path}/info", {"note": "hello"})
    assert note.status_code == 201, note.text
    retried = await http("POST", f"{path}/retry")
    assert retried.status_code == 200, retried.text


@pytest.mark.parametrize("id", ["", " a", "a ", "a/b", ".", "..", "a\nb", "a\x00b", "x" * 129, "statistics"])
async def test_ids_that_cannot_stand_in_a_path_are_refused(http: Http, id: str) -> None:
    made = await http("POST", "/ojs/v1/workflows", {"type": "chain", "id": id, "steps": [{"type": "a", "args": []}]})
    assert made.status_code == 400, made.text
    assert "128 printable characters" in made.text


async def test_steps_are_referred_to_by_the_ids_that_people_choose(http: Http) -> None:
    graph = {
        "type": "graph",
        "steps": [
            {"id": "fetch: all orders", "type": "a", "args": []},
            {
                "id": "Größe 2",
                "type": "b",
                "args": [{"$ref": "steps.fetch: all orders.result"}],
                "depends_on": ["fetch: all orders"],
            },
        ],
    }
    made = await http("POST", "/ojs/v1/workflows", graph)
    assert made.status_code == 201, made.text
    (job,) = await http.fetch()
    await http("POST", "/ojs/v1/workers/ack", {"job_id": job["id"], "result": [1, 2]})
    (job,) = await http.fetch()
    assert (job["type"], job["args"]) == ("b", [[1, 2]])
    id = made.json()["workflow"]["id"]
    cancelled = await http("POST", f"/ojs/v1/workflows/{id}/steps/{quote('Größe 2', safe='')}/cancel")
    assert cancelled.status_code == 200, cancelled.text


@pytest.mark.parametrize("id", ["", "7", "a.b", "a/b", " a"])
async def test_step_ids_that_mean_something_else_are_refused(http: Http, id: str) -> None:
    graph = {"type": "graph", "steps": [{"id": id, "type": "a", "args": []}]}
    made = await http("POST", "/ojs/v1/workflows", graph)
    assert made.status_code == 400
    assert "steps[0].id" in made.text


@pytest.mark.parametrize("name", ["Sample Workflow", "Rechnung (2026) + neu", "a.b_c-d"])
async def test_definitions_have_the_names_that_people_choose(http: Http, name: str) -> None:
    body = {"name": name, "type": "chain", "steps": [{"type": "a", "args": []}]}
    made = await http("POST", "/ojs/v1/definitions", body)
    assert made.status_code == 201, made.text
    path = f"/ojs/v1/definitions/{quote(name, safe='')}"
    assert made.headers["location"].startswith(path)
    assert (await http("GET", path)).json()["definition"]["name"] == name
    assert [one["name"] for one in (await http("GET", "/ojs/v1/definitions")).json()["definitions"]] == [name]
    started = await http("POST", "/ojs/v1/workflows", {"definition": name})
    assert started.status_code == 201, started.text
    assert started.json()["workflow"]["definition"] == name
    listed = await http("GET", "/ojs/v1/workflows", params={"definition": name})
    assert len(listed.json()["workflows"]) == 1
    other = await http("GET", path, headers={"X-OJS-Tenant": "acme"})
    assert other.status_code == 404


@pytest.mark.parametrize("name", ["", "/tenant/acme/x", " a", "a ", "-a", "x" * 129])
async def test_names_of_definitions_that_could_be_mistaken_are_refused(http: Http, name: str) -> None:
    body = {"name": name, "type": "chain", "steps": [{"type": "a", "args": []}]}
    assert (await http("POST", "/ojs/v1/definitions", body)).status_code == 400
