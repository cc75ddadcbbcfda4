"""The end of attempts: acknowledged, failed, released, timed out or lost, and rejected reports."""

from __future__ import annotations

import asyncio

import pytest

from ojster.core.errors import Conflict, NotFound, OjsterError, PayloadTooLarge
from ojster.core.ids import new_id
from ojster.core.refusals import size_details
from ojster.fleet.workers import Heartbeat
from ojster.jobs.failure import Failure
from ojster.jobs.filter_walk import JobFilter
from ojster.jobs.messages import Acknowledgement, FailureReport, Progress, Release, hand_back
from ojster.jobs.scope import accepted
from tests.conftest import Bench, shown
from tests.waiting import LONG_WAIT, PATIENCE

pytestmark = pytest.mark.anyio


async def test_an_acknowledged_job_is_completed_with_its_result(bench: Bench) -> None:
    await bench.push()
    job = await bench.fetch_one()
    bench.clock.advance(2)
    await bench.ack(job, b'{"n": 1e3}')
    found = await bench.find(job)
    assert found.state == "completed"
    assert found.result == b'{"n": 1e3}'
    assert shown(found)["completed_at"].endswith("02.000000Z")


async def test_success_clears_the_error_but_not_the_history(bench: Bench) -> None:
    await bench.push()
    await bench.fail(await bench.fetch_one())
    await bench.run_due(after=10)
    await bench.ack(await bench.fetch_one())
    (job,) = (await bench.service.jobs.select(JobFilter())).jobs
    assert "error" not in shown(job)
    assert len(shown(job)["errors"]) == 1


async def test_a_failed_job_is_tried_again_after_its_delay(bench: Bench) -> None:
    await bench.push(retry={"max_attempts": 3, "initial_interval": "PT10S", "jitter": False})
    job = await bench.fail(await bench.fetch_one(), "net.reset")
    assert (job.state, job.attempt, job.retry_delay) == ("retryable", 1, 10_000_000)
    found = shown(await bench.find(job))
    assert found["error"]["type"] == "net.reset"
    assert found["next_attempt_at"] > found["created_at"]
    await bench.run_due(after=9.999)
    assert await bench.fetch() == []
    await bench.run_due(after=0.001)
    again = await bench.fetch_one()
    assert (again.id, again.attempt) == (job.id, 2)
    assert (await bench.fail(again)).retry_delay == 20_000_000


async def test_a_job_that_has_used_up_its_attempts_is_discarded(bench: Bench) -> None:
    await bench.push(retry={"max_attempts": 2})
    await bench.fail(await bench.fetch_one())
    await bench.run_due(after=10)
    job = await bench.fail(await bench.fetch_one())
    assert (job.state, job.dead) == ("discarded", 0)
    found = shown(await bench.find(job))
    assert [error["attempt"] for error in found["errors"]] == [1, 2]
    assert found["completed_at"] == found["discarded_at"]


async def test_a_job_with_no_attempts_at_all_runs_once(bench: Bench) -> None:
    await bench.push(retry={"max_attempts": 0})
    assert (await bench.fail(await bench.fetch_one())).state == "discarded"


@pytest.mark.parametrize(
    ("code", "state", "dead"),
    [("DISCARD", "discarded", 0), ("FAIL", "discarded", 0), ("DEAD_LETTER", "discarded", 1), ("RETRY", "retryable", 0)],
)
async def test_the_handlers_code_decides(bench: Bench, code: str, state: str, dead: int) -> None:
    await bench.push()
    job = await bench.fail(await bench.fetch_one(), code=code)
    assert (job.state, job.dead) == (state, dead)


async def test_only_the_newest_errors_are_kept(bench: Bench) -> None:
    await bench.push(retry={"max_attempts": 100, "max_interval": "PT1S"})
    for _ in range(40):
        job = await bench.fail(await bench.fetch_one())
        await bench.run_due(after=2)
    errors = shown(await bench.find(job))["errors"]
    assert [error["attempt"] for error in errors] == list(range(16, 41))


async def test_a_released_job_is_back_and_its_attempt_does_not_count(bench: Bench) -> None:
    await bench.push()
    job = await bench.fetch_one(worker_id="w")
    (released,) = await bench.service.jobs.release([Release(job.id, "w", 1)])
    assert accepted(released).state == "available"
    again = await bench.fetch_one()
    assert (again.id, again.attempt) == (job.id, 1)


