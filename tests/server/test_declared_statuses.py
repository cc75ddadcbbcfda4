"""Each status of success that an endpoint answers with is in its description."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conftest import Http

pytestmark = pytest.mark.anyio

JOB: dict[str, Any] = {"type": "a", "args": []}
CRON: dict[str, Any] = {"name": "n", "expression": "@daily", "type": "t"}


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
