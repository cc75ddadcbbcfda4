"""Operators see first which queue is in trouble, how much of its limits is used, and what a change would do."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from ojster.core.durations import MINUTE
from ojster.core.timestamps import parse_timestamp
from tests.conftest import Bench, Http

pytestmark = pytest.mark.anyio

ADMIN = "/ojs/v1/admin/queues"


async def preview(http: Http, queue: str, **change: Any) -> dict[str, tuple[Any, Any, Any]]:
    answer = await http("POST", f"{ADMIN}/{queue}/config/preview", change)
    assert answer.status_code == 200, answer.text
    return {one["setting"]: (one["before"], one["after"], one.get("effect")) for one in answer.json()["changes"]}


async def test_the_queue_whose_oldest_job_waits_longest_comes_first(bench: Bench, http: Http) -> None:
    """Then those whose jobs have waited long in the last hour; the names decide about the others."""
    for queue, wait in (("fast", 0), ("slow", 90)):
        await bench.push(queue=queue)
        bench.clock.advance(wait)
        await bench.ack(await bench.fetch_one(queue))
    await bench.push(queue="late")
    bench.clock.advance(MINUTE / 1e6)
    await bench.push(queue="later")
    await http("PUT", "/ojs/v1/queues/late/config", {"concurrency": 3, "max_size": 10})
    shown = (await http("GET", f"{ADMIN}?sort=trouble&internal=true")).json()["items"]
    assert [queue["name"] for queue in shown] == ["late", "later", "slow", "fast"]
    late, _, slow, _ = shown
    assert (late["depth"], late["max_depth"], late["limits"]) == (1, 10, {"concurrency": 3})
    assert late["oldest_available_at"] < shown[1]["oldest_available_at"]
    assert (slow["oldest_available_at"], slow["max_depth"], slow["limits"]) == (None, None, {})
    by_name = (await http("GET", ADMIN)).json()["items"]
    assert [queue["name"] for queue in by_name] == ["fast", "late", "later", "slow"]
    assert (await http("GET", f"{ADMIN}?sort=size")).status_code == 400


async def test_a_queue_has_waited_as_long_as_its_next_job_of_any_kind_and_tenant(http: Http, bench: Bench) -> None:
    kinds: tuple[tuple[dict[str, Any], dict[str, str]], ...] = (
        ({"rate_limit": {"key": "k", "concurrency": 1}}, {}),
        ({"priority": 3}, {"X-OJS-Tenant": "acme"}),
        ({}, {"X-OJS-Tenant": "other"}),
        ({}, {}),
    )
    for number, (options, headers) in enumerate(kinds):
        body = {"type": "t", "args": [], "options": options | {"queue": f"q{number}"}}
        assert (await http("POST", "/ojs/v1/jobs", body, headers=headers)).status_code == 201
        bench.clock.advance(60)
        await bench.push(queue=f"q{number}")
    shown = (await http("GET", f"{ADMIN}?sort=trouble")).json()["items"]
    assert [queue["name"] for queue in shown] == ["q0", "q1", "q2", "q3"]
    moments = [parse_timestamp(queue["oldest_available_at"]) for queue in shown]
    assert [later - before for before, later in pairwise(moments)] == [MINUTE] * 3


async def test_a_queue_shows_how_much_of_its_limits_is_used(bench: Bench, http: Http) -> None:
    for _ in range(3):
        await bench.push(queue="mail")
    limits = {"concurrency": 2, "rate_limit": {"limit": 5, "period": "PT1M"}}
    await http("PUT", "/ojs/v1/queues/mail/config", limits)
    assert len(await bench.fetch("mail", count=5)) == 2
    use = (await http("GET", f"{ADMIN}/mail")).json()["limit_use"]
    assert use["concurrency"] == {"limit": 2, "active": 2, "available": 0}
    assert (use["rate"]["limit"], use["rate"]["current_count"], use["waiting_count"]) == (5, 2, 1)
    await http("PUT", f"{ADMIN}/mail/rate-limit", {})
    assert (await http("GET", f"{ADMIN}/mail")).json()["limit_use"] is None


async def test_a_change_is_shown_with_what_it_means_before_it_is_made(bench: Bench, http: Http) -> None:
    for _ in range(5):
        await bench.push(queue="mail")
    await bench.fetch("mail", count=3)
    before = {"concurrency": 4, "rate_limit": {"limit": 9, "period": "PT1M"}, "retention": {"completed": "P3D"}}
    await http("PUT", "/ojs/v1/queues/mail/config", before)
    assert await preview(http, "mail", concurrency=4, retention={"completed": "P3D"}) == {}
    shown = await preview(http, "mail", concurrency=2, rate_limit=None, backpressure={"max_depth": 2})
    runs = "3 jobs run now. They go on, and none starts until fewer than 2 run."
    full = "2 jobs wait now: pushes are refused until fewer than 2 do."
    assert shown == {
        "concurrency": (4, 2, runs),
        "rate_limit": ({"limit": 9, "period": "PT1M"}, None, "Jobs start as fast as workers take them."),
        "backpressure.max_depth": (None, 2, full),
        "backpressure.strategy": (None, "reject", full),
        "backpressure.warning_threshold": (None, 0.8, full),
    }
    drops = {"max_depth": 1, "strategy": "drop_oldest"}
    said = (await preview(http, "mail", backpressure=drops))["backpressure.max_depth"][2]
    assert said == "2 jobs wait now: the next push discards up to 2 of them, the oldest."
    assert (await preview(http, "mail", concurrency=0))["concurrency"][2] == "No job starts. What runs now goes on."
    more = await preview(http, "mail", concurrency=7, throttle={"limit": 1, "period": "PT1S"})
    assert more["concurrency"][2] == "3 jobs run now: up to 4 more may start."
    assert more["throttle"][2] == "Jobs start evenly spread; 2 jobs wait."
    ages = await preview(http, "mail", retention={"completed": "P1D"}, dead_letter={"retention": {"max_count": 9}})
    assert ages["retention.completed"][:2] == ("P3D", "P1D")
    assert "cannot be undone" in ages["dead_letter.retention.max_count"][2]
    room = await preview(http, "new", max_size=8, allowed_job_types=["mail.*"])
    assert room["backpressure.max_depth"][2] == "No jobs wait now: there is room for 8 more."
    assert room["allowed_job_types"][:2] == (None, ["mail.*"])
    kept = (await http("GET", "/ojs/v1/queues/mail/config")).json()["configuration"]
    assert kept == before, "nothing was changed"
    assert [queue.name for queue in await bench.service.queues.all()] == ["mail"], "nor created"


async def test_a_preview_is_refused_as_the_change_would_be(http: Http) -> None:
    for wrong in ({"concurrency": -1}, {"overflow_policy": "block"}, {"speed": 1}, {"throttle": {"limit": 1}}):
        refusals = [
            (await http(method, f"{ADMIN}/mail/config{rest}", wrong)).json()["error"]
            for method, rest in (("PUT", ""), ("POST", "/preview"))
        ]
        assert refusals[0]["code"] == refusals[1]["code"]
        assert refusals[0]["message"] == refusals[1]["message"]
    assert (await http("POST", f"{ADMIN}/No spaces/config/preview", {})).status_code == 400
