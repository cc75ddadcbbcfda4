"""Definitions as steps of workflows."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from ojster import chain as chain_of
from ojster import definition, result_of
from ojster.core.errors import InvalidWorkflow
from ojster.core.json_objects import read_members
from ojster.jobs.messages import Release
from ojster.jobs.scope import Caller
from ojster.service import Service
from ojster.workflows.read.drawing import draw
from tests.workflows.bench import WorkflowBench, chain, graph, group, job, ref

pytestmark = pytest.mark.anyio


async def define(flow: WorkflowBench, name: str, body: dict[str, Any], service: Service | None = None) -> None:
    definitions = (service or flow.service).definitions
    members = read_members(msgspec.json.encode(body))
    known = {definition.name for definition in await definitions.all()}
    await (definitions.update(name, members) if name in known else definitions.create(name, members))


def step(name: str, **more: Any) -> dict[str, Any]:
    return {"definition": name, **more}


RELEASE = chain(job("pack", ref("params.file"), id="pack"), job("ship", ref("steps.pack.result"), ref("params.to")))


async def test_a_definition_is_a_step_with_its_own_parameters_and_result(flow: WorkflowBench) -> None:
    await define(flow, "release", RELEASE)
    params = {"file": ref("steps.build.result.file"), "to": "mirror"}
    await flow.create(
        chain(
            job("build", ref("params.file"), id="build"),
            step("release", id="release", params=params),
            job("tell", ref("steps.release.result")),
            params={"file": "outer", "to": "outer"},
        )
    )
    results = {"build": {"file": "app.tar"}, "pack": "packed", "ship": "shipped"}
    assert await flow.work(results=results) == ["build", "pack", "ship", "tell"]
    assert flow.arguments["pack"] == ["app.tar"]
    assert flow.arguments["ship"] == ["packed", "mirror"]
    assert flow.arguments["tell"] == ["shipped"]
    assert (await flow.look()).state == "completed"


@pytest.mark.parametrize(
    ("body", "results", "expected"),
    [
        (chain(job("a"), job("b")), {"b": 2}, 2),
        (group(job("a"), job("b")), {"a": 1, "b": 2}, {"0": 1, "1": 2}),
        (graph(job("a", id="a"), job("b", id="b", depends_on=["a"])), {"b": 2}, {"b": 2}),
        ({"type": "map", "over": [1, 2], "do": job("a")}, {"a": 1}, {"0": 1, "1": 1}),
        ({"type": "saga", "steps": [job("a", compensate=job("undo"))]}, {"a": 1}, 1),
        ({"type": "batch", "jobs": [job("a")], "callbacks": {"on_success": job("b")}}, {"a": 1}, {"0": 1}),
    ],
    ids=["chain", "group", "graph", "map", "saga", "batch"],
)
async def test_definitions_of_each_type_are_steps_with_the_result_that_a_container_has(
    flow: WorkflowBench, body: dict[str, Any], results: dict[str, Any], expected: Any
) -> None:
    await define(flow, "inner", body)
    for nested in (step("inner", id="x"), body | {"id": "x"}):
        await flow.create(chain(nested, job("after", ref("steps.x.result"))))
        await flow.work(results=results)
        assert flow.arguments["after"] == [expected]


async def test_a_step_copies_the_definition_when_the_workflow_starts(flow: WorkflowBench) -> None:
    await define(flow, "inner", chain(job("one")))
    first = await flow.create(chain(job("a"), step("inner")))
    await define(flow, "inner", chain(job("two")))
    second = await flow.create(chain(job("a"), step("inner"), step("inner", definition_version=1)))
    ran = await flow.work()
    assert sorted(ran) == ["a", "a", "one", "one", "two"]
    assert {first.id, second.id} == {first.id, flow.id}


async def test_definitions_nest_in_each_other_and_in_every_place_of_a_step(flow: WorkflowBench) -> None:
    await define(flow, "inner", chain(job("work", ref("params.n"))))
    await define(flow, "outer", group(step("inner", params={"n": ref("params.m")}), job("beside")))
    await flow.create(
        chain(
            step("outer", params={"m": 1}),
            group(step("inner", params={"n": 2})),
            {"type": "map", "over": [3, 4], "do": step("inner", params={"n": ref("item")})},
            job("fails", fallback=step("inner", params={"n": 5})),
            job("last"),
            on_error=step("inner", params={"n": 6}),
        )
    )
    seen = []
    while jobs := await flow.take(10):
        for one in jobs:
            seen += one.args if one.type == "work" else []
            await (flow.give_up(one) if one.type in ("fails", "last") else flow.ack(one, b"1"))
    assert sorted(seen) == [1, 2, 3, 4, 5, 6]


async def test_a_job_appends_a_definition(flow: WorkflowBench) -> None:
    await define(flow, "inner", chain(job("work", ref("params.n"))))
    await flow.create(chain(job("a")))
    (a,) = await flow.take()
    await flow.grow(a, step("inner", params={"n": 7}))
    assert await flow.work() == ["work"]
    assert flow.arguments["work"] == [7]


async def test_a_reaction_starts_a_workflow_with_a_definition_in_it(flow: WorkflowBench) -> None:
    await define(flow, "inner", chain(job("work")))
    action = {"action": "start-workflow", "workflow": chain(step("inner"))}
    body = job("a", event_reactions={"on_success": [action]})
    await flow.service.jobs.enqueue([read_members(msgspec.json.encode(body))])
    assert await flow.work() == ["a", "work"]


async def test_a_failed_definition_fails_as_a_step_does_and_is_retried(flow: WorkflowBench) -> None:
    await define(flow, "inner", chain(job("one"), job("two")))
    await flow.create(chain(step("inner", id="x"), job("after")))
    assert await flow.work("two") == ["one", "two"]
    assert await flow.state() == "failed"
    await flow.service.workflows.retry(flow.id)
    assert await flow.work() == ["two", "after"]
    assert await flow.state() == "completed"


async def test_parameters_match_the_schema_of_the_definition(flow: WorkflowBench) -> None:
    schema = {"type": "object", "required": ["n"], "properties": {"n": {"type": "integer"}}}
    await define(flow, "inner", chain(job("work", ref("params.n"))) | {"params_schema": schema})
    with pytest.raises(InvalidWorkflow, match="do not match the definition 'inner'"):
        await flow.create(chain(step("inner", params={"n": "1"})))
    with pytest.raises(InvalidWorkflow, match="do not match the definition 'inner'"):
        await flow.create(chain(step("inner")))
    for result, state in ((1, "completed"), ("1", "failed")):
        await flow.create(chain(job("a", id="a"), step("inner", id="x", params={"n": ref("steps.a.result")})))
        await flow.work(results={"a": result})
        assert (await flow.step("x")).state == state
        assert await flow.state() == state


@pytest.mark.parametrize(
    ("nested", "message"),
    [
        (step("none"), "There is no definition 'none'"),
        (step("inner", definition_version=9), "There is no version 9 of the definition 'inner'"),
        (step("inner", definition_version="1"), "'definition_version' must be a whole number"),
        (step("inner", params=[1]), "'params' must be an object"),
        (step("whole"), "has 'on_error', which only a whole workflow can have"),
        (step("inner", params={"n": ref("steps.later.result")}), "There is no step 'later'"),
    ],
)
async def test_what_is_no_step_is_refused_with_its_place(
    flow: WorkflowBench, nested: dict[str, Any], message: str
) -> None:
    await define(flow, "inner", chain(job("work")))
    await define(flow, "whole", chain(job("a"), on_error=job("b")))
    with pytest.raises(InvalidWorkflow, match=message) as refused:
        await flow.create(chain(job("a"), nested))
    assert refused.value.details["validation_errors"][0]["path"].startswith("$.steps[1]")


async def test_definitions_do_not_contain_each_other(flow: WorkflowBench) -> None:
    await define(flow, "a", chain(job("x")))
    await define(flow, "b", chain(step("a")))
    for inner, line in (("b", "a → b → a"), ("a", "a → a")):
        with pytest.raises(InvalidWorkflow, match=f"Definitions contain each other, or too many do: {line}"):
            await define(flow, "a", chain(step(inner)))
    for depth in range(8):
        await define(flow, f"level-{depth}", chain(step(f"level-{depth - 1}") if depth else job("x")))
    with pytest.raises(InvalidWorkflow, match="too many do"):
        await define(flow, "level-8", chain(step("level-7")))


async def test_a_definition_of_another_tenant_is_none(flow: WorkflowBench) -> None:
    acme = flow.service.as_(Caller("acme"))
    await define(flow, "inner", chain(job("theirs")), acme)
    with pytest.raises(InvalidWorkflow, match="There is no definition 'inner'"):
        await flow.create(chain(step("inner")))
    body = msgspec.json.encode(chain(job("a"), step("inner")))
    await acme.workflows.create(read_members(body))
    assert await flow.work() == ["a", "theirs"]


async def test_a_nested_definition_is_shown_and_written_in_python(flow: WorkflowBench) -> None:
    await define(flow, "release", RELEASE)
    built = chain_of(definition("release", params={"file": 1, "to": "x"}, version=1).set(id="r"))
    info = await flow.create(built.wire)
    assert (info.steps[0].type, info.steps[0].label) == ("definition", "release")  # type: ignore[index]
    assert "release" in draw(info)
    assert (await flow.step("r.0.pack")).type == "pack"
    referring = definition("x", params={"a": result_of("b")})
    assert referring.wire == {"definition": "x", "params": {"a": ref("steps.b.result")}}


async def test_a_new_attempt_has_the_latest_version_and_its_other_steps_keep_their_jobs(flow: WorkflowBench) -> None:
    """A compensation that the version adds gets nodes of the whole workflow, so that those of other steps move."""
    await define(flow, "part", chain(job("first")))
    await define(flow, "whole", chain(step("part"), job("a", "its own"), job("b"), retry={"initial_interval": "PT1S"}))
    flow.id = (await flow.service.workflows.create({"definition": msgspec.Raw(b'"whole"')})).id
    await define(flow, "part", chain(job("second", compensate=job("undo"))))
    (first,) = await flow.take()
    await flow.service.jobs.release([Release(first.id, None, 1, then="retry")])
    flow.id = (await flow.look()).next_attempt or ""
    await flow.run_due(after=2)
    assert await flow.work() == ["second", "a", "b"]
    assert flow.arguments["a"] == ["its own"]
