"""Job history and lineage. A job without failures writes no history rows."""

from __future__ import annotations

from typing import Any

import pytest

from ojster.core.access import Access, Operation
from ojster.core.errors import NotFound
from ojster.core.json_objects import read_members
from ojster.jobs import history
from ojster.jobs.history import Entry
from ojster.jobs.interventions import Cancellation, cancel, delete
from ojster.jobs.messages import Release
from ojster.jobs.scope import Caller
from ojster.schedules.retention import forget
from ojster.service import Service
from tests.conftest import START, Bench, request

pytestmark = pytest.mark.anyio


async def told(bench: Bench, id: str) -> list[Entry]:
    return await bench.service.jobs.history(id)


def words(entries: list[Entry]) -> list[str]:
    """Return each entry as one word, and transitions as ``from>to``."""
    moves = {"job.state_changed": "{from}>{to}"}
    return [moves.get(entry.type, entry.type.removeprefix("job.")).format(**entry.data) for entry in entries]


def rows(tx: Any, requests: Any) -> list[int]:
    return [tx.execute("SELECT count(*) FROM job_history")[0][0]]


async def test_a_job_that_goes_well_is_told_of_without_writing_anything(bench: Bench) -> None:
    job = await bench.push("mail", {"to": "you"}, queue="q")
    bench.clock.advance(1)
    await bench.fetch_one("q", worker_id="w")
    bench.clock.advance(2)
    await bench.ack(await bench.find(job))
    entries = await told(bench, job.id)
    assert words(entries) == ["created", "available>active", "attempt_started", "attempt_completed", "active>completed"]
    assert [round((entry.at - START) / 1e6) for entry in entries] == [0, 1, 1, 3, 3]
    assert entries[0].data == {"queue": "q", "type": "mail", "args_size_bytes": len(b'[{"to":"you"}]')}
    assert entries[3].data == {"duration_ms": 2000, "attempt": 1}
    assert [entry.actor for entry in entries[:4]] == [{"type": "client"}, *[{"type": "worker", "id": "w"}] * 3]
    assert await bench.run(rows, None) == 0


async def test_failures_retries_and_the_end_are_told(bench: Bench) -> None:
    job = await bench.push(retry={"max_attempts": 2, "initial_interval": "PT1S", "jitter": False})
    for _ in range(2):
        await bench.fail(await bench.fetch_one(worker_id="w"), "Broken")
        await bench.run_due(5)
    entries = await told(bench, job.id)
    attempt = ["available>active", "attempt_started", "attempt_failed"]
    assert words(entries) == [
        "created", *attempt, "active>retryable", "retryable>available", *attempt, "active>discarded", "discarded",
    ]  # fmt: skip
    failed = [entry for entry in entries if entry.type == "job.attempt_failed"]
    assert [(entry.data["attempt"], entry.data["will_retry"]) for entry in failed] == [(1, True), (2, False)]
    assert failed[0].data["error"]["type"] == "Broken"
    assert failed[0].actor == {"type": "worker", "id": "w"}
    assert entries[-1].data["total_attempts"] == 2


async def test_schedules_releases_and_cancellations_are_told(bench: Bench) -> None:
    job = await bench.push(delay_until="+PT10S")
    await bench.run_due(11)
    held = await bench.fetch_one(worker_id="w")
    bench.clock.advance(1)
    await bench.service.jobs.release([Release(held.id, "w", 1)])
    bench.clock.advance(1)
    await bench.fetch_one()
    bench.clock.advance(1)
    await bench.service.jobs.cancel(job.id)
    entries = await told(bench, job.id)
    assert words(entries) == [
        "created", "scheduled>available", "available>active", "attempt_started", "active>available",
        "available>active", "attempt_started", "active>cancelled", "cancelled",
    ]  # fmt: skip
    assert [entry.data["attempt"] for entry in entries if entry.type == "job.attempt_started"] == [1, 1]
    (estimated,) = [entry for entry in entries if entry.is_estimated]
    assert round((estimated.at - START) / 1e6) == 10


