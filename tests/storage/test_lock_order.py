"""The order in which transactions lock rows on PostgreSQL: docs/adr/0006-postgresql-concurrency.md."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterator, Sequence
from itertools import groupby, permutations
from typing import Any, Final

import msgspec
import psycopg
import pytest

from ojster.core.durations import HOUR
from ojster.core.errors import OjsterError
from ojster.core.json_objects import read_members
from ojster.core.rate_limit import Rate
from ojster.jobs import bulk, completion
from ojster.jobs.bulk import Action, Bulk, KeyedPush
from ojster.jobs.claim_policy import Claim
from ojster.jobs.failure import Failure
from ojster.jobs.idempotency import Key, StoredReply
from ojster.jobs.messages import Acknowledgement, FailureReport
from ojster.jobs.new_job import NewJob
from ojster.jobs.push import push
from ojster.jobs.scope import Caller
from ojster.queues.configuration import Configuration, configure
from ojster.queues.rules import Bound
from ojster.service import Service
from ojster.storage.call import for_each, runs_first
from ojster.storage.database import Database
from ojster.storage.open import open_database
from ojster.storage.postgres.pipeline import Array
from ojster.storage.postgres.transaction import PostgresTransaction
from ojster.storage.postgres.url import parse_postgres_url
from ojster.storage.transaction import Held, Later, Query, Row, Transaction
from ojster.tenancy.tenants import TenantChange, put_tenants
from ojster.workflows.plan.values import NewWorkflow
from ojster.workflows.run import creation
from ojster.workflows.run.starting import Starter, start_workflow
from tests.conftest import request, until_parked
from tests.waiting import PATIENCE

pytestmark = pytest.mark.anyio

LOCK_ORDER: Final = ("queues", "tenants", "jobs", "workflows")
"""The order in which a transaction waits for rows of these tables; see the ADR for what follows them."""

Wait = tuple[str, Sequence[Any]]
"""The table of a statement that locks rows, and their keys."""

_WAITING: Final = re.compile(r"\bFROM (\w+)\b.* FOR UPDATE(?! SKIP LOCKED)")
ACME: Final = Starter("acme")

_LIMITS: Final = {"max_enqueue_rate": Rate(1000, HOUR), "max_concurrency": 100}


async def test_calls_run_in_one_order_whichever_arrives_first(database: Database) -> None:
    ran: list[str] = []

    def first(tx: Transaction, items: Sequence[None]) -> Sequence[None]:
        ran.append("first")
        return items

    def earlier(tx: Transaction, items: Sequence[None]) -> Sequence[None]:
        ran.append("earlier")
        return items

    def later(tx: Transaction, items: Sequence[None]) -> Sequence[None]:
        ran.append("later")
        return items

    runs_first(first)
    for order in permutations((first, earlier, later)):
        ran.clear()
        await asyncio.gather(*(database.run(operation, None) for operation in order))
        assert ran == ["first", "earlier", "later"]


@pytest.fixture
async def server(postgres_url: str) -> AsyncIterator[Service]:
    """A server with bounded queues, and tenants whose pushes and jobs are limited."""
    service = Service(open_database(postgres_url))
    for queue in ("a", "b"):
        await service.scope.do(configure, Configuration(queue, rules={"backpressure": Bound(100)}))
    for tenant in ("acme", "zeta"):
        await service.scope.do(put_tenants, TenantChange(tenant, _LIMITS))
    yield service
    await service.close()


@pytest.fixture
def other(postgres_url: str) -> Iterator[psycopg.Connection]:
    """A connection that holds locks, as another server does."""
    url = parse_postgres_url(postgres_url)
    with psycopg.connect(url.conninfo, options=f"-c search_path={url.schema}") as connection:
        yield connection


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[Wait]:
    """What the statements wait for that lock rows."""
    seen: list[Wait] = []
    execute, together = PostgresTransaction.execute, PostgresTransaction.execute_together

    def note(sql: str, parameters: Any) -> None:
        if found := _WAITING.search(" ".join(sql.split())):
            keys = next(iter(parameters.values() if isinstance(parameters, dict) else parameters))
            seen.append((found[1], keys.values if isinstance(keys, Array) else (keys,)))

    def executing(tx: PostgresTransaction, sql: str, parameters: Any = ()) -> list[Row]:
        note(sql, parameters)
        return execute(tx, sql, parameters)

    def executing_together(tx: PostgresTransaction, queries: Sequence[Query]) -> list[list[Row]]:
        for query in queries:
            note(*query)
        return together(tx, queries)

    monkeypatch.setattr(PostgresTransaction, "execute", executing)
    monkeypatch.setattr(PostgresTransaction, "execute_together", executing_together)
    return seen


async def job(service: Service, queue: str, tenant: str) -> NewJob:
    return await service.jobs.prepare(request(queue=queue, meta={"tenant_id": tenant}))


async def workflow(service: Service, tenant: str, type: str = "grows") -> NewWorkflow:
    members = {"type": "chain", "steps": [{"type": type, "args": []}]}
    return await service.as_(Caller(tenant)).workflows.prepare(read_members(msgspec.json.encode(members)))


async def test_a_transaction_of_many_calls_locks_in_the_declared_order(server: Service, waits: list[Wait]) -> None:
    for tenant in ("zeta", "acme"):
        types = ("grows", "grows.too", "fails")
        await server.workflows.create_many([await workflow(server, tenant, type) for type in types])
    jobs = list(reversed(await server.jobs.fetch(Claim(("default",), 6, worker_id="w"))))
    step = (b'{"type": "more", "args": []}',)
    acks = {
        type: [Acknowledgement(job.id, b"1", append=step) for job in jobs if job.type == type]
        for type in ("grows", "grows.too")
    }
    fails = [FailureReport(job.id, Failure("Boom", "it went wrong")) for job in jobs if job.type == "fails"]
    run_many = server.database.run_many
    waits.clear()
    await run_many(completion.acknowledge, acks["grows"])
    assert [(table, len(keys)) for table, keys in waits[:3]] == [("tenants", 2), ("jobs", 2), ("workflows", 2)]
    assert {table for table, _ in waits[3:]} == {"jobs", "workflows"}
    pushes = [await job(server, "b", "zeta"), await job(server, "a", "acme")]
    keyed = [
        KeyedPush(new, Key("push", new.id, ""), lambda pushed: StoredReply(201, pushed.job.id.encode()))
        for new in (await job(server, "b", "zeta"), await job(server, "a", "acme"))
    ]
    created = [await workflow(server, tenant) for tenant in ("zeta", "acme")]
    waits.clear()
    results = await asyncio.gather(
        run_many(completion.fail, fails),
        run_many(completion.acknowledge, acks["grows.too"]),
        run_many(creation.create, created),
        run_many(push, [[new] for new in pushes]),
        run_many(bulk.push_once, keyed),
    )
    assert not [result for some in results for result in some if isinstance(result, OjsterError)]
    tables = [table for table, _ in groupby(table for table, _ in waits)]
    assert tables[:4] == list(LOCK_ORDER)
    assert set(tables[4:]) == {"jobs", "workflows"}


@pytest.mark.needs("skip-locked")
async def test_a_push_waits_only_for_what_comes_after_its_locks(server: Service, other: psycopg.Connection) -> None:
    """Otherwise it is postponed: whoever holds it may wait for this transaction."""
    groups = {name: [await job(server, *name.split("/"))] for name in ("a/acme", "b/acme", "b/zeta", "c/acme")}
    new = await workflow(server, "acme")

    @for_each
    def push_and(tx: Transaction, then: str) -> list[Any]:
        push(tx, [groups["b/zeta"]])
        if then == "started by a reaction":  # which takes a refusal as final, so the transaction runs again
            with pytest.raises(Held):
                start_workflow(tx, read_members(b'{"type": "chain", "steps": [{"type": "t", "args": []}]}'), ACME)
        if then == "atomic batch":
            whole = Bulk(Action.ENQUEUE, groups["a/acme"], atomic=True, answer=lambda outcomes: StoredReply(200, b""))
            raise _Undone(bulk.perform(tx, [whole]))
        raise _Undone(push(tx, [groups[then]]) if then in groups else creation.create(tx, [new]))

    class _Undone(OjsterError):
        def __init__(self, results: Sequence[Any]) -> None:
            super().__init__("It is rolled back.")
            self.results = results

    async def result_of(then: str) -> Any:
        with pytest.raises(_Undone) as undone:
            async with asyncio.timeout(PATIENCE):
                await server.database.run(push_and, then)
        return undone.value.results[0]

    assert not isinstance(await result_of("a/acme"), OjsterError)
    other.execute("SELECT FROM queues WHERE name = 'a' FOR UPDATE")
    other.execute("SELECT FROM tenants WHERE id = 'acme' FOR UPDATE")
    for then in ("a/acme", "b/acme", "c/acme", "workflow", "started by a reaction", "atomic batch"):
        assert isinstance(await result_of(then), Later), then


async def test_claims_wait_for_no_push_of_their_tenant(server: Service, other: psycopg.Connection) -> None:
    await server.jobs.push([await job(server, "a", "acme")])
    other.execute("SELECT FROM tenants WHERE id = 'acme' FOR UPDATE")
    async with asyncio.timeout(PATIENCE):
        assert len(await server.jobs.fetch(Claim(("a",)))) == 1


@pytest.mark.needs("advisory-locks")
async def test_claims_of_a_tenant_look_again_when_another_one_is_done(server: Service, postgres_url: str) -> None:
    key = f"{parse_postgres_url(postgres_url).schema}/claims of acme"
    await server.jobs.push([await job(server, "a", "acme")])
    async with await psycopg.AsyncConnection.connect(parse_postgres_url(postgres_url).conninfo) as other:
        await other.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", (key,))
        assert await server.jobs.fetch(Claim(("a",))) == []
        waiting = asyncio.create_task(server.jobs.fetch(Claim(("a",)), PATIENCE))
        await until_parked(server.database)
        await other.commit()
    assert len(await waiting) == 1
