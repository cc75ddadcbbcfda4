"""Backpressure: a full queue rejects or blocks a push, or drops the oldest job, and never exceeds its bound.

Spec: ojs-backpressure
"""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import msgspec
import pytest

from ojster.core.errors import Duplicate, QueueFull
from ojster.queues.rules import may_be_bounded
from ojster.schedules.cron import Cron
from ojster.service import Service
from ojster.storage.open import open_database
from tests.conftest import Bench, Clock, Http, request
from tests.waiting import PATIENCE

pytestmark = pytest.mark.anyio


async def bound(http: Http, depth: int, **more: Any) -> None:
    body = {"backpressure": {"max_depth": depth} | more}
    assert (await http("PUT", "/ojs/v1/admin/queues/q/config", body)).status_code == 200


async def push(http: Http, type: str = "t", **headers: str) -> httpx.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return await http("POST", "/ojs/v1/jobs", {"type": type, "args": [], "queue": "q"}, headers=named)


async def test_a_full_queue_refuses_and_tells_how_full_it_is(http: Http, bench: Bench) -> None:
    await bound(http, 2)
    for _ in range(2):
        assert (await push(http)).status_code == 201
    refused = await push(http)
    assert refused.status_code == 429
    assert refused.json()["error"]["code"] == "QUEUE_FULL"
    assert refused.json()["error"]["details"]["strategy"] == "reject"
    assert (refused.headers["x-ojs-queue-depth"], refused.headers["x-ojs-queue-bound"]) == ("2", "2")
    assert int(refused.headers["retry-after"]) >= 1
    await http.fetch("q")
    assert (await push(http)).status_code == 201, "an active job takes no place"
    assert "backpressure.rejected" in await bench.events()
    assert (await http("POST", "/ojs/v1/jobs", {"type": "t", "args": []})).status_code == 201


async def test_a_change_of_a_bound_keeps_the_members_that_it_does_not_name(http: Http) -> None:
    await bound(http, 2, strategy="drop_oldest", warning_threshold=0.5)
    for change, expected in (
        ({"max_size": 3}, (3, "drop_oldest", 0.5)),
        ({"overflow_policy": "block"}, (3, "block", 0.5)),
        ({"backpressure": {"warning_threshold": 0.6}}, (3, "block", 0.6)),
        ({"backpressure": {"max_depth": 2}}, (2, "block", 0.6)),
        ({"backpressure": {}}, (2, "block", 0.6)),
        ({"backpressure": {"strategy": "reject"}}, (2, "reject", 0.6)),
    ):
        changed = await http("PUT", "/ojs/v1/admin/queues/q/config", change)
        kept = changed.json()["configuration"]["backpressure"]
        assert (kept["max_depth"], kept["strategy"], kept["warning_threshold"]) == expected, change
    assert [(await push(http)).status_code for _ in range(3)] == [201, 201, 429]


async def test_jobs_that_wait_for_their_time_take_places_too(http: Http) -> None:
    await bound(http, 1)
    later = {"type": "t", "args": [], "options": {"queue": "q", "scheduled_at": "+PT1H"}}
    assert (await http("POST", "/ojs/v1/jobs", later)).status_code == 201
    assert (await push(http)).status_code == 429


async def test_a_push_response_shows_the_queue_pressure(http: Http, bench: Bench) -> None:
    await bound(http, 4, warning_threshold=0.5)
    assert "x-ojs-queue-pressure" not in (await push(http)).headers
    second = await push(http)
    assert (second.headers["x-ojs-queue-pressure"], second.headers["x-ojs-queue-depth"]) == ("0.50", "2")
    assert (await push(http, Idempotency_Key="k")).headers["x-ojs-queue-pressure"] == "0.75"
    assert (await bench.events()).count("backpressure.warning") == 1


async def test_a_batch_is_taken_whole_or_not_at_all_unless_it_is_partial(http: Http, bench: Bench) -> None:
    await bound(http, 3)
    jobs = [{"type": "t", "args": [], "queue": "q"}] * 4
    assert (await http("POST", "/ojs/v1/jobs/batch", {"jobs": jobs})).status_code == 429
    assert (await bench.service.jobs.select()).total == 0
    partial = (await http("POST", "/ojs/v1/jobs/batch", {"jobs": jobs, "mode": "partial"})).json()
    assert [result["status"] for result in partial["results"]] == [201, 201, 201, 429]


