"""Small differences from the specification that audits found, each by itself."""

from __future__ import annotations

import gzip
from typing import Any, Final

import pytest

from ojster.core.errors import PayloadTooLarge
from ojster.core.timestamps import parse_timestamp
from ojster.jobs.new_job import read_job
from tests.conftest import Bench, Http, request

pytestmark = pytest.mark.anyio

JOBS = "/ojs/v1/jobs"


async def test_a_failure_says_in_words_what_happened(http: Http) -> None:
    await http.push(type="a")
    (job,) = await http.fetch()
    for path, body in (
        ("/ojs/v1/workers/nack", {"job_id": job["id"], "error": {"code": "x"}}),
        (f"{JOBS}/{job['id']}/nack", {"error": {}}),
    ):
        answer = await http("POST", path, body)
        assert (answer.status_code, answer.json()["error"]["details"]["field"]) == (400, "error.message")


async def test_job_ids_in_paths_may_be_in_upper_case(http: Http) -> None:
    made = await http.push(type="a")
    id = made["id"].upper()
    assert (await http("GET", f"{JOBS}/{id}")).json()["job"]["id"] == made["id"]
    assert (await http("DELETE", f"{JOBS}/{id}")).status_code == 200
    assert (await http("GET", f"{JOBS}/{'x' * 36}")).status_code == 404


async def test_workflow_ids_in_paths_are_taken_as_they_are(http: Http) -> None:
    id = "01A206A0-1ECA-7652-BD42-DED39FDBF091"
    await http("POST", "/ojs/v1/workflows", {"id": id, "type": "chain", "steps": [{"type": "a", "args": []}]})
    assert (await http("GET", f"/ojs/v1/workflows/{id}")).json()["workflow"]["id"] == id


async def test_worker_ids_in_paths_are_taken_as_they_are(http: Http) -> None:
    id = "01A206A0-1ECA-7652-BD42-DED39FDBF091"
    await http("POST", "/ojs/v1/workers/heartbeat", {"worker_id": id, "active_jobs": []})
    assert (await http("GET", f"/ojs/v1/workers/{id}/health")).status_code == 200


@pytest.mark.parametrize("text", ["2030-01-01T00:00:00+0100", "2030-01-01T00:00:00-01", "2030-01-01T00:00:00"])
async def test_an_offset_is_hours_and_minutes_with_a_colon(http: Http, text: str) -> None:
    answer = await http("POST", JOBS, {"type": "a", "args": [], "scheduled_at": text})
    assert answer.status_code == 400
    assert "2026-03-15T09:30:00+02:00" in answer.json()["error"]["message"]


@pytest.mark.parametrize("text", ["2030-01-01T00:00:00Z", "2030-01-01T00:00:00z", "2030-01-01T01:00:00+01:00"])
def test_offsets_of_rfc_3339_are_taken(text: str) -> None:
    assert parse_timestamp(text) == parse_timestamp("2029-12-31T23:00:00-01:00")


async def test_a_manual_retry_keeps_the_errors(http: Http, bench: Bench) -> None:
    job = await bench.push(retry={"max_attempts": 1, "on_exhaustion": "dead_letter"})
    await bench.fail(await bench.fetch_one(), "Boom")
    revived = (await http("POST", f"/ojs/v1/dead-letter/{job.id}/retry")).json()["job"]
    assert (revived["attempt"], revived["state"]) == (0, "available")
    assert [error["type"] for error in revived["errors"]] == ["Boom"]
    await bench.fail(await bench.fetch_one(), "Bang")
    shown = (await http("GET", f"{JOBS}/{job.id}")).json()["job"]
    assert [error["type"] for error in shown["errors"]] == ["Boom", "Bang"]


async def test_dead_letters_are_filtered(http: Http, bench: Bench) -> None:
    ids = {}
    for name in ("Boom", "Bang"):
        job = await bench.push(retry={"max_attempts": 1, "on_exhaustion": "dead_letter"})
        await bench.fail(await bench.fetch_one(), name)
        ids[name] = job.id
        bench.clock.advance(60)

    async def found(**query: str) -> list[str]:
        answer = await http("GET", "/ojs/v1/dead-letter", params=query)
        assert answer.status_code == 200, answer.text
        return [job["id"] for job in answer.json()["jobs"]]

    assert await found(error_type="Boom") == [ids["Boom"]]
    assert await found(error_type="B*") == [ids["Bang"], ids["Boom"]]
    shown = (await http("GET", f"{JOBS}/{ids['Bang']}")).json()["job"]
    assert await found(since=shown["created_at"]) == []
    assert await found(discarded_before=shown["discarded_at"]) == [ids["Boom"]]
    assert (await http("GET", "/ojs/v1/dead-letter", params={"since": "yesterday"})).status_code == 400


async def test_a_cron_job_may_cancel_the_one_before_it_in_short(http: Http) -> None:
    body = {"name": "n", "expression": "@daily", "type": "t", "args": [], "overlap_policy": "cancel"}
    made = (await http("POST", "/ojs/v1/cron", body)).json()["cron"]
    assert made["overlap_policy"] == "cancel_previous"


