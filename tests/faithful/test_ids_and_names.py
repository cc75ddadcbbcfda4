"""Ids and names that people choose: of workflows, steps and definitions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import msgspec
import pytest

from ojster.core.parsing import _with_job_ids
from ojster.schedules.due_work import run_due
from ojster.server.endpoints import routes_of
from tests.conftest import Bench, Http

pytestmark = pytest.mark.anyio

W = "/ojs/v1/workers"
CALLS: dict[str, tuple[str, str, Any, str | None]] = {
    "ack": ("POST", f"{W}/ack", {"job_id": "ID"}, "completed"),
    "ack batch": ("POST", f"{W}/ack/batch", {"acks": [{"job_id": "ID"}]}, "completed"),
    "nack": ("POST", f"{W}/nack", {"job_id": "ID", "error": {"message": "no"}}, "retryable"),
    "nack batch": ("POST", f"{W}/nack/batch", {"nacks": [{"job_id": "ID", "error": {"message": "n"}}]}, "retryable"),
    "requeue": ("POST", f"{W}/nack", {"job_id": "ID", "requeue": True}, "available"),
    "release": ("POST", f"{W}/release", {"job_id": "ID", "then": "wait"}, "pending"),
    "release batch": ("POST", f"{W}/release/batch", {"releases": [{"job_id": "ID"}]}, "available"),
    "progress": ("POST", f"{W}/progress", {"job_id": "ID", "progress": 0.5}, None),
    "results": ("POST", "/ojs/v1/jobs/results", {"ids": ["ID"]}, None),
    "cancel": ("POST", "/ojs/v1/jobs/batch/cancel", {"job_ids": ["ID"]}, "cancelled"),
    "bulk cancel": ("POST", "/ojs/v1/jobs/bulk/cancel", {"job_ids": ["ID"]}, "cancelled"),
    "ack in the path": ("POST", "/ojs/v1/jobs/ID/ack", {}, "completed"),
    "progress in the path": ("PUT", "/ojs/v1/jobs/ID/progress", {"progress": 0.5}, None),
    "checkpoint in the path": ("PUT", "/ojs/v1/jobs/ID/checkpoint", {"state": 1}, None),
}
"""Calls with the id of a running job in their paths or bodies, and the state of the job after it, if it changes."""


@pytest.mark.parametrize("call", CALLS)
async def test_an_id_in_upper_case_means_the_same_job(http: Http, call: str) -> None:
    method, path, body, state = CALLS[call]
    id = (await http.push(type="a"))["id"]
    await http.fetch()
    sent = msgspec.json.decode(msgspec.json.encode(body).replace(b'"ID"', f'"{id.upper()}"'.encode()))
    answer = await http(method, path.replace("ID", id.upper()), sent)
    assert (answer.status_code, "not_found" in answer.text, id.upper() in answer.text) == (200, False, False)
    assert (await http("GET", f"/ojs/v1/jobs/{id}")).json()["job"]["state"] == (state or "active")


@pytest.mark.parametrize(
    "members",
    [
        {"active_jobs": ["ID"]},
        {"active_jobs": 1, "active_job_ids": ["ID"]},
        {"job_id": "ID"},
        {"active_jobs": ["ID"], "attempts": {"ID": 1}},
    ],
)
async def test_heartbeats_keep_the_lease_of_jobs_with_ids_in_upper_case(
    http: Http, bench: Bench, members: dict[str, Any]
) -> None:
    id = (await http.push(type="a", options={"visibility_timeout": "PT30S"}))["id"]
    await http.fetch(worker_id="w")
    sent = msgspec.json.encode({"worker_id": "w", "visibility_timeout_ms": 60_000} | members)
    sent = sent.replace(b'"ID"', f'"{id.upper()}"'.encode())
    bench.clock.advance(20)
    answer = await http("POST", f"{W}/heartbeat", msgspec.json.decode(sent))
    assert answer.json()["jobs_lost"] == []
    bench.clock.advance(20)
    await bench.service.database.run(run_due, None)
    assert (await http("GET", f"/ojs/v1/jobs/{id}")).json()["job"]["state"] == "active"


def members_of(kind: Any) -> Iterator[tuple[type, str]]:
    """Yield the members of a request, and those of the objects in it, with the types that have them."""
    described = msgspec.inspect.type_info(kind)
    if isinstance(described, msgspec.inspect.StructType):
        for field in described.fields:
            yield kind, field.encode_name
            types = field.type.types if isinstance(field.type, msgspec.inspect.UnionType) else (field.type,)
            for inner in types:
                inner = inner.item_type if isinstance(inner, msgspec.inspect.ListType) else inner
                if isinstance(inner, msgspec.inspect.StructType):
                    yield from members_of(inner.cls)


def test_every_member_of_a_request_that_is_named_for_ids_of_jobs_is_read_in_lower_case() -> None:
    named = {
        (kind, name)
        for route in routes_of()
        if route.body is not None
        for kind, name in members_of(route.body)
        if name in ("ids", "active_jobs") or ("job" in name and "id" in name)
    }
    assert len(named) > 10
    assert {(kind, name) for kind, name in named if name not in dict(_with_job_ids(kind))} == set()


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