@pytest.mark.parametrize("path", ["/jobs/batch", "/jobs/bulk"])
async def test_the_refusal_of_a_whole_batch_is_recorded(http: Http, bench: Bench, path: str) -> None:
    """Spec: ojs-backpressure 10.1, ojs-multi-tenancy 11.1"""
    await bound(http, 1)
    await http("PUT", "/ojs/v1/admin/tenants/acme", {"limits": {"max_queue_depth": 1}})
    for more, event in (
        ({"queue": "q"}, "backpressure.rejected"),
        ({"meta": {"tenant_id": "acme"}}, "tenant.limit_exceeded"),
    ):
        jobs = [{"type": "t", "args": []} | more] * 2
        answer = await http("POST", f"/ojs/v1{path}", {"jobs": jobs, "mode": "atomic"})
        assert answer.status_code in (422, 429), answer.text
        assert (await bench.events()).count(event) == 1
    assert (await bench.service.jobs.select()).total == 0


async def test_what_a_full_queue_refuses_does_not_count_as_a_push_of_its_tenant(bench: Bench, http: Http) -> None:
    await bound(http, 1, strategy="block")
    rate = {"limit": 2, "period": "PT1H"}
    await http("PUT", "/ojs/v1/admin/tenants/acme", {"limits": {"max_enqueue_rate": rate}})
    full = await bench.push(queue="q")
    job = {"type": "t", "args": [], "queue": "q", "meta": {"tenant_id": "acme"}}
    waiting = {"OJS-Block-Timeout": "0.3"}
    assert (await http("POST", "/ojs/v1/jobs", job, headers=waiting)).json()["error"]["code"] == "QUEUE_FULL"
    assert (await http("POST", "/ojs/v1/jobs/batch", {"jobs": [job] * 2})).json()["error"]["code"] == "QUEUE_FULL"
    await bench.service.jobs.cancel(full.id)
    for code in (None, "TENANT_LIMIT_EXCEEDED"):
        batch = {"jobs": [job | {"queue": "other"}] * 2}
        answer = (await http("POST", "/ojs/v1/jobs/batch", batch)).json()
        assert answer.get("error", {}).get("code") == code


async def test_the_oldest_makes_room_where_that_is_wanted(http: Http, bench: Bench) -> None:
    await bound(http, 2, strategy="drop_oldest")
    ids = [(await push(http)).json()["job"]["id"] for _ in range(4)]
    assert [(await bench.find(id)).state for id in ids] == ["discarded", "discarded", "available", "available"]
    assert (await bench.events()).count("backpressure.dropped") == 2
    jobs = [{"type": "t", "args": [], "queue": "q"}] * 3
    assert (await http("POST", "/ojs/v1/jobs/batch", {"jobs": jobs})).status_code == 429


async def test_a_push_may_block_until_the_queue_has_room(http: Http, bench: Bench) -> None:
    await bound(http, 1, strategy="block")
    await push(http)
    assert (await push(http)).status_code == 429
    assert (await push(http, OJS_Block_Timeout="0.2")).status_code == 429
    assert (await push(http, OJS_Block_Timeout="0.01", Idempotency_Key="k")).status_code == 429
    assert (await bench.events()).count("backpressure.rejected") == 3
    waiting = asyncio.create_task(push(http, OJS_Block_Timeout="30"))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    await http.fetch("q")
    assert (await waiting).status_code == 201
    assert (await bench.events()).count("backpressure.rejected") == 3, "what waits is not rejected"
    assert (await push(http, OJS_Block_Timeout="a while")).status_code == 400


async def test_the_steps_of_workflows_are_let_in(http: Http) -> None:
    await bound(http, 1)
    await push(http)
    steps = [{"type": "t", "args": [], "queue": "q"}] * 2
    assert (await http("POST", "/ojs/v1/workflows", {"type": "group", "jobs": steps})).status_code == 201


