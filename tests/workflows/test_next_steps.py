"""The next step, handed out in the transaction in which the step before it ends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from ojster.core.job import Job
from ojster.jobs.claim import claim
from ojster.jobs.claim_policy import Claim
from ojster.jobs.completion import acknowledge
from ojster.jobs.messages import Acknowledgement
from ojster.storage.transaction import Transaction
from ojster.workflows import extension
from ojster.workflows.run import claimed_steps, results
from ojster.workflows.run.control import hold_workflows
from tests.workflows.bench import WorkflowBench, batch, chain, graph, group, job

pytestmark = pytest.mark.anyio

WORKER = Claim(("default",), 10, "w")


def done(one: Job) -> Acknowledgement:
    return Acknowledgement(one.id, msgspec.json.encode({"of": one.type}), "w", one.attempt)


async def given(flow: WorkflowBench, wire: dict[str, Any], *, together: bool) -> dict[str, Any]:
    """Run a workflow; return what each job received of the others, and its arguments."""
    await flow.create(wire)
    received: dict[str, Any] = {}
    jobs = await flow.service.jobs.fetch(WORKER)
    while jobs:
        received |= {one.type: (msgspec.json.decode(one.parent_results or b"null"), one.args) for one in jobs}
        acks = [done(one) for one in jobs]
        if together:
            _, found = await flow.service.jobs.acknowledge_and_fetch(acks, WORKER)
            assert isinstance(found, list)
            jobs = found
        else:
            await flow.service.jobs.acknowledge(acks)
            jobs = await flow.service.jobs.fetch(WORKER)
    return received


@pytest.mark.parametrize(
    "wire",
    [
        chain(job("a"), job("b"), job("c")),
        chain(job("a"), group(job("b"), chain(job("c"), job("d"))), job("e")),
        chain(group(job("a"), job("b")), group(job("c"), job("d")), job("e")),
        graph(job("a", id="a"), job("b", id="b", depends_on=["a"]), job("c", id="c", depends_on=["a", "b"])),
        chain(job("a"), batch(job("b"), job("c"), on_complete=job("d"))),
    ],
)
async def test_it_receives_the_same_as_by_a_fetch_of_its_own(flow: WorkflowBench, wire: dict[str, Any]) -> None:
    assert await given(flow, wire, together=True) == await given(flow, wire, together=False)


@pytest.mark.parametrize("wire", [chain(*[job(f"s{n}") for n in range(4)]), chain(group(job("a"), job("b")), job("c"))])
async def test_it_receives_the_same_if_that_is_not_read_ahead(
    flow: WorkflowBench, wire: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    ahead = await given(flow, wire, together=True)
    monkeypatch.setattr(extension, "foresee_inputs", lambda tx, limit: None)
    assert await given(flow, wire, together=True) == ahead


@pytest.mark.parametrize(
    "wire",
    [
        chain(*[job(f"s{number}") for number in range(105)]),
        chain(job("a"), job("b"), chain(job("c"), job("d")), job("e")),
        graph(job("a", id="a"), job("b", id="b"), job("c", id="c", depends_on=["a", "b"]), job("d", depends_on=["c"])),
        graph(job("a", id="a"), group(job("b"), job("c"), id="b"), job("d", id="c", depends_on=["a", "b"])),
    ],
)
async def test_results_of_plain_jobs_are_joined_as_all_others(
    flow: WorkflowBench, wire: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    plainly = await given(flow, wire, together=True)
    monkeypatch.setattr(results, "_plain_inputs", lambda kind, rows: None if rows else b"[]")
    assert await given(flow, wire, together=True) == plainly
    assert any(received for received, _ in plainly.values())


async def test_it_receives_the_same_if_it_was_read_ahead_in_vain(flow: WorkflowBench) -> None:
    """A claim that ends a step, and gets other jobs than the next step."""
    await flow.create(chain(*[job(f"s{number}") for number in range(5)]))
    (step,) = await flow.service.jobs.fetch(WORKER)
    one = msgspec.structs.replace(WORKER, count=1)
    for number in (1, 2, 3):
        if number == 3:
            await flow.push("urgent", priority=5)
        _, found = await flow.service.jobs.acknowledge_and_fetch([done(step)], one)
        assert isinstance(found, list)
        (step,) = found
    assert step.type == "urgent"
    (third,) = await flow.service.jobs.fetch(one)
    assert msgspec.json.decode(third.parent_results or b"") == [{"of": f"s{number}"} for number in range(3)]


async def test_what_is_known_of_it_is_not_read_again(flow: WorkflowBench, monkeypatch: pytest.MonkeyPatch) -> None:
    await flow.create(chain(job("a"), job("b"), job("c")))
    (first,) = await flow.service.jobs.fetch(WORKER)
    monkeypatch.setattr(claimed_steps, "_STEPS", "this is no SQL")
    _, found = await flow.service.jobs.acknowledge_and_fetch([done(first)], WORKER)
    assert isinstance(found, list)
    assert [one.type for one in found] == ["b"]


async def test_it_is_not_handed_out_if_the_workflow_is_held_meanwhile(flow: WorkflowBench) -> None:
    await flow.create(chain(job("a"), job("b")))
    (first,) = await flow.service.jobs.fetch(WORKER)

    def go_on(tx: Transaction, ids: Sequence[str]) -> list[list[Job]]:
        acknowledge(tx, [done(first)])
        hold_workflows(tx, ids)
        return claim(tx, [WORKER])

    assert await flow.run(go_on, flow.id) == []
    await flow.service.workflows.release(flow.id)
    (second,) = await flow.service.jobs.fetch(WORKER)
    assert second.type == "b"
    assert msgspec.json.decode(second.parent_results or b"") == [{"of": "a"}]
