"""What the events of a job say, member by member."""

from __future__ import annotations

from typing import Any

import pytest

from ojster.core.events import EventFilter
from ojster.core.job import Job
from ojster.events import log
from ojster.jobs.failure import Failure
from ojster.jobs.interventions import Cancellation, cancel
from ojster.jobs.messages import FailureReport, Release
from ojster.jobs.transitions import MAX_ERROR_TYPE_LENGTH
from tests.conftest import Bench

pytestmark = pytest.mark.anyio

AT = "2027-01-15T08:00:0{}.000000Z"


async def said(bench: Bench, job: Job) -> list[tuple[str, dict[str, Any]]]:
    """Return the type of each event of a job, and what it says beside the job and its transition."""
    page = await bench.service.events.select(EventFilter(limit=1_000))
    common = {"job_id", "job_type", "queue", "from", "to"}
    return [
        (event["type"], {name: value for name, value in event["data"].items() if name not in common})
        for event in page.events
        if event["data"].get("job_id") == job.id
    ]


async def since(bench: Bench, job: Job, type: str) -> list[tuple[str, dict[str, Any]]]:
    found = await said(bench, job)
    return found[[name for name, _ in found].index(type) :]


async def test_a_failed_attempt_says_why_how_long_it_ran_and_when_the_next_one_is(bench: Bench) -> None:
    job = await bench.push(retry={"max_attempts": 2, "initial_interval": "PT2S", "jitter": False})
    held = await bench.fetch_one(worker_id="w")
    bench.clock.advance(1)
    await bench.fail(held, "Broken", "C")
    error = {"type": "Broken", "message": "it failed", "code": "C", "retryable": True}
    failed, retrying = await since(bench, job, "job.failed")
    assert failed == ("job.failed", {"attempt": 1, "max_attempts": 2, "error": error, "duration_ms": 1_000})
    assert retrying == (
        "job.retrying",
        {"attempt": 1, "max_attempts": 2, "delay_ms": 2_000, "next_retry_at": AT.format(3), "error": error},
    )


async def test_the_last_failure_is_followed_by_the_end(bench: Bench) -> None:
    job = await bench.push(retry={"max_attempts": 1, "on_exhaustion": "dead_letter"})
    held = await bench.fetch_one(worker_id="w")
    bench.clock.advance(2)
    await bench.fail(held, "Broken", retryable=False)
    error = {"type": "Broken", "message": "it failed", "code": "handler_error", "retryable": False}
    _, discarded, added = await since(bench, job, "job.failed")
    assert discarded == (
        "job.discarded",
        {
            "attempt": 1, "error": error, "dead_letter": True, "total_attempts": 1, "last_error": error,
            "duration_ms": 2_000,
        },
    )  # fmt: skip
    assert added == ("dead_letter.added", {"attempt": 1, "error": error})


async def test_a_job_that_is_no_dead_letter_says_so(bench: Bench) -> None:
    job = await bench.push(retry={"max_attempts": 1})
    await bench.fail(await bench.fetch_one())
    found = await since(bench, job, "job.discarded")
    assert [(type, data["dead_letter"]) for type, data in found] == [("job.discarded", False)]


@pytest.mark.parametrize(
    ("forbidden", "retryable", "expected"),
    [([], None, True), ([], True, True), ([], False, False), (["Broken"], None, False), (["Other"], None, True)],
)
async def test_an_event_says_whether_its_error_may_be_retried(
    bench: Bench, forbidden: list[str], retryable: bool | None, expected: bool
) -> None:
    job = await bench.push(retry={"non_retryable_errors": forbidden})
    await bench.fail(await bench.fetch_one(), "Broken", retryable=retryable)
    (_, data), *_ = await since(bench, job, "job.failed")
    assert data["error"]["retryable"] is expected


async def test_a_completed_job_says_how_long_it_ran(bench: Bench) -> None:
    job = await bench.push()
    held = await bench.fetch_one()
    bench.clock.advance(1.5)
    await bench.ack(held)
    assert (await since(bench, job, "job.completed"))[0][1] == {"attempt": 1, "duration_ms": 1_500}


async def test_a_cancelled_job_says_what_it_was_who_cancelled_it_and_how_long_it_ran(bench: Bench) -> None:
    waiting, running = await bench.push(queue="q"), await bench.push()
    await bench.fetch_one()
    bench.clock.advance(1)
    await bench.service.jobs.cancel(waiting.id)
    await bench.run(cancel, Cancellation(running.id, "ada"))
    assert await since(bench, waiting, "job.cancelled") == [("job.cancelled", {"previous_state": "available"})]
    assert await since(bench, running, "job.cancelled") == [
        ("job.cancelled", {"previous_state": "active", "cancelled_by": "ada", "duration_ms": 1_000})
    ]


