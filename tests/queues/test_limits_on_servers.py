"""Servers that share a limit on PostgreSQL: idle ones do not wake each other, and a claim that skipped jobs gets them.

Claims go around a limit that another transaction has locked. They look again by themselves.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from ojster.core.job import Job
from ojster.core.json_objects import Members
from ojster.core.rate_limit import Limits
from ojster.jobs.claim import claim
from ojster.jobs.claim_policy import Claim
from ojster.queues.gates import Gate
from ojster.service import Service
from ojster.storage.open import open_database
from ojster.storage.postgres.url import parse_postgres_url
from ojster.storage.transaction import Transaction
from tests.conftest import request, until_parked
from tests.waiting import LONG_WAIT, PATIENCE

pytestmark = [pytest.mark.anyio, pytest.mark.needs("skip-locked")]


@pytest.fixture
async def servers(postgres_url: str) -> AsyncIterator[list[Service]]:
    """Two servers on one database, with a limit of the queue ``limited``."""
    made = [Service(open_database(postgres_url)) for _ in range(2)]
    await made[0].queues.limit("limited", Limits(concurrency=10))
    yield made
    for service in made:
        await service.close()


@contextmanager
def locked_limits(postgres_url: str) -> Iterator[None]:
    """Lock all limits in a transaction that ends without a word, as one of a server that dies."""
    parsed = parse_postgres_url(postgres_url)
    with psycopg.connect(parsed.conninfo) as connection:
        connection.execute(f"SELECT 1 FROM {parsed.schema}.rate_limits FOR UPDATE".encode())
        yield
        connection.rollback()


class Holder:
    """A claim that has looked, and whose transaction stays open until it is told to end."""

    def __init__(self, service: Service, request: Claim) -> None:
        self._has_looked, self._may_end = threading.Event(), threading.Event()
        self._call = asyncio.ensure_future(service.database.run(self._hold, request))

    def _hold(self, tx: Transaction, claims: Sequence[Claim]) -> list[list[Job]]:
        found = [list(jobs) for jobs in claim(tx, claims)]
        self._has_looked.set()
        assert self._may_end.wait(PATIENCE)
        return found

    async def has_looked(self) -> None:
        """Wait until it has looked."""
        assert await asyncio.to_thread(self._has_looked.wait, PATIENCE)

    async def end(self) -> list[Job]:
        """Let it commit, and return what it has found."""
        self._may_end.set()
        return await self._call


def waiting(service: Service, queue: str = "limited", *types: str) -> asyncio.Task[list[Job]]:
    """Return a fetch that waits for a job."""
    return asyncio.create_task(service.jobs.fetch(Claim((queue,), types=types or None), wait=LONG_WAIT))


async def enqueued(service: Service, job: Members) -> str:
    (pushed,) = await service.jobs.enqueue([job])
    return pushed.job.id


async def ids_of(fetch: asyncio.Task[list[Job]]) -> list[str]:
    return [job.id for job in await asyncio.wait_for(fetch, PATIENCE)]


@pytest.mark.parametrize(
    "left", [[], [request("nobody.runs.it", queue="limited", rate_limit={"key": "k", "concurrency": 9})]]
)
async def test_idle_servers_do_not_wake_each_other(
    servers: list[Service], monkeypatch: pytest.MonkeyPatch, left: list[Members]
) -> None:
    """Else two servers without work would claim again and again."""
    looks = 0
    enter = Gate.enter

    def counted(gate: Gate) -> int:
        nonlocal looks
        looks += 1
        return enter(gate)

    monkeypatch.setattr(Gate, "enter", counted)
    await servers[0].jobs.enqueue(left)
    fetches = [waiting(service, "limited", "test.job") for service in servers]
    for service in servers:
        await until_parked(service.database)
    for number in range(50):  # a message to each server, and the claim that it causes
        giver, taker = servers[number % 2], servers[1 - number % 2]
        other = waiting(taker, "other")
        await until_parked(taker.database, 2)
        pushed = await enqueued(giver, request(queue="other"))
        assert await ids_of(other) == [pushed]
    assert looks <= 20
    last = await enqueued(servers[0], request(queue="limited"))
    await asyncio.wait(fetches, timeout=PATIENCE, return_when=asyncio.FIRST_COMPLETED)
    assert [await ids_of(fetch) for fetch in fetches if fetch.done()] == [[last]]
    for fetch in fetches:
        fetch.cancel()


@pytest.mark.parametrize(
    "options", [{"queue": "limited"}, {"queue": "plain", "rate_limit": {"key": "k", "concurrency": 9}}]
)
async def test_a_claim_that_skipped_a_locked_limit_looks_again_without_being_woken(
    servers: list[Service], postgres_url: str, options: dict[str, Any]
) -> None:
    pushed = await enqueued(servers[0], request(**options))
    with locked_limits(postgres_url):
        fetch = waiting(servers[1], options["queue"])
        await until_parked(servers[1].database)
    assert await ids_of(fetch) == [pushed]


async def test_another_fetch_gets_the_job_if_the_one_that_skipped_it_has_gone(
    servers: list[Service], postgres_url: str
) -> None:
    """One job wakes one fetch of a server."""
    fetches = [waiting(servers[1]) for _ in range(2)]
    await until_parked(servers[1].database, 2)
    with locked_limits(postgres_url):
        pushed = await enqueued(servers[1], request(queue="limited"))
        await until_parked(servers[1].database, 2)
        fetches[0].cancel()
    assert await ids_of(fetches[1]) == [pushed]


async def test_a_job_that_the_holder_of_the_limit_cannot_run_goes_to_the_claim_that_skipped_it(
    servers: list[Service],
) -> None:
    pushed = await enqueued(servers[0], request("b", queue="limited"))
    holder = Holder(servers[0], Claim(("limited",), types=("a",)))
    await holder.has_looked()
    fetch = waiting(servers[1], "limited", "b")
    await until_parked(servers[1].database)
    assert await holder.end() == []
    assert await ids_of(fetch) == [pushed]


async def test_a_job_that_is_pushed_after_the_look_of_the_holder_goes_to_the_claim_that_skipped_it(
    servers: list[Service],
) -> None:
    fetch = waiting(servers[1])
    await until_parked(servers[1].database)
    holder = Holder(servers[0], Claim(("limited",)))
    await holder.has_looked()
    pushed = await enqueued(servers[1], request(queue="limited"))  # it serves the fetch, which skips the queue
    assert not fetch.done()
    assert await holder.end() == []
    assert await ids_of(fetch) == [pushed]


async def test_a_job_of_another_tenant_goes_to_the_claim_that_skipped_it(servers: list[Service]) -> None:
    holder = Holder(servers[0], Claim(("limited",), tenant="acme"))
    await holder.has_looked()
    fetch = waiting(servers[1])
    await until_parked(servers[1].database)
    pushed = await enqueued(servers[1], request(queue="limited"))
    assert not fetch.done()
    assert await holder.end() == []
    assert await ids_of(fetch) == [pushed]
