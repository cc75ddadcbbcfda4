"""Jobs enqueued in the caller's transaction: they exist if it commits and leave no trace if it rolls back."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from typing import Any

import asyncpg
import django
import psycopg
import pytest
import sqlalchemy
import sqlalchemy.ext.asyncio
import sqlalchemy.orm
from django.conf import settings as django_settings
from msgspec import Raw
from msgspec.json import encode

from ojster import (
    App,
    Duplicate,
    InvalidRequest,
    JobHandle,
    JobType,
    NotFound,
    NotInTransaction,
    OjsterError,
    Settings,
    Unique,
)
from ojster.jobs.claim_policy import Claim
from ojster.service import Service
from ojster.storage.open import open_database
from ojster.storage.postgres.url import parse_postgres_url
from tests.conftest import SERVER_VARIABLE
from tests.waiting import LONG_WAIT

pytestmark = pytest.mark.anyio


class Undone(Exception):
    """Makes a transaction roll back."""


def parts() -> dict[str, str]:
    """Return the connection parameters of the test server."""
    found = psycopg.conninfo.conninfo_to_dict(os.environ[SERVER_VARIABLE])
    return {name: str(found[name]) for name in ("host", "port", "user", "dbname")}


def sqlalchemy_url(driver: str) -> sqlalchemy.URL:
    where = parts()
    query = {"host": where["host"], "port": where["port"]}
    return sqlalchemy.URL.create(f"postgresql+{driver}", where["user"], database=where["dbname"], query=query)


@contextmanager
def psycopg_connection() -> Iterator[Any]:
    with psycopg.connect(**parts()) as connection:  # type: ignore[arg-type]  # all are strings
        yield connection


@contextmanager
def psycopg_with_dictionaries() -> Iterator[Any]:
    rows = psycopg.rows.dict_row
    with psycopg.connect(**parts(), autocommit=True, row_factory=rows) as one, one.transaction():  # type: ignore[arg-type]
        yield one


@contextmanager
def sqlalchemy_connection() -> Iterator[Any]:
    engine = sqlalchemy.create_engine(sqlalchemy_url("psycopg"))
    try:
        with engine.begin() as connection:
            yield connection
    finally:
        engine.dispose()


@contextmanager
def sqlalchemy_session() -> Iterator[Any]:
    engine = sqlalchemy.create_engine(sqlalchemy_url("psycopg"))
    try:
        with sqlalchemy.orm.Session(engine) as session, session.begin():
            yield session
    finally:
        engine.dispose()


@contextmanager
def django_connection() -> Iterator[Any]:
    if not django_settings.configured:
        where = parts()
        database = {"ENGINE": "django.db.backends.postgresql", "NAME": where["dbname"], "USER": where["user"]}
        database |= {"HOST": where["host"], "PORT": where["port"]}
        django_settings.configure(DATABASES={"default": database}, INSTALLED_APPS=[])
        django.setup()
    from django.db import connection, transaction

    try:
        with transaction.atomic():
            yield connection
    finally:
        connection.close()


@asynccontextmanager
async def psycopg_async() -> AsyncIterator[Any]:
    async with await psycopg.AsyncConnection.connect(**parts()) as connection:  # type: ignore[arg-type]
        yield connection


@asynccontextmanager
async def asyncpg_connection() -> AsyncIterator[Any]:
    where = parts()
    connection = await asyncpg.connect(
        host=where["host"], port=int(where["port"]), user=where["user"], database=where["dbname"]
    )
    try:
        async with connection.transaction():
            yield connection
    finally:
        await connection.close()


def sqlalchemy_async(driver: str, session: bool) -> Callable[[], AbstractAsyncContextManager[Any]]:
    @asynccontextmanager
    async def connect() -> AsyncIterator[Any]:
        engine = sqlalchemy.ext.asyncio.create_async_engine(sqlalchemy_url(driver))
        try:
            if session:
                async with sqlalchemy.ext.asyncio.AsyncSession(engine) as one, one.begin():
                    yield one
            else:
                async with engine.begin() as connection:
                    yield connection
        finally:
            await engine.dispose()

    return connect


SYNCHRONOUS: list[Callable[[], Any]] = [
    psycopg_connection,
    psycopg_with_dictionaries,
    sqlalchemy_connection,
    sqlalchemy_session,
    django_connection,
]
ASYNCHRONOUS: list[Callable[[], Any]] = [
    psycopg_async,
    asyncpg_connection,
    sqlalchemy_async("asyncpg", session=False),
    sqlalchemy_async("asyncpg", session=True),
    sqlalchemy_async("psycopg", session=False),
]


class Caller:
    """A caller with a connection of one driver."""

    def __init__(self, connect: Callable[[], Any]) -> None:
        self._connect = connect
        self.waits = connect in ASYNCHRONOUS

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        if self.waits:
            later: AbstractAsyncContextManager[Any] = self._connect()
            async with later as connection:
                yield connection
        else:
            now: AbstractContextManager[Any] = self._connect()
            with now as connection:
                yield connection

    async def enqueue(self, declared: JobType[Any, Any], connection: Any, *args: Any) -> JobHandle[Any]:
        if self.waits:
            return await declared.aenqueue_in(connection, *args)
        return declared.enqueue_in(connection, *args)


@pytest.fixture(params=SYNCHRONOUS + ASYNCHRONOUS)
def guest(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Caller:
    monkeypatch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")  # the test itself runs in an event loop
    return Caller(request.param)


@pytest.fixture
async def app(postgres_url: str) -> AsyncIterator[App]:
    made = App(postgres_url)
    yield made
    await made.aclose()


@pytest.fixture
async def elsewhere(postgres_url: str) -> AsyncIterator[Service]:
    """An engine with its own connections, like that of another process."""
    engine = Service(open_database(postgres_url))
    yield engine
    await engine.close()


def declare(app: App) -> JobType[Any, Any]:
    @app.job("order.ship", unique=Unique(keys=["args"], on_conflict="reject"))
    async def ship(order: int, note: str = "") -> None: ...

    return ship


async def test_a_job_is_visible_after_commit_and_wakes_parked_fetches(
    app: App, guest: Caller, elsewhere: Service
) -> None:
    ship = declare(app)
    waiting = asyncio.create_task(elsewhere.jobs.fetch(Claim(("default",)), wait=LONG_WAIT))
    await asyncio.sleep(0.05)
    async with guest.transaction() as connection:
        handle = await guest.enqueue(ship, connection, 7, "§ ünïcode % \\ 'quoted' $1 :p1")
        assert handle.state == "available"
        with pytest.raises(NotFound):
            await elsewhere.jobs.find(handle.id)
        assert not waiting.done()
    (job,) = await waiting
    assert (job.id, job.args) == (handle.id, [7, "§ ünïcode % \\ 'quoted' $1 :p1"])
    counts = await elsewhere.jobs.count()
    assert {state: n for state, n in counts["default"].items() if n} == {"active": 1}


async def test_nothing_is_left_when_the_transaction_is_undone(app: App, guest: Caller, elsewhere: Service) -> None:
    ship = declare(app)
    handles: list[JobHandle[Any]] = []

    async def enqueue_and_fail() -> None:
        async with guest.transaction() as connection:
            handles.append(await guest.enqueue(ship, connection, 7))
            raise Undone

    with pytest.raises(Undone):
        await enqueue_and_fail()
    (handle,) = handles
    with pytest.raises(NotFound):
        await elsewhere.jobs.find(handle.id)
    assert await elsewhere.jobs.count() == {}
    async with guest.transaction() as connection:  # the unique key is free as well
        await guest.enqueue(ship, connection, 7)


async def test_a_duplicate_leaves_the_transaction_usable(app: App, guest: Caller, elsewhere: Service) -> None:
    ship = declare(app)
    async with guest.transaction() as connection:
        first = await guest.enqueue(ship, connection, 7)
        with pytest.raises(Duplicate) as refused:
            await guest.enqueue(ship, connection, 7)
        second = await guest.enqueue(ship, connection, 8)
    assert refused.value.details["existing_job_id"] == first.id
    assert (await elsewhere.jobs.find(first.id)).state == (await elsewhere.jobs.find(second.id)).state == "available"


async def test_two_transactions_cannot_both_take_a_unique_key(app: App, elsewhere: Service) -> None:
    ship = declare(app)
    async with psycopg_async() as one, psycopg_async() as other:
        await ship.aenqueue_in(one, 7)
        second = asyncio.create_task(ship.aenqueue_in(other, 7))
        await asyncio.sleep(0.05)
        assert not second.done()
        await one.commit()
        with pytest.raises(Duplicate):
            await second
    assert (await elsewhere.jobs.count())["default"]["available"] == 1


async def test_many_jobs_and_changes_of_the_callers_own_are_one_transaction(app: App, elsewhere: Service) -> None:
    ship = declare(app)
    with psycopg_connection() as connection:
        connection.execute("CREATE TEMPORARY TABLE orders (id BIGINT)")
        connection.execute("INSERT INTO orders VALUES (1)")
        handles = ship.enqueue_many_in(connection, [(n,) for n in range(50)])
        assert connection.execute("SELECT count(*) FROM orders").fetchone() == (1,)
    assert len({handle.id for handle in handles}) == 50
    assert (await elsewhere.jobs.count())["default"]["available"] == 50
    assert await ship.aenqueue_many_in(connection, []) == []


async def test_a_connection_without_a_transaction_is_refused(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")
    ship = declare(app)
    where = parts()
    with psycopg.connect(**where, autocommit=True) as connection, pytest.raises(NotInTransaction):  # type: ignore[arg-type]
        ship.enqueue_in(connection, 1)
    loose = await asyncpg.connect(
        host=where["host"], port=int(where["port"]), user=where["user"], database=where["dbname"]
    )
    with pytest.raises(NotInTransaction):
        await ship.aenqueue_in(loose, 1)
    await loose.close()
    engine = sqlalchemy.create_engine(sqlalchemy_url("psycopg"), isolation_level="AUTOCOMMIT")
    with engine.connect() as autocommitting, pytest.raises(NotInTransaction):
        ship.enqueue_in(autocommitting, 1)
    engine.dispose()
    with django_connection():
        from django.db import connection as outside
    with pytest.raises(NotInTransaction):
        ship.enqueue_in(outside, 1)


async def test_what_is_no_connection_is_refused(app: App) -> None:
    ship = declare(app)
    async with psycopg_async() as connection:
        with pytest.raises(TypeError, match="aenqueue_in"):
            ship.enqueue_in(connection, 1)
    with pytest.raises(TypeError, match="not a synchronous connection"):
        await ship.aenqueue_in(object(), 1)
    with psycopg_connection() as plain, pytest.raises(InvalidRequest, match="PostgreSQL"):
        declare(App("sqlite:///:memory:")).enqueue_in(plain, 1)


async def test_a_cancelled_enqueue_waits_for_its_statement_to_end(app: App) -> None:
    ship = declare(app)
    async with psycopg_async() as blocker, psycopg_async() as connection:
        await ship.aenqueue_in(blocker, 7)
        waiting = asyncio.create_task(ship.aenqueue_in(connection, 7))
        with psycopg_connection() as watcher:
            blocked = "SELECT pg_blocking_pids(%s) <> '{}'"
            while watcher.execute(blocked, (connection.info.backend_pid,)).fetchall() == [(False,)]:
                await asyncio.sleep(0.01)
        waiting.cancel()
        await asyncio.sleep(0.05)
        assert not waiting.done(), "the statement is still under way"
        await blocker.rollback()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await connection.rollback()


async def test_middleware_sees_the_request(app: App, elsewhere: Service) -> None:
    ship = declare(app)

    async def stamp(request: dict[str, Any], enqueue: Any) -> Any:
        return await enqueue(request | {"meta": {"stamped": True}})

    app.enqueue_middleware.append(stamp)
    async with psycopg_async() as connection:
        handle = await ship.aenqueue_in(connection, 1)
    assert (await elsewhere.jobs.find(handle.id)).meta == {"stamped": True}


async def test_a_job_has_the_defaults_of_its_type(app: App, guest: Caller, elsewhere: Service) -> None:
    options = {"queue": "mail", "priority": 7, "retry": {"max_attempts": 9}}
    await elsewhere.job_types.put("email.send", {"options": Raw(encode(options)), "meta": Raw(b'{"team":"x"}')})
    async with guest.transaction() as connection:
        handle = await guest.enqueue(app.job_type("email.send"), connection, "ada")
    job = await elsewhere.jobs.find(handle.id)
    assert (job.queue, job.priority, job.max_attempts, job.meta) == ("mail", 7, 9, {"team": "x"})


REFUSED: dict[str, dict[str, Any]] = {
    "arguments against the schema": {"type": "email.send", "meta": {"tenant_id": "acme"}},
    "a queue of the server": {"type": "t", "queue": "ojster.webhooks", "meta": {"tenant_id": "acme"}},
    "no tenant": {"type": "t"},
    "a reaction to a channel that is missing": {
        "type": "t",
        "meta": {"tenant_id": "acme"},
        "reactions": {"on_success": [{"action": "notify", "channel": "nowhere"}]},
    },
    "a reaction to a collection that is missing": {
        "type": "t",
        "meta": {"tenant_id": "acme"},
        "reactions": {"on_success": [{"action": "collect", "collection": "nowhere", "name": "x"}]},
    },
}


@pytest.mark.parametrize("what", REFUSED)
async def test_what_enqueue_refuses_is_refused_and_leaves_the_transaction_usable(
    postgres_url: str, elsewhere: Service, what: str
) -> None:
    app = App(postgres_url, settings=Settings(tenants="required"))
    await elsewhere.schemas.register("email.send", 1, b'{"items":{"type":"string"}}', mode="strict")
    declared = app.job_type(**REFUSED[what])
    async with psycopg_async() as connection:
        with pytest.raises(OjsterError) as refused:
            await declared.aenqueue(1)
        with pytest.raises(type(refused.value), match=re.escape(refused.value.message)):
            await declared.aenqueue_in(connection, 1)
        handle = await app.job_type("email.send", meta={"tenant_id": "acme"}).aenqueue_in(connection, "ada")
    assert (await elsewhere.jobs.find(handle.id)).args == ["ada"]
    await app.aclose()


async def test_arguments_that_a_schema_only_warns_of_are_logged(
    app: App, elsewhere: Service, caplog: pytest.LogCaptureFixture
) -> None:
    await elsewhere.schemas.register("email.send", 1, b'{"items":{"type":"string"}}', mode="warn")
    async with psycopg_async() as connection:
        handle = await app.job_type("email.send").aenqueue_in(connection, 1)
    assert f"the job {handle.id}: " in caplog.text


def test_the_schema_of_the_url_is_used(postgres_url: str) -> None:
    assert parse_postgres_url(postgres_url).schema.startswith("tests_")


async def test_a_connection_to_another_database_is_explained(app: App, postgres_url: str) -> None:
    schema = parse_postgres_url(postgres_url).schema
    ship = declare(App(postgres_url.replace(schema, f"{schema}_missing")))
    with psycopg_connection() as connection, pytest.raises(InvalidRequest, match="There are no tables of Ojster"):
        ship.enqueue_in(connection, 1)


async def test_a_role_without_rights_is_explained(app: App) -> None:
    ship = declare(app)
    app.service()
    with psycopg_connection() as connection:
        connection.execute("CREATE ROLE nobody_here")
        connection.execute("SET LOCAL ROLE nobody_here")
        with pytest.raises(InvalidRequest, match="GRANT it USAGE on the schema"):
            ship.enqueue_in(connection, 1)
        connection.rollback()
