"""What happens to a workflow while something else happens to it: stops, retries, replacements and due work together."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from ojster.core.errors import Conflict, OjsterError
from ojster.core.job import Job
from ojster.fleet.workers import Leave, leave
from ojster.jobs.messages import Acknowledgement
from ojster.storage.transaction import Transaction
from tests.workflows.bench import WorkflowBench, chain, graph, group, job, ref

pytestmark = pytest.mark.anyio

REPLACING = {"unique": {"keys": ["type", "args"], "on_conflict": "replace"}}


def mapped(elements: list[int], **options: Any) -> dict[str, Any]:
    return {"type": "map", "id": "each", "over": elements, "do": job("work", ref("item"), **options)}


async def rows(flow: WorkflowBench, query: str) -> list[Any]:
    def read(tx: Transaction, requests: Any) -> list[Any]:
        return [tx.execute(query) for _ in requests]

    return await flow.service.database.read(read, None)


async def settled(flow: WorkflowBench) -> None:
    """Check that the counts of queues are those of their jobs, and that nothing is left to be confirmed or started."""
    await flow.run_all_due()
    stored = {(queue, state): number for queue, state, number in await rows(flow, COUNTED)}
    counts = await flow.service.jobs.count()
    told = {(queue, state): number for queue, states in counts.items() for state, number in states.items() if number}
    assert told == stored
    for table in ("deferred_starts", "ending_attempts"):
        assert await rows(flow, f"SELECT count(*) FROM {table}") == [(0,)], table


COUNTED = "SELECT queue, state, count(*) FROM jobs GROUP BY queue, state"


async def test_a_workflow_that_another_one_ends_in_the_same_due_work_stays_ended(flow: WorkflowBench) -> None:
    """Both are due: the first starts, and its job replaces that of the second, which would have timed out next."""
    ended = await flow.create(chain(job("x", 1, options=REPLACING), timeout=10))
    await flow.create(chain(job("x", 1, options=REPLACING), scheduled_at="+PT9S"))
    await flow.run_due(20)
    await flow.run_all_due()
    info = await flow.service.workflows.show(ended.id)
    assert info.state != "running"
    assert info.completed_at is not None


async def test_a_job_that_its_own_appended_step_replaces_ends_once(flow: WorkflowBench) -> None:
    await flow.create(group(job("x", 1, options=REPLACING)))
    (one,) = await flow.fetch()
    step = msgspec.json.encode(job("x", 1, options=REPLACING))
    (outcome,) = await flow.service.jobs.acknowledge(
        [Acknowledgement(one.id, b"1", one.worker_id, one.attempt, (step,))]
    )
    assert isinstance(outcome, Conflict)
    await flow.confirm(one)
    assert await flow.work() == ["x"]
    assert (await flow.look()).completed_at is not None
    await settled(flow)


async def test_a_job_that_a_step_of_its_neighbour_would_replace_has_completed_before(flow: WorkflowBench) -> None:
    """Two workers' acknowledgements share a transaction; the second appends a step like the first one's."""
    await flow.create(group(job("x", 1, options=REPLACING), job("y")))
    jobs = {one.type: one for one in await flow.fetch(count=2)}
    step = msgspec.json.encode(job("x", 1, options=REPLACING))
    acks = [
        Acknowledgement(jobs["x"].id, b"1", jobs["x"].worker_id, 1),
        Acknowledgement(jobs["y"].id, b"1", jobs["y"].worker_id, 1, (step,)),
    ]
    outcomes = await flow.service.jobs.acknowledge(acks)
    assert [one.state for one in outcomes if isinstance(one, Job)] == ["completed"] * 2
    assert await flow.work() == ["x"]
    assert await flow.state() == "completed"
    await settled(flow)


async def test_a_step_that_is_retried_beside_a_stopping_map_leaves_its_counter_alone(flow: WorkflowBench) -> None:
    await flow.create(group(job("bad"), mapped(list(range(200))), job("other", id="other")))
    jobs: dict[str, list[Job]] = {"work": []}
    while not {"bad", "other"} <= jobs.keys() or not jobs["work"]:
        (one,) = await flow.fetch(worker_id="w")
        jobs.setdefault(one.type, []).append(one)
    await flow.give_up(jobs["bad"][0])
    await flow.cancel_step("each")
    await flow.retry_step("0")
    await flow.confirm(*jobs["work"])
    assert await flow.work() == ["bad"]
    await flow.ack(jobs["other"][0])
    await flow.run_all_due()
    assert (await flow.look()).completed_at is not None
    await settled(flow)


async def test_a_map_that_is_stopped_twice_ends(flow: WorkflowBench) -> None:
    await flow.create(chain(mapped(list(range(200)))))
    jobs = await flow.fetch(count=3, worker_id="w")
    await flow.cancel_step("each")
    await flow.service.workflows.cancel(flow.id)
    await flow.confirm(*jobs)
    await flow.run_all_due()
    assert (await flow.look()).completed_at is not None
    await settled(flow)


async def test_a_map_whose_jobs_replace_each_other_ends(flow: WorkflowBench) -> None:
    await flow.create(chain(mapped([number % 3 for number in range(300)], options=REPLACING)))
    for _ in range(20):
        await flow.run_all_due()
        await flow.work()
    info = await flow.look()
    assert info.completed_at is not None
    assert await rows(flow, "SELECT completed + cancelled FROM workflows") == [(300,)]
    await settled(flow)


async def test_a_step_of_a_workflow_that_never_started_is_not_retried_alone(flow: WorkflowBench) -> None:
    await flow.create(chain(job("a"), group(job("b"), job("c")), scheduled_at="+PT60S"))
    await flow.cancel_step("1")
    await flow.service.workflows.cancel(flow.id)
    with pytest.raises(Conflict, match="has not started"):
        await flow.retry_step("1")
    await flow.service.workflows.retry(flow.id)
    assert sorted(await flow.work()) == ["a", "b", "c"]
    assert await flow.state() == "completed"


@pytest.mark.parametrize("fails", [False, True])
async def test_a_step_of_a_container_that_never_started_does_not_pass_the_steps_before(
    flow: WorkflowBench, fails: bool
) -> None:
    await flow.create(chain(job("a"), group(job("b"), job("c"))))
    (first,) = await flow.fetch()
    await flow.cancel_step("1.0")
    await flow.cancel_step("1")
    if fails:
        await flow.give_up(first)
    with pytest.raises(Conflict, match="'1', which has not started"):
        await flow.retry_step("1.0")
    assert await flow.fetch(count=5) == []


async def test_a_container_that_is_opened_again_counts_its_promised_steps_once(flow: WorkflowBench) -> None:
    seeker = job("seeker", {"$lookup": ["internal/x"]}, {"$lookup": ["internal/y"]}) | {"id": "s"}
    inner = chain(job("p", provides=["x"]), job("q"), id="c")
    await flow.create(graph(inner, job("y", provides=["y"], id="y"), seeker))
    jobs = {one.type: one for one in await flow.fetch(count=5)}
    assert set(jobs) == {"p", "y"}
    await flow.ack(jobs["p"])
    await flow.give_up(await flow.fetch_one())
    await flow.retry_step("c.1")
    await flow.ack(await flow.fetch_one())
    assert (await flow.states())["s"] in ("waiting", "pending")


async def test_a_refused_append_leaves_the_acknowledgements_before_it(flow: WorkflowBench) -> None:
    await flow.create(group(job("x"), job("y")))
    jobs = {one.type: one for one in await flow.fetch(count=2)}
    acks = [
        Acknowledgement(jobs["x"].id, b"1", jobs["x"].worker_id, 1),
        Acknowledgement(jobs["y"].id, b"1", jobs["y"].worker_id, 1, (b'{"type":"no type"}',)),
    ]
    done, refused = await flow.service.jobs.acknowledge(acks)
    assert isinstance(done, Job)
    assert done.state == "completed"
    assert isinstance(refused, OjsterError)
    await flow.ack(jobs["y"])
    assert await flow.state() == "completed"
    await settled(flow)


UNIQUE = {"unique": {"keys": ["type"], "on_conflict": "replace"}}
DROPPING = {"queue": "slow", "rate_limit": {"key": "k", "rate": {"limit": 1, "period": "PT60S"}, "on_limit": "drop"}}
LEASE = 30_000_000


async def live(flow: WorkflowBench, type: str) -> int:
    (found,) = await rows(flow, f"SELECT count(*) FROM jobs WHERE type = '{type}' AND state IN ('available', 'active')")
    return int(found[0])


async def test_a_job_that_is_replaced_while_a_claim_looks_for_more_is_not_handed_out(flow: WorkflowBench) -> None:
    """What the claim drops ends its workflow, whose branch then replaces a job that the claim has found before."""
    await flow.push("first", **DROPPING)
    await flow.fetch("slow")
    await flow.create(chain(job("limited", options=DROPPING)) | {"on_error": job("x", options=UNIQUE)})
    old = await flow.push("x", **UNIQUE)
    found = await flow.fetch("default", "slow", count=5, worker_id="w")
    more = await flow.fetch("default", "slow", count=5, worker_id="w2")
    assert old.id not in {one.id for one in (*found, *more)}
    assert await live(flow, "x") == 1
    await settled(flow)


async def undone_with_its_worker(flow: WorkflowBench) -> None:
    """Hand out two jobs: the one whose loss cancels its workflow, and one that the compensation then replaces."""
    steps = [job("s", compensate=job("x", options=UNIQUE)), job("t", options={"queue": "t"})]
    await flow.create(group(job("a"), {"type": "saga", "steps": steps}) | {"on_lost_worker": "cancel"})
    found = {one.type: one for one in await flow.fetch(count=2, worker_id="w", lease=LEASE)}
    await flow.ack(found["s"])
    old = await flow.push("x", **UNIQUE)
    (one,) = await flow.fetch(worker_id="w", lease=LEASE)
    assert one.id == old.id


async def test_a_compensation_may_replace_a_job_whose_lease_ends_at_the_same_time(flow: WorkflowBench) -> None:
    await undone_with_its_worker(flow)
    await flow.run_due(100)
    assert await live(flow, "x") == 1
    await settled(flow)


async def test_a_compensation_may_replace_a_job_of_the_same_lost_worker(flow: WorkflowBench) -> None:
    await undone_with_its_worker(flow)
    await flow.run(leave, Leave("w", lost=True))
    assert await live(flow, "x") == 1
    await settled(flow)
