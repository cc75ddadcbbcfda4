"""Workflows over HTTP: responses and refusals."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ojster.core.errors import BackendUnavailable
from ojster.core.ids import new_id
from ojster.jobs import idempotency
from ojster.service import Service
from ojster.workflows.reading_service import WorkflowReading
from tests.conftest import Bench, Http

pytestmark = pytest.mark.anyio

CHAIN = {"type": "chain", "name": "two", "steps": [{"type": "a", "args": []}, {"type": "b", "args": []}]}


async def create(http: Http, wire: dict[str, Any]) -> dict[str, Any]:
    response = await http("POST", "/ojs/v1/workflows", wire)
    assert response.status_code == 201, response.text
    shown: dict[str, Any] = response.json()["workflow"]
    assert response.headers["location"] == f"/ojs/v1/workflows/{shown['id']}"
    return shown


async def get(http: Http, id: str, query: str = "") -> dict[str, Any]:
    shown: dict[str, Any] = (await http("GET", f"/ojs/v1/workflows/{id}{query}")).json()["workflow"]
    return shown


@pytest.mark.parametrize("dies", [False, True])
@pytest.mark.parametrize("steps", [2, 250])
async def test_a_repeated_request_starts_nothing_again_if_the_first_failed_after_the_start(
    http: Http, bench: Bench, monkeypatch: pytest.MonkeyPatch, steps: int, dies: bool
) -> None:
    """The database is away as soon as the workflow exists, or the server dies. Large workflows are made in parts."""

    async def unavailable(*args: Any, **more: Any) -> Any:
        raise BackendUnavailable("The database does not answer. Retry later.")

    wire = {"type": "group", "jobs": [{"type": "a", "args": []}] * steps}
    key = {"Idempotency-Key": "k"}
    with monkeypatch.context() as patch:
        patch.setattr(WorkflowReading, "show", unavailable)
        if dies:
            patch.setattr(idempotency, "finish", lambda tx, answers: [None for _ in answers])
        assert (await http("POST", "/ojs/v1/workflows", wire, headers=key)).status_code == 503
    bench.clock.advance(61)
    answers = [await http("POST", "/ojs/v1/workflows", wire, headers=key) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [201, 201]
    (only,) = (await http("GET", "/ojs/v1/workflows")).json()["workflows"]
    for answer in answers:
        assert answer.json()["workflow"]["id"] == only["id"]
        assert answer.json()["workflow"]["metadata"]["job_count"] == steps
        assert answer.headers["location"] == f"/ojs/v1/workflows/{only['id']}"


async def test_a_workflow_is_created_and_shown_as_the_specification_has_it(http: Http) -> None:
    made = await create(http, CHAIN)
    assert (made["type"], made["name"], made["state"]) == ("chain", "two", "running")
    assert (made["steps_total"], made["steps_completed"]) == (2, 0)
    first, second = made["steps"]
    assert (first["index"], first["type"], first["state"]) == (0, "a", "pending")
    assert (second["index"], second["state"], second["job_id"]) == (1, "waiting", None)
    assert made["metadata"]["job_count"] == 2
    (job,) = await http.fetch()
    assert job["id"] == first["job_id"]
    assert (job["workflow_id"], job["workflow_step"], job["parent_results"]) == (made["id"], "0", [])
    await http("POST", "/ojs/v1/workers/ack", {"job_id": job["id"], "result": {"ok": True}})
    shown = await get(http, made["id"])
    assert shown["steps"][0] | {"state": "completed", "result": {"ok": True}} == shown["steps"][0]
    assert {"started_at", "completed_at"} <= shown["steps"][0].keys()
    (job,) = await http.fetch()
    assert job["parent_results"] == [{"ok": True}]


async def test_unknown_members_of_workflows_containers_and_gates_are_kept_and_shown(http: Http) -> None:
    gate = {"type": "gate", "id": "ok", "x-form": "blue"}
    parts = {"type": "group", "jobs": [{"type": "a", "args": []}], "team": "a b", "x-nothing": None}
    wire = {"type": "chain", "steps": [parts, gate], "x-team": {"n": [1, 2.50]}, "state": "failed", "result": "forged"}
    made = await create(http, wire)
    for shown in (made, await get(http, made["id"])):
        assert shown["x-team"] == {"n": [1, 2.5]}
        assert shown["state"] == "running", "members of the answer are the server's"
        assert "result" not in shown
        group, approval = shown["steps"]
        assert (group["team"], group["x-nothing"], approval["x-form"]) == ("a b", None, "blue")
    page = (await http("GET", "/ojs/v1/workflows")).json()["workflows"]
    assert [workflow["x-team"] for workflow in page] == [{"n": [1, 2.5]}]


async def test_unknown_members_of_a_workflow_have_limits(http: Http) -> None:
    deep: Any = 1
    for _ in range(64):
        deep = [deep]
    for large in ("x" * 65_536, [deep]):
        refused = await http("POST", "/ojs/v1/workflows", CHAIN | {"x-large": large})
        assert refused.status_code == 400, refused.text
        assert "unknown members" in refused.json()["error"]["message"].lower()


async def test_prometheus_sees_workflows(http: Http) -> None:
    await create(http, CHAIN)
    made = await create(http, CHAIN)
    await http("DELETE", f"/ojs/v1/workflows/{made['id']}")
    text = (await http("GET", "/metrics")).text
    assert 'ojs_workflows{state="running"} 1.0' in text
    assert 'ojs_workflows_last_hour{state="cancelled"} 1.0' in text
    assert 'ojs_workflows_last_hour{state="failed"} 0.0' in text


async def test_a_broken_workflow_is_refused_as_the_specification_has_it(http: Http) -> None:
    response = await http("POST", "/ojs/v1/workflows", {"type": "chain", "steps": []})
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (400, "invalid_workflow")
    assert error["details"]["validation_errors"] == [
        {"path": "$.steps", "message": "steps array must contain at least one element"}
    ]


async def test_a_workflow_is_cancelled_once(http: Http) -> None:
    made = await create(http, CHAIN)
    response = await http("DELETE", f"/ojs/v1/workflows/{made['id']}")
    shown = response.json()["workflow"]
    assert (shown["state"], shown["metadata"]["completed_count"]) == ("cancelled", 0)
    assert "cancelled_at" in shown["metadata"]
    response = await http("DELETE", f"/ojs/v1/workflows/{made['id']}")
    assert (response.status_code, response.json()["error"]["code"]) == (409, "conflict")
    response = await http("GET", f"/ojs/v1/workflows/{new_id()}")
    assert (response.status_code, response.json()["error"]["code"]) == (404, "not_found")


async def test_workflows_are_listed_page_by_page(http: Http) -> None:
    for _ in range(3):
        await create(http, CHAIN)
    page = (await http("GET", "/ojs/v1/workflows?state=running&limit=2")).json()
    assert [one["name"] for one in page["workflows"]] == ["two", "two"]
    assert page["pagination"]["total"] == 3
    assert "steps" not in page["workflows"][0]
    cursor = page["pagination"]["next_cursor"]
    rest = (await http("GET", f"/ojs/v1/workflows?state=running&limit=2&cursor={cursor}")).json()
    assert len(rest["workflows"]) == 1
    response = await http("GET", "/ojs/v1/workflows?state=odd")
    assert response.status_code == 400


async def test_a_step_is_approved_over_http(http: Http) -> None:
    made = await create(http, {"type": "chain", "steps": [{"type": "gate", "id": "go"}, {"type": "a", "args": []}]})
    path = f"/ojs/v1/workflows/{made['id']}/steps/go/review"
    assert (await http("POST", path, {})).status_code == 400
    assert (await http("POST", path, {"action": "maybe"})).status_code == 400
    response = await http("POST", path, {"action": "approve", "notes": "fine", "author": "ada"})
    step = response.json()["workflow"]["steps"][0]
    assert (step["state"], step["reviews"][0]["notes"]) == ("completed", "fine")
    assert (await http("POST", path, {"action": "approve"})).status_code == 409
    assert (await http("POST", path.replace("go", "no"), {"action": "approve"})).status_code == 404


async def test_a_workflow_is_held_released_and_retried_over_http(http: Http) -> None:
    made = await create(http, CHAIN)
    base = f"/ojs/v1/workflows/{made['id']}"
    assert (await http("POST", f"{base}/hold")).json()["workflow"]["held"] is True
    assert await http.fetch() == []
    assert "held" not in (await http("POST", f"{base}/release")).json()["workflow"]
    (job,) = await http.fetch()
    error = {"code": "handler_error", "message": "no", "retryable": False}
    await http("POST", "/ojs/v1/workers/nack", {"job_id": job["id"], "error": error})
    shown = await get(http, made["id"])
    assert (shown["state"], shown["error"]["failed_step_index"]) == ("failed", 0)
    assert shown["error"]["failed_job_ids"] == [job["id"]]
    assert (await http("POST", f"{base}/retry")).json()["workflow"]["state"] == "running"
    (again,) = await http.fetch()
    assert again["supersedes"] == job["id"]
    old = (await http("GET", f"/ojs/v1/jobs/{job['id']}")).json()["job"]
    assert old["superseded_by"] == again["id"]
    await http("POST", f"{base}/steps/0/cancel")
    late = await http("POST", "/ojs/v1/workers/nack", {"job_id": again["id"], "error": error})
    assert late.status_code == 409
    assert (await get(http, made["id"]))["state"] == "cancelled"


async def test_a_workflow_runs_again_from_a_step_on_over_http(http: Http) -> None:
    made = await create(http, CHAIN)
    while jobs := await http.fetch():
        await http("POST", "/ojs/v1/workers/ack", {"job_id": jobs[0]["id"], "result": 1})
    path = f"/ojs/v1/workflows/{made['id']}/fork"
    answer = await http("POST", path, {"from_step": "1", "args": ["again"], "id": "second"})
    forked = answer.json()["workflow"]
    assert (answer.status_code, forked["id"], forked["forked_from"]) == (201, "second", made["id"])
    assert (await http("POST", path, {"from_step": "1", "id": "second"})).json()["workflow"]["id"] == "second"
    (job,) = await http.fetch()
    assert job["args"] == ["again"]
    assert (await get(http, made["id"]))["forks"] == ["second"]
    for wrong, status in (
        ({"from_step": "9"}, 404),
        ({"from_step": ""}, 400),
        ({"from_step": "1", "args": 1}, 400),
        ({"from_step": "1", "args": [], "result": None}, 400),
        ({"from_step": "1", "id": "a/b"}, 400),
        ({"from_step": "0", "id": "second"}, 409),
    ):
        assert (await http("POST", path, wrong)).status_code == status, wrong
    assert (await http("POST", "/ojs/v1/workflows/second/fork", {})).status_code == 409


async def test_a_job_adds_steps_with_its_acknowledgement(http: Http) -> None:
    made = await create(http, CHAIN)
    (job,) = await http.fetch()
    bad = await http("POST", "/ojs/v1/workers/ack", {"job_id": job["id"], "append": [{"type": "X", "args": []}]})
    assert (bad.status_code, bad.json()["error"]["code"]) == (400, "invalid_workflow")
    good = await http("POST", "/ojs/v1/workers/ack", {"job_id": job["id"], "append": [{"type": "c", "args": [1]}]})
    assert good.status_code == 200
    assert [step["type"] for step in (await get(http, made["id"]))["steps"]] == ["a", "b", "c"]


async def test_a_long_poll_for_a_workflow_is_answered_when_it_ends(http: Http, service: Service) -> None:
    made = await create(http, {"type": "group", "jobs": [{"type": "a", "args": []}]})
    waiting = asyncio.create_task(get(http, made["id"], "?wait_ms=60000&steps=false"))
    changing = asyncio.create_task(get(http, made["id"], f"?wait_ms=60000&version={made['version']}"))
    (job,) = await http.fetch()
    assert (await changing)["jobs"][0]["state"] == "active"
    await http("POST", "/ojs/v1/workers/ack", {"job_id": job["id"]})
    ended = await waiting
    assert (ended["state"], ended["finished"]) == ("completed", True)
    assert "jobs" not in ended


@pytest.mark.parametrize("step", ["²", "9" * 500, "a%2Fb", "...", "0.0.0", "on_error.x", "compensate"])
async def test_a_step_that_there_is_not_is_told_so(http: Http, step: str) -> None:
    made = await create(http, CHAIN)
    response = await http("POST", f"/ojs/v1/workflows/{made['id']}/steps/{step}/cancel")
    assert response.status_code == 404


async def test_a_large_workflow_fits(http: Http) -> None:
    jobs = [{"type": "a", "args": [number]} for number in range(3000)]
    made = await create(http, {"type": "group", "jobs": jobs})
    assert (made["metadata"]["job_count"], made["steps_omitted"]) == (3000, True)
