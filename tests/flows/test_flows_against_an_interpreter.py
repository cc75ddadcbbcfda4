"""Random flows, whose processes die at random places, do what a plain program does, and each effect once."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any, NamedTuple

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from msgspec import UNSET

from ojster import App
from ojster.core.job import Job
from ojster.handlers.flow_execution import FlowExecution
from ojster.handlers.flow_export import export_flow
from ojster.handlers.flow_keeping import KeptFlows
from ojster.service import Service
from ojster.storage.open import open_database
from ojster.workflows.broadcast import Broadcast
from ojster.workflows.read.info import WorkflowInfo
from ojster.workflows.read.run_errors import result_of
from ojster.workflows.run.fork import Fork
from tests.amount import cases
from tests.conftest import Clock
from tests.flows.driver import NEVER, FlowBench
from tests.flows.programs import Expected, Program, Programs, rounds, sends

pytestmark = pytest.mark.anyio

HOUR = 3600.0

LEAPS = (60, 60, 60, 60, 600, HOUR, -HOUR)
"""How far the clock jumps, in seconds."""

ROUNDS_WITH_ALL = 200
"""Rounds in which it also jumps back: chance alone could keep it from reaching what is due."""


class Choice(NamedTuple):
    """The programs of a flow, and the chances of its workers."""

    programs: list[Program]
    number: int
    """Decides what happens when."""
    crashes: float
    forgets: float


class _Forgetful(KeptFlows):
    """Forgets some of the flows that it keeps."""

    def __init__(self, dice: random.Random, chance: float) -> None:
        super().__init__()
        self._dice, self._chance = dice, chance

    def take(self, job: Job) -> FlowExecution | None:
        if self._dice.random() < self._chance:
            self.drop_all()
        return super().take(job)


class Trial:
    """One random program, with crashes, lost answers, jumps of the clock, and what it is sent in between.

    Parameters
    ----------
    choice:
        The program, the chance of a crash for each of the first calls of a worker, and that of a worker that has
        forgotten the flows that it keeps.
    """

    def __init__(self, service: Service, clock: Clock, app: App, choice: Choice) -> None:
        dice = random.Random(choice.number)
        self.programs = Programs(app)
        self.bench = FlowBench(service, clock, app)
        self._dice = dice
        self._choice = choice
        self.bench.when = self._when
        self.bench.kept = _Forgetful(dice, choice.forgets)
        self._words: list[tuple[str, str | int]] = []
        self._updates: list[int] = []

    def _when(self, number: int) -> str:
        dies = number < 40 and self._dice.random() < self._choice.crashes
        return self._dice.choice(["before", "after", "lost"]) if dies else NEVER

    async def run(self) -> None:
        """Run programs; run them again from some place on; and compare both with the interpreter."""
        expected = Expected(self._choice.programs)
        await self.finish(expected)
        await self._fork(expected)
        if self.bench.kept is not None:
            self.bench.kept.close()

    async def finish(self, expected: Expected) -> WorkflowInfo:
        """Run programs to the end, and compare what they have done with the interpreter."""
        self._words = sends(expected, self._dice)
        await self.bench.start(self.programs.main.s(self._choice.programs))
        for _ in range(self._dice.randrange(len(self._words) + 1)):
            await self._say()
        info = await self._finish()
        assert (info.state, result_of(info)) == ("completed", expected.result), info.to_json()
        assert self.programs.ledger.jobs == +expected.jobs
        await self._compare(expected)
        return info

    async def _compare(self, expected: Expected, *, is_fork: bool = False) -> None:
        winners = self.programs.ledger.winners
        assert all(len(numbers) == 1 for numbers in winners.values()), winners
        said, _ = await self.bench.stream("words")
        inside = Counter(said) - Counter(expected.appended)
        assert Counter(said) >= Counter(expected.appended)
        assert inside <= Counter(expected.appended_inside) if is_fork else inside == Counter(expected.appended_inside)
        for number in self._updates:
            answer = await self.bench.service.flows.find_update(self.bench.id, str(number))
            assert answer.state == "completed"

    async def _fork(self, expected: Expected) -> None:
        """Run the flow again from a random record on: what it does again, it does once."""
        records = (await export_flow(self.bench.service, self.bench.id)).records
        keys = [record.key for record in records if record.kind in ("run", "step", "receive", "listen")]
        keys = sorted(key for key in keys if not key.startswith("!"))
        if not keys:
            return
        before = self.programs.ledger.jobs.copy()
        self.programs.ledger.winners.clear()
        forked = await self.bench.service.workflows.fork(Fork(self.bench.id, self._dice.choice(keys)))
        self.bench.id, self._updates = forked.id, []
        info = await self._finish()
        assert (info.state, result_of(info)) == ("completed", expected.result), info.to_json()
        again = self.programs.ledger.jobs - before
        assert again <= +expected.jobs
        if len(self._choice.programs) == 1:  # a fork knows the last round alone
            await self._compare(expected, is_fork=True)

    async def _finish(self) -> WorkflowInfo:
        for number in range(2000):
            await self.bench.work()
            info = await self.bench.look()
            if info.finished:
                return info
            if self._words and self._dice.random() < 0.5:
                await self._say()
            else:
                leap = self._dice.choice(LEAPS)
                self.bench.clock.advance(leap if number < ROUNDS_WITH_ALL else abs(leap))
                await self.bench.run_all_due()
        raise AssertionError(f"the flow does not end: {info.to_json()!r}")

    async def _say(self) -> None:
        what, word = self._words.pop()
        flows = self.bench.service.flows
        match what:
            case "send":
                await self.bench.send(str(word), 0)
            case "broadcast":
                await flows.broadcast(Broadcast("news", str(word), b"0"))
            case "update":
                self._updates.append((await flows.update(self.bench.id, "poke", [word])).id)


class _Cancelled(Trial):
    """A trial whose flow is cancelled at a random moment, and retried each time it was."""

    async def finish(self, expected: Expected) -> WorkflowInfo:
        """Run programs to the end: a retry goes on where the flow was."""
        self._words = sends(expected, self._dice)
        await self.bench.start(self.programs.main.s(self._choice.programs))
        for _ in range(self._dice.randrange(12)):
            for job in await self.bench.claim():
                await self.bench.run_job(job)
        retries = 0
        self.bench.clock.advance(1)
        if not (await self.bench.look()).finished:
            await self.bench.service.workflows.cancel(self.bench.id)
        while (info := await self._finish()).state == "cancelled":
            assert all(step.state not in ("pending", "running") for step in info.walk()), info.to_json()
            retries += 1
            assert retries == 1, info.to_json()
            await self.bench.service.workflows.retry(self.bench.id)
        assert (info.state, result_of(info)) == ("completed", expected.result), info.to_json()
        ran = self.programs.ledger.jobs
        assert ran.keys() == (+expected.jobs).keys()
        assert max((ran - expected.jobs).values(), default=0) <= retries  # those that were cancelled
        if not expected.appended_inside:  # flows inside run again as a whole
            await self._compare(expected)
        return info


choices = st.builds(
    Choice,
    rounds,
    st.integers(0, 1 << 30),
    st.sampled_from([0.0, 0.1, 0.3]),
    st.sampled_from([0.0, 0.3, 1.0]),
)


@settings(max_examples=40)
@given(choice=choices)
async def test_a_flow_whose_processes_die_does_what_a_plain_program_does(
    service: Service, clock: Clock, url: str, choice: Choice
) -> None:
    await Trial(service, clock, App(url), choice).run()


async def _run_alone(url: str, clock: Clock, choice: Choice) -> None:
    service = Service(open_database(url, clock=clock))
    try:
        await Trial(service, clock, App(url), choice).run()
    finally:
        await service.close()


@pytest.mark.thorough
@pytest.mark.soak
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("part", range(4))
@settings(max_examples=cases(2_500, usual=150))
@given(choice=choices)
async def test_thousands_of_flows_do_what_plain_programs_do(clock: Clock, part: int, choice: Choice) -> None:
    await _run_alone("sqlite:///:memory:", clock, choice)


@pytest.mark.thorough
@pytest.mark.soak
@pytest.mark.timeout(3000)
@settings(max_examples=cases(2_000, usual=150))
@given(choice=choices)
async def test_thousands_of_flows_on_postgresql_do_what_plain_programs_do(
    clock: Clock, postgres_url: str, choice: Choice
) -> None:
    await _run_alone(postgres_url, clock, choice)


@given(programs=rounds)
@settings(max_examples=8)
async def test_a_kept_flow_records_the_same_as_one_that_runs_again(
    service: Service, clock: Clock, url: str, programs: list[Program]
) -> None:
    words = str(programs)
    # What is sent may come before or after the failure, or the first end, that makes the others unwanted.
    is_open = any(name in words for name in ("fail", "first", "race", "expire", "give_up", "wait_for"))
    assume(not (is_open and any(name in words for name in ("update", "receive", "listen"))))
    recorded: list[set[tuple[Any, ...]]] = []
    for kept in (None, KeptFlows()):
        trial = Trial(service, clock, App(url), Choice(programs, 1, 0.0, 0.0))
        trial.bench.kept = kept
        info = await trial.finish(Expected(programs))
        (flow, *_) = [shown.job_id for shown in info.walk() if shown.type == "main"]
        records = (await service.flows.records(flow or "")).records
        own = [record for record in records if record.kind != "begin"]  # a restarted one names its run
        recorded.append({(record.key, record.kind, record.name, record.error is UNSET) for record in own})
        if kept is not None:
            assert max(trial.programs.ledger.steps.values(), default=1) == 1
            kept.close()
    assert recorded[0] == recorded[1]


@settings(max_examples=40)
@example(choice=Choice([("flow", ("first", [("step", 0), ("step", 0), ("step", 0), ("run", 0)]))], 0, 0.3, 0.0))
@given(choice=choices)
async def test_a_flow_that_is_cancelled_and_retried_does_what_a_plain_program_does(
    service: Service, clock: Clock, url: str, choice: Choice
) -> None:
    assume("undo" not in str(choice.programs))  # what was undone is not done again
    await _Cancelled(service, clock, App(url), choice).run()
