"""The answers of the endpoints about jobs, member by member.

Spec: ojs-http-binding 9, 10, 12; ojs-admin-api 7
"""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from ojster.core.settings import ServiceSettings
from ojster.server.endpoints import routes_of
from tests.conftest import Bench, Http

pytestmark = pytest.mark.anyio

BASE = "/ojs/v1"
ADMIN = f"{BASE}/admin"
AT = "2027-01-15T08:00:00.000000Z"
LATER = "2027-01-15T08:00:02.000000Z"
DEAD = {"retry": {"max_attempts": 1, "on_exhaustion": "dead_letter"}}


async def held(http: Http, **options: Any) -> str:
    """Return the id of an active job of the worker ``w``."""
    id: str = (await http.push(options=options))["id"]
    await http.fetch(options.get("queue", "default"), worker_id="w")
    return id


async def buried(http: Http, type: str = "test.job", error: str = "Broken", **options: Any) -> str:
    """Return the id of a dead letter."""
    id: str = (await http.push(type=type, options=DEAD | options))["id"]
    await http.fetch(options.get("queue", "default"), worker_id="w")
    await ok(http, "POST", "/workers/nack", {"job_id": id, "worker_id": "w", "error": {"type": error, "message": "no"}})
    return id


async def ok(http: Http, method: str, path: str, body: Any = None, status: int = 200) -> Any:
    response = await http(method, BASE + path, body)
    assert response.status_code == status, response.text
    return response.json() if response.content else None


def error_of(response: httpx.Response) -> dict[str, Any]:
    error: dict[str, Any] = response.json()["error"]
    return {name: error[name] for name in ("code", "message") if name in error}


def brief(id: str, state: str, attempt: int = 1, queue: str = "default") -> dict[str, Any]:
    return {"id": id, "type": "test.job", "queue": queue, "state": state, "attempt": attempt}


# Errors


async def test_an_error_has_only_the_members_that_it_needs(http: Http) -> None:
    usual = {"code", "message", "retryable", "docs_url", "request_id"}
    plain = (await http("POST", f"{BASE}/jobs", b"")).json()["error"]
    assert plain.keys() == usual
    policy = (await http("POST", f"{BASE}/jobs", {"type": "a", "args": [], "retry": 5})).json()["error"]
    assert policy.keys() == usual | {"type", "details"}
    missing = (await http("GET", f"{BASE}/jobs/x")).json()["error"]
    assert missing.keys() == usual | {"hint", "details"}


# Workers


@pytest.mark.parametrize("path", ["/workers/ack", "/jobs/{}/ack"])
async def test_a_completed_job_is_answered_in_short(http: Http, bench: Bench, path: str) -> None:
    id = await held(http)
    bench.clock.advance(2)
    body = {"worker_id": "w"} | ({"job_id": id} if "{}" not in path else {})
    assert await ok(http, "POST", path.format(id), body) == {
        "acknowledged": True, "id": id, "job_id": id, "state": "completed", "completed_at": LATER,
        "job": brief(id, "completed"),
    }  # fmt: skip


@pytest.mark.parametrize("path", ["/workers/nack", "/jobs/{}/nack"])
async def test_a_failed_job_is_answered_with_what_comes_next(http: Http, path: str) -> None:
    error = {"error": {"message": "no"}, "worker_id": "w"}
    id = await held(http, retry={"initial_interval": "PT2S", "jitter": False})
    body = error | ({"job_id": id} if "{}" not in path else {})
    common = {"id": id, "job_id": id, "attempt": 1, "max_attempts": 3}
    assert await ok(http, "POST", path.format(id), body) == common | {
        "state": "retryable", "job": brief(id, "retryable"), "next_attempt_at": LATER, "retry_delay_ms": 2_000,
    }  # fmt: skip
    id = await held(http, **DEAD)
    body = error | ({"job_id": id} if "{}" not in path else {})
    common = {"id": id, "job_id": id, "attempt": 1, "max_attempts": 1}
    assert await ok(http, "POST", path.format(id), body) == common | {
        "state": "discarded", "job": brief(id, "discarded"), "discarded_at": AT, "completed_at": AT,
        "dead_letter": True,
    }  # fmt: skip
    id = await held(http, retry={"max_attempts": 1})
    body = error | ({"job_id": id} if "{}" not in path else {})
    assert (await ok(http, "POST", path.format(id), body))["dead_letter"] is False


