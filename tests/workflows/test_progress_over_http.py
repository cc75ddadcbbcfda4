"""The progress of a workflow: the mean of its steps, and of theirs.

Spec: ojs-progress 9
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.conftest import Http
from tests.workflows.bench import WorkflowBench

pytestmark = pytest.mark.anyio


def job(type: str) -> dict[str, Any]:
    return {"type": type, "args": []}


async def progress(flow: WorkflowBench, http: Http) -> dict[str, Any]:
    answer = await http("GET", f"/ojs/v1/workflows/{flow.id}/progress")
    shown: dict[str, Any] = answer.json()
    assert (answer.status_code, answer.headers["cache-control"]) == (200, "no-cache")
    return shown


async def test_a_chain_counts_its_steps_and_the_progress_of_the_current_one(flow: WorkflowBench, http: Http) -> None:
    await flow.create({"type": "chain", "steps": [job("a"), job("b"), job("c"), job("d")]})
    assert (await progress(flow, http))["progress"] == 0
    await flow.ack(await flow.fetch_one())
    current = await flow.fetch_one()
    report = {"progress": 0.6, "data": {"rows": 6}}
    assert (await http("PUT", f"/ojs/v1/jobs/{current.id}/progress", report)).status_code == 200
    shown = await progress(flow, http)
    assert (shown["workflow_id"], shown["type"], shown["progress"]) == (flow.id, "chain", 0.4)
    assert [step["progress"] for step in shown["steps"]] == [1.0, 0.6, None, None]
    assert (shown["steps"][1]["job_id"], shown["steps"][1]["data"]) == (current.id, {"rows": 6})


async def test_a_group_inside_a_chain_counts_as_one_step(flow: WorkflowBench, http: Http) -> None:
    await flow.create({"type": "chain", "steps": [{"type": "group", "jobs": [job("a"), job("b")]}, job("c")]})
    await flow.ack(await flow.fetch_one())
    shown = await progress(flow, http)
    assert (shown["progress"], len(shown["steps"])) == (0.25, 3)
    await flow.work()
    assert (await progress(flow, http))["progress"] == 1.0


async def test_a_workflow_is_cancelled_by_post_too(flow: WorkflowBench, http: Http) -> None:
    await flow.create({"type": "chain", "steps": [job("a")]})
    answer = await http("POST", f"/ojs/v1/workflows/{flow.id}/cancel")
    assert (answer.status_code, answer.json()["workflow"]["state"]) == (200, "cancelled")


async def test_no_workflow_has_no_progress(http: Http) -> None:
    assert (await http("GET", "/ojs/v1/workflows/nothing/progress")).status_code == 404
