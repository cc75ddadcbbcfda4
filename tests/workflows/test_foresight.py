"""A worker's report that names its step is read for ahead, and nothing shows it but the number of round trips."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest

from ojster.core.errors import OjsterError
from ojster.core.job import Job
from ojster.jobs.claim_policy import Claim
from ojster.jobs.messages import Acknowledgement
from ojster.storage.postgres.pipeline import PipelineConnection
from tests.workflows.bench import WorkflowBench, chain, graph, group, job

pytestmark = pytest.mark.anyio

ALL = {
    "chain": chain(job("a"), chain(job("b"), job("c")), group(job("d"), job("e")), job("f")),
    "graph": graph(job("a", id="a"), job("b", id="b", depends_on=["a"]), job("c", id="c", depends_on=["a", "b"])),
    "failing": chain(group(job("a"), job("fails"), job("b")), job("c")),
}


def report(done: Job, *, named: bool, **other: Any) -> Acknowledgement:
    ack = Acknowledgement(done.id, b"%d" % len(done.type), done.worker_id, done.attempt, started_at=done.started_at)
    return msgspec.structs.replace(ack, node=done.node if named else None, **other)


async def outcomes(bench: WorkflowBench, *, named: bool) -> list[str]:
    """Run workflows, some jobs of which are reported together, too late or twice; return what shows."""
    said: list[Any] = []
    before = len(await bench.events())
    jobs: list[Job] = []
    for wire in ALL.values():
        await bench.create(wire)
        while taken := await bench.take(3):
            jobs += taken
            for failing in [one for one in taken if one.type == "fails"]:
                await bench.give_up(failing)
            acks = [report(one, named=named) for one in taken]
            acks[1:1] = [report(one, named=named, attempt=7) for one in taken[:1]]
            said += await bench.service.jobs.acknowledge(acks)
        said.append(await bench.states())
        said.append(msgspec.json.encode(await bench.look()))
    await bench.create(chain(group(job("stopped"), job("stopped")), job("then"), job("last")))
    stopped = await bench.take(2)
    await bench.service.workflows.cancel(bench.id, stop_active=True)
    said += await bench.service.jobs.acknowledge([report(one, named=named) for one in stopped])
    said.append(msgspec.json.encode(await bench.look()))
    said += (await bench.events())[before:]
    texts = [
        one.id if isinstance(one, Job) else str(one) if isinstance(one, OjsterError) else repr(one) for one in said
    ]
    known: dict[str, str] = {}
    return [
        re.sub(r"[0-9a-f-]{36}", lambda match: known.setdefault(match[0], f"id-{len(known)}"), one) for one in texts
    ]


async def test_a_named_step_does_what_a_step_without_a_name_does(flow: WorkflowBench) -> None:
    assert await outcomes(flow, named=False) == await outcomes(flow, named=True)


async def test_a_step_of_a_chain_takes_three_round_trips(flow: WorkflowBench, monkeypatch: pytest.MonkeyPatch) -> None:
    if flow.service.database.kind != "postgres":
        pytest.skip("SQLite has no round trips")
    await flow.create(chain(*[job(f"step{number}") for number in range(6)]))
    claim = Claim(("default",), 1, "w")
    (step,) = await flow.service.jobs.fetch(claim)
    trips = 0
    real = PipelineConnection._results

    def counted(self: PipelineConnection) -> Any:
        nonlocal trips
        trips += 1
        return real(self)

    counts = []
    for _ in range(4):
        monkeypatch.setattr(PipelineConnection, "_results", counted)
        trips = 0
        _, fetched = await flow.service.jobs.acknowledge_and_fetch([report(step, named=True)], claim)
        counts.append(trips)
        monkeypatch.setattr(PipelineConnection, "_results", real)
        assert isinstance(fetched, list)
        (step,) = fetched
    assert max(counts[1:]) <= 3
