"""Reactions that create jobs and workflows whose reactions create others: they end."""

from __future__ import annotations

import msgspec
import pytest

from ojster.core.job import Job
from ojster.core.json_objects import read_members
from ojster.core.settings import ServiceSettings
from tests.conftest import Bench, shown
from tests.events.test_reactions import job, push

pytestmark = pytest.mark.anyio


@pytest.fixture
def engine_settings() -> ServiceSettings:
    return ServiceSettings(most_generations=3)


async def run_all(bench: Bench, most: int = 20) -> list[Job]:
    """Run jobs until there are none, and return them."""
    done: list[Job] = []
    while len(done) < most and (jobs := await bench.fetch(count=20)):
        for one in jobs:
            await bench.ack(one)
        done += jobs
    return done


async def test_a_workflow_that_starts_itself_again_ends(bench: Bench) -> None:
    again = {"on_success": [{"action": "start-workflow", "workflow": {"definition": "loop", "params": {}}}]}
    body = {
        "type": "chain",
        "steps": [{"type": "first", "args": []}, {"type": "last", "args": [], "event_reactions": again}],
    }
    made = await bench.service.definitions.create("loop", read_members(msgspec.json.encode(body)))
    await bench.service.workflows.create(read_members(msgspec.json.encode({"definition": made.name})))
    done = await run_all(bench)
    assert [one.type for one in done] == ["first", "last"] * 4
    generations = [shown(one)["meta"].get("ojster.generation", 0) for one in done]
    assert generations == [0, 0, 1, 1, 2, 2, 3, 3]
    history = await bench.service.jobs.history(done[-1].id)
    (failed,) = [entry for entry in history if entry.type == "job.reaction_failed"]
    assert "3 reactions in a row" in str(failed)
    lineage = await bench.service.jobs.lineage(done[2].id)
    assert (lineage.parent_id, lineage.root_id) == (done[1].id, done[1].id)
    lineage = await bench.service.jobs.lineage(done[6].id)
    assert (lineage.parent_id, lineage.root_id) == (done[5].id, done[1].id)


async def test_what_a_client_says_of_its_generation_does_not_make_it_endless(bench: Bench) -> None:
    one = await push(bench, {"on_success": [job("next")]}, meta={"ojster.generation": -5, "ojster.parent_id": 7})
    await bench.ack(await bench.fetch_one())
    (following,) = await bench.fetch(count=20)
    assert shown(following)["meta"] == {
        "ojster.generation": 1,
        "ojster.parent_id": one.id,
        "ojster.root_id": one.id,
    }
