"""Random programs of flows, the flow that runs them, and an interpreter that says what a plain program would do."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Coroutine, Iterator
from typing import Any

from hypothesis import strategies as st

from ojster import App, Flow, JobFailed

Program = tuple[Any, ...]
"""What a flow does: the name of an operation, and its operands."""

FAR = 10.0**7
"""Longer than any program takes, in seconds."""

_number = st.integers(0, 9)
_word = st.sampled_from(["a", "b"])

_simple = st.one_of(
    *(st.tuples(st.just(name), _number) for name in ("step", "run", "fail", "failing_step", "publish", "append")),
    *(st.tuples(st.just(name), _number) for name in ("race", "wait_for", "give_up")),
    *(st.tuples(st.just(name), st.integers(1, 200)) for name in ("sleep", "expire")),
    *(st.tuples(st.just(name), _word) for name in ("receive", "listen")),
    *(st.tuples(st.just(name)) for name in ("random", "update")),
)


def _containers(inner: st.SearchStrategy[Program]) -> st.SearchStrategy[Program]:
    several = st.lists(inner, min_size=1, max_size=4)
    return st.one_of(
        *(st.tuples(st.just(name), several) for name in ("all", "gather", "gather_all", "group", "first")),
        st.tuples(st.just("undo"), several, st.booleans()),
        st.tuples(st.just("repeat"), st.integers(1, 3), inner),
        st.tuples(st.just("flow"), inner),
    )


_programs = st.recursive(_simple, _containers, max_leaves=8)

rounds = st.lists(_programs, min_size=1, max_size=3).map(lambda programs: list(_outside(programs)))
"""Programs of a flow that begins anew between two of them."""


def _outside(program: Any, inside: bool = False) -> Any:
    """Messages and updates go to the outermost flow: let those inside it expect none."""
    if isinstance(program, list):
        return [_outside(part, inside) for part in program]
    if not isinstance(program, tuple):
        return program
    if inside and program[0] in ("receive", "update"):
        return ("step", 1)
    return tuple(_outside(part, inside or program[0] == "flow") for part in program)


class Ledger:
    """What has happened outside of flows."""

    def __init__(self) -> None:
        self.jobs = Counter[str]()
        self.steps = Counter[str]()
        self.winners: dict[str, set[int]] = {}

    def add_one(self, number: int, key: str) -> int:
        self.steps[key] += 1
        return number + 1

    def note_winner(self, place: str, number: int) -> int:
        self.winners.setdefault(place, set()).add(number)
        return number


class Programs:
    """The flow that runs programs, and its jobs.

    Attributes
    ----------
    main:
        The flow, with the programs as its argument.
    """

    def __init__(self, app: App) -> None:
        self.ledger = Ledger()
        self.double = app.job("double", retry=1)(self._double)
        self.bad = app.job("bad", retry=1)(self._bad)
        self.inner = app.flow("inner")(self._inner)
        self.main = app.flow("main")(self._main)
        self.main.update(self.poke)

    async def _double(self, number: int, key: str) -> int:
        self.ledger.jobs[key] += 1
        return 2 * number

    async def _bad(self, key: str) -> None:
        self.ledger.jobs[key] += 1
        raise ValueError("no")

    async def _inner(self, flow: Flow, program: Any, path: str) -> int:
        return await self.go(flow, program, path)

    async def _main(self, flow: Flow, programs: Any, begun: int = 0, total: int = 0, pokes: int = 0) -> int:
        flow.state = asyncio.Semaphore(pokes)
        total += await self.go(flow, programs[begun], f"${begun}")
        if begun + 1 < len(programs):
            await flow.restart(programs, begun + 1, total, flow.state._value)
        return total

    async def poke(self, flow: Flow, number: int) -> int:
        """Answer an update."""
        await flow.step("poked", str, number)
        flow.state.release()
        return number

    async def go(self, flow: Flow, program: Program, path: str) -> int:
        """Run a program."""
        operation, *operands = program
        result: int = await getattr(self, f"_go_{operation}")(flow, path, *operands)
        return result

    def _parts(self, flow: Flow, path: str, programs: list[Program]) -> Iterator[Coroutine[Any, Any, int]]:
        return (self.go(flow, part, f"{path}.{number}") for number, part in enumerate(programs))

    # Operations

    async def _go_step(self, flow: Flow, path: str, number: int) -> int:
        return await flow.step("add", self.ledger.add_one, number, path)

    async def _go_run(self, flow: Flow, path: str, number: int) -> int:
        return await flow.run(self.double, number, path)

    async def _go_fail(self, flow: Flow, path: str, number: int) -> int:
        try:
            await flow.run(self.bad, path)
        except JobFailed:
            return -1
        return 0

    async def _go_failing_step(self, flow: Flow, path: str, number: int) -> int:
        def wrong() -> None:
            raise LookupError(path)

        try:
            await flow.step("wrong", wrong)
        except LookupError:
            return -2
        return 0

    async def _go_publish(self, flow: Flow, path: str, number: int) -> int:
        flow.publish(number)
        return 0

    async def _go_append(self, flow: Flow, path: str, number: int) -> int:
        flow.stream("words").append(path)
        return 0

    async def _go_sleep(self, flow: Flow, path: str, seconds: int) -> int:
        await flow.sleep(seconds)
        return 0

    async def _go_receive(self, flow: Flow, path: str, name: str) -> int:
        return await flow.receive(name, int)

    async def _go_listen(self, flow: Flow, path: str, key: str) -> int:
        return await flow.receive("news", int, key=key, look_back=7 * 86_400)

    async def _go_update(self, flow: Flow, path: str) -> int:
        await flow.state.acquire()
        return 0

    async def _go_random(self, flow: Flow, path: str) -> int:
        drawn = flow.random.random()
        return int(await flow.step("same", lambda: drawn) == drawn)

    async def _go_expire(self, flow: Flow, path: str, seconds: int) -> int:
        try:
            async with asyncio.timeout(seconds):
                await flow.receive("never")
        except TimeoutError:
            return -3
        return 0

    async def _go_give_up(self, flow: Flow, path: str, number: int) -> int:
        try:
            async with asyncio.timeout(1):
                await flow.run(self.double.using(delay=FAR), number, f"{path} given up")
        except TimeoutError:
            return -5
        return 0

    async def _go_wait_for(self, flow: Flow, path: str, number: int) -> int:
        return await asyncio.wait_for(flow.run(self.double, number, path), FAR)

    async def _go_race(self, flow: Flow, path: str, number: int) -> int:
        racers = [asyncio.create_task(flow.run(self.double, number, path)), asyncio.create_task(flow.sleep(FAR))]
        done, late = await asyncio.wait(racers, return_when=asyncio.FIRST_COMPLETED)
        for task in late:
            task.cancel()
        return sum(task.result() or 0 for task in done)

    async def _go_all(self, flow: Flow, path: str, programs: list[Program]) -> int:
        return sum([await part for part in self._parts(flow, path, programs)])

    async def _go_gather(self, flow: Flow, path: str, programs: list[Program]) -> int:
        return sum(await asyncio.gather(*self._parts(flow, path, programs)))

    async def _go_gather_all(self, flow: Flow, path: str, programs: list[Program]) -> int:
        failing = flow.run(self.bad, f"{path} failing")
        ended = await asyncio.gather(failing, *self._parts(flow, path, programs), return_exceptions=True)
        return sum(-6 if isinstance(end, JobFailed) else int(end) for end in ended)

    async def _go_group(self, flow: Flow, path: str, programs: list[Program]) -> int:
        async with asyncio.TaskGroup() as tasks:
            made = [tasks.create_task(part) for part in self._parts(flow, path, programs)]
        return sum(task.result() for task in made)

    async def _go_first(self, flow: Flow, path: str, programs: list[Program]) -> int:
        # A flow inside, which has no state, runs again as a whole after it was cancelled: others may win then.
        run = "" if flow.state else flow.job.id
        racers = [asyncio.create_task(part) for part in self._parts(flow, path, programs)]
        total = 0
        order: list[int] = []
        for ended in asyncio.as_completed(racers):
            total += await ended
            order.append(next(n for n, task in enumerate(racers) if task.done() and n not in order))
            await flow.step("winner", self.ledger.note_winner, f"{run} {path} {len(order)}", order[-1])
        return total

    async def _go_undo(self, flow: Flow, path: str, programs: list[Program], fails: bool) -> int:
        try:
            async with flow.compensation() as undo:
                for number, part in enumerate(programs):
                    undo.add(self.double, 1, f"{path}.{number} undone")
                    await self.go(flow, part, f"{path}.{number}")
                if fails:
                    raise KeyError(path)
        except KeyError:
            return -4
        return 4

    async def _go_repeat(self, flow: Flow, path: str, times: int, program: Program) -> int:
        return sum([await self.go(flow, program, f"{path}.{number}") for number in range(times)])

    async def _go_flow(self, flow: Flow, path: str, program: Program) -> int:
        return await flow.run(self.inner, program, path)


class Expected:
    """What a plain program does: its result, how often each job runs, what it appends, and what it must be sent."""

    def __init__(self, programs: list[Program]) -> None:
        self.jobs = Counter[str]()
        self.messages = Counter[str]()
        self.broadcasts = Counter[str]()
        self.appended: list[str] = []
        self.appended_inside: list[str] = []
        """What flows inside append: not again in a fork that keeps their results."""
        self.updates = 0
        self.result = sum(self.run(program, f"${number}") for number, program in enumerate(programs))

    def run(self, program: Program, path: str, *, inside: bool = False) -> int:  # noqa: PLR0912
        operation, *operands = program
        match operation:
            case "step":
                return int(operands[0]) + 1
            case "run" | "wait_for" | "race":
                self.jobs[path] += 1
                return 2 * int(operands[0])
            case "fail":
                self.jobs[path] += 1
                return -1
            case "failing_step":
                return -2
            case "expire":
                return -3
            case "give_up":
                return -5
            case "append":
                (self.appended_inside if inside else self.appended).append(path)
            case "receive":
                self.messages[operands[0]] += 1
            case "listen":
                self.broadcasts[operands[0]] += 1
            case "update":
                self.updates += 1
            case "random":
                return 1
            case "all" | "gather" | "group" | "first":
                return self._all(operands[0], path, inside)
            case "gather_all":
                self.jobs[f"{path} failing"] += 1
                return self._all(operands[0], path, inside) - 6
            case "undo":
                self._all(operands[0], path, inside)
                self.jobs.update({f"{path}.{number} undone": operands[1] for number in range(len(operands[0]))})
                return -4 if operands[1] else 4
            case "repeat":
                return self._all([operands[1]] * operands[0], path, inside)
            case "flow":
                return self.run(operands[0], path, inside=True)
        return 0

    def _all(self, programs: list[Program], path: str, inside: bool) -> int:
        return sum(self.run(part, f"{path}.{number}", inside=inside) for number, part in enumerate(programs))


def sends(expected: Expected, chance: random.Random) -> list[tuple[Any, ...]]:
    """Return what a program must be sent, in any order: names of methods of the tests, and their arguments."""
    words: list[tuple[Any, ...]] = [("send", name) for name, count in expected.messages.items() for _ in range(count)]
    words += [("broadcast", key) for key, count in expected.broadcasts.items() for _ in range(count)]
    words += [("update", number) for number in range(expected.updates)]
    chance.shuffle(words)
    return words