async def test_a_failure_hands_a_job_back_if_it_is_to_be_requeued(http: Http) -> None:
    id = await held(http)
    answer = await ok(http, "POST", "/workers/nack", {"job_id": id, "worker_id": "w", "requeue": True})
    assert (answer["state"], answer["attempt"]) == ("available", 0)
    assert "next_attempt_at" not in answer
    await http.fetch(worker_id="w")
    later = {"job_id": id, "worker_id": "w", "requeue": True, "delay_ms": 2_000}
    assert (await ok(http, "POST", "/workers/nack", later))["state"] == "scheduled"
    assert (await ok(http, "GET", f"/jobs/{id}"))["job"]["state"] == "scheduled"


@pytest.mark.parametrize("path", ["/workers/release", "/jobs/{}/release"])
async def test_a_released_job_is_answered_with_when_it_runs(http: Http, path: str) -> None:
    for delay, state in ((0, "available"), (2_000, "scheduled")):
        id = await held(http, queue=f"q{delay}")
        body = {"worker_id": "w", "delay_ms": delay} | ({"job_id": id} if "{}" not in path else {})
        answer = {"id": id, "job_id": id, "state": state, "job": brief(id, state, 0, f"q{delay}"), "released": True}
        scheduled = {"scheduled_at": LATER} if delay else {}
        assert await ok(http, "POST", path.format(id), body) == answer | scheduled


@pytest.mark.parametrize("path", ["ack", "nack", "release"])
async def test_a_report_of_another_start_of_the_attempt_is_refused(http: Http, path: str) -> None:
    id = await held(http)
    body = {"job_id": id, "worker_id": "w", "attempt": 1} | ({"requeue": True} if path == "nack" else {})
    refused = await ok(http, "POST", f"/workers/{path}", body | {"started_at": LATER}, status=409)
    assert refused["error"]["message"] == (
        f"The attempt of the job {id} that the report is about has ended; another one has begun."
    )
    assert (await ok(http, "GET", f"/jobs/{id}"))["job"]["state"] == "active"
    await ok(http, "POST", f"/workers/{path}", body | {"started_at": AT})


async def test_a_job_that_waits_is_answered_with_its_deadline(http: Http) -> None:
    id = await held(http)
    body = {"job_id": id, "worker_id": "w", "then": "wait", "deadline": LATER}
    answer = await ok(http, "POST", "/workers/release", body)
    assert (answer["state"], answer["deadline"]) == ("pending", LATER)
    assert "scheduled_at" not in answer


async def test_each_report_of_a_batch_is_answered_in_its_place(http: Http) -> None:
    ids = [await held(http) for _ in range(3)]
    acks = [{"job_id": id, "worker_id": worker} for id, worker in zip(ids, ("w", "x", "w"), strict=True)]
    results = (await ok(http, "POST", "/workers/ack/batch", {"acks": acks}))["results"]
    assert [result.get("state") for result in results] == ["completed", None, "completed"]
    assert results[1]["error"]["code"] == "conflict"
    assert results[2]["job"] == brief(ids[2], "completed")
    nacks = [
        {"job_id": ids[1], "worker_id": "x", "requeue": True},
        {"job_id": ids[0], "worker_id": "w", "error": {"message": "no"}},
        {"job_id": ids[1], "worker_id": "w", "requeue": True},
    ]
    results = (await ok(http, "POST", "/workers/nack/batch", {"nacks": nacks}))["results"]
    assert [result.get("state", "error") for result in results] == ["error", "error", "available"]


@pytest.mark.parametrize(
    ("error", "message"),
    [(None, "'error' is missing. Describe why the job failed."), ({"code": "C"}, "'error.message' is missing.")],
)
async def test_a_failure_says_why(http: Http, error: Any, message: str) -> None:
    id = await held(http)
    response = await http("POST", f"{BASE}/workers/nack", {"job_id": id, "worker_id": "w", "error": error})
    assert response.status_code == 400
    assert message in response.json()["error"]["message"]
    assert (await ok(http, "GET", f"/jobs/{id}"))["job"]["state"] == "active"


async def test_a_fetch_tells_which_jobs_it_wants(http: Http) -> None:
    for number in range(3):
        await http.push(type=f"t{number}", options={"queue": "q"})
    assert [job["type"] for job in await http.fetch("q", count=2, job_types=["t2", "t1@1"])] == ["t1", "t2"]
    refused = await http("POST", f"{BASE}/workers/fetch", {"queues": ["q"], "capabilities": {"gpu": 1}})
    assert refused.json()["error"]["details"] == {"field": "worker_id"}
    for strategy in ("weighted", "round_robin"):
        many = {"queues": [f"q{n}" for n in range(101)], "strategy": strategy}
        refused = await http("POST", f"{BASE}/workers/fetch", many)
        assert refused.status_code == 400, strategy


async def test_a_fetch_without_a_wait_answers_at_once(http: Http) -> None:
    assert await http.fetch() == []
    assert await http.fetch(wait_ms=0) == []
    (job,) = [await http.push()]
    (fetched,) = await http.fetch(visibility_timeout_ms=2_000, worker_id="w")
    assert (fetched["id"], fetched["worker_id"]) == (job["id"], "w")


