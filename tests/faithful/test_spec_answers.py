"""The check of answers against the specification notices what is wrong."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import msgspec
import pytest

from ojster.server.answer import Answer
from ojster.server.application import Application
from ojster.server.endpoints import routes_of
from ojster.server.route import Route
from ojster.service import Service
from tests.conftest import Http
from tests.faithful.spec_answers import SPEC, SpecAnswers, reason

pytestmark = pytest.mark.skipif(not SPEC.is_dir(), reason=f"the specification is not at {SPEC}")

ROUTES = {(route.method, route.path): route for route in routes_of()}
JOB: dict[str, Any] = {
    "specversion": "1.0",
    "id": "019461a8-1a2b-7c3d-8e4f-5a6b7c8d9e0f",
    "type": "email.send",
    "queue": "default",
    "args": [],
    "state": "available",
    "attempt": 0,
    "created_at": "2026-02-12T10:30:00.000Z",
}


@pytest.fixture(scope="module")
def check() -> SpecAnswers:
    return SpecAnswers()


def route(method: str, path: str) -> Route:
    return ROUTES[method, f"/ojs/v1{path}"]


def broken(check: SpecAnswers, route: Route, body: Any, status: int = 200) -> set[str]:
    """Return the rules that an answer breaks."""
    check.record.breaches.clear()
    check.check(route, Answer(msgspec.json.encode(body), status))
    check.unexplained()
    return set(check.record.breaches)


def test_an_answer_of_the_specification_breaks_no_rule(check: SpecAnswers) -> None:
    assert not broken(check, route("GET", "/jobs/{id}"), {"job": JOB})


@pytest.mark.parametrize(
    ("member", "value", "rule"),
    [
        ("id", "1", "properties/id/pattern"),
        ("state", "lost", "properties/state/enum:lost"),
        ("created_at", "yesterday", "properties/created_at/format"),
        ("retry", {"max_attempts": -1}, "retry-policy.json#/properties/max_attempts/minimum"),
        ("error", {"type": "E"}, "error.json#/required:message"),
        ("errors", [{"code": "E"}], "properties/errors/items/required:occurred_at"),
    ],
)
def test_a_wrong_job_is_noticed_wherever_it_is_shown(check: SpecAnswers, member: str, value: Any, rule: str) -> None:
    wrong = JOB | {member: value}
    name = rule if "json" in rule else f"job.json#/{rule}"
    assert name in broken(check, route("GET", "/jobs/{id}"), {"job": wrong})
    assert name in broken(check, route("GET", "/jobs"), {"jobs": [JOB, wrong]})


def test_what_the_openapi_file_says_about_a_route_is_checked(check: SpecAnswers) -> None:
    wrong = {"job_id": JOB["id"], "state": "lost", "attempt": "1"}
    prefix = "openapi.yaml#/components/schemas/NackResponse/properties"
    rules = broken(check, route("POST", "/workers/nack"), wrong)
    assert rules == {f"{prefix}/state/enum:lost", f"{prefix}/attempt/type"}


REPORTS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "ack": ("POST", "/workers/ack", {"result": {"a": 1}}),
    "nack": ("POST", "/workers/nack", {"error": {"message": "no"}}),
    "the last nack": ("POST", "/workers/nack", {"error": {"message": "no", "retryable": False}}),
    "cancel": ("DELETE", "/jobs/{id}", {}),
}


@pytest.mark.anyio
@pytest.mark.parametrize("call", REPORTS)
async def test_answers_to_workers_and_cancellations_fit_the_openapi_file(
    check: SpecAnswers, http: Http, call: str
) -> None:
    method, path, body = REPORTS[call]
    id = (await http.push(type="a", args=[{"b": 1}], priority=3))["id"]
    await http.fetch()
    sent = (body | {"job_id": id}) if method == "POST" else None
    answer = await http(method, f"/ojs/v1{path.replace('{id}', id)}", sent)
    assert answer.status_code == 200, answer.text
    allowed = set() if call == "cancel" else {"openapi.yaml#/components/schemas/Job/required:args"}
    assert broken(check, route(method, path), answer.json()) == allowed
    if call == "cancel":
        job = answer.json()["job"]
        assert (job["args"], job["priority"], job["previous_state"]) == ([{"b": 1}], 3, "active")
        assert "cancelled_at" in job


def test_statuses_and_headers_are_checked(check: SpecAnswers) -> None:
    rules = broken(check, route("POST", "/jobs"), {"job": JOB}, 206)
    assert rules == {"undeclared status 206"}
    assert broken(check, route("POST", "/jobs"), {"job": JOB}, 201) == {"missing header location"}


def test_errors_of_all_routes_are_checked(check: SpecAnswers) -> None:
    error = {"error": {"code": "no_such_code", "message": "It failed."}}
    rules = broken(check, route("GET", "/ping"), error, 503)
    assert "openapi.yaml#/components/schemas/OJSError/required:retryable" in rules
    assert "openapi.yaml#/components/schemas/OJSError/properties/code/enum:no_such_code" in rules


def test_events_are_checked(check: SpecAnswers) -> None:
    check.record.breaches.clear()
    check.check_event({"specversion": "1.0", "id": "evt_1", "type": "job.lost", "source": "ojs://ojster"})
    assert set(check.record.breaches) == {"event.json#/properties/type/enum:job.lost", "event.json#/required:time"}
    assert len(check.unexplained()) == 2


@pytest.mark.anyio
async def test_an_application_is_freed_although_its_answers_are_checked(service: Service) -> None:
    made = weakref.ref(Application(service))
    gc.collect()
    assert made() is None


def test_an_exception_may_be_limited_to_a_place() -> None:
    assert reason("undeclared status 207", "POST /ojs/v1/jobs/batch 207")
    assert reason("undeclared status 207", "POST /ojs/v1/jobs 207") is None
