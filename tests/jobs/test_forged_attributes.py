"""Attributes that only the server sets: a caller that sends them is ignored, on every way in (ojs-core 5.3)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conftest import Bench, Http

pytestmark = pytest.mark.anyio

BASE = "/ojs/v1"
ID = "01a206a0-1eca-7652-bd42-ded39fdbf091"

FORGED: dict[str, Any] = {
    "state": "completed",
    "attempt": 7,
    "max_attempts": 99,
    "created_at": "2001-01-01T00:00:00Z",
    "enqueued_at": "2001-01-01T00:00:00Z",
    "started_at": "2001-01-01T00:00:00Z",
    "completed_at": "2001-01-01T00:00:00Z",
    "cancelled_at": "2001-01-01T00:00:00Z",
    "discarded_at": "2001-01-01T00:00:00Z",
    "next_attempt_at": "2001-01-01T00:00:00Z",
    "next_retry_at": "2001-01-01T00:00:00Z",
    "retry_delay_ms": 7,
    "error": {"code": "forged"},
    "errors": [{"code": "forged"}],
    "result": "forged",
    "result_ref": "forged",
    "result_stored_at": "2001-01-01T00:00:00Z",
    "result_expires_at": "2001-01-01T00:00:00Z",
    "result_size_bytes": 7,
    "parent_results": {"a": "forged"},
    "checkpoint": {"state": "forged"},
    "resumed": "forged",
    "progress": {"progress": 1},
    "outcome": "skipped",
    "worker_id": "forged",
    "created_by": "forged",
    "cron_name": "forged",
    "losses": 7,
    "superseded_by": ID,
    "workflow_id": ID,
    "workflow_step": "forged",
}
"""Every attribute that the server sets, with a value that it would not set."""


def without_what_differs(job: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in job.items() if name != "id"}


@pytest.mark.parametrize("name", FORGED)
async def test_an_attribute_of_the_server_is_ignored_in_a_push(http: Http, name: str) -> None:
    plain = await http.push(type="a")
    job = {"type": "a", "args": [], name: FORGED[name]}
    alone = (await http("POST", f"{BASE}/jobs", job)).json()["job"]
    batch = (await http("POST", f"{BASE}/jobs/batch", {"jobs": [{"type": "a", "args": []}, job, job]})).json()["jobs"]
    for made in (alone, *batch):
        assert without_what_differs(made) == without_what_differs(plain)
    for shown in ("result", "lineage"):
        answers = [(await http("GET", f"{BASE}/jobs/{one['id']}/{shown}")).json() for one in (plain, alone)]
        seen = [str(answer).replace(plain["id"], "ID").replace(alone["id"], "ID") for answer in answers]
        assert seen[0] == seen[1]


async def test_attributes_of_the_server_are_ignored_in_steps_and_schedules(http: Http, bench: Bench) -> None:
    forged = {name: value for name, value in FORGED.items() if name != "max_attempts"}
    workflow = {"type": "chain", "steps": [{"type": "a", "args": []} | forged]}
    made = await http("POST", f"{BASE}/workflows", workflow)
    assert made.status_code == 201, made.text
    own_id = made.json()["workflow"]["id"]
    cron = {"name": "c", "expression": "@daily", "job_template": {"type": "b", "args": []} | forged}
    assert (await http("POST", f"{BASE}/cron", cron)).status_code == 201
    await http("POST", f"{BASE}/cron/c/trigger")
    await http("PUT", f"{BASE}/job-types/d", forged)
    await http.push(type="d")
    jobs = {job["type"]: job for job in await http.fetch(count=10)}
    assert (jobs["a"]["workflow_id"], jobs["a"]["workflow_step"]) == (own_id, "0")
    assert jobs["b"]["cron_name"] == "c"
    for job in jobs.values():
        kept = {name for name, value in forged.items() if job.get(name) == value}
        assert kept == set(), job["type"]
    assert {"b", "a"} <= jobs.keys()
    assert all("workflow_id" not in job for type, job in jobs.items() if type != "a")


async def test_a_job_that_a_reaction_enqueues_has_no_forged_attributes(http: Http) -> None:
    inner = {"type": "b", "args": []} | FORGED
    await http.push(type="a", event_reactions={"on_success": [{"action": "enqueue", "job": inner}]})
    (job,) = await http.fetch()
    await http("POST", f"{BASE}/workers/ack", {"job_id": job["id"]})
    (enqueued,) = await http.fetch()
    assert enqueued["type"] == "b"
    assert {name for name, value in FORGED.items() if enqueued.get(name) == value} == set()


async def test_a_forged_step_does_not_hide_a_wrong_lookup(http: Http) -> None:
    job = {"type": "a", "args": [{"$lookup": 7}], "workflow_id": ID}
    assert (await http("POST", f"{BASE}/jobs", job)).status_code == 400