async def test_a_job_released_with_a_delay_is_scheduled(bench: Bench) -> None:
    await bench.push()
    job = await bench.fetch_one()
    await bench.service.jobs.release([Release(job.id, delay=5_000_000)])
    assert (await bench.find(job)).state == "scheduled"
    await bench.run_due(after=5)
    assert (await bench.fetch_one()).attempt == 1


@pytest.mark.parametrize("kind", ["release", "fail", "acknowledge"])
async def test_a_report_that_is_sent_again_does_not_end_the_next_run_of_the_same_worker(
    bench: Bench, kind: str
) -> None:
    await bench.push(retry={"max_attempts": 3})
    job = await bench.fetch_one(worker_id="w")
    report = {
        "release": hand_back(job, "w"),
        "fail": FailureReport(job.id, Failure("UnknownJobType", "no"), "w", 1, started_at=job.started_at),
        "acknowledge": Acknowledgement(job.id, b"1", "w", 1, started_at=job.started_at),
    }[kind]
    send = getattr(bench.service.jobs, kind)
    first = report if kind != "acknowledge" else hand_back(job, "w")
    (ended,) = await getattr(bench.service.jobs, "release" if kind == "acknowledge" else kind)([first])
    accepted(ended)
    await bench.run_due(after=10)
    again = await bench.fetch_one(worker_id="w")
    assert (again.id, again.attempt) == (job.id, job.attempt)
    (refused,) = await send([report])
    assert isinstance(refused, Conflict)
    assert "another one has begun" in refused.message
    assert (await bench.find(job)).state == "active"
    await bench.ack(again)


async def refusal_of(bench: Bench, ack: Acknowledgement) -> OjsterError:
    (result,) = await bench.service.jobs.acknowledge([ack])
    assert isinstance(result, OjsterError)
    return result


async def test_a_stale_acknowledgement_changes_nothing(bench: Bench) -> None:
    await bench.push()
    job = await bench.fetch_one(worker_id="w1", lease=1_000_000)
    await bench.run_due(after=1)
    again = await bench.fetch_one(worker_id="w2")
    for stale in (
        Acknowledgement(job.id, b"1", "w1", 1),
        Acknowledgement(job.id, b"1", "w1"),
        Acknowledgement(job.id, b"1", None, 1),
        Acknowledgement(job.id, b"1", "w2", 1),
        Acknowledgement(job.id, b"1", "w1", 2),
    ):
        assert isinstance(await refusal_of(bench, stale), Conflict)
    found = await bench.find(job)
    assert (found.state, found.worker_id, found.attempt, found.result) == ("active", "w2", 2, None)
    await bench.ack(again)


async def test_a_job_is_acknowledged_once(bench: Bench) -> None:
    await bench.push()
    job = await bench.fetch_one()
    results = await bench.service.jobs.acknowledge([Acknowledgement(job.id, b"1"), Acknowledgement(job.id, b"2")])
    assert isinstance(results[1], Conflict)
    assert (await bench.find(job)).result == b"1"


async def test_a_refused_acknowledgement_does_not_harm_its_neighbours(bench: Bench) -> None:
    for _ in range(2):
        await bench.push()
    first, second = await bench.fetch(count=2)
    missing = new_id()
    results = await bench.service.jobs.acknowledge([Acknowledgement(id) for id in (first.id, missing, second.id)])
    assert isinstance(results[1], NotFound)
    assert (await bench.find(second)).state == "completed"


async def test_a_result_that_is_too_large_is_refused_and_the_job_stays(bench: Bench) -> None:
    await bench.push()
    job = await bench.fetch_one()
    refusal = await refusal_of(bench, Acknowledgement(job.id, b'"' + b"x" * 1_048_576 + b'"'))
    assert isinstance(refusal, PayloadTooLarge)
    assert refusal.details == size_details(1_048_576, 1_048_578, "result")
    assert (await bench.find(job)).state == "active"


async def test_a_lease_that_ends_spends_an_attempt(bench: Bench) -> None:
    await bench.push(visibility_timeout_ms=3000, retry={"max_attempts": 2})
    job = await bench.fetch_one()
    await bench.run_due(after=2.999)
    assert (await bench.find(job)).state == "active"
    await bench.run_due(after=0.001)
    found = shown(await bench.find(job))
    assert (found["state"], found["attempt"], found["errors"][0]["type"]) == ("available", 1, "visibility_timeout")
    await bench.fetch_one()
    await bench.run_due(after=3)
    assert (await bench.find(job)).state == "discarded"


