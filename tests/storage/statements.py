"""The SQL statements that the service really executes, for the tests of query plans.

The plan tests do not contain statements of their own: a copy would still be planned well after the service's statement
has changed. They record what the service sends, and pick statements by what the service's functions are called with.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import apsw
import psycopg
import pytest

from ojster.core.durations import DAY, HOUR, SECOND
from ojster.core.job import Job
from ojster.core.json_objects import read_members
from ojster.core.plain_end import plain_seq
from ojster.core.settings import ServiceRetention, ServiceSettings
from ojster.fleet.ml_resources import ResourceLimits
from ojster.fleet.requirements import read_provided
from ojster.jobs import queries
from ojster.jobs.claim_policy import Claim
from ojster.jobs.failure import Failure
from ojster.jobs.filter_walk import JobFilter
from ojster.jobs.messages import Acknowledgement, FailureReport
from ojster.jobs.queries import Page
from ojster.queues.configuration import Configuration, configure
from ojster.schedules import retention
from ojster.schedules.cron import Cron
from ojster.schedules.cron_expression import OVERLAP_POLICIES
from ojster.schedules.due_work import run_due
from ojster.service import Service
from ojster.storage.open import open_database
from ojster.storage.postgres import pipeline
from ojster.storage.sqlite.lane import Lane
from ojster.tenancy.tenants import TenantChange, put_tenants
from ojster.workflows.read.selection import WorkflowFilter
from tests.conftest import Clock, request

Recorded = dict[str, Any]
"""Statements, each in one line, with the parameters of one execution (PostgreSQL: without)."""

GPU = {"gpu": {"type": "a100", "count": 8}}
A_DAY = DAY / SECOND


def one_line(sql: str) -> str:
    """Return a statement without the line breaks and indentation of its literal."""
    return re.sub(r"(?<=\() | (?=\))", "", " ".join(sql.split()))


@contextmanager
def recorded_on_sqlite(service: Service) -> Iterator[Recorded]:
    """Record what the connections of a database execute, in whatever way the service calls SQLite."""
    seen: Recorded = {}

    def note(cursor: apsw.Cursor, sql: str, parameters: Any) -> bool:
        seen.setdefault(one_line(sql), parameters)
        return True

    lanes: list[Lane] = service.database._lanes  # type: ignore[attr-defined]
    connections: list[apsw.Connection] = [lane.run(lambda connection: connection) for lane in lanes]
    for connection in connections:
        connection.exec_trace = note
    try:
        yield seen
    finally:
        for connection in connections:
            connection.exec_trace = None


@contextmanager
def recorded_on_postgres() -> Iterator[Recorded]:
    """Record what all connections send, in whatever way: each statement is translated before."""
    seen: Recorded = {}
    real = pipeline.PipelineConnection._translated

    def translated(self: pipeline.PipelineConnection, sql: str) -> pipeline.Statement:
        seen.setdefault(one_line(sql), None)
        return real(self, sql)

    with patch.object(pipeline.PipelineConnection, "_translated", translated):
        yield seen


async def live(url: str, *, on_sqlite: bool) -> Recorded:
    """Run jobs through every hot statement of the service, and return the statements."""
    clock = Clock()
    kept = ServiceSettings(retention=ServiceRetention(most_dead_letters=1))
    service = Service(open_database(url, kept, clock))
    try:
        with recorded_on_sqlite(service) if on_sqlite else recorded_on_postgres() as seen:
            await _live(service, clock)
        return seen
    finally:
        await service.close()


async def _schedule_workflows(service: Service) -> None:
    """Let cron jobs start workflows whose last one has not finished, and may finish."""
    steps = b'{"type":"chain","steps":[{"type":"tick","args":[]}]}'
    for policy in OVERLAP_POLICIES:
        await service.schedules.register(
            Cron(name=f"w-{policy.replace('_', '-')}", expression="@every 10s", workflow=steps, overlap_policy=policy)
        )
    await service.workflows.select(WorkflowFilter(cron_name="w-enqueue"))


def success_of(job: Job) -> Acknowledgement:
    """Return the report that a worker in the process makes."""
    return Acknowledgement(job.id, b"%d" % job.seq, "w", job.attempt, started_at=job.started_at, seq=plain_seq(job))


async def _live(service: Service, clock: Clock) -> None:
    jobs, run = service.jobs, service.database.run

    async def work(*queues: str, **more: Any) -> int:
        taken = await jobs.fetch(Claim(queues or ("default",), 50, "w", **more))
        for job in taken:
            if job.type == "bad":
                await jobs.fail([FailureReport(job.id, Failure("X", "no", retryable=False), "w", job.attempt)])
            else:
                await jobs.acknowledge([success_of(job)])
        return len(taken)

    async def push(type: str = "t", **options: Any) -> None:
        await jobs.enqueue([request(type, **options)])

    # Claims: of plain jobs, of jobs with a limit, and of jobs with requirements, whose queue has a budget
    await run(configure, Configuration("gpus", rules={"ml_limits": ResourceLimits(max_total_gpus=4)}))
    dead = {"max_attempts": 1, "on_exhaustion": "dead_letter"}
    for _ in range(3):
        await push()
        await push("bad", retry=dead)
        await push(rate_limit={"key": "k", "concurrency": 2})
        needing = b'{"type":"t","args":[],"ext_ml_gpu_count":1,"options":{"queue":"gpus"}}'
        await jobs.enqueue([read_members(needing)])
    await work(provided=read_provided(GPU))
    await work("gpus", provided=read_provided(GPU))
    await jobs.enqueue([request("same") for _ in range(20)])
    await work(*[f"queue{number}" for number in range(20)])
    same = await jobs.fetch(Claim(("default",), 20, "w"))
    await jobs.acknowledge([Acknowledgement(job.id, b"1", "w", job.attempt) for job in same])  # in one statement
    (found,) = [await jobs.find(same[0].id)]
    assert found.state == "completed"

    # Unique jobs, and cron jobs whose last job has not finished
    for on_conflict in ("ignore", "replace"):
        await push("once", unique={"keys": ["type"], "on_conflict": on_conflict})
    for policy in ("skip", "cancel_previous"):
        template = b'{"type":"tick","args":[],"options":{"queue":"ticks"}}'
        await service.schedules.register(
            Cron(name=policy.replace("_", "-"), expression="@every 10s", template=template, overlap_policy=policy)
        )
    await _schedule_workflows(service)

    # Due work: schedules, retries, leases, expiry
    await push(scheduled_at="+PT1S", expires_at="+PT40S")
    await jobs.fetch(Claim(("default",), 1, "w", lease=SECOND))
    for _ in range(4):
        clock.advance(11)
        await run(run_due, None)
    await jobs.select(JobFilter(cron_name="skip"), Page(12, is_bounded=True))

    # Retention: as a job itself says, as the server says, and around queues and workspaces that say something else
    brief = read_members(b'{"type":"t","args":[],"expiration_delay":"PT1H"}')
    await jobs.enqueue([brief])
    await work()
    clock.advance(A_DAY * 2)
    assert (await service.maintenance.prune(dry_run=True))["jobs"]
    assert (await service.maintenance.prune())["jobs"]
    await run(configure, Configuration("brief", retention={"completed": HOUR, "most_dead_letters": 1}))
    await run(put_tenants, TenantChange("acme", {"retention": HOUR}))
    await push(queue="brief")
    await push(meta={"tenant_id": "acme"})
    await push()
    await work("brief", "default")
    clock.advance(A_DAY * 2)
    assert (await service.maintenance.prune(dry_run=True))["jobs"]
    assert (await service.maintenance.prune())["jobs"]
    await run(retention.forget, None)
    await run(queries.count_dead_letters, None)


def having(seen: Mapping[str, Any], *words: str, without: tuple[str, ...] = ()) -> list[str]:
    """Return the recorded statements with all these words. That there is none is a failure, not a success."""
    words = tuple(map(one_line, words))
    found = sorted(
        sql for sql in seen if all(word in sql for word in words) and not any(word in sql for word in without)
    )
    assert found, f"the service executes no statement with {words}: say by what it is known now"
    return found


def skip_without_generic_plans(connection: psycopg.Connection) -> None:
    """Skip a test that looks at the plans of prepared statements, which older versions do not show."""
    if connection.info.server_version < 160_000:
        pytest.skip("EXPLAIN (GENERIC_PLAN) needs PostgreSQL 16")
