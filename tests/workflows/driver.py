"""Driver that runs many workflows concurrently, with workers that fail, die and report at the same time."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any

import msgspec

from ojster.core.errors import OjsterError
from ojster.core.job import Job
from ojster.jobs.claim_policy import Claim
from ojster.jobs.failure import Failure
from ojster.jobs.messages import Acknowledgement, FailureReport
from ojster.schedules.due_work import run_due
from ojster.service import Service
from ojster.storage.transaction import Transaction
from ojster.workflows.read.info import StepInfo, WorkflowInfo
from ojster.workflows.run.control import Review
from tests.conftest import Clock
from tests.workflows.interpreter import Interpreter, Script, grown

LEASE = 10_000_000
OPTIONS = {"retry": {"max_attempts": 50, "initial_interval": "PT1S", "backoff_strategy": "constant", "jitter": False}}


class TrackedWorkflow:
    """A running workflow and its expected end state."""

    def __init__(self, wire: dict[str, Any], script: Script) -> None:
        self.wire = wire
        self.expected = Interpreter(wire)
        self.script = script
        self.id = ""
        self.ran: Counter[str] = Counter()
        """Number of first attempts, by step path."""
        self.misfortunes: Counter[str] = Counter()
        self.started_after_cancel: list[str] = []
        self.cancelled = False


class Crowd:
    """Workflows, run by the workers of several engines on one database."""

    def __init__(self, engines: list[Service], clock: Clock, rng: random.Random, *, disturbed: bool = True) -> None:
        self.engines = engines
        self.clock = clock
        self.rng = rng
        self.disturbed = disturbed
        self.all: dict[str, TrackedWorkflow] = {}

    async def create(self, wires: list[dict[str, Any]], failing: float = 0.2) -> list[TrackedWorkflow]:
        """Create workflows concurrently."""
        made = [TrackedWorkflow(wire, Script(random.Random(self.rng.random()), failing)) for wire in wires]
        infos = await asyncio.gather(*[self._service().workflows.create(members(one.wire)) for one in made])
        for one, info in zip(made, infos, strict=True):
            one.id = info.id
            self.all[info.id] = one
        return made

    def _service(self) -> Service:
        return self.rng.choice(self.engines)

    async def run(self) -> None:
        """Run until no job and no approval is left."""
        idle = 0
        while idle < 2:
            worked = await asyncio.gather(
                *[self._work(service, f"w{place}") for place, service in enumerate(self.engines)]
            )
            if any(worked):
                idle = 0
                continue
            reviewed = await self._review()
            self.clock.advance(15)
            due = await self._service().database.run(run_due, None)
            while due is not None and due <= self.clock.now:  # it goes on with large containers
                due = await self._service().database.run(run_due, None)
            idle = 0 if reviewed else idle + 1

    async def _work(self, service: Service, worker: str) -> int:
        jobs = await service.jobs.fetch(Claim(("default",), self.rng.choice([1, 5, 40]), worker, LEASE))
        self.rng.shuffle(jobs)
        if self.disturbed and jobs and self.rng.random() < 0.1:
            await self._hold_and_release()
        await asyncio.gather(*[self._end(service, job, worker) for job in jobs])
        return len(jobs)

    async def _end(self, service: Service, job: Job, worker: str) -> None:
        envelope = msgspec.json.decode(job.envelope)
        one, path = self.all[envelope["workflow_id"]], envelope["workflow_step"]
        if job.attempt == 1:
            one.ran[path] += 1
            if one.cancelled:
                one.started_after_cancel.append(path)
        if self.disturbed and one.misfortunes[path] < 3 and self.rng.random() < 0.12:
            one.misfortunes[path] += 1
            if self.rng.random() < 0.5:
                return  # the worker dies
            failure = Failure("Transient", "it may go better next time")
            await self._tell(service.jobs.fail([FailureReport(job.id, failure, worker, job.attempt)]), one)
            return
        if one.script.end(path) == "ok":
            more = (msgspec.json.encode(grown()),) if envelope["meta"].get("grows") else ()
            result = msgspec.json.encode({"of": path})
            await self._tell(
                service.jobs.acknowledge([Acknowledgement(job.id, result, worker, job.attempt, more)]), one
            )
        else:
            failure = Failure("Final", "it is over", retryable=False)
            await self._tell(service.jobs.fail([FailureReport(job.id, failure, worker, job.attempt)]), one)

    async def _tell(self, call: Any, one: TrackedWorkflow) -> None:
        (outcome,) = await call
        assert one.cancelled or not isinstance(outcome, OjsterError), outcome

    async def _hold_and_release(self) -> None:
        one = self.rng.choice(list(self.all.values()))
        service = self._service()
        try:
            await service.workflows.hold(one.id)
            await service.workflows.release(one.id)
        except OjsterError as refusal:
            assert refusal.code == "conflict", refusal

    async def _review(self) -> int:
        """Approve or reject every blocked step, and return their number."""
        count = 0
        for one in self.all.values():
            info = await self._service().workflows.show(one.id)
            if info.finished:
                continue
            for step in every_step(info):
                if step.state == "blocked":
                    action: Any = "approve" if one.script.approves(step.path) else "reject"
                    await self._service().workflows.review_step(
                        Review(one.id, step.path, action, "as written", "somebody")
                    )
                    count += 1
        return count

    async def check(self) -> None:
        """Assert that every workflow ended as the interpreter computed."""
        for one in self.all.values():
            info = await self._service().workflows.show(one.id)
            expected = one.expected
            steps = every_step(info)
            idle = {step.path for step in steps if undoes_nothing(step)}
            shown = {step.path: step.state for step in steps}
            assert info.finished, (one.wire, shown)
            wrong = {
                path: (shown.get(path), expected.states.get(path))
                for path in shown.keys() | expected.states.keys()
                if is_shown(path) and path not in idle and shown.get(path) != expected.states.get(path)
            }
            assert not wrong, (wrong, one.wire)
            assert info.state == expected.state, (one.wire, info.state, expected.state)
            assert one.ran == expected.runs, (one.ran - expected.runs, expected.runs - one.ran, one.wire)


def members(wire: dict[str, Any]) -> dict[str, msgspec.Raw]:
    return {name: msgspec.Raw(msgspec.json.encode(value)) for name, value in (wire | {"options": OPTIONS}).items()}


def every_step(info: WorkflowInfo | StepInfo) -> list[StepInfo]:
    found = []
    for child in info.children:
        found.append(child)
        found += every_step(child)
    return found


def is_shown(path: str) -> bool:
    return path != "" and "<" not in path and not path.endswith(("compensate", "compensate_all"))


def undoes_nothing(step: StepInfo) -> bool:
    """Whether a step has nothing to undo: it joins what undoes several others, or undoes a map without elements."""
    return step.type == "group" and "compensate" in step.path and not step.children


def leftovers(tx: Transaction, requests: Any) -> list[list[Any]]:
    """Return the kinds of inconsistent rows, each with its count."""
    found: list[Any] = []
    for what, query in {
        "jobs without a workflow": (
            "SELECT count(*) FROM jobs WHERE node IS NOT NULL AND node >> 20 NOT IN (SELECT seq FROM workflows)"
        ),
        "unfinished jobs": "SELECT count(*) FROM jobs WHERE finished_at IS NULL",
        "nodes without a workflow": "SELECT count(*) FROM nodes WHERE id >> 20 NOT IN (SELECT seq FROM workflows)",
        "specs without a node": "SELECT count(*) FROM node_specs WHERE id NOT IN (SELECT id FROM nodes)",
        "edges without a node": "SELECT count(*) FROM node_edges WHERE target NOT IN (SELECT id FROM nodes)",
        "containers with children to start": "SELECT count(*) FROM deferred_starts",
        "containers that count wrongly": (
            "SELECT count(*) FROM nodes AS p WHERE p.finished_at IS NOT NULL AND p.started_at IS NOT NULL "
            "AND p.kind NOT IN ('job', 'gate') AND p.unfinished <> 0"
        ),
        "workflows that miscount": (
            "SELECT count(*) FROM workflows AS w WHERE w.jobs <> (SELECT count(*) FROM nodes AS n "
            "WHERE n.id >> 20 = w.seq AND n.kind = 'job') OR w.completed <> (SELECT count(*) FROM nodes AS n "
            "WHERE n.id >> 20 = w.seq AND n.kind = 'job' AND n.state = 'completed')"
        ),
        "nodes whose jobs disagree": (
            "SELECT count(*) FROM nodes AS n JOIN jobs AS j ON j.id = n.job_id WHERE n.kind = 'job' "
            "AND n.finished_at IS NOT NULL AND n.started_at IS NOT NULL "
            "AND (n.state = 'completed') <> (j.state = 'completed')"
        ),
    }.items():
        ((count,),) = tx.execute(query)
        if count:
            found.append((what, count))
    return [found for _ in requests]
