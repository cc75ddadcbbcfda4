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


async def test_events_by_page_are_the_newest_first(http: Http, bench: Bench) -> None:
    await http("GET", "/ojs/v1/events")  # from now on they are recorded
    ids = [(await bench.push()).id for _ in range(3)]
    await http("POST", "/ojs/v1/queues/default/pause")
    path = "/ojs/v1/events?type=job.enqueued&per_page=2&page="
    first, second, third = [(await http("GET", f"{path}{number}")).json() for number in (1, 2, 3)]
    shown = [event["data"]["job_id"] for event in (*first["items"], *second["items"], *third["items"])]
    assert shown == ids[::-1]
    assert first["items"][0]["timestamp"] == first["items"][0]["time"]
    assert (first["has_more"], second["has_more"]) == (True, False)
    assert second["pagination"] == {"total": 3, "page": 2, "per_page": 2}
    assert (await http("GET", f"{path}x")).status_code == 400


async def test_workers_and_pools_have_the_members_that_the_page_reads(http: Http, bench: Bench) -> None:
    await http("POST", "/ojs/v1/workers/heartbeat", {"worker_id": "w", "pool": "p"})
    (worker,) = (await http("GET", "/ojs/v1/admin/workers")).json()["items"]
    assert worker["queues"] == []
    assert "queues" not in (await http("GET", "/ojs/v1/workers")).json()["workers"][0]
    await http("PUT", "/ojs/v1/admin/pools/p", {"queues": ["default"], "strategy": "strict"})
    answer = (await http("GET", "/ojs/v1/admin/pools")).json()
    (pool,) = answer["pools"]
    assert answer["items"] == answer["pools"]
    assert (pool["id"], pool["name"], pool["workers"], pool["active_workers"]) == ("p", "p", 1, 1)
    await bench.push()
    await bench.fetch_one()
    (queue,) = (await http("GET", "/ojs/v1/admin/scheduling/stats")).json()["queues"]
    assert (queue["dispatched"], queue["dispatch_count_1m"]) == (1, 1)


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
