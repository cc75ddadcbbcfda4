"""What the specification's admin interface and command line ask for: other paths, and lists by page numbers."""

from __future__ import annotations

import pytest

from tests.conftest import Bench, Http

pytestmark = pytest.mark.anyio

CRON = {"name": "nightly", "expression": "0 3 * * *", "type": "report.build", "args": []}


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/jobs", "jobs"),
        ("/crons", "crons"),
        ("/workflows", "workflows"),
        ("/queues", "queues"),
        ("/dead-letter", "jobs"),
        ("/schemas", "schemas"),
        ("/rate-limits", "rate_limits"),
        ("/webhooks/subscriptions", "subscriptions"),
        ("/admin/jobs", "items"),
        ("/admin/queues", "items"),
        ("/admin/workers", "items"),
        ("/admin/tenants", "items"),
        ("/admin/dead-letter", "items"),
    ],
)
async def test_a_list_that_is_asked_for_by_page_has_items(http: Http, path: str, name: str) -> None:
    answer = await http("GET", f"/ojs/v1{path}?page=1&per_page=50")
    assert answer.status_code == 200
    found = answer.json()
    assert found["items"] == found.get(name, found["items"])
    assert (found["pagination"]["page"], found["pagination"]["per_page"]) == (1, 50)
    assert "total" in found["pagination"]


async def test_pages_by_number_follow_each_other(http: Http, bench: Bench) -> None:
    ids = [(await bench.push()).id for _ in range(5)]
    seen = []
    for page in (1, 2, 3):
        found = (await http("GET", f"/ojs/v1/jobs?page={page}&per_page=2")).json()
        assert found["pagination"]["page"] == page
        assert found["pagination"]["total"] == 5
        seen += [job["id"] for job in found["items"]]
    assert sorted(seen) == sorted(ids)
    plain = (await http("GET", "/ojs/v1/jobs?limit=2")).json()
    assert "items" not in plain


async def test_cron_jobs_have_a_second_path(http: Http) -> None:
    assert (await http("POST", "/ojs/v1/crons", CRON)).status_code == 201
    assert (await http("GET", "/ojs/v1/crons/nightly")).json()["cron"]["name"] == "nightly"
    disabled = await http("PATCH", "/ojs/v1/crons/nightly", {"enabled": False})
    assert disabled.json()["cron"]["enabled"] is False
    assert (await http("DELETE", "/ojs/v1/crons/nightly")).status_code == 200
    assert (await http("GET", "/ojs/v1/cron")).json()["crons"] == []


async def test_maintenance_is_said_in_both_ways(http: Http) -> None:
    path = "/ojs/v1/admin/system/maintenance"
    assert (await http("GET", path)).json() == {"maintenance": False, "enabled": False}
    on = (await http("POST", path, {"enabled": True, "reason": "new disks", "duration": "PT30M"})).json()
    assert (on["maintenance"], on["enabled"], on["reason"]) == (True, True, "new disks")
    assert on["estimated_end"] > on["enabled_at"]


async def test_a_queue_is_created_with_settings_at_the_top(http: Http) -> None:
    made = await http("POST", "/ojs/v1/queues", {"name": "payments", "concurrency": 3, "max_size": 10})
    assert made.status_code == 201
    config = made.json()["config"]
    assert (config["concurrency"], config["backpressure"]["max_depth"]) == (3, 10)


async def test_the_retry_policy_of_a_job_has_durations_whatever_the_request_had(http: Http) -> None:
    job = await http.push(retry={"max_attempts": 4, "initial_interval": "90s", "max_interval": "5m"})
    shown = (await http("GET", f"/ojs/v1/admin/jobs/{job['id']}")).json()["retry_policy"]
    assert (shown["initial_interval"], shown["max_interval"], shown["max_attempts"]) == ("PT1M30S", "PT5M", 4)
    assert "on_exhaustion" not in shown