async def test_a_worker_that_leaves_gives_its_jobs_back(http: Http) -> None:
    beat = {"worker_id": "w"}
    for lost, attempt in (("", 0), ("?lost=true", 1), ("?lost=false", 0)):
        await ok(http, "POST", "/workers/heartbeat", beat)
        id = await held(http, queue=f"q{len(lost)}")
        answer = await ok(http, "DELETE", f"/workers/w{lost}")
        assert "w" in answer.values()
        job = (await ok(http, "GET", f"/jobs/{id}"))["job"]
        assert (job["state"], job["attempt"]) == ("available", attempt), lost


# Jobs


async def test_a_cancelled_job_is_answered_whole_with_its_state_before(http: Http) -> None:
    for method, path in (("DELETE", "/jobs/{}"), ("POST", "/jobs/{}/cancel")):
        id = (await http.push())["id"]
        job = (await ok(http, method, path.format(id)))["job"]
        assert (job.pop("previous_state"), job["cancelled_at"]) == ("available", AT)
        assert job == (await ok(http, "GET", f"/jobs/{id}"))["job"]


async def test_an_activated_job_is_answered_in_short(http: Http, bench: Bench) -> None:
    id = (await http.push(options={"pending": True}))["id"]
    bench.clock.advance(2)
    answer = await ok(http, "POST", f"/jobs/{id}/activate")
    assert (answer["job"]["previous_state"], answer["job"]["activated_at"]) == ("pending", LATER)
    assert "cancelled_at" not in answer["job"]


async def test_a_priority_is_set_or_changed(http: Http) -> None:
    id = (await http.push(options={"priority": 5}))["id"]
    answer = await ok(http, "PATCH", f"/jobs/{id}", {"priority_adjustment": 2})
    assert answer.pop("job")["priority"] == 7
    assert answer == {"id": id, "priority": 7, "previous_priority": 5, "priority_adjustment": 2}
    answer = await ok(http, "PATCH", f"/jobs/{id}", {"priority": 4})
    assert (answer["priority"], answer["previous_priority"], answer["priority_adjustment"]) == (4, 7, -1)
    answer = await ok(http, "PATCH", f"/jobs/{id}", {"priority": 0})
    assert (answer["priority"], answer["previous_priority"], answer["priority_adjustment"]) == (0, 4, -5)
    for body in ({}, {"priority": 1, "priority_adjustment": 1}):
        refused = await http("PATCH", f"{BASE}/jobs/{id}", body)
        assert refused.json()["error"]["message"] == "Exactly one of 'priority' and 'priority_adjustment' is required."
    await http.fetch(worker_id="w")
    assert (await http("PATCH", f"{BASE}/jobs/{id}", {"priority": 1})).status_code == 409
    assert (await ok(http, "PATCH", f"/jobs/{id}", {"priority_adjustment": 1}))["priority"] == 6


@pytest.mark.parametrize(("body", "field"), [({"priority": 101}, "priority"), ({"priority_adjustment": 96}, "")])
async def test_a_priority_stays_in_its_range(http: Http, body: dict[str, int], field: str) -> None:
    id = (await http.push(options={"priority": 5}))["id"]
    refused = await http("PATCH", f"{BASE}/jobs/{id}", body)
    assert refused.status_code == 400
    assert refused.json()["error"]["details"] == {"field": field or "priority_adjustment"}
    assert (await ok(http, "PATCH", f"/jobs/{id}", {"priority": 100}))["priority"] == 100
    assert (await ok(http, "PATCH", f"/jobs/{id}", {"priority": -100}))["priority"] == -100


async def test_a_result_is_shown_as_it_is_or_waited_for(http: Http, bench: Bench) -> None:
    id = await held(http)
    response = await http("GET", f"{BASE}/jobs/{id}/result")
    assert response.json() == {"job_id": id, "state": "active", "result": None}
    assert response.headers["retry-after"] == "1"
    waited = await http("GET", f"{BASE}/jobs/{id}/result?wait=true&timeout=0")
    assert (waited.status_code, waited.json()["error"]["details"]) == (408, {"current_state": "active"})
    await ok(http, "POST", "/workers/ack", {"job_id": id, "worker_id": "w", "result": [1]})
    result = {"state": "completed", "result": [1], "result_size_bytes": 3, "result_stored_at": AT}
    for query in ("", "?wait=true&timeout=0", "?wait=false"):
        response = await http("GET", f"{BASE}/jobs/{id}/result{query}")
        assert response.json() == {"job_id": id} | result
        assert "retry-after" not in response.headers
    both = await ok(http, "POST", "/jobs/results", {"ids": [id, "nowhere"]})
    assert both == {"results": {id: result}}


