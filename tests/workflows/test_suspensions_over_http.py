"""Release and resumption of jobs, properties, notes and statistics of workflows, over HTTP."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conftest import Bench, Http

pytestmark = pytest.mark.anyio

BASE = "/ojs/v1"
CHAIN = {"type": "chain", "steps": [{"type": "a", "args": []}, {"type": "b", "args": []}]}


async def start(http: Http, **more: Any) -> str:
    created = await http("POST", f"{BASE}/workflows", CHAIN | more)
    assert created.status_code == 201, created.text
    return str(created.json()["workflow"]["id"])


async def test_a_worker_in_any_language_lets_a_job_wait_and_somebody_resumes_its_workflow(http: Http) -> None:
    id = await start(http)
    (job,) = await http.fetch()
    body = {"job_id": job["id"], "then": "wait", "wait_ms": 60_000, "properties": {"set": {"ticket": "T-1"}}}
    released = (await http("POST", f"{BASE}/workers/release", body)).json()
    assert (released["state"], released["released"]) == ("pending", True)
    assert released["deadline"] > job["started_at"]
    status = (await http("GET", f"{BASE}/workflows/{id}/status")).json()["status"]
    (current,) = status["current"]
    assert (current["state"], current["path"], current["deadline"]) == ("waiting", "0", released["deadline"])
    shown = (await http("GET", f"{BASE}/workflows/{id}/properties")).json()["properties"]
    assert shown == {"ticket": {"value": "T-1", "version": 1}}
    resumed = await http("POST", f"{BASE}/workflows/{id}/resume", {"result": {"closed": True}})
    assert resumed.json()["workflow"]["steps"][0]["result"] == {"closed": True}
    (job,) = await http.fetch()
    assert job["parent_results"] == [{"closed": True}]
    refused = await http("POST", f"{BASE}/workflows/{id}/resume")
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "conflict")


async def test_a_job_that_waits_is_activated_with_a_result_or_an_error_but_not_with_both(http: Http) -> None:
    for body, state in (({"result": 1}, "completed"), ({"error": "no"}, "discarded"), (None, "completed")):
        pushed = await http.push()
        await http.fetch()
        path = f"{BASE}/jobs/{pushed['id']}"
        await http("POST", f"{path}/release", {"then": "wait"})
        both = await http("POST", f"{path}/activate", {"result": 1, "error": "x"})
        assert both.status_code == 400
        activated = await http("POST", f"{path}/activate", body)
        assert activated.status_code == 200, activated.text
        assert (await http("GET", path)).json()["job"]["state"] == state


async def test_several_jobs_are_let_go_at_once_and_each_by_itself(http: Http, bench: Bench) -> None:
    ids = [(await http.push())["id"] for _ in range(3)]
    await http.fetch(count=3)
    releases: list[dict[str, Any]] = [
        {"job_id": ids[0], "then": "skip", "result": 7},
        {"job_id": ids[1], "then": "queue", "not_before": "2040-01-01T00:00:00Z"},
        {"job_id": ids[2], "then": "wait", "attempt": 9},
    ]
    results = (await http("POST", f"{BASE}/workers/release/batch", {"releases": releases})).json()["results"]
    assert [result.get("state") for result in results] == ["completed", "scheduled", None]
    assert results[2]["error"]["code"] == "conflict"
    assert results[1]["scheduled_at"] == "2040-01-01T00:00:00.000000Z"
    bad = await http("POST", f"{BASE}/workers/release", {"job_id": ids[2], "then": "explode"})
    assert bad.status_code == 400
    large = await http(
        "POST", f"{BASE}/workers/release", b'{"job_id":"%b","then":"skip","result":1e999}' % ids[2].encode()
    )
    assert large.status_code == 400


async def test_properties_are_compared_and_set(http: Http) -> None:
    id = await start(http, properties={"n": 1})
    path = f"{BASE}/workflows/{id}/properties"
    changed = await http("POST", path, {"set": {"n": 2}, "expected": {"n": 1}})
    assert changed.json()["properties"] == {"n": {"value": 2, "version": 2}}
    refused = await http("POST", path, {"set": {"n": 3, "m": 1}, "expected": {"n": 1}})
    error = refused.json()["error"]
    assert (refused.status_code, error["code"], error["retryable"]) == (409, "x_property_conflict", True)
    assert error["details"]["current_version"] == 2
    assert (await http("POST", path, {"delete": ["n"]})).json()["properties"] == {}
    (job,) = await http.fetch()
    word = {"job_id": job["id"], "properties": {"set": {"n": 1}, "expected": {"n": 5}}}
    assert (await http("POST", f"{BASE}/workers/ack", word)).status_code == 409
    word["properties"] = {"set": {"n": 1}, "expected": {"n": 0}}
    assert (await http("POST", f"{BASE}/workers/ack", word)).status_code == 200
    assert (await http("GET", path)).json()["properties"] == {"n": {"value": 1, "version": 4}}
    for body in ({"set": {"": 1}}, {"set": {"x": 1}, "delete": ["x"]}, {"expected": {"x": -1}}):
        assert (await http("POST", path, body)).status_code == 400
    assert (await http("POST", path, b'{"set":{"x":1e999}}')).status_code == 400


async def test_notes_status_and_statistics(http: Http, bench: Bench) -> None:
    id = await start(http, on_error={"type": "mend", "args": []})
    (job,) = await http.fetch()
    assert (await http("POST", f"{BASE}/jobs/{job['id']}/info", {"note": {"10%": "begun"}})).status_code == 201
    await http("POST", f"{BASE}/workflows/{id}/info", {"note": "from outside"})
    notes = (await http("GET", f"{BASE}/workflows/{id}/info")).json()["notes"]
    assert [note["note"] for note in notes] == [{"10%": "begun"}, "from outside"]
    assert notes[0]["job_id"] == job["id"]
    assert (await http("GET", f"{BASE}/jobs/{job['id']}/info")).json()["notes"] == notes[:1]
    assert (await http("POST", f"{BASE}/jobs/{job['id']}/info", {"note": "x" * 20_000})).status_code == 413
    await http("POST", f"{BASE}/workers/ack", {"job_id": job["id"], "result": "fine"})
    (job,) = await http.fetch()
    error = {"code": "x", "message": "broken", "retryable": False}
    await http("POST", f"{BASE}/workers/nack", {"job_id": job["id"], "error": error})
    (job,) = await http.fetch()
    await http("POST", f"{BASE}/workers/ack", {"job_id": job["id"]})
    status = (await http("GET", f"{BASE}/workflows/{id}/status")).json()["status"]
    shown = [(one["name"], one["state"], one.get("result"), "error" in one) for one in status["results"]["steps"]]
    assert shown == [("a", "completed", "fine", False), ("b", "failed", None, True)]
    assert [one["state"] for one in status["results"]["on_error"]] == ["completed"]
    assert all(one["started_at"] and one["finished_at"] for one in status["results"]["steps"])
    bench.clock.advance(5_000)
    await start(http)
    found = (await http("GET", f"{BASE}/workflows/statistics")).json()["statistics"]
    assert (found["past_hour"]["failed"], found["current"]["running"], found["all_time"]["failed"]) == (1, 1, 0)


async def test_ping(http: Http) -> None:
    answer = await http("GET", f"{BASE}/ping")
    assert (answer.status_code, answer.json()["backend"]) == (200, "up")


async def test_a_result_that_comes_in_pieces_is_not_lost(http: Http) -> None:
    pushed = await http.push()
    await http.fetch()
    await http("POST", f"{BASE}/jobs/{pushed['id']}/release", {"then": "wait"})

    async def pieces() -> Any:
        yield b'{"result":'
        yield b'{"paid":true}}'

    path = f"{BASE}/jobs/{pushed['id']}/activate"
    answer = await http.client.post(path, content=pieces(), headers={"Content-Type": "application/json"})
    assert answer.status_code == 200, answer.text
    assert (await http("GET", f"{BASE}/jobs/{pushed['id']}")).json()["job"]["result"] == {"paid": True}
