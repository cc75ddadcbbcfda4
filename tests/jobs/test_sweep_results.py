"""What a sweep remembers of its jobs, and what workers may append."""

from __future__ import annotations

import pytest

from ojster.core.access import Access, Operation
from ojster.core.errors import Conflict, Forbidden
from ojster.core.job import Job
from ojster.jobs.bulk import Action
from ojster.jobs.messages import Acknowledgement
from ojster.jobs.scope import Caller
from ojster.jobs.sweeps import MAX_ITEM_RESULTS, Sweep, SweepBatchResult
from tests.conftest import START, Bench
from tests.workflows.bench import WorkflowBench, chain, group, job


def test_a_sweep_counts_all_jobs_and_names_the_first_thousand() -> None:
    found = Sweep(Action.CANCEL)
    refusal = Conflict("no")
    found.add(SweepBatchResult(["refused"], [refusal]))
    for start in range(0, 1_200, 200):
        found.add(SweepBatchResult([str(n) for n in range(start, start + 200)], [None] * 200))
    assert (found.matched, found.succeeded, found.failed) == (1_201, 1_200, 1)
    assert repr(found) == "<Sweep cancel: matched=1201, succeeded=1200, failed=1>"
    assert repr(Sweep(Action.RETRY, START)) == "<Sweep retry: matched=0, succeeded=0, failed=0, dry run>"
    assert (len(found.items), MAX_ITEM_RESULTS) == (1_000, 1_000)
    assert found.items[0] == ("refused", refusal)
    assert found.items[-1] == ("998", None)


@pytest.mark.anyio
async def test_a_worker_appends_no_step_with_code_unless_it_may_push_it(bench: Bench) -> None:
    await bench.push()
    held = await bench.fetch_one(worker_id="w")
    step = b'{"type":"ojster.code","args":[],"ojster_code":{"body":"def body(job): pass"}}'
    worker = bench.service.as_(Caller(None, Access("ada", frozenset({Operation.DEQUEUE}))))
    (refused,) = await worker.jobs.acknowledge([Acknowledgement(held.id, None, "w", 1, (step,))])
    assert isinstance(refused, Forbidden)
    assert "'ada' may not push jobs that carry code" in refused.message
    assert (await bench.find(held)).state == "active"
    (done,) = await worker.jobs.acknowledge([Acknowledgement(held.id, None, "w", 1)])
    assert isinstance(done, Job)


async def untils(flow: WorkflowBench) -> list[int]:
    def read(tx: object, requests: object) -> list[list[int]]:
        return [[until for (until,) in tx.execute("SELECT until FROM ending_attempts ORDER BY until")]]  # type: ignore[attr-defined]

    return await flow.run(read, None)


@pytest.mark.anyio
async def test_a_workflow_waits_for_a_cancelled_step_until_its_lease_is_over(flow: WorkflowBench) -> None:
    step = job("a", options={"visibility_timeout": 100})
    await flow.create(group(step, job("b")) | {"timeout": 60, "on_error": job("clean")})
    (held,) = await flow.take()
    await flow.run_due(60)
    assert (await flow.find(held)).state == "cancelled"
    assert await untils(flow) == [START + 100_000_000]
    await flow.run_due(39)
    assert await flow.work() == []
    await flow.run_due(1)
    assert await untils(flow) == []
    assert await flow.work() == ["clean"]


@pytest.mark.anyio
async def test_a_worker_gets_thirty_seconds_to_stop_a_step_that_is_out_of_time(flow: WorkflowBench) -> None:
    await flow.create(chain(job("a", options={"timeout": 10, "retry": {"max_attempts": 1}}), job("b")))
    await flow.take()
    await flow.run_due(10)
    assert await untils(flow) == [START + 40_000_000]
