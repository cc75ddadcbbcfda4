"""Requests of the official SDKs, as they send them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conftest import Bench, Http

pytestmark = pytest.mark.anyio


async def push(http: Http, **body: Any) -> tuple[int, dict[str, Any]]:
    answer = await http("POST", "/ojs/v1/jobs", {"type": "a", "args": []} | body)
    return answer.status_code, answer.json()


@pytest.mark.parametrize(
    "unique",
    [
        {"key": ["report_id"], "period": "PT1H"},
        {"key": ["report_id"], "period_ms": 3_600_000},
        {"key": ["type", "report_id"], "within": "1h"},
        {"key": "report_id", "within": "1h"},
    ],
)
async def test_unique_key_names_arguments(http: Http, bench: Bench, unique: dict[str, Any]) -> None:
    def body(report: int) -> dict[str, Any]:
        return {"args": [{"report_id": report, "at": report * 7}], "options": {"unique": unique}}

    assert (await push(http, **body(1)))[0] == 201
    assert (await push(http, **body(2)))[0] == 201
    assert (await push(http, **(body(1) | {"args": [{"report_id": 1, "at": 8}]})))[0] == 409
    bench.clock.advance(3601)
    assert (await push(http, **body(1)))[0] == 201


async def test_unique_key_names_dimensions(http: Http) -> None:
    unique = {"key": ["type", "queue", "args"], "on_conflict": "reject"}
    assert (await push(http, args=[1], options={"unique": unique}))[0] == 201
    assert (await push(http, args=[2], options={"unique": unique}))[0] == 201
    assert (await push(http, args=[1], options={"unique": unique, "queue": "other"}))[0] == 201
    assert (await push(http, args=[1], options={"unique": unique}))[0] == 409


@pytest.mark.parametrize(
    "unique", [{"period_ms": -1}, {"period_ms": "1h"}, {"within": 3}, {"within": "soon"}, {"key": 3}, {"key": ["a", 3]}]
)
async def test_malformed_periods_are_refused(http: Http, unique: dict[str, Any]) -> None:
    status, answer = await push(http, options={"unique": unique})
    assert (status, answer["error"]["details"]["field"]) == (400, f"unique.{next(iter(unique))}")


async def test_options_under_other_names_hold(http: Http) -> None:
    status, answer = await push(
        http,
        meta={"kept": 1},
        options={
            "retry_policy": {"max_attempts": 7, "initial_interval": "1s"},
            "visibility_timeout": "PT45S",
            "metadata": {"kept": 2, "added": [3]},
        },
    )
    assert status == 201, answer
    job = answer["job"]
    assert (job["max_attempts"], job["retry"]["initial_interval"], job["visibility_timeout_ms"]) == (7, "1s", 45_000)
    assert job["meta"] == {"kept": 1, "added": [3]}
    assert "options" not in job


async def test_max_attempts_is_an_option(http: Http, bench: Bench) -> None:
    status, answer = await push(http, options={"max_attempts": 1})
    assert (status, answer["job"]["max_attempts"]) == (201, 1)
    failed = await bench.fail(await bench.fetch_one())
    assert failed.state == "discarded"
    status, answer = await push(http, options={"max_attempts": 9, "retry": {"max_attempts": 2}})
    assert (status, answer["job"]["max_attempts"]) == (201, 2)
    status, answer = await push(http, max_attempts=5)
    assert (status, answer["job"]["max_attempts"]) == (201, 3), "at the top level, max_attempts is the server's"


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"retry_policy": 3}, "retry"),
        ({"max_attempts": -1}, "retry.max_attempts"),
        ({"max_attempts": 1, "retry": 3}, "retry"),
        ({"visibility_timeout": "soon"}, "options.visibility_timeout"),
        ({"metadata": 3}, "options.metadata"),
    ],
)
async def test_malformed_options_under_other_names_are_refused(http: Http, options: dict[str, Any], field: str) -> None:
    status, answer = await push(http, options=options)
    assert status in (400, 422)
    assert answer["error"]["details"]["field"] == field


JOBS = [{"id": "job-0", "type": "j", "args": []}, {"id": "job-1", "type": "j", "args": [], "depends_on": []}]


def callbacks(style: str) -> list[dict[str, Any]]:
    made = []
    for name in ("on_complete", "on_success", "on_failure"):
        step: dict[str, Any] = {"type": f"{name}", "args": [], "depends_on": ["job-0", "job-1"]}
        match style:
            case "callback_type":
                step |= {"id": f"x-{name}", "options": {"callback_type": name}}
            case "ids with hyphens":
                step["id"] = name.replace("_", "-")
            case _:
                step["id"] = name
        made.append(step)
    return made


@pytest.mark.parametrize("style", ["callback_type", "ids with hyphens", "ids"])
@pytest.mark.parametrize(
    ("code", "called"), [(None, {"on_complete", "on_success"}), ("DISCARD", {"on_complete", "on_failure"})]
)
async def test_callbacks_of_a_batch_without_a_type_run_for_their_event(
    http: Http, style: str, code: str | None, called: set[str]
) -> None:
    answer = await http("POST", "/ojs/v1/workflows", {"name": "b", "steps": [*JOBS, *callbacks(style)]})
    assert answer.status_code == 201, answer.text
    first, second = await http.fetch(count=10)
    await http("POST", "/ojs/v1/workers/ack", {"job_id": first["id"]})
    if code is None:
        await http("POST", "/ojs/v1/workers/ack", {"job_id": second["id"]})
    else:
        await http("POST", "/ojs/v1/workers/nack", {"job_id": second["id"], "error": {"code": code, "message": "no"}})
    jobs = await http.fetch(count=10)
    assert {job["type"] for job in jobs} == called
    for job in jobs:
        await http("POST", "/ojs/v1/workers/ack", {"job_id": job["id"]})
    shown = (await http("GET", f"/ojs/v1/workflows/{answer.json()['workflow']['id']}")).json()["workflow"]
    assert shown["state"] == ("completed" if code is None else "failed")


async def test_steps_with_ids_and_no_dependencies_are_a_graph(http: Http) -> None:
    steps = [{"id": "step-0", "type": "a", "args": []}, {"id": "step-1", "type": "b", "args": []}]
    answer = await http("POST", "/ojs/v1/workflows", {"name": "g", "steps": steps})
    assert answer.status_code == 201, answer.text
    assert {job["type"] for job in await http.fetch(count=10)} == {"a", "b"}


async def test_steps_without_ids_and_type_are_refused(http: Http) -> None:
    answer = await http("POST", "/ojs/v1/workflows", {"steps": [{"type": "a", "args": []}]})
    assert answer.status_code == 400
    assert "The type is missing" in answer.text


QUERIES = [
    "/dead-letter?queue=q&limit=50&offset=0",
    "/cron?limit=50&offset=0",
    "/cron?page=2&per_page=10",
    "/schemas?limit=50&offset=0",
    "/schemas?page=1&per_page=10",
    "/admin/jobs?limit=5&offset=10",
    "/admin/queues?page=1&per_page=10",
]


@pytest.mark.parametrize("query", QUERIES)
async def test_lists_have_the_parameters_that_clients_send(http: Http, query: str) -> None:
    answer = await http("GET", f"/ojs/v1{query}")
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("query", ["limit=2&offset=2", "page=2&per_page=2"])
async def test_lists_are_read_page_by_page(http: Http, query: str) -> None:
    for number in range(5):
        await push(http, options={"queue": f"q{number}"})
        body = {"name": f"c{number}", "expression": "@daily", "type": "a", "args": []}
        assert (await http("POST", "/ojs/v1/cron", body)).status_code == 201
        schema = {"job_type": f"s{number}", "version": "1", "schema": {"type": "array"}}
        assert (await http("POST", "/ojs/v1/schemas", schema)).status_code == 201
    for path, members, name, first in (
        ("queues", "queues", "name", "q2"),
        ("cron", "crons", "name", "c2"),
        ("schemas", "schemas", "job_type", "s2"),
        ("admin/queues", "items", "name", "q2"),
    ):
        answer = (await http("GET", f"/ojs/v1/{path}?{query}")).json()
        assert len(answer[members]) == 2, path
        assert answer[members][0][name] == first
        assert answer["pagination"]["total"] == 5


NO_HANDLER = {
    "JavaScript": {"code": "handler_not_found", "message": "No handler registered for job type 'x'."},
    "Java": {"code": "handler_not_found", "message": "No handler registered for job type: x"},
    "Python": {"code": "handler_error", "message": "No handler registered for job type 'x'"},
    "Go": {"code": "handler_error", "message": 'no handler registered for job type "x"'},
}


@pytest.mark.parametrize("sdk", NO_HANDLER)
async def test_a_job_that_an_sdk_has_no_handler_for_goes_back_without_spending_an_attempt(
    http: Http, bench: Bench, sdk: str
) -> None:
    made = await http.push(type="x", options={"retry": {"max_attempts": 1}})
    (job,) = await http.fetch()
    error = NO_HANDLER[sdk] | {"retryable": False}
    answer = await http("POST", "/ojs/v1/workers/nack", {"job_id": job["id"], "error": error})
    assert answer.status_code == 200
    await bench.run_due(5)
    shown = (await http("GET", f"/ojs/v1/jobs/{made['id']}")).json()["job"]
    assert (shown["state"], shown["attempt"]) == ("available", 0)


async def test_an_error_that_only_mentions_a_handler_is_an_error(http: Http) -> None:
    await http.push(type="x")
    (job,) = await http.fetch()
    error = {"code": "handler_error", "message": "No handler registered for the event", "retryable": False}
    answer = await http("POST", "/ojs/v1/workers/nack", {"job_id": job["id"], "error": error})
    assert answer.json()["state"] == "discarded"


async def test_a_cancelled_workflow_counts_its_steps(http: Http) -> None:
    steps: list[dict[str, Any]] = [{"type": kind, "args": []} for kind in ("a", "b", "c")]
    made = (await http("POST", "/ojs/v1/workflows", {"type": "chain", "steps": steps})).json()["workflow"]
    (job,) = await http.fetch()
    await http("POST", "/ojs/v1/workers/ack", {"job_id": job["id"]})
    cancelled = (await http("DELETE", f"/ojs/v1/workflows/{made['id']}")).json()["workflow"]
    assert (cancelled["state"], cancelled["steps_cancelled"], cancelled["steps_already_completed"]) == (
        "cancelled",
        2,
        1,
    )


@pytest.mark.parametrize("channel", ["worker:w", "job", "job:nowhere", "queue:nowhere"])
async def test_a_stream_of_what_does_not_exist_is_refused(http: Http, channel: str) -> None:
    answer = await http("GET", "/ojs/v1/events/stream", params={"channel": channel})
    assert answer.status_code in (400, 404)
