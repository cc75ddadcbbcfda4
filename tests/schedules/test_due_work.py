"""Maintenance tasks: scheduled jobs, silent workers and retention. They sleep until the next due time."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from ojster.core.durations import DAY, SECOND
from ojster.core.errors import InvalidRequest, NotFound
from ojster.core.job import Job
from ojster.core.settings import ServiceRetention, ServiceSettings
from ojster.core.timestamps import system_clock
from ojster.fleet.workers import Heartbeat
from ojster.jobs.claim_policy import Claim
from ojster.jobs.filter_walk import JobFilter
from ojster.schedules.due_work import MOST_AT_ONCE
from ojster.schedules.retention import BATCH, forget
from ojster.service import Service
from tests.conftest import START, Bench, request, shown
from tests.waiting import LONG_WAIT

pytestmark = pytest.mark.anyio


async def test_with_nothing_to_wait_for_nothing_is_due(bench: Bench) -> None:
    assert await bench.run_due() is None


async def test_the_next_thing_due_is_known(bench: Bench) -> None:
    await bench.push(scheduled_at="+PT1H")
    await bench.push(expires_at="+PT30M")
    assert await bench.run_due() == START + 1800 * SECOND


async def test_a_scheduled_job_is_available_when_its_time_comes(bench: Bench) -> None:
    job = await bench.push(scheduled_at="+PT60S")
    await bench.run_due(after=59.999)
    assert (await bench.find(job)).state == "scheduled"
    await bench.run_due(after=0.001)
    found = await bench.find(job)
    assert (found.state, found.enqueued_at) == ("available", bench.clock.now)


async def test_a_great_many_due_jobs_are_looked_after_in_bounded_batches(bench: Bench) -> None:
    await bench.service.jobs.enqueue([request(scheduled_at="+PT1S") for _ in range(MOST_AT_ONCE + 10)])
    next_due = await bench.run_due(after=5)
    counts = await bench.service.jobs.count()
    assert counts["default"] == {"available": MOST_AT_ONCE, "scheduled": 10}
    assert next_due is not None
    assert next_due <= bench.clock.now
    await bench.run_due()
    assert (await bench.service.jobs.count())["default"]["available"] == MOST_AT_ONCE + 10


async def test_chores_wake_up_when_something_becomes_due_sooner(service: Service) -> None:
    """Use the real clock: a job scheduled 0.1 s ahead becomes available without polling."""
    service.database.clock = system_clock
    service.maintenance.start()
    await asyncio.sleep(0.02)
    await service.jobs.enqueue([request(scheduled_at="+PT0.1S")])
    assert len(await service.jobs.fetch(Claim(("default",)), wait=LONG_WAIT)) == 1


async def test_workers_have_time_to_report_to_a_server_that_was_away_for_longer_than_a_lease(bench: Bench) -> None:
    await bench.push()
    await bench.push()
    done, dead = await bench.fetch(count=2, worker_id="w")
    await bench.service.fleet.beat(Heartbeat("w", (done.id, dead.id), lease=30_000_000))
    bench.clock.advance(3_600)
    assert await bench.service.fleet.give_time_to_report() == 2
    await bench.run_due(after=9.9)
    await bench.ack(done)
    assert (await bench.find(dead)).state == "active"
    await bench.run_due(after=0.2)
    assert (await bench.find(dead)).state != "active"
    assert (await bench.find(done)).attempt == 1


async def test_leases_that_end_later_anyway_are_left_alone_by_a_server_that_starts(bench: Bench) -> None:
    await bench.push()
    job = await bench.fetch_one(worker_id="w")
    before = (await bench.find(job)).due_at
    assert await bench.service.fleet.give_time_to_report() == 0
    assert (await bench.find(job)).due_at == before


async def test_jobs_of_a_silent_worker_are_given_to_others(bench: Bench) -> None:
    await bench.push(retry={"max_attempts": 2})
    job = await bench.fetch_one(worker_id="w")
    await bench.service.fleet.beat(Heartbeat("w", (job.id,)))
    await bench.run_due(after=29.9)
    assert (await bench.find(job)).state == "active"
    await bench.run_due(after=0.1)
    found = shown(await bench.find(job))
    assert (found["state"], found["errors"][0]["type"]) == ("available", "worker_death")
    assert await bench.service.fleet.all() == []


async def die(bench: Bench) -> Job:
    """Let the only job run on a worker that dies, and return the job."""
    job = await bench.fetch_one(worker_id="w")
    await bench.service.fleet.beat(Heartbeat("w", (job.id,)))
    await bench.run_due(after=30)
    return await bench.find(job)


async def test_the_death_of_a_worker_is_no_failure_of_its_jobs(bench: Bench) -> None:
    await bench.push(retry={"max_attempts": 1, "jitter": False})
    job = await die(bench)
    assert (job.state, job.attempt, job.losses) == ("available", 1, 1), "the first time it runs again at once"
    job = await die(bench)
    assert (job.state, job.attempt, job.losses) == ("retryable", 2, 2), "then after a growing delay"
    (why,) = (await bench.service.jobs.explain(job.id)).reasons
    assert "Attempt 2 of 3 failed" in why.message
    assert job.retry_delay is not None
    assert 500_000 <= job.retry_delay <= 1_500_000
    await bench.run_due(after=2)
    job = await bench.fetch_one(worker_id="v")
    assert (await bench.fail(job)).state == "discarded", "a failure of its own counts"
    assert shown(await bench.find(job))["losses"] == 2


@pytest.mark.parametrize("lease", [20, 30])
async def test_a_lease_that_ends_before_the_worker_is_missed_ends_by_its_death(bench: Bench, lease: int) -> None:
    """By default, a worker's lease is as long as the heartbeat timeout."""
    await bench.push(retry={"max_attempts": 1})
    await bench.push("short")
    job, short = await bench.fetch(count=2, worker_id="w", lease=lease * SECOND)
    await bench.service.fleet.beat(Heartbeat("w", (job.id, short.id), lease=lease * SECOND))
    bench.clock.advance(4)
    await bench.ack(short)
    await bench.run_due(after=lease)
    found = await bench.find(job)
    assert (found.state, found.losses) == ("available", 1)
    assert shown(found)["errors"][0]["type"] == "worker_death"
    await bench.run_due(after=30)
    (lost,) = await bench.service.fleet.lost()
    assert (lost.id, lost.held, [held.id for held in lost.jobs]) == ("w", 1, [job.id])


