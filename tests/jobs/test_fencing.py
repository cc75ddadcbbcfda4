"""Whoever does something for a job holds its lease: a worker that has lost it is refused everywhere."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conftest import Bench, Http

pytestmark = pytest.mark.anyio

REPORTS: list[tuple[str, str, dict[str, Any]]] = [
    ("POST", "/ojs/v1/jobs/{id}/info", {"note": "n"}),
    ("PUT", "/ojs/v1/jobs/{id}/progress", {"progress": 0.5}),
    ("PUT", "/ojs/v1/jobs/{id}/checkpoint", {"state": 1}),
    ("POST", "/ojs/v1/jobs/{id}/ack", {}),
    ("POST", "/ojs/v1/jobs/{id}/nack", {"error": {"type": "E", "message": "m"}}),
    ("POST", "/ojs/v1/jobs/{id}/release", {}),
]


@pytest.mark.parametrize(("method", "path", "body"), REPORTS, ids=[path for _, path, _ in REPORTS])
async def test_only_the_holder_of_the_lease_is_heard(
    bench: Bench, http: Http, method: str, path: str, body: dict[str, Any]
) -> None:
    job = await bench.push()
    await bench.fetch_one(worker_id="w")
    path = path.format(id=job.id)
    for wrong in ({"worker_id": "other"}, {"worker_id": "w", "attempt": 2}):
        assert (await http(method, path, body | wrong)).status_code == 409
    assert (await http(method, path, body | {"worker_id": "w", "attempt": 1})).status_code in (200, 201)


async def test_only_the_holder_adds_items_for_a_job(bench: Bench, http: Http) -> None:
    job = await bench.push()
    await bench.fetch_one(worker_id="w")
    await bench.service.collections.create("shared")
    for path in (f"/ojs/v1/collections/shared/items?job_id={job.id}",):
        item = {"name": "a", "data": 1}
        assert (await http("POST", path, item | {"worker_id": "other"})).status_code == 409
        assert (await http("POST", path, item | {"worker_id": "w", "attempt": 2})).status_code == 409
        assert (await http("POST", path, item | {"worker_id": "w", "attempt": 1})).status_code == 201