async def test_progress_is_a_share_or_a_percentage(http: Http, bench: Bench) -> None:
    id = await held(http)
    path = f"/jobs/{id}/progress"
    assert await ok(http, "GET", path) == {
        "job_id": id, "state": "active", "progress": None, "message": None, "data": None, "updated_at": AT,
    }  # fmt: skip
    bench.clock.advance(2)
    response = await http("PUT", BASE + path, {"percentage": 50, "message": "half"})
    assert response.json() == {
        "job_id": id, "state": "active", "progress": 0.5, "message": "half", "data": None, "updated_at": LATER,
    }  # fmt: skip
    assert (response.headers["x-ojs-progress"], response.headers["cache-control"]) == ("0.5", "no-cache")
    for given, kept in ((-1, 0.0), (0.25, 0.25), (1.5, 1.0)):
        other = await held(http)
        assert (await ok(http, "PUT", f"/jobs/{other}/progress", {"progress": given}))["progress"] == kept
    only_data = await ok(http, "PUT", path, {"data": {"page": 7}})
    assert only_data["data"] == {"page": 7}
    refused = await http("PUT", BASE + path, {"message": "x"})
    assert refused.json()["error"]["details"] == {"field": "progress"}
    body = {"job_id": id, "progress": 0.75, "worker_id": "w", "checkpoint": {"at": 3}}
    assert (await ok(http, "POST", "/workers/progress", body))["progress"] == 0.75
    assert (await ok(http, "GET", f"/jobs/{id}/checkpoint"))["checkpoint"]["state"] == {"at": 3}


async def test_a_checkpoint_is_counted_shown_and_deleted(http: Http) -> None:
    id = await held(http)
    path = f"/jobs/{id}/checkpoint"
    assert (await http("GET", BASE + path)).status_code == 404
    for sequence, (method, state) in enumerate((("PUT", 1), ("POST", None)), 1):
        body = {"state": state, "worker_id": "w"}
        plain = {"job_id": id, "state": state, "sequence": sequence, "created_at": AT}
        assert await ok(http, method, path, body) == plain | {"checkpoint": plain}
        assert await ok(http, "GET", path) == plain | {"checkpoint": plain}
    assert await ok(http, "DELETE", path) == {"job_id": id, "existed": True, "deleted": True}
    assert await ok(http, "DELETE", path) == {"job_id": id, "existed": False, "deleted": True}


async def test_a_push_tells_where_the_job_is(http: Http) -> None:
    response = await http("POST", f"{BASE}/jobs", {"type": "a", "args": []})
    id = response.json()["job"]["id"]
    assert (response.status_code, response.headers["location"]) == (201, f"{BASE}/jobs/{id}")
    assert response.json().keys() == {"job"}
    unique = {"type": "a", "args": [], "options": {"unique": {"keys": ["type"], "on_conflict": "ignore"}}}
    first = await http("POST", f"{BASE}/jobs", unique)
    again = await http("POST", f"{BASE}/jobs", unique)
    assert (again.status_code, again.json()["deduplicated"]) == (200, True)
    assert again.json()["job"]["id"] == first.json()["job"]["id"]


async def test_a_push_may_wait_only_a_number_of_seconds(http: Http) -> None:
    body = {"type": "a", "args": []}
    refused = await http("POST", f"{BASE}/jobs", body, headers={"OJS-Block-Timeout": "soon"})
    assert error_of(refused) == {
        "code": "invalid_request", "message": "OJS-Block-Timeout must be a number of seconds, not 'soon'.",
    }  # fmt: skip
    for wait in ("0", "1.5", "-1", "1000"):
        assert (await http("POST", f"{BASE}/jobs", body, headers={"OJS-Block-Timeout": wait})).status_code == 201


# Many jobs


async def test_each_entry_of_a_bulk_push_has_the_members_of_its_outcome(http: Http) -> None:
    good, bad = {"type": "a", "args": []}, {"type": "BAD", "args": []}
    quiet = good | {"options": {"unique": {"keys": ["type"], "on_conflict": "ignore"}}}
    body = await ok(http, "POST", "/jobs/bulk", {"jobs": [good, bad, quiet, quiet]}, 207)
    assert [item["index"] for item in body["items"]] == [0, 1, 2, 3]
    created, failed, unique, duplicate = body["items"]
    assert created.keys() == {"index", "status", "job"}
    assert created["job"].keys() == {"id", "type", "state"}
    assert failed.keys() == {"index", "status", "error"}
    assert failed["error"]["details"]["index"] == 1
    assert (created["status"], failed["status"], unique["status"]) == ("created", "failed", "created")
    assert duplicate == {"index": 3, "status": "duplicate", "job": unique["job"]}
    assert {name: body[name] for name in body.keys() - {"items"}} == {"total": 4, "succeeded": 3, "failed": 1}