async def test_a_lease_that_a_living_worker_does_not_renew_is_a_failure(bench: Bench) -> None:
    await bench.push(retry={"max_attempts": 1})
    job = await bench.fetch_one(worker_id="w", lease=30 * SECOND)
    bench.clock.advance(20)
    await bench.service.fleet.beat(Heartbeat("w"))
    await bench.run_due(after=10)
    found = await bench.find(job)
    assert (found.state, found.losses) == ("discarded", 0)


async def test_the_deaths_of_workers_have_a_limit_of_their_own(bench: Bench) -> None:
    settings = bench.service.database.settings
    bench.service.database.settings = msgspec.structs.replace(settings, most_losses=2)
    await bench.push(retry={"max_attempts": 100, "on_exhaustion": "dead_letter"})
    for losses, state in ((1, "available"), (2, "retryable"), (3, "discarded")):
        job = await die(bench)
        assert (job.losses, job.state) == (losses, state)
        await bench.run_due(after=10)
    assert job.dead
    await bench.service.jobs.retry_dead(job.id)
    job = await die(bench)
    assert (job.state, job.losses) == ("available", 1), "by hand it begins anew"


async def test_who_wants_no_second_run_says_so(bench: Bench) -> None:
    await bench.push(retry={"max_attempts": 5, "non_retryable_errors": ["worker_death"]})
    assert (await die(bench)).state == "discarded"


