"""Clients that start flows and talk to them while processes are killed, and the judgement of these flows."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from ojster.api.app import App
from ojster.client.client import HttpClient
from ojster.core.errors import BackendError, BackendUnavailable, Conflict, Duplicate, NotFound, OjsterError
from ojster.core.ids import new_id
from ojster.core.job import Job
from ojster.core.json_objects import read_members
from ojster.workflows.broadcast import Broadcast
from ojster.workflows.flow import FlowMessage
from ojster.workflows.read.flow_info import MessageFilter
from ojster.workflows.read.info import WorkflowInfo
from ojster.workflows.stream import StreamAddress
from tests.chaos.fleet import Fleet
from tests.chaos.journeys import EFFECTS, MESSAGES, Plan, plan_of

T = TypeVar("T")

TOGETHER: Final = 60
"""Number of flows that run at the same time."""

UNSUCCESSFUL: Final = ("journey", "journey.slow")
"""Types of jobs that may fail or be cancelled."""

JOBS: Final = {
    "jobs": ("left", "right"),
    "undo": ("pay", "book", "refund-pay", "refund-book"),
    "inner": ("inner",),
}
"""Jobs of stages, by what they do."""

LOCAL: Final = {
    "jobs": ("local",),
    "inner": ("inner-local",),
    "stream": tuple(f"between-{number}" for number in range(MESSAGES)),
}
"""Local steps of stages, by what they do."""


class FlowLoad:
    """Clients of flows: as many flows as were asked for are started, and each hears what it waits for.

    Parameters
    ----------
    servers:
        Names of the servers. Each call is made to one of them, or to the database.
    """

    def __init__(self, fleet: Fleet, servers: list[str]) -> None:
        self.ids: dict[int, str] = {}
        self.answers: dict[int, list[int]] = {}
        """The numbers of the updates of each flow."""
        self.refused = 0
        self.wrong: list[str] = []
        self._app = App(fleet.database)
        self._remote = [HttpClient(fleet.url_of(server), patience=5) for server in servers]
        self._places = asyncio.Semaphore(TOGETHER)
        self._running: set[asyncio.Task[None]] = set()
        self.started = 0

    async def start(self, total: int) -> None:
        """Start flows until there are ``total``; wait while too many run."""
        while self.started < total:
            await self._places.acquire()
            task = asyncio.create_task(self._accompany(self.started))
            self.started += 1
            self._running.add(task)
            task.add_done_callback(self._over)

    def _over(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        self._places.release()
        if not task.cancelled() and (error := task.exception()) is not None:
            self.wrong.append(f"a client of flows failed: {error!r}")

    async def stop(self) -> None:
        """Wait until all flows have ended."""
        while self._running:
            await asyncio.wait(self._running)
        for client in self._remote:
            with contextlib.suppress(OjsterError):
                await client.close()
        await self._app.aclose()

    async def _accompany(self, number: int) -> None:
        """Start a flow, say to it what it waits for, and wait until it has ended."""
        chance, plan, id = random.Random(-number - 1), plan_of(number), new_id()
        self.ids[number] = id
        job = {"type": "journey", "args": [number]}
        wire = msgspec.json.encode({"type": "flow", "id": id, "name": "journey", "job": job})

        async def create(client: Any) -> None:
            with contextlib.suppress(Duplicate):  # the answer to an earlier try was lost
                await client.workflows.create(read_members(wire))

        await self._insist(chance, create)
        words = [self._words(number, stage) for stage in plan.stages]
        while words := [rest for rest in words if rest]:
            await asyncio.sleep(chance.random() * 0.1)
            await self._insist(chance, chance.choice(words).pop(0))
        if plan.end == "cancelled":
            while await self._insist(chance, lambda client: client.flows.published(id)) != "ready":
                await asyncio.sleep(0.1)
            await self._insist(chance, self._cancel(id))
        while not (await self._insist(chance, lambda client: client.workflows.show(id, wait=2))).finished:
            pass

    async def _insist(self, chance: random.Random, call: Callable[[Any], Awaitable[T]]) -> T:
        """Make a call to some server or the database until it is answered."""
        while True:
            try:
                return await call(chance.choice([*self._remote, self._app.client()]))
            except (BackendError, BackendUnavailable):
                self.refused += 1

    def _words(self, number: int, stage: str) -> list[Callable[[Any], Awaitable[Any]]]:
        """Return the calls that a stage needs, in their order."""
        id = self.ids[number]

        def send(value: int) -> Callable[[Any], Awaitable[Any]]:
            return lambda client: client.flows.send(FlowMessage(id, "go", str(value).encode(), None, f"go-{value}"))

        def broadcast(value: int) -> Callable[[Any], Awaitable[Any]]:
            data = str(value).encode()
            return lambda client: client.flows.broadcast(Broadcast("news", str(number), data, f"news-{value}"))

        def update(value: int) -> Callable[[Any], Awaitable[Any]]:
            async def ask(client: Any) -> None:
                answer = await client.flows.update(id, "put", [value], None, f"put-{value}")
                self.answers.setdefault(number, []).append(answer.id)

            return ask

        makers = {"messages": send, "news": broadcast, "updates": update}
        return [makers[stage](value) for value in range(MESSAGES)] if stage in makers else []

    def _cancel(self, id: str) -> Callable[[Any], Awaitable[None]]:
        async def cancel(client: Any) -> None:
            try:
                await client.workflows.cancel(id)
            except Conflict:  # the answer to an earlier try was lost
                if (await client.workflows.show(id)).state not in ("cancelling", "cancelled"):
                    raise

        return cancel


class FlowJudge:
    """Compares flows with their plans, and their results with the effects outside."""

    def __init__(self, load: FlowLoad, jobs: Mapping[str, Job], ledger: Path) -> None:
        self.wrong = list(load.wrong)
        self.effects = 0
        self._load = load
        self._tokens: dict[tuple[int, str], list[str]] = defaultdict(list)
        self._first: dict[tuple[int, str], int] = {}
        path = Path(f"{ledger}{EFFECTS}")
        for line in path.read_text().splitlines() if path.exists() else []:
            number, what, token = line.split()
            self._tokens[int(number), what].append(token)
            self._first.setdefault((int(number), what), self.effects)
            self.effects += 1
        self._results: dict[tuple[int, str], list[Any]] = defaultdict(list)
        for job in jobs.values():
            if job.type in ("journey.work", "journey.refund"):
                number, what = job.args
                prefix = "refund-" if job.type == "journey.refund" else ""
                self._results[number, prefix + what].append(msgspec.json.decode(job.result or b"null"))
        self.repeated = sum(len(tokens) > 1 for (_, what), tokens in self._tokens.items() if what != "checked")

    async def judge(self, database: str) -> list[str]:
        """Return what is wrong."""
        app = App(database)
        try:
            for number, id in self._load.ids.items():
                await self._judge_flow(app.client(), number, id, plan_of(number))
        finally:
            await app.aclose()
        return self.wrong

    async def _judge_flow(self, client: Any, number: int, id: str, plan: Plan) -> None:
        try:
            info: WorkflowInfo = await client.workflows.show(id)
        except NotFound:
            self.wrong.append(f"flow {number} ({id}) is lost")
            return
        whats = [what for stage in plan.stages for what in JOBS.get(stage, ())]
        whats += ["cleanup"] if plan.end == "cancelled" else []
        expected = dict.fromkeys(whats, 1)
        made = {what: len(results) for (owner, what), results in self._results.items() if owner == number}
        self._expect(number, "state", info.state, plan.end)
        self._expect(number, "jobs", made, expected)
        if "undo" in plan.stages:
            order = sorted(JOBS["undo"], key=lambda what: self._first.get((number, what), -1))
            self._expect(number, "order of the compensation", order, ["pay", "book", "refund-book", "refund-pay"])
        for what in whats:
            if not set(self._results[number, what]) <= set(self._tokens[number, what]):
                self.wrong.append(f"flow {number}: the result of {what} is of no run")
        for what in (what for stage in plan.stages for what in LOCAL.get(stage, ())):
            if not self._tokens[number, what]:
                self.wrong.append(f"flow {number}: the local step {what} has not run")
        left = await client.flows.messages(MessageFilter(id, state="waiting"))
        self._expect(number, "messages left", left.messages, [])
        if "stream" in plan.stages:
            page = await client.flows.read_stream(StreamAddress(id, "said"))
            values = [msgspec.json.decode(chunk.value) for chunk in page.chunks]
            self._expect(number, "stream", values, list(range(MESSAGES)))
        if "updates" in plan.stages:
            ids = dict.fromkeys(self._load.answers.get(number, []))
            answers = [await client.flows.find_update(id, str(update)) for update in ids]
            results = sorted(msgspec.json.decode(answer.result or b"0") for answer in answers)
            self._expect(number, "answers", results, list(range(1, MESSAGES + 1)))
        if plan.end == "completed" and info.state == "completed":
            self.judge_result(number, plan, msgspec.json.decode(info.result or b"[]"))

    def judge_result(self, number: int, plan: Plan, told: list[Any]) -> None:
        """Compare the result of a flow, what each stage has returned, with its plan and the effects."""
        self._expect(number, "stages", [stage for stage, _ in told], plan.stages)
        fixed = {
            "messages": list(range(MESSAGES)),
            "news": list(range(MESSAGES)),
            "timer": "late",
            "undo": "undone",
            "given_up": "gave up",
            "stream": "said",
            "updates": list(range(MESSAGES)),
        }
        for stage, value in told:
            if stage in fixed:
                self._expect(number, stage, value, fixed[stage])
                continue
            whats = [*JOBS[stage], *LOCAL[stage]]
            for what, token in zip(whats, value, strict=True):
                if token not in self._tokens[number, what] or self._results.get((number, what), [token]) != [token]:
                    self.wrong.append(f"flow {number}: {what} is {token}, which is the result of no run")

    def _expect(self, number: int, what: str, value: object, expected: object) -> None:
        if value != expected:
            self.wrong.append(f"flow {number} ({self._load.ids[number]}): {what}: {value!r}, not {expected!r}")