async def test_each_entry_of_a_batch_has_the_members_of_its_outcome(http: Http) -> None:
    good, bad = {"type": "a", "args": []}, {"type": "BAD", "args": []}
    quiet = good | {"options": {"unique": {"keys": ["type"], "on_conflict": "ignore"}}}
    body = await ok(http, "POST", "/jobs/batch", {"jobs": [good, bad, quiet, quiet], "mode": "partial"}, 207)
    created, failed, unique, duplicate = body["results"]
    assert created == {"index": 0, "status": 201, "job_id": body["jobs"][0]["id"]}
    assert (failed.keys(), failed["status"]) == ({"index", "status", "error"}, 400)
    assert duplicate == {"index": 3, "status": 200, "job_id": unique["job_id"], "deduplicated": True}
    assert (body["count"], len(body["jobs"])) == (3, 3)


@pytest.mark.parametrize(("action", "past"), [("cancel", "cancelled"), ("retry", "retried"), ("delete", "deleted")])
async def test_each_entry_of_a_bulk_change_has_the_members_of_its_outcome(http: Http, action: str, past: str) -> None:
    id = (await http.push(queue="q"))["id"]
    if action != "cancel":
        await http.fetch("q", worker_id="w")
        error = {"code": "DISCARD", "message": "no"}
        await ok(http, "POST", "/workers/nack", {"job_id": id, "worker_id": "w", "error": error})
    bulk = await ok(http, "POST", f"/jobs/bulk/{action}", {"job_ids": ["nowhere", id]}, 207)
    skipped, changed = bulk["items"]
    assert changed == {"index": 1, "status": past, "job_id": id}
    assert skipped.keys() == {"index", "status", "job_id", "error", "reason"}
    assert (skipped["status"], skipped["job_id"], skipped["reason"]) == (
        "skipped", "nowhere", skipped["error"]["message"],
    )  # fmt: skip
    assert {name: bulk[name] for name in bulk.keys() - {"items"}} == {"total_matched": 2, past: 1, "skipped": 1}
    batch = await ok(http, "POST", f"/jobs/batch/{action}", {"job_ids": ["nowhere"]}, 422)
    assert batch["results"][0].keys() == {"index", "status", "job_id", "error"}
    assert batch["summary"] == {"total": 1, "succeeded": 0, "failed": 1}
    assert "jobs" not in batch
    assert "count" not in batch


async def test_all_or_none_is_only_for_jobs_that_are_named(http: Http) -> None:
    body = {"filter": {"type": "a"}, "mode": "atomic"}
    refused = await http("POST", f"{BASE}/jobs/bulk/cancel", body)
    assert refused.json()["error"]["details"] == {"field": "mode"}
    both = {"filter": {"type": "a"}, "job_ids": ["x"]}
    for wrong, field in ((both, "job_ids"), ({}, "job_ids"), ({"filter": {}}, "filter"), ({"job_ids": []}, "job_ids")):
        refused = await http("POST", f"{BASE}/jobs/bulk/cancel", wrong)
        assert refused.json()["error"]["details"] == {"field": field}
    contradiction = {"jobs": [{"type": "a", "args": []}], "mode": "atomic", "atomicity": "partial"}
    refused = await http("POST", f"{BASE}/jobs/bulk", contradiction)
    assert refused.json()["error"]["details"] == {"field": "mode"}
    agreed = contradiction | {"atomicity": "atomic"}
    await ok(http, "POST", "/jobs/bulk", agreed, 201)


async def test_a_sweep_that_only_tells_workers_to_stop_is_no_failure(http: Http) -> None:
    id = await held(http)
    active = {"filter": {"state": "active"}}
    body = await ok(http, "POST", "/jobs/bulk/cancel", active)
    assert (body["total_matched"], body["cancelled"], body["skipped"]) == (1, 0, 1)
    assert body["items"][0]["job_id"] == id
    assert (await ok(http, "POST", "/jobs/bulk/cancel", {"filter": {"type": "none"}}))["total_matched"] == 0
    steps = [{"type": "b", "args": []}]
    workflow = await ok(http, "POST", "/workflows", {"type": "chain", "steps": steps}, 201)
    await ok(http, "DELETE", f"/workflows/{workflow['workflow']['id']}")
    refused = await ok(http, "POST", "/jobs/bulk/delete", {"filter": {"type": "b"}}, 422)
    assert (refused["total_matched"], refused["deleted"]) == (1, 0)


