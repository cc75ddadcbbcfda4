"""Validation and planning of workflow requests, before any job runs."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Any

import msgspec
import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ojster.core.errors import InvalidWorkflow, OjsterError
from ojster.core.json_objects import read_members
from ojster.core.references import Unresolvable, follow, parse_reference, references_in, resolve
from ojster.workflows.node import Kind
from ojster.workflows.plan.condition_process import ConditionProcess
from ojster.workflows.plan.conditions import InvalidCondition, check_condition, evaluate
from ojster.workflows.plan.reader import MAX_LEVELS
from ojster.workflows.plan.request import read_workflow, refuse_unknown
from ojster.workflows.plan.values import NewWorkflow
from tests.workflows.bench import batch, chain, graph, group, job, ref

NOW = 1_800_000_000_000_000


def read(wire: dict[str, Any] | bytes) -> NewWorkflow:
    body = wire if isinstance(wire, bytes) else msgspec.json.encode(wire)
    return read_workflow(read_members(body), NOW, largest=100_000)


def nested(levels: int) -> dict[str, Any]:
    wire = chain(job("a"))
    for _ in range(levels - 1):
        wire = group(wire)
    return wire


REFUSED: list[tuple[Any, str, str]] = [
    ({}, "$.type", "The type is missing"),
    ({"type": "dag"}, "$.type", "type 'dag'"),
    ({"type": "chain"}, "$.steps", "must be an array"),
    (chain(), "$.steps", "must contain at least one element"),
    (group(), "$.jobs", "must contain at least one element"),
    ({"type": "chain", "jobs": [job("a")]}, "$.steps", "'steps' must be an array of steps."),
    (chain(job("a")) | {"id": "wf/1"}, "$.id", "without a slash"),
    (chain(job("a")) | {"params": []}, "$.params", "must be an object"),
    (chain(job("a")) | {"timeout": -1}, "$.timeout", "'timeout' option"),
    (chain(job("a")) | {"timeout_ms": -1}, "$.timeout_ms", "'timeout_ms' option"),
    (chain(job("a")) | {"priority": 1000}, "$.priority", "from -100 to 100"),
    (chain(job("a")) | {"scheduled_at": "tomorrow"}, "$.scheduled_at", "scheduled_at"),
    ({"type": "map", "over": [0] * 100_001, "do": job("a")}, "$.over", "has 100001 elements"),
    (chain("a"), "$.steps[0]", "must be a JSON object"),  # type: ignore[arg-type]
    (chain({"args": []}), "$.steps[0]", "The job has no 'type'"),
    (chain({"type": "a"}), "$.steps[0]", "The job has no 'args'"),
    (chain(job("Bad Type")), "$.steps[0]", "The job type 'Bad Type' is invalid"),
    (chain(job("a", options={"queue": "NO"})), "$.steps[0]", "The queue name 'NO' is invalid"),
    (chain(job("a", options={"pending": True})), "$.steps[0]", "cannot be 'pending'"),
    (chain(job("a", when="sometimes")), "$.steps[0].when", "'when' must be one of"),
    (chain(job("a", allow_failure=1)), "$.steps[0].allow_failure", "must be true or false"),
    (chain(job("a", depends_on=["b"])), "$.steps[0].depends_on", "Only the steps of a graph"),
    (chain(job("a", id="1")), "$.steps[0].id", "not only digits"),
    (chain(job("a", id="a.b")), "$.steps[0].id", "not only digits"),
    (chain(job("a", id="x"), job("b", id="x")), "$.steps[1].id", "another step with the id 'x'"),
    (batch(job("a")), "$.callbacks", "A batch needs one of"),
    ({"type": "batch", "jobs": [job("a")], "callbacks": {"on_end": job("b")}}, "$.callbacks", "needs one of"),
    (batch(job("a"), on_complete=job("b", when="failed")), "$.callbacks.on_complete.when", "is not allowed here"),
    (graph(job("a", id="a", depends_on=["b"])), "$.steps[0].depends_on", "There is no step 'b' here"),
    (graph(job("a", id="a", depends_on=["a"])), "$.steps[0].depends_on", "depends on itself"),
    (graph(job("a", id="a", depends_on="a")), "$.steps[0].depends_on", "must be an array"),
    (
        graph(
            job("a", id="a", depends_on=["c"]), job("b", id="b", depends_on=["a"]), job("c", id="c", depends_on=["b"])
        ),
        "$.steps",
        "wait for each other",
    ),
    ({"type": "map", "over": 3, "do": job("a")}, "$.over", "must be an array, or a reference"),
    ({"type": "map", "over": []}, "$", "A map needs 'over'"),
    ({"type": "map", "over": [], "as": "steps", "do": job("a")}, "$.as", "cannot be the name"),
    ({"type": "map", "over": [1], "do": job("a", ref("steps.no.result"))}, "$", "There is no step 'no' before"),
    ({"type": "saga", "steps": [job("a")], "failure_policy": "panic"}, "$.failure_policy", "The policy must be"),
    (chain(job("a", ref("steps.later.result")), job("b", id="later")), "$.steps[0]", "comes later than this one"),
    (group(job("a", ref("steps.x.result")), job("b", id="x")), "$.jobs[0]", "runs at the same time"),
    (chain(job("a", ref("nowhere.x"))), "$.steps[0]", "must begin with one of params, steps"),
    (chain(job("a", ref("steps.x"))), "$.steps[0]", "must be 'steps.NAME.result'"),
    (chain(job("a", ref("params..x"))), "$.steps[0]", "must be like"),
    (chain(job("a", ref("steps.0.result"))), "$.steps[0]", "There is no step '0' before"),
    (chain(job("a", if_="1 +")), "$.steps[0].if", "is invalid"),
    (chain(job("a", if_="unknown > 1")), "$.steps[0].if", "is invalid"),
    (chain(job("a", if_="1 + 1")), "$.steps[0].if", "is of type int"),
    (chain(job("a", if_="steps.no.result == 1")), "$.steps[0].if", "There is no step 'no' before"),
    (chain(job("a", if_="size(steps) > 1")), "$.steps[0].if", "must name each step"),
    (chain(job("a", priority_adjustment=101)), "$.steps[0].priority_adjustment", "must stay between"),
    (nested(MAX_LEVELS + 1), "$", "nested deeper than 16 levels"),
    (b'{"type":"chain","steps":[{"type":"a","args":[]}],"params":{"x":1e999}}', "$.params", "cannot be read"),
    (b'{"type":"chain","steps":[{"type":"a","args":[]}],"metadata":{"x":1e999}}', "$.metadata", "cannot be read"),
    (b'{"type":"chain","steps":[{"type":"a","args":[]}],"timeout":1e999}', "$", "cannot be read"),
    (b'{"type":"chain","steps":[{"type":"\\u0063hain","args":[]}]}', "$.steps[0]", "'steps' must be an array"),
]


@pytest.mark.parametrize(("wire", "path", "message"), REFUSED)
def test_what_breaks_a_rule_is_refused_with_its_place(wire: Any, path: str, message: str) -> None:
    with pytest.raises(InvalidWorkflow) as refused:
        read(wire)
    problem = refused.value.details["validation_errors"][0]
    assert problem["path"].startswith(path)
    assert message in problem["message"]
    assert (refused.value.code, refused.value.status) == ("invalid_workflow", 400)


MISSPELT: list[tuple[Any, str, str]] = [
    (chain(job("a", dependson=["b"])), "$.steps[0].dependson", "did you mean 'depends_on'?"),
    (chain(job("a", manuel=True)), "$.steps[0].manuel", "did you mean 'manual'?"),
    (chain(job("a") | {"if_": "false"}), "$.steps[0].if_", "did you mean 'if'?"),
    (chain(job("a", condition="false")), "$.steps[0].condition", "did you mean 'if'?"),
    (chain(job("a", needs=["x"])), "$.steps[0].needs", "did you mean 'depends_on'?"),
]


@pytest.mark.parametrize(("wire", "path", "message"), MISSPELT)
def test_a_misspelt_member_of_a_step_brings_a_warning_and_is_refused_where_unknown_members_are(
    wire: Any, path: str, message: str
) -> None:
    (warning,) = read(wire).warnings
    assert warning.startswith(path)
    assert message in warning
    with pytest.raises(InvalidWorkflow, match=re.escape(message)):
        refuse_unknown(read_members(msgspec.json.encode(wire)), 0, largest=1_000_000)


def test_several_problems_are_told_at_once() -> None:
    with pytest.raises(InvalidWorkflow) as refused:
        read(chain(job("A"), job("b"), job("C"), job("d", when="x")))
    assert [one["path"] for one in refused.value.details["validation_errors"]] == [
        "$.steps[0]",
        "$.steps[2]",
        "$.steps[3].when",
    ]


def test_nesting_is_as_deep_as_promised() -> None:
    assert len(read(nested(MAX_LEVELS)).plan.nodes) == MAX_LEVELS + 2


def test_steps_that_depend_on_others_are_a_graph_without_saying_so() -> None:
    new = read({"name": "onboarding", "steps": [job("a", id="a", depends_on=[]), job("b", id="b", depends_on=["a"])]})
    assert (new.type, new.name) == ("graph", "onboarding")
    with pytest.raises(InvalidWorkflow, match="The type is missing"):
        read({"steps": [job("a", {"depends_on": 1})]})


def test_a_batch_is_a_group_with_others_behind_it() -> None:
    plan = read(batch(job("a"), job("b"), on_success=job("c"))).plan
    kinds = [node.kind for node in plan.nodes]
    assert kinds == [Kind.WORKFLOW, Kind.BATCH, Kind.GROUP, Kind.JOB, Kind.JOB, Kind.JOB]
    assert plan.edges == [(2, 5)]


def test_defaults_are_inherited_and_overridden() -> None:
    wire = chain(
        job("a"),
        group(job("b", options={"queue": "own"}), options={"priority": 7}),
        job("c", timeout=5),
        options={"queue": "all", "retry": {"max_attempts": 9}},
    )
    jobs = {one.type: one for one in read(wire).plan.jobs.values()}
    assert {type: (one.queue, one.priority, one.max_attempts) for type, one in jobs.items()} == {
        "a": ("all", 0, 9),
        "b": ("own", 7, 9),
        "c": ("all", 0, 9),
    }
    assert jobs["c"].timeout == 5_000_000


def test_the_path_of_a_step_is_told_to_its_job() -> None:
    wire = chain(job("a"), batch(job("b", id="x"), on_complete=job("c")), job("d", fallback=job("e")))
    places = {one.type: msgspec.json.decode(one.envelope)["workflow_step"] for one in read(wire).plan.jobs.values()}
    assert places == {"a": "0", "b": "1.x", "c": "1.on_complete", "d": "2.0", "e": "2.fallback"}


def test_an_id_goes_before_a_name() -> None:
    plan = read(chain(job("a", name="same"), job("b", id="same"), job("c", ref("steps.same.result")))).plan
    assert [node.name for node in plan.nodes[2:]] == [None, "same", None]


# References


JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(min_size=1, max_size=4), inner, max_size=4),
    max_leaves=12,
)


@given(JSON, JSON)
def test_only_references_are_replaced(value: Any, found: Any) -> None:
    raw = msgspec.json.encode({"keep": value, "use": [{"$ref": "params.x"}, 1]})
    replaced = resolve(raw, lambda reference: msgspec.json.encode(found))
    assert msgspec.json.decode(replaced) == {"keep": value, "use": [found, 1]}


def test_what_stands_beside_a_reference_goes_through_to_the_letter() -> None:
    raw = b'[0.10000000000000000555,1e2,12345678901234567890123,{"$ref":"params.x"},"\\u00e9"]'
    replaced = resolve(raw, lambda reference: b"1.50")
    assert replaced == b'[0.10000000000000000555,1e2,12345678901234567890123,1.50,"\\u00e9"]'


@pytest.mark.parametrize("path", ["x.1", "x.²", "x.-1", "x." + "9" * 5000, "x.y.z", "n.x", "x.0.q"])
def test_a_path_that_leads_nowhere_is_told_so(path: str) -> None:
    with pytest.raises(Unresolvable, match="leads nowhere"):
        follow(parse_reference(f"params.{path}"), b'{"x": [7], "n": null}')


def test_a_json_pointer_is_not_a_reference() -> None:
    raw = b'{"$ref":"#/definitions/x"}'
    assert list(references_in(raw)) == []
    assert resolve(raw, lambda reference: b"0") == raw


# Conditions


@pytest.mark.parametrize(
    ("condition", "names"),
    [
        ("steps.a.result.x > 1 && steps['b-c'].state == 'completed'", {"a", "b-c"}),
        ("params.steps > 3", set()),
        ("'steps.foo' == params.x", set()),
        ("steps.a.result.steps > 1", {"a"}),
        ("params.steps.foo > 1", set()),
        ('steps["x"].error == null', {"x"}),
    ],
)
def test_a_condition_tells_which_steps_it_looks_at(condition: str, names: set[str]) -> None:
    assert check_condition(condition) == names


@pytest.mark.parametrize(
    ("condition", "params", "holds"),
    [
        ("params.n > 2", {"n": 3}, True),
        ("params.n > 2.5", {"n": 2**70}, True),
        ("has(params.a) && params.a", {}, False),
        ("params.list.exists(x, x == 'b')", {"list": ["a", "b"]}, True),
        ("params.s.matches('^a+$')", {"s": "aaa"}, True),
    ],
)
def test_conditions_look_at_parameters(condition: str, params: dict[str, Any], holds: bool) -> None:
    assert evaluate(condition, {"steps": {}, "params": params}) is holds


@pytest.mark.parametrize("condition", ["params.no", "params.n", "1 / 0 == 1", "params.n + 'x' == 'y'"])
def test_a_condition_without_an_answer_says_why(condition: str) -> None:
    with pytest.raises(InvalidCondition):
        evaluate(condition, {"steps": {}, "params": {"n": 3}})


@pytest.mark.parametrize(
    ("condition", "params", "why"),
    [
        ("params.s == 'x'", {"s": "y" * 400_000}, "values of 400[0-9]+ bytes; at most 300000"),
        ("params.l.all(x, params.l == params.l)", {"l": [*range(10_000)]}, "more than 50 ms of processor time"),
        ("params.l.map(a, params.l.map(b, params.l)).size() > 0", {"l": [*range(1_000)]}, "more than"),
        ("size(params.l" + ".map(x, x + x)" * 14 + ") > 0", {"l": ["y" * 20_000]}, "more than"),
        ("params.l.map(x, params.s + params.s).size() > 0", {"l": [*range(2_000)], "s": "y" * 200_000}, "more than"),
    ],
)
def test_a_condition_that_takes_long_fails_and_the_next_one_holds(
    condition: str, params: dict[str, Any], why: str
) -> None:
    check_condition(condition)
    with pytest.raises(InvalidCondition, match=f"too much work.*{why}"):
        evaluate(condition, {"steps": {}, "params": params})
    nested = "params.l.exists(x, params.l.exists(y, x + y == 150))"
    assert evaluate(nested, {"steps": {}, "params": {"l": [*range(100)]}})


def test_conditions_are_evaluated_again_after_their_process_was_killed() -> None:
    process, usual = ConditionProcess(), {"params": {"s": "aaa"}}
    assert process.ask("params.s.matches('^a+$')", ["params"], usual).value is True
    for child in psutil.Process().children():
        with suppress(psutil.NoSuchProcess):  # a child of another test that has just ended
            if "condition_child.py" in " ".join(child.cmdline()):
                child.kill()
    assert process.ask("params.s.matches('^b+$')", ["params"], usual).value is False
    process.close()


@pytest.mark.parametrize(
    "condition",
    [
        "params.l.exists(x, x.id in params.wanted)",
        "params.l.exists(x, x.name.matches('^item-[0-9]+$') && x.id + 1 > 999)",
        "params.l.all(x, x.name != 'steps and params + + + + +')",
        "params.l.filter(x, x.id > 990).size() > 3 && params.wanted.size() + 1 > 2",
    ],
)
def test_usual_conditions_over_a_thousand_elements_hold(condition: str) -> None:
    check_condition(condition)
    elements = [{"id": number, "name": f"item-{number}"} for number in range(1_000)]
    assert evaluate(condition, {"steps": {}, "params": {"l": elements, "wanted": [998, 999]}})


def _steps(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    members = dict.fromkeys(("args", "do", "over", "if", "id", "when", "depends_on", "compensate"), inner)
    lists = {name: st.lists(inner, max_size=3) for name in ("steps", "jobs")}
    types = st.sampled_from(["chain", "group", "graph", "saga", "map", "gate", "x"])
    return st.fixed_dictionaries({"type": types}, optional=members | lists)


@given(st.recursive(JSON, _steps, max_leaves=10))
def test_whatever_is_sent_is_planned_or_refused_and_nothing_else(wire: Any) -> None:
    body = msgspec.json.encode(wire)
    try:
        read(body)
    except OjsterError as refusal:
        assert refusal.status in (400, 413, 422)