async def test_an_adjusted_job_says_both_priorities(bench: Bench) -> None:
    job = await bench.push(priority=5)
    await bench.service.jobs.adjust_priority(job.id, 3)
    await bench.service.jobs.adjust_priority(job.id, -1)
    assert await since(bench, job, "job.adjusted") == [
        ("job.adjusted", {"priority": 8, "previous_priority": 5, "priority_adjustment": 3}),
        ("job.adjusted", {"priority": 4, "previous_priority": 8, "priority_adjustment": -1}),
    ]


async def test_a_dead_letter_says_that_it_runs_again_or_is_deleted(bench: Bench) -> None:
    job = await bench.push(retry={"max_attempts": 1, "on_exhaustion": "dead_letter"})
    await bench.fail(await bench.fetch_one())
    await bench.service.jobs.retry_dead(job.id)
    await bench.fail(await bench.fetch_one())
    await bench.service.jobs.delete_dead(job.id)
    types = [type for type, _ in await said(bench, job)]
    assert [type for type in types if type.startswith("dead_letter.")] == [
        "dead_letter.added", "dead_letter.retried", "dead_letter.added", "dead_letter.deleted",
    ]  # fmt: skip


async def test_a_discarded_job_that_is_no_dead_letter_runs_again_and_goes_without_a_word(bench: Bench) -> None:
    job = await bench.push(retry={"max_attempts": 1})
    await bench.fail(await bench.fetch_one())
    await bench.service.jobs.retry_dead(job.id)
    await bench.fail(await bench.fetch_one())
    await bench.service.jobs.delete_dead(job.id)
    assert not [type for type, _ in await said(bench, job) if type.startswith("dead_letter.")]


async def test_a_released_job_is_enqueued_or_scheduled_again(bench: Bench) -> None:
    job = await bench.push()
    held = await bench.fetch_one(worker_id="w")
    await bench.service.jobs.release([Release(held.id, "w", 1)])
    held = await bench.fetch_one(worker_id="w")
    await bench.service.jobs.release([Release(held.id, "w", 1, delay=2_000_000)])
    types = [(type, data.get("scheduled_at")) for type, data in await said(bench, job)]
    assert [one for one in types if one[0] in ("job.enqueued", "job.scheduled")] == [
        ("job.enqueued", None), ("job.enqueued", None), ("job.scheduled", AT.format(2)),
    ]  # fmt: skip


async def test_a_long_message_is_cut_in_events_and_a_long_type_where_it_is_searched(bench: Bench) -> None:
    job = await bench.push()
    held = await bench.fetch_one()
    failure = Failure("T\0" + "t" * 600, "m" * 1_001)
    await bench.service.jobs.fail([FailureReport(held.id, failure, held.worker_id, held.attempt)])
    (_, data), *_ = await since(bench, job, "job.failed")
    assert data["error"]["message"] == "m" * 1_000
    assert (await bench.find(job)).error_type == "T" + "t" * (MAX_ERROR_TYPE_LENGTH - 1)


async def test_a_job_that_is_cancelled_while_it_waits_for_its_retry_did_not_run_meanwhile(bench: Bench) -> None:
    job = await bench.push()
    await bench.fail(await bench.fetch_one())
    bench.clock.advance(0.1)
    await bench.service.jobs.cancel(job.id)
    assert await since(bench, job, "job.cancelled") == [("job.cancelled", {"previous_state": "retryable"})]


class Comparisons(tuple[str, ...]):
    """Types of events that count how many events are compared with them."""

    number = 0

    def __contains__(self, type: object) -> bool:
        Comparisons.number += 1
        return super().__contains__(type)


async def test_a_search_compares_each_event_once(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "MAX_BATCHES_PER_READ", 2)
    for _ in range(9):
        await bench.push()
    await bench.fetch_one()
    every = (await bench.service.events.select(EventFilter(limit=1_000))).events
    Comparisons.number = 0
    page = await bench.service.events.select(EventFilter(types=Comparisons(["job.started"])))
    assert [event["type"] for event in page.events] == ["job.started"]
    assert (Comparisons.number, page.has_more) == (len(every), False)
