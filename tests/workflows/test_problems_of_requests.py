"""The texts of what is wrong with requests for workflows, and the order in which they are reported."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from ojster.core.errors import InvalidWorkflow
from ojster.core.json_objects import read_members
from ojster.workflows.plan.request import read_workflow
from ojster.workflows.plan.values import NewWorkflow
from tests.workflows.bench import batch, chain, graph, group, job, ref

NOW = 1_800_000_000_000_000


def read(wire: dict[str, Any]) -> NewWorkflow:
    return read_workflow(read_members(msgspec.json.encode(wire)), NOW, largest=100_000)


def problems_of(wire: dict[str, Any]) -> list[tuple[str, str]]:
    with pytest.raises(InvalidWorkflow) as refused:
        read(wire)
    return [(problem["path"], problem["message"]) for problem in refused.value.details["validation_errors"]]


NOT_UNDONE = (
    "'compensate' is allowed only in a step of a container. It is not allowed in a compensation, in a branch of one "
    "step, and in a step that is added to a container without compensations: make that one a saga."
)

TEXTS: list[tuple[dict[str, Any], str, str]] = [
    (chain(job("a"), options=[]), "$.options", "'options' must be a JSON object."),
    (chain(group(job("a"), options=5)), "$.steps[0].options", "'options' must be a JSON object."),
    (batch(job("a")) | {"callbacks": []}, "$.callbacks", "'callbacks' must be a JSON object."),
    (chain(batch(job("a")) | {"callbacks": "x"}), "$.steps[0].callbacks", "'callbacks' must be a JSON object."),
    ({"type": "dag"}, "$.type", "Unknown workflow type 'dag'; use one of batch, chain, flow, graph, group, map, saga."),
    (
        chain(job("a", when="sometimes")),
        "$.steps[0].when",
        "'when' must be one of succeeded, finished, failed, not 'sometimes'.",
    ),
    (chain(job("a", depends_on=["b"])), "$.steps[0].depends_on", "Only the steps of a graph can have 'depends_on'."),
    (
        chain(job("a", id="a/b")),
        "$.steps[0].id",
        "The id 'a/b' must be printable characters, not only digits, without '.' and '/'.",
    ),
    (chain(job("a", id="x"), job("b", id="x")), "$.steps[1].id", "There is another step with the id 'x'."),
    (
        chain(job("a", priority_adjustment=1_000, fallback=job("b"))),
        "$.steps[0].priority_adjustment",
        "It must be an integer, and the priority must stay between -100 and 100.",
    ),
    (
        chain(job("a", compensate_when="later")),
        "$.steps[0].compensate_when",
        "'compensate_when' must be 'completed' or 'started', not 'later'.",
    ),
    (
        chain(job("a", compensate_when="started")),
        "$.steps[0].compensate_when",
        "'compensate_when' has no effect without 'compensate'. Add that.",
    ),
    (
        chain(job("a", compensate=job("b", compensate=job("c")))),
        "$.steps[0].compensate",
        NOT_UNDONE,
    ),
    (
        chain(group(job("a"), provides=[{"name": "x"}])),
        "$.steps[0].provides",
        "Only a job without a fallback can have 'provides'.",
    ),
    (
        chain(job("a", ref("nothing.x"))),
        "$.steps[0]",
        "The reference 'nothing.x' must begin with one of params, steps.",
    ),
    (
        chain(job("a", ref("steps.later.result")), job("b", id="later")),
        "$.steps[0]",
        "The step 'later' comes later than this one.",
    ),
    (
        group(job("a", ref("steps.x.result")), job("b", id="x")),
        "$.jobs[0]",
        "The step 'x' runs at the same time as this one.",
    ),
    (chain(job("a", ref("steps.nowhere.result"))), "$.steps[0]", "There is no step 'nowhere' before this one."),
    (graph(job("a", id="a", depends_on=["b"])), "$.steps[0].depends_on", "There is no step 'b' here; there are a."),
    (graph(job("a", id="a", depends_on=["a"])), "$.steps[0].depends_on", "The step 'a' depends on itself."),
    (
        graph(job("a", id="a", depends_on=["b"]), job("b", id="b", depends_on=["a"])),
        "$.steps[0]",
        "These steps wait for each other: a → b → a.",
    ),
    (
        batch(job("a")),
        "$.callbacks",
        "A batch needs one of on_complete, on_success, on_failure; without callbacks, use a group.",
    ),
    (
        batch(job("a"), on_success=job("b", when="failed")),
        "$.callbacks.on_success.when",
        "'when' is not allowed here: the position of this step decides when it starts.",
    ),
    ({"type": "map", "over": 3, "do": job("a")}, "$.over", "It must be an array, or a reference to one."),
    ({"type": "map", "over": []}, "$", "A map needs 'over', a list or a reference to one, and 'do', a step for each."),
    ({"type": "map", "over": [], "as": "index", "do": job("a")}, "$.as", "'index' cannot be the name of an element."),
    ({"type": "flow"}, "$.job", "A flow needs a 'job' that runs its function, with 'type' and 'args'."),
    (
        {"type": "flow", "job": job("a", id="x")},
        "$.job.id",
        "The job of a flow has only 'type', 'args', 'meta' and 'options'.",
    ),
    (
        {"type": "saga", "steps": [job("a")], "failure_policy": "give up"},
        "$.failure_policy",
        "The policy must be one of compensate, retry, skip.",
    ),
    (
        chain({"type": "gate", "queue": "mail"}),
        "$.steps[0].queue",
        "'queue' has no effect on a gate, which no worker runs. Leave it out.",
    ),
    (
        chain({"type": "wait", "duration": "PT1S"}),
        "$.steps[0].duration",
        "'duration' has no effect on a wait, which no worker runs. Use 'delay'.",
    ),
    (
        chain({"type": "a", "args": [], "steps": []}),
        "$.steps[0]",
        "Only a container can have 'steps'; its type must be one of batch, chain, flow, graph, group, map, saga.",
    ),
    (
        chain({"definition": "release"}),
        "$.steps[0]",
        "A step that is a definition can be planned only by a server, which knows the definition.",
    ),
    (
        chain(job("a")) | {"on_error": job("b", when="failed")},
        "$.on_error.when",
        "'when' is not allowed here: the position of this step decides when it starts.",
    ),
    (
        chain(job("a")) | {"on_lost_worker": "wait"},
        "$.on_lost_worker",
        "'on_lost_worker' must be one of retry, cancel, not 'wait'.",
    ),
]


@pytest.mark.parametrize(("wire", "path", "message"), TEXTS)
def test_an_error_says_where_it_is_what_is_wrong_and_what_to_do(wire: dict[str, Any], path: str, message: str) -> None:
    assert problems_of(wire) == [(path, message)]


def test_problems_of_steps_and_of_their_order_are_reported_in_the_order_of_the_steps() -> None:
    wire = chain(
        graph(job("a", id="a", depends_on=["missing"]), job("b", when="never")),
        group(job("c", ref("steps.d.result")), job("d", id="d")),
        job("Bad"),
        job("e", ref("steps.nowhere.result")),
    )
    assert [path for path, _ in problems_of(wire)] == [
        "$.steps[0].steps[1].when",
        "$.steps[0].steps[0].depends_on",
        "$.steps[1].jobs[0]",
        "$.steps[2]",
        "$.steps[3]",
    ]


def test_a_step_with_a_problem_keeps_its_place_for_the_references_of_others() -> None:
    steps = [{"type": "gate", "queue": "mail"}, job("b", ref("steps.0.result"))]
    assert [path for path, _ in problems_of(chain(*steps))] == ["$.steps[0].queue"]


def test_an_invalid_callback_or_branch_does_not_hide_what_is_wrong_elsewhere() -> None:
    wire = batch(job("A"), on_success=job("b", when="failed"), on_failure=job("C"))
    wire["on_error"] = job("d", when="failed")
    wire["on_cancel"] = job("E")
    assert [path for path, _ in problems_of(wire)] == [
        "$.jobs[0]",
        "$.callbacks.on_success.when",
        "$.callbacks.on_failure",
        "$.on_error.when",
        "$.on_cancel",
    ]


def test_a_callback_keeps_its_name_when_another_has_its_name_as_an_id() -> None:
    wire = batch(job("a"), on_success=job("b", name="x"), on_failure=job("c", id="x"))
    assert [node.name for node in read(wire).plan.nodes[-2:]] == ["on_success", "on_failure"]


def test_many_problems_are_cut_off() -> None:
    assert len(problems_of(chain(*[job("Bad") for _ in range(100)]))) == 20


def test_problems_of_a_step_and_of_its_fallback_are_reported_where_they_are() -> None:
    steps = [job("A", fallback=job("B")), job("c", fallback={"args": []}, when="never")]
    assert [path for path, _ in problems_of(chain(*steps))] == [
        "$.steps[0]",
        "$.steps[0].fallback",
        "$.steps[1].fallback",
        "$.steps[1].when",
    ]
