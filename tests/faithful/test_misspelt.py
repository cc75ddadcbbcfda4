"""Misspelt parameters and members: what the specification lets nobody refuse brings a warning, the rest is refused."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from ojster.core.errors import InvalidRequest
from ojster.server.endpoints import routes_of
from ojster.server.route import BASE
from ojster.tenancy.tenant_service import read_tenants
from tests.conftest import Bench, Http
from tests.workflows.bench import chain, job

pytestmark = pytest.mark.anyio

LISTS = sorted(
    route.path
    for route in routes_of()
    if route.method == "GET" and route.path.startswith(BASE) and "{" not in route.path
    if not (route.streams or route.any_query)
)


@pytest.mark.parametrize("path", LISTS)
async def test_unknown_query_parameters_are_refused(http: Http, path: str) -> None:
    answer = await http("GET", path, params={"exekution": "1"})
    assert (answer.status_code, answer.json()["error"]["details"]["field"]) == (400, "exekution")


JOB_PATH = "/ojs/v1/jobs/ID"
REQUESTS: dict[str, tuple[str, str, dict[str, Any], str]] = {
    "ack": ("POST", "/ojs/v1/workers/ack", {"job_id": "ID", "results": 7}, "result"),
    "ack in the path": ("POST", f"{JOB_PATH}/ack", {"result_": 7}, "result"),
    "ack batch": ("POST", "/ojs/v1/workers/ack/batch", {"acks": [], "fetchs": {}}, "fetch"),
    "nack": ("POST", "/ojs/v1/workers/nack", {"job_id": "ID", "requeue": True, "errors": {}}, "error"),
    "nack batch": ("POST", "/ojs/v1/workers/nack/batch", {"nacks": [], "nackss": 1}, "nacks"),
    "release": ("POST", "/ojs/v1/workers/release", {"job_id": "ID", "delay_msec": 1}, "delay_ms"),
    "release batch": ("POST", "/ojs/v1/workers/release/batch", {"releases": [], "release_": 1}, "releases"),
    "fetch": ("POST", "/ojs/v1/workers/fetch", {"queues": ["none"], "counts": 2}, "count"),
    "heartbeat": ("POST", "/ojs/v1/workers/heartbeat", {"worker_id": "w", "active_job": []}, "active_jobs"),
    "progress": ("PUT", f"{JOB_PATH}/progress", {"progress": 0.5, "messages": "m"}, "message"),
    "checkpoint": ("PUT", f"{JOB_PATH}/checkpoint", {"state": 1, "atempt": 1}, "attempt"),
}
"""Requests of workers with a misspelt member, and what is meant."""


@pytest.mark.parametrize("kind", REQUESTS)
async def test_a_misspelt_member_of_a_worker_brings_a_warning(http: Http, bench: Bench, kind: str) -> None:
    method, path, body, meant = REQUESTS[kind]
    await bench.push()
    id = (await bench.fetch_one()).id
    sent = {name: id if value == "ID" else value for name, value in body.items()}
    answer = await http(method, path.replace("ID", id), sent)
    assert answer.status_code == 200, answer.text
    (warning,) = answer.json()["warnings"]
    assert f"did you mean '{meant}'?" in warning


async def test_a_refused_report_has_no_warnings(http: Http) -> None:
    unknown = "01900000-0000-7000-8000-000000000000"
    answer = await http("POST", f"{BASE}/workers/ack", {"job_id": unknown, "results": 7})
    assert (answer.status_code, list(answer.json())) == (404, ["error"])


async def test_misspelt_members_of_operators_are_refused(http: Http) -> None:
    """Who ignored 'dry_rum' would delete the jobs."""
    body = {"filter": {"type": "a"}, "dry_rum": True}
    answer = await http("POST", f"{BASE}/jobs/batch/delete", body)
    assert answer.status_code == 400
    assert "did you mean 'dry_run'?" in answer.json()["error"]["message"]


OF_OPERATORS: dict[str, tuple[str, str, dict[str, Any], str, str]] = {
    "tenant": (
        "PUT",
        "/admin/tenants/acme",
        {"limits": {"max_concurency": 2}},
        "limits.max_concurency",
        "max_concurrency",
    ),
    "webhook": (
        "POST",
        "/webhooks/subscriptions",
        {"url": "https://203.0.113.1/x", "events": ["job.*"], "filter": {"queus": ["a"]}},
        "filter.queus",
        "queues",
    ),
    "change of a webhook": (
        "PATCH",
        "/webhooks/subscriptions/ID",
        {"filter": {"job_type": ["a"]}},
        "filter.job_type",
        "job_types",
    ),
    "backpressure": (
        "PUT",
        "/admin/queues/mail/config",
        {"backpressure": {"max_depth": 5, "strateggy": "drop_oldest"}},
        "backpressure.strateggy",
        "strategy",
    ),
    "retention": (
        "PUT",
        "/queues/mail/config",
        {"dead_letter": {"retention": {"max_aeg": "P1D"}}},
        "dead_letter.retention.max_aeg",
        "max_age",
    ),
    "new queue": (
        "POST",
        "/queues",
        {"name": "mail", "config": {"backpressure": {"max_depth": 5, "strateggy": "drop_oldest"}}},
        "config.backpressure.strateggy",
        "strategy",
    ),
    "pool": (
        "PUT",
        "/admin/pools/mail",
        {"queues": ["mail"], "starvation_prevention": {"enabled": True, "min_dispach_ratio": 0.5}},
        "starvation_prevention.min_dispach_ratio",
        "min_dispatch_ratio",
    ),
    "weights of a pool": (
        "PUT",
        "/admin/pools/mail",
        {"queues": {"mail": {"weights": 5}}},
        "queues.mail.weights",
        "weight",
    ),
    "rate limit": (
        "PUT",
        "/rate-limits/stripe",
        {"rate": {"limit": 1, "period": "PT1S", "perod": "PT1M"}},
        "rate.perod",
        "period",
    ),
    "list": (
        "PUT",
        "/signatures",
        {"signatures": [{"type": "a", "schema": {}}, {"type": "b", "schema": {}, "schemas": {}}]},
        "signatures[1].schemas",
        "schema",
    ),
}
"""Requests of operators with a misspelt member inside, its place, and what is meant."""


@pytest.mark.parametrize("kind", OF_OPERATORS)
async def test_misspelt_members_inside_a_request_of_operators_are_refused(http: Http, kind: str) -> None:
    """Who ignored them would remove a limit or a filter."""
    method, path, body, place, meant = OF_OPERATORS[kind]
    error = (await http(method, BASE + path, body)).json()["error"]
    assert (error["code"], error["details"]["field"]) == ("invalid_request", place), error
    assert f"did you mean {meant!r}?" in error["message"]


@pytest.mark.parametrize(
    ("body", "place"),
    [({"fairnes_weight": 9}, "fairnes_weight"), ({"limits": {"max_concurency": 1}}, "limits.max_concurency")],
)
def test_a_file_of_tenants_has_no_misspelt_members(body: dict[str, Any], place: str) -> None:
    assert len(read_tenants(msgspec.json.encode({"acme": {"fairness_weight": 9, "colour": "red"}}))) == 1
    with pytest.raises(InvalidRequest, match="did you mean") as refusal:
        read_tenants(msgspec.json.encode({"acme": body}))
    assert refusal.value.details["field"] == place


async def test_misspelt_options_of_jobs_in_requests_are_no_error(http: Http) -> None:
    job = {"type": "a", "args": [], "options": {"prioriy": 1}}
    answer = await http("POST", f"{BASE}/jobs", job)
    assert (answer.status_code, len(answer.json()["warnings"])) == (201, 1), answer.text
    defaults = await http("PUT", f"{BASE}/job-types/a", {"options": {"retry": {"max_attemps": 2}}})
    assert defaults.status_code == 200, defaults.text


async def test_other_unknown_members_are_accepted(http: Http, bench: Bench) -> None:
    await bench.push()
    active = await bench.fetch_one()
    answer = await http("POST", f"{BASE}/workers/ack", {"job_id": active.id, "duration_ms": 7, "colour": "red"})
    assert answer.status_code == 200


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("dependencies", "depends_on"),
        ("needs", "depends_on"),
        ("needs_input", "manual"),
        ("workflow_data", "allow_failure"),
    ],
)
async def test_words_of_other_systems_bring_a_warning_with_the_name_to_use(http: Http, word: str, meant: str) -> None:
    answer = await http("POST", f"{BASE}/workflows", chain(job("a", **{word: True})))
    assert answer.status_code == 201
    (warning,) = answer.json()["warnings"]
    assert f"did you mean '{meant}'?" in warning


async def test_a_map_whose_template_has_unknown_members_runs(http: Http, bench: Bench) -> None:
    inner = {"type": "chain", "colour": "red", "steps": [{"type": "a", "args": [], "needs": ["x"]}]}
    body = chain({"type": "map", "over": [1, 2], "do": inner})
    answer = await http("POST", f"{BASE}/workflows", body)
    assert (answer.status_code, len(answer.json()["warnings"])) == (201, 2)
    assert [job.type for job in await bench.fetch(count=5)] == ["a", "a"]
