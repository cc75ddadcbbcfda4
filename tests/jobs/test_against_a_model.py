"""A stateful comparison of the service with a model: after any sequence of operations, both agree on every job.

No job is lost, no job is claimed twice within its lease, no attempt exceeds the limit, and the counts are right.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule

from ojster.capabilities import all_extensions
from ojster.core.errors import OjsterError
from ojster.core.job import Job
from ojster.jobs import completion, interventions, queries
from ojster.jobs.claim import claim
from ojster.jobs.claim_policy import Claim
from ojster.jobs.extension import install
from ojster.jobs.failure import Failure
from ojster.jobs.messages import Acknowledgement, FailureReport, Release
from ojster.jobs.new_job import read_job
from ojster.jobs.push import push
from ojster.jobs.scope import accepted
from ojster.queues.queues import pause, resume
from ojster.schedules.due_work import run_due
from ojster.storage.database import Database
from ojster.storage.open import open_database
from ojster.workflows.run import suspensions
from ojster.workflows.run.early_answers import Resumption
from tests.conftest import Clock, empty, request

QUEUES = ("a", "b")
LEASE = 30_000_000
TIMEOUT = 100_000_000


@dataclass
class Expected:
    """The state of a job in the model."""

    id: str
    number: int
    queue: str
    priority: int
    max_attempts: int
    unique: str | None
    state: str
    attempt: int = 0
    due: int | None = None
    started: int = 0
    expires: int | None = None
    holder: str | None = None
    hold: str | None = None


@dataclass
class Held:
    """A claim as the worker remembers it. Its lease may have expired."""

    id: str
    worker: str
    attempt: int


@dataclass
class Model:
    """The reference model: the simplest implementation of the service's behaviour."""

    jobs: dict[str, Expected] = field(default_factory=dict)
    paused: set[str] = field(default_factory=set)

    def duplicate(self, unique: str) -> bool:
        live = {"scheduled", "available", "pending", "active", "retryable"}
        return any(job.unique == unique and job.state in live for job in self.jobs.values())

    def next(self, queues: tuple[str, ...], count: int, now: int) -> list[Expected]:
        found: list[Expected] = []
        for queue in queues:
            if queue in self.paused:
                continue
            waiting = [
                job
                for job in self.jobs.values()
                if job.queue == queue and job.state == "available" and (job.expires is None or job.expires > now)
            ]
            found += sorted(waiting, key=lambda job: (-job.priority, job.number))
        return found[:count]

    def end_attempt(self, job: Expected, now: int, *, immediately: bool) -> None:
        job.holder = None
        if job.attempt >= job.max_attempts:
            job.state, job.due = "discarded", None
        elif immediately:
            job.state, job.due = "available", job.expires
        else:
            job.state, job.due = "retryable", now + 10_000_000

    def pass_time(self, now: int) -> None:
        for job in list(self.jobs.values()):
            if job.due is None or job.due > now:
                continue
            if job.state in ("scheduled", "retryable"):
                job.state, job.due = "available", job.expires
                if job.expires is not None and job.expires <= now:
                    job.state, job.due = "discarded", None
            elif job.hold is not None:
                job.attempt += job.hold == "again"
                job.hold = None
                self.end_attempt(job, now, immediately=False)
            elif job.state in ("available", "pending"):
                job.state, job.due = "discarded", None
            elif job.state == "active":
                self.end_attempt(job, now, immediately=now < job.started + TIMEOUT)