async def test_an_idempotency_key_has_at_most_256_characters(http: Http) -> None:
    body = {"jobs": [{"type": "a", "args": []}]}
    await ok(http, "POST", "/jobs/bulk", body | {"idempotency_key": "k" * 256}, 201)
    for key in ("k" * 257, "", "a\nb"):
        refused = await http("POST", f"{BASE}/jobs/bulk", body | {"idempotency_key": key})
        assert refused.json()["error"]["details"] == {"field": "idempotency_key"}, key


# What is large


def test_requests_with_many_jobs_or_with_data_may_be_large() -> None:
    large = {(route.method, route.path.removeprefix(BASE)) for route in routes_of() if route.large}
    jobs = {one for one in large if one[1].startswith(("/jobs", "/workers"))}
    assert jobs == {
        *(("POST", f"/jobs/{family}{action}") for family in ("batch", "bulk") for action in ("", *ACTIONS)),
        ("DELETE", "/jobs/batch"),
        ("POST", "/workers/ack"),
        *(("POST", f"/workers/{report}/batch") for report in ("ack", "nack", "release")),
        ("POST", "/workers/release"),
        ("POST", "/jobs/{id}/ack"),
        ("POST", "/jobs/{id}/release"),
        ("POST", "/jobs/{id}/activate"),
        ("PUT", "/jobs/{id}/checkpoint"),
        ("POST", "/jobs/{id}/checkpoint"),
        ("POST", "/jobs/{id}/flow"),
    }


ACTIONS = ("/cancel", "/retry", "/delete")


# Operators


async def test_an_operator_searches_sorts_and_pages_jobs(http: Http) -> None:
    ids = [(await http.push(options={"priority": priority, "tags": ["x"]}))["id"] for priority in (2, 1, 3)]

    async def found(query: str = "") -> list[int]:
        return [ids.index(item["id"]) for item in (await ok(http, "GET", f"/admin/jobs{query}"))["items"]]

    assert await found() == [2, 1, 0]
    assert await found("?order=asc") == [0, 1, 2]
    assert await found("?sort=priority") == [2, 0, 1]
    assert await found("?sort=priority&order=asc") == [1, 0, 2]
    assert await found("?per_page=2&page=2") == [0]
    assert await found("?state=active") == []
    for query in ("?sort=size", "?order=up"):
        refused = await http("GET", f"{ADMIN}/jobs{query}")
        assert refused.json()["error"]["details"] == {"field": "sort"}
    (item, *_) = (await ok(http, "GET", "/admin/jobs"))["items"]
    assert item.keys() == {
        "id", "type", "queue", "state", "priority", "attempt", "max_attempts", "created_at", "enqueued_at", "tags",
    }  # fmt: skip


async def test_an_operator_sees_all_of_a_job(http: Http, bench: Bench) -> None:
    id = (await http.push(options={"scheduled_at": "+PT2S", "expires_at": "+PT1H"}))["id"]
    shown = await ok(http, "GET", f"/admin/jobs/{id}")
    assert shown["metadata"] == {
        "created_at": AT, "enqueued_at": None, "started_at": None, "scheduled_at": LATER,
        "expires_at": "2027-01-15T09:00:00.000000Z", "completed_at": None, "cancelled_at": None, "discarded_at": None,
    }  # fmt: skip
    assert (shown["errors"], shown["result"], shown["dead_letter"]) == ([], None, False)
    assert shown["retry_policy"] == {
        "max_attempts": 3, "initial_interval": "PT1S", "backoff_coefficient": 2.0, "max_interval": "PT5M",
        "jitter": True, "non_retryable_errors": [], "backoff_strategy": "exponential",
    }  # fmt: skip
    dead = await buried(http)
    shown = await ok(http, "GET", f"/admin/dead-letter/{dead}")
    assert (shown["dead_letter"], shown["metadata"]["discarded_at"], shown["metadata"]["started_at"]) == (True, AT, AT)
    assert (shown["metadata"]["completed_at"], shown["metadata"]["scheduled_at"]) == (None, None)
    assert [error["type"] for error in shown["errors"]] == ["Broken"]
    assert (await http("GET", f"{ADMIN}/dead-letter/{id}")).json()["error"]["details"] == {
        "resource_type": "dead_letter_job", "resource_id": id,
    }  # fmt: skip


async def test_an_operator_cancels_and_retries_a_job(http: Http) -> None:
    id = (await http.push())["id"]
    cancelled = await ok(http, "POST", f"/admin/jobs/{id}/cancel")
    assert cancelled == {"id": id, "state": "cancelled", "previous_state": "available"}
    assert await ok(http, "POST", f"/admin/jobs/{id}/retry") == {"id": id, "state": "available", "attempt": 0}
    assert (await http("POST", f"{ADMIN}/jobs/{id}/retry")).status_code == 409


