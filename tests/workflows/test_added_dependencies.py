"""Dependencies that are added to steps of a graph before they start."""

from __future__ import annotations

import random
from typing import Any

import pytest

from ojster.core.errors import Conflict, InvalidRequest, NotFound, OjsterError
from ojster.workflows.run.dependencies import NewDependencies
from tests.conftest import Http
from tests.workflows.bench import WorkflowBench, chain, graph, group, job, ref

pytestmark = pytest.mark.anyio


def step(id: str, *after: str, **more: Any) -> dict[str, Any]:
    return job(id, id=id, **({"depends_on": list(after)} if after else {}), **more)


async def depend(flow: WorkflowBench, path: str, *others: str) -> None:
    await flow.service.workflows.add_dependencies(NewDependencies(flow.id, path, others))


async def test_a_step_waits_for_an_added_dependency_and_gets_its_result(flow: WorkflowBench) -> None:
    await flow.create(graph(step("build"), step("scan"), step("publish", "build")))
    await depend(flow, "publish", "scan")
    assert (await flow.step("publish")).depends_on == ["build", "scan"]
    first, second = await flow.take(2)
    await flow.ack(first if first.type == "build" else second, b'"built"')
    assert (await flow.step("publish")).state == "waiting"
    await flow.ack(second if first.type == "build" else first, b'"clean"')
    assert await flow.work() == ["publish"]
    assert flow.given["publish"] == {"build": "built", "scan": "clean"}
    assert await flow.state() == "completed"


async def test_a_step_without_dependencies_gets_results_too_and_so_do_the_jobs_inside(flow: WorkflowBench) -> None:
    rest = group(job("x"), chain(job("y"), job("z")), id="rest")
    await flow.create(graph(step("other"), step("first"), rest | {"manual": True}))
    assert (await flow.step("rest")).state == "blocked"
    await depend(flow, "rest", "first")
    assert (await flow.step("rest")).state == "waiting"
    await flow.review("rest", "approve")
    await flow.work(results={"first": 1})
    assert flow.given["x"] == {"first": 1}
    assert flow.given["y"] == {"first": 1}
    assert await flow.state() == "completed"


@pytest.mark.parametrize(
    ("failing", "more", "expected"),
    [
        ((), {}, "completed"),
        (("scan",), {}, "cancelled"),
        (("scan",), {"when": "finished"}, "completed"),
        (("scan",), {"when": "failed"}, "completed"),
        ((), {"when": "failed"}, "skipped"),
    ],
)
@pytest.mark.parametrize("has_ended", [False, True])
async def test_an_added_dependency_decides_as_a_declared_one(
    flow: WorkflowBench, failing: tuple[str, ...], more: dict[str, Any], expected: str, has_ended: bool
) -> None:
    await flow.create(graph(step("scan"), step("build"), step("publish", "build", **more)))
    jobs = {one.type: one for one in await flow.take(2)}

    async def end_scan() -> None:
        await (flow.give_up(jobs["scan"]) if failing else flow.ack(jobs["scan"], b"1"))

    if has_ended:
        await end_scan()
    await depend(flow, "publish", "scan")
    if not has_ended:
        await end_scan()
    await flow.ack(jobs["build"], b"1")
    await flow.work()
    assert (await flow.step("publish")).state == expected


async def test_a_dependency_that_is_there_already_counts_once(flow: WorkflowBench) -> None:
    await flow.create(graph(step("a"), step("b", "a")))
    await depend(flow, "b", "a", "a")
    await depend(flow, "b", "a")
    assert (await flow.step("b")).depends_on == ["a"]
    assert await flow.work() == ["a", "b"]


async def test_a_held_step_waits_again(flow: WorkflowBench) -> None:
    await flow.create(graph(step("a"), step("b"), step("c", "a")))
    jobs = {one.type: one for one in await flow.take(2)}
    await flow.service.workflows.hold(flow.id)
    await flow.ack(jobs["a"], b"1")
    assert (await flow.step("c")).state == "held"
    await depend(flow, "c", "b")
    assert (await flow.step("c")).state == "waiting"
    await flow.service.workflows.release(flow.id)
    assert await flow.work() == []
    await flow.ack(jobs["b"], b"1")
    assert await flow.work() == ["c"]


