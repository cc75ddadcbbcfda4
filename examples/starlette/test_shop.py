"""Tests of the shop."""

import asyncio

from shop import app, jobs, ship
from starlette.testclient import TestClient

from ojster.core.access import Grant, Role
from ojster.testing import JobTester


def test_a_placed_order_is_shipped() -> None:
    with JobTester(jobs) as tester:
        assert TestClient(app).post("/orders/7").status_code == 202
        tester.assert_enqueued(ship, 7)
        tester.drain()
        assert tester.all(ship)[0].state == "completed"


def test_operators_log_in_with_a_token_and_others_see_nothing() -> None:
    with JobTester(jobs), TestClient(app) as client:
        client.post("/orders/7")
        _, token = asyncio.run(jobs.service().tokens.create("ada", [Grant(Role.OWNER)]))
        assert client.get("/ops/dashboard/").status_code == 200
        assert client.get("/ops/ojs/v1/jobs").status_code == 401
        own_page = {"Sec-Fetch-Site": "same-origin"}
        logged_in = client.post("/ops/ojs/v1/session", json={"token": token}, headers=own_page)
        assert (logged_in.status_code, logged_in.json()["who"]) == (200, "ada")
        listed = client.get("/ops/ojs/v1/jobs", headers=own_page)
        assert [job["type"] for job in listed.json()["jobs"]] == ["order.ship"]
        foreign = client.get("/ops/ojs/v1/jobs", headers={"Sec-Fetch-Site": "cross-site"})
        assert foreign.status_code == 403
