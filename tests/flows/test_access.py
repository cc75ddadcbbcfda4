"""A turn of a flow adds only what the token of its worker could enqueue."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from ojster import App, Flow
from ojster.core.access import Access, Operation
from ojster.core.errors import Forbidden
from ojster.core.job import Job
from ojster.jobs.scope import Caller
from ojster.service import Service
from ojster.workflows.flow import NewRecord, Turn
from tests.conftest import Clock
from tests.flows.driver import FlowBench

pytestmark = pytest.mark.anyio

ACCESS = Access("ada", frozenset(Operation), ("default", "mail.*"))
"""What a worker may do that is limited to some queues."""

PLAIN = {"type": "note", "args": []}
ELSEWHERE = PLAIN | {"options": {"queue": "secret"}}

REFUSED: list[dict[str, Any]] = [
    ELSEWHERE,
    PLAIN | {"queue": "secret"},
    {"type": "elsewhere", "args": []},
    {"type": "chain", "steps": [ELSEWHERE]},
    {"type": "group", "jobs": [PLAIN | {"name": "a"}, ELSEWHERE]},
    {"type": "flow", "job": ELSEWHERE},
    {"type": "map", "over": [1], "do": ELSEWHERE},
    PLAIN | {"fallback": ELSEWHERE},
    PLAIN | {"event_reactions": {"on_success": [{"action": "enqueue", "job": ELSEWHERE}]}},
    PLAIN | {"unique": {"keys": ["type"], "on_conflict": "replace"}},
]


@pytest.fixture
async def bench(service: Service, clock: Clock, url: str) -> FlowBench:
    return FlowBench(service, clock, App(url))


async def begin(bench: FlowBench) -> Job:
    @bench.app.flow("order")
    async def order(flow: Flow) -> None: ...

    await bench.start(order.s())
    (job,) = await bench.fetch(worker_id="w")
    return job


async def add(bench: FlowBench, job: Job, step: dict[str, Any], access: Access | None = ACCESS) -> None:
    record = NewRecord("a", "run", "a", 1, step=msgspec.Raw(msgspec.json.encode(step)))
    flows = bench.service.as_(Caller(None, access)).flows
    await flows.turn(Turn(job.id, "w", job.attempt, job.started_at, (record,)))


async def count(bench: FlowBench) -> int:
    """Return the number of the steps of the workflow."""
    return len((await bench.look()).steps or ())


@pytest.mark.parametrize("step", REFUSED, ids=lambda step: str(step)[:60])
async def test_a_turn_adds_no_step_to_a_queue_that_its_token_does_not_cover(
    bench: FlowBench, step: dict[str, Any]
) -> None:
    await bench.service.job_types.put("elsewhere", {"options": msgspec.Raw(b'{"queue":"secret"}')})
    job = await begin(bench)
    with pytest.raises(Forbidden):
        await add(bench, job, step)
    assert await count(bench) == 1
    await add(bench, job, step, None)
    assert await count(bench) > 1


@pytest.mark.parametrize("queue", ["default", "mail.high"])
async def test_a_turn_adds_single_jobs_to_the_queues_of_its_token(bench: FlowBench, queue: str) -> None:
    job = await begin(bench)
    await add(bench, job, PLAIN | {"options": {"queue": queue}})
    (added,) = await bench.fetch(queue)
    assert (added.type, added.queue) == ("note", queue)
