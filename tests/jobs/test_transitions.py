"""State transitions: each operation runs on a job in each state, and only the transitions of the table occur."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec
import pytest

from ojster.core.errors import OjsterError
from ojster.core.job import Job
from ojster.core.json_objects import read_members
from ojster.core.state_machine import IllegalTransition, StateMachine
from ojster.core.states import FINISHED, JOB_STATES, JobState
from ojster.jobs import interventions
from ojster.jobs.failure import Failure
from ojster.jobs.job_json import to_json
from ojster.jobs.messages import Acknowledgement, FailureReport, Release
from ojster.storage.transaction import Transaction
from tests.conftest import Bench

pytestmark = pytest.mark.anyio

FAILURE = Failure("X", "failed")


async def make(bench: Bench, state: JobState) -> Job:
    """Push a job and bring it into `state` with the service's own operations."""
    match state:
        case JobState.SCHEDULED:
            return await bench.push(scheduled_at="+PT1H")
        case JobState.PENDING:
            return await bench.push(pending=True)
        case JobState.AVAILABLE:
            return await bench.push()
        case JobState.CANCELLED:
            return (await bench.service.jobs.cancel((await bench.push()).id)).job
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
        lambda bench, job: bench.service.jobs.acknowledge([Acknowledgement(job.id)]),
        {JobState.ACTIVE: JobState.COMPLETED},
    ),
    "fail": (
        lambda bench, job: bench.service.jobs.fail([FailureReport(job.id, FAILURE)]),
        {JobState.ACTIVE: JobState.RETRYABLE},
    ),
    "discard": (
        lambda bench, job: bench.service.jobs.fail([FailureReport(job.id, Failure("X", "failed", "DISCARD"))]),
        {JobState.ACTIVE: JobState.DISCARDED},
    ),
    "release": (
        lambda bench, job: bench.service.jobs.release([Release(job.id)]),
        {JobState.ACTIVE: JobState.AVAILABLE},
    ),
    "release later": (
        lambda bench, job: bench.service.jobs.release([Release(job.id, delay=1_000_000)]),
        {JobState.ACTIVE: JobState.SCHEDULED},
    ),
    "cancel": (
        lambda bench, job: bench.service.jobs.cancel(job.id),
        {state: JobState.CANCELLED for state in JobState if state not in FINISHED},
    ),
    "activate": (lambda bench, job: bench.service.workflows.activate(job.id), {JobState.PENDING: JobState.AVAILABLE}),
    "retry": (lambda bench, job: bench.service.jobs.retry_dead(job.id), {JobState.DISCARDED: JobState.AVAILABLE}),
    "fetch": (lambda bench, job: bench.fetch(), {JobState.AVAILABLE: JobState.ACTIVE}),
    "time": (
        lambda bench, job: bench.run_due(after=3601),
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


def test_only_operators_take_a_job_out_of_a_terminal_state() -> None:
    assert {state: set(JOB_STATES.table[state]) for state in FINISHED} == {
        JobState.COMPLETED: set(),
        JobState.CANCELLED: {JobState.AVAILABLE},
        JobState.DISCARDED: {JobState.AVAILABLE},
    }


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
    await bench.run_due(after=11)
    found = await bench.find(job)
    assert (found.state, found.dead) == ("discarded", 0)
    assert b"completed_at" not in to_json(found)


async def test_an_active_job_does_not_expire(bench: Bench) -> None:
    await bench.push(expires_at="+PT5S")
    job = await bench.fetch_one()
    await bench.run_due(after=6)
    assert (await bench.ack(job)).state == "completed"


# Every entry of the table

Way = Callable[[Bench], Awaitable[str]]
"""Makes a transition happen to a job; returns the job's id."""


def of(state: JobState, act: str) -> Way:
    """Bring a job into a state, and let an operation act on it."""

    async def happen(bench: Bench) -> str:
        job = await make(bench, state)
        await ACTS[act][0](bench, job)
        return job.id

    return happen


def made(state: JobState) -> Way:
    async def happen(bench: Bench) -> str:
        return (await make(bench, state)).id

    return happen


def expired(**options: Any) -> Way:
    async def happen(bench: Bench) -> str:
        job = await bench.push(expires_at="+PT5S", **options)
        await bench.run_due(after=11)
        return job.id

    return happen


async def a_retryable_job_expires(bench: Bench) -> str:
    await bench.push(expires_at="+PT5S", retry={"max_attempts": 3, "initial_interval": "PT10S", "jitter": False})
    job = await bench.fail(await bench.fetch_one())
    await bench.run_due(after=11)
    return job.id


def limited(on_limit: str) -> Way:
    async def happen(bench: Bench) -> str:
        limit = {"key": "k", "concurrency": 1, "on_limit": on_limit}
        await bench.push(rate_limit=limit)
        job = await bench.push(rate_limit=limit)
        assert len(await bench.fetch(count=2)) == 1
        assert await bench.fetch() == []
        return job.id

    return happen


async def a_lookup_finds_nothing(bench: Bench) -> str:
    await bench.service.collections.create("releases")
    job = await bench.push("test.job", {"$lookup": "releases/latest"})
    assert await bench.fetch() == []
    return job.id


async def a_job_need_not_run(bench: Bench) -> str:
    reactions = {
        "on_assignment": [{"action": "skip-if-unchanged", "subject": "s"}],
        "on_success": [{"action": "record", "subject": "s"}],
    }
    body = {"type": "test.job", "args": [], "event_reactions": reactions}

    async def push() -> str:
        (pushed,) = await bench.service.jobs.enqueue([read_members(msgspec.json.encode(body))])
        return pushed.job.id

    await push()
    await bench.ack(await bench.fetch_one())
    second = await push()
    assert await bench.fetch() == []
    return second


def suspended(then: Callable[[Bench, str], Awaitable[object]]) -> Way:
    async def happen(bench: Bench) -> str:
        await bench.push()
        job = await bench.fetch_one()
        await bench.service.jobs.release([Release(job.id, then="wait")])
        await then(bench, job.id)
        return job.id

    return happen


async def nothing(bench: Bench, job_id: str) -> None:
    return None


async def completed(bench: Bench, job_id: str) -> None:
    await bench.service.workflows.activate(job_id, b"1")


def failed(**more: Any) -> Callable[[Bench, str], Awaitable[object]]:
    async def fail(bench: Bench, job_id: str) -> None:
        await bench.service.workflows.activate(job_id, failure=Failure("X", "no answer", **more))

    return fail


async def a_suspended_job_waits_too_long(bench: Bench) -> str:
    await bench.push(retry={"max_attempts": 3})
    job = await bench.fetch_one()
    await bench.service.jobs.release([Release(job.id, then="wait", wait=5_000_000)])
    await bench.run_due(after=6)
    return job.id


def held(state: JobState) -> Way:
    """Hold the workflow of a step in a state, and let time pass."""

    async def happen(bench: Bench) -> str:
        options: dict[str, Any] = {"retry": {"max_attempts": 3, "initial_interval": "PT5S"}}
        if state == JobState.SCHEDULED:
            options["scheduled_at"] = "+PT5S"
        step = {"type": "test.job", "args": [], "options": options}
        body = msgspec.json.encode({"type": "chain", "steps": [step]})
        workflow = await bench.service.workflows.create(read_members(body))
        (job,) = (await bench.service.jobs.select()).jobs
        if state in (JobState.ACTIVE, JobState.RETRYABLE, JobState.PENDING):
            taken = await bench.fetch_one()
            if state == JobState.RETRYABLE:
                await bench.fail(taken)
            elif state == JobState.PENDING:
                await bench.service.jobs.release([Release(job.id, then="wait", again=True)])
        await bench.service.workflows.hold(workflow.id)
        if state == JobState.ACTIVE:
            await bench.service.jobs.release([Release(job.id)])
        elif state == JobState.PENDING:
            await bench.service.workflows.activate(job.id)
        await bench.run_due(after=60)
        return job.id

    return happen


async def a_cancelled_job_runs_again(bench: Bench) -> str:
    job = await make(bench, JobState.CANCELLED)
    await bench.service.scope.do(interventions.revive, job.id)
    return job.id


S = JobState
WAYS: dict[tuple[JobState | None, JobState], Way] = {
    (None, S.SCHEDULED): made(S.SCHEDULED),
    (None, S.AVAILABLE): made(S.AVAILABLE),
    (None, S.PENDING): made(S.PENDING),
    (S.SCHEDULED, S.AVAILABLE): of(S.SCHEDULED, "time"),
    (S.SCHEDULED, S.CANCELLED): of(S.SCHEDULED, "cancel"),
    (S.SCHEDULED, S.DISCARDED): expired(scheduled_at="+PT10S"),
    (S.SCHEDULED, S.PENDING): held(S.SCHEDULED),
    (S.AVAILABLE, S.ACTIVE): made(S.ACTIVE),
    (S.AVAILABLE, S.CANCELLED): of(S.AVAILABLE, "cancel"),
    (S.AVAILABLE, S.DISCARDED): expired(),
    (S.AVAILABLE, S.PENDING): held(S.AVAILABLE),
    (S.AVAILABLE, S.SCHEDULED): limited("reschedule"),
    (S.AVAILABLE, S.RETRYABLE): a_lookup_finds_nothing,
    (S.AVAILABLE, S.COMPLETED): a_job_need_not_run,
    (S.PENDING, S.AVAILABLE): of(S.PENDING, "activate"),
    (S.PENDING, S.CANCELLED): of(S.PENDING, "cancel"),
    (S.PENDING, S.DISCARDED): expired(pending=True),
    (S.PENDING, S.PENDING): held(S.PENDING),
    (S.PENDING, S.COMPLETED): suspended(completed),
    (S.PENDING, S.RETRYABLE): a_suspended_job_waits_too_long,
    (S.ACTIVE, S.COMPLETED): made(S.COMPLETED),
    (S.ACTIVE, S.RETRYABLE): made(S.RETRYABLE),
    (S.ACTIVE, S.DISCARDED): made(S.DISCARDED),
    (S.ACTIVE, S.CANCELLED): of(S.ACTIVE, "cancel"),
    (S.ACTIVE, S.AVAILABLE): of(S.ACTIVE, "release"),
    (S.ACTIVE, S.SCHEDULED): of(S.ACTIVE, "release later"),
    (S.ACTIVE, S.PENDING): suspended(nothing),
    (S.RETRYABLE, S.AVAILABLE): of(S.RETRYABLE, "time"),
    (S.RETRYABLE, S.CANCELLED): of(S.RETRYABLE, "cancel"),
    (S.RETRYABLE, S.DISCARDED): a_retryable_job_expires,
    (S.RETRYABLE, S.PENDING): held(S.RETRYABLE),
    (S.CANCELLED, S.AVAILABLE): a_cancelled_job_runs_again,
    (S.DISCARDED, S.AVAILABLE): of(S.DISCARDED, "retry"),
}
"""How each entry of the table happens."""


def test_each_entry_of_the_table_has_a_way() -> None:
    assert set(WAYS) == {(before, after) for before, afters in JOB_STATES.table.items() for after in afters}


@pytest.mark.parametrize(("before", "after"), WAYS, ids=lambda state: str(state or "new"))
async def test_each_entry_of_the_table_happens(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, before: JobState | None, after: JobState
) -> None:
    seen: set[tuple[str | None, str]] = set()
    check = StateMachine.check

    def record(machine: StateMachine, before: str | None, after: str) -> None:
        check(machine, before, after)
        if machine is JOB_STATES:
            seen.add((before, after))

    monkeypatch.setattr(StateMachine, "check", record)
    job_id = await WAYS[before, after](bench)
    assert (before, after) in seen
    assert (await bench.find(job_id)).state == after


async def test_a_change_that_the_table_lacks_is_refused_and_rolled_back(bench: Bench) -> None:
    job = await make(bench, JobState.COMPLETED)
    before = to_json(await bench.find(job))

    def activate(tx: Transaction, ids: Sequence[str]) -> list[None]:
        tx.execute("UPDATE jobs SET priority = 7")
        tx.move(tx.lock_jobs(ids)[ids[0]], JobState.ACTIVE.value)
        return [None]

    with pytest.raises(IllegalTransition, match="'completed' to 'active'"):
        await bench.service.database.run(activate, job.id)
    assert to_json(await bench.find(job)) == before
