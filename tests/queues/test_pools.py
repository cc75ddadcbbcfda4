"""Worker pools and their fairness settings over HTTP.

Spec: ojs-fair-scheduling 10
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.conftest import Bench, Http

pytestmark = pytest.mark.anyio

POOLS = "/ojs/v1/admin/pools"


async def put(http: Http, name: str, status: int = 201, **body: Any) -> dict[str, Any]:
    response = await http("PUT", f"{POOLS}/{name}", body)
    assert response.status_code == status, response.text
    answer: dict[str, Any] = response.json()
    return answer


async def test_a_pool_is_made_shown_changed_listed_and_deleted(http: Http, bench: Bench) -> None:
    made = (await put(http, "mail", queues=["b", "a"], concurrency=20))["pool"]
    assert (made["name"], made["queues"], made["strategy"]) == ("mail", ["b", "a"], "round-robin")
    assert (made["concurrency"], made["isolated"], made["active_workers"], made["active_jobs"]) == (20, False, 0, 0)
    changed = await put(http, "mail", 200, queues={"a": {"weight": 70}, "b": {"weight": 30}}, strategy="weighted")
    assert changed["pool"]["weights"] == {"a": 70, "b": 30}
    assert changed["pool"]["created_at"] == made["created_at"]
    assert "scheduling.rebalanced" in await bench.events()
    await http("POST", "/ojs/v1/workers/heartbeat", {"worker_id": "w", "pool": "mail"})
    await http.push(queue="a")
    await http.fetch("a", worker_id="w")
    listed = (await http("GET", POOLS)).json()["items"]
    assert [(one["name"], one["active_workers"], one["active_jobs"]) for one in listed] == [("mail", 1, 1)]
    assert (await http("GET", f"{POOLS}/mail")).json()["pool"]["weights"] == {"a": 70, "b": 30}
    assert (await http("GET", "/ojs/v1/workers")).json()["workers"][0]["pool"] == "mail"
    assert (await http("DELETE", f"{POOLS}/mail")).status_code == 200
    for method in ("GET", "DELETE"):
        assert (await http(method, f"{POOLS}/mail")).status_code == 404


async def test_starvation_is_prevented_if_that_is_wanted(http: Http) -> None:
    off = await put(http, "p", queues=["a"], starvation_prevention={"rotation_interval": "PT5S"})
    assert "starvation_prevention" not in off["pool"]
    wanted = {"enabled": True, "rotation_interval": "PT5S", "min_dispatch_ratio": 0.25}
    shown = await put(http, "p", 200, queues=["a", "b"], strategy="strict", starvation_prevention=wanted)
    assert shown["pool"]["starvation_prevention"] == wanted
    await http("POST", "/ojs/v1/workers/heartbeat", {"worker_id": "w", "pool": "p"})
    for queue in ("a", "b"):
        for _ in range(20):
            await http.push(queue=queue)
    got = [job["queue"] for job in await http.fetch("a", "b", worker_id="w", count=20)]
    assert got.count("b") >= 5
    assert got.count("a") > got.count("b")


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "queues"),
        ({"queues": []}, "queues"),
        ({"queues": ["No Queue"]}, "queue"),
        ({"queues": {"a": {"weight": 0}}}, "weight"),
        ({"queues": ["a"], "weights": {"b": 2}}, "weights"),
        ({"queues": ["a"], "strategy": "random"}, "strategy"),
        ({"queues": ["a"], "concurrency": 0}, "concurrency"),
        ({"queues": ["a"], "name": "other"}, "name"),
        (
            {"queues": ["a", "b"], "starvation_prevention": {"enabled": True, "min_dispatch_ratio": 0.6}},
            "min_dispatch_ratio",
        ),
        ({"queues": ["a"], "starvation_prevention": {"enabled": True, "rotation_interval": "soon"}}, "soon"),
    ],
)
async def test_a_pool_that_makes_no_sense_is_refused(http: Http, body: dict[str, Any], field: str) -> None:
    response = await http("PUT", f"{POOLS}/p", body)
    assert response.status_code in (400, 422)
    assert field in response.text
    assert (await http("GET", POOLS)).json()["items"] == []


async def test_a_worker_may_say_how_its_queues_share(http: Http) -> None:
    for queue in ("a", "b"):
        for _ in range(20):
            await http.push(queue=queue)
    mixed = await http.fetch("a", "b", count=4, strategy="round-robin")
    assert [job["queue"] for job in mixed] == ["a", "b", "a", "b"]
    weighted = await http.fetch("a", "b", count=8, weights={"a": 1, "b": 3})
    assert [job["queue"] for job in weighted].count("b") == 6
    queues = [f"q{number}" for number in range(101)]
    refused = await http("POST", "/ojs/v1/workers/fetch", {"queues": queues, "strategy": "round-robin"})
    assert refused.status_code in (400, 422)
    assert await http.fetch(*queues) == []


async def test_what_was_handed_out_in_the_last_minute_is_told(http: Http) -> None:
    for queue, number in (("a", 3), ("b", 1)):
        for _ in range(number):
            await http.push(queue=queue)
    await http.fetch("a", "b", count=9)
    shown = (await http("GET", "/ojs/v1/admin/scheduling/stats")).json()
    assert shown["window"] == "PT1M"
    assert [
        (one["name"], one["dispatch_count_1m"], one["dispatch_ratio_1m"], one["active_jobs"]) for one in shown["queues"]
    ] == [("a", 3, 0.75, 3), ("b", 1, 0.25, 1)]
    assert shown["stats"]["queues"] == shown["queues"]


@pytest.mark.parametrize("name", ["%00", "x" * 129, "a%0Ab"])
async def test_names_that_cannot_be_are_refused(http: Http, name: str) -> None:
    assert (await http("PUT", f"{POOLS}/{name}", {"queues": ["a"]})).status_code in (400, 404, 422)
    for method in ("GET", "DELETE"):
        assert (await http(method, f"{POOLS}/{name}")).status_code in (400, 404, 422)
