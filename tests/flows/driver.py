"""Runs flows without a worker: each call to the server can be the last one of the process."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

import msgspec

from ojster import App
from ojster.core.errors import BackendUnavailable
from ojster.core.job import Job
from ojster.handlers.context import JobContext
from ojster.handlers.flow_keeping import KeptFlows
from ojster.handlers.outcomes import Released, Reported
from ojster.jobs.claim_policy import Claim
from ojster.jobs.messages import Acknowledgement, FailureReport, hand_back
from ojster.service import Service
from ojster.worker.failures import failure_of
from ojster.workflows.declaration import Workflow
from ojster.workflows.flow import FlowMessage, FlowRecords, Turn
from ojster.workflows.read.info import WorkflowInfo
from ojster.workflows.stream import StreamAddress, StreamAppend
from tests.conftest import Bench, Clock

NEVER = "never"
"""When a call is not the last one."""


class Crash(BaseException):
    """The process dies."""


class CrashingCalls:
    """The calls of a flow; the process dies before or after some of them.

    ``when`` returns ``"before"``, ``"after"`` or ``NEVER`` for the number of a call; or ``"lost"``: the process lives,
    and the answer does not come.
    """

    def __init__(self, service: Service, when: Callable[[int], str]) -> None:
        self._service = service
        self._when = when
        self.count = 0

    @property
    def flows(self) -> Any:
        return self

    def __getattr__(self, name: str) -> Any:
        return getattr(self._service, name)

    async def records(self, job_id: str, after: int | None = None) -> FlowRecords:
        return await self._service.flows.records(job_id, after)

    async def append(self, item: StreamAppend) -> int:
        return await self._service.flows.append(item)

    async def admit(self, item: Turn) -> Turn:
        when = self._when(self.count)
        self.count += 1
        if when == "before":
            raise Crash
        return await self._service.flows.admit(item)

    async def turn(self, item: Turn) -> FlowRecords:
        when = self._when(self.count)
        self.count += 1
        if when == "before":
            raise Crash
        answer = await self._service.flows.turn(item)
        if when == "after":
            raise Crash
        if when == "lost":
            raise BackendUnavailable("The answer was lost.")
        return answer


class FlowBench(Bench):
    """Starts flows of an application, and runs them and their jobs to the end."""

    def __init__(self, service: Service, clock: Clock, app: App) -> None:
        super().__init__(service, clock)
        self.app = app
        self.when: Callable[[int], str] = lambda _: NEVER
        self.calls = CrashingCalls(service, self._when)
        self.kept: KeptFlows | None = None
        """The waiting flows that the process keeps; by default it keeps none."""
        self.attempts = Counter[str]()
        """Attempts of each job type that were begun."""
        self.id = ""
        self.done: list[str] = []
        self.note: Any = None
        self.breaks: Any = None

    def _when(self, number: int) -> str:
        return self.when(number)

    async def start(self, workflow: Workflow, **options: Any) -> WorkflowInfo:
        info = await self.service.workflows.create(workflow.request(**options))
        self.id = info.id
        return info

    async def look(self) -> WorkflowInfo:
        return await self.service.workflows.show(self.id)

    async def send(self, name: str, data: Any, **more: Any) -> None:
        await self.service.flows.send(FlowMessage(self.id, name, msgspec.json.encode(data), **more))

    async def stream(self, name: str, after: int = 0) -> tuple[list[Any], bool]:
        """Return what a stream has after a position, and whether it has ended."""
        page = await self.service.flows.read_stream(StreamAddress(self.id, name, after))
        return [msgspec.json.decode(chunk.value) for chunk in page.chunks], page.has_ended

    async def work(self) -> None:
        """Run what is available until nothing is."""
        while jobs := await self.claim(10):
            for job in jobs:
                await self.run_job(job)

    async def claim(self, count: int = 1) -> list[Job]:
        """Fetch jobs. If flows are kept, the clock moves on: no two attempts of a job begin at the same time."""
        if self.kept is not None:
            self.clock.advance(1e-6)
        return await self.service.jobs.fetch(Claim(("default",), count, "w1"))

    async def finish(self, seconds: float = 60.0, rounds: int = 200) -> WorkflowInfo:
        """Run everything to the end; the clock jumps when nothing is left to do."""
        for _ in range(rounds):
            await self.work()
            info = await self.look()
            if info.finished:
                return info
            self.clock.advance(seconds)
            await self.run_all_due()
        raise AssertionError(f"the flow does not end: {info.to_json()!r}")

    async def run_job(self, job: Job) -> None:
        handler = self.app.handlers[job.type]
        self.attempts[job.type] += 1
        loop = asyncio.get_running_loop()
        context = JobContext(job, "w1", self.calls, _nothing, _nothing, loop)
        context.kept_flows = self.kept
        positional, named = handler.types.convert(job.args)
        try:
            result = handler.function(*([context] if handler.takes_context else []), *positional, **named)
            if handler.is_async:
                result = await result
        except Reported:
            return
        except Released as released:
            await self.service.jobs.release([released.release(job.id, "w1", job.attempt)])
            return
        except Crash:
            if self.kept is not None:
                self.kept.drop_all()
            await self.service.jobs.release([hand_back(job, "w1")])
            return
        except Exception as error:
            failure = failure_of(error, job)
            await self.service.jobs.fail([FailureReport(job.id, failure, "w1", job.attempt, None, job.started_at)])
            return
        ack = Acknowledgement(job.id, msgspec.json.encode(result), "w1", job.attempt, started_at=job.started_at)
        await self.service.jobs.acknowledge([ack])


async def _nothing(*_: object) -> None:
    return None
