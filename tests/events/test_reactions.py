"""Reactions to job events: they run in the transaction of the event, and their failures never undo it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from ojster import App, InvalidRequest, Retry, chain
from ojster.core.errors import Conflict
from ojster.core.events import EventFilter
from ojster.core.job import Job
from ojster.core.json_objects import read_members
from ojster.fleet.workers import Heartbeat
from ojster.jobs.scope import Caller
from ojster.operators import QueueConfigBody
from ojster.reactions import OF_JOB, enqueue, retry_after, start
from tests.conftest import Bench

pytestmark = pytest.mark.anyio


async def push(bench: Bench, reactions: dict[str, Any], *args: Any, **options: Any) -> Job:
    body = {"type": "t", "args": list(args), "options": options, "event_reactions": reactions}
    (pushed,) = await bench.service.jobs.enqueue([read_members(msgspec.json.encode(body))])
    return pushed.job


def job(type: str, *args: Any, **more: Any) -> dict[str, Any]:
    return {"action": "enqueue", "job": {"type": type, "args": list(args)} | more}


def ref(text: str) -> dict[str, str]:
    return {"$ref": text}


async def types(bench: Bench) -> list[str]:
    return [one.type for one in await bench.fetch(count=20)]


async def test_s55_each_event_has_its_reactions_in_its_own_transaction(bench: Bench) -> None:
    events = ("on_creation", "on_unblock", "on_assignment", "on_success", "on_failure")
    reactions = {event: [job(event.replace("on_", "after_"), options={"queue": "r"})] for event in events}
    one = await push(bench, reactions, pending=True)

    async def happened() -> list[str]:
        return [found.type for found in await bench.fetch("r", count=20)]

    assert await happened() == ["after_creation"]
    await bench.service.workflows.activate(one.id)
    assert await happened() == ["after_unblock"]
    active = await bench.fetch_one()
    assert await happened() == ["after_assignment"]
    await bench.ack(active, b"1")
    assert await happened() == ["after_success"]
    await push(bench, reactions, retry={"max_attempts": 1})
    assert await happened() == ["after_creation"]
    await bench.fail(await bench.fetch_one())
    assert await happened() == ["after_assignment", "after_failure"]


async def test_references_lead_to_the_job(bench: Bench) -> None:
    follow = job("bill", ref("job.result.total"), ref("job.args.0"), [ref("job.id")], meta={"of": ref("job.type")})
    one = await push(bench, {"on_success": [follow], "on_failure": [job("tell", ref("job.error.message"))]}, "ada")
    await bench.ack(await bench.fetch_one(), b'{"total":7}')
    bill = await bench.fetch_one()
    assert (bill.type, bill.args, bill.meta["of"]) == ("bill", [7, "ada", [one.id]], "t")
    await push(bench, {"on_failure": [job("tell", ref("job.error.message"))]}, retry={"max_attempts": 1})
    await bench.fail(await bench.fetch_one())
    assert (await bench.fetch_one()).args == ["it failed"]


async def test_a_failure_that_is_retried_triggers_no_reaction(bench: Bench) -> None:
    await push(bench, {"on_failure": [job("tell")]}, retry={"max_attempts": 2, "jitter": False})
    await bench.fail(await bench.fetch_one())
    assert await types(bench) == []
    await bench.run_due(2)
    await bench.fail(await bench.fetch_one())
    assert await types(bench) == ["tell"]


async def test_a_reaction_starts_a_workflow_with_the_result_of_the_job(bench: Bench) -> None:
    flow = {"type": "chain", "steps": [{"type": "a", "args": [ref("params.x")]}]}
    await bench.service.definitions.create("flow", read_members(msgspec.json.encode(flow)))
    named = {"definition": "flow", "params": {"x": ref("job.result")}, "target": "t"}
    plain = {"type": "chain", "steps": [{"type": "b", "args": []}, {"type": "c", "args": [ref("steps.0.result")]}]}
    actions = [{"action": "start-workflow", "workflow": workflow} for workflow in (named, plain)]
    await push(bench, {"on_success": actions})
    await bench.ack(await bench.fetch_one(), b"[1]")
    started = {one.type: one.args for one in await bench.fetch(count=5)}
    assert started == {"a": [[1]], "b": []}


async def test_a_reaction_that_fails_is_noted_and_undoes_nothing(bench: Bench) -> None:
    missing = {"action": "start-workflow", "workflow": {"definition": "nobody"}}
    wrong = job("x", ref("job.result.no.such"))
    elsewhere = job("x", ref("params.x"))
    one = await push(bench, {"on_success": [missing, wrong, elsewhere, job("fine")]})
    assert (await bench.ack(await bench.fetch_one(), b"1")).state == "completed"
    assert await types(bench) == ["fine"]
    page = await bench.service.events.select(EventFilter(types=("job.reaction_failed",)))
    assert len(page.events) == 3
    assert (await bench.find(one)).state == "completed"
    broken = await push(bench, {"on_creation": [missing]})
    assert (await bench.find(broken)).state == "available"


async def test_a_duplicate_made_by_a_reaction_is_a_reaction_that_fails(bench: Bench) -> None:
    unique = job("once", options={"unique": {"keys": ["type"]}, "queue": "r"})
    for _ in range(2):
        await push(bench, {"on_success": [unique]})
        await bench.ack(await bench.fetch_one())
    assert (await bench.events()).count("job.reaction_failed") == 1
    assert [one.type for one in await bench.fetch("r", count=5)] == ["once"]


async def test_the_job_of_a_reaction_may_replace_a_step_of_a_workflow(bench: Bench) -> None:
    one = {"unique": {"keys": ["type"], "on_conflict": "replace"}}
    await push(bench, {"on_success": [job("sweep", options=one)]})
    first = await bench.fetch_one()
    request = {"type": "chain", "steps": [{"type": "sweep", "args": [], "options": one}]}
    workflow = await bench.service.workflows.create(read_members(msgspec.json.encode(request)))
    await bench.ack(first)
    (sweep,) = await bench.fetch(count=5)
    assert sweep.workflow is None
    assert (await bench.service.workflows.show(workflow.id)).state == "cancelled"


async def test_s60_w2_delayed_retries_follow_normal_ones_and_precede_other_reactions(
    bench: Bench,
) -> None:
    reactions = {"on_failure": [{"action": "retry-with-delays", "delays": ["30m", "1d"]}, job("tell")]}
    retry = {"max_attempts": 2, "initial_interval": "PT1S", "jitter": False}
    one = await push(bench, reactions, retry=retry)
    waits = []
    for _ in range(4):
        active = await bench.fetch_one()
        assert active.id == one.id
        failed = await bench.fail(active)
        waits.append((failed.state, (failed.retry_delay or 0) // 1_000_000))
        await bench.run_due(waits[-1][1])
    assert waits == [("retryable", 1), ("retryable", 1_800), ("retryable", 86_400), ("discarded", 86_400)]
    assert await types(bench) == ["tell"]


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ("final error", True),
        ("limit", True),
        ("full queue", True),
        ("deleted queue", True),
        ("cancelled", False),
        ("expired", False),
    ],
)
async def test_a_failure_is_told_however_a_job_is_given_up(bench: Bench, how: str, told: bool) -> None:
    queues, reactions = bench.service.queues, {"on_failure": [job("tell")]}
    limit = {"rate_limit": {"key": "k", "rate": {"limit": 1, "period": "PT60S"}, "on_limit": "drop"}}
    await queues.configure("full", QueueConfigBody(max_size=1, overflow_policy="drop_oldest"))
    queue = "full" if how == "full queue" else "q"
    ways: dict[str, dict[str, Any]] = {"limit": limit, "expired": {"expires_at": "+PT60S"}}
    options = ways.get(how, {})
    first = await push(bench, reactions, queue=queue, **options)
    match how:
        case "final error":
            await bench.fail(await bench.fetch_one("q"), retryable=False)
        case "limit":
            await push(bench, reactions, queue="q", **options)
            assert [len(await bench.fetch("q")) for _ in range(2)] == [1, 0]
        case "full queue":
            await push(bench, reactions, queue="full")
        case "deleted queue":
            await queues.delete("q", strategy="discard")
        case "cancelled":
            await bench.service.jobs.cancel(first.id)
        case _:
            await bench.run_due(60)
    assert await types(bench) == ["tell"] * told


@pytest.mark.parametrize("attempts", [0, 1, 2])
@pytest.mark.parametrize("deaths", [0, 1, 2])
async def test_neither_deaths_of_workers_nor_no_attempts_use_up_delayed_retries(
    bench: Bench, attempts: int, deaths: int
) -> None:
    reactions = {"on_failure": [{"action": "retry-with-delays", "delays": ["30m", "1d"]}]}
    await push(bench, reactions, retry={"max_attempts": attempts, "jitter": False})
    for _ in range(deaths):
        await bench.service.fleet.beat(Heartbeat("w"))
        await bench.fetch_one(worker_id="w")
        await bench.service.fleet.leave("w", lost=True)
        await bench.run_due(10)
    waits = []
    for _ in range(max(1, attempts) + 2):
        failed = await bench.fail(await bench.fetch_one())
        waits.append(0 if failed.state == "discarded" else (failed.retry_delay or 0) // 1_000_000)
        await bench.run_due(waits[-1])
    assert waits[-3:] == [1_800, 86_400, 0]


@pytest.mark.parametrize(("total", "state"), [(1_799, "discarded"), (1_800, "retryable")])
async def test_a_delayed_retry_beyond_the_total_timeout_is_not_made_and_the_failure_is_told(
    bench: Bench, total: int, state: str
) -> None:
    reactions = {"on_failure": [{"action": "retry-with-delays", "delays": ["30m"]}, job("tell")]}
    await push(bench, reactions, retry={"max_attempts": 1}, total_timeout=total)
    assert (await bench.fail(await bench.fetch_one())).state == state
    assert await types(bench) == ([] if state == "retryable" else ["tell"])


@pytest.mark.parametrize("attempts", [1, 3])
@pytest.mark.parametrize(
    "error", [{"retryable": False}, {"code": "DISCARD"}, {"code": "DEAD_LETTER"}, {"code": "FAIL"}, {"type": "auth.No"}]
)
async def test_an_error_that_is_final_is_not_tried_after_a_delay(
    bench: Bench, error: dict[str, Any], attempts: int
) -> None:
    reactions = {"on_failure": [{"action": "retry-with-delays", "delays": ["1m"]}]}
    await push(bench, reactions, retry={"max_attempts": attempts, "non_retryable_errors": ["auth.*"]})
    assert (await bench.fail(await bench.fetch_one(), **error)).state == "discarded"


async def test_the_event_of_a_failure_says_whether_its_error_is_retryable(bench: Bench) -> None:
    for type in ("auth.No", "Other"):
        await push(bench, {}, retry={"non_retryable_errors": ["auth.*"]})
        await bench.fail(await bench.fetch_one(), type=type)
    page = await bench.service.events.select(EventFilter(types=("job.failed",)))
    assert [event["data"]["error"]["retryable"] for event in page.events] == [False, True]


async def test_steps_have_reactions_and_a_delayed_retry_does_not_end_the_workflow(bench: Bench) -> None:
    reactions = {"on_failure": [{"action": "retry-with-delays", "delays": ["1m"]}], "on_unblock": [job("note")]}
    step = {"type": "a", "args": [], "options": {"retry": {"max_attempts": 1}}, "event_reactions": reactions}
    info = await bench.service.workflows.create(
        read_members(msgspec.json.encode({"type": "chain", "steps": [step, {"type": "b", "args": []}]}))
    )
    found = {one.type: one for one in await bench.fetch(count=5)}
    assert set(found) == {"a", "note"}
    await bench.fail(found["a"])
    assert (await bench.service.workflows.show(info.id)).state == "running"
    await bench.run_due(61)
    await bench.ack(await bench.fetch_one())
    assert (await bench.fetch_one()).type == "b"


async def test_reactions_that_follow_each_other_have_a_bound(bench: Bench) -> None:
    inner: dict[str, Any] = job("t")
    for _ in range(12):
        inner = job("t", event_reactions={"on_creation": [inner]})
    await push(bench, {"on_creation": [inner]})
    assert len(await types(bench)) == 9
    assert "job.reaction_failed" in await bench.events()


@pytest.mark.parametrize(
    "reactions",
    [
        {"on_sunday": []},
        {"on_success": [{"action": "dance"}]},
        {"on_success": [{"action": "enqueue"}]},
        {"on_success": [{"action": "enqueue", "job": {"type": "NO TYPE", "args": []}}]},
        {"on_success": [{"action": "enqueue", "job": {"type": "t", "args": []}, "more": 1}]},
        {"on_success": [{"action": "retry-with-delays", "delays": ["1d"]}]},
        {"on_failure": [{"action": "retry-with-delays", "delays": []}]},
        {"on_failure": [{"action": "retry-with-delays", "delays": ["1y"]}]},
        {"on_failure": [{"action": "retry-with-delays", "delays": ["1d"]}] * 2},
        {"on_success": [job("t")] * 21},
        [],
        3,
    ],
)
async def test_s61_and_s65_what_is_no_reaction_is_refused(bench: Bench, reactions: Any) -> None:
    with pytest.raises(InvalidRequest):
        await push(bench, reactions)
    assert await types(bench) == []


async def test_a_lost_lease_reacts_to_nothing(bench: Bench) -> None:
    await push(bench, {"on_success": [job("after")]})
    one = await bench.fetch_one(worker_id="w", lease=1_000_000)
    await bench.run_due(2)
    with pytest.raises(Conflict):
        await bench.ack(one)
    assert await types(bench) == ["t"]


async def test_reactions_of_a_tenant_make_what_is_theirs(bench: Bench) -> None:
    acme = bench.service.as_(Caller("acme"))
    body = {"type": "t", "args": [], "event_reactions": {"on_creation": [job("after")]}}
    await acme.jobs.enqueue([read_members(msgspec.json.encode(body))])
    assert {one.tenant for one in await bench.fetch(count=5)} == {"acme"}


async def test_reactions_are_written_in_python(bench: Bench) -> None:
    app = App("sqlite:///unused.db")

    @app.job("bill")
    async def bill(total: int) -> None: ...

    reactions = {
        "on_success": [enqueue(bill.s(OF_JOB["result"])), start(chain(bill.s(1))), start("flow", target="t")],
        "on_failure": [retry_after("30m")],
    }

    @app.job("t", retry=Retry(max_attempts=1), reactions=reactions)
    async def t() -> None: ...

    await bench.service.jobs.enqueue([t.request([], {})])
    await bench.ack(await bench.fetch_one(), b"9")
    assert sorted(one.args[0] for one in await bench.fetch(count=5)) == [1, 9]
