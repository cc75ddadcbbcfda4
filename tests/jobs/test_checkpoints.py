"""Checkpoints: the next attempt receives the state that a handler saved.

Spec: ojs-durable-execution
"""

from __future__ import annotations

import pytest

from ojster.core.durations import HOUR
from ojster.core.errors import Conflict, NotFound, PayloadTooLarge
from ojster.core.refusals import size_details
from ojster.jobs.bulk import Action
from ojster.jobs.checkpoints import MAX_CHECKPOINT_BYTES, NewCheckpoint
from ojster.jobs.filter_walk import JobFilter
from ojster.jobs.job_json import to_json
from tests.conftest import Bench, shown

pytestmark = pytest.mark.anyio


async def test_the_next_attempt_is_given_what_the_last_one_saved(bench: Bench) -> None:
    await bench.push()
    first = await bench.fetch_one(worker_id="w")
    assert "checkpoint" not in shown(first)
    for number, state in enumerate((b'{"row":1}', b'{"row":2,"big":12345678901234567890.5}'), 1):
        saved = await bench.service.jobs.save_checkpoint(NewCheckpoint(first.id, state, "w", 1))
        assert saved.sequence == number
    await bench.fail(first)
    await bench.run_due(after=10)
    second = await bench.fetch_one()
    assert b'"checkpoint":{"state":{"row":2,"big":12345678901234567890.5},"sequence":2}' in to_json(second)
    assert (await bench.service.jobs.find_checkpoint(first.id)).sequence == 2


async def test_a_job_resumes_from_its_checkpoint_after_its_worker_dies(bench: Bench) -> None:
    await bench.push(retry={"max_attempts": 3})
    job = await bench.fetch_one(worker_id="w", lease=1_000_000)
    await bench.service.jobs.save_checkpoint(NewCheckpoint(job.id, b"[1,2]"))
    await bench.run_due(after=5)
    assert shown(await bench.fetch_one())["checkpoint"] == {"state": [1, 2], "sequence": 1}


async def test_only_the_holder_of_the_lease_may_save(bench: Bench) -> None:
    waiting = await bench.push()
    with pytest.raises(Conflict):
        await bench.service.jobs.save_checkpoint(NewCheckpoint(waiting.id, b"1", "w"))
    job = await bench.fetch_one(worker_id="w")
    with pytest.raises(Conflict):
        await bench.service.jobs.save_checkpoint(NewCheckpoint(job.id, b"1", "other"))
    with pytest.raises(Conflict):
        await bench.service.jobs.save_checkpoint(NewCheckpoint(job.id, b"1", "w", attempt=7))
    await bench.ack(job)
    with pytest.raises(Conflict):
        await bench.service.jobs.save_checkpoint(NewCheckpoint(job.id, b"1", "w", 1))
    with pytest.raises(NotFound):
        await bench.service.jobs.save_checkpoint(NewCheckpoint("nowhere", b"1"))
    with pytest.raises(NotFound):
        await bench.service.jobs.find_checkpoint(job.id)


async def test_a_state_has_at_most_a_mebibyte(bench: Bench) -> None:
    job = await bench.push()
    just = b'"' + b"x" * (MAX_CHECKPOINT_BYTES - 2) + b'"'
    assert (await bench.service.jobs.save_checkpoint(NewCheckpoint(job.id, just))).sequence == 1
    with pytest.raises(PayloadTooLarge) as refused:
        await bench.service.jobs.save_checkpoint(NewCheckpoint(job.id, just + b" "))
    assert refused.value.details == size_details(MAX_CHECKPOINT_BYTES, MAX_CHECKPOINT_BYTES + 1, "state")


async def test_what_was_cleared_is_gone_and_numbers_begin_anew(bench: Bench) -> None:
    job = await bench.push()
    await bench.service.jobs.save_checkpoint(NewCheckpoint(job.id, b"1"))
    assert await bench.service.jobs.clear_checkpoint(job.id)
    assert not await bench.service.jobs.clear_checkpoint(job.id)
    with pytest.raises(NotFound):
        await bench.service.jobs.find_checkpoint(job.id)
    assert (await bench.service.jobs.save_checkpoint(NewCheckpoint(job.id, b"2"))).sequence == 1


async def test_a_checkpoint_is_forgotten_with_its_job(bench: Bench) -> None:
    from ojster.schedules.retention import forget

    kept = await bench.push("kept")
    await bench.service.jobs.save_checkpoint(NewCheckpoint(kept.id, b"1"))
    for way in ("retention", "sweep"):
        job = await bench.push("gone", queue=way)
        await bench.service.jobs.save_checkpoint(NewCheckpoint(job.id, b"1"))
        await bench.ack(await bench.fetch_one(way))
        assert (await bench.service.jobs.find_checkpoint(job.id)).state == b"1"
        if way == "retention":
            bench.clock.advance(25 * HOUR // 1_000_000)
            assert (await bench.run(forget, None))["jobs"] == 1
        else:
            await bench.service.bulk.sweep(Action.DELETE, JobFilter(queue=way))
    rows = await bench.run(lambda tx, _: [tx.execute("SELECT count(*) FROM checkpoints")], None)
    assert rows == [(1,)]
