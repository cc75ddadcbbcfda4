"""Wait steps: they wait for a time or for the answer to a form, without a worker."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from ojster.api.constructs import gate, wait
from ojster.core.access import OPERATIONS, Access, Role
from ojster.core.errors import Conflict, InvalidRequest, InvalidWorkflow
from ojster.core.refusals import SchemaViolation
from ojster.core.timestamps import format_timestamp
from ojster.jobs.failure import Failure
from ojster.jobs.options_wire import OPTION_NAMES
from ojster.jobs.scope import Caller
from ojster.reactions import enqueue
from ojster.service import Service
from ojster.workflows.declaration import Step
from ojster.workflows.declaration import chain as chain_of
from ojster.workflows.run.suspensions import WorkflowResumption
from tests.workflows.bench import WorkflowBench, chain, graph, group, job, ref

pytestmark = pytest.mark.anyio

FORM = {"type": "object", "required": ["approved"], "properties": {"approved": {"type": "boolean"}}}


async def answer(flow: WorkflowBench, value: Any, step: str | None = None) -> None:
    item = WorkflowResumption(flow.id, step, msgspec.json.encode(value))
    await flow.service.workflows.resume(item)


async def test_a_delay_begins_when_its_turn_comes_and_ends_by_itself(flow: WorkflowBench) -> None:
    await flow.create(chain(job("a"), {"type": "wait", "id": "w", "delay": "PT10S"}, job("b", ref("steps.w.result"))))
    await flow.run_due(100)
    assert await flow.work() == ["a"]
    await flow.run_due(9)
    assert await flow.work() == []
    await flow.run_due(2)
    assert await flow.work() == ["b"]
    assert (await flow.state(), flow.arguments["b"]) == ("completed", [None])


async def test_s76_a_wait_until_a_time_that_has_passed_is_over_at_once(flow: WorkflowBench) -> None:
    await flow.create(chain({"type": "wait", "until": "2001-01-01T00:00:00Z"}, job("b")))
    await flow.run_due(0)
    assert await flow.work() == ["b"]


async def test_a_form_is_answered_as_it_asks_for_or_not_at_all(flow: WorkflowBench) -> None:
    ask = {"type": "wait", "id": "ask", "form": FORM}
    await flow.create(graph(ask, job("b", ref("steps.ask.result.approved"), depends_on=["ask"])))
    assert (await flow.step("ask")).on_hold
    for wrong in ("yes", {}, {"approved": "yes"}, None):
        with pytest.raises(SchemaViolation):
            await answer(flow, wrong)
    await answer(flow, {"approved": True})
    assert await flow.work() == ["b"]
    assert flow.arguments["b"] == [True]
    with pytest.raises(Conflict):
        await answer(flow, {"approved": False})


async def test_a_form_that_nobody_answers_in_time_fails(flow: WorkflowBench) -> None:
    await flow.create(chain({"type": "wait", "form": FORM, "delay": "P1D"}, job("b"), on_error=job("mend")))
    await flow.run_due(86_399)
    assert await flow.state() == "running"
    await flow.run_due(2)
    assert await flow.work() == ["mend"]
    info = await flow.look()
    assert (info.state, info.error and info.error.errors[0]["code"]) == ("failed", "wait_timeout")


async def test_a_form_can_be_refused(flow: WorkflowBench) -> None:
    await flow.create(chain({"type": "wait", "form": FORM}, job("b"), on_error=job("mend")))
    failure = Failure("No", "nobody wants it", retryable=False)
    await flow.service.workflows.resume(WorkflowResumption(flow.id, failure=failure))
    assert await flow.work() == ["mend"]


async def test_waits_are_cancelled_timed_out_and_held_with_their_workflow(flow: WorkflowBench) -> None:
    await flow.create(group({"type": "wait", "delay": "PT1H"}, {"type": "wait"}, job("a")))
    await flow.service.workflows.cancel(flow.id)
    assert await flow.state() == "cancelled"
    assert (await flow.look()).finished
    await flow.create(chain({"type": "wait"}, timeout=10))
    await flow.run_due(11)
    assert await flow.state() == "failed"
    await flow.create(chain({"type": "wait", "delay": "PT10S"}, job("b")))
    await flow.service.workflows.hold(flow.id)
    await flow.run_due(11)
    assert await flow.work() == []
    await flow.service.workflows.release(flow.id)
    assert await flow.work() == ["b"]


async def test_no_worker_is_given_a_wait_and_a_retried_workflow_waits_again(flow: WorkflowBench) -> None:
    await flow.create(chain({"type": "wait", "form": FORM, "delay": "PT10S"}, job("b")))
    assert await flow.take(10) == []
    await flow.run_due(11)
    (step,) = [step for step in (await flow.look()).walk() if step.type == "ojster.wait"]
    with pytest.raises(Conflict):
        await flow.service.jobs.retry_dead(str(step.job_id))
    await flow.service.workflows.retry(flow.id)
    assert await flow.take(10) == []
    await answer(flow, {"approved": True})
    assert await flow.work() == ["b"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"delay": "soon"},
        {"delay": 3},
        {"until": "tomorrow"},
        {"until": "2030-01-01T00:00:00"},
        {"delay": "PT1S", "until": "2030-01-01T00:00:00Z"},
        {"form": {"type": "nothing"}},
        {"form": []},
        {"timeout": 10, "delay": "PT1S"},
        {"timeout": 10, "form": {}, "until": "2030-01-01T00:00:00Z"},
        {"timeout": -1},
        {"timeout": "soon"},
    ],
)
async def test_what_is_no_wait_is_refused(flow: WorkflowBench, wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidWorkflow) as refused:
        await flow.create(chain({"type": "wait"} | wrong))
    if wrong == {"delay": 3}:
        assert "Write 'delay' as a duration such as 'PT30S'" in refused.value.message


async def test_a_job_that_waits_for_nothing_is_refused(flow: WorkflowBench) -> None:
    with pytest.raises(InvalidRequest, match="ojster_wait"):
        await flow.push("ojster.wait")


async def test_reminders_are_sent_until_the_form_is_answered(flow: WorkflowBench) -> None:
    remind = {"on_reminder": [{"action": "enqueue", "job": {"type": "nag", "args": [{"$ref": "job.workflow_step"}]}}]}
    ask = {
        "type": "wait",
        "id": "ask",
        "delay": "PT10H",
        "form": {"type": "string"},
        "remind": ["PT4H", "PT1H", "PT12H"],
    }
    await flow.create({"type": "chain", "steps": [ask | {"event_reactions": remind}]})
    await flow.run_due(3_599)
    assert await flow.take() == []
    await flow.run_due(2)
    (nag,) = await flow.take(5)
    assert (nag.type, nag.args) == ("nag", ["ask"])
    await flow.ack(nag)
    await flow.run_due()
    assert await flow.take() == [], "once each"
    await flow.run_due(3 * 3_600)
    assert len(await flow.take(5)) == 1
    assert (await flow.step("ask")).state == "pending"
    await flow.service.workflows.resume(WorkflowResumption(flow.id, data=b'"yes"'))
    assert await flow.state() == "completed"
    await flow.run_due(10 * 3_600)
    assert await flow.take() == []


async def test_a_deadline_ends_a_wait_whatever_reminders_are_left(flow: WorkflowBench) -> None:
    ask = {"type": "wait", "id": "ask", "delay": "PT2H", "form": {}, "remind": ["PT1H", "PT3H"]}
    await flow.create({"type": "chain", "steps": [ask]})
    await flow.run_due(3_600)
    assert await flow.state() == "running"
    await flow.run_due(3_600)
    assert await flow.state() == "failed"
    assert (await flow.step("ask")).outcome == "error"


@pytest.mark.parametrize(
    "wrong",
    [
        {"delay": "PT1H", "remind": ["PT1M"]},
        {"form": {}, "remind": ["soon"]},
        {"form": {}, "remind": "PT1H"},
        {"form": {}, "remind": ["PT1H"] * 101},
        {"type": "t", "args": [], "event_reactions": {"on_reminder": []}},
    ],
)
async def test_what_is_no_reminder_is_refused(flow: WorkflowBench, wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidWorkflow):
        await flow.create({"type": "chain", "steps": [{"type": "wait"} | wrong]})


async def test_waits_are_written_in_python(flow: WorkflowBench) -> None:
    nag = {"on_reminder": [enqueue(Step({"type": "nag", "args": []}))]}
    ask = wait("ask", form=FORM, delay=60, remind=[30], reactions=nag, display_name="May it go out?")
    whole = chain_of(ask, wait(until=datetime(2001, 1, 1, tzinfo=UTC)))
    flow.id = (await flow.service.workflows.create(whole.request())).id
    assert (await flow.step("ask")).label == "May it go out?"
    await flow.run_due(31)
    assert [one.type for one in await flow.take()] == ["nag"]
    await answer(flow, {"approved": True}, step="ask")
    await flow.run_due(0)
    assert await flow.state() == "completed"


SIGNED = {
    "type": "object",
    "required": ["ok", "answered_by"],
    "properties": {
        "ok": {"type": "boolean"},
        "answered_by": {"type": "string", "readOnly": True},
        "answered_at": {"type": "string", "readOnly": True},
    },
}


def as_ada(flow: WorkflowBench) -> Service:
    return flow.service.as_(Caller(access=Access("ada", OPERATIONS[Role.CONTRIBUTOR])))


async def test_an_answer_says_who_gave_it_if_the_form_asks(flow: WorkflowBench) -> None:
    ask = {"type": "wait", "id": "ask", "form": SIGNED}
    await flow.create(chain(ask, job("b", ref("steps.ask.result"))))
    forged = b'{"ok":true,"answered_by":"the boss","answered_at":"never"}'
    with pytest.raises(SchemaViolation):  # nobody knows who it is
        await flow.service.workflows.resume(WorkflowResumption(flow.id, data=forged))
    await as_ada(flow).workflows.resume(WorkflowResumption(flow.id, data=forged))
    await flow.work()
    (answered,) = flow.arguments["b"]
    assert answered == {"ok": True, "answered_by": "ada", "answered_at": format_timestamp(flow.clock.now)}


async def test_an_answer_stays_as_it_is_if_the_form_does_not_ask(flow: WorkflowBench) -> None:
    plain = {"type": "object", "properties": {"answered_by": {"type": "string"}}}
    for form, data in ((plain, {"answered_by": "me"}), (None, {"answered_by": "me"}), (None, 1), ({}, [1])):
        step = {"type": "wait", "id": "ask"} | ({} if form is None else {"form": form})
        await flow.create(chain(step, job("b", ref("steps.ask.result"))))
        await as_ada(flow).workflows.resume(WorkflowResumption(flow.id, data=msgspec.json.encode(data)))
        await flow.work()
        assert flow.arguments["b"] == [data]


@pytest.mark.parametrize("failure", [None, Failure("No", "no")])
async def test_a_step_says_who_has_resumed_it_and_when(flow: WorkflowBench, failure: Failure | None) -> None:
    await flow.create(chain({"type": "wait", "id": "ask"}))
    await as_ada(flow).workflows.resume(WorkflowResumption(flow.id, failure=failure))
    step = await flow.step("ask")
    (review,) = step.reviews
    assert (review.author, review.action) == ("ada", "answer" if failure is None else "decline")
    assert review.at == format_timestamp(flow.clock.now)
    assert isinstance(step.job_id, str)
    history = await flow.service.jobs.history(step.job_id)
    assert [entry.actor for entry in history if entry.type == "job.resumed"] == [{"type": "client", "id": "ada"}]


TIMED: dict[str, tuple[dict[str, Any], str]] = {
    "wait": ({"type": "wait"}, "pending"),
    "form": ({"type": "wait", "form": FORM}, "pending"),
    "reminded": ({"type": "wait", "form": FORM, "remind": ["PT5S", "PT30S"]}, "pending"),
    "gate": ({"type": "gate"}, "blocked"),
    "gate-in-a-fallback": ({"type": "gate", "fallback": job("other")}, "blocked"),
}
LIMITS = {"seconds": {"timeout": 10}, "milliseconds": {"timeout_ms": 10_000}}


@pytest.mark.parametrize("kind", TIMED)
@pytest.mark.parametrize("unit", LIMITS)
async def test_a_wait_or_gate_that_nobody_answers_in_time_fails(flow: WorkflowBench, kind: str, unit: str) -> None:
    step, state = TIMED[kind]
    await flow.create(chain(job("first"), step | LIMITS[unit], job("b"), on_error=job("mend")))
    await flow.run_due(100)
    assert await flow.work() == ["first"], "the time counts from when its turn comes"
    await flow.run_due(9)
    assert await flow.work() == []
    path = "1.0" if "fallback" in step else "1"
    assert (await flow.step(path)).state == state
    await flow.run_due(2)
    if "fallback" in step:
        assert await flow.work() == ["other", "b"]
        return
    assert await flow.work() == ["mend"]
    info = await flow.look()
    assert (info.state, info.error and info.error.errors[0]["code"]) == ("failed", "wait_timeout")
    await flow.service.workflows.retry(flow.id)
    assert (await flow.step(path)).state == state
    await flow.run_due(9)
    assert await flow.state() == "running", "after a retry, its time begins anew"
    await flow.run_due(2)
    assert await flow.work() == ["mend"]


async def test_a_gate_that_was_approved_or_left_has_no_time_limit_any_more(flow: WorkflowBench) -> None:
    await flow.create(chain({"type": "gate", "id": "g", "timeout": 10}, job("b"), job("c")))
    await flow.review("g", "approve")
    await flow.run_due(11)
    assert await flow.work() == ["b", "c"]
    await flow.create(group({"type": "gate", "id": "g", "timeout": 10}, job("b")))
    await flow.cancel_step("g")
    await flow.run_due(11)
    assert (await flow.step("g")).state == "cancelled"


async def test_a_gate_of_a_held_workflow_fails_after_the_release(flow: WorkflowBench) -> None:
    await flow.create(chain({"type": "gate", "id": "g", "timeout": 10}, job("b")))
    await flow.service.workflows.hold(flow.id)
    await flow.run_due(11)
    assert (await flow.step("g")).state == "blocked"
    await flow.service.workflows.release(flow.id)
    await flow.run_due(0)
    assert (await flow.step("g")).state == "failed"


async def test_options_of_containers_for_jobs_do_not_limit_waits(flow: WorkflowBench) -> None:
    options = {"timeout": 10, "queue": "mail", "retry": {"max_attempts": 2}}
    await flow.create(chain({"type": "wait"}, {"type": "gate"}, options=options))
    await flow.run_due(11)
    assert await flow.state() == "running"


EFFECTIVE = {"timeout", "timeout_ms", "tags", "metadata"}
IDLE = sorted((OPTION_NAMES - EFFECTIVE) | {"deadline", "delay_ms", "not_before"})


@pytest.mark.parametrize("place", ["top", "options"])
@pytest.mark.parametrize("name", IDLE)
async def test_what_has_no_effect_on_a_wait_is_refused(flow: WorkflowBench, name: str, place: str) -> None:
    member = {name: 1} if place == "top" else {"options": {name: 1}}
    with pytest.raises(InvalidWorkflow, match=f"'{name}' has no effect on a wait"):
        await flow.create(chain({"type": "wait"} | member))
    if place == "top":
        with pytest.raises(InvalidWorkflow, match=f"'{name}' has no effect on a gate"):
            await flow.create(chain({"type": "gate"} | member))


async def test_time_limits_are_written_in_python(flow: WorkflowBench) -> None:
    whole = chain_of(gate("g", timeout=timedelta(minutes=1)), wait("w", timeout=5))
    flow.id = (await flow.service.workflows.create(whole.request())).id
    await flow.review("g", "approve")
    await flow.run_due(6)
    assert await flow.state() == "failed"
