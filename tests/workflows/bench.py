"""Test bench that creates workflows and runs their jobs."""

from __future__ import annotations

from typing import Any

import msgspec

from ojster.core.job import Job
from ojster.core.json_objects import read_members
from ojster.jobs.failure import Failure
from ojster.jobs.messages import Acknowledgement, FailureReport, Release
from ojster.jobs.scope import accepted
from ojster.service import Service
from ojster.workflows.read.info import StepInfo, WorkflowInfo
from ojster.workflows.run.control import Review
from ojster.workflows.run.steps import StepAddress
from tests.conftest import Bench, Clock
from tests.workflows.driver import every_step


class WorkflowBench(Bench):
    """A service with shortcuts for workflow tests."""

    def __init__(self, service: Service, clock: Clock) -> None:
        super().__init__(service, clock)
        self.id = ""
        self.given: dict[str, Any] = {}
        """Parent results of the last claimed job of each type."""
        self.arguments: dict[str, list[Any]] = {}
        self.order: list[str] = []

    async def create(self, wire: dict[str, Any]) -> WorkflowInfo:
        info = await self.service.workflows.create(read_members(msgspec.json.encode(wire)))
        self.id = info.id
        return info

    async def look(self) -> WorkflowInfo:
        return await self.service.workflows.show(self.id)

    async def states(self) -> dict[str, str]:
        return {step.path: step.state for step in every_step(await self.look())}

    async def step(self, path: str) -> StepInfo:
        return next(step for step in every_step(await self.look()) if step.path == path)

    async def state(self) -> str:
        return (await self.look()).state

    async def take(self, count: int = 1) -> list[Job]:
        """Fetch jobs, and record their order, arguments and parent results."""
        jobs = await self.fetch(count=count)
        for job in jobs:
            self.order.append(job.type)
            self.arguments[job.type] = job.args
            self.given[job.type] = msgspec.json.decode(job.parent_results or b"null")
        return jobs

    async def work(self, *failing: str, results: dict[str, Any] | None = None) -> list[str]:
        """Run jobs until none is available; jobs of the types in ``failing`` fail. Return the types, in order."""
        done: list[str] = []
        while jobs := await self.take(10):
            for job in jobs:
                done.append(job.type)
                if job.type in failing:
                    await self.give_up(job)
                else:
                    await self.ack(job, msgspec.json.encode((results or {}).get(job.type, {"from": job.type})))
        return done

    async def give_up(self, job: Job) -> Job:
        """Fail a job with an error that is not retryable."""
        report = FailureReport(job.id, Failure("Boom", "it went wrong", retryable=False), job.worker_id, job.attempt)
        return accepted((await self.service.jobs.fail([report]))[0])

    async def confirm(self, *jobs: Job) -> None:
        """Say, as a worker, that attempts have stopped that were ended from outside."""
        await self.service.jobs.release([Release(job.id, job.worker_id, job.attempt) for job in jobs])

    async def grow(self, job: Job, *steps: dict[str, Any]) -> Job:
        """Complete a job that adds steps."""
        more = tuple(msgspec.json.encode(step) for step in steps)
        return accepted((await self.service.jobs.acknowledge([Acknowledgement(job.id, b"1", None, None, more)]))[0])

    async def review(
        self, step: str, action: Any, notes: str | None = None, author: str | None = "ada"
    ) -> WorkflowInfo:
        return await self.service.workflows.review_step(Review(self.id, step, action, notes, author))

    async def retry_step(self, step: str) -> WorkflowInfo:
        return await self.service.workflows.retry_step(StepAddress(self.id, step))

    async def cancel_step(self, step: str) -> WorkflowInfo:
        return await self.service.workflows.cancel_step(StepAddress(self.id, step))


def job(type: str, *args: Any, **more: Any) -> dict[str, Any]:
    """A step that is a job; ``if_`` is its condition."""
    if "if_" in more:
        more["if"] = more.pop("if_")
    return {"type": type, "args": list(args), **more}


def chain(*steps: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "chain", "steps": list(steps), **more}


def group(*jobs: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "group", "jobs": list(jobs), **more}


def graph(*steps: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "graph", "steps": list(steps), **more}


def batch(*jobs: dict[str, Any], **callbacks: dict[str, Any]) -> dict[str, Any]:
    return {"type": "batch", "jobs": list(jobs), "callbacks": callbacks}


def ref(text: str) -> dict[str, str]:
    return {"$ref": text}
