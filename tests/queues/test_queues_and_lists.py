"""Lists with pages and filters, job counts and queue statistics."""

from __future__ import annotations

from typing import Any

import pytest

from ojster.core.errors import NotFound
from ojster.jobs.filter_walk import JobFilter
from ojster.jobs.queries import Page
from tests.conftest import Bench, request

pytestmark = pytest.mark.anyio


async def test_pages_hold_every_job_once(bench: Bench) -> None:
    ids = [pushed.job.id for pushed in await bench.service.jobs.enqueue([request() for _ in range(25)])]
    found: list[str] = []
    before = None
    for _ in range(3):
        page = await bench.service.jobs.select(page=Page(10, before=before))
        found += [job.id for job in page.jobs]
        before = page.next_before
        await bench.push("later")  # a new job does not shift the pages
    assert before is None
    assert found == ids[::-1]


async def test_lists_are_filtered(bench: Bench) -> None:
    for type, queue in (("email.send", "a"), ("email.verify", "a"), ("emails", "b"), ("sms.send", "b")):
        await bench.push(type, queue=queue)
    await bench.fetch_one("b")

    async def types(**chosen: Any) -> list[str]:
        return [job.type for job in (await bench.service.jobs.select(JobFilter(**chosen))).jobs]

    assert await types(queue="a") == ["email.verify", "email.send"]
    assert await types(type="email.*") == ["email.verify", "email.send"]
    assert await types(type="sms.send") == ["sms.send"]
    assert await types(states=("active",)) == ["emails"]
    assert await types(states=("available",), queue="b") == ["sms.send"]


async def test_statistics_count_jobs_and_work(bench: Bench) -> None:
    for _ in range(3):
        await bench.push(queue="q")
    bench.clock.advance(2)
    first, second = await bench.fetch("q", count=2)
    bench.clock.advance(3)
    await bench.ack(first)
    await bench.fail(second)
    found = await bench.service.queues.statistics("q")
    assert {state: jobs for state, jobs in found.counts.items() if jobs} == {
        "available": 1,
        "completed": 1,
        "retryable": 1,
    }
    assert (found.enqueued, found.completed, found.failed) == (3, 1, 1)
    assert (found.waited, found.ran) == (4_000_000, 3_000_000)
    bench.clock.advance(3700)
    assert (await bench.service.queues.statistics("q")).completed == 0


async def test_there_are_no_statistics_of_a_queue_that_is_not_there(bench: Bench) -> None:
    with pytest.raises(NotFound):
        await bench.service.queues.statistics("nowhere")


async def test_pausing_twice_keeps_the_first_time(bench: Bench) -> None:
    first = await bench.service.queues.pause("q")
    bench.clock.advance(5)
    assert (await bench.service.queues.pause("q")).paused_at == first.paused_at
    assert (await bench.service.queues.resume("q")).paused_at is None
    assert [queue.name for queue in await bench.service.queues.all()] == ["q"]
