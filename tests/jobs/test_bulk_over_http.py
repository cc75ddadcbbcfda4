"""Bulk operations over HTTP, under ``/jobs/batch`` and ``/jobs/bulk``.

Spec: ojs-bulk-operations
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ojster.audit.entries import AuditQuery
from ojster.core.durations import HOUR
from ojster.jobs import sweeps
from tests.conftest import Bench, Http

pytestmark = pytest.mark.anyio

GOOD: dict[str, Any] = {"type": "email.send", "args": []}
BAD: dict[str, Any] = {"type": "Not A Type", "args": []}
UNIQUE: dict[str, Any] = GOOD | {"options": {"unique": {"keys": ["type"]}}}


async def batch(http: Http, *jobs: dict[str, Any], **more: Any) -> tuple[int, dict[str, Any]]:
    headers = more.pop("headers", {})
    response = await http("POST", "/ojs/v1/jobs/batch", {"jobs": jobs} | more, headers=headers)
    return response.status_code, response.json()


async def count(bench: Bench) -> int:
    return (await bench.service.jobs.select()).total


async def test_a_partial_batch_tells_what_became_of_each(http: Http, bench: Bench) -> None:
    status, body = await batch(http, GOOD, BAD, UNIQUE, UNIQUE, mode="partial")
    assert status == 207
    assert [result["status"] for result in body["results"]] == [201, 400, 201, 409]
    assert [result["index"] for result in body["results"]] == [0, 1, 2, 3]
    assert body["results"][3]["error"]["code"] == "duplicate"
    assert body["summary"] == {"total": 4, "succeeded": 2, "failed": 2}
    assert [job["id"] for job in body["jobs"]] == [body["results"][0]["job_id"], body["results"][2]["job_id"]]
    assert await count(bench) == 2


async def test_a_batch_that_succeeds_answers_200_and_one_that_fails_422(http: Http) -> None:
    assert (await batch(http, GOOD, GOOD, mode="partial"))[0] == 200
    assert (await batch(http, BAD, BAD, mode="partial"))[0] == 422
    assert (await batch(http, GOOD, GOOD, mode="atomic"))[0] == 200


async def test_an_atomic_batch_is_rolled_back_as_a_whole(http: Http, bench: Bench) -> None:
    for jobs, code in (((GOOD, BAD), "invalid_request"), ((GOOD, UNIQUE, UNIQUE), "duplicate")):
        status, body = await batch(http, *jobs, mode="atomic")
        assert status == 422
        assert body["summary"] == {"total": len(jobs), "succeeded": 0, "failed": len(jobs)}
        codes = [result["error"]["code"] for result in body["results"]]
        assert codes[:-1] == ["x_not_executed"] * (len(jobs) - 1)
        assert codes[-1] == code
        assert await count(bench) == 0


async def test_a_batch_without_a_mode_is_atomic_and_answers_the_jobs(http: Http, bench: Bench) -> None:
    status, body = await batch(http, GOOD, GOOD)
    assert (status, body["count"], len(body["jobs"])) == (201, 2, 2)
    status, body = await batch(http, UNIQUE, UNIQUE)
    assert (status, body["error"]["code"], body["error"]["details"]["index"]) == (409, "duplicate", 1)
    assert await count(bench) == 2


async def test_bulk_answers_in_the_words_of_the_specification(http: Http) -> None:
    response = await http("POST", "/ojs/v1/jobs/bulk", {"jobs": [GOOD, BAD]})
    body = response.json()
    assert (response.status_code, body["total"], body["succeeded"], body["failed"]) == (207, 2, 1, 1)
    assert [item["status"] for item in body["items"]] == ["created", "failed"]
    assert body["items"][0]["job"]["state"] == "available"
    assert response.headers["x-ojs-batch-size"] == "2"
    assert (await http("POST", "/ojs/v1/jobs/bulk", {"jobs": [GOOD]})).status_code == 201
    refused = await http("POST", "/ojs/v1/jobs/bulk", {"jobs": [GOOD, BAD], "atomicity": "atomic"})
    assert (refused.status_code, refused.json()["succeeded"]) == (422, 0)


async def test_a_duplicate_that_is_to_be_ignored_is_no_failure(http: Http) -> None:
    quiet = GOOD | {"options": {"unique": {"keys": ["type"], "on_conflict": "ignore"}}}
    response = await http("POST", "/ojs/v1/jobs/bulk", {"jobs": [quiet, quiet]})
    assert [item["status"] for item in response.json()["items"]] == ["created", "duplicate"]
    assert response.status_code == 201


@pytest.mark.parametrize("family", ["batch", "bulk"])
async def test_the_number_of_jobs_is_bounded_and_the_bound_is_told(http: Http, family: str) -> None:
    for path, body in (("", {"jobs": [GOOD] * 1001}), ("/cancel", {"job_ids": ["x"] * 1001})):
        response = await http("POST", f"/ojs/v1/jobs/{family}{path}", body)
        assert response.status_code == 413
        assert response.json()["error"]["details"]["max_batch_size"] == 1000
        assert response.headers["x-ojs-max-batch-size"] == "1000"


async def test_jobs_are_cancelled_by_id(http: Http, bench: Bench) -> None:
    one, two = await bench.push(), await bench.push()
    done = await bench.push(queue="q")
    await bench.ack(await bench.fetch_one("q"))
    response = await http("POST", "/ojs/v1/jobs/batch/cancel", {"job_ids": [one.id, done.id, two.id, "nowhere"]})
    assert response.status_code == 207
    assert [result["status"] for result in response.json()["results"]] == [200, 409, 200, 404]
    assert (await bench.find(one)).state == "cancelled"
    again = await http("POST", "/ojs/v1/jobs/bulk/cancel", {"job_ids": [one.id]})
    assert (again.status_code, again.json()["skipped"], again.json()["items"][0]["status"]) == (422, 1, "skipped")


async def test_an_atomic_cancellation_cancels_all_or_none(http: Http, bench: Bench) -> None:
    one = await bench.push()
    body = {"job_ids": [one.id, "nowhere"], "mode": "atomic"}
    assert (await http("POST", "/ojs/v1/jobs/batch/cancel", body)).status_code == 422
    assert (await bench.find(one)).state == "available"


async def test_jobs_are_cancelled_by_what_they_have_in_common(http: Http, bench: Bench) -> None:
    await bench.push("report.daily", queue="reports", meta={"tenant": "a"})
    await bench.push("report.weekly", queue="reports", meta={"tenant": "b"})
    await bench.push("report.weekly", queue="other")
    await bench.push("report.later", queue="reports", scheduled_at="+PT1H")
    running = await bench.push("report.daily", queue="running")
    await bench.fetch_one("running")

    async def cancel(**chosen: Any) -> int:
        response = await http("POST", "/ojs/v1/jobs/batch/cancel", {"filter": chosen})
        assert response.status_code == 200, response.text
        total: int = response.json()["summary"]["succeeded"]
        return total

    assert await cancel(queue="reports", meta={"tenant": "b"}) == 1
    assert await cancel(job_type="report.*", queue="other") == 1
    assert await cancel(type="report.*") == 2
    assert (await bench.find(running)).state == "active"
    assert await cancel(type="report.*", state="active") == 0, "its worker is told"
    assert (await bench.find(running)).state == "active"


async def test_failed_jobs_are_retried_by_their_error(http: Http, bench: Bench) -> None:
    for error in ("connection_timeout", "connection_reset", "bug"):
        await bench.push("payment.charge", retry={"max_attempts": 1, "on_exhaustion": "dead_letter"})
        await bench.fail(await bench.fetch_one(), type=error)
    chosen = {"job_type": "payment.*", "error_type": "connection_*"}
    response = await http("POST", "/ojs/v1/jobs/batch/retry", {"filter": chosen})
    assert (response.status_code, response.json()["summary"]["succeeded"]) == (200, 2)
    assert [job.attempt for job in await bench.fetch(count=10)] == [1, 1]


async def test_a_job_that_waits_for_a_retry_is_tried_at_once(http: Http, bench: Bench) -> None:
    await bench.push()
    failed = await bench.fail(await bench.fetch_one())
    assert failed.state == "retryable"
    response = await http("POST", "/ojs/v1/jobs/bulk/retry", {"job_ids": [failed.id]})
    assert (response.status_code, response.json()["retried"]) == (200, 1)
    assert (await bench.fetch_one()).attempt == 2


async def test_finished_jobs_are_deleted_and_others_never(http: Http, bench: Bench) -> None:
    waiting = await bench.push()
    done = await bench.push(queue="q")
    await bench.ack(await bench.fetch_one("q"))
    refused = await http("POST", "/ojs/v1/jobs/batch/delete", {"job_ids": [waiting.id]})
    assert refused.status_code == 422
    bench.clock.advance(10)
    before = await http("DELETE", "/ojs/v1/jobs/batch", {"filter": {"completed_before": "2000-01-01T00:00:00Z"}})
    assert before.json()["summary"]["total"] == 0
    later = await http("DELETE", "/ojs/v1/jobs/batch", {"filter": {"completed_before": "2100-01-01T00:00:00Z"}})
    assert later.json()["summary"] == {"total": 1, "succeeded": 1, "failed": 0}
    assert (await http("GET", f"/ojs/v1/jobs/{done.id}")).status_code == 404
    assert (await bench.find(waiting)).state == "available"


async def test_jobs_of_workflows_are_left_to_their_workflows(http: Http) -> None:
    body = {"type": "chain", "steps": [{"type": "a", "args": [], "retry": {"max_attempts": 1}}]}
    await http("POST", "/ojs/v1/workflows", body)
    (job,) = await http.fetch()
    await http("POST", "/ojs/v1/workers/nack", {"job_id": job["id"], "error": {"message": "no"}})
    for action in ("retry", "delete"):
        response = await http("POST", f"/ojs/v1/jobs/bulk/{action}", {"job_ids": [job["id"]]})
        assert (response.status_code, response.json()["items"][0]["error"]["code"]) == (422, "conflict")


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"job_ids": [], "filter": {"queue": "q"}},
        {"job_ids": []},
        {"filter": {}},
        {"filter": {"quueue": "q"}},
        {"filter": {"state": "sleeping"}},
        {"filter": {"state": [{}]}},
        {"filter": {"state": [[]]}},
        {"filter": {"state": ["completed"]}},
        {"filter": {"queue": "q"}, "mode": "atomic"},
        {"filter": {"queue": 5}},
        {"filter": {"meta": {}}},
        {"filter": {"priority": "high"}},
        {"filter": {"enqueued_before": "yesterday"}},
        {"filter": {"type": "a", "job_type": "b"}},
        {"job_ids": ["x"], "mode": "maybe"},
    ],
)
async def test_a_request_that_does_not_say_which_jobs_is_refused(
    http: Http, bench: Bench, body: dict[str, Any]
) -> None:
    job = await bench.push(queue="q")
    assert (await http("POST", "/ojs/v1/jobs/batch/cancel", body)).status_code == 400
    assert (await bench.find(job)).state == "available"


async def test_a_request_that_is_sent_again_is_answered_as_before(http: Http, bench: Bench) -> None:
    for mode in ({}, {"mode": "partial"}, {"mode": "atomic"}):
        headers = {"Idempotency-Key": f"import-{mode}"}
        first = await batch(http, GOOD, GOOD, headers=headers, **mode)
        before = await count(bench)
        assert await batch(http, GOOD, GOOD, headers=headers, **mode) == first
        assert await count(bench) == before


async def test_a_key_belongs_to_one_request_and_one_operation(http: Http, bench: Bench) -> None:
    headers = {"Idempotency-Key": "k"}
    await batch(http, GOOD, headers=headers)
    status, body = await batch(http, GOOD, GOOD, headers=headers)
    assert (status, body["error"]["code"]) == (409, "conflict")
    response = await http("POST", "/ojs/v1/jobs/batch/cancel", {"filter": {"queue": "default"}}, headers=headers)
    assert response.json()["summary"]["succeeded"] == 1
    await bench.push()
    response = await http("POST", "/ojs/v1/jobs/batch/cancel", {"filter": {"queue": "default"}}, headers=headers)
    assert response.json()["summary"]["succeeded"] == 1
    assert await count(bench) == 2


async def test_a_key_is_kept_for_a_day(http: Http, bench: Bench) -> None:
    headers = {"Idempotency-Key": "k"}
    first = await batch(http, GOOD, headers=headers)
    bench.clock.advance(23 * HOUR // 1_000_000)
    assert await batch(http, GOOD, headers=headers) == first
    bench.clock.advance(2 * HOUR // 1_000_000)
    assert await batch(http, GOOD, headers=headers) != first
    assert await count(bench) == 2


async def test_the_same_key_at_the_same_moment_pushes_once(http: Http, bench: Bench) -> None:
    headers = {"Idempotency-Key": "race"}
    answers = await asyncio.gather(*[batch(http, GOOD, GOOD, mode="partial", headers=headers) for _ in range(20)])
    assert await count(bench) == 2
    assert all(answer == answers[0] for answer in answers)


async def test_the_same_key_at_the_same_moment_sweeps_once(http: Http, bench: Bench) -> None:
    for _ in range(3):
        await bench.push()

    async def cancel() -> Any:
        body = {"filter": {"queue": "default"}, "idempotency_key": "race"}
        return (await http("POST", "/ojs/v1/jobs/bulk/cancel", body)).json()

    answers = await asyncio.gather(*[cancel() for _ in range(5)])
    assert [answer["cancelled"] for answer in answers] == [3] * 5


@pytest.mark.parametrize("path", ["/jobs", "/jobs/batch", "/jobs/bulk", "/workflows"])
async def test_an_empty_idempotency_key_protects_from_nothing_and_is_rejected(http: Http, path: str) -> None:
    body = {"type": "a", "args": [], "jobs": [{"type": "a", "args": []}]}
    body |= {"type": "chain", "steps": body["jobs"]} if path == "/workflows" else {}
    refused = await http("POST", f"/ojs/v1{path}", body, headers={"Idempotency-Key": ""})
    assert (refused.status_code, refused.json()["error"]["details"]) == (400, {"field": "idempotency_key"})


@pytest.mark.parametrize("key", ["", "x" * 257])
async def test_an_invalid_idempotency_key_is_rejected(http: Http, bench: Bench, key: str) -> None:
    assert (await batch(http, GOOD, idempotency_key=key))[0] == 400
    assert await count(bench) == 0


async def test_a_bulk_operation_emits_a_summary_event(http: Http, bench: Bench) -> None:
    await batch(http, GOOD, BAD, mode="partial")
    await http("POST", "/ojs/v1/jobs/bulk/cancel", {"filter": {"queue": "default"}})
    events = (await http("GET", "/ojs/v1/events")).json()["events"]
    told = {event["type"]: event["data"] for event in events}
    assert told["batch.enqueued"] == {"total": 2, "succeeded": 1, "failed": 1}
    assert told["bulk.enqueue.completed"]["atomicity"] == "partial"
    assert told["bulk.cancel.completed"] == {"total": 1, "cancelled": 1, "skipped": 0}


SWEEPS = [
    *(("POST", f"/jobs/{family}/{action}", {}) for family in ("batch", "bulk") for action in ("retry", "delete")),
    ("DELETE", "/jobs/batch", {}),
    *(("POST", f"/admin/jobs/bulk/{action}", {"confirm": True}) for action in ("retry", "delete")),
    *(
        (method, f"{base}/dead-letter{rest}", {"confirm": True})
        for base in ("", "/admin")
        for method, rest in (("POST", "/retry"), ("DELETE", ""))
    ),
]


def succeeded(answer: dict[str, Any]) -> int:
    counts = answer.get("summary", answer)
    (number,) = {counts[name] for name in ("succeeded", "retried", "deleted") if name in counts}
    return int(number)


@pytest.mark.parametrize(("method", "path", "more"), SWEEPS, ids=[f"{method} {path}" for method, path, _ in SWEEPS])
async def test_every_sweep_selects_by_error_pattern_and_has_a_dry_run(
    http: Http, bench: Bench, method: str, path: str, more: dict[str, Any]
) -> None:
    for number in range(4):
        await bench.push(retry={"max_attempts": 1, "on_exhaustion": "dead_letter"})
        await bench.fail(await bench.fetch_one(), message=f"card {number} was {('declined', 'lost')[number == 0]}")
    body = {"filter": {"error_pattern": "card … was declined", "error_type": "SomeError"}}
    before = await bench.service.jobs.count()
    foreseen = await http(method, f"/ojs/v1{path}", body | {"dry_run": True})
    assert (foreseen.status_code, succeeded(foreseen.json()), foreseen.json()["dry_run"]) == (200, 3, True)
    assert await bench.service.jobs.count() == before
    assert await bench.service.audit.select(AuditQuery()) == [], "it has changed nothing"
    body["filter"]["finished_before"] = foreseen.json()["as_of"]
    done = await http(method, f"/ojs/v1{path}", body | more)
    assert (done.status_code, succeeded(done.json()), "dry_run" in done.json()) == (200, 3, False)
    assert (await bench.service.jobs.count())["default"]["discarded"] == 1
    assert len(await bench.service.audit.select(AuditQuery())) == 1


async def test_a_dry_run_of_jobs_that_are_named_is_refused(http: Http, bench: Bench) -> None:
    job = await bench.push()
    answer = await http("POST", "/ojs/v1/jobs/bulk/cancel", {"job_ids": [job.id], "dry_run": True})
    assert (answer.status_code, answer.json()["error"]["details"]["field"]) == (400, "dry_run")
    assert (await bench.find(job)).state == "available"


@pytest.mark.parametrize(("family", "total"), [("batch", "summary.total"), ("bulk", "total_matched")])
async def test_a_filter_is_worked_through_in_parts_that_end_where_the_caller_stops(
    http: Http, bench: Bench, monkeypatch: pytest.MonkeyPatch, family: str, total: str
) -> None:
    monkeypatch.setattr(sweeps, "PART_ROWS", 4)
    for number in range(10):
        await bench.push("ab"[number % 2])
    cursor, matched = "0", list[int]()
    while cursor is not None:
        body = {"filter": {"type": "a"}, "cursor": cursor}
        answer = (await http("POST", f"/ojs/v1/jobs/{family}/cancel", body)).json()
        if not matched:
            await bench.push("a")  # after the first part: it is not changed
        cursor = answer["next_cursor"]
        for name in total.split("."):
            answer = answer[name]
        matched.append(answer)
    assert matched == [2, 2, 1]
    assert (await bench.service.jobs.count())["default"] == {"available": 6, "cancelled": 5}
    wrong = await http("POST", f"/ojs/v1/jobs/{family}/cancel", {"filter": {"type": "a"}, "cursor": "x"})
    assert (wrong.status_code, wrong.json()["error"]["code"]) == (400, "invalid_request")
