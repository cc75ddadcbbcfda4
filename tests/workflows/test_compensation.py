"""Compensation: what took effect is undone, at any depth, the last first, and in parallel where it ran in parallel."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from typing import Any

import msgspec
import pytest

from ojster.core.errors import InvalidWorkflow
from ojster.core.job import Job
from ojster.jobs.failure import Failure
from ojster.jobs.messages import Acknowledgement, FailureReport, Release
from ojster.service import Service
from ojster.storage.open import open_database
from tests.amount import cases
from tests.conftest import Clock
from tests.workflows.bench import WorkflowBench, batch, chain, graph, group, job, ref
from tests.workflows.driver import members

pytestmark = pytest.mark.anyio


def undone(type: str, **more: Any) -> dict[str, Any]:
    """A job that another undoes."""
    return job(type, compensate=job(f"undo.{type}"), **more)


def each(over: Any, do: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "map", "over": over, "do": do, **more}


def saga(*steps: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "saga", "steps": list(steps), **more}


CONTAINERS = {
    "chain": (chain(undone("a"), undone("b")), ["undo.b", "undo.a"]),
    "group": (group(undone("a"), undone("b")), {"undo.a", "undo.b"}),
    "graph": (graph(undone("a", id="a"), undone("b", id="b", depends_on=["a"])), ["undo.b", "undo.a"]),
    "saga": (saga(undone("a"), undone("b")), ["undo.b", "undo.a"]),
    "batch": (batch(undone("a"), on_success=undone("b")), ["undo.b", "undo.a"]),
    "map": (each([1, 2], undone("a")), {"undo.a"}),
    "map-of-chains": (each([1], chain(undone("a"), undone("b"))), ["undo.b", "undo.a"]),
    "fallback": (job("fails", fallback=undone("a")), ["undo.a"]),
    "nested": (chain(group(saga(undone("a")))), ["undo.a"]),
    "map-of-maps": (each([1], each([1], undone("a"), **{"as": "inner"})), ["undo.a"]),
}


@pytest.mark.parametrize("kind", CONTAINERS)
async def test_steps_inside_a_completed_container_are_undone(flow: WorkflowBench, kind: str) -> None:
    inner, expected = CONTAINERS[kind]
    await flow.create(chain(undone("first"), inner, job("last")))
    done = await flow.work("last", "fails")
    undoing = done[done.index("last") + 1 :]
    if isinstance(expected, list):
        assert undoing == [*expected, "undo.first"]
    else:
        assert (set(undoing[:-1]), undoing[-1]) == (expected, "undo.first")
    info = await flow.look()
    assert info.state == "compensated"
    assert [one.index for one in info.compensations] == [0, 1]
    await flow.service.workflows.retry(flow.id)
    again = await flow.work("fails")
    assert (Counter(again), await flow.state()) == (Counter(done[: done.index("last") + 1]), "completed")


async def test_a_map_that_fails_in_part_undoes_what_its_elements_have_done(flow: WorkflowBench) -> None:
    do = job("a", ref("item"), id="a", compensate=job("undo", ref("item"), ref("steps.a.result.from")))
    await flow.create(each([1, 2, 3], do))
    jobs = await flow.take(3)
    for one in jobs:
        await (flow.give_up(one) if one.args == [2] else flow.ack(one, b'{"from": "a"}'))
    undoing = await flow.take(3)
    assert sorted(one.args for one in undoing) == [[1, "a"], [3, "a"]]
    for one in undoing:
        await flow.ack(one)
    assert await flow.state() == "compensated"


async def test_what_ran_in_parallel_is_undone_in_parallel(flow: WorkflowBench) -> None:
    await flow.create(chain(group(undone("a"), chain(undone("b"), undone("c"))), job("last")))
    while (jobs := await flow.take(5)) and not jobs[0].type.startswith("undo."):
        for one in jobs:
            await (flow.give_up(one) if one.type == "last" else flow.ack(one))
    assert {one.type for one in jobs} == {"undo.a", "undo.c"}
    for one in jobs:
        await flow.ack(one)
    assert await flow.work() == ["undo.b"]
    assert await flow.state() == "compensated"


async def test_what_an_inner_container_has_undone_is_not_undone_again(flow: WorkflowBench) -> None:
    inner = chain(undone("a"), undone("b"), job("fails"))
    await flow.create(chain(undone("first"), inner, job("never")))
    assert await flow.work("fails") == ["first", "a", "b", "fails", "undo.b", "undo.a", "undo.first"]
    assert await flow.state() == "compensated"


async def test_the_compensation_of_a_whole_container_stands_for_those_inside_it(flow: WorkflowBench) -> None:
    await flow.create(chain(chain(undone("a"), undone("b"), compensate=job("undo.both")), job("last")))
    assert await flow.work("last") == ["a", "b", "last", "undo.both"]
    await flow.create(chain(chain(undone("a"), job("b"), compensate=job("undo.both")), job("last")))
    assert await flow.work("b") == ["a", "b", "undo.a"]
    assert await flow.state() == "compensated"


async def test_a_saga_in_which_something_was_not_undone_is_not_compensated(flow: WorkflowBench) -> None:
    await flow.create(chain(undone("first"), chain(undone("a"), undone("b"), job("fails")), job("never")))
    assert await flow.work("fails", "undo.b") == ["first", "a", "b", "fails", "undo.b", "undo.b"]
    assert await flow.state() == "failed"
    await flow.service.workflows.retry(flow.id)
    assert await flow.work() == ["undo.b", "undo.a", "undo.first"], "nothing is done forwards"
    assert await flow.state() == "compensated"


async def test_a_graph_is_undone_against_its_arrows_also_through_steps_without_compensation(
    flow: WorkflowBench,
) -> None:
    first = [undone(name, id=name) for name in ("a", "b")]
    then = [undone(name, id=name, depends_on=["hub"]) for name in ("c", "d")]
    hub = job("hub", id="hub", depends_on=["a", "b"])
    await flow.create(graph(*first, hub, *then, job("last", id="last", depends_on=["c", "d"])))
    done = await flow.work("last")
    undoing = done[done.index("last") + 1 :]
    assert (set(undoing[:2]), set(undoing[2:])) == ({"undo.c", "undo.d"}, {"undo.a", "undo.b"})


# Steps that were stopped, and steps that are undone once they have started


async def stop(flow: WorkflowBench, how: str, **more: Any) -> Job:
    """Stop a step while a worker runs it; return its job."""
    limit: dict[str, Any] = {"timeout": 20, "retry": {"max_attempts": 1}} if how == "timeout" else {}
    step = job("a", id="a", compensate=job("undo.a", ref("steps.a.result")), options=limit, **more)
    await flow.create(chain(undone("first"), chain(step, job("never"))))
    await flow.ack((await flow.take())[0])
    active = await flow.fetch_one(worker_id="w", lease=30_000_000)
    match how:
        case "timeout":
            await flow.run_due(20)
        case "step":
            await flow.cancel_step("1.a")
        case _:
            await flow.service.workflows.cancel(flow.id, stop_active=True)
    assert (await flow.find(active)).finished_at is not None
    assert await flow.work() == []
    return active


@pytest.mark.parametrize("how", ["timeout", "step", "workflow"])
async def test_a_stopped_step_whose_worker_reports_success_is_undone(flow: WorkflowBench, how: str) -> None:
    active = await stop(flow, how)
    await flow.service.jobs.acknowledge([Acknowledgement(active.id, b'{"n": 1}', "w", active.attempt)])
    assert await flow.work() == ["undo.a", "undo.first"]
    assert flow.arguments["undo.a"] == [{"n": 1}], "the compensation gets the result"
    assert (await flow.look()).finished


async def test_a_stopped_step_that_skips_the_rest_has_succeeded(flow: WorkflowBench) -> None:
    active = await stop(flow, "workflow")
    await flow.service.jobs.release([Release(active.id, "w", active.attempt, then="skip", result=b"7")])
    assert await flow.work() == ["undo.a", "undo.first"]
    assert flow.arguments["undo.a"] == [7]


@pytest.mark.parametrize("report", ["nack", "release"])
async def test_a_stopped_step_whose_worker_reports_no_success_is_not_undone(flow: WorkflowBench, report: str) -> None:
    active = await stop(flow, "workflow")
    if report == "nack":
        await flow.service.jobs.fail([FailureReport(active.id, Failure("x", "y"), "w", active.attempt)])
    else:
        await flow.confirm(active)
    assert await flow.work() == ["undo.first"]


@pytest.mark.parametrize("how", ["alone", "started", "fallback"])
async def test_a_step_that_adopts_what_an_earlier_job_did_is_not_undone(flow: WorkflowBench, how: str) -> None:
    once = {"on_success": [{"action": "record"}], "on_assignment": [{"action": "skip-if-unchanged"}]}
    adopts = job("a", event_reactions=once)
    await flow.create(chain(adopts))
    await flow.work()
    step = job("fails", fallback=adopts) if how == "fallback" else adopts
    undoing = {"compensate": job("undo.a")} | ({"compensate_when": "started"} if how == "started" else {})
    await flow.create(saga(step | undoing, job("last")))
    assert "undo.a" not in await flow.work("fails", "last")


async def test_a_step_can_be_undone_once_it_has_started_whatever_became_of_it(flow: WorkflowBench) -> None:
    active = await stop(flow, "workflow", compensate_when="started")
    await flow.confirm(active)
    assert await flow.work() == ["undo.a", "undo.first"]
    assert flow.arguments["undo.a"] == [None], "there is no result"
    step = undone("a", compensate_when="started")
    await flow.create(chain(step, job("never")))
    assert await flow.work("a") == ["a", "undo.a"]
    assert await flow.state() == "compensated"


async def test_a_step_that_no_worker_has_had_has_not_started(flow: WorkflowBench) -> None:
    await flow.create(chain(undone("first"), group(job("fails"), undone("a", compensate_when="started"))))
    await flow.ack((await flow.take())[0])
    await flow.service.workflows.cancel(flow.id)
    assert await flow.work() == ["undo.first"]


async def test_a_step_that_has_not_started_since_all_was_undone_is_not_undone_again(flow: WorkflowBench) -> None:
    await flow.create(chain(job("first"), undone("a", compensate_when="started")))
    assert await flow.work("a") == ["first", "a", "undo.a"]
    flow.clock.advance(1)
    await flow.service.workflows.retry(flow.id)
    assert await flow.work("first") == ["first"]
    assert await flow.state() == "compensated"


# What is refused, and appended steps


@pytest.mark.parametrize(
    ("wire", "path", "message"),
    [
        (chain(job("a", compensate_when="started")), "$.steps[0].compensate_when", "has no effect without"),
        (chain(undone("a", compensate_when="soon")), "$.steps[0].compensate_when", "must be 'completed' or 'started'"),
        (chain(job("a", compensate=undone("b"))), "$.steps[0].compensate", "allowed only in a step of a container"),
        (chain(job("a"), on_error=undone("b")), "$.on_error", "allowed only in a step of a container"),
        (each([1], undone("a", compensate_when=3)), "$.do.compensate_when", "must be a string"),
    ],
)
async def test_a_compensation_that_would_have_no_effect_is_refused(
    flow: WorkflowBench, wire: dict[str, Any], path: str, message: str
) -> None:
    with pytest.raises(InvalidWorkflow) as refused:
        await flow.create(wire)
    (problem,) = refused.value.details["validation_errors"]
    assert problem["path"] == path
    assert message in problem["message"]


@pytest.mark.parametrize("kind", ["chain", "group", "graph"])
async def test_appended_steps_are_undone_too_before_those_that_were_there(flow: WorkflowBench, kind: str) -> None:
    made = {"chain": chain, "group": group, "graph": graph}[kind](undone("a"))
    await flow.create(chain(made, job("last")))
    (one,) = await flow.take()
    await flow.grow(one, undone("b"), chain(undone("c"), undone("d")))
    done = await flow.work("last")
    undoing = done[done.index("last") + 1 :]
    assert set(undoing) == {"undo.a", "undo.b", "undo.c", "undo.d"}
    assert undoing.index("undo.d") < undoing.index("undo.c")
    if kind != "group":
        assert undoing[-1] == "undo.a"
    if kind == "chain":
        assert undoing == ["undo.d", "undo.c", "undo.b", "undo.a"]
    assert await flow.state() == "compensated"


async def test_a_compensation_cannot_be_appended_where_nothing_is_undone(flow: WorkflowBench) -> None:
    await flow.create(chain(job("a")))
    (one,) = await flow.take()
    with pytest.raises(InvalidWorkflow, match="added to a container without compensations"):
        await flow.grow(one, undone("b"))


async def test_steps_with_compensations_can_be_appended_to_a_saga_without_any(flow: WorkflowBench) -> None:
    await flow.create({"type": "saga", "steps": [job("a")]})
    (one,) = await flow.take()
    await flow.grow(one, undone("b"), job("c", options={"retry": {"max_attempts": 1}}))
    assert await flow.work("c") == ["b", "c", "undo.b"]
    assert await flow.state() == "compensated"


# Random workflows: what took effect and what was undone


class Ledger:
    """Random nested workflows of jobs with compensations, and what their jobs have done and undone, in order."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.jobs = 0
        self.maps = 0
        self.events: list[str] = []
        """``+`` and the step when it has taken effect, ``-`` and the step when it is undone."""
        self.failed_to_undo = False
        self.later: set[tuple[str, str]] = set()
        """Pairs of types of steps: the second runs after the first has ended."""

    def container(self, levels: int, bindings: tuple[str, ...] = ()) -> tuple[dict[str, Any], list[str]]:
        """Return a container, and the types of the jobs inside it."""
        rng = self.rng
        kind = rng.choice(["chain", "group", "graph", "saga", "batch", "map"])
        if kind == "map":
            self.maps += 1
            name = f"item{self.maps}"
            do, inner = self.step(levels - 1, (*bindings, name))
            return each(list(range(rng.randint(0, 2))), do, **{"as": name}), inner
        made = [self.step(levels - 1, bindings) for _ in range(rng.randint(1, 3))]
        steps, types = [step for step, _ in made], [inside for _, inside in made]
        match kind:
            case "group":
                return group(*steps), flat(types)
            case "batch":
                callback, after = self.step(1, bindings)
                self.follow(flat(types), after)
                return batch(*steps, **{rng.choice(["on_complete", "on_success"]): callback}), flat([*types, after])
            case "graph":
                for place, step in enumerate(steps):
                    before = rng.sample(range(place), rng.randint(0, place))
                    step |= {"id": f"s{place}", "depends_on": [f"s{one}" for one in before]}
                    for one in before:
                        self.follow(types[one], types[place])
                return graph(*steps), flat(types)
            case _:
                for earlier, later in itertools.combinations(types, 2):
                    self.follow(earlier, later)
                return (saga if kind == "saga" else chain)(*steps), flat(types)

    def follow(self, before: list[str], after: list[str]) -> None:
        self.later |= set(itertools.product(before, after))

    def step(self, levels: int, bindings: tuple[str, ...]) -> tuple[dict[str, Any], list[str]]:
        if levels > 0 and self.rng.random() < 0.5:
            made, types = self.container(levels, bindings)
            if self.rng.random() < 0.1:
                made["allow_failure"] = True
            return made, types
        self.jobs += 1
        type, args = f"j{self.jobs}", [ref(name) for name in bindings]
        step = job(type, *args)
        if self.rng.random() < 0.6:
            step["compensate"] = job(f"undo.{type}", *args)
        if self.rng.random() < 0.1:
            step["fallback"] = job(f"other.{type}", *args)
        return step, [type]

    def check(self, state: str, wire: dict[str, Any]) -> None:
        """Assert that each step was undone as often as it took effect, after those that came after it."""
        text = (self.events, wire)
        in_force: list[str] = []
        for event in self.events:
            step = event[1:]
            if event[0] == "+":
                in_force.append(step)
                continue
            assert step in in_force, ("undone twice, or without an effect", step, text)
            in_force.remove(step)
            type = step.partition(" ")[0]
            early = [other for other in in_force if (type, other.partition(" ")[0]) in self.later and same(step, other)]
            assert not early, ("undone before what came after it", step, early, text)
        if state == "compensated":
            assert not in_force, ("left in force", in_force, text)
        assert state != "failed" or self.failed_to_undo or not self.undoes(wire), text

    def undoes(self, wire: dict[str, Any]) -> bool:
        return b'"compensate"' in msgspec.json.encode(wire) or wire["type"] == "saga"


