"""Flows of the trial: each goes through some stages, and what its jobs and steps do is noted outside of Ojster."""

from __future__ import annotations

import asyncio
import os
import random
import uuid
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from ojster import App, Flow, JobContext, Retry

EFFECTS: Final = ".effects"
"""Ending of the file of effects, beside the ledger: number of the flow, what was done, and a token."""

STAGES: Final = ("jobs", "messages", "news", "timer", "undo", "inner", "given_up", "stream", "updates")
"""What a flow may do."""

MESSAGES: Final = 3
"""Messages, broadcasts or updates of a stage."""

_RETRY: Final = Retry(max_attempts=1000, initial_interval=0.05, max_interval=0.2)

Note = Callable[[str, JobContext], None]
"""Writes the start (``start``) or the end (``end``) of a job to the ledger."""


class Plan(NamedTuple):
    """What a flow does, which follows from its number.

    Parameters
    ----------
    stages:
        Its stages, in their order.
    restarts_after:
        The number of stages after which it begins anew; ``None``: never.
    end:
        How it ends: ``completed``, ``failed`` or ``cancelled``.
    """

    stages: list[str]
    restarts_after: int | None
    end: str


def plan_of(number: int) -> Plan:
    """Return what a flow does."""
    chance = random.Random(number)
    stages = chance.sample(STAGES, 4)
    restarts_after = chance.choice([None, None, 1, 2])
    return Plan(stages, restarts_after, chance.choices(["completed", "failed", "cancelled"], [8, 1, 1])[0])


class Unlucky(Exception):
    """What a flow raises that fails."""


class Journeys:
    """Declares the flows and their jobs, and has what these do.

    Parameters
    ----------
    note:
        Writes to the ledger.
    """

    def __init__(self, app: App, note: Note) -> None:
        path = os.environ["LEDGER"] + EFFECTS
        self._effects = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._note = note
        self.work = app.job("journey.work", retry=_RETRY)(self._work)
        self.refund = app.job("journey.refund", retry=_RETRY)(self._refund)
        self.slow = app.job("journey.slow", retry=_RETRY)(_slow)
        self.child = app.flow("journey.child")(self._child)
        app.flow("journey")(self._journey).update(self.put)

    def effect(self, number: int, what: str) -> str:
        """Note that something was done; return the token of that."""
        token = uuid.uuid4().hex
        os.write(self._effects, f"{number} {what} {token}\n".encode())
        return token

    async def _work(self, job: JobContext, number: int, what: str) -> str:
        self._note("start", job)
        await asyncio.sleep(random.random() * 0.02)
        token = self.effect(number, what)
        self._note("end", job)
        return token

    async def _refund(self, job: JobContext, number: int, what: str) -> str:
        return await self._work(job, number, f"refund-{what}")

    async def _child(self, flow: Flow, number: int) -> list[Any]:
        inner = await flow.run(self.work, number, "inner")
        return [inner, await flow.step("local", self.effect, number, "inner-local")]

    async def _journey(
        self, flow: Flow, number: int, passed: int = 0, told: list[Any] | None = None, state: list[int] | None = None
    ) -> list[Any]:
        plan, told = plan_of(number), told or []
        flow.state = state or []
        for place, stage in enumerate(plan.stages[passed:], passed + 1):
            told.append([stage, await getattr(self, stage)(flow, number)])
            if place == plan.restarts_after and not passed:
                await flow.restart(number, place, told, flow.state)
        if plan.end == "failed":
            raise Unlucky(str(number))
        if plan.end == "cancelled":
            flow.publish("ready")
            try:
                await flow.receive("never")
            finally:
                await flow.run(self.work, number, "cleanup")
        return told

    async def put(self, flow: Flow, item: int) -> int:
        """Answer an update."""
        await flow.step("checked", self.effect, item, "checked")
        flow.state.append(item)
        return len(flow.state)

    # Stages

    async def jobs(self, flow: Flow, number: int) -> list[str]:
        sides = asyncio.gather(*(flow.run(self.work, number, what) for what in ("left", "right")))
        return [*await sides, await flow.step("local", self.effect, number, "local")]

    async def messages(self, flow: Flow, number: int) -> list[int]:
        return [await flow.receive("go", int) for _ in range(MESSAGES)]

    async def news(self, flow: Flow, number: int) -> list[int]:
        return [await flow.receive("news", int, key=number, look_back=3600) for _ in range(MESSAGES)]

    async def timer(self, flow: Flow, number: int) -> str:
        await flow.sleep(0.3)
        try:
            async with asyncio.timeout(0.2):
                await flow.receive("never")
        except TimeoutError:
            return "late"
        return "in time"

    async def undo(self, flow: Flow, number: int) -> str:
        try:
            async with flow.compensation() as undo:
                await undo.run(self.work, number, "pay", undo=self.refund)
                await undo.run(self.work, number, "book", undo=self.refund)
                raise Unlucky
        except Unlucky:
            return "undone"

    async def inner(self, flow: Flow, number: int) -> list[Any]:
        return await flow.run(self.child, number)

    async def given_up(self, flow: Flow, number: int) -> str:
        try:
            async with asyncio.timeout(0.1):
                await flow.run(self.slow, number)
        except TimeoutError:
            return "gave up"
        return "waited"

    async def stream(self, flow: Flow, number: int) -> str:
        said = flow.stream("said", int)
        for value in range(MESSAGES):
            said.append(value)
            await flow.step("between", self.effect, number, f"between-{value}")
        return "said"

    async def updates(self, flow: Flow, number: int) -> list[int]:
        while len(flow.state) < MESSAGES:
            await flow.sleep(0.1)
        return sorted(flow.state)


async def _slow(number: int) -> None:
    await asyncio.sleep(3)