async def test_a_bound_holds_whoever_pushes_at_the_same_time(shared_url: str, clock: Clock) -> None:
    from ojster.queues import configuration
    from ojster.queues.configuration import Configuration
    from ojster.queues.rules import Bound

    engines = [Service(open_database(shared_url, clock=clock)) for _ in range(3)]
    for service in engines:
        await service.jobs.enqueue([request()])  # each service caches that no queue is bounded
    await engines[0].scope.do(configuration.configure, Configuration("q", rules={"backpressure": Bound(20)}))

    async def push_some(service: Service) -> int:
        taken = 0
        for _ in range(20):
            try:
                await service.jobs.enqueue([request(queue="q")])
                taken += 1
            except QueueFull:
                await asyncio.sleep(0.01)
        return taken

    async with asyncio.timeout(PATIENCE):
        while any(may_be_bounded(service.database.memory, "q") is False for service in engines):
            await asyncio.sleep(0.01)
        assert sum(await asyncio.gather(*map(push_some, engines))) == 20
    for service in engines:
        await service.close()


UNIQUE = {"keys": ["type"], "on_conflict": "reject"}


async def test_nothing_is_dropped_for_a_push_that_adds_nothing(http: Http, bench: Bench) -> None:
    await bound(http, 2, strategy="drop_oldest")
    oldest = await bench.push("plain", queue="q")
    second = await bench.push("single", queue="q", unique=UNIQUE)
    for refused in (
        request("single", queue="q", unique=UNIQUE),
        request("other", id=second.id, queue="q"),  # as a client sends it again whose answer was lost
    ):
        with pytest.raises(Duplicate):
            await bench.service.jobs.enqueue([refused])
    await bench.push("single", queue="q", unique=UNIQUE | {"on_conflict": "ignore"})
    assert (await bench.find(oldest)).state == "available"
    replaced = await bench.push("single", queue="q", unique=UNIQUE | {"on_conflict": "replace"})
    assert (await bench.find(oldest)).state == "available"
    await bench.push("plain", queue="q")
    dropped = await bench.find(oldest)
    assert dropped.error is not None
    assert (dropped.state, dropped.error["code"]) == ("discarded", "backpressure_dropped")
    assert "its queue 'q' was full" in dropped.error["message"]
    assert (await bench.find(replaced)).state == "available"


async def test_nothing_is_dropped_for_a_batch_that_another_queue_refuses(http: Http, bench: Bench) -> None:
    await bound(http, 1, strategy="drop_oldest")
    body = {"backpressure": {"max_depth": 1}}
    assert (await http("PUT", "/ojs/v1/admin/queues/full/config", body)).status_code == 200
    oldest = await bench.push("plain", queue="q")
    await bench.push("plain", queue="full")
    with pytest.raises(QueueFull):
        await bench.service.jobs.enqueue([request("a", queue="q"), request("b", queue="full")])
    assert (await bench.find(oldest)).state == "available"


async def test_an_atomic_batch_makes_room_too(http: Http, bench: Bench) -> None:
    await bound(http, 2, strategy="drop_oldest")
    for _ in range(3):
        jobs = [{"type": "t", "args": [], "queue": "q"} for _ in range(2)]
        answer = await http("POST", "/ojs/v1/jobs/batch", {"jobs": jobs, "mode": "atomic"})
        assert answer.status_code in (200, 201), answer.text
    assert (await bench.service.jobs.count())["q"]["available"] == 2


async def test_a_full_queue_accepts_steps_and_reactions_but_no_runs_of_cron_jobs(http: Http, bench: Bench) -> None:
    await bound(http, 1)
    await bench.push("waits", queue="q")
    job = {"type": "reaction", "args": [], "options": {"queue": "q"}}
    reactions = {"on_creation": [{"action": "enqueue", "job": job}]}
    assert (await http("POST", "/ojs/v1/jobs", {"type": "t", "args": [], "event_reactions": reactions})).is_success
    steps = [{"type": "step", "args": [], "options": {"queue": "q"}}]
    assert (await http("POST", "/ojs/v1/workflows", {"type": "chain", "steps": steps})).is_success
    template = msgspec.json.encode({"type": "cron", "args": [], "options": {"queue": "q"}})
    await bench.service.schedules.register(Cron(name="c", expression="@every 60s", template=template))
    await bench.run_due(60)
    assert [miss.reason for miss in await bench.service.schedules.misses("c")] == ["QUEUE_FULL"]
    assert [job.type for job in await bench.fetch("q", count=9)] == ["waits", "reaction", "step"]
