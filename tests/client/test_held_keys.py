"""An application's transaction that stays open: what it holds keeps nothing else from going on."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from ojster import App, Conflict, JobType, Unique
from ojster.core.json_objects import read_members
from ojster.jobs.messages import Acknowledgement
from ojster.schedules.cron import Cron
from ojster.schedules.due_work import go_on
from ojster.service import Service
from ojster.storage.open import open_database
from ojster.workflows.run.start_quota import WAIT_US
from tests.client.test_enqueue_in_transaction import psycopg_async
from tests.conftest import Clock, request
from tests.workflows.bench import WorkflowBench, chain, group, job

pytestmark = [pytest.mark.anyio, pytest.mark.needs("advisory-locks", "skip-locked")]

UNIQUE = {"unique": {"keys": ["type", "queue"], "on_conflict": "ignore"}}
REPLACING = {"unique": {"keys": ["type", "queue"], "on_conflict": "replace"}}


@pytest.fixture
async def app(postgres_url: str) -> AsyncIterator[App]:
    made = App(postgres_url)
    yield made
    await made.aclose()


@pytest.fixture
async def flow(postgres_url: str) -> AsyncIterator[WorkflowBench]:
    clock = Clock()
    service = Service(open_database(postgres_url, clock=clock))
    yield WorkflowBench(service, clock)
    await service.close()


def declared(app: App, on_conflict: Any) -> JobType[[], None]:
    @app.job("x", unique=Unique(keys=["queue"], on_conflict=on_conflict))
    async def x() -> None: ...

    return x


async def test_a_step_of_a_workflow_cannot_be_replaced_in_a_callers_transaction(app: App, flow: WorkflowBench) -> None:
    """Reports of the other steps would wait for its end."""
    x = declared(app, "replace")
    await flow.create(group(job("x", options=REPLACING), job("y")))
    async with psycopg_async() as connection:
        with pytest.raises(Conflict, match="is a step of a workflow, and cannot be replaced in your transaction"):
            await x.aenqueue_in(connection)
        await connection.rollback()
    assert {one.type for one in await flow.fetch(count=2)} == {"x", "y"}


async def test_cron_jobs_fire_beside_one_whose_unique_key_is_held(app: App, flow: WorkflowBench) -> None:
    x = declared(app, "ignore")
    for name, type in (("held", "x"), ("free", "free")):
        template = json.dumps({"type": type, "args": [], "options": UNIQUE}).encode()
        await flow.service.schedules.register(Cron(name=name, expression="@every 1s", template=template))
    (later,) = await flow.service.jobs.enqueue([request("later", delay_until="+PT1S")])
    async with psycopg_async() as connection:
        await x.aenqueue_in(connection)
        await flow.run_due(2)
        assert (await flow.find(later.job)).state == "available"
        assert (await flow.service.jobs.count())["default"]["available"] == 2
        await connection.rollback()
    await flow.run_due(1)
    assert {one.type for one in await flow.fetch(count=9)} == {"later", "free", "x"}


async def test_a_report_is_accepted_although_the_key_of_the_next_step_is_held(app: App, flow: WorkflowBench) -> None:
    """The step starts later; meanwhile, the next steps of others start."""
    x = declared(app, "ignore")
    await flow.create(chain(job("a"), job("x", options=UNIQUE), job("end")))
    (first,) = await flow.fetch()
    async with psycopg_async() as connection:
        await x.aenqueue_in(connection)
        (ended,) = await flow.service.jobs.acknowledge([Acknowledgement(first.id, b"1")])
        assert getattr(ended, "state", ended) == "completed"
        due = await flow.run_due()
        assert due is not None
        assert due == flow.clock.now + WAIT_US, "it is tried again after a pause, not at once"
        left = await flow.run(go_on, None)
        assert (left.at, left.has_more) == (None, False)
        assert await flow.fetch(count=9) == []
        await connection.rollback()
    await flow.run_due(1)
    assert await flow.work() == ["x", "end"]
    assert await flow.state() == "completed"


async def test_due_work_goes_on_beside_a_reaction_whose_unique_key_is_held(app: App, flow: WorkflowBench) -> None:
    x = declared(app, "ignore")
    push = {"action": "enqueue", "job": {"type": "x", "args": [], "options": UNIQUE}}
    options = {"retry": {"max_attempts": 1}, "visibility_timeout_ms": 1000}
    wire = {"type": "lost", "args": [], "options": options, "event_reactions": {"on_failure": [push]}}
    (lost,) = await flow.service.jobs.enqueue([read_members(json.dumps(wire).encode())])
    await flow.fetch()
    (later,) = await flow.service.jobs.enqueue([request("later", delay_until="+PT1S")])
    async with psycopg_async() as connection:
        await x.aenqueue_in(connection)
        await flow.run_due(2)
        assert (await flow.find(later.job)).state == "available"
        assert (await flow.find(lost.job)).state == "active", "its attempt ends when its reaction can be carried out"
        await connection.rollback()
    await flow.run_due(1)
    assert (await flow.find(lost.job)).state == "discarded"
    assert {one.type for one in await flow.fetch(count=9)} == {"later", "x"}