async def test_a_replaced_job_shows_the_time_that_holds(http: Http) -> None:
    unique = {"keys": ["type"], "on_conflict": "replace_except_schedule"}
    first: dict[str, Any] = {"type": "a", "args": [1], "unique": unique, "scheduled_at": "2030-01-01T00:00:00Z"}
    await http("POST", JOBS, first)
    for more in ({"scheduled_at": "2031-01-01T00:00:00Z"}, {}, {"delay_until": "2031-01-01T00:00:00Z"}):
        again = {"type": "a", "args": [2], "unique": unique, "meta": {"scheduled_at": "2031-01-01T00:00:00Z"}} | more
        job = (await http("POST", JOBS, again)).json()["job"]
        assert (job["state"], job["scheduled_at"]) == ("scheduled", "2030-01-01T00:00:00.000000Z")
        assert job["meta"] == again["meta"]
        shown = (await http("GET", f"{JOBS}/{job['id']}")).json()["job"]
        assert shown["scheduled_at"] == job["scheduled_at"]


async def test_what_is_too_large_says_how_large_it_is(http: Http) -> None:
    with pytest.raises(PayloadTooLarge) as refused:
        read_job(request("a", "x" * 2000), 0, largest=1000)
    assert (refused.value.details["max_bytes"], refused.value.details["field"]) == (1000, "envelope")
    assert refused.value.details["actual_bytes"] > 2000
    answer = await http("POST", JOBS, {"type": "a", "args": ["x" * 3_000_000]})
    details = answer.json()["error"]["details"]
    assert (answer.status_code, details["field"]) == (413, "body")
    assert details["actual_bytes"] > details["max_bytes"]
    answer = await http("POST", JOBS, {"type": "a", "args": [], "meta": {"x": "x" * 70_000}})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (413, "metadata_too_large")
    assert (error["details"]["max_bytes"], error["details"]["field"]) == (65_536, "meta")
    answer = await http("POST", JOBS, gzip.compress(b" " * 3_000_000), headers={"Content-Encoding": "gzip"})
    del details["actual_bytes"]
    assert (answer.status_code, answer.json()["error"]["details"]) == (413, details)
    answer = await http("POST", f"{JOBS}/bulk", {"jobs": [{"type": "a", "args": []}] * 1001})
    assert (answer.status_code, answer.json()["error"]["max_batch_size"]) == (413, 1000)


LARGE: Final[list[tuple[str, dict[str, Any], int, str]]] = [
    ("/jobs/01a231b4-e000-7000-8000-000000000000/info", {"note": "x" * 16_383}, 16_384, "note"),
    ("/collections/c/items", {"name": "i", "data": "x" * 65_535}, 65_536, "data"),
]
"""Requests with a value that is a byte too large, and the maximum of it."""


@pytest.mark.parametrize(("path", "body", "most", "field"), LARGE, ids=[path for path, *_ in LARGE])
async def test_a_value_that_is_too_large_says_how_large_it_is(
    http: Http, path: str, body: dict[str, Any], most: int, field: str
) -> None:
    answer = await http("POST", f"/ojs/v1{path}", body)
    shown = {"limit": most, "max_bytes": most, "actual_bytes": most + 1, "field": field}
    assert (answer.status_code, answer.json()["error"]["details"]) == (413, shown)


async def test_a_cancel_by_filter_tells_the_workers_of_active_jobs(http: Http, bench: Bench) -> None:
    active, waiting = await bench.push("a"), await bench.push("b")
    taken = await bench.fetch_one(worker_id="w")
    chosen = {"filter": {"queue": "default", "state": ["available", "active"]}}
    answer = (await http("POST", f"{JOBS}/bulk/cancel", chosen)).json()
    items = {item["job_id"]: item for item in answer["items"]}
    assert (answer["cancelled"], answer["skipped"]) == (1, 1)
    assert items[active.id]["status"] == "skipped"
    assert items[active.id]["reason"].startswith("Job is in active state")
    assert [(await bench.find(job)).state for job in (active, waiting)] == ["active", "cancelled"]
    beat = {"worker_id": "w", "active_jobs": [active.id]}
    told = (await http("POST", "/ojs/v1/workers/heartbeat", beat)).json()
    assert told["jobs_cancelled"] == [active.id]
    assert taken.attempt == 1


@pytest.mark.parametrize("end", ["fail", "release", "lease", "ack"])
async def test_a_job_whose_worker_was_told_is_cancelled_when_it_is_given_up(http: Http, bench: Bench, end: str) -> None:
    job = await bench.push("a", visibility_timeout=30)
    taken = await bench.fetch_one(worker_id="w")
    await http("POST", f"{JOBS}/bulk/cancel", {"filter": {"state": "active"}})
    match end:
        case "fail":
            await bench.fail(taken)
        case "release":
            await http("POST", "/ojs/v1/workers/release", {"job_id": job.id, "worker_id": "w"})
        case "lease":
            await bench.run_due(30)
        case "ack":
            await bench.ack(taken)
    assert (await bench.find(job)).state == ("completed" if end == "ack" else "cancelled")