async def test_an_operator_confirms_what_concerns_many(http: Http) -> None:
    await http.push()
    for action in ("cancel", "retry", "delete"):
        for body, field in (
            ({"filter": {"type": "*"}}, "confirm"),
            ({"filter": {"type": "*"}, "confirm": False}, "confirm"),
            ({"filter": {}, "confirm": True}, "filter"),
            ({"confirm": True}, "filter"),
        ):
            refused = await http("POST", f"{ADMIN}/jobs/bulk/{action}", body)
            assert (refused.status_code, refused.json()["error"]["details"]) == (400, {"field": field}), (action, body)
    swept = await ok(http, "POST", "/admin/jobs/bulk/cancel", {"filter": {"type": "*"}, "confirm": True})
    assert (swept["matched"], swept["succeeded"]) == (1, 1)


@pytest.mark.parametrize("base", ["/dead-letter", "/admin/dead-letter"])
async def test_dead_letters_are_counted(http: Http, bench: Bench, base: str) -> None:
    await buried(http)
    bench.clock.advance(2)
    await buried(http, error="Other", queue="q")
    assert await ok(http, "GET", f"{base}/stats") == {
        "total": 2, "by_queue": {"default": 1, "q": 1}, "by_error_type": {"Broken": 1, "Other": 1}, "oldest_at": AT,
        "newest_at": LATER, "retention": {"max_age": "P90D", "max_count": 10_000},
    }  # fmt: skip


@pytest.mark.parametrize("base", ["/dead-letter", "/admin/dead-letter"])
async def test_dead_letters_are_purged_by_a_filter_or_their_age_and_no_others(
    http: Http, bench: Bench, base: str
) -> None:
    old = await buried(http, "old.job")
    bench.clock.advance(2)
    young, other = await buried(http, "young.job"), await buried(http, "other.job")
    discarded = await held(http, retry={"max_attempts": 1})
    nack = {"job_id": discarded, "worker_id": "w", "error": {"message": "no"}}
    await ok(http, "POST", "/workers/nack", nack)
    assert (await http("DELETE", f"{BASE}{base}", {"older_than": LATER})).status_code == 400
    purged = await ok(http, "DELETE", base, {"confirm": True, "older_than": LATER})
    assert (purged["matched"], purged["purged_count"]) == (1, 1)
    assert (await http("GET", f"{BASE}/jobs/{old}")).status_code == 404
    purged = await ok(http, "DELETE", base, {"confirm": True, "filter": {"type": "young.*"}})
    assert purged["purged_count"] == 1
    assert (await http("GET", f"{BASE}/jobs/{young}")).status_code == 404
    again = await ok(http, "POST", f"{base}/retry", {"confirm": True, "filter": {"type": "none"}})
    assert (again["matched"], "purged_count" in again) == (0, False)
    again = await ok(http, "POST", f"{base}/retry", {"confirm": True})
    assert again["succeeded"] == 1
    assert (await ok(http, "GET", f"/jobs/{other}"))["job"]["state"] == "available"
    assert (await ok(http, "GET", f"/jobs/{discarded}"))["job"]["state"] == "discarded"


async def test_an_operator_lists_dead_letters_and_deletes_and_retries_one(http: Http) -> None:
    one, two = await buried(http, "a.job"), await buried(http, "b.job", queue="q")
    await http.push()
    listed = await ok(http, "GET", "/admin/dead-letter")
    assert [item["id"] for item in listed["items"]] == [two, one]
    assert [item["id"] for item in (await ok(http, "GET", "/admin/dead-letter?type=a.*"))["items"]] == [one]
    response = await http("DELETE", f"{ADMIN}/dead-letter/{one}")
    assert (response.status_code, response.content) == (204, b"")
    shown = await ok(http, "POST", f"/admin/dead-letter/{two}/retry")
    assert (shown["id"], shown["state"], shown["dead_letter"]) == (two, "available", False)


async def test_a_dead_letter_runs_again_with_other_values(http: Http, bench: Bench) -> None:
    id = await buried(http)
    bench.clock.advance(2)
    override = {"args": [7], "queue": "other", "meta": {"k": 1}, "retry": {"max_attempts": 9}}
    answer = await ok(http, "POST", f"/dead-letter/{id}/retry", {"override": override})
    job = answer["job"]
    assert answer["re_enqueued_at"] == LATER
    assert (job["args"], job["queue"], job["meta"], job["max_attempts"]) == ([7], "other", {"k": 1}, 9)
    assert job["retry"]["on_exhaustion"] == "dead_letter"
    assert (job["state"], job["attempt"], "started_at" in job) == ("available", 0, False)
    queues = {one["name"]: one for one in (await ok(http, "GET", "/queues"))["queues"]}
    assert "other" in queues
    plain = await buried(http)
    assert (await ok(http, "POST", f"/dead-letter/{plain}/retry"))["job"]["args"] == []
    assert await ok(http, "DELETE", f"/dead-letter/{await buried(http, queue='third')}") is not None


