"""Definitions, suspensions, collections and properties in Python. Each test runs in process and over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from ojster import (
    App,
    Conflict,
    Duplicate,
    Flow,
    InvalidRequest,
    JobContext,
    JobFailed,
    NotFound,
    PayloadTooLarge,
    Retry,
    RetryWorkflow,
    SkipRest,
    Snooze,
    Wait,
    Worker,
    WorkflowFailed,
    chain,
    definition,
    group,
    param,
    result_of,
)
from ojster.workflows.definitions import DefinitionDeletion
from tests.waiting import PATIENCE
from tests.workflows.test_workflows_in_python import s, url

__all__ = ["url"]

pytestmark = pytest.mark.anyio


@pytest.fixture
async def app(url: str) -> AsyncIterator[App]:
    app = App(url)

    @app.job("echo")
    async def echo(value: Any) -> Any:
        return value

    @app.job("wait")
    async def wait(again: bool = False) -> None:
        raise Wait(60, again=again)

    @app.job("ask")
    async def ask(job: JobContext) -> Any:
        if job.resumed is None:
            raise Wait(again=True, deadline=datetime.now(UTC) + timedelta(hours=1))
        return ["resumed with", job.resumed]

    @app.job("again")
    def again(job: JobContext) -> int:
        tries = job.properties.update("tries", lambda tries: tries + 1, default=0)
        if tries < 3:
            raise Snooze(until=datetime.now(UTC))
        return int(tries)

    @app.job("count")
    async def count(job: JobContext, times: int) -> None:
        for _ in range(times):
            await job.properties.aupdate("count", lambda count: count + 1, default=0)

    @app.job("whole")
    async def whole(job: JobContext) -> str:
        if await job.properties.aget("enough"):
            return "done"
        raise RetryWorkflow

    @app.job("enough")
    async def enough() -> None:
        raise SkipRest({"found": 1})

    @app.job("tell")
    def tell(job: JobContext) -> None:
        job.note("from a thread")
        job.properties.set(a=1, b=[2])
        job.properties.delete("a")
        assert job.properties.all() == {"b": [2]}
        assert job.properties.get("b") == [2]
        with pytest.raises(PayloadTooLarge):
            job.properties.set(large="x" * 70_000)

    @app.job("shelve")
    def shelve(job: JobContext, name: str) -> str:
        made = job.collection.add(name, {"by": name}, category="c")
        with pytest.raises(Conflict):
            job.collection.add(name)
        job.collection_named("shelf").add(f"{name}-{job.id}", 1)
        assert job.collection.get(name) == {"by": name}
        assert [item.name for item in job.collection.items(category="c")] == [name]
        return made.name

    @app.job("ashelve")
    async def ashelve(job: JobContext) -> int:
        (item,) = await job.collection.aitems(name_startswith="x")
        await job.collection.aremove(item.name)
        with pytest.raises(NotFound):
            await job.collection.aget(item.name)
        return len(await job.collection.aitems(history=True))

    @app.job("atell")
    async def atell(job: JobContext) -> None:
        await job.anote({"from": "the loop"})
        with pytest.raises(RuntimeError, match="anote"):
            job.note("it would wait for itself")

    worker = Worker(app)
    working = asyncio.create_task(worker.run())
    yield app
    worker.stop(grace=1)
    await working
    await app.aclose()


async def until(app: App, id: str, state: str) -> None:
    """Wait until a step of a workflow is in a state."""
    while True:
        status = await app.client().workflows.status(id)
        if any(one.state == state for one in status.current):
            return
        await asyncio.sleep(0.02)


async def test_handlers_use_the_collection_of_their_workflow_and_named_ones(app: App) -> None:
    await app.client().collections.create("shelf")
    run = await app.astart(chain(s(app, "shelve", "x"), s(app, "ashelve")))
    assert await run.aresult(PATIENCE) == 1
    assert len(await app.collection("shelf").aitems()) == 1
    assert await app.collection_of(run.id).aitems() == []


async def test_a_handler_of_a_job_alone_has_no_collection_of_a_workflow(app: App) -> None:
    handle = await app.handlers["ashelve"].using(retry=1).aenqueue()
    with pytest.raises(JobFailed, match="belongs to no workflow"):
        await handle.aresult(PATIENCE)


async def test_a_definition_is_made_once_and_gets_a_new_version_when_it_changes(app: App) -> None:
    flow = chain(s(app, "echo", param("what")))
    first = await app.adefine("flow", flow, params_schema={"type": "object", "required": ["what"]})
    assert (await app.adefine("flow", flow, params_schema={"type": "object", "required": ["what"]})).version == 1
    second = await app.adefine("flow", flow, retry=Retry(max_attempts=2))
    assert (first.version, second.version) == (1, 2)
    assert first.hashes == second.hashes
    run = await app.astart("flow", params={"what": 42}, name="mine", metadata={"by": "ada"})
    assert await run.aresult(PATIENCE) == 42
    assert (run.info.definition, run.info.definition_version, run.info.name) == ("flow", 2, "mine")
    with pytest.raises(InvalidRequest, match="required"):
        await app.astart("flow", version=1)
    client = app.client()
    assert [one.name for one in await client.definitions.all()] == ["flow"]
    assert (await client.workflows.statistics("flow")).current["completed"] == 1
    await client.definitions.delete(DefinitionDeletion("flow"))
    assert await client.definitions.all() == []


async def test_a_target_is_taken_or_locked_until_a_workflow_is_over(app: App) -> None:
    await app.adefine("flow", s(app, "wait"))
    run = await app.astart("flow", target="/db/1", locks="^/db/(1|2)/")
    for target, error in (("/db/1", Duplicate), ("/db/2/tables", Conflict)):
        with pytest.raises(error) as refused:
            await app.astart("flow", target=target)
        assert refused.value.details["existing_workflow_id"] == run.id
    await until(app, run.id, "waiting")
    await run.aresume()
    await run.aresult(PATIENCE)
    other = await app.astart("flow", target="/db/2/tables")
    await other.acancel()


async def test_a_handler_waits_and_what_it_waits_for_is_its_result(app: App) -> None:
    run = await app.astart(chain(s(app, "wait"), s(app, "echo", "after")))
    await until(app, run.id, "waiting")
    await run.aresume({"paid": True})
    assert await run.aresult(PATIENCE) == "after"
    assert bytes(run.info.steps[0].result) == b'{"paid":true}'  # type: ignore[index, arg-type]
    failing = await app.astart(chain(s(app, "wait")))
    await until(app, failing.id, "waiting")
    await failing.aresume(error="the ticket was closed")
    with pytest.raises(WorkflowFailed):
        await failing.aresult(PATIENCE)


async def test_a_handler_that_waits_may_run_again(app: App) -> None:
    run = await app.astart(chain(s(app, "ask")))
    await until(app, run.id, "waiting")
    await run.aresume("yes", step="0")
    assert await run.aresult(PATIENCE) == ["resumed with", "yes"]


async def test_a_job_alone_waits(app: App) -> None:
    handle = await app.handlers["ask"].aenqueue()
    while (await handle.arefresh()).state != "pending":
        await asyncio.sleep(0.02)
    await app.client().workflows.activate(handle.id, b"7")
    assert await handle.aresult(PATIENCE) == ["resumed with", 7]


async def test_a_handler_goes_back_to_the_queue_and_keeps_what_it_shares(app: App) -> None:
    run = await app.astart(chain(s(app, "again")), properties={"tries": 0})
    assert await run.aresult(PATIENCE) == 3
    assert await run.aproperties() == {"tries": 3}


async def test_parallel_tasks_lose_none_of_each_others_changes(app: App) -> None:
    run = await app.astart(group([s(app, "count", 5) for _ in range(8)]))
    await run.aresult(PATIENCE)
    assert await run.aproperties() == {"count": 40}


async def test_a_handler_has_its_workflow_run_again(app: App) -> None:
    once = Retry(max_attempts=3, initial_interval=0.01, jitter=False)
    await app.adefine("flow", chain(s(app, "whole"), s(app, "echo", 1)), retry=once)
    run = await app.astart("flow")
    with pytest.raises(WorkflowFailed):
        await run.aresult(PATIENCE)
    assert run.info.attempt == 3, run.info.error
    done = await app.astart("flow", properties={"enough": True})
    assert await done.aresult(PATIENCE) == 1


async def test_a_handler_skips_the_rest(app: App) -> None:
    run = await app.astart(chain(s(app, "enough"), s(app, "echo", 1)))
    await run.aresult(PATIENCE)
    assert [step.state for step in run.info.steps] == ["completed", "skipped"]  # type: ignore[union-attr]


async def test_notes_are_kept_in_order(app: App) -> None:
    run = await app.astart(chain(s(app, "tell"), s(app, "atell")))
    await run.aresult(PATIENCE)
    assert await run.anotes() == ["from a thread", {"from": "the loop"}]
    status = await run.astatus()
    assert [one.name for one in status.results["steps"]] == ["tell", "atell"]


def test_times_without_a_zone_are_refused_where_they_are_written() -> None:
    naive = datetime(2030, 1, 1)
    with pytest.raises(InvalidRequest):
        Snooze(until=naive)
    with pytest.raises(InvalidRequest):
        Wait(deadline=naive)
    with pytest.raises(TypeError):
        SkipRest(object())


# Flows


async def test_a_definition_may_be_a_flow_or_have_one_as_a_step(app: App) -> None:
    """Its arguments may refer to the parameters and to earlier steps, as those of every step."""

    @app.flow("twice")
    async def twice(flow: Flow, text: str) -> Any:
        return await flow.run(s(app, "echo", text + text))

    @app.flow("outer")
    async def outer(flow: Flow, text: str) -> Any:
        return await flow.run(definition("step", params={"text": text}))

    echo = s(app, "echo", "b")
    for name, steps, expected in (
        ("whole", twice.s(param("text")), "aa"),
        ("step", chain(s(app, "echo", param("text")), twice.s(result_of("0"))), "aa"),
        ("nested", chain(definition("whole", params={"text": param("text")}), echo), "b"),
        ("asked for", outer.s(param("text")), "aa"),
    ):
        assert (await app.adefine(name, steps)).version == (await app.adefine(name, steps)).version == 1
        run = await app.astart(name, params={"text": "a"})
        await Worker(app).run(until_empty=True)
        assert await run.aresult(timeout=PATIENCE) == expected, name


async def test_what_a_flow_is_started_with_is_data_also_if_it_looks_like_a_reference(app: App) -> None:
    @app.flow("same")
    async def same(flow: Flow, value: Any) -> Any:
        return value

    @app.flow("parent")
    async def parent(flow: Flow, value: Any) -> Any:
        return await flow.run(same, value)

    data = {"$ref": "#/components/schemas/Order"}
    for run in (await same.astart(data), await parent.astart(data)):
        await Worker(app).run(until_empty=True)
        assert await run.aresult(timeout=PATIENCE) == data
