"""Each status of success that an endpoint answers with is in its description."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conftest import Http

pytestmark = pytest.mark.anyio

JOB: dict[str, Any] = {"type": "a", "args": []}
CRON: dict[str, Any] = {"name": "n", "expression": "@daily", "type": "t"}


async def test_bulk_operations_declare_that_some_or_all_jobs_may_be_refused(http: Http) -> None:
    paths = (await http("GET", "/openapi.json")).json()["paths"]
    missing = {"job_ids": ["01900000-0000-7000-8000-000000000000"], "mode": "partial"}
    tried = 0
    for path, methods in paths.items():
        for method, operation in methods.items():
            body = operation.get("requestBody", {}).get("content", {}).get("application/openjobspec+json", {})
            if body.get("schema", {}).get("$ref", "").endswith("/BulkSteeringBody"):
                answer = await http(method.upper(), path, missing)
                assert answer.status_code == 422, path
                assert {"200", "207", "422"} < operation["responses"].keys(), path
                tried += 1
    assert tried == 7


async def test_event_streams_are_described_as_such(http: Http) -> None:
    paths = (await http("GET", "/openapi.json")).json()["paths"]
    streams = {
        path
        for path, methods in paths.items()
        if "text/event-stream" in methods.get("get", {}).get("responses", {}).get("200", {}).get("content", {})
    }
    assert streams == {
        "/ojs/v1/jobs/{id}/events",
        "/ojs/v1/jobs/{id}/progress/stream",
        "/ojs/v1/queues/{name}/events",
        "/ojs/v1/events/changes",
        "/ojs/v1/events/stream",
        "/ojs/v1/workflows/{id}/streams/{name}/events",
    }
    assert "/ojs/v1/ws" in paths["/ojs/v1/events/stream"]["get"]["description"]


@pytest.mark.parametrize(
    ("method", "path", "described", "body"),
    [
        ("PUT", "/admin/tenants/acme", "/admin/tenants/{id}", {"public": True}),
        ("PUT", "/admin/pools/p", "/admin/pools/{name}", {"queues": ["a"], "strategy": "strict"}),
        ("POST", "/jobs/bulk", "/jobs/bulk", {"jobs": [JOB, {"type": "?"}]}),
        ("POST", "/cron", "/cron", CRON),
    ],
)
async def test_each_status_is_declared(http: Http, method: str, path: str, described: str, body: Any) -> None:
    document = (await http("GET", "/openapi.json")).json()
    declared = document["paths"][f"/ojs/v1{described}"][method.lower()]["responses"]
    for _ in range(2):  # the first call creates, the second changes
        answer = await http(method, f"/ojs/v1{path}", body)
        assert str(answer.status_code) in declared