async def test_dead_letters_are_listed_by_each_filter(http: Http, bench: Bench) -> None:
    one = await buried(http, "a.job")
    bench.clock.advance(2)
    two = await buried(http, "b.job", "Other", queue="q")

    async def found(query: str) -> list[str]:
        return [job["id"] for job in (await ok(http, "GET", f"/dead-letter?{query}"))["jobs"]]

    assert await found("") == [two, one]
    for query in ("queue=q", "type=b.*", "error_type=Other", f"since={AT}", f"discarded_after={AT}"):
        assert await found(query) == [two], query
    for query in (f"until={LATER}", f"discarded_before={LATER}"):
        assert await found(query) == [one], query


@pytest.mark.parametrize("engine_settings", [ServiceSettings(largest_batch=2)], ids=["2"])
async def test_a_request_has_at_most_as_many_jobs_as_the_settings_say(http: Http) -> None:
    jobs = [{"type": "a", "args": []}] * 3
    await ok(http, "POST", "/jobs/batch", {"jobs": jobs[:2]}, 201)
    refused = await http("POST", f"{BASE}/jobs/batch", {"jobs": jobs})
    assert refused.json()["error"]["details"] == {"limit": 2, "max_batch_size": 2}
    empty = await http("POST", f"{BASE}/jobs/batch", {"jobs": []})
    assert (empty.status_code, empty.json()["error"]["details"]) == (400, {"field": "jobs"})


async def test_an_id_is_taken_once_also_within_a_request(http: Http) -> None:
    id = (await http.push())["id"]
    other = id[:-1] + ("0" if id[-1] != "0" else "1")
    twice = [{"type": "a", "args": [], "id": other}] * 2
    body = await ok(http, "POST", "/jobs/bulk", {"jobs": twice}, 207)
    assert [item["status"] for item in body["items"]] == ["created", "failed"]
    assert body["items"][1]["error"]["code"] == "duplicate"
    assert body["items"][1]["error"]["details"]["existing_job_id"] == other
    refused = await http("POST", f"{BASE}/jobs/batch", {"jobs": [twice[0] | {"id": id}]})
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "duplicate")


async def test_a_report_changes_the_properties_of_its_workflow(http: Http) -> None:
    steps = [{"type": "a", "args": []} for _ in range(3)]
    made = await ok(http, "POST", "/workflows", {"type": "chain", "steps": steps, "properties": {"old": 1}}, 201)
    where = f"/workflows/{made['workflow']['id']}/properties"
    changes = {"set": {"n": 1}, "delete": ["old"]}
    (job,) = await http.fetch(worker_id="w")
    report = {"job_id": job["id"], "worker_id": "w"}
    await ok(http, "POST", "/workers/release", report | {"properties": changes})
    assert {name: one["value"] for name, one in (await ok(http, "GET", where))["properties"].items()} == {"n": 1}
    (job,) = await http.fetch(worker_id="w")
    await ok(http, "POST", "/workers/ack", report | {"properties": {"set": {"n": 2}}})
    assert (await ok(http, "GET", where))["properties"]["n"]["value"] == 2


async def test_a_queue_is_purged_only_if_that_is_confirmed(http: Http) -> None:
    id = (await http.push(options={"queue": "q"}))["id"]
    await ok(http, "DELETE", f"/jobs/{id}")
    for body in ({"states": ["cancelled"]}, {"states": ["cancelled"], "confirm": False}):
        refused = await http("DELETE", f"{ADMIN}/queues/q/jobs", body)
        assert refused.json()["error"]["details"] == {"field": "confirm"}
    await ok(http, "DELETE", "/admin/queues/q/jobs", {"states": ["cancelled"], "confirm": True})
    assert (await http("GET", f"{BASE}/jobs/{id}")).status_code == 404


async def test_long_values_are_cut_in_messages(http: Http) -> None:
    wait = {"OJS-Block-Timeout": "x" * 41}
    refused = await http("POST", f"{BASE}/jobs", {"type": "a", "args": []}, headers=wait)
    assert refused.json()["error"]["message"].endswith(f"not {'x' * 40!r}.")
    refused = await http("POST", f"{BASE}/jobs/bulk/cancel", {"filter": {"x" * 41: 1}})
    assert f"has no member {'x' * 40!r}." in refused.json()["error"]["message"]
    refused = await http("POST", f"{BASE}/workers/fetch", {"queues": ["ojster." + "x" * 80]})
    assert f"Queue {'ojster.' + 'x' * 73!r} is reserved" in refused.json()["error"]["message"]