async def test_the_jobs_own_lease_goes_before_the_workers(bench: Bench) -> None:
    await bench.push(visibility_timeout_ms=60_000)
    job = await bench.fetch_one(lease=1_000_000)
    await bench.run_due(after=30)
    assert (await bench.find(job)).state == "active"


async def test_a_heartbeat_extends_the_lease(bench: Bench) -> None:
    await bench.push(visibility_timeout_ms=3000)
    job = await bench.fetch_one(worker_id="w")
    for _ in range(5):
        bench.clock.advance(2)
        pulse = await bench.service.fleet.beat(Heartbeat("w", (job.id,)))
        assert pulse.extended == [job.id]
        await bench.run_due()
    assert (await bench.find(job)).state == "active"


async def test_a_job_that_runs_longer_than_its_timeout_fails_in_spite_of_heartbeats(bench: Bench) -> None:
    await bench.push(timeout_ms=5000, visibility_timeout_ms=3000)
    job = await bench.fetch_one(worker_id="w")
    bench.clock.advance(2)
    await bench.service.fleet.beat(Heartbeat("w", (job.id,)))
    bench.clock.advance(2)
    await bench.service.fleet.beat(Heartbeat("w", (job.id,)))
    await bench.run_due(after=1)
    found = shown(await bench.find(job))
    assert (found["state"], found["error"]["type"]) == ("retryable", "timeout")


async def test_a_heartbeat_tells_of_cancelled_and_lost_jobs(bench: Bench) -> None:
    for _ in range(3):
        await bench.push()
    mine, cancelled, lost = await bench.fetch(count=3, worker_id="w", lease=1_000_000)
    await bench.service.jobs.cancel(cancelled.id)
    await bench.service.jobs.release([Release(lost.id, "w")])
    await bench.fetch_one(worker_id="other")
    unknown = new_id()
    pulse = await bench.service.fleet.beat(Heartbeat("w", (mine.id, cancelled.id, lost.id, unknown)))
    assert (pulse.extended, pulse.cancelled, pulse.lost) == ([mine.id], [cancelled.id], [lost.id, unknown])


async def test_progress_is_kept_and_only_its_worker_may_report_it(bench: Bench) -> None:
    await bench.push()
    job = await bench.fetch_one(worker_id="w")
    await bench.service.jobs.report(Progress(job.id, 0.5, "half", "w", 1))
    assert shown(await bench.find(job))["progress"]["progress"] == 0.5
    with pytest.raises(Conflict):
        await bench.service.jobs.report(Progress(job.id, 0.9, None, "other", 1))


async def test_wait_for_returns_when_the_job_finishes(bench: Bench) -> None:
    await bench.push()
    job = await bench.fetch_one()
    waiting = asyncio.create_task(bench.service.jobs.wait_for(job.id, LONG_WAIT))
    await asyncio.sleep(0.01)
    await bench.ack(job, b"42")
    assert (await asyncio.wait_for(waiting, PATIENCE)).result == b"42"


async def test_wait_for_returns_the_unfinished_job_after_the_timeout(bench: Bench) -> None:
    job = await bench.push()
    assert (await bench.service.jobs.wait_for(job.id, 0.01)).state == "available"
    with pytest.raises(NotFound):
        await bench.service.jobs.wait_for(new_id(), 0.01)


async def test_a_discarded_job_runs_again_by_hand_as_if_it_were_new(bench: Bench) -> None:
    await bench.push(retry={"max_attempts": 1, "on_exhaustion": "dead_letter"})
    job = await bench.fail(await bench.fetch_one())
    again = await bench.service.jobs.retry_dead(job.id)
    assert (again.state, again.attempt, again.errors, again.dead) == ("available", 0, job.errors, 0)
    assert (await bench.fetch_one()).attempt == 1
    with pytest.raises(Conflict):
        await bench.service.jobs.retry_dead(job.id)


async def test_only_dead_letters_are_listed_as_such(bench: Bench) -> None:
    await bench.push("dead", retry={"max_attempts": 1, "on_exhaustion": "dead_letter"})
    await bench.push("gone", retry={"max_attempts": 1})
    for job in await bench.fetch(count=2):
        await bench.fail(job)
    page = await bench.service.jobs.select(JobFilter(dead=True))
    assert [job.type for job in page.jobs] == ["dead"]
    await bench.service.jobs.delete_dead(page.jobs[0].id)
    assert (await bench.service.jobs.select(JobFilter(dead=True))).total == 0
    with pytest.raises(NotFound):
        await bench.find(page.jobs[0])
