"""State transitions: each operation runs on a job in each state, and only the transitions of the table occur."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from ojster.core.errors import OjsterError
from ojster.core.job import Job
from ojster.core.states import FINISHED, JOB_STATES, JobState
from ojster.jobs.envelope import to_json
from ojster.jobs.failure import Failure
from ojster.jobs.messages import Acknowledgement, FailureReport, Release
from tests.conftest import Bench

pytestmark = pytest.mark.anyio

FAILURE = Failure("X", "failed")


async def make(bench: Bench, state: JobState) -> Job:
    """Push a job and bring it into `state` with the engine's own operations."""
    match state:
        case JobState.SCHEDULED:
            return await bench.push(scheduled_at="+PT1H")
        case JobState.PENDING:
            return await bench.push(pending=True)
        case JobState.AVAILABLE:
            return await bench.push()
        case JobState.CANCELLED:
            return (await bench.engine.jobs.cancel((await bench.push()).id)).job
    await bench.push(retry={"max_attempts": 1 if state == JobState.DISCARDED else 3, "on_exhaustion": "dead_letter"})
    job = await bench.fetch_one(worker_id="w")
    match state:
        case JobState.ACTIVE:
            return job
        case JobState.COMPLETED:
            return await bench.ack(job)
        case _:
            return await bench.fail(job)


Act = Callable[[Bench, Job], Awaitable[object]]

ACTS: dict[str, tuple[Act, dict[JobState, JobState]]] = {
    "acknowledge": (
        lambda bench, job: bench.engine.jobs.acknowledge([Acknowledgement(job.id)]),
        {JobState.ACTIVE: JobState.COMPLETED},
    ),
    "fail": (
        lambda bench, job: bench.engine.jobs.fail([FailureReport(job.id, FAILURE)]),
        {JobState.ACTIVE: JobState.RETRYABLE},
    ),
    "discard": (
        lambda bench, job: bench.engine.jobs.fail([FailureReport(job.id, Failure("X", "failed", "DISCARD"))]),
        {JobState.ACTIVE: JobState.DISCARDED},
    ),
    "release": (
        lambda bench, job: bench.engine.jobs.release([Release(job.id)]),
        {JobState.ACTIVE: JobState.AVAILABLE},
    ),
    "release later": (
        lambda bench, job: bench.engine.jobs.release([Release(job.id, delay=1_000_000)]),
        {JobState.ACTIVE: JobState.SCHEDULED},
    ),
    "cancel": (
        lambda bench, job: bench.engine.jobs.cancel(job.id),
        {state: JobState.CANCELLED for state in JobState if state not in FINISHED},
    ),
    "activate": (lambda bench, job: bench.engine.workflows.activate(job.id), {JobState.PENDING: JobState.AVAILABLE}),
    "retry": (lambda bench, job: bench.engine.jobs.retry_dead(job.id), {JobState.DISCARDED: JobState.AVAILABLE}),
    "fetch": (lambda bench, job: bench.fetch(), {JobState.AVAILABLE: JobState.ACTIVE}),
    "time": (
        lambda bench, job: bench.upkeep(after=3601),
        {
            JobState.SCHEDULED: JobState.AVAILABLE,
            JobState.RETRYABLE: JobState.AVAILABLE,
            JobState.ACTIVE: JobState.RETRYABLE,  # its lease has expired
        },
    ),
}


@pytest.mark.parametrize("state", JobState)
@pytest.mark.parametrize("act", ACTS)
async def test_from_every_state_only_the_allowed_transitions_happen(bench: Bench, state: JobState, act: str) -> None:
    do, allowed = ACTS[act]
    job = await make(bench, state)
    before = to_json(await bench.find(job))
    try:
        result = await do(bench, job)
        refused = isinstance(result, list) and any(isinstance(item, OjsterError) for item in result)
    except OjsterError:
        refused = True
    after = await bench.find(job)
    if state in allowed:
        assert not refused
        assert after.state == allowed[state]
        assert JOB_STATES.allows(state, JobState(after.state))
    else:
        assert to_json(after) == before, "what is refused changes nothing"
        assert refused or act in ("fetch", "time")


def test_nothing_leaves_a_terminal_state_but_a_dead_letter() -> None:
    assert {state for state in FINISHED if JOB_STATES.table[state]} == {JobState.DISCARDED, JobState.CANCELLED}


def test_every_state_can_be_reached() -> None:
    reached = set(JOB_STATES.table[None])
    while more := {after for state in reached for after in JOB_STATES.table[state]} - reached:
        reached |= more
    assert reached == set(JobState)


@pytest.mark.parametrize("state", [JobState.SCHEDULED, JobState.PENDING, JobState.AVAILABLE])
async def test_a_waiting_job_is_discarded_when_it_expires(bench: Bench, state: JobState) -> None:
    options = {"expires_at": "+PT5S"}
    if state == JobState.SCHEDULED:
        job = await bench.push(scheduled_at="+PT10S", **options)
    else:
        job = await bench.push(pending=state == JobState.PENDING, **options)
    assert job.state == state
    await bench.upkeep(after=11)
    found = await bench.find(job)
    assert (found.state, found.dead) == ("discarded", 0)
    assert b"completed_at" not in to_json(found)


async def test_an_active_job_does_not_expire(bench: Bench) -> None:
    await bench.push(expires_at="+PT5S")
    job = await bench.fetch_one()
    await bench.upkeep(after=6)
    assert (await bench.ack(job)).state == "completed"
