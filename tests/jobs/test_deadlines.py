"""Limits of a whole job: how long it may wait for its first start, and how long it may take in all."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from ojster.core.errors import InvalidRequest
from ojster.core.job import Job
from ojster.fleet.workers import Heartbeat
from ojster.jobs.claim_policy import Claim
from ojster.jobs.interventions import retry
from ojster.jobs.new_job import read_job
from ojster.jobs.push import push
from ojster.service import Service
from ojster.worker.worker import DEFAULT_LEASE
from tests.conftest import Bench, Http, request

pytestmark = pytest.mark.anyio

RETRY = {"max_attempts": 10, "initial_interval": "PT10S", "backoff_strategy": "constant", "jitter": False}


def last_error(job: Job) -> dict[str, Any]:
    assert job.errors is not None
    errors: list[dict[str, Any]] = msgspec.json.decode(job.errors)
    return errors[-1]


@pytest.mark.parametrize("state", ["available", "scheduled", "pending"])
async def test_a_job_that_waits_too_long_for_its_start_is_discarded(bench: Bench, state: str) -> None:
    every: dict[str, dict[str, Any]] = {
        "available": {},
        "scheduled": {"scheduled_at": "+PT400S"},
        "pending": {"pending": True},
    }
    options = every[state]
    job = await bench.push(enqueue_ttl=300, **options)
    await bench.run_due(299)
    assert (await bench.find(job)).state == state
    assert job.expires_at is not None
    await bench.run_due(1 if state != "scheduled" else 101)
    found = await bench.find(job)
    error = last_error(found)
    assert found.state == "discarded"
    assert (error["type"], error["timeout_kind"], error["limit_seconds"]) == (
        "enqueue_ttl_expired",
        "enqueue_ttl",
        300,
    )
    assert error["elapsed_seconds"] >= 300
    assert {"job.ttl_expired", "job.expired"} <= set(await bench.events())


async def test_the_limit_of_the_wait_ends_with_the_first_start(bench: Bench) -> None:
    job = await bench.push(enqueue_ttl=30, retry=RETRY)
    taken = await bench.fetch_one()
    await bench.run_due(29)
    await bench.fail(taken)
    await bench.run_due(100)
    found = await bench.find(job)
    assert (found.state, found.expires_at) == ("available", None)
    assert (await bench.fetch_one()).id == job.id


async def test_expires_at_holds_beside_a_limit_of_the_wait(bench: Bench) -> None:
    job = await bench.push(enqueue_ttl=30, expires_at="+PT60S", retry=RETRY)
    await bench.fail(await bench.fetch_one())
    await bench.run_due(10)
    assert (await bench.find(job)).state == "available"
    await bench.run_due(50)
    found = await bench.find(job)
    assert (found.state, last_error(found)["type"]) == ("discarded", "expired")
    assert last_error(found)["message"] == "No attempt may start after the job's 'expires_at'."  # one has started


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        ({"enqueue_ttl": 30}, "enqueue_ttl_expired"),
        ({"total_timeout": 30}, "total_timeout"),
        ({"enqueue_ttl": 30, "total_timeout": 40}, "enqueue_ttl_expired"),
        ({"enqueue_ttl": 40, "total_timeout": 30}, "total_timeout"),
        ({"enqueue_ttl": 40, "expires_at": "+PT30S"}, "expired"),
        ({"enqueue_ttl": 30, "expires_at": "+PT40S"}, "enqueue_ttl_expired"),
        ({"expires_at": "+PT30S"}, "expired"),
    ],
)
@pytest.mark.parametrize("late", [0, 20_000, 15_000_000])
@pytest.mark.parametrize("since", [0.0, 60.0])
async def test_the_earliest_limit_is_the_reason_however_late_the_job_was_created(
    bench: Bench, limits: dict[str, Any], reason: str, late: int, since: float
) -> None:
    """The limits count from the request; its transaction comes later, in microseconds."""
    new = read_job(request(**limits), bench.clock.now, largest=100_000)
    bench.clock.now += late
    pushed = await bench.run(push, [new])
    assert isinstance(pushed, list)
    await bench.run_due(30 - late / 1e6 + since)
    error = last_error(await bench.find(pushed[0].job))
    assert error["type"] == reason
    assert error.get("elapsed_seconds", 30) >= error.get("limit_seconds", 30)


async def test_a_running_attempt_ends_with_the_total_time_of_its_job(bench: Bench) -> None:
    job = await bench.push(total_timeout=100, timeout=60, retry=RETRY)
    await bench.run_due(80)
    taken = await bench.fetch_one(worker_id="w", lease=round(DEFAULT_LEASE * 1e6))
    assert taken.due_at is not None
    await bench.run_due(19)
    assert (await bench.find(job)).state == "active"
    await bench.run_due(1)
    found = await bench.find(job)
    error = last_error(found)
    assert (found.state, error["type"], error["timeout_kind"], error["attempt"]) == (
        "discarded",
        "total_timeout",
        "total",
        1,
    )
    assert (error["limit_seconds"], error["elapsed_seconds"]) == (100, 100)
    assert "job.total_timeout" in await bench.events()


async def test_heartbeats_do_not_extend_a_lease_beyond_the_total_time(bench: Bench, service: Service) -> None:
    job = await bench.push(total_timeout=100)
    await bench.fetch_one(worker_id="w")
    bench.clock.advance(90)
    await service.fleet.beat(Heartbeat("w", (job.id,), 60_000_000))
    await bench.run_due(10)
    assert (await bench.find(job)).state == "discarded"


async def test_a_retry_that_could_not_complete_in_time_is_not_made(bench: Bench) -> None:
    for timeout, state in ((85, "retryable"), (95, "discarded")):
        job = await bench.push(total_timeout=100, timeout=timeout, retry=RETRY)
        await bench.fail(await bench.fetch_one())
        assert (await bench.find(job)).state == state


@pytest.mark.parametrize("number", [0.0, 0.999])
async def test_a_retry_that_is_made_is_in_time_whatever_its_jitter(
    bench: Bench, number: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ojster.jobs.transitions.random.random", lambda: number)  # delays of 45 and 135 seconds
    await bench.push(total_timeout=100, retry=RETRY | {"initial_interval": "PT90S", "jitter": True})
    failed = await bench.fail(await bench.fetch_one())
    assert failed.state == ("retryable" if number == 0.0 else "discarded")


async def test_the_delay_after_deaths_of_workers_is_in_time(bench: Bench) -> None:
    job = await bench.push(total_timeout=100)
    states = []
    for after in (97, 2.6):
        bench.clock.advance(after)
        await bench.service.fleet.beat(Heartbeat("w"))
        await bench.fetch_one(worker_id="w")
        await bench.service.fleet.leave("w", lost=True)
        states.append((await bench.find(job)).state)
    assert states == ["available", "discarded"], "the delay after the second death is at least half a second"


async def test_a_job_waits_for_a_retry_no_longer_than_its_total_time(bench: Bench) -> None:
    job = await bench.push(total_timeout=100, retry=RETRY)
    bench.clock.advance(89)
    await bench.fail(await bench.fetch_one())
    await bench.run_due(20)
    found = await bench.find(job)
    assert (found.state, last_error(found)["type"]) == ("discarded", "total_timeout")


async def test_a_dead_letter_that_is_run_again_has_no_deadline(bench: Bench, service: Service) -> None:
    job = await bench.push(total_timeout=100, retry={"max_attempts": 1, "on_exhaustion": "dead_letter"})
    await bench.fetch_one()
    await bench.run_due(100)
    (again,) = await service.database.run_many(retry, [job.id])
    assert isinstance(again, Job)
    await bench.fetch_one()
    await bench.run_due(100)
    assert (await bench.find(job)).state == "active"


async def test_both_are_shown_with_the_job_and_checked(http: Http, bench: Bench) -> None:
    given = {"type": "a", "args": [], "timeout": 60, "total_timeout": 86400, "enqueue_ttl": 300}
    created = await http("POST", "/ojs/v1/jobs", given)
    shown = (await http("GET", f"/ojs/v1/jobs/{created.json()['job']['id']}")).json()["job"]
    assert (shown["total_timeout"], shown["enqueue_ttl"]) == (86400, 300)
    for wrong in ({"total_timeout": 59}, {"enqueue_ttl": -1}, {"enqueue_ttl": "5m"}, {"total_timeout": 1.5}):
        answer = await http("POST", "/ojs/v1/jobs", given | wrong)
        assert answer.status_code == 400, wrong
        assert next(iter(wrong)) in answer.json()["error"]["message"]


async def test_a_timeout_says_how_long_the_attempt_took(bench: Bench) -> None:
    job = await bench.push(timeout=30, retry=RETRY)
    await bench.fetch_one()
    await bench.run_due(30)
    error = last_error(await bench.find(job))
    assert (error["type"], error["timeout_kind"], error["limit_seconds"], error["elapsed_seconds"]) == (
        "timeout",
        "execution",
        30,
        30,
    )
    assert "job.timeout" in await bench.events()


async def test_a_claim_of_many_jobs_with_limits_starts_them_all(bench: Bench, service: Service) -> None:
    ids = {(await bench.push(enqueue_ttl=10, total_timeout=50)).id for _ in range(5)} | {(await bench.push()).id}
    jobs = await service.jobs.fetch(Claim(("default",), 10))
    assert {job.id for job in jobs} == ids
    await bench.run_due(20)
    assert {(await bench.find(id)).state for id in ids} == {"active"}


def test_the_python_option_is_seconds() -> None:
    from ojster import App, JobOptions

    assert JobOptions(total_timeout=2.5).to_wire() == b'{"total_timeout_ms":2500}'
    app = App("sqlite:///:memory:")

    @app.job("slow", timeout=5, total_timeout=3)
    def slow() -> None: ...

    with pytest.raises(InvalidRequest, match="must not be shorter than timeout"):
        slow.enqueue()
    app.close()
