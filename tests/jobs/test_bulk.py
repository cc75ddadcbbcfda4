"""Bulk operations: a sweep processes the jobs that match a filter in steps, and each job once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

import msgspec
import pytest

from ojster.core.durations import SECOND
from ojster.core.errors import Conflict, InvalidRequest
from ojster.core.json_objects import read_members
from ojster.jobs import bulk_service, filter_walk
from ojster.jobs.bulk import ALLOWED_STATES, Action, KeyedPush, push_once
from ojster.jobs.filter_walk import JobFilter
from ojster.jobs.idempotency import ABANDONED_AFTER_US, IN_PROGRESS, Key, StoredReply, begin, finish, renew
from ojster.jobs.sweeps import SweepBatch, WalkStep
from ojster.storage.transaction import Transaction
from tests.conftest import Bench, request

pytestmark = pytest.mark.anyio


async def test_a_sweep_finds_all_in_steps(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filter_walk, "WINDOW", 7)
    await bench.service.jobs.enqueue([request(queue="ab"[n % 2]) for n in range(50)])
    found = await bench.service.bulk.sweep(Action.CANCEL, JobFilter(queue="a"))
    assert (found.matched, found.succeeded) == (25, 25)
    assert await bench.service.jobs.count() == {"a": {"cancelled": 25, "available": 0}, "b": {"available": 25}}


async def test_a_sweep_ignores_jobs_pushed_while_it_runs(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filter_walk, "WINDOW", 5)
    await bench.service.jobs.enqueue([request() for _ in range(30)])
    going = True

    async def push_more() -> None:
        while going:
            await bench.push("later")

    pushing = asyncio.create_task(push_more())
    found = await bench.service.bulk.sweep(Action.CANCEL, JobFilter(type="*"))
    going = False
    await pushing
    left = await bench.service.jobs.select(JobFilter(states=("cancelled",)))
    assert found.succeeded == found.matched == left.total >= 30


async def test_a_job_that_has_moved_on_is_left_alone(bench: Bench) -> None:
    job = await bench.push()
    step = await bench.service.database.read(filter_walk.walk, WalkStep(JobFilter(states=("available",))))
    assert step.ids == [job.id]
    await bench.fetch_one()
    from ojster.jobs.bulk import perform_batch

    dealt = await bench.run(perform_batch, SweepBatch(Action.CANCEL, step.ids, ("available",)))
    assert dealt.ids == []
    assert (await bench.find(job)).state == "active"


async def test_two_sweeps_at_once_deal_with_each_job_once(bench: Bench) -> None:
    await bench.service.jobs.enqueue([request() for _ in range(500)])
    one, two = await asyncio.gather(*[bench.service.bulk.sweep(Action.CANCEL, JobFilter(type="*")) for _ in range(2)])
    assert one.succeeded + two.succeeded == 500


async def test_states_in_which_it_cannot_be_done_are_refused(bench: Bench) -> None:
    for action, state in ((Action.CANCEL, "completed"), (Action.RETRY, "active"), (Action.DELETE, "available")):
        with pytest.raises(InvalidRequest, match=state):
            await bench.service.bulk.sweep(action, JobFilter(states=(state,)))


async def test_times_choose_jobs(bench: Bench) -> None:
    await bench.push("old")
    bench.clock.advance(100)
    middle = bench.clock.now - 50_000_000
    await bench.push("new")
    for chosen, types in (
        (JobFilter(created_before=middle), ["old"]),
        (JobFilter(created_after=middle), ["new"]),
        (JobFilter(enqueued_after=middle, priority=0), ["new"]),
        (JobFilter(priority=5), []),
        (JobFilter(finished_after=0), []),
    ):
        assert [job.type for job in (await bench.service.jobs.select(chosen)).jobs] == types


STATES = ("available", "active", "retryable", "completed", "cancelled", "discarded")


async def in_each_state(bench: Bench) -> None:
    """Make a job in each of some states, and a step of a workflow in each, too."""
    steps = [{"type": "step", "args": [], "id": state, "options": {"queue": state}} for state in STATES]
    group = {"type": "group", "jobs": steps}
    await bench.service.workflows.create(read_members(msgspec.json.encode(group)))
    await bench.service.jobs.enqueue([request(queue=state, retry={"max_attempts": 2}) for state in STATES])
    for state in STATES[1:]:
        for job in await bench.fetch(state, count=2):
            match state:
                case "completed":
                    await bench.ack(job)
                case "cancelled":
                    await bench.service.jobs.cancel(job.id)
                case "retryable":
                    await bench.fail(job)
                case "discarded":
                    await bench.fail(job, retryable=False)


@pytest.mark.parametrize("action", [Action.CANCEL, Action.RETRY, Action.DELETE])
async def test_a_dry_run_changes_nothing_and_foresees_what_a_sweep_then_does(bench: Bench, action: Action) -> None:
    await in_each_state(bench)
    before = await bench.service.jobs.count()
    for state in STATES:
        if state in ALLOWED_STATES[action]:
            chosen = JobFilter(states=(state,))
            foreseen = await bench.service.bulk.sweep(action, chosen, dry_run=True)
            assert await bench.service.jobs.count() == before, state
            done = await bench.service.bulk.sweep(action, chosen)
            told = [[(id, refusal and refusal.to_wire("")) for id, refusal in one.items] for one in (foreseen, done)]
            assert told[0] == told[1], state
            assert (foreseen.matched, foreseen.succeeded) == (done.matched, done.succeeded), state
            before = await bench.service.jobs.count()


async def test_a_filter_that_ends_with_its_dry_run_leaves_out_what_failed_afterwards(bench: Bench) -> None:
    for count in range(2):
        job = await bench.push()
        await bench.fail(await bench.fetch_one(), retryable=False)
        if not count:
            chosen = JobFilter(states=("discarded",))
            foreseen = await bench.service.bulk.sweep(Action.RETRY, chosen, dry_run=True)
            bench.clock.advance(1)
    bounded = JobFilter(states=("discarded",), finished_before=foreseen.as_of)
    done = await bench.service.bulk.sweep(Action.RETRY, bounded)
    assert (foreseen.succeeded, done.succeeded) == (1, 1)
    assert (await bench.find(job)).state == "discarded"


KEY = Key("cancel", "k", "0" * 64)


async def test_a_request_that_takes_long_is_answered_once(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk_service, "RENEWAL_SECONDS", 0.0)
    begun: list[str] = []

    async def answer(name: str) -> StoredReply:
        begun.append(name)
        for _ in range(4):
            bench.clock.advance(ABANDONED_AFTER_US / SECOND - 1)
            while await bench.service.database.read(time_of_the_key, None) < bench.clock.now:
                await asyncio.sleep(0)
        assert await bench.service.database.run(begin, KEY) == StoredReply(IN_PROGRESS, b"")
        return StoredReply(200, b"{}")

    assert await bench.service.bulk.answer_once(KEY, partial(answer, "first")) == StoredReply(200, b"{}")
    assert await bench.service.bulk.answer_once(KEY, partial(answer, "later")) == StoredReply(200, b"{}")
    assert begun == ["first"]


def time_of_the_key(tx: Transaction, items: Sequence[None]) -> list[int]:
    ((at,),) = tx.execute("SELECT created_at FROM idempotency_keys", ())
    return [at for _ in items]


async def test_a_request_whose_server_died_can_be_repeated_after_a_minute(bench: Bench) -> None:
    database = bench.service.database
    assert await database.run(begin, KEY) is None
    bench.clock.advance(59)
    assert await database.run(begin, KEY) == StoredReply(IN_PROGRESS, b"")
    bench.clock.advance(1)
    assert await database.run(begin, KEY) is None


async def test_a_key_that_was_answered_is_not_renewed(bench: Bench) -> None:
    database = bench.service.database
    await database.run(begin, KEY)
    await database.run(finish, (KEY, StoredReply(200, b"{}")))
    before = await database.read(time_of_the_key, None)
    bench.clock.advance(1)
    await database.run(renew, KEY)
    assert await database.read(time_of_the_key, None) == before


async def test_jobs_are_swept_by_the_pattern_of_their_last_error(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in several steps, and although the errors of many jobs are read in parts."""
    monkeypatch.setattr(filter_walk, "WINDOW", 7)
    monkeypatch.setattr(filter_walk, "ERRORS_AT_ONCE", 3)
    await bench.service.jobs.enqueue([request() for _ in range(20)])
    for number, job in enumerate(await bench.fetch("default", count=20)):
        await bench.fail(job, retryable=False, message=f"card {number} was {('declined', 'lost')[number % 4 == 0]}")
    found = await bench.service.bulk.sweep(Action.RETRY, JobFilter(error_pattern="card … was lost"))
    assert (found.matched, found.succeeded) == (5, 5)
    assert await bench.service.jobs.count() == {"default": {"available": 5, "discarded": 15, "active": 0}}


async def test_requests_with_one_idempotency_key_in_one_call_push_one_job(bench: Bench) -> None:
    jobs = [await bench.service.jobs.prepare(request()) for _ in range(4)]
    keyed = [
        KeyedPush(new, Key("push", key, fingerprint), lambda pushed: StoredReply(201, pushed.job.id.encode()))
        for new, key, fingerprint in zip(jobs, "aaba", ("as one", "as one", "", "as another"), strict=True)
    ]
    first, again, other, conflict = await bench.service.database.run_many(push_once, keyed)
    assert first == again == StoredReply(201, jobs[0].id.encode())
    assert other == StoredReply(201, jobs[2].id.encode())
    assert isinstance(conflict, Conflict)
    assert (await bench.service.jobs.select()).total == 2
