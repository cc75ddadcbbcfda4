"""Jobs that run again: what they keep, what they lose, and which cannot."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from ojster.core.access import Access, Operation
from ojster.core.errors import Conflict, Duplicate, Forbidden, InvalidRequest, NotFound, OjsterError
from ojster.core.job import Job
from ojster.core.json_objects import read_members
from ojster.core.refusals import JobTypeNotAllowed
from ojster.jobs.checkpoints import NewCheckpoint
from ojster.jobs.interventions import DeadLetterRetry, delete, retry, revive
from ojster.jobs.scope import Caller
from ojster.operators import QueueConfigBody
from tests.conftest import START, Bench, shown

pytestmark = pytest.mark.anyio

DEAD = {"max_attempts": 1, "on_exhaustion": "dead_letter"}


async def bury(bench: Bench, **options: Any) -> Job:
    await bench.push(retry=DEAD, **options)
    return await bench.fail(await bench.fetch_one(options.get("queue", "default"), worker_id="w"))


async def counts(bench: Bench) -> dict[str, dict[str, int]]:
    """Return the numbers of jobs by queue and state, without zeros."""
    found = await bench.service.jobs.count()
    return {queue: kept for queue, states in found.items() if (kept := {s: n for s, n in states.items() if n})}


async def test_a_job_that_runs_again_is_as_new_and_keeps_its_errors(bench: Bench) -> None:
    dead = await bury(bench)
    bench.clock.advance(5)
    again = await bench.service.jobs.retry_dead(dead.id)
    for job in (again, await bench.find(dead)):
        assert (job.state, job.attempt, job.losses, job.dead, job.error_type) == ("available", 0, 0, 0, None)
        assert (job.retry_delay, job.started_at, job.finished_at, job.worker_id, job.suspension) == (None,) * 5
        assert (job.enqueued_at, job.due_at, job.expires_at) == (START + 5_000_000, None, None)
        assert len(shown(job)["errors"]) == 1
    assert await counts(bench) == {"default": {"available": 1}}


async def test_a_job_that_runs_again_no_longer_expires(bench: Bench) -> None:
    dead = await bury(bench, enqueue_ttl=10, total_timeout=20)
    await bench.service.jobs.retry_dead(dead.id)
    await bench.run_due(100)
    assert (await bench.find(dead)).state == "available"
    (job,) = await bench.fetch(worker_id="w")
    bench.clock.advance(100)
    assert (await bench.ack(job)).state == "completed"


async def test_a_job_runs_again_with_other_values(bench: Bench) -> None:
    job = await bench.push(retry=DEAD | {"initial_interval": "PT2S"}, meta={"a": 1, "b": 2}, priority=5, timeout=7)
    await bench.fail(await bench.fetch_one())
    change = DeadLetterRetry(job.id, [7], "other", {"b": 3}, {"max_attempts": 9})
    again = shown(await bench.service.jobs.retry_dead(job.id, change))
    assert again == shown(await bench.find(job))
    assert (again["args"], again["queue"], again["meta"]) == ([7], "other", {"a": 1, "b": 3})
    assert (again["max_attempts"], again["priority"], again["timeout"]) == (9, 5, 7)
    assert again["retry"] == DEAD | {"initial_interval": "PT2S", "max_attempts": 9}
    assert await counts(bench) == {"other": {"available": 1}}
    assert (await bench.fetch_one("other")).id == job.id


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"args": []}, {"args": []}),
        ({"queue": "q"}, {"queue": "q"}),
        ({"meta": {}}, {"meta": {"a": 1}}),
        ({"retry": {"jitter": False}}, {"retry": DEAD | {"jitter": False}, "max_attempts": 1}),
    ],
)
async def test_what_is_not_changed_stays(bench: Bench, change: dict[str, Any], expected: dict[str, Any]) -> None:
    job = await bench.push("t", 1, retry=DEAD, meta={"a": 1}, scheduled_at="+PT1S", expires_at="+PT1H")
    await bench.run_due(2)
    await bench.fail(await bench.fetch_one())
    before = shown(await bench.find(job))
    after = shown(await bench.service.jobs.retry_dead(job.id, DeadLetterRetry(job.id, **change)))
    assert {name: after[name] for name in expected} == expected
    for name in {"args", "queue", "meta", "max_attempts", "type", "priority"} - expected.keys():
        assert after[name] == before[name], name
    assert "scheduled_at" in before
    assert "expires_at" not in after


async def test_a_change_that_makes_no_sense_is_refused_and_the_job_stays(bench: Bench) -> None:
    job = await bury(bench)
    for change, kind in (
        ({"queue": "BAD"}, InvalidRequest),
        ({"queue": "ojster.x"}, Forbidden),
        ({"retry": {"max_attempts": -1}}, InvalidRequest),
        ({"args": ["x" * 2_200_000]}, OjsterError),
    ):
        with pytest.raises(kind):
            await bench.service.jobs.retry_dead(job.id, DeadLetterRetry(job.id, **change))
    assert (await bench.find(job)).state == "discarded"
    assert await counts(bench) == {"default": {"discarded": 1}}


@pytest.mark.parametrize(
    ("change", "is_kept"),
    [({}, True), ({"meta": {"by": "ada"}}, True), ({"retry": {"max_attempts": 2}}, True), ({"args": [2]}, False)],
    ids=str,
)
async def test_a_checkpoint_is_not_resumed_with_other_arguments(
    bench: Bench, change: dict[str, Any], is_kept: bool
) -> None:
    dead = await bury(bench)
    again = await bench.service.jobs.retry_dead(dead.id)
    await bench.service.jobs.save_checkpoint(NewCheckpoint(again.id, b"7"))
    await bench.fail(await bench.fetch_one())
    await bench.service.jobs.retry_dead(dead.id, DeadLetterRetry(dead.id, **change))
    claimed = await bench.fetch_one()
    assert (claimed.checkpoint is not None, claimed.checkpoint_number) == (is_kept, int(is_kept))


def test_a_change_says_whether_it_changes_something() -> None:
    assert not DeadLetterRetry("j").changes_something
    changes: list[dict[str, Any]] = [{"args": []}, {"queue": "q"}, {"meta": {}}, {"retry": {}}]
    for change in changes:
        assert DeadLetterRetry("j", **change).changes_something


async def test_what_is_no_dead_letter_is_refused(bench: Bench) -> None:
    job = await bench.push()
    for call in (bench.service.jobs.retry_dead, bench.service.jobs.delete_dead):
        with pytest.raises(Conflict) as refused:
            await call(job.id)
        assert refused.value.message == f"The job {job.id} is available; it is no dead letter."
        assert refused.value.details == {"job_id": job.id, "current_state": "available"}
        with pytest.raises(NotFound) as missing:
            await call("nowhere")
        assert missing.value.message == "There is no dead letter nowhere."
        assert missing.value.details == {"resource_type": "dead_letter_job", "resource_id": "nowhere"}


async def test_a_discarded_job_that_is_no_dead_letter_may_run_again_and_be_deleted(bench: Bench) -> None:
    for call in (bench.service.jobs.retry_dead, bench.service.jobs.delete_dead):
        job = await bench.push(retry={"max_attempts": 1})
        await bench.fail(await bench.fetch_one())
        await call(job.id)
        assert [entry.id for entry in await bench.fetch()] == (
            [job.id] if call == bench.service.jobs.retry_dead else []
        )


async def test_jobs_of_a_workflow_run_again_with_it(bench: Bench) -> None:
    step = b'[{"type": "a", "args": [], "options": {"retry": {"max_attempts": 1, "on_exhaustion": "dead_letter"}}}]'
    await bench.service.workflows.create(read_members(b'{"type": "chain", "steps": %b}' % step))
    dead = await bench.fail(await bench.fetch_one())
    assert dead.dead == 1
    for call, verb in ((bench.service.jobs.retry_dead, "retried"), (bench.service.jobs.delete_dead, "deleted")):
        with pytest.raises(Conflict) as refused:
            await call(dead.id)
        assert refused.value.message == f"Job {dead.id} belongs to a workflow and can only be {verb} with it."
    assert isinstance(await bench.run(retry, dead.id), Conflict)
    assert (await bench.find(dead)).state == "discarded"


async def test_states_say_what_can_be_done(bench: Bench) -> None:
    waiting, cancelled, dead = await bench.push(queue="q"), await bench.push(queue="q"), await bury(bench)
    await bench.service.jobs.cancel(cancelled.id)

    async def message(operation: Any, job: Job) -> str:
        found = await bench.run(operation, job.id)
        assert isinstance(found, Conflict)
        assert found.details == {"job_id": job.id, "current_state": (await bench.find(job)).state}
        return found.message

    assert "is cancelled and cannot be retried: only a discarded or retryable one can be." in await message(
        retry, cancelled
    )
    assert "is available and cannot be retried: only a discarded or cancelled one can be." in await message(
        revive, waiting
    )
    assert "is available and cannot be deleted: it is not finished." in await message(delete, waiting)
    for operation in (retry, revive, delete):
        missing: Any = await bench.run(operation, "nowhere")
        assert isinstance(missing, NotFound)
    revived: Any = await bench.run(revive, cancelled.id)
    assert (revived.state, revived.finished_at) == ("available", None)
    again: Any = await bench.run(retry, dead.id)
    assert again.state == "available"


async def test_a_deleted_job_leaves_nothing_behind(bench: Bench) -> None:
    job = await bury(bench)
    await bench.service.jobs.delete_dead(job.id)
    with pytest.raises(NotFound):
        await bench.find(job)
    assert await counts(bench) == {}

    def left(tx: Any, requests: Any) -> list[list[int]]:
        tables = ("jobs", "payloads", "checkpoints")
        return [[tx.execute(f"SELECT count(*) FROM {table}")[0][0] for table in tables]]

    assert await bench.run(left, None) == [0, 0, 0]


async def test_a_priority_is_adjusted_from_that_of_the_push(bench: Bench) -> None:
    job = await bench.push(priority=50)
    for by, expected in ((50, 100), (-150, -100), (0, 50)):
        assert (await bench.service.jobs.adjust_priority(job.id, by)).priority == expected
        assert (await bench.find(job)).priority == expected
    for by, wanted in ((51, 101), (-151, -101)):
        with pytest.raises(InvalidRequest) as refused:
            await bench.service.jobs.adjust_priority(job.id, by)
        assert refused.value.message == f"The priority would be {wanted}; it must be from -100 to 100."
    await bench.service.jobs.cancel(job.id)
    with pytest.raises(Conflict, match="is cancelled and cannot be adjusted: it is finished"):
        await bench.service.jobs.adjust_priority(job.id, 0)
    with pytest.raises(NotFound):
        await bench.service.jobs.adjust_priority("nowhere", 0)


async def test_the_envelope_of_a_changed_job_still_says_who_created_it(bench: Bench) -> None:
    owner = bench.service.as_(Caller(None, Access("ada", frozenset(Operation))))
    members = {"type": msgspec.Raw(b'"a"'), "args": msgspec.Raw(b"[]"), "retry": msgspec.Raw(b'{"max_attempts":1}')}
    (pushed,) = await owner.jobs.enqueue([members])
    await bench.fail(await bench.fetch_one())
    again = await bench.service.jobs.retry_dead(pushed.job.id, DeadLetterRetry(pushed.job.id, args=[1]))
    assert (shown(again)["created_by"], shown(again)["args"]) == ("ada", [1])


async def test_a_changed_job_is_unique_by_its_new_values(bench: Bench) -> None:
    unique = {"keys": ["type", "args"]}
    job = await bench.push("t", 1, retry=DEAD, unique=unique)
    await bench.fail(await bench.fetch_one())
    again = await bench.service.jobs.retry_dead(job.id, DeadLetterRetry(job.id, queue="q"))
    assert again.unique_key == (await bench.find(job)).unique_key == job.unique_key
    await bench.fail(await bench.fetch_one("q"))
    await bench.service.jobs.retry_dead(job.id, DeadLetterRetry(job.id, args=[2]))
    with pytest.raises(Duplicate):
        await bench.push("t", 2, unique=unique)
    await bench.push("t", 1, unique=unique)


async def test_a_dead_letter_does_not_move_to_a_queue_that_does_not_take_its_type(bench: Bench) -> None:
    await bench.service.queues.configure("small", QueueConfigBody(allowed_job_types=["other.*"]))
    dead = await bury(bench)
    with pytest.raises(JobTypeNotAllowed):
        await bench.service.jobs.retry_dead(dead.id, DeadLetterRetry(dead.id, queue="small"))
    assert await counts(bench) == {"default": {"discarded": 1}}
    assert (await bench.find(dead)).queue == "default"


@pytest.mark.parametrize(("args", "is_encoded"), [([2], False), ([{"ojs_encoded": True, "data": ""}], True)])
async def test_plain_arguments_take_the_place_of_encoded_ones(bench: Bench, args: list[Any], is_encoded: bool) -> None:
    meta = {"a": 1, "ojs.codec.encodings": ["binary/encrypted"], "ojs.codec.key_id": "k"}
    job = await bench.push("t", {"ojs_encoded": True, "data": "eA=="}, retry=DEAD, meta=meta)
    await bench.fail(await bench.fetch_one())
    again = await bench.service.jobs.retry_dead(job.id, DeadLetterRetry(job.id, args=args))
    assert (again.args, again.meta) == (args, meta if is_encoded else {"a": 1})