async def test_a_dead_letter_that_is_run_again_keeps_its_history(bench: Bench) -> None:
    job = await bench.push(retry={"max_attempts": 1, "on_exhaustion": "dead_letter"})
    await bench.fail(await bench.fetch_one())
    bench.clock.advance(1)
    await bench.service.jobs.retry_dead(job.id)
    bench.clock.advance(1)
    await bench.ack(await bench.fetch_one())
    assert words(await told(bench, job.id))[-5:] == [
        "discarded>available", "available>active", "attempt_started", "attempt_completed", "active>completed",
    ]  # fmt: skip


async def test_a_history_is_forgotten_on_demand_and_with_its_job(bench: Bench) -> None:
    job = await bench.push(retry={"max_attempts": 1, "on_exhaustion": "dead_letter"})
    await bench.fail(await bench.fetch_one())
    count = len(await told(bench, job.id))
    assert await bench.service.jobs.purge_history(job.id) == count
    assert await told(bench, job.id) == []
    bench.clock.advance(1)
    await bench.service.jobs.retry_dead(job.id)
    assert words(await told(bench, job.id)) == ["discarded>available"]
    await bench.service.jobs.cancel(job.id)
    await bench.run_due(100_000)
    assert (await bench.run(forget, None))["jobs"] == 1
    assert await bench.run(rows, None) == 0
    for call in (bench.service.jobs.history, bench.service.jobs.purge_history, bench.service.jobs.lineage):
        with pytest.raises(NotFound):
            await call(job.id)


async def test_only_the_last_entries_are_told(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "MAX_HISTORY_ENTRIES", 40)
    job = await bench.push(retry={"max_attempts": 1_000, "initial_interval": "PT0.001S"})
    for _ in range(15):
        await bench.fail(await bench.fetch_one())
        await bench.run_due(1_000)
    entries = await told(bench, job.id)
    assert len(entries) == 40
    assert entries[-1].data["to"] == "available"


async def test_each_transition_begins_where_the_one_before_it_has_ended(bench: Bench) -> None:
    ids = [(await bench.push(retry={"max_attempts": 2, "initial_interval": "PT1S"})).id for _ in range(3)]
    for _ in range(3):
        for number, job in enumerate(await bench.fetch(count=5)):
            bench.clock.advance(1)
            await (bench.fail(job) if number else bench.ack(job))
        await bench.run_due(30)
    for id in ids:
        state = "available"
        for entry in await told(bench, id):
            if entry.type == "job.state_changed":
                assert entry.data["from"] == state
                state = entry.data["to"]
        assert state == (await bench.find(id)).state


# Lineage


async def test_the_jobs_of_a_workflow_know_where_they_come_from(bench: Bench) -> None:
    steps = b'[{"type": "a", "args": []}, {"type": "b", "args": []}, {"type": "c", "args": []}]'
    info = await bench.service.workflows.create(read_members(b'{"type": "chain", "steps": %b}' % steps))
    ids = []
    while jobs := await bench.fetch():
        ids.append(jobs[0].id)
        await bench.ack(jobs[0])
    first, second, third = [await bench.service.jobs.lineage(id) for id in ids]
    assert (first.parent_id, first.root_id, first.workflow_id) == (None, ids[0], info.id)
    assert first.children == {ids[1]: {ids[2]: {}}}
    assert (second.parents, second.children) == ([ids[0]], {ids[2]: {}})
    assert (third.parent_id, third.root_id, third.children) == (ids[1], ids[0], {})


async def test_what_a_job_says_of_its_parents_is_kept(service: Service, bench: Bench) -> None:
    parent = (await bench.push()).id
    members = read_members(b'{"type": "t", "args": [], "parent_id": "%b", "root_id": "%b"}' % ((parent.encode(),) * 2))
    (pushed,) = await service.jobs.enqueue([members])
    found = await service.jobs.lineage(pushed.job.id)
    assert (found.parent_id, found.root_id, found.workflow_id, found.children) == (parent, parent, None, {})


# What the entries say


WORKER = {"type": "worker", "id": "w"}
SYSTEM = {"type": "system"}
CLIENT = {"type": "client"}


def seconds(entry: Entry) -> float:
    return (entry.at - START) / 1e6


