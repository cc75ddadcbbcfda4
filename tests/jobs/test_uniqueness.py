"""Unique jobs: conflict strategies, states, periods, and concurrent pushes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ojster.core.errors import Duplicate
from ojster.core.job import Job
from ojster.core.refusals import JobTypeNotAllowed
from ojster.queues.wire import QueueConfigBody
from tests.conftest import Bench, request
from tests.jobs.test_transitions import make

pytestmark = pytest.mark.anyio


async def push(bench: Bench, *args: Any, **unique: Any) -> Job:
    return await bench.push("u", *args, unique={"keys": ["type", "args"], **unique})


async def end(bench: Bench, job: Job, state: str) -> None:
    """Let the only job end in a state."""
    if state == "cancelled":
        await bench.service.jobs.cancel(job.id)
    elif state == "completed":
        await bench.ack(await bench.fetch_one())
    else:
        await bench.fail(await bench.fetch_one(), code="DISCARD")


async def test_a_duplicate_is_rejected_with_the_id_of_the_existing_job(bench: Bench) -> None:
    first = await push(bench, 1)
    with pytest.raises(Duplicate) as refusal:
        await push(bench, 1)
    assert refusal.value.details["existing_job_id"] == first.id
    assert refusal.value.details["existing_job_state"] == "available"
    await push(bench, 2)


async def test_a_duplicate_is_ignored_and_the_first_returned(bench: Bench) -> None:
    first = await push(bench, 1)
    (pushed,) = await bench.service.jobs.enqueue([request("u", 1, unique={"keys": ["args"], "on_conflict": "ignore"})])
    assert pushed.existing
    assert pushed.job.id == first.id
    assert pushed.job.args == [1]


@pytest.mark.parametrize("fetched", [False, True])
async def test_a_duplicate_replaces_the_first_even_while_it_runs(bench: Bench, fetched: bool) -> None:
    first = await push(bench, 1)
    if fetched:
        await bench.fetch_one()
    second = await push(bench, 1, on_conflict="replace")
    assert (await bench.find(first)).state == "cancelled"
    assert (await bench.find(second)).state == "available"


@pytest.mark.parametrize("state", ["completed", "cancelled", "discarded"])
async def test_finished_jobs_that_count_are_left_alone_by_the_one_that_replaces_them(bench: Bench, state: str) -> None:
    first = await push(bench, 1)
    await end(bench, first, state)
    states = [state, "available"]
    second = await push(bench, 1, on_conflict="replace", states=states)
    third = await push(bench, 1, on_conflict="replace", states=states)
    assert [(await bench.find(job)).state for job in (first, second, third)] == [state, "cancelled", "available"]


@pytest.mark.parametrize("on_conflict", ["replace", "replace_except_schedule"])
async def test_a_push_that_is_refused_replaces_nothing(bench: Bench, on_conflict: str) -> None:
    await bench.service.queues.configure("choosy", QueueConfigBody(allowed_job_types=["other.*"]))
    first = await push(bench, 1)
    with pytest.raises(JobTypeNotAllowed):
        await bench.push("u", 1, queue="choosy", unique={"keys": ["type", "args"], "on_conflict": on_conflict})
    assert (await bench.find(first)).state == "available"


async def test_a_replaced_schedule_is_kept_if_that_is_asked_for(bench: Bench) -> None:
    policy = {"keys": ["type"], "on_conflict": "replace_except_schedule"}
    first = await bench.push("u", 1, unique=policy, scheduled_at="+PT1H")
    second = await bench.push("u", 2, unique=policy, scheduled_at="+PT5H")
    assert (await bench.find(first)).state == "cancelled"
    assert (second.state, second.due_at, second.args) == ("scheduled", first.due_at, [2])


@pytest.mark.parametrize("state", ["completed", "cancelled", "discarded"])
async def test_by_default_finished_jobs_do_not_count(bench: Bench, state: str) -> None:
    job = await push(bench, 1)
    await end(bench, job, state)
    await push(bench, 1)


async def test_the_chosen_states_count(bench: Bench) -> None:
    await push(bench, 1)
    await bench.ack(await bench.fetch_one())
    await push(bench, 1, states=["available"])
    with pytest.raises(Duplicate):
        await push(bench, 1, states=["completed"])


async def test_a_job_that_waits_for_its_retry_counts(bench: Bench) -> None:
    await push(bench, 1)
    await bench.fail(await bench.fetch_one())
    with pytest.raises(Duplicate):
        await push(bench, 1)


async def test_a_period_ends(bench: Bench) -> None:
    await push(bench, 1)
    bench.clock.advance(1.999)
    with pytest.raises(Duplicate):
        await push(bench, 1, period="PT2S")
    bench.clock.advance(0.001)
    await push(bench, 1, period="PT2S")


async def test_the_queue_is_no_part_of_it_unless_it_is_named(bench: Bench) -> None:
    await bench.push("u", unique={"keys": ["type"]}, queue="a")
    with pytest.raises(Duplicate):
        await bench.push("u", unique={"keys": ["type"]}, queue="b")
    await bench.push("u", unique={"keys": ["type", "queue"]}, queue="b")


async def test_of_many_at_once_one_gets_in(bench: Bench) -> None:
    results = await asyncio.gather(*(push(bench, 1) for _ in range(50)), return_exceptions=True)
    assert sum(isinstance(result, Job) for result in results) == 1
    assert sum(isinstance(result, Duplicate) for result in results) == 49


async def test_of_many_that_replace_each_other_one_is_left(bench: Bench) -> None:
    jobs = await asyncio.gather(*(push(bench, 1, on_conflict="replace") for _ in range(20)))
    states = [(await bench.find(job)).state for job in jobs]
    assert sorted(states) == ["available"] + ["cancelled"] * 19


async def test_a_batch_with_a_duplicate_leaves_no_trace(bench: Bench) -> None:
    unique = {"keys": ["args"]}
    victim = await bench.push("victim", 1, unique=unique)
    batch = [
        request("a", 1, unique=unique),
        request("victim", 1, unique={"keys": ["args"], "on_conflict": "replace"}),
        request("a", 1, unique=unique),
    ]
    with pytest.raises(Duplicate) as refusal:
        await bench.service.jobs.enqueue(batch)
    assert refusal.value.details["index"] == 2
    assert (await bench.find(victim)).state == "available"
    assert await bench.service.jobs.count() == {"default": {"available": 1}}
    assert (await bench.events()) == ["job.enqueued"]


async def test_uniqueness_is_looked_at_only_when_a_job_is_pushed(bench: Bench) -> None:
    from ojster.core.states import JobState

    job = await make(bench, JobState.RETRYABLE)
    await bench.run_due(after=10)
    assert (await bench.find(job)).state == "available"