def flat(lists: list[list[str]]) -> list[str]:
    return list(itertools.chain.from_iterable(lists))


def same(one: str, other: str) -> bool:
    """Whether two jobs are not of different elements of a map, which run in parallel."""
    return all(left == right for left, right in zip(one.split()[1:], other.split()[1:], strict=False))


async def run_ledger(seed: int, failing: float) -> str:
    rng = random.Random(seed)
    clock = Clock()
    service = Service(open_database("sqlite:///:memory:", clock=clock))
    ledger = Ledger(rng)
    wire, _ = ledger.container(4)
    text = msgspec.json.encode(wire)
    info = await service.workflows.create(members(wire))
    bench = WorkflowBench(service, clock)
    pool: list[Job] = []
    await bench.run_all_due()  # nested maps are expanded in steps
    while (fetched := await bench.fetch(count=10)) or pool:
        pool += fetched
        rng.shuffle(pool)
        one = pool.pop()
        is_undoing = one.type.startswith("undo.")
        name = " ".join([one.type.removeprefix("undo."), *map(str, one.args)])
        if rng.random() < (failing / 5 if is_undoing else failing):
            ledger.failed_to_undo |= is_undoing
            await bench.give_up(one)
        else:
            name = name.removeprefix("other.")  # the step and its fallback are undone together
            is_undone = f'"undo.{one.type.removeprefix("other.")}"'.encode() in text
            if is_undoing:
                ledger.events.append(f"-{name}")
            elif is_undone or name.startswith("other."):
                ledger.events.append(f"+{name.removeprefix('other ')}")
            await bench.ack(one)
        await bench.run_all_due()
    info = await service.workflows.show(info.id)
    assert info.finished
    ledger.check(info.state, wire)
    await service.close()
    return info.state


@pytest.mark.parametrize("part", range(2))
async def test_random_workflows_undo_what_took_effect_the_last_first(part: int) -> None:
    states = [await run_ledger(part * 1000 + seed, 0.15) for seed in range(25)]
    assert "compensated" in states
    assert "completed" in states


@pytest.mark.thorough
@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("part", range(20))
async def test_many_random_workflows_undo_what_took_effect_the_last_first(part: int) -> None:
    for seed in range(cases(100)):
        await run_ledger(100_000 + part * 1000 + seed, 0.15)
