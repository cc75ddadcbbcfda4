"""Tests of the shop: alone, and with its worker."""

from collections.abc import Iterator

import pytest
from fastapi.testclient import TestClient
from shop import PASSWORD, app, jobs, ship

from ojster.testing import JobTester


@pytest.fixture
def ojster_jobs() -> Iterator[JobTester]:
    with JobTester(jobs) as tester:
        yield tester


def test_a_placed_order_is_to_be_shipped(ojster_jobs: JobTester) -> None:
    client = TestClient(app)  # without its lifespan: no worker runs
    assert client.post("/orders/7").status_code == 202
    ojster_jobs.assert_enqueued(ship, 7)
    ojster_jobs.drain()
    assert ojster_jobs.all(ship)[0].state == "completed"


def test_the_page_follows_the_order_until_it_is_posted(ojster_jobs: JobTester) -> None:
    with TestClient(app) as client:
        placed = client.post("/orders/8").json()
        told = client.get(placed["events"]).text
        assert '"state":"completed"' in told.splitlines()[-2]
        assert '"message":"posted"' in told or '"progress":1.0' in told
        assert client.get(placed["job"]).json()["result"] == "parcel-8"
        assert client.delete(placed["job"]).status_code == 409
        assert client.get("/jobs/no-such-job").status_code == 404


def test_operators_see_the_dashboard_and_others_do_not(ojster_jobs: JobTester) -> None:
    client = TestClient(app)
    order = client.post("/orders/7").json()["job"].removeprefix("/jobs/")
    assert client.get("/ops/dashboard/").status_code == 401
    assert client.get("/ops/ojs/v1/jobs", auth=("ada", "wrong")).status_code == 401
    assert client.delete(f"/ops/ojs/v1/jobs/{order}").status_code == 401
    operator = ("ada", PASSWORD)
    page = client.get("/ops/dashboard/jobs/x", auth=operator)
    assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert client.get("/ops/ojs/v1/jobs", auth=operator).json()["jobs"][0]["id"] == order
    foreign = client.delete(f"/ops/ojs/v1/jobs/{order}", auth=operator, headers={"Origin": "http://evil.example"})
    assert foreign.status_code == 403
    assert client.delete(f"/ops/ojs/v1/jobs/{order}", auth=operator).json()["job"]["state"] == "cancelled"