class EngineMachine(RuleBasedStateMachine):
    """Applies each operation to a service and to the model."""

    url = "sqlite:///:memory:"
    held: Any = Bundle("held")

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.clock = Clock()
        self.database: Database = open_database(self.url, clock=self.clock)
        install(self.database.memory, all_extensions())
        self.model = Model()
        self.pushed = 0

    def teardown(self) -> None:
        self.database.close()
        self.loop.close()

    def run_in(self, operation: Any, argument: Any) -> Any:
        return self.loop.run_until_complete(self.database.run(operation, argument))

    @initialize()
    def begin(self) -> None:
        assert self.run_in(run_due, None) is None

    @rule(
        queue=st.sampled_from(QUEUES),
        priority=st.sampled_from([-5, 0, 5]),
        attempts=st.integers(1, 3),
        unique=st.sampled_from([None, None, "x", "y"]),
        how=st.sampled_from(["now", "now", "later", "pending", "expires"]),
    )
    def push(self, queue: str, priority: int, attempts: int, unique: str | None, how: str) -> None:
        retry = {"max_attempts": attempts, "initial_interval": "PT10S", "backoff_strategy": "constant", "jitter": False}
        options: dict[str, Any] = {"queue": queue, "priority": priority, "retry": retry, "timeout_ms": TIMEOUT // 1000}
        if unique is not None:
            options["unique"] = {"keys": ["args"]}
        if how == "later":
            options["scheduled_at"] = "+PT20S"
        elif how == "pending":
            options["pending"] = True
        elif how == "expires":
            options["expires_at"] = "+PT15S"
        now = self.clock.now
        new = read_job(request("m", unique, **options), now, largest=100_000)
        result = self.run_in(push, [new])
        if unique is not None and self.model.duplicate(unique):
            assert isinstance(result, OjsterError)
            return
        assert not isinstance(result, OjsterError)
        self.pushed += 1
        state = {"later": "scheduled", "pending": "pending"}.get(how, "available")
        job = Expected(new.id, self.pushed, queue, priority, attempts, unique, state)
        job.expires = now + 15_000_000 if how == "expires" else None
        job.due = now + 20_000_000 if how == "later" else job.expires
        self.model.jobs[new.id] = job

    @rule(
        target=held,
        queues=st.sampled_from([("a",), ("b",), ("a", "b"), ("b", "a")]),
        count=st.integers(1, 3),
        worker=st.sampled_from(["w1", "w2"]),
    )
    def fetch(self, queues: tuple[str, ...], count: int, worker: str) -> Any:
        now = self.clock.now
        expected = self.model.next(queues, count, now)
        claimed = self.run_in(claim, Claim(queues, count, worker, LEASE))
        assert [job.id for job in claimed] == [job.id for job in expected]
        for job in expected:
            job.state, job.holder, job.started = "active", worker, now
            job.attempt += 1
            job.due = now + LEASE
        return multiple(*[Held(job.id, worker, job.attempt) for job in expected])

    def holds(self, one: Held) -> bool:
        job = self.model.jobs[one.id]
        return job.state == "active" and job.holder == one.worker and job.attempt == one.attempt

    @rule(one=held)
    def acknowledge(self, one: Held) -> None:
        result = self.run_in(completion.acknowledge, Acknowledgement(one.id, b"1", one.worker, one.attempt))
        assert isinstance(result, Job) == self.holds(one)
        if self.holds(one):
            job = self.model.jobs[one.id]
            job.state, job.due = "completed", None

    @rule(one=consumes(held))
    def fail(self, one: Held) -> None:
        report = FailureReport(one.id, Failure("X", "failed"), one.worker, one.attempt)
        result = self.run_in(completion.fail, report)
        assert isinstance(result, Job) == self.holds(one)
        if self.holds(one):
            self.model.end_attempt(self.model.jobs[one.id], self.clock.now, immediately=False)

    @rule(one=consumes(held))
    def release(self, one: Held) -> None:
        result = self.run_in(completion.release, Release(one.id, one.worker, one.attempt))
        assert isinstance(result, Job) == self.holds(one)
        if self.holds(one):
            job = self.model.jobs[one.id]
            job.state, job.due, job.holder = "available", job.expires, None
            job.attempt -= 1

    @rule(one=consumes(held), again=st.booleans(), wait=st.sampled_from([None, 5_000_000, 40_000_000]))
    def wait(self, one: Held, again: bool, wait: int | None) -> None:
        word = Release(one.id, one.worker, one.attempt, then="wait", again=again, wait=wait)
        result = self.run_in(completion.release, word)
        assert isinstance(result, Job) == self.holds(one)
        if self.holds(one):
            job = self.model.jobs[one.id]
            job.state, job.holder, job.hold = "pending", None, "again" if again else "complete"
            job.due = None if wait is None else self.clock.now + wait
            job.attempt -= again

    @rule(one=consumes(held))
    def skip(self, one: Held) -> None:
        result = self.run_in(completion.release, Release(one.id, one.worker, one.attempt, then="skip", result=b"1"))
        assert isinstance(result, Job) == self.holds(one)
        if self.holds(one):
            job = self.model.jobs[one.id]
            job.state, job.due = "completed", None

    @rule(one=consumes(held), seconds=st.sampled_from([-5, 10]))
    def release_until(self, one: Held, seconds: int) -> None:
        then = self.clock.now + seconds * 1_000_000
        result = self.run_in(completion.release, Release(one.id, one.worker, one.attempt, not_before=then))
        assert isinstance(result, Job) == self.holds(one)
        if self.holds(one):
            job = self.model.jobs[one.id]
            job.attempt -= 1
            job.state, job.due, job.holder = "available", job.expires, None
            if seconds > 0:
                job.state, job.due = "scheduled", then

    @rule(data=st.data())
    def resume_with_an_error(self, data: st.DataObject) -> None:
        waiting = sorted(id for id, job in self.model.jobs.items() if job.state == "pending")
        if not waiting:
            return
        job = self.model.jobs[data.draw(st.sampled_from(waiting))]
        failure = Failure("X", "it will not come", retryable=False)
        result = self.run_in(suspensions.activate, Resumption(job.id, failure=failure))
        assert isinstance(result, OjsterError) == (job.hold is None)
        if job.hold is not None:
            job.attempt += job.hold == "again"
            job.state, job.due, job.hold = "discarded", None, None

    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        if not self.model.jobs:
            return
        job = self.model.jobs[data.draw(st.sampled_from(sorted(self.model.jobs)))]
        result = self.run_in(interventions.cancel, interventions.Cancellation(job.id))
        finished = job.state in ("completed", "cancelled", "discarded")
        assert isinstance(result, OjsterError) == finished
        if not finished:
            job.state, job.due, job.hold = "cancelled", None, None

    @rule(data=st.data(), queue=st.sampled_from([None, *QUEUES]))
    def activate_or_retry(self, data: st.DataObject, queue: str | None) -> None:
        if not self.model.jobs:
            return
        job = self.model.jobs[data.draw(st.sampled_from(sorted(self.model.jobs)))]
        result = self.run_in(suspensions.activate, Resumption(job.id))
        assert isinstance(result, OjsterError) == (job.state != "pending")
        if job.state == "pending":
            hold, job.hold = job.hold, None
            job.state, job.due = ("completed", None) if hold == "complete" else ("available", job.expires)
            return
        revived = self.run_in(interventions.retry_dead, interventions.DeadLetterRetry(job.id, queue=queue))
        assert isinstance(revived, OjsterError) == (job.state != "discarded")
        if job.state == "discarded":
            job.attempt, job.expires, job.queue = 0, None, queue or job.queue
            job.state, job.due = "available", None

    @rule(queue=st.sampled_from(QUEUES), paused=st.booleans())
    def pause_or_resume(self, queue: str, paused: bool) -> None:
        self.run_in(pause if paused else resume, queue)
        (self.model.paused.add if paused else self.model.paused.discard)(queue)

    @rule(seconds=st.sampled_from([0, 1, 5, 10, 20, 31, 120]))
    def pass_time(self, seconds: int) -> None:
        self.clock.advance(seconds)
        for _ in range(2):  # a job that the first pass returned may already be due
            self.run_in(run_due, None)
            self.model.pass_time(self.clock.now)

    @invariant()
    def both_agree(self) -> None:
        found = dict(zip(self.model.jobs, self.loop.run_until_complete(self._find_all()), strict=True))
        for id, job in self.model.jobs.items():
            real = found[id]
            assert (real.state, real.attempt) == (job.state, job.attempt)
            assert real.attempt <= real.max_attempts
            if real.state == "active":
                assert real.worker_id == job.holder
        counts = self.loop.run_until_complete(self.database.run(queries.count_jobs, None))
        kept = {(queue, state): n for queue, states in counts.items() for state, n in states.items() if n}
        assert kept == Counter((job.queue, job.state) for job in self.model.jobs.values())

    async def _find_all(self) -> list[Job]:
        found = await self.database.run_many(queries.find, [(id, None, True) for id in self.model.jobs])
        return [accepted(one) for one in found]


EngineMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestInMemory = EngineMachine.TestCase


class PostgresMachine(EngineMachine):
    """The same comparison on PostgreSQL."""

    def __init__(self) -> None:
        empty(self.url)
        super().__init__()


class TestOnPostgres(PostgresMachine.TestCase):  # type: ignore[misc,valid-type]  # made by hypothesis
    settings = settings(max_examples=25, stateful_step_count=40, deadline=None)

    @pytest.fixture(autouse=True)
    def _tables(self, postgres_url: str) -> None:
        PostgresMachine.url = postgres_url
