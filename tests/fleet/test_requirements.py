"""Job requirements, and the report of jobs that no worker can run."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from ojster import App
from ojster.core.errors import InvalidRequest
from ojster.core.json_objects import read_members
from ojster.fleet import unrunnable
from ojster.fleet.workers import Heartbeat
from tests.conftest import Bench

pytestmark = pytest.mark.anyio


async def push(bench: Bench, requires: Any, **options: Any) -> str:
    body = {"type": "t", "args": [], "requires": requires, "options": options}
    (pushed,) = await bench.service.jobs.enqueue([read_members(msgspec.json.encode(body))])
    return pushed.job.id


async def beat(bench: Bench, worker: str, *queues: str, **labels: Any) -> None:
    await bench.service.fleet.beat(Heartbeat(worker, queues=queues or ("default",), capabilities={"labels": labels}))


async def test_a_job_runs_where_all_that_it_requires_is_provided(bench: Bench) -> None:
    await push(bench, {"memory_mb": 4096, "region": ["eu", "us"], "ssd": True})
    await beat(bench, "small", memory_mb=2048, region="eu", ssd=True)
    await beat(bench, "far", memory_mb=8192, region="asia", ssd=True)
    await beat(bench, "slow", memory_mb=8192, region="eu", ssd=False)
    await beat(bench, "right", memory_mb=4096, region="us", ssd=True)
    for worker in ("small", "far", "slow", "unheard"):
        assert await bench.fetch(worker_id=worker) == []
    assert len(await bench.fetch(worker_id="right")) == 1


async def test_jobs_beside_those_that_unknown_workers_run_are_not_reported(bench: Bench) -> None:
    """Workers that send no heartbeats are known by what they hold: with requirements, and without."""
    ids = [await push(bench, needs) for needs in ({"memory_mb": 4096}, {"memory_mb": 4096}, {}, {})]
    assert len(await bench.service.fleet.unrunnable()) == 2
    needing = await bench.service.jobs.find(ids[0])
    await bench.push("other")
    held = await bench.fetch_one(worker_id="silent")
    assert await bench.service.fleet.unrunnable() == []
    assert {one.code for one in (await bench.service.jobs.explain(needing.id)).reasons}.isdisjoint({"no_worker"})
    await bench.ack(held)
    assert len(await bench.service.fleet.unrunnable()) == 2


async def test_a_count_of_jobs_that_no_worker_can_run_says_when_there_are_more(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unrunnable, "MAX_EXAMINED", 3)
    for queue, number in (("few", 2), ("many", 5)):
        for _ in range(number):
            await bench.push(queue=queue)
    groups = await bench.service.fleet.unrunnable()
    assert [(one.queue, one.jobs, one.is_complete) for one in groups] == [("few", 2, True), ("many", 3, False)]


async def test_jobs_that_no_worker_can_run_are_reported_with_the_reason(bench: Bench) -> None:
    assert await bench.service.fleet.unrunnable() == []
    first = await push(bench, {"memory_mb": 4096, "region": "eu"})
    await push(bench, {"memory_mb": 4096, "region": "eu"})
    other = await push(bench, {"region": "eu"}, queue="far")
    await beat(bench, "w", memory_mb=2048, region="eu")
    found = {one.queue: one for one in await bench.service.fleet.unrunnable()}
    assert (found["default"].jobs, found["default"].job_id) == (2, first)
    assert found["default"].reasons == ["memory_mb: at least 4096 is required; the worker has 2048"]
    assert (found["far"].job_id, found["far"].reasons) == (other, ["no worker takes jobs of this queue"])
    await beat(bench, "v", "default", "far", memory_mb=5000, region="eu")
    assert await bench.service.fleet.unrunnable() == []
    shown = {worker.id: worker.provides for worker in await bench.service.fleet.all()}
    assert shown["w"] == {"accelerator": ["cpu"], "memory_mb": ["2048"], "region": ["eu"]}


@pytest.mark.parametrize(
    ("condition", "said"),
    [
        ({"operator": "In", "values": ["b", "c"]}, "b or c is required; the worker has a"),
        ({"operator": "NotIn", "values": ["a"]}, "anything but a is required; the worker has a"),
        ({"operator": "DoesNotExist"}, "no value is required; the worker has a"),
        ({"operator": "Lt", "values": [3]}, "less than 3 is required; the worker has a"),
        ({"key": "m", "operator": "Exists"}, "any value is required; the worker has none"),
    ],
)
async def test_the_reason_says_in_words_what_is_required(bench: Bench, condition: dict[str, Any], said: str) -> None:
    affinity = {"required": [{"key": "l"} | condition]}
    body = {"type": "t", "args": [], "ext_ml_affinity": affinity}
    await bench.service.jobs.enqueue([read_members(msgspec.json.encode(body))])
    await beat(bench, "w", l="a")
    (found,) = await bench.service.fleet.unrunnable()
    assert [reason.partition(": ")[2] for reason in found.reasons] == [said]


@pytest.mark.parametrize("requires", [[], 3, {"": 1}, {"a": {}}, {"a": []}, {"a": None}, {"a": [[]]}, {"a": "x" * 300}])
async def test_an_invalid_requirement_is_rejected(bench: Bench, requires: Any) -> None:
    with pytest.raises(InvalidRequest, match="requires"):
        await push(bench, requires)


async def test_requirements_are_written_in_python(bench: Bench) -> None:
    app = App("sqlite:///unused.db")

    @app.job("t", requires={"region": "eu"})
    async def t() -> None: ...

    await bench.service.jobs.enqueue([t.request([], {})])
    assert await bench.fetch(worker_id="w") == []
    await beat(bench, "w", region="eu")
    assert len(await bench.fetch(worker_id="w")) == 1
