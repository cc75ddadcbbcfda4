"""The history and the lineage of a job over HTTP.

Spec: ojs-execution-history 7
"""

from __future__ import annotations

import pytest

from tests.conftest import Bench, Http

pytestmark = pytest.mark.anyio

BASE = "/ojs/v1"


async def test_a_history_is_read_page_by_page_and_purged(http: Http, bench: Bench) -> None:
    job = await http.push(type="mail", args=["you"])
    await http.fetch(worker_id="w")
    bench.clock.advance(1)
    error = {"type": "Broken", "message": "no", "retryable": False}
    await http("POST", f"{BASE}/workers/nack", {"job_id": job["id"], "worker_id": "w", "error": error})
    path = f"{BASE}/jobs/{job['id']}/history"
    whole = (await http("GET", path)).json()
    assert (whole["total"], whole["next_cursor"]) == (len(whole["events"]), None)
    assert whole["events"][0] == {
        "id": whole["events"][0]["id"],
        "job_id": job["id"],
        "event_type": "job.created",
        "timestamp": job["created_at"],
        "actor": {"type": "client"},
        "data": {"queue": "default", "type": "mail", "args_size_bytes": 7},
    }
    assert [event["event_type"] for event in whole["events"]][-3:] == [
        "job.attempt_failed",
        "job.state_changed",
        "job.discarded",
    ]
    pages, cursor = [], "0"
    while cursor is not None:
        page = (await http("GET", f"{path}?limit=2&cursor={cursor}")).json()
        pages += page["events"]
        cursor = page["next_cursor"]
    assert pages == whole["events"]
    assert (await http("GET", f"{path}?limit=5000")).headers["x-ojs-limit-clamped"] == "true"
    assert (await http("DELETE", path)).json() == {"deleted": True, "events_deleted": whole["total"]}
    assert (await http("GET", path)).json()["events"] == []


async def test_a_lineage_is_a_tree(http: Http) -> None:
    steps = [{"type": "a", "args": []}, {"type": "b", "args": []}]
    workflow = (await http("POST", f"{BASE}/workflows", {"type": "chain", "steps": steps})).json()["workflow"]
    (first,) = await http.fetch()
    await http("POST", f"{BASE}/workers/ack", {"job_id": first["id"]})
    (second,) = await http.fetch()
    assert (await http("GET", f"{BASE}/jobs/{first['id']}/lineage")).json() == {
        "job_id": first["id"],
        "parent_id": None,
        "root_id": first["id"],
        "workflow_id": workflow["id"],
        "superseded_by": None,
        "parents": [],
        "children": [{"job_id": second["id"], "children": []}],
    }


@pytest.mark.parametrize(("method", "path"), [("GET", "history"), ("DELETE", "history"), ("GET", "lineage")])
async def test_the_history_of_an_unknown_job_is_not_found(http: Http, method: str, path: str) -> None:
    response = await http(method, f"{BASE}/jobs/0190a0b0-0000-7000-8000-000000000000/{path}")
    assert response.status_code == 404


async def test_a_time_that_was_not_recorded_is_marked(http: Http, bench: Bench) -> None:
    job = await http.push(options={"scheduled_at": "+PT10S"})
    await bench.run_due(12)
    await http.fetch(worker_id="w")
    error = {"message": "no"}
    await http("POST", f"{BASE}/workers/nack", {"job_id": job["id"], "worker_id": "w", "error": error})
    created, moved, *_ = (await http("GET", f"{BASE}/jobs/{job['id']}/history")).json()["events"]
    assert moved["metadata"] == {"reconstructed": True}
    assert "metadata" not in created
