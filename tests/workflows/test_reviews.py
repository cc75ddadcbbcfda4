"""Approvals and answers can be read afterwards: who, when, which answer, which note."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from ojster.core.errors import Conflict
from ojster.core.timestamps import format_timestamp
from ojster.jobs.failure import Failure
from ojster.workflows.read.info import ReviewInfo
from ojster.workflows.read.step_pages import StepFilter
from ojster.workflows.run import suspensions
from ojster.workflows.run.suspensions import WorkflowResumption
from tests.workflows.bench import WorkflowBench, chain, job

pytestmark = pytest.mark.anyio

GATE = {"type": "gate", "id": "review"}
FORM = {"type": "wait", "id": "ask", "form": {"type": "object"}}

DECISIONS: dict[str, tuple[dict[str, Any], str, ReviewInfo, str]] = {
    "approve": (GATE, "review", ReviewInfo("", "approve", "ada", "good"), "ada approved the step 'review': good"),
    "reject": (GATE, "review", ReviewInfo("", "reject", "ada", "bad"), "ada rejected the step 'review': bad"),
    "note": (GATE, "review", ReviewInfo("", None, "ada", "hm"), "ada made a note on the step 'review': hm"),
    "answer": (
        FORM,
        "ask",
        ReviewInfo("", "answer", None, None, msgspec.Raw(b'{"ok":false}')),
        """Somebody without a token answered the step 'ask' with {"ok":false}""",
    ),
    "decline": (
        FORM,
        "ask",
        ReviewInfo("", "decline", None, "not mine"),
        "Somebody without a token declined the step 'ask': not mine",
    ),
}


@pytest.mark.parametrize("how", DECISIONS)
async def test_a_decision_is_in_the_step_in_lists_of_steps_and_in_the_notes(flow: WorkflowBench, how: str) -> None:
    step, path, expected, words = DECISIONS[how]
    await flow.create(chain(step, job("then")))
    flow.clock.advance(5)
    service = flow.service
    match how:
        case "answer":
            await service.workflows.resume(WorkflowResumption(flow.id, path, b'{"ok":false}'))
        case "decline":
            failure = Failure("Error", "not mine")
            await service.workflows.resume(WorkflowResumption(flow.id, path, failure=failure))
        case _:
            await flow.review(path, expected.action, expected.notes)
    at = format_timestamp(flow.clock.now)
    review = msgspec.structs.replace(expected, at=at)
    assert (await flow.step(path)).reviews == [review]
    rows = {row.path: row for row in (await service.workflows.steps(StepFilter(flow.id))).steps}
    assert rows[path].reviews == [review]
    flow.clock.advance(1)
    await service.notes.add_to_workflow(flow.id, b'"later"')
    told, later = await service.notes.of_workflow(flow.id)
    assert (msgspec.json.decode(told.note), told.at, told.step) == (words, at, path)
    assert (later.note, later.step) == (msgspec.Raw(b'"later"'), None)


async def test_a_long_answer_is_that_of_the_step_alone(flow: WorkflowBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suspensions, "MAX_RECORDED_ANSWER", 5)
    await flow.create(chain(FORM))
    await flow.service.workflows.resume(WorkflowResumption(flow.id, "ask", b'{"ok":true}'))
    step = await flow.step("ask")
    assert step.result == msgspec.Raw(b'{"ok":true}')
    assert [(review.action, review.answer) for review in step.reviews] == [("answer", msgspec.UNSET)]


async def test_a_gate_that_is_a_fallback_is_approved_by_the_name_of_its_step(flow: WorkflowBench) -> None:
    late = {"type": "gate", "id": "review", "timeout": 5}
    await flow.create(chain(late | {"fallback": {"type": "gate"}}, job("then")))
    await flow.run_due(6)
    assert (await flow.step("review.fallback")).state == "blocked"
    await flow.review("review", "approve")
    assert await flow.work() == ["then"]


async def test_a_late_approval_is_refused_while_a_job_runs_instead_of_the_gate(flow: WorkflowBench) -> None:
    late = {"type": "gate", "id": "review", "timeout": 5}
    await flow.create(chain(late | {"fallback": job("decide")}, job("then")))
    await flow.run_due(6)
    with pytest.raises(Conflict, match="'review' is failed, and does not wait for an approval"):
        await flow.review("review", "approve")