async def test_a_retry_keeps_added_dependencies(flow: WorkflowBench) -> None:
    await flow.create(graph(step("a"), step("b"), step("c", "a")))
    await depend(flow, "c", "b")
    await flow.work("b")
    assert (await flow.step("c")).state == "cancelled"
    await flow.service.workflows.retry(flow.id)
    assert await flow.work() == ["b", "c"]
    assert await flow.state() == "completed"


async def test_what_cannot_wait_is_refused_and_changes_nothing(flow: WorkflowBench) -> None:
    inner = chain(step("x"), step("y"), id="inner", depends_on=["a"])
    await flow.create(graph(step("a"), step("b", "a"), step("c", "b"), inner))
    before = (await flow.look()).steps
    refusals: list[tuple[str, tuple[str, ...], type[OjsterError], str]] = [
        ("c", ("none",), NotFound, "There is no step 'none' in this graph; there are a, b, c, inner"),
        ("none", ("a",), NotFound, "has no step 'none'"),
        ("c", ("c",), InvalidRequest, "would wait for each other"),
        ("b", ("c",), InvalidRequest, "would wait for each other"),
        ("b", ("inner", "c"), InvalidRequest, "would wait for each other"),
        ("inner.y", ("a",), InvalidRequest, "is in a chain"),
    ]
    for path, others, kind, message in refusals:
        with pytest.raises(kind, match=message):
            await depend(flow, path, *others)
    assert (await flow.look()).steps == before
    (a,) = await flow.take()
    with pytest.raises(Conflict, match="'a' is started"):
        await depend(flow, "a", "b")
    await flow.ack(a, b"1")
    await flow.work()
    with pytest.raises(Conflict, match="'c' is completed"):
        await depend(flow, "c", "inner")


async def test_steps_that_wait_through_promised_items_do_not_wait_for_each_other(flow: WorkflowBench) -> None:
    makes = group(job("make", provides=["item"]), id="makes", depends_on=["first"])
    uses = group(job("use", {"$lookup": "internal/item"}), id="uses")
    await flow.create(graph(step("first"), makes, uses, step("end", "uses"), step("free")))
    for path, other in (("makes", "uses"), ("makes", "end")):
        with pytest.raises(InvalidRequest, match="would wait for each other"):
            await depend(flow, path, other)
    await depend(flow, "end", "makes")
    assert sorted(await flow.work()) == ["end", "first", "free", "make", "use"]


async def test_a_graph_with_compensations_keeps_its_order(flow: WorkflowBench) -> None:
    await flow.create(graph(step("a", compensate=job("undo")), step("b"), step("c", "a")))
    with pytest.raises(InvalidRequest, match="whose order is fixed"):
        await depend(flow, "c", "b")


@pytest.mark.parametrize("seed", range(10))
async def test_steps_of_a_random_graph_run_in_the_order_of_all_dependencies(flow: WorkflowBench, seed: int) -> None:
    dice = random.Random(seed)
    size = 8
    declared = {(one, other) for other in range(size) for one in range(other) if dice.random() < 0.2}
    await flow.create(
        graph(
            step("start"),
            *(step(f"n{n}", "start", *(f"n{one}" for one, other in declared if other == n)) for n in range(size)),
        )
    )
    edges = set(declared)
    for _ in range(12):
        one, other = dice.sample(range(size), 2)
        is_cycle = _reaches(edges, other, one)
        try:
            await depend(flow, f"n{other}", f"n{one}")
        except InvalidRequest:
            assert is_cycle
        else:
            assert not is_cycle
            edges.add((one, other))
    ran = [type.removeprefix("n") for type in await flow.work()]
    assert len(ran) == size + 1
    assert all(ran.index(str(one)) < ran.index(str(other)) for one, other in edges)


def _reaches(edges: set[tuple[int, int]], start: int, goal: int) -> bool:
    front, seen = {start}, {start}
    while front:
        front = {after for before, after in edges if before in front} - seen
        seen |= front
    return goal in seen


async def test_dependencies_are_added_over_http(flow: WorkflowBench, http: Http) -> None:
    await flow.create(graph(step("a"), step("b"), job("c", ref("steps.a.result"), id="c")))
    path = f"/ojs/v1/workflows/{flow.id}/steps/c/dependencies"
    answer = await http("POST", path, {"depends_on": ["b"]})
    (c,) = (one for one in answer.json()["workflow"]["steps"] if one["id"] == "c")
    assert c["depends_on"] == ["a", "b"]
    assert (await http("POST", path, {"depends_on": []})).status_code == 400
    assert (await http("POST", path, {"depends_on": ["d"]})).status_code == 404
