"""Bulk operations: a sweep processes the jobs that match a filter in steps, and each job once."""

from __future__ import annotations

import asyncio

import pytest

from ojster.core.errors import InvalidRequest
from ojster.jobs import filter_walk
from ojster.jobs.bulk import Action
from ojster.jobs.filter_walk import JobFilter
from tests.conftest import Bench, request

pytestmark = pytest.mark.anyio


async def test_a_sweep_finds_all_in_steps(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filter_walk, "WINDOW", 7)
    await bench.engine.jobs.enqueue([request(queue="ab"[n % 2]) for n in range(50)])
    found = await bench.engine.bulk.sweep(Action.CANCEL, JobFilter(queue="a"))
    assert (found.matched, found.succeeded) == (25, 25)
    assert await bench.engine.jobs.count() == {"a": {"cancelled": 25, "available": 0}, "b": {"available": 25}}


async def test_a_sweep_ignores_jobs_pushed_while_it_runs(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filter_walk, "WINDOW", 5)
    await bench.engine.jobs.enqueue([request() for _ in range(30)])
    going = True

    async def push_more() -> None:
        while going:
            await bench.push("later")

    pushing = asyncio.create_task(push_more())
    found = await bench.engine.bulk.sweep(Action.CANCEL, JobFilter())
    going = False
    await pushing
    left = await bench.engine.jobs.select(JobFilter(states=("cancelled",)))
    assert found.succeeded == found.matched == left.total >= 30


async def test_a_job_that_has_moved_on_is_left_alone(bench: Bench) -> None:
    job = await bench.push()
    step = await bench.engine.database.read(filter_walk.walk, filter_walk.Step(JobFilter(states=("available",))))
    assert step.ids == [job.id]
    await bench.fetch_one()
    from ojster.jobs.bulk import SweepBatch, perform_batch

    dealt = await bench.run(perform_batch, SweepBatch(Action.CANCEL, step.ids, ("available",)))
    assert dealt.ids == []
    assert (await bench.find(job)).state == "active"


async def test_two_sweeps_at_once_deal_with_each_job_once(bench: Bench) -> None:
    await bench.engine.jobs.enqueue([request() for _ in range(500)])
    one, two = await asyncio.gather(*[bench.engine.bulk.sweep(Action.CANCEL, JobFilter()) for _ in range(2)])
    assert one.succeeded + two.succeeded == 500


async def test_states_in_which_it_cannot_be_done_are_refused(bench: Bench) -> None:
    for action, state in ((Action.CANCEL, "completed"), (Action.RETRY, "active"), (Action.DELETE, "available")):
        with pytest.raises(InvalidRequest, match=state):
            await bench.engine.bulk.sweep(action, JobFilter(states=(state,)))


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
        assert [job.type for job in (await bench.engine.jobs.select(chosen)).jobs] == types
