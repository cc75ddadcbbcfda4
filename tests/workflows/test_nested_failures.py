"""What callbacks and later steps learn of containers that failed: the error, and the results of what succeeded."""

from __future__ import annotations

from typing import Any

import pytest

from tests.workflows.bench import WorkflowBench, batch, chain, graph, group, job

pytestmark = pytest.mark.anyio


def brief(value: Any) -> Any:
    """Shorten each error to its message."""
    if not isinstance(value, dict):
        return [brief(one) for one in value] if isinstance(value, list) else value
    return {
        name: one.get("message") if name == "error" and isinstance(one, dict) else brief(one)
        for name, one in value.items()
    }


WRONG = "it went wrong"
UPSTREAM = "A predecessor step did not succeed."


async def test_callbacks_receive_the_errors_of_nested_failures_and_the_results_of_siblings(flow: WorkflowBench) -> None:
    await flow.create(
        batch(
            chain(job("a"), job("b"), job("c")),
            job("d"),
            group(job("e"), group(job("f"), job("g"))),
            on_failure=job("told"),
        )
    )
    await flow.work("b", "f")
    assert brief(flow.given["told"]) == [
        {
            "state": "failed",
            "error": WRONG,
            "results": {
                "0": {"from": "a"},
                "1": {"state": "failed", "error": WRONG},
                "2": {"state": "cancelled", "error": UPSTREAM},
            },
        },
        {"from": "d"},
        {
            "state": "failed",
            "error": WRONG,
            "results": {
                "0": {"from": "e"},
                "1": {
                    "state": "failed",
                    "error": WRONG,
                    "results": {"0": {"state": "failed", "error": WRONG}, "1": {"from": "g"}},
                },
            },
        },
    ]


async def test_a_branch_after_an_error_receives_the_same(flow: WorkflowBench) -> None:
    inner = batch(job("a"), job("b"), on_complete=job("report"))
    await flow.create(group(inner, job("c"), on_error=job("tidy")))
    await flow.work("a", "report")
    assert brief(flow.given["tidy"]) == [
        {
            "state": "failed",
            "error": WRONG,
            "results": {"0": {"state": "failed", "error": WRONG}, "1": {"from": "b"}},
        },
        {"from": "c"},
    ]


async def test_steps_refer_to_the_error_of_a_container(flow: WorkflowBench) -> None:
    await flow.create(
        graph(
            chain(job("a"), id="inner", allow_failure=True),
            job("b", {"$ref": "steps.inner.error.message"}, id="b", depends_on=["inner"], when="finished"),
        )
    )
    await flow.work("a")
    assert flow.arguments["b"] == [WRONG]