async def test_each_entry_of_a_failed_attempt_says_who_did_what(bench: Bench) -> None:
    job = await bench.push(retry={"max_attempts": 1})
    held = await bench.fetch_one(worker_id="w")
    bench.clock.advance(2)
    await bench.fail(held, "Broken")
    created, active, started, failed, moved, discarded = await told(bench, job.id)
    assert (created.actor, created.is_estimated) == (CLIENT, False)
    assert (active.data, active.actor) == ({"from": "available", "to": "active"}, WORKER)
    assert (started.data, started.actor) == ({"worker_id": "w", "attempt": 1}, WORKER)
    error = {"type": "Broken", "message": "it failed", "code": "handler_error", "retryable": True}
    assert failed.data == {"error": error, "attempt": 1, "will_retry": False}
    assert (moved.data, moved.actor) == ({"from": "active", "to": "discarded"}, SYSTEM)
    assert (discarded.data, discarded.actor) == ({"total_attempts": 1, "last_error": error}, SYSTEM)
    assert [seconds(entry) for entry in (active, started, failed, moved, discarded)] == [0, 0, 2, 2, 2]


async def test_a_completed_attempt_says_who_did_what(bench: Bench) -> None:
    job = await bench.push()
    held = await bench.fetch_one(worker_id="w")
    bench.clock.advance(2)
    await bench.ack(held)
    *_, completed, moved = await told(bench, job.id)
    assert (completed.data, completed.actor) == ({"duration_ms": 2_000, "attempt": 1}, WORKER)
    assert (moved.data, moved.actor) == ({"from": "active", "to": "completed"}, WORKER)
    assert (seconds(completed), seconds(moved)) == (2, 2)


async def test_a_worker_without_a_name_is_the_system(bench: Bench) -> None:
    job = await bench.push(retry={"max_attempts": 1})
    await bench.fail(await bench.fetch_one())
    (failed,) = [entry for entry in await told(bench, job.id) if entry.type == "job.attempt_failed"]
    assert failed.actor == SYSTEM


async def test_a_scheduled_job_becomes_available_when_it_did(bench: Bench) -> None:
    job = await bench.push(scheduled_at="+PT10S")
    assert words(await told(bench, job.id)) == ["created"]
    await bench.run_due(12)
    _, moved = await told(bench, job.id)
    assert (moved.data, moved.actor) == ({"from": "scheduled", "to": "available"}, SYSTEM)
    assert (seconds(moved), moved.is_estimated) == (12, False)
    await bench.fail(await bench.fetch_one(worker_id="w"))
    _, moved, *_ = await told(bench, job.id)
    assert (seconds(moved), moved.is_estimated) == (10, True)


async def test_a_job_that_was_due_when_it_was_pushed_was_never_scheduled(bench: Bench) -> None:
    for scheduled_at in ("+PT0S", "2020-01-01T00:00:00Z"):
        job = await bench.push(scheduled_at=scheduled_at)
        assert words(await told(bench, job.id)) == ["created"]


async def test_the_caller_who_cancels_is_named(bench: Bench) -> None:
    job = await bench.push()
    owner = bench.service.as_(Caller(None, Access("ada", frozenset(Operation))))
    await owner.jobs.cancel(job.id)
    _, moved, cancelled = await told(bench, job.id)
    ada = {"type": "client", "id": "ada"}
    assert (moved.data, moved.actor) == ({"from": "available", "to": "cancelled"}, ada)
    assert (cancelled.data, cancelled.actor) == ({"reason": None}, ada)
    (pushed,) = await owner.jobs.enqueue([request()])
    assert (await told(bench, pushed.job.id))[0].actor == ada


async def test_a_job_that_is_cancelled_before_it_is_due_never_was_available(bench: Bench) -> None:
    job = await bench.push(delay_until="+PT10S")
    await bench.service.jobs.cancel(job.id)
    assert words(await told(bench, job.id)) == ["created", "scheduled>cancelled", "cancelled"]


async def test_the_history_of_a_scheduled_job_says_nothing_of_the_future(bench: Bench) -> None:
    job = await bench.push(delay_until="+PT10S")
    await bench.service.jobs.adjust_priority(job.id, 5)
    assert words(await told(bench, job.id)) == ["created"]
    await bench.run_due(11)
    assert words(await told(bench, job.id)) == ["created", "scheduled>available"]


