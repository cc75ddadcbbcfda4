"""The status of a workflow says for whom or what its steps wait."""

from __future__ import annotations

import pytest

from ojster.jobs.messages import Release
from tests.conftest import Http
from tests.workflows.bench import WorkflowBench, group, job

pytestmark = pytest.mark.anyio


async def test_the_status_says_what_each_step_waits_for(http: Http, flow: WorkflowBench) -> None:
    await flow.create(
        group(
            {"type": "gate", "id": "release"},
            job("careful", id="careful", manual=True),
            {"type": "wait", "id": "answer", "form": {"type": "object"}},
            {"type": "wait", "id": "tomorrow", "delay": "P1D"},
            job("paused", id="paused"),
            job("busy", id="busy"),
        )
    )
    jobs = {one.type: one for one in await flow.take(10)}
    paused = jobs["paused"]
    await flow.engine.jobs.release([Release(paused.id, paused.worker_id, paused.attempt, then="wait")])
    answer = await http("GET", f"/ojs/v1/workflows/{flow.id}/status")
    current = {step["path"]: step for step in answer.json()["status"]["current"]}
    assert {path: step.get("waiting_for") for path, step in current.items()} == {
        "release": "gate",
        "careful": "gate",
        "answer": "form",
        "tomorrow": "delay",
        "paused": "suspension",
        "busy": None,
    }
    assert current["release"]["state"] == "blocked"
    assert current["tomorrow"]["state"] == "waiting"
