"""Cron jobs: registration, one run per occurrence, and overlap policies."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from ojster.core.errors import Duplicate, NotFound
from ojster.core.events import EventFilter
from ojster.core.job import Job
from ojster.core.timestamps import parse_timestamp
from ojster.jobs.bulk import Action
from ojster.jobs.claim_policy import Claim
from ojster.jobs.filter_walk import JobFilter
from ojster.jobs.queries import Page
from ojster.jobs.scope import Caller
from ojster.schedules.cron import Cron
from ojster.schedules.due_work import run_due
from ojster.storage.open import open_database
from tests.conftest import START, Bench, Clock, shown
from tests.waiting import LONG_WAIT, PATIENCE

pytestmark = pytest.mark.anyio


def cron(name: str = "c", expression: str = "@every 60s", **more: Any) -> Cron:
    template = {"type": "cron.job", "args": [1], "meta": {"own": True}, "options": {"queue": "q"}}
    return Cron(name=name, expression=expression, template=msgspec.json.encode(template), **more)


async def test_a_cron_job_fires_when_it_is_due_and_says_so(bench: Bench) -> None:
    registered = await bench.service.schedules.register(cron())
    assert registered.is_new
    assert registered.cron.next_run_at == START + 60_000_000
    await bench.run_due(after=59)
    assert await bench.fetch("q") == []
    await bench.run_due(after=1)
    job = await bench.fetch_one("q")
    assert (job.type, job.args, job.cron_name) == ("cron.job", [1], "c")
    assert job.meta == {"own": True, "cron_name": "c", "cron_triggered_at": shown(job)["created_at"]}
    found = await bench.service.schedules.find("c")
    assert (found.run_count, found.last_run_at, found.next_run_at) == (1, bench.clock.now, bench.clock.now + 60_000_000)
    assert "cron.triggered" in (await bench.events())


async def test_a_cron_job_runs_now_on_demand_and_later_as_before(bench: Bench) -> None:
    registered = (await bench.service.schedules.register(cron(enabled=False))).cron
    bench.clock.advance(5)
    made = await bench.service.schedules.trigger("c")
    await bench.service.schedules.trigger("c")  # although the first has not ended
    assert isinstance(made, Job)
    assert (made.type, made.cron_name, made.state) == ("cron.job", "c", "available")
    found = await bench.service.schedules.find("c")
    assert (found.run_count, found.last_run_at, found.next_run_at) == (2, bench.clock.now, registered.next_run_at)
    assert not found.enabled
    assert len(await bench.fetch("q", count=5)) == 2
    with pytest.raises(NotFound):
        await bench.service.schedules.trigger("none")


async def test_missed_occurrences_are_made_up_for_once(bench: Bench) -> None:
    await bench.service.schedules.register(cron(overlap_policy="allow"))
    await bench.run_due(after=600.5)
    assert len(await bench.fetch("q", count=50)) == 1
    found = await bench.service.schedules.find("c")
    assert found.next_run_at is not None
    assert found.next_run_at > bench.clock.now


async def test_an_interval_does_not_drift(bench: Bench) -> None:
    await bench.service.schedules.register(cron())
    await bench.run_due(after=61.5)
    assert (await bench.service.schedules.find("c")).next_run_at == START + 120_000_000


async def test_skip_leaves_out_what_would_overlap(bench: Bench) -> None:
    await bench.service.schedules.register(cron())
    await bench.run_due(after=60)
    job = await bench.fetch_one("q")
    await bench.run_due(after=60)
    assert await bench.fetch("q") == []
    assert (await bench.events()).count("cron.skipped") == 1
    await bench.ack(job)
    await bench.run_due(after=60)
    assert len(await bench.fetch("q")) == 1
    assert (await bench.service.schedules.find("c")).run_count == 2


async def test_an_occurrence_that_daylight_saving_time_skips_is_told(bench: Bench) -> None:
    """The occurrence before it tells so. Spec: ojs-cron 9"""
    bench.clock.now = parse_timestamp("2027-03-12T12:00:00Z")
    await bench.service.schedules.register(cron(expression="30 2 * * *", timezone="America/New_York"))
    await bench.run_due(after=24 * 3600)  # fires at 2:30 on the 13th; on the 14th there is no 2:30
    assert len(await bench.fetch("q", count=9)) == 1
    page = await bench.service.events.select(EventFilter(types=("cron.skipped",)))
    assert [(event["data"]["reason"], event["data"]["scheduled_time"]) for event in page.events] == [
        ("dst_skip", "2027-03-14T07:30:00.000000Z")
    ]
    found = await bench.service.schedules.find("c")
    assert found.next_run_at == parse_timestamp("2027-03-15T06:30:00Z")


async def test_allow_lets_them_overlap(bench: Bench) -> None:
    await bench.service.schedules.register(cron(overlap_policy="allow"))
    for _ in range(3):
        await bench.run_due(after=60)
    assert len(await bench.fetch("q", count=9)) == 3


async def test_cancel_previous_lets_the_newest_win(bench: Bench) -> None:
    await bench.service.schedules.register(cron(overlap_policy="cancel_previous"))
    await bench.run_due(after=60)
    first = await bench.fetch_one("q")
    await bench.run_due(after=60)
    assert (await bench.find(first)).state == "cancelled"
    assert (await bench.fetch_one("q")).id != first.id


async def test_enqueue_lets_them_wait_for_each_other(bench: Bench) -> None:
    await bench.service.schedules.register(cron(overlap_policy="enqueue"))
    for _ in range(3):
        await bench.run_due(after=60)
    order = []
    for _ in range(3):
        (job,) = await bench.fetch("q", count=9)
        assert await bench.fetch("q", count=9) == []
        order.append(job.id)
        await bench.ack(job)
    assert order == sorted(order)
    assert await bench.fetch("q") == []


async def test_who_waits_for_the_one_before_is_woken_when_it_ends(bench: Bench) -> None:
    await bench.service.schedules.register(cron(overlap_policy="enqueue"))
    for _ in range(2):
        await bench.run_due(after=60)
    first = await bench.fetch_one("q")
    waiting = asyncio.create_task(bench.service.jobs.fetch(Claim(("q",)), wait=LONG_WAIT))
    await bench.until_parked()
    assert not waiting.done()
    await bench.ack(first)
    assert len(await asyncio.wait_for(waiting, PATIENCE)) == 1


async def test_runs_wait_for_each_other_in_several_queues_too(bench: Bench) -> None:
    for queue in ("q", "r"):
        template = msgspec.json.encode({"type": "cron.job", "args": [], "options": {"queue": queue}})
        await bench.service.schedules.register(
            Cron(name="c", expression="@every 60s", template=template, overlap_policy="enqueue")
        )
        await bench.run_due(after=60)
    (first,) = await bench.fetch("q", "r", count=9)
    waiting = asyncio.create_task(bench.service.jobs.fetch(Claim(("r",)), wait=LONG_WAIT))
    await bench.until_parked()
    await bench.ack(first)
    (second,) = await asyncio.wait_for(waiting, PATIENCE)
    assert (first.queue, second.queue) == ("q", "r")


async def test_a_disabled_cron_job_does_not_fire(bench: Bench) -> None:
    await bench.service.schedules.register(cron())
    assert (await bench.service.schedules.switch("c", False)).next_run_at is None
    await bench.run_due(after=120)
    assert await bench.fetch("q") == []
    assert (await bench.service.schedules.switch("c", True)).next_run_at == bench.clock.now + 60_000_000


async def test_registering_again_updates_and_does_not_start_over(bench: Bench) -> None:
    await bench.service.schedules.register(cron(expression="0 0 * * *"))
    bench.clock.advance(10)
    again = await bench.service.schedules.register(cron(expression="0 0 * * *", overlap_policy="allow"))
    assert (again.is_new, again.is_changed) == (False, True)
    assert again.cron.overlap_policy == "allow"
    assert again.cron.created_at == START
    same = await bench.service.schedules.register(cron(expression="0 0 * * *", overlap_policy="allow"))
    assert (same.is_new, same.is_changed, same.cron) == (False, False, again.cron)
    await bench.service.schedules.register(cron(name="i"))
    bench.clock.advance(30)
    interval = (await bench.service.schedules.register(cron(name="i"))).cron
    assert interval.next_run_at == START + 70_000_000, "the interval goes on from where it was"


async def test_the_jobs_of_a_cron_job_are_those_that_it_enqueued_alone(bench: Bench) -> None:
    """Not those of the same type that others enqueued, nor those of another cron job or of another tenant."""
    acme = bench.service.as_(Caller("acme"))
    for service, name in ((bench.service, "c"), (bench.service, "d"), (acme, "c")):
        await service.schedules.register(cron(name, overlap_policy="allow"))
    await bench.push("cron.job", queue="q", meta={"cron_name": "c"})
    await bench.run_due(after=60)
    for job in await bench.fetch("q", count=9):
        await bench.ack(job)  # the runs stay known when they have ended
    manual = await bench.service.schedules.trigger("c")
    runs = await bench.service.jobs.select(JobFilter(cron_name="c"), Page(is_bounded=True))
    assert (runs.total, runs.jobs[0].id, {job.cron_name for job in runs.jobs}) == (2, manual.id, {"c"})
    of_acme = await acme.jobs.select(JobFilter(cron_name="c"))
    assert [(job.tenant, job.state) for job in of_acme.jobs] == [("acme", "completed")]
    assert (await bench.service.jobs.select(JobFilter(cron_name="none"))).total == 0
    swept = await bench.service.bulk.sweep(Action.DELETE, JobFilter(cron_name="c"))
    assert swept.succeeded == 1


async def test_a_registration_that_may_not_replace_leaves_what_there_is(bench: Bench) -> None:
    first = await bench.service.schedules.register(cron(), "reject")
    with pytest.raises(Duplicate, match="There is a cron job 'c' already"):
        await bench.service.schedules.register(cron(expression="@every 5s"), "reject")
    assert await bench.service.schedules.find("c") == first.cron
    results = await asyncio.gather(
        *(bench.service.schedules.register(cron("d", f"@every {n}s"), "reject") for n in range(1, 5)),
        return_exceptions=True,
    )
    assert sum(isinstance(one, Duplicate) for one in results) == 3, "one is first"


@pytest.mark.parametrize("runs", ["a job", "a workflow"])
async def test_a_cron_job_for_a_day_that_some_months_lack_is_registered_with_a_warning(bench: Bench, runs: str) -> None:
    workflow = msgspec.json.encode({"type": "chain", "steps": [{"type": "a", "args": []}]})
    item = cron(expression="0 0 31 * *")
    if runs == "a workflow":
        item = Cron(name="c", expression="0 0 31 * *", template=b"{}", workflow=workflow)
    (warning,) = (await bench.service.schedules.register(item)).warnings
    assert warning.startswith("Some months have no day 31")
    assert (await bench.service.schedules.register(cron(expression="0 0 1 * *"))).warnings == ()


async def test_a_cron_job_that_is_not_there_cannot_be_removed(bench: Bench) -> None:
    await bench.service.schedules.register(cron())
    await bench.service.schedules.unregister("c")
    assert await bench.service.schedules.all() == []
    with pytest.raises(NotFound):
        await bench.service.schedules.unregister("c")
    with pytest.raises(NotFound):
        await bench.service.schedules.switch("c", True)


async def test_with_many_servers_each_occurrence_fires_once(shared_url: str) -> None:
    clock = Clock()
    databases = [open_database(shared_url, clock=clock) for _ in range(4)]
    try:
        from ojster.service import Service

        engines = [Service(database) for database in databases]
        await engines[0].schedules.register(cron(overlap_policy="allow"))
        for _ in range(10):
            clock.advance(60)
            await asyncio.gather(*(database.run(run_due, None) for database in databases))
        assert (await engines[1].jobs.count())["q"] == {"available": 10}
        assert (await engines[2].schedules.find("c")).run_count == 10
    finally:
        for database in databases:
            database.close()
