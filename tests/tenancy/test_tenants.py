"""Tenants: fair shares of the queues, limits, and isolation of their jobs and workflows."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import msgspec
import pytest

from ojster.core.errors import InvalidRequest, InvalidWorkflow, NotFound, TenantLimitExceeded, TenantMissing
from ojster.core.job import Job
from ojster.core.json_objects import read_members
from ojster.core.rate_limit import Rate
from ojster.core.settings import ServiceSettings
from ojster.jobs.bulk import Action
from ojster.jobs.claim_policy import Claim
from ojster.jobs.filter_walk import JobFilter
from ojster.jobs.messages import Acknowledgement
from ojster.jobs.scope import Caller
from ojster.queues.configuration import Configuration, configure
from ojster.service import Service
from ojster.storage.open import open_database
from ojster.tenancy import tenants
from ojster.tenancy.tenants import TenantChange
from tests.conftest import Bench, Clock, request
from tests.waiting import LONG_WAIT, PATIENCE

pytestmark = pytest.mark.anyio


async def push(bench: Bench, **numbers: int) -> None:
    """Push the given number of jobs for each tenant; ``nobody`` stands for no tenant."""
    for tenant, number in numbers.items():
        meta = {} if tenant == "nobody" else {"tenant_id": tenant}
        for _ in range(number):
            await bench.push(meta=meta)


async def say(bench: Bench, tenant: str, **members: Any) -> None:
    await bench.service.scope.do(tenants.put_tenants, TenantChange(tenant, members))


def pushed_in_window(tx: Any, requests: Any) -> list[int]:
    return [tx.execute("SELECT window_used FROM tenants")[0][0]]


def owners(jobs: list[Job]) -> str:
    return "".join(job.tenant or "-" for job in jobs)


# Tenant of a job


async def test_meta_or_the_tenant_scope_gives_a_job_its_tenant(bench: Bench) -> None:
    job = await bench.push(meta={"tenant_id": "acme", "x": 1})
    assert (job.tenant, job.meta) == ("acme", {"tenant_id": "acme", "x": 1})
    for meta in ({}, {"x": 1}, {"tenant_id": "acme"}):
        (pushed,) = await bench.service.as_(Caller("acme")).jobs.enqueue([request(meta=meta)])
        assert (pushed.job.tenant, pushed.job.meta) == ("acme", {"tenant_id": "acme"} | meta)
    assert (await bench.push()).tenant == ""
    assert (await bench.push(meta={"tenant_id": "_default"})).tenant == ""


@pytest.mark.parametrize("tenant", ["", "a b", "/x", "é", "_x", "*", "a" * 129, 5, ["a"]])
async def test_an_invalid_tenant_is_refused(bench: Bench, tenant: Any) -> None:
    with pytest.raises(InvalidRequest):
        await bench.push(meta={"tenant_id": tenant})


async def test_a_job_cannot_name_another_tenant_than_its_request(bench: Bench) -> None:
    for view, meta in (("acme", "beta"), ("", "beta"), ("acme", "_default")):
        with pytest.raises(InvalidRequest, match=r"meta\.tenant_id"):
            await bench.service.as_(Caller(view)).jobs.enqueue([request(meta={"tenant_id": meta})])


async def test_an_escaped_name_is_no_way_around(bench: Bench) -> None:
    members = read_members(b'{"type": "t", "args": [], "meta": {"tenant\\u005fid": "beta"}}')
    with pytest.raises(InvalidRequest):
        await bench.service.as_(Caller("acme")).jobs.enqueue([members])
    (pushed,) = await bench.service.jobs.enqueue(
        [read_members(b'{"type":"t","args":[],"meta":{"tenant\\u005fid":"beta"}}')]
    )
    assert pushed.job.tenant == "beta"


async def test_a_server_may_require_a_tenant_for_every_job(shared_url: str, clock: Clock) -> None:
    service = Service(open_database(shared_url, ServiceSettings(tenants="required"), clock))
    with pytest.raises(TenantMissing):
        await service.jobs.enqueue([request()])
    with pytest.raises(TenantMissing):
        await service.workflows.create(read_members(b'{"type": "chain", "steps": [{"type": "a", "args": []}]}'))
    await service.as_(Caller("acme")).jobs.enqueue([request()])
    await service.jobs.enqueue([request(meta={"tenant_id": "acme"})])
    await service.close()


async def test_a_server_may_set_a_default_tenant(shared_url: str, clock: Clock) -> None:
    service = Service(open_database(shared_url, ServiceSettings(default_tenant="house"), clock))
    (pushed,) = await service.jobs.enqueue([request()])
    assert (pushed.job.tenant, pushed.job.meta) == ("house", {"tenant_id": "house"})
    (pushed,) = await service.jobs.enqueue([request(meta={"tenant_id": "acme"})])
    assert pushed.job.tenant == "acme"
    await service.close()


# Claims


async def test_tenants_take_turns(bench: Bench) -> None:
    await push(bench, a=4, b=2, c=3)
    assert owners(await bench.fetch(count=4)) == "abca"
    assert [owners(await bench.fetch()) for _ in range(6)] == ["b", "c", "a", "c", "a", ""]


async def test_a_tenant_with_many_jobs_does_not_delay_others(bench: Bench) -> None:
    await push(bench, flood=50)
    await push(bench, nobody=3, late=3)
    assert Counter(job.tenant for job in await bench.fetch(count=9)) == {"flood": 3, "": 3, "late": 3}
    assert len(await bench.fetch(count=100)) == 47


async def test_weights_say_how_much_each_tenant_gets(bench: Bench) -> None:
    await say(bench, "a", weight=3)
    await say(bench, "b", weight=1.5)
    await push(bench, a=60, b=60, c=60)
    got = Counter([owners(await bench.fetch()) for _ in range(55)])
    assert got == {"a": 30, "b": 15, "c": 10}


async def test_a_tenant_with_a_boost_goes_first(bench: Bench) -> None:
    await push(bench, a=2, nobody=1)
    await say(bench, "gold", boost=1)
    await push(bench, gold=3)
    assert owners(await bench.fetch(count=10)) == "goldgoldgold-aa"


async def test_a_tenants_most_urgent_job_comes_first(bench: Bench) -> None:
    for priority in (1, 5, 3):
        await bench.push(meta={"tenant_id": "a"}, priority=priority)
        await bench.push(meta={"tenant_id": "b"}, priority=-priority)
    assert [job.priority for job in await bench.fetch(count=10)] == [5, -1, 3, -3, 1, -5]


async def test_who_claims_for_a_tenant_gets_only_its_jobs(bench: Bench) -> None:
    await push(bench, a=2, b=1, nobody=1)
    assert owners(await bench.service.as_(Caller("a")).jobs.fetch(Claim(("default",), 10))) == "aa"
    assert owners(await bench.service.as_(Caller("")).jobs.fetch(Claim(("default",), 10))) == "-"
    assert owners(await bench.service.as_(Caller("nobody-knows")).jobs.fetch(Claim(("default",), 10))) == ""


async def test_limits_of_a_queue_hold_for_all_tenants_together(bench: Bench) -> None:
    await bench.service.scope.do(configure, Configuration("default", {"concurrency": 3}))
    await push(bench, a=5, b=5)
    assert owners(await bench.fetch(count=10)) == "aba"
    assert owners(await bench.service.as_(Caller("b")).jobs.fetch(Claim(("default",), 10))) == ""


async def test_a_key_of_a_rate_limit_is_each_tenants_own(bench: Bench) -> None:
    for tenant in ("a", "b", "a", "b"):
        await bench.push(meta={"tenant_id": tenant}, rate_limit={"key": "stripe", "concurrency": 1})
    first = await bench.fetch(count=10)
    assert sorted(job.tenant for job in first) == ["a", "b"]
    await bench.ack(first[0])
    assert owners(await bench.fetch(count=10)) == first[0].tenant


async def test_a_unique_job_is_unique_among_its_tenants(bench: Bench) -> None:
    unique = {"keys": ["type", "args"], "on_conflict": "ignore"}
    ids = {(await bench.push("t", 1, meta={"tenant_id": tenant}, unique=unique)).id for tenant in ("a", "b", "a", "b")}
    assert len(ids) == 2


# Limits


async def test_a_tenants_concurrency_limit_holds_across_queues(bench: Bench) -> None:
    await say(bench, "a", max_concurrency=2)
    await push(bench, a=5, b=1)
    await bench.push(queue="other", meta={"tenant_id": "a"})
    jobs = await bench.fetch("default", "other", count=10)
    assert sorted(job.tenant for job in jobs) == ["a", "a", "b"]
    assert await bench.service.as_(Caller("a")).jobs.fetch(Claim(("default", "other"), 10)) == []
    await bench.ack(next(job for job in jobs if job.tenant == "a"))
    assert owners(await bench.fetch("other", "default", count=10)) == "a"
    await say(bench, "a", max_concurrency=None)
    assert len(await bench.fetch("default", "other", count=10)) == 3


async def test_a_parked_fetch_wakes_when_the_limit_allows_a_job(bench: Bench) -> None:
    await say(bench, "a", max_concurrency=1)
    await push(bench, a=2)
    job = await bench.fetch_one()
    for view in (bench.service, bench.service.as_(Caller("a"))):
        waiting = asyncio.create_task(view.jobs.fetch(Claim(("default",)), wait=LONG_WAIT))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        await bench.ack(job)
        (job,) = await asyncio.wait_for(waiting, PATIENCE)
        await push(bench, a=1)


async def test_claims_at_the_same_time_never_exceed_a_limit(postgres_url: str, clock: Clock) -> None:
    """Eight workers of two servers claim and complete jobs concurrently."""
    engines = [Service(open_database(postgres_url, clock=clock)) for _ in range(2)]
    await engines[0].scope.do(tenants.put_tenants, TenantChange("a", {"max_concurrency": 3}))
    await engines[0].jobs.enqueue([request(meta={"tenant_id": "a"}) for _ in range(60)])
    running: set[str] = set()
    most = done = 0

    async def work(service: Service) -> None:
        nonlocal most, done
        while done < 60:
            jobs = await service.jobs.fetch(Claim(("default",), 2), wait=0.5)
            running.update(job.id for job in jobs)
            most = max(most, len(running))
            for job in jobs:
                await asyncio.sleep(0)
                running.discard(job.id)  # before the server sees it as completed
                await service.jobs.acknowledge([Acknowledgement(job.id)])
                done += 1

    await asyncio.wait_for(asyncio.gather(*(work(service) for service in engines for _ in range(4))), PATIENCE)
    assert (most <= 3, done) == (True, 60)
    for service in engines:
        await service.close()


async def test_a_tenant_cannot_have_more_waiting_than_it_may(bench: Bench) -> None:
    await say(bench, "a", max_queue_depth=3, max_scheduled=1)
    await push(bench, a=2, b=9)
    await bench.push(meta={"tenant_id": "a"}, delay_until="+PT5M")
    with pytest.raises(TenantLimitExceeded) as refusal:
        await push(bench, a=1)
    assert refusal.value.details == {"tenant_id": "a", "limit": "max_queue_depth", "current": 3, "maximum": 3}
    assert "tenant.limit_exceeded" in await bench.events()
    await bench.ack(await bench.fetch_one())
    with pytest.raises(TenantLimitExceeded, match="max_scheduled"):
        await bench.push(meta={"tenant_id": "a"}, delay_until="+PT5M")
    await push(bench, a=1)


async def test_a_batch_is_taken_whole_or_not_at_all(bench: Bench) -> None:
    await say(bench, "a", max_queue_depth=3)
    with pytest.raises(TenantLimitExceeded):
        await bench.service.jobs.enqueue([request(meta={"tenant_id": "a"}) for _ in range(4)])
    await bench.service.jobs.enqueue([request(meta={"tenant_id": "a"}) for _ in range(3)])


async def test_a_tenant_cannot_push_faster_than_it_may(bench: Bench) -> None:
    await say(bench, "a", max_enqueue_rate=Rate(3, 60_000_000))
    await push(bench, a=3)
    bench.clock.advance(20)
    with pytest.raises(TenantLimitExceeded) as refusal:
        await push(bench, a=1)
    assert refusal.value.headers == {"Retry-After": "40"}
    bench.clock.advance(40)
    await push(bench, a=3)
    with pytest.raises(TenantLimitExceeded):
        await push(bench, a=1)


async def test_exceeding_a_soft_quota_only_emits_an_event(bench: Bench) -> None:
    await say(bench, "a", max_queue_depth=1, quota="soft")
    await push(bench, a=3)
    assert (await bench.events()).count("tenant.limit_exceeded") == 2


# Workflows


async def test_all_jobs_of_a_workflow_are_its_tenants(bench: Bench) -> None:
    steps = b'[{"type": "a", "args": []}, {"type": "map", "over": [1, 2], "do": {"type": "b", "args": []}}]'
    members = read_members(b'{"type": "chain", "steps": %b, "metadata": {"tenant_id": "acme"}}' % steps)
    info = await bench.service.workflows.create(members)
    seen = 0
    while jobs := await bench.service.as_(Caller("acme")).jobs.fetch(Claim(("default",), 10)):
        for job in jobs:
            assert job.meta["tenant_id"] == job.tenant == "acme"
            append = (b'{"type": "c", "args": []}',) if job.type == "a" else ()
            await bench.service.as_(Caller("acme")).jobs.acknowledge([Acknowledgement(job.id, append=append)])
            seen += 1
    assert seen == 4
    assert (await bench.service.as_(Caller("acme")).workflows.show(info.id)).state == "completed"
    with pytest.raises(NotFound):
        await bench.service.as_(Caller("beta")).workflows.show(info.id)


async def test_a_step_cannot_be_another_tenants(bench: Bench) -> None:
    members = b'{"type": "chain", "steps": [{"type": "a", "args": [], "meta": {"tenant_id": "beta"}}]}'
    for view in (bench.service, bench.service.as_(Caller("acme"))):
        with pytest.raises(InvalidWorkflow, match=r"tenant_id"):
            await view.workflows.create(read_members(members))
    await bench.service.as_(Caller("beta")).workflows.create(read_members(members))


async def test_a_workflow_over_the_depth_limit_is_refused_whole(bench: Bench) -> None:
    await say(bench, "a", max_queue_depth=1)
    body = b'{"type": "group", "jobs": [{"type": "a", "args": []}, {"type": "a", "args": []}]}'
    with pytest.raises(TenantLimitExceeded):
        await bench.service.as_(Caller("a")).workflows.create(read_members(body))
    assert (await bench.service.jobs.select()).total == 0


async def test_what_a_workflow_adds_to_itself_counts_towards_the_limits_of_its_tenant(bench: Bench) -> None:
    acme = bench.service.as_(Caller("acme"))
    await say(bench, "acme", max_queue_depth=10, max_enqueue_rate=Rate(100, 60_000_000))

    async def run(elements: int) -> tuple[str, str | None]:
        step = b'{"type": "map", "over": %b, "do": {"type": "a", "args": []}}' % str([1] * elements).encode()
        info = await acme.workflows.create(read_members(b'{"type": "chain", "steps": [%b]}' % step))
        shown = next((await acme.workflows.show(info.id)).walk())
        return shown.state, msgspec.json.decode(shown.error)["code"] if isinstance(shown.error, msgspec.Raw) else None

    assert await run(11) == ("failed", "TENANT_LIMIT_EXCEEDED")
    assert await run(9) == ("active", None)
    (held,) = await bench.fetch(count=1)
    (refused,) = await acme.jobs.acknowledge([Acknowledgement(held.id, append=(b'{"type": "b", "args": []}',) * 3)])
    assert isinstance(refused, TenantLimitExceeded)
    (taken,) = await acme.jobs.acknowledge([Acknowledgement(held.id, append=(b'{"type": "b", "args": []}',) * 2)])
    assert isinstance(taken, Job)
    assert await bench.run(pushed_in_window, None) == 11, "nine elements and two steps"


async def test_maps_that_begin_together_share_the_depth_limit_of_their_tenant(bench: Bench) -> None:
    acme = bench.service.as_(Caller("acme"))
    await say(bench, "acme", max_queue_depth=20)
    step = b'{"type": "map", "over": [1, 2, 3, 4, 5, 6, 7, 8], "do": {"type": "a", "args": []}}'
    info = await acme.workflows.create(read_members(b'{"type": "group", "jobs": [%b, %b, %b]}' % (step, step, step)))
    shown = await acme.workflows.show(info.id)
    states = [step.state for step in shown.walk() if step.type == "map"]
    assert sorted(states) == ["active", "active", "failed"]


async def test_elements_that_have_become_jobs_count_once(bench: Bench) -> None:
    acme = bench.service.as_(Caller("acme"))
    await say(bench, "acme", max_queue_depth=30)
    unique = {"keys": ["type"], "on_conflict": "ignore"}
    await acme.jobs.enqueue([request("u", unique=unique)])
    steps = [
        {"id": "m1", "type": "map", "over": [1] * 10, "do": {"type": "a", "args": []}},
        {"id": "u", "type": "u", "args": [], "options": {"unique": unique}},
        {"id": "m2", "type": "map", "over": [1] * 10, "do": {"type": "a", "args": []}, "depends_on": ["u"]},
    ]
    info = await acme.workflows.create(read_members(msgspec.json.encode({"type": "graph", "steps": steps})))
    shown = await acme.workflows.show(info.id)
    assert [step.state for step in shown.walk() if step.type == "map"] == ["active", "active"]
    await acme.jobs.enqueue([request() for _ in range(9)])
    with pytest.raises(TenantLimitExceeded):
        await acme.jobs.enqueue([request()])


async def test_elements_of_maps_that_are_no_jobs_yet_count_towards_the_depth_limit(bench: Bench) -> None:
    acme = bench.service.as_(Caller("acme"))
    await say(bench, "acme", max_queue_depth=1_000)
    over = str([1] * 900).encode()
    step = b'{"type": "map", "over": %b, "do": {"type": "a", "args": []}}' % over
    info = await acme.workflows.create(read_members(b'{"type": "chain", "steps": [%b]}' % step))
    assert (await acme.jobs.select()).total < 300, "most elements are still to come"
    await acme.jobs.enqueue([request() for _ in range(100)])
    with pytest.raises(TenantLimitExceeded) as refused:
        await acme.jobs.enqueue([request()])
    assert refused.value.details["current"] == 1_000
    await acme.workflows.cancel(info.id)
    await acme.jobs.enqueue([request()])


# Statistics and configuration


async def test_what_tenants_have_and_do_is_counted(bench: Bench) -> None:
    await push(bench, a=3, b=1, nobody=2)
    for job in await bench.fetch(count=3):
        await bench.ack(job)
    found = {one.tenant.id: one for one in await bench.service.scope.look(tenants.list_tenants, None)}
    assert {tenant: one.count() for tenant, one in found.items()} == {"": 2, "a": 3, "b": 1}
    assert {tenant: one.count("completed") for tenant, one in found.items()} == {"": 1, "a": 1, "b": 1}
    assert {tenant: one.day.enqueued for tenant, one in found.items()} == {"": 2, "a": 3, "b": 1}
    assert [one.actual_share for one in found.values()] == [pytest.approx(1 / 3)] * 3
    assert (await bench.service.jobs.count("default"))["default"] == {"available": 3, "completed": 3, "active": 0}
    assert (await bench.service.as_(Caller("a")).jobs.select(JobFilter(states=("available",)))).total == 2
    assert (await bench.service.as_(Caller("a")).queues.statistics("default")).counts["completed"] == 1
    await bench.service.as_(Caller("a")).bulk.sweep(Action.CANCEL, JobFilter(type="*"))
    assert (await bench.service.as_(Caller("b")).jobs.count("default"))["default"].get("cancelled", 0) == 0


async def test_a_noisy_tenant_is_reported(bench: Bench) -> None:
    await push(bench, a=40, b=1, c=1)
    found = {one.tenant.id: one.noise for one in await bench.service.scope.look(tenants.list_tenants, None)}
    assert "queue_depth_ratio" in found["a"]
    assert found["b"] == found["c"] == ()


async def test_a_tenants_configuration_can_be_changed_and_deleted(bench: Bench) -> None:
    await say(bench, "a", max_concurrency=1, weight=2)
    await bench.service.scope.do(tenants.put_tenants, TenantChange("a", {"max_concurrency": 5}, anew=False))
    found = await bench.service.scope.look(tenants.show_tenants, "a")
    assert (found.tenant.max_concurrency, found.tenant.weight) == (5, 2)
    await bench.service.scope.do(tenants.delete_tenants, "a")
    for operation in (tenants.delete_tenants, tenants.show_tenants):
        with pytest.raises(NotFound):
            await bench.service.scope.do(operation, "a")
