"""Backfills: runs of a cron job for occurrences that have passed, beside its schedule."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from ojster.client.client import HttpClient
from ojster.core.errors import InvalidRequest, NotFound
from ojster.core.events import EventFilter
from ojster.core.job import Job
from ojster.core.timestamps import format_timestamp
from ojster.schedules.backfill import MAX_BACKFILLED
from ojster.schedules.cron import Cron
from ojster.schedules.cron_expression import OVERLAP_POLICIES, OverlapPolicy
from ojster.service import Service
from ojster.workflows.read.selection import WorkflowFilter
from tests.client.in_memory import InMemoryTransport, connect
from tests.conftest import START, Bench, Http
from tests.workflows.bench import WorkflowBench, chain, job

pytestmark = pytest.mark.anyio

MINUTE = 60_000_000
FIRST = START // MINUTE * MINUTE - 10 * MINUTE
"""The first of the occurrences that have passed, in microseconds since the epoch."""

CRON_EVENTS = ("cron.triggered", "cron.skipped")

STARTS: dict[str, dict[str, Any]] = {
    "jobs": {"template": msgspec.json.encode({"type": "a", "args": []})},
    "workflows": {"workflow": msgspec.json.encode(chain(job("a")))},
}


async def register(bench: Bench, starts: str = "jobs", **more: Any) -> None:
    await bench.service.schedules.register(Cron(name="c", expression="* * * * *", **STARTS[starts], **more))


def minutes(first: int, count: int) -> list[int]:
    return [FIRST + number * MINUTE for number in range(first, first + count)]


@pytest.mark.parametrize("starts", STARTS)
async def test_each_occurrence_gets_a_run_of_its_own_in_their_order(flow: WorkflowBench, starts: str) -> None:
    await register(flow, starts)
    before = await flow.service.schedules.find("c")
    done = await flow.service.schedules.backfill("c", FIRST, FIRST + 3 * MINUTE)
    assert [run.scheduled_for for run in done.runs] == minutes(0, 4)
    assert done.next is None
    ids = [str(run.id) for run in done.runs]
    if starts == "jobs":
        written = [(await flow.find(id)).meta for id in ids]
    else:
        written = [(await flow.service.workflows.show(id)).metadata or {} for id in ids]
    assert [meta["cron_triggered_at"] for meta in written] == list(map(format_timestamp, minutes(0, 4)))
    for id in ids:
        (running,) = await flow.fetch(count=10)  # one after the other
        if starts == "workflows":
            assert (await flow.service.workflows.show(id)).state == "running"
        else:
            assert running.id == id
        await flow.ack(running)
        await flow.run_all_due()
    after = await flow.service.schedules.find("c")
    assert after == msgspec.structs.replace(before, run_count=4)
    events = (await flow.service.events.select(EventFilter(types=("cron.triggered",)))).events
    assert len(events) == 4
    assert all(event["data"]["backfill"] for event in events)


@pytest.mark.parametrize("starts", STARTS)
async def test_as_many_run_at_once_as_the_caller_wants(flow: WorkflowBench, starts: str) -> None:
    await register(flow, starts)
    await flow.service.schedules.backfill("c", FIRST, FIRST + 6 * MINUTE, concurrency=3)
    counts = []
    while jobs := await flow.fetch(count=10):
        counts.append(len(jobs))
        for one in jobs:
            await flow.ack(one)
        await flow.run_all_due()
    assert counts == [3, 3, 1]


@pytest.mark.parametrize("policy", OVERLAP_POLICIES)
@pytest.mark.parametrize("starts", STARTS)
async def test_the_schedule_goes_on_beside_a_backfill(flow: WorkflowBench, starts: str, policy: OverlapPolicy) -> None:
    await register(flow, starts, overlap_policy=policy)
    await flow.service.schedules.backfill("c", FIRST, FIRST + 2 * MINUTE)
    (backfilled,) = await flow.fetch(count=10)
    await flow.run_due(after=60)
    (scheduled,) = await flow.fetch(count=10)
    await flow.ack(backfilled)
    await flow.run_all_due()
    assert len(await flow.fetch(count=10)) == 1  # the next one of the backfill
    await flow.ack(scheduled)


@pytest.mark.parametrize("expression", ["* * * * *", "@every 60s"])
async def test_a_long_backfill_goes_on_where_the_call_before_ended(bench: Bench, expression: str) -> None:
    await bench.service.schedules.register(Cron(name="c", expression=expression, **STARTS["jobs"]))
    wanted = MAX_BACKFILLED + 3
    since = FIRST - wanted * MINUTE
    first = await bench.service.schedules.backfill("c", since, FIRST - MINUTE)
    assert len(first.runs) == MAX_BACKFILLED
    assert first.next == first.runs[-1].scheduled_for + MINUTE
    second = await bench.service.schedules.backfill("c", first.next, FIRST - MINUTE)
    assert [run.scheduled_for for run in (*first.runs, *second.runs)] == minutes(-wanted, wanted)
    assert second.next is None


async def test_a_heavy_workflow_fills_a_call_with_fewer_runs(flow: WorkflowBench) -> None:
    steps = [job("a") for _ in range(90)]
    await flow.service.schedules.register(
        Cron(name="c", expression="* * * * *", workflow=msgspec.json.encode(chain(*steps)))
    )
    done = await flow.service.schedules.backfill("c", FIRST, FIRST + 9 * MINUTE)
    assert len(done.runs) < 10
    assert done.next == done.runs[-1].scheduled_for + MINUTE


async def test_a_dry_run_shows_the_occurrences_and_starts_nothing(bench: Bench) -> None:
    await register(bench)
    done = await bench.service.schedules.backfill("c", FIRST + 1, FIRST + 2 * MINUTE, dry_run=True)
    assert [(run.scheduled_for, run.id) for run in done.runs] == [(at, None) for at in minutes(1, 2)]
    assert await bench.fetch("default") == []
    assert (await bench.service.schedules.find("c")).run_count == 0


async def test_duplicates_that_are_ignored_are_no_runs(bench: Bench) -> None:
    unique = {"keys": ["type"], "on_conflict": "ignore"}
    template = msgspec.json.encode({"type": "a", "args": [], "options": {"unique": unique}})
    await bench.service.schedules.register(Cron(name="c", expression="* * * * *", template=template))
    done = await bench.service.schedules.backfill("c", FIRST, FIRST + 2 * MINUTE)
    (waiting,) = await bench.fetch("default", count=10)
    assert [run.id for run in done.runs] == [waiting.id, None, None]
    assert (await bench.service.schedules.find("c")).run_count == 1
    counts = [len((await bench.service.events.select(EventFilter(types=(name,)))).events) for name in CRON_EVENTS]
    assert counts == [1, 2]
    again = await bench.service.schedules.trigger("c")
    assert isinstance(again, Job)
    assert again.id == waiting.id
    await bench.run_due(after=60)
    cron = await bench.service.schedules.find("c")
    assert (cron.run_count, cron.last_run_at) == (1, None)
    (miss,) = await bench.service.schedules.misses("c")
    assert (miss.reason, waiting.id in miss.message) == ("duplicate", True)


async def test_an_interval_begins_at_the_first_moment(bench: Bench) -> None:
    await bench.service.schedules.register(Cron(name="c", expression="@every 90s", **STARTS["jobs"]))
    done = await bench.service.schedules.backfill("c", FIRST, FIRST + 3 * MINUTE, dry_run=True)
    assert [run.scheduled_for - FIRST for run in done.runs] == [0, 90_000_000, 180_000_000]


async def test_what_cannot_be_backfilled_is_refused_and_starts_nothing(flow: WorkflowBench) -> None:
    await register(flow)
    schedules = flow.service.schedules
    later = flow.clock.now + MINUTE
    with pytest.raises(NotFound):
        await schedules.backfill("none", FIRST, FIRST)
    for since, until, concurrency, field in (
        (FIRST, later, 1, "until"),
        (FIRST + 1, FIRST, 1, "since"),
        (FIRST, FIRST, 0, "concurrency"),
        (FIRST, FIRST, 1_001, "concurrency"),
    ):
        with pytest.raises(InvalidRequest) as refused:
            await schedules.backfill("c", since, until, concurrency=concurrency)
        assert refused.value.details["field"] == field
    steps = chain(job("a"))
    await flow.service.definitions.create(
        "stored", {name: msgspec.Raw(msgspec.json.encode(v)) for name, v in steps.items()}
    )
    held = msgspec.json.encode({"definition": "stored", "target": "/db"})
    await schedules.register(Cron(name="held", expression="* * * * *", workflow=held))
    with pytest.raises(InvalidRequest, match="target '/db'"):
        await schedules.backfill("held", FIRST, FIRST + MINUTE)
    assert await flow.fetch(count=10) == []
    assert (await flow.service.workflows.select(WorkflowFilter())).workflows == []


async def test_a_client_backfills_as_the_service_does(service: Service, http: Http) -> None:
    await service.schedules.register(Cron(name="c", expression="* * * * *", **STARTS["jobs"]))
    client = HttpClient("http://test")
    connect(client, InMemoryTransport(http.client))
    foreseen = await client.schedules.backfill("c", FIRST, FIRST + MINUTE, concurrency=2, dry_run=True)
    assert foreseen == await service.schedules.backfill("c", FIRST, FIRST + MINUTE, concurrency=2, dry_run=True)
    done = await client.schedules.backfill("c", FIRST, FIRST + MINUTE, concurrency=2)
    assert [run.scheduled_for for run in done.runs] == minutes(0, 2)
    assert all(run.id for run in done.runs)
