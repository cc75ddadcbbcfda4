"""Ends of attempts that are neither a success nor a failure: no handler, a hold, a wait that is over."""

from __future__ import annotations

import pytest

from ojster.jobs.completion import UNKNOWN_TYPE, UNKNOWN_TYPE_DELAY
from ojster.jobs.failure import Failure
from ojster.jobs.messages import FailureReport, Release
from tests.conftest import START, Bench
from tests.workflows.bench import WorkflowBench, chain, job

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("type", "code", "message", "retryable", "state"),
    [
        (UNKNOWN_TYPE, "C", "no", None, "scheduled"),
        ("E", "handler_not_found", "no", None, "scheduled"),
        ("E", "C", "No handler registered for job type a", False, "scheduled"),
        ("E", "C", "no handler registered for job type a", None, "retryable"),
        ("E", "C", "no handler registered for job type a", True, "retryable"),
        ("E", "C", "there is no handler registered for job type a", False, "discarded"),
    ],
)
async def test_a_worker_without_a_handler_leaves_the_job_to_others(
    bench: Bench, type: str, code: str, message: str, retryable: bool | None, state: str
) -> None:
    await bench.push("a")
    held = await bench.fetch_one(worker_id="w")
    failure = Failure(type, message, code, retryable)
    await bench.service.jobs.fail([FailureReport(held.id, failure, "w", 1)])
    found = await bench.find(held)
    assert found.state == state
    if state == "scheduled":
        assert (found.attempt, found.due_at, found.worker_id) == (0, START + UNKNOWN_TYPE_DELAY, None)


async def test_a_held_job_keeps_no_other_from_becoming_available(flow: WorkflowBench) -> None:
    retry = {"initial_interval": "PT1S", "jitter": False}
    await flow.create(chain(job("a", options={"retry": retry})))
    plain = await flow.push("plain", retry=retry)
    jobs = await flow.take(2)
    for one in jobs:
        await flow.fail(one)
    await flow.service.workflows.hold(flow.id)
    await flow.run_due(2)
    states = {one.type: (await flow.find(one)).state for one in jobs}
    assert states["plain"] == "available"
    assert states["a"] != "available"
    assert (await flow.fetch_one()).id == plain.id


async def test_a_job_is_released_at_a_time_or_after_a_delay(bench: Bench) -> None:
    for number, (release, due_at) in enumerate(
        (
            (Release("", delay=5_000_000), START + 5_000_000),
            (Release("", not_before=START + 7_000_000), START + 7_000_000),
            (Release("", delay=5_000_000, not_before=START + 7_000_000), START + 7_000_000),
            (Release("", not_before=START), None),
            (Release("", not_before=START - 1), None),
            (Release(""), None),
        )
    ):
        queue = f"q{number}"
        await bench.push(queue=queue)
        held = await bench.fetch_one(queue, worker_id="w")
        await bench.service.jobs.release([Release(held.id, "w", 1, release.delay, not_before=release.not_before)])
        found = await bench.find(held)
        assert (found.state, found.due_at) == ("available" if due_at is None else "scheduled", due_at), number
        assert (found.attempt, found.worker_id) == (0, None)


async def test_jobs_that_are_released_together_are_told_apart(bench: Bench) -> None:
    for _ in range(3):
        await bench.push()
    one, two, three = await bench.fetch(count=3, worker_id="w")
    results = await bench.service.jobs.release(
        [Release(one.id, "w", 1), Release(two.id, "x", 1), Release(three.id, "w", 1, 1_000_000)]
    )
    assert [(getattr(result, "state", None)) for result in results] == ["available", None, "scheduled"]
    assert (await bench.find(two)).state == "active"
