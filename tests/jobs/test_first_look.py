"""A claim looks for jobs together with the question which policies are in use, and nothing shows it but round trips."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from ojster.fleet.workers import Heartbeat
from ojster.jobs import available
from ojster.jobs.claim_policy import Claim
from ojster.queues import pools, turns
from ojster.queues.fairness import Sharing
from ojster.queues.pool import Pool
from ojster.storage.memory import Local
from ojster.storage.postgres.pipeline import PipelineConnection
from tests.conftest import Bench

pytestmark = pytest.mark.anyio


class Always:
    """A habit that nothing changes."""

    def __init__(self, *, ahead: bool) -> None:
        self._ahead = ahead

    @property
    def is_plain(self) -> bool:
        return self._ahead

    @is_plain.setter
    def is_plain(self, value: bool) -> None: ...


async def nothing(bench: Bench, first: str) -> None: ...


async def paused(bench: Bench, first: str) -> None:
    await bench.service.queues.pause(first)


async def quiet(bench: Bench, first: str) -> None:
    await bench.service.fleet.direct(f"worker-of-{first}", "quiet")


async def limited(bench: Bench, first: str) -> None:
    for number in range(3):
        await bench.push(f"limited{number}", queue=first, rate_limit={"key": first, "concurrency": 2}, priority=1)


async def of_tenants(bench: Bench, first: str) -> None:
    for tenant in ("acme", "beta"):
        await bench.push(tenant, queue=first, meta={"tenant_id": tenant}, priority=-1)


async def requiring(bench: Bench, first: str) -> None:
    await bench.push("on_gpu", queue=first, resources={"gpu": {"count": 1}})


async def pooled(bench: Bench, first: str) -> None:
    pool = Pool(f"pool{first}", (f"{first}2", first), sharing=Sharing("weighted", ()), concurrency=3)
    await bench.service.scope.do(pools.put_pools, pool)
    await bench.service.fleet.beat(Heartbeat(f"worker-of-{first}", pool=pool.name))


SCENES: list[Callable[[Bench, str], Awaitable[None]]] = [
    nothing,
    paused,
    quiet,
    limited,
    of_tenants,
    requiring,
    pooled,
]


async def handed_out(
    bench: Bench, prepare: Callable[[Bench, str], Awaitable[None]], monkeypatch: pytest.MonkeyPatch, *, ahead: bool
) -> list[Any]:
    """Return what claims get of two queues, and what is left."""
    habit: Any = Always(ahead=ahead)
    monkeypatch.setattr(available, "_HABIT", Local(lambda: habit))
    first, second = queues = (f"a{ahead:d}", f"b{ahead:d}")
    worker = f"worker-of-{first}"
    turns._known.of(bench.service.database.memory).clear()
    await bench.service.fleet.beat(Heartbeat(worker))
    for number in range(5):
        await bench.push(f"one{number}", queue=first, priority=number % 2)
        await bench.push(f"two{number}", queue=second)
    await prepare(bench, first)
    seen: list[Any] = []
    for count in (1, 3, 2, 9):
        jobs = await bench.fetch(*queues, count=count, worker_id=worker)
        seen.append([(job.type, job.attempt, job.state) for job in jobs])
        for job in jobs[:2]:
            await bench.ack(job)
    for queue in queues:
        seen.append((await bench.service.queues.statistics(queue)).counts)
    return seen


@pytest.mark.parametrize("scene", SCENES)
async def test_a_look_ahead_finds_what_a_look_finds(
    bench: Bench, scene: Callable[[Bench, str], Awaitable[None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    apart = await handed_out(bench, scene, monkeypatch, ahead=False)
    assert await handed_out(bench, scene, monkeypatch, ahead=True) == apart


async def test_a_look_ahead_in_vain_does_not_keep_jobs_from_others(bench: Bench) -> None:
    """What it has locked is offered again, once, to those who have passed over it."""
    await bench.push(queue="q")
    await bench.ack(await bench.fetch_one("q", worker_id="w"))  # from now on, it looks ahead
    waiting = asyncio.ensure_future(bench.service.jobs.fetch(Claim(("q", "r"), 1, "other"), 30.0))
    await bench.until_parked()
    await bench.service.queues.pause("q")
    await bench.push(queue="q")
    assert await bench.fetch("q", worker_id="w") == []
    await bench.until_parked()
    await bench.service.queues.resume("q")
    (job,) = await waiting
    assert job.queue == "q"


async def test_a_plain_claim_takes_two_round_trips(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    if bench.service.database.kind != "postgres":
        pytest.skip("SQLite has no round trips")
    for _ in range(5):
        await bench.push()
    await bench.fetch_one(worker_id="w")
    await bench.fetch_one(worker_id="w")
    trips = 0
    real = PipelineConnection._results

    def counted(self: PipelineConnection) -> Any:
        nonlocal trips
        trips += 1
        return real(self)

    monkeypatch.setattr(PipelineConnection, "_results", counted)
    await bench.fetch_one(worker_id="w")
    assert trips == 2