async def test_an_expired_lease_counts_as_a_failure(bench: Bench) -> None:
    """Spec: ojs-worker-protocol 5.5"""
    await bench.push(retry={"max_attempts": 1})
    job = await bench.fetch_one(lease=1_000_000)
    await bench.run_due(after=2)
    found = await bench.find(job)
    assert (found.state, found.losses) == ("discarded", 0)


async def test_a_handler_cannot_make_its_failure_a_death(bench: Bench) -> None:
    await bench.push(retry={"max_attempts": 1})
    assert (await bench.fail(await bench.fetch_one(), type="worker_death")).state == "discarded"


async def test_a_worker_that_never_beat_is_not_silent(bench: Bench) -> None:
    await bench.push()
    job = await bench.fetch_one(worker_id="w")
    await bench.run_due(after=600)
    assert (await bench.find(job)).state == "active"


async def test_a_worker_that_leaves_is_forgotten_and_its_jobs_given_to_others(bench: Bench) -> None:
    await bench.push()
    job = await bench.fetch_one(worker_id="w")
    await bench.service.fleet.beat(Heartbeat("w", (job.id,), hostname="h", pid=1, queues=("default",), concurrency=3))
    (worker,) = await bench.service.fleet.all()
    assert (worker.id, worker.hostname, worker.queues, worker.active_jobs) == ("w", "h", ["default"], 1)
    await bench.service.fleet.leave("w")
    assert await bench.service.fleet.all() == []
    assert (await bench.find(job)).state == "available"


async def test_a_heartbeat_returns_the_directive_of_a_worker(bench: Bench) -> None:
    await bench.service.fleet.beat(Heartbeat("w"))
    await bench.service.fleet.direct("w", "quiet")
    assert (await bench.service.fleet.beat(Heartbeat("w"))).directive == "quiet"
    with pytest.raises(NotFound):
        await bench.service.fleet.direct("nobody", "quiet")
    with pytest.raises(InvalidRequest):
        await bench.service.fleet.direct("w", "dance")


class TestRetention:
    """Finished jobs are deleted after the period of their state."""

    @pytest.fixture
    def engine_settings(self) -> ServiceSettings:
        return ServiceSettings(
            retention=ServiceRetention(completed=DAY, cancelled=2 * DAY, discarded=3 * DAY, dead_letter=None)
        )

    async def test_each_state_has_its_own_period(self, bench: Bench) -> None:
        await bench.push("kept")
        await bench.push("cancelled")
        for type, exhaustion in (("discarded", "discard"), ("dead", "dead_letter")):
            await bench.push(type, retry={"max_attempts": 1, "on_exhaustion": exhaustion})
        await bench.push("done")
        kept, cancelled, discarded, dead, done = await bench.fetch(count=5)
        await bench.service.jobs.cancel(cancelled.id)
        await bench.fail(discarded)
        await bench.fail(dead)
        await bench.ack(done)
        left = []
        for _ in range(4):
            await bench.run(forget, None)
            left.append({job.type for job in (await bench.service.jobs.select(JobFilter())).jobs})
            bench.clock.advance(86_400.000001)
        assert left == [
            {"kept", "cancelled", "discarded", "dead", "done"},
            {"kept", "cancelled", "discarded", "dead"},
            {"kept", "discarded", "dead"},
            {"kept", "dead"},
        ]
        assert (await bench.find(kept)).state == "active"

    async def test_it_works_in_bounded_batches_and_keeps_the_counts(self, bench: Bench) -> None:
        await bench.service.jobs.enqueue([request() for _ in range(BATCH + 5)])
        for job in await bench.fetch(count=BATCH + 5):
            await bench.service.jobs.cancel(job.id)
        bench.clock.advance(3 * 86_400)
        assert (await bench.run(forget, None))["jobs"] == BATCH
        assert (await bench.service.jobs.count())["default"]["cancelled"] == 5
        assert (await bench.run(forget, None))["jobs"] == 5
        assert (await bench.run(forget, None))["jobs"] == 0
