"""Random flows, whose processes die at random places, do what a plain program does, and each effect once."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import UNSET

from ojster import App, Flow, JobFailed
from ojster.core.job import Job
from ojster.handlers.flow_execution import FlowExecution
from ojster.handlers.flow_keeping import KeptFlows
from ojster.service import Service
from ojster.workflows.read.run_errors import result_of
from tests.conftest import Clock
from tests.flows.driver import NEVER, FlowBench

pytestmark = pytest.mark.anyio

Program = tuple[Any, ...]
"""What a flow does: the name of an operation, and its operands."""

_number = st.integers(0, 9)

_simple = st.one_of(
    st.tuples(st.just("step"), _number),
    st.tuples(st.just("run"), _number),
    st.tuples(st.just("fail"), _number),
    st.tuples(st.just("failing_step"), _number),
    st.tuples(st.just("sleep"), st.integers(1, 200)),
    st.tuples(st.just("receive"), st.sampled_from(["a", "b"])),
    st.tuples(st.just("expire"), st.integers(1, 200)),
    st.tuples(st.just("publish"), _number),
    st.tuples(
        st.just("random"),
    ),
)


def _containers(inner: st.SearchStrategy[Program]) -> st.SearchStrategy[Program]:
    several = st.lists(inner, min_size=1, max_size=4)
    return st.one_of(
        st.tuples(st.just("all"), several),
        st.tuples(st.just("gather"), several),
        st.tuples(st.just("group"), several),
        st.tuples(st.just("first"), several),
        st.tuples(st.just("undo"), several, st.booleans()),
        st.tuples(st.just("repeat"), st.integers(1, 3), inner),
        st.tuples(st.just("flow"), inner),
    )


programs = st.recursive(_simple, _containers, max_leaves=8)


class Ledger:
    """What has happened outside of flows."""

    def __init__(self) -> None:
        self.jobs = Counter[str]()
        self.winners: dict[str, set[int]] = {}
        self.steps = Counter[str]()


def made(url: str) -> tuple[App, Ledger]:  # noqa: PLR0915
    app, ledger = App(url), Ledger()
    app.ledger = ledger  # type: ignore[attr-defined]

    @app.job("double", retry=1)
    async def double(number: int, key: str) -> int:
        ledger.jobs[key] += 1
        return 2 * number

    @app.job("bad", retry=1)
    async def bad(key: str) -> None:
        ledger.jobs[key] += 1
        raise ValueError("no")

    def add_one(number: int, key: str) -> int:
        ledger.steps[key] += 1
        return number + 1

    def wrong(key: str) -> int:
        ledger.steps[key] += 1
        raise LookupError(key)

    async def go(flow: Flow, program: Program, path: str) -> Any:  # noqa: PLR0912
        operation, *operands = program
        match operation:
            case "step":
                return await flow.step("add", add_one, operands[0], path)
            case "run":
                return await flow.run(double, operands[0], path)
            case "fail":
                try:
                    return await flow.run(bad, path)
                except JobFailed:
                    return -1
            case "failing_step":
                try:
                    return await flow.step("wrong", wrong, path)
                except LookupError:
                    return -2
            case "sleep":
                await flow.sleep(operands[0])
                return 0
            case "receive":
                return await flow.receive(operands[0], int)
            case "expire":
                try:
                    async with asyncio.timeout(operands[0]):
                        await flow.receive("never")
                except TimeoutError:
                    return -3
            case "publish":
                flow.publish(operands[0])
                return 0
            case "random":
                drawn = flow.random.random()
                return int(await flow.step("same", lambda: drawn) == drawn)
            case "all":
                return sum([await go(flow, one, f"{path}.{number}") for number, one in enumerate(operands[0])])
            case "gather":
                return sum(await asyncio.gather(*[go(flow, one, f"{path}.{n}") for n, one in enumerate(operands[0])]))
            case "group":
                async with asyncio.TaskGroup() as tasks:
                    made = [tasks.create_task(go(flow, one, f"{path}.{n}")) for n, one in enumerate(operands[0])]
                return sum(task.result() for task in made)
            case "first":
                racers = [
                    asyncio.create_task(go(flow, one, f"{path}.{n}"), name=str(n)) for n, one in enumerate(operands[0])
                ]
                total, order = 0, []
                for ended in asyncio.as_completed(racers):
                    total += await ended
                    order.append(next(n for n, task in enumerate(racers) if task.done() and n not in order))
                    await flow.step("winner", note_winner, f"{path} {len(order)}", order[-1])
                return total
            case "undo":
                try:
                    async with flow.compensation() as undo:
                        for number, one in enumerate(operands[0]):
                            undo.add(double, 1, f"{path}.{number} undone")
                            await go(flow, one, f"{path}.{number}")
                        if operands[1]:
                            raise KeyError(path)
                except KeyError:
                    return -4
                return 4
            case "repeat":
                return sum([await go(flow, operands[1], f"{path}.{n}") for n in range(operands[0])])
            case "flow":
                return await flow.run(main, operands[0], path)
        raise AssertionError(program)

    def note_winner(place: str, number: int) -> int:
        ledger.winners.setdefault(place, set()).add(number)
        return number

    @app.flow("main")
    async def main(flow: Flow, program: Any, path: str = "$") -> int:
        return int(await go(flow, program, path))

    app.main = main  # type: ignore[attr-defined]
    return app, ledger


class Expected:
    """What a plain program does: its result, and how often each job runs."""

    def __init__(self) -> None:
        self.jobs = Counter[str]()
        self.messages = Counter[str]()

    def run(self, program: Program, path: str = "$") -> int:  # noqa: PLR0912
        operation, *operands = program
        match operation:
            case "step":
                return int(operands[0]) + 1
            case "run":
                self.jobs[path] += 1
                return 2 * int(operands[0])
            case "fail":
                self.jobs[path] += 1
                return -1
            case "failing_step":
                return -2
            case "sleep" | "publish":
                return 0
            case "receive":
                self.messages[operands[0]] += 1
                return 0
            case "expire":
                return -3
            case "random":
                return 1
            case "all" | "gather" | "group" | "first":
                return sum(self.run(one, f"{path}.{number}") for number, one in enumerate(operands[0]))
            case "undo":
                for number, one in enumerate(operands[0]):
                    self.run(one, f"{path}.{number}")
                    self.jobs[f"{path}.{number} undone"] += operands[1]
                return -4 if operands[1] else 4
            case "repeat":
                return sum(self.run(operands[1], f"{path}.{n}") for n in range(operands[0]))
            case "flow":
                return self.run(operands[0], path)
        raise AssertionError(program)


def _without_receive_in_flows(program: Any, inside: bool = False) -> Any:
    """Messages go to the outermost flow: let those inside it expect none."""
    if isinstance(program, list):
        return [_without_receive_in_flows(one, inside) for one in program]
    if not isinstance(program, tuple):
        return program
    if inside and program[0] == "receive":
        return ("step", 1)
    return tuple(_without_receive_in_flows(one, inside or program[0] == "flow") for one in program)


class _Forgetful(KeptFlows):
    """Forgets some of the flows that it keeps."""

    def __init__(self, dice: random.Random, chance: float) -> None:
        super().__init__()
        self._dice, self._chance = dice, chance

    def take(self, job: Job) -> FlowExecution | None:
        if self._dice.random() < self._chance:
            self.drop_all()
        return super().take(job)


@given(
    program=programs,
    seed=st.integers(0, 1 << 30),
    chance=st.sampled_from([0.0, 0.1, 0.3]),
    forgets=st.sampled_from([0.0, 0.3, 1.0]),
)
async def test_a_flow_whose_processes_die_does_what_a_plain_program_does(
    service: Service, clock: Clock, url: str, program: Program, seed: int, chance: float, forgets: float
) -> None:
    program = _without_receive_in_flows(program)
    app, ledger = made(url)
    bench = FlowBench(service, clock, app)
    dice = random.Random(seed)

    def when(number: int) -> str:
        return dice.choice(["before", "after", "lost"]) if number < 40 and dice.random() < chance else NEVER

    bench.when = when
    bench.kept = _Forgetful(dice, forgets)
    expected = Expected()
    result = expected.run(program)
    await bench.start(app.main.s(program))  # type: ignore[attr-defined]
    for name, count in expected.messages.items():
        for _ in range(count):
            await bench.send(name, 0)
    info = await bench.finish()
    assert (info.state, result_of(info)) == ("completed", result), info.to_json()
    bench.kept.close()
    assert ledger.jobs == +expected.jobs
    assert all(len(numbers) == 1 for numbers in ledger.winners.values()), ledger.winners


@given(program=programs)
@settings(max_examples=8)
async def test_a_kept_flow_records_the_same_as_one_that_runs_again(
    service: Service, clock: Clock, url: str, program: Program
) -> None:
    program = _without_receive_in_flows(program)
    recorded: list[set[tuple[Any, ...]]] = []
    expected = Expected()
    expected.run(program)
    for kept in (None, KeptFlows()):
        app, ledger = made(url)
        bench = FlowBench(service, clock, app)
        bench.kept = kept
        await bench.start(app.main.s(program))  # type: ignore[attr-defined]
        for name, count in expected.messages.items():
            for _ in range(count):
                await bench.send(name, 0)
        info = await bench.finish()
        (flow, *_) = [shown.job_id for shown in info.walk() if shown.type == "main"]
        assert isinstance(flow, str)
        records = (await service.flows.records(flow)).records
        recorded.append({(record.key, record.kind, record.name, record.error is UNSET) for record in records})
        if kept is not None:
            assert max(ledger.steps.values(), default=1) == 1
            kept.close()
    assert recorded[0] == recorded[1]