async def test_a_deleted_dead_letter_leaves_no_history(bench: Bench) -> None:
    job = await bench.push(retry={"max_attempts": 1, "on_exhaustion": "dead_letter"})
    await bench.fail(await bench.fetch_one())
    await bench.service.jobs.delete_dead(job.id)
    assert await bench.run(rows, None) == 0


async def test_a_job_that_is_deleted_in_the_transaction_that_has_changed_it_leaves_no_history(bench: Bench) -> None:
    job = await bench.push()

    def change_and_delete(tx: Any, ids: Any) -> list[Any]:
        cancel(tx, [Cancellation(id) for id in ids])
        return delete(tx, ids)

    assert (await bench.run(change_and_delete, job.id)).state == "cancelled"
    assert await bench.run(rows, None) == 0


async def test_an_expired_job_is_discarded_by_the_system(bench: Bench) -> None:
    job = await bench.push(expires_at="+PT5S")
    await bench.run_due(6)
    _, moved, discarded = await told(bench, job.id)
    assert (moved.data, moved.actor) == ({"from": "available", "to": "discarded"}, SYSTEM)
    assert (discarded.type, discarded.data["total_attempts"]) == ("job.discarded", 0)
    assert discarded.data["last_error"]["type"] == "expired"


async def test_an_attempt_that_fails_is_retried_or_not(bench: Bench) -> None:
    job = await bench.push(retry={"max_attempts": 2, "initial_interval": "PT1S", "jitter": False})
    await bench.fail(await bench.fetch_one(worker_id="w"))
    (failed,) = [entry for entry in await told(bench, job.id) if entry.type == "job.attempt_failed"]
    assert failed.data["will_retry"] is True
    await bench.run_due(2)
    held = await bench.fetch_one(worker_id="v")
    started = [entry for entry in await told(bench, job.id) if entry.type == "job.attempt_started"]
    assert [(entry.data, seconds(entry)) for entry in started] == [
        ({"worker_id": "w", "attempt": 1}, 0), ({"worker_id": "v", "attempt": 2}, 2),
    ]  # fmt: skip
    await bench.ack(held)
    assert words(await told(bench, job.id))[-3:] == ["attempt_started", "attempt_completed", "active>completed"]


async def test_a_suspended_job_tells_of_its_attempt_once(bench: Bench) -> None:
    job = await bench.push()
    held = await bench.fetch_one(worker_id="w")
    bench.clock.advance(1)
    await bench.service.jobs.release([Release(held.id, "w", 1, then="wait")])
    bench.clock.advance(1)
    await bench.service.workflows.activate(job.id, b"7")
    entries = await told(bench, job.id)
    assert words(entries).count("attempt_started") == 1
    assert (await bench.find(job)).state in ("completed", "available")


async def test_what_happened_at_the_moment_of_a_purge_is_purged(bench: Bench) -> None:
    job = await bench.push()
    assert await bench.service.jobs.purge_history(job.id) == 1
    assert await told(bench, job.id) == []
    assert await bench.service.jobs.purge_history(job.id) == 0
    bench.clock.advance(1)
    await bench.service.jobs.cancel(job.id)
    assert words(await told(bench, job.id)) == ["available>cancelled", "cancelled"]


async def test_the_successors_of_a_job_are_a_tree(bench: Bench) -> None:
    steps = b"""[{"id": "a", "type": "a", "args": []},
        {"id": "b", "type": "b", "args": [], "depends_on": ["a"]},
        {"id": "c", "type": "c", "args": [], "depends_on": ["a"]},
        {"id": "d", "type": "d", "args": [], "depends_on": ["b", "c"]}]"""
    await bench.service.workflows.create(read_members(b'{"type": "graph", "steps": %b}' % steps))
    ids: dict[str, str] = {}
    while jobs := await bench.fetch(count=5):
        for job in jobs:
            ids[job.type] = job.id
            await bench.ack(job)
    found = {name: await bench.service.jobs.lineage(id) for name, id in ids.items()}
    last: dict[str, Any] = {ids["d"]: {}}
    assert found["a"].children == {ids["b"]: last, ids["c"]: last}
    assert (found["d"].parents, found["d"].parent_id, found["d"].root_id) == (
        [ids["b"], ids["c"]], ids["b"], ids["a"],
    )  # fmt: skip
    assert (found["a"].parents, found["a"].parent_id, found["a"].root_id) == ([], None, ids["a"])
