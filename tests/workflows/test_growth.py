"""Workflows that grow while they run: how deep they can become."""

from __future__ import annotations

import msgspec
import pytest

from ojster.core.errors import OjsterError
from ojster.jobs.messages import Acknowledgement
from ojster.workflows.plan.reader import MAX_LEVELS
from tests.workflows.bench import WorkflowBench
from tests.workflows.driver import every_step

pytestmark = pytest.mark.anyio

INNER = {"type": "group", "jobs": [{"type": "dig", "args": []}]}


@pytest.mark.parametrize("inner", [INNER, {"type": "chain", "steps": [{"type": "dig", "args": []}]}])
async def test_a_workflow_that_digs_itself_in_is_stopped_and_stays_readable(
    flow: WorkflowBench, inner: dict[str, object]
) -> None:
    await flow.create({"type": "chain", "steps": [{"type": "dig", "args": []}]})
    step = msgspec.json.encode(inner)
    refusal, levels = None, 1
    while refusal is None:
        levels += 1
        job = await flow.fetch_one()
        (found,) = await flow.service.jobs.acknowledge(
            [Acknowledgement(job.id, None, job.worker_id, job.attempt, append=(step,))]
        )
        if isinstance(found, OjsterError):
            refusal = found
    assert (levels, "nested deeper than" in str(refusal)) == (MAX_LEVELS + 1, True)
    assert len(list(every_step(await flow.look()))) > MAX_LEVELS
    await flow.ack(await flow.find(job))
    assert await flow.state() == "completed"
