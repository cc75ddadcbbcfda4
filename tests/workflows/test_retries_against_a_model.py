"""Random retries of steps and workflows, compared with a run that has no retries.

However often steps were retried, and whatever ran between: in the end a workflow looks as if it had run once, with the
last outcome of each job and of each approval. What follows a step began after the last attempt of that step had ended.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from ojster.core.durations import HOUR
from ojster.core.errors import Conflict
from ojster.core.job import Job
from ojster.jobs.claim_policy import Claim
from ojster.jobs.failure import Failure
from ojster.jobs.messages import Acknowledgement, FailureReport
from ojster.schedules.due_work import run_due
from ojster.service import Service
from ojster.storage.transaction import Transaction
from ojster.workflows.run.control import Review
from ojster.workflows.run.steps import StepAddress
from tests.amount import cases
from tests.conftest import Clock
from tests.workflows.driver import every_step, is_shown, leftovers, members
from tests.workflows.interpreter import Interpreter, Maker, Script

pytestmark = pytest.mark.anyio

RETRYABLE = ("failed", "cancelled", "compensated")


class _Known(Script):
    """The last outcomes. What has never run has none, and must not be asked for."""

    def end(self, path: str) -> str:
        return self.ends[path]

    def approves(self, path: str) -> bool:
        return self.approvals[path]


class _Run:
    """A workflow, with the last outcome of each of its jobs and approvals."""

    def __init__(self, id: str, wire: dict[str, Any]) -> None:
        self.id = id
        self.wire = wire
        self.last = _Known(random.Random(0), 0)


class _Office:
    """Runs workflows, and retries steps and workflows at random times."""

    def __init__(self, service: Service, clock: Clock, rng: random.Random) -> None:
        self.service, self.clock, self.rng = service, clock, rng
        self.runs: dict[str, _Run] = {}
        """The workflows by id."""
        self.active: list[Job] = []
        self.began: dict[str, int] = {}
        self.ended: dict[str, int] = {}
        """The numbers of the actions in which each job began and ended."""
        self.actions = self.retried = self.refused = 0

    async def create(self, count: int) -> None:
        for _ in range(count):
            wire = without_growth(Maker(self.rng, levels=3).workflow())
            info = await self.service.workflows.create(members(wire))
            self.runs[info.id] = _Run(info.id, wire)

    async def work(self, failing: float) -> bool:
        """Start some jobs, and end some of those that run; return whether there was something to do."""
        self.actions += 1
        fresh = await self.service.jobs.fetch(Claim(("default",), self.rng.choice([5, 40]), "w", HOUR))
        self.began |= {job.id: self.actions for job in fresh}
        self.active += fresh
        self.rng.shuffle(self.active)
        number = self.rng.randint(1, len(self.active)) if self.active else 0
        ending, self.active = self.active[:number], self.active[number:]
        for job in ending:
            run, path = self._place(job)
            self.ended[job.id] = self.actions
            run.last.ends[path] = "fail" if self.rng.random() < failing else "ok"
            if run.last.ends[path] == "ok":
                await self.service.jobs.acknowledge([Acknowledgement(job.id, b"1", job.worker_id, job.attempt)])
            else:
                failure = Failure("Final", "it is over", retryable=False)
                await self.service.jobs.fail([FailureReport(job.id, failure, job.worker_id, job.attempt)])
        return bool(fresh or ending)

    def _place(self, job: Job) -> tuple[_Run, str]:
        envelope = msgspec.json.decode(job.envelope)
        return self.runs[envelope["workflow_id"]], envelope["workflow_step"]

    async def review(self, share: float = 1.0) -> bool:
        """Approve or reject some of the steps that wait for it; return whether there were any."""
        reviewed = False
        for run in self.runs.values():
            for step in every_step(await self.service.workflows.show(run.id)):
                if step.state == "blocked" and self.rng.random() < share:
                    run.last.approvals[step.path] = approved = self.rng.random() < 0.8
                    action: Any = "approve" if approved else "reject"
                    await self.service.workflows.review_step(Review(run.id, step.path, action, None, None))
                    reviewed = True
        return reviewed

    async def retry(self) -> None:
        """Retry a random step of each workflow, or the workflow."""
        for run in self.runs.values():
            info = await self.service.workflows.show(run.id)
            steps = [step.path for step in every_step(info) if step.state in RETRYABLE]
            try:
                if info.finished and info.state != "completed" and self.rng.random() < 0.3:
                    await self.service.workflows.retry(run.id)
                elif steps:
                    await self.service.workflows.retry_step(StepAddress(run.id, self.rng.choice(steps)))
                else:
                    continue
                self.retried += 1
            except Conflict:
                self.refused += 1

    async def finish(self) -> None:
        idle = 0
        while idle < 3:
            busy = await self.work(0.2) or await self.review()
            self.clock.advance(15)
            await self.service.database.run(run_due, None)
            idle = 0 if busy else idle + 1

    async def check(self) -> None:
        for run in self.runs.values():
            info = await self.service.workflows.show(run.id)
            shown = {step.path: step.state for step in every_step(info)}
            assert info.finished, (run.wire, shown)
            expected = Interpreter(run.wire)
            expected.run(run.last)
            wrong = {
                path: (shown.get(path), expected.states.get(path))
                for path in shown.keys() | expected.states.keys()
                if is_shown(path) and shown.get(path) != expected.states.get(path)
            }
            assert not wrong, (wrong, run.wire)
            assert info.state == expected.state, run.wire
        for before, after in await self.service.database.read(followed_jobs, None):
            assert self.began[after] > self.ended[before], [self._place(await self.service.jobs.find(before))[0].wire]


def followed_jobs(tx: Transaction, calls: Sequence[None]) -> list[list[tuple[str, str]]]:
    """Return the pairs of last jobs of steps, the second in a node that follows the node of the first."""
    parents: dict[int, int | None] = {}
    jobs: dict[int, str] = {}
    for id, parent, job_id, started_at in tx.execute("SELECT id, parent, job_id, started_at FROM nodes"):
        parents[id] = parent
        if job_id is not None and started_at is not None:
            jobs[id] = str(job_id)
    inside: dict[int, list[int]] = {}
    for id in jobs:
        place: int | None = id
        while place is not None:
            inside.setdefault(place, []).append(id)
            place = parents[place]
    pairs = [
        (jobs[before], jobs[after])
        for source, target in tx.execute("SELECT source, target FROM node_edges")
        for before in inside.get(source, ())
        for after in inside.get(target, ())
    ]
    return [pairs for _ in calls]


def without_growth(wire: Any) -> Any:
    """Return a workflow without steps that append others: each of their attempts appends more."""
    if isinstance(wire, list):
        return [without_growth(value) for value in wire]
    if isinstance(wire, dict):
        return {name: without_growth(value) for name, value in wire.items() if name != "meta"}
    return wire


async def run_with_retries(service: Service, clock: Clock, seed: int, count: int) -> _Office:
    office = _Office(service, clock, random.Random(seed))
    await office.create(count)
    for turn in range(14):
        await office.work(0.35)
        if turn % 3 == 2:
            await office.review(0.7)
        await office.retry()
    await office.finish()
    await office.check()
    assert not await service.database.read(leftovers, None)
    return office


async def test_a_workflow_with_retried_steps_ends_as_one_that_ran_once(service: Service, clock: Clock) -> None:
    office = await run_with_retries(service, clock, 1, 15)
    assert office.retried > 5
    assert office.refused > 5


@pytest.mark.thorough
@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(2, 2 + cases(10)))
async def test_many_workflows_with_retried_steps_end_as_those_that_ran_once(
    service: Service, clock: Clock, seed: int
) -> None:
    await run_with_retries(service, clock, seed, 60)
