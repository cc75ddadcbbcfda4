"""Workers whose heartbeats stopped are known for a day, with the jobs that they held."""

from __future__ import annotations

import pytest

from ojster.core.durations import DAY, SECOND
from ojster.core.job import Job
from ojster.fleet import lost_workers
from ojster.fleet.workers import Heartbeat
from ojster.jobs.scope import Caller
from ojster.schedules.retention import forget
from ojster.storage.transaction import Transaction
from tests.conftest import Bench, Http

pytestmark = pytest.mark.anyio


async def hold(bench: Bench, worker_id: str, number: int, tenant: str | None = None) -> list[str]:
    """Let a worker hold jobs; return their ids."""
    service = bench.service if tenant is None else bench.service.as_(Caller(tenant))
    ids = [(await bench.push("t", count)).id for count in range(number)]
    await service.fleet.beat(Heartbeat(worker_id, queues=("default",), hostname="host-1", pid=7))
    await bench.fetch("default", count=number, worker_id=worker_id)
    await service.fleet.beat(Heartbeat(worker_id, tuple(ids), queues=("default",), hostname="host-1", pid=7))
    return ids


@pytest.mark.parametrize("how", ["silent", "deregistered", "left"])
async def test_a_lost_worker_is_shown_with_the_jobs_that_it_held_and_what_became_of_them(
    bench: Bench, how: str
) -> None:
    fleet = bench.service.fleet
    ids = await hold(bench, "w", 3)
    seen_at = bench.clock.now
    assert await fleet.lost() == []
    bench.clock.advance(31)
    match how:
        case "silent":
            await bench.run_due()
        case "deregistered":
            await fleet.deregister("w")
        case _:
            await fleet.leave("w", lost=True)
    (lost,) = await fleet.lost()
    assert (lost.id, lost.hostname, lost.pid, lost.queues) == ("w", "host-1", 7, ["default"])
    assert (lost.held, lost.last_seen_at, lost.lost_at) == (3, seen_at, bench.clock.now)
    assert [(job.id, job.state) for job in lost.jobs] == [(id, "available") for id in ids]
    await bench.ack(await bench.fetch_one())
    (lost,) = await fleet.lost()
    assert [job.state for job in lost.jobs] == ["completed", "available", "available"]


def heartbeat(lease: int, *jobs: Job) -> Heartbeat:
    ids = tuple(job.id for job in jobs)
    return Heartbeat("w", ids, queues=("default",), hostname="host-1", lease=lease * SECOND)


async def pass_seconds(bench: Bench, number: int) -> None:
    """Let servers do at once what is due, as they do."""
    for _ in range(number):
        bench.clock.advance(1)
        await bench.run_all_due()


@pytest.mark.parametrize("lease", [10, 30, 60])
async def test_a_lost_worker_held_the_jobs_whose_leases_expired_before_it_was_lost(bench: Bench, lease: int) -> None:
    """Leases are as long as the time after which a worker is lost, or shorter; and it took a job after all of them."""
    service, names = bench.service, ["a", "b", "late"]
    for name in names[:2]:
        await bench.push(name)
    await service.fleet.beat(heartbeat(lease))
    held = await bench.fetch("default", count=2, worker_id="w", lease=lease * SECOND)
    await service.fleet.beat(heartbeat(lease, *held))
    await pass_seconds(bench, 3)
    await bench.push(names[2])
    await bench.fetch("default", worker_id="w", lease=lease * SECOND)
    await pass_seconds(bench, 40)
    (lost,) = await service.fleet.lost()
    assert (lost.held, sorted(job.type for job in lost.jobs)) == (3, names)


async def test_a_job_that_a_worker_claimed_again_after_its_lease_expired_was_held_once(bench: Bench) -> None:
    """It claims between two heartbeats, and is lost before the next one."""
    await bench.push("again")
    await bench.service.fleet.beat(heartbeat(60))
    for lease in (2, 2, 60):
        fetched = await bench.fetch("default", worker_id="w", lease=lease * SECOND)
        assert len(fetched) == 1
        await pass_seconds(bench, 5)
    await pass_seconds(bench, 40)
    (lost,) = await bench.service.fleet.lost()
    assert (lost.held, [job.type for job in lost.jobs]) == (1, ["again"])


async def test_a_worker_that_was_heard_again_after_leases_expired_held_none_of_these_jobs(bench: Bench) -> None:
    service = bench.service
    await bench.push("expired")
    await service.fleet.beat(heartbeat(10))
    await bench.fetch("default", worker_id="w", lease=10 * SECOND)
    await pass_seconds(bench, 15)
    assert await service.fleet.lost() == []
    await service.fleet.beat(heartbeat(10))
    await pass_seconds(bench, 31)
    (lost,) = await service.fleet.lost()
    assert (lost.held, lost.jobs) == (0, [])


async def test_a_worker_that_stops_or_comes_back_is_not_lost(bench: Bench) -> None:
    fleet = bench.service.fleet
    await hold(bench, "orderly", 1)
    await fleet.leave("orderly")
    await hold(bench, "back", 1)
    await fleet.leave("back", lost=True)
    assert [lost.id for lost in await fleet.lost()] == ["back"]
    for _ in range(2):
        await fleet.beat(Heartbeat("back"))
        assert await fleet.lost() == []
        await fleet.leave("back")
        assert await fleet.lost() == [], "it stopped in order"
    await fleet.beat(Heartbeat("back"))
    await fleet.leave("back", lost=True)
    (lost,) = await fleet.lost()
    assert (lost.held, lost.jobs) == (0, []), "the last loss counts"


async def test_a_lost_worker_is_forgotten_after_a_day(bench: Bench) -> None:
    await hold(bench, "w", 1)
    await bench.service.fleet.leave("w", lost=True)
    bench.clock.advance(DAY / SECOND - 1)
    await bench.service.database.run(forget, None)
    assert len(await bench.service.fleet.lost()) == 1
    bench.clock.advance(2)
    assert await bench.service.fleet.lost() == []
    await bench.service.database.run(forget, None)
    assert await bench.service.scope.look(count, None) == 0


def count(tx: Transaction, requests: object) -> list[int]:
    return [tx.execute("SELECT count(*) FROM lost_workers")[0][0]]


async def test_of_many_jobs_the_first_are_named_and_all_are_counted(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lost_workers, "MAX_HELD_IDS", 2)
    await hold(bench, "w", 5)
    await bench.service.fleet.leave("w", lost=True)
    (lost,) = await bench.service.fleet.lost()
    assert (lost.held, len(lost.jobs)) == (5, 2)
    await bench.service.fleet.beat(heartbeat(10))
    await bench.fetch("default", count=5, worker_id="w", lease=10 * SECOND)
    await pass_seconds(bench, 31)
    (lost,) = await bench.service.fleet.lost()
    assert (lost.held, len(lost.jobs)) == (5, 2), "also of those whose leases have expired"


async def test_a_workspace_sees_its_own_lost_workers(bench: Bench, http: Http) -> None:
    for tenant in ("acme", "zoo"):
        fleet = bench.service.as_(Caller(tenant)).fleet
        await fleet.beat(Heartbeat("w"))
        await fleet.leave("w", lost=True)
    assert [lost.id for lost in await bench.service.as_(Caller("acme")).fleet.lost()] == ["/tenant/acme/w"]
    shown = (await http("GET", "/ojs/v1/lost-workers", headers={"X-OJS-Tenant": "acme"})).json()["workers"]
    assert [(one["worker_id"], one["tenant_id"], one["held"]) for one in shown] == [("w", "acme", 0)]
