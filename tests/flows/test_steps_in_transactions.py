"""Local steps in a transaction with the application's own writes: both happen once, or neither does."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, LiteralString

import apsw
import msgspec
import psycopg
import pytest
import sqlalchemy
import sqlalchemy.ext.asyncio
import sqlalchemy.orm
from psycopg.conninfo import make_conninfo

from ojster import App, Flow, InvalidRequest, StepFailed, Worker, WorkflowFailed, WorkflowInfo
from ojster.core.settings import ServiceSettings
from ojster.handlers import flow_errors
from ojster.jobs.claim_policy import Claim
from ojster.service import Service
from ojster.storage.postgres.url import parse_postgres_url
from ojster.storage.sqlite.database import SqliteDatabase
from ojster.storage.sqlite.step_connection import MAX_STATEMENTS, StepConnection, tables_of_jobs
from tests import forked
from tests.client.test_enqueue_in_transaction import (
    asyncpg_connection,
    django_connection,
    parts,
    psycopg_connection,
    psycopg_with_dictionaries,
    sqlalchemy_url,
)
from tests.conftest import Clock
from tests.flows import mortal
from tests.flows.driver import NEVER, FlowBench
from tests.serving import serving
from tests.waiting import PATIENCE
from tests.worker.test_worker import working

pytestmark = pytest.mark.anyio

TABLE = """
    CREATE TABLE step_ledger (
        what text NOT NULL UNIQUE,
        parent text REFERENCES step_ledger (what) DEFERRABLE INITIALLY DEFERRED
    )
"""
"""A table of the application; the parent is checked at the commit."""


class Ledger:
    """The table of the application, in the database of its jobs, as others see it."""

    def __init__(self, service: Service) -> None:
        self.on_sqlite = isinstance(service.database, SqliteDatabase)
        self._database: Any = service.database

    def run(self, sql: str) -> list[tuple[Any, ...]]:
        if self.on_sqlite:
            rows: list[Any] = self._database._lanes[0].run(lambda connection: connection.execute(sql).fetchall())
            return rows
        with psycopg.connect(**parts()) as connection:  # type: ignore[arg-type]  # all are strings
            cursor = connection.execute(sql)
            return cursor.fetchall() if cursor.description else []

    def rows(self) -> list[str]:
        return [what for (what,) in self.run("SELECT what FROM step_ledger ORDER BY what")]

    def insert(self, connection: Any, what: str, parent: str | None = None) -> None:
        sql = "INSERT INTO step_ledger (what, parent) VALUES (?, ?)"
        connection.execute(sql if self.on_sqlite else sql.replace("?", "%s"), (what, parent))

    async def ainsert(self, connection: Any, what: str, parent: str | None = None) -> None:
        if self.on_sqlite:
            self.insert(connection, what, parent)
        else:
            await connection.execute("INSERT INTO step_ledger (what, parent) VALUES (%s, %s)", (what, parent))


@pytest.fixture
def ledger(service: Service) -> Iterator[Ledger]:
    ledger = Ledger(service)
    ledger.run("DROP TABLE IF EXISTS step_ledger")
    ledger.run(TABLE)
    yield ledger
    ledger.run("DROP TABLE step_ledger")


@pytest.fixture
def bench(service: Service, clock: Clock, app: App) -> FlowBench:
    return FlowBench(service, clock, app)


def result_in(info: WorkflowInfo) -> Any:
    assert isinstance(info.result, msgspec.Raw), info.error
    return msgspec.json.decode(info.result)


@pytest.mark.parametrize("how", ["before", "after"])
async def test_each_write_happens_once_wherever_the_worker_dies(bench: FlowBench, ledger: Ledger, how: str) -> None:
    def write(connection: Any, what: str) -> str:
        ledger.insert(connection, what)
        return what.upper()

    async def write_later(connection: Any, what: str) -> str:
        await ledger.ainsert(connection, what)
        return what.upper()

    @bench.app.job("quote")
    async def quote(number: int) -> int:
        return number

    @bench.app.flow("pay")
    async def pay(flow: Flow, run: int) -> list[str]:
        first = await flow.step("charge", write, f"{run} a", in_transaction=True)
        await flow.run(quote, 1)
        second = flow.step("charge", write, f"{run} b", in_transaction=True)
        third = flow.step("charge", write_later, f"{run} c", in_transaction=True)
        return [first, *await asyncio.gather(second, third)]

    expected = []
    for crash in range(20):
        bench.calls.count = 0
        bench.when = lambda number, crash=crash: how if number == crash else NEVER  # type: ignore[misc]
        await bench.start(pay.s(crash))
        info = await bench.finish()
        assert result_in(info) == [f"{crash} A", f"{crash} B", f"{crash} C"]
        expected += [f"{crash} {what}" for what in "abc"]
        if bench.calls.count <= crash:
            break
    assert crash >= 4
    assert ledger.rows() == sorted(expected)


async def test_a_worker_that_has_lost_its_lease_writes_nothing(bench: FlowBench, ledger: Ledger) -> None:
    turns: list[str] = []

    async def write(connection: Any) -> str:
        turns.append("a turn")
        who = f"worker {len(turns)}"
        if len(turns) == 1:  # its lease expires meanwhile, and another worker runs the flow
            bench.clock.advance(3_600)
            await bench.run_all_due()
            bench.clock.advance(3_600)
            await bench.run_all_due()
            await bench.work()
        await ledger.ainsert(connection, who)
        return who

    @bench.app.flow("pay")
    async def pay(flow: Flow) -> str:
        return await flow.step("charge", write, in_transaction=True)

    await bench.start(pay.s())
    await bench.work()
    assert result_in(await bench.look()) == "worker 2"
    assert ledger.rows() == ["worker 2"]


async def test_what_the_database_refuses_is_the_error_of_the_step_and_writes_nothing(
    bench: FlowBench, ledger: Ledger
) -> None:
    def twice(connection: Any) -> None:
        ledger.insert(connection, "once")
        ledger.insert(connection, "once")

    def orphan(connection: Any) -> None:  # found out by the commit
        ledger.insert(connection, "child", "nobody")

    def odd(connection: Any) -> None:
        ledger.insert(connection, "odd")
        raise ValueError("odd")

    def no_json(connection: Any) -> object:
        ledger.insert(connection, "object")
        return object()

    @bench.app.flow("pay")
    async def pay(flow: Flow) -> list[str]:
        errors = []
        for function in (twice, orphan, odd, no_json):
            try:
                await flow.step(function.__name__, function, in_transaction=True)
            except Exception as error:
                kind = error.error["type"].rpartition(".")[2] if isinstance(error, StepFailed) else type(error).__name__
                errors.append(kind)
        return errors

    await bench.start(pay.s())
    unique, foreign = ("ConstraintError",) * 2 if ledger.on_sqlite else ("UniqueViolation", "ForeignKeyViolation")
    assert result_in(await bench.finish()) == [unique, foreign, "ValueError", "TypeError"]
    assert ledger.rows() == []


async def test_a_step_that_the_flow_has_given_up_writes_nothing(bench: FlowBench, ledger: Ledger) -> None:
    given_up = asyncio.Event()

    async def slow(connection: Any) -> None:
        await ledger.ainsert(connection, "too late")
        await given_up.wait()

    @bench.app.flow("pay")
    async def pay(flow: Flow) -> str:
        try:
            async with asyncio.timeout(0.01):
                await flow.step("slow", slow, in_transaction=True)
        except TimeoutError:
            await flow.step("give up", given_up.set)
            return "given up"
        return "done"

    await bench.start(pay.s())
    assert result_in(await bench.finish()) == "given up"
    assert ledger.rows() == []


async def test_others_write_while_the_function_of_a_step_runs(bench: FlowBench, ledger: Ledger) -> None:
    async def write(connection: Any) -> str:
        await ledger.ainsert(connection, "mine")
        return (await bench.push("other.job")).state

    @bench.app.flow("pay")
    async def pay(flow: Flow) -> str:
        return await flow.step("charge", write, in_transaction=True)

    info = await bench.start(pay.s())
    (job,) = await bench.service.jobs.fetch(Claim(("default",), 1, "w1"))
    await bench.run_job(job)
    assert result_in(await bench.service.workflows.show(info.id)) == "available"
    assert ledger.rows() == ["mine"]


# What opens a connection


@contextmanager
def engine() -> Iterator[Any]:
    made = sqlalchemy.create_engine(sqlalchemy_url("psycopg"))
    yield made
    made.dispose()


@contextmanager
def sessions() -> Iterator[Any]:
    with engine() as made:
        yield sqlalchemy.orm.sessionmaker(made)


@contextmanager
def django() -> Iterator[Any]:
    with django_connection():
        from django.db import connection
    yield connection


INSERT = "INSERT INTO step_ledger (what) VALUES ('own')"
OPENERS: dict[str, Callable[[], Any]] = {
    "an engine": engine,
    "a maker of sessions": sessions,
    "a connection of psycopg": lambda: psycopg_connection,
    "one with other rows": lambda: psycopg_with_dictionaries,
    "Django": django,
    "an asynchronous engine": lambda: sqlalchemy.ext.asyncio.create_async_engine(sqlalchemy_url("asyncpg")),
    "asyncpg": lambda: asyncpg_connection,
    "an asynchronous connection of psycopg": lambda: partial(psycopg.AsyncConnection.connect, make_conninfo(**parts())),
}


@contextmanager
def table_in_postgres(name: LiteralString = "step_ledger") -> Iterator[Callable[[], list[tuple[Any, ...]]]]:
    """Make a table. Tests of another file need another name: they may run at the same time, on the same server."""
    with psycopg.connect(**parts(), autocommit=True) as connection:  # type: ignore[arg-type]
        connection.execute("DROP TABLE IF EXISTS " + name)
        connection.execute(TABLE.replace("step_ledger", name))
        yield lambda: connection.execute("SELECT what FROM " + name).fetchall()
        connection.execute("DROP TABLE " + name)


async def result_of(url: str, where: Any, function: Callable[..., Any]) -> Any:
    """Return the result of a flow with one step in a transaction."""
    app = App(url)

    @app.flow("pay")
    async def pay(flow: Flow) -> str:
        return str(await flow.step("charge", function, in_transaction=where))

    try:
        async with working(app):
            return await (await pay.astart()).aresult(PATIENCE)
    finally:
        await app.aclose()


@pytest.mark.parametrize("what", OPENERS)
async def test_a_connection_of_each_kind_serves(postgres_url: str, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")  # the test itself configures it in an event loop
    opener = OPENERS[what]()
    insert = sqlalchemy.text(INSERT) if "engine" in what or "sessions" in what else INSERT

    def write(connection: Any) -> str:
        (connection.cursor() if what == "Django" else connection).execute(insert)
        return "written"

    async def write_later(connection: Any) -> str:
        await connection.execute(insert)
        return "written"

    function = write_later if "async" in what else write
    with table_in_postgres() as rows:
        if hasattr(opener, "__enter__"):
            with opener as where:
                assert await result_of(postgres_url, where, function) == "written"
        else:
            assert await result_of(postgres_url, opener, function) == "written"
            if what == "an asynchronous engine":
                await opener.dispose()
        assert rows() == [("own",)]


def plain(connection: Any) -> str:
    connection.execute(INSERT)
    return "written"


async def later(connection: Any) -> str:
    await connection.execute(INSERT)
    return "written"


def elsewhere() -> Any:
    return psycopg.connect(**parts() | {"dbname": "template1"})  # type: ignore[arg-type]


def outside() -> Any:
    return psycopg.connect(**parts(), autocommit=True)  # type: ignore[arg-type]


REFUSED: dict[str, tuple[Any, Callable[..., Any], str]] = {
    "another database": (elsewhere, plain, "There are no tables of Ojster"),
    "no transaction": (outside, plain, "use `with connection.transaction\\(\\):`"),
    "a file": (sqlalchemy.create_engine("sqlite://"), plain, "near"),
    "a number": (7, plain, "in_transaction=7 does not open a connection"),
    "a plain function with an asynchronous connection": (
        partial(psycopg.AsyncConnection.connect, host="/nowhere"),
        plain,
        "as a plain function needs it",
    ),
    "a coroutine function with a plain connection": (psycopg_connection, later, "as a coroutine function needs it"),
    "an open connection": (apsw.Connection(":memory:"), plain, "does not open"),
}


@pytest.mark.parametrize("what", REFUSED)
async def test_what_leads_elsewhere_is_refused_before_the_function_runs(postgres_url: str, what: str) -> None:
    where, function, message = REFUSED[what]
    app = App(postgres_url)
    places = [where, True]

    @app.flow("pay")
    async def pay(flow: Flow) -> str:
        try:
            return await flow.step("charge", function, in_transaction=places[0])
        except Exception:
            return "caught"

    with table_in_postgres() as rows:
        run = await pay.astart()
        await Worker(app).run(until_empty=True)
        with pytest.raises(WorkflowFailed, match=message):
            await run.aresult()
        assert rows() == []
        places.pop(0)
        await run.aretry()  # nothing was recorded: the corrected flow goes on
        await Worker(app).run(until_empty=True)
        assert await run.aresult() == "written"
        assert rows() == [("own",)]
    await app.aclose()


async def test_a_step_is_called_again_when_its_transaction_collides_with_others(postgres_url: str) -> None:
    calls: list[str] = []

    def write(connection: Any) -> str:
        calls.append("a call")
        connection.execute(INSERT)
        if len(calls) < 3:
            raise psycopg.errors.SerializationFailure("could not serialize access")
        return "written"

    with table_in_postgres() as rows:
        assert await result_of(postgres_url, True, write) == "written"
        assert (len(calls), rows()) == (3, [("own",)])


def end_transactions(url: str) -> None:
    """End all connections in a transaction that has read a database, as a server does that shuts down."""
    ends = """
        SELECT pg_terminate_backend(pid, 5000)
        FROM pg_stat_activity
        WHERE state = 'idle in transaction' AND pid IN (
            SELECT l.pid
            FROM pg_locks AS l
            JOIN pg_class AS c ON c.oid = l.relation
            WHERE c.relnamespace = to_regnamespace(%s)
        )
    """
    with psycopg.connect(**parts(), autocommit=True) as other:  # type: ignore[arg-type]
        assert other.execute(ends, (parse_postgres_url(url).schema,)).fetchall()


@pytest.mark.parametrize("when", ["the function runs", "the function has returned"])
@pytest.mark.parametrize("what", OPENERS)
async def test_a_lost_connection_lets_the_flow_go_on_where_it_was(
    postgres_url: str, what: str, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")  # the test itself configures it in an event loop
    monkeypatch.setattr(flow_errors, "RETRY_SECONDS", 0.01)
    lost: list[str] = []
    insert = sqlalchemy.text(INSERT) if "engine" in what or "sessions" in what else INSERT

    def lose(now: str) -> None:
        if now == when and not lost:
            lost.append(now)
            end_transactions(postgres_url)

    def write(connection: Any) -> str:
        lose("the function runs")
        (connection.cursor() if what == "Django" else connection).execute(insert)
        lose("the function has returned")
        return "written"

    async def write_later(connection: Any) -> str:
        lose("the function runs")
        await connection.execute(insert)
        lose("the function has returned")
        return "written"

    opener = OPENERS[what]()
    with table_in_postgres() as rows, opener if hasattr(opener, "__enter__") else nullcontext(opener) as where:
        assert await result_of(postgres_url, where, write_later if "async" in what else write) == "written"
        assert (lost, rows()) == ([when], [("own",)])
        if what == "an asynchronous engine":
            await where.dispose()


@pytest.mark.parametrize("when", ["it opens", "the function runs", "the function has returned"])
@pytest.mark.parametrize("kind", [psycopg.Connection, psycopg.AsyncConnection])
async def test_a_database_that_crashes_lets_the_flow_go_on_where_it_was(
    postgres_url: str, kind: Any, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It breaks its connections without a word, and takes no others for a while."""
    monkeypatch.setattr(flow_errors, "RETRY_SECONDS", 0.01)
    opened: list[str] = []

    def where() -> Any:
        opened.append("a try")
        away = {"port": "1"} if when == "it opens" and len(opened) == 1 else {}
        return kind.connect(make_conninfo(**parts() | away))

    def lose(connection: Any, now: str) -> None:
        if now == when and len(opened) == 1:
            with socket.socket(fileno=os.dup(connection.fileno())) as way:
                way.shutdown(socket.SHUT_RDWR)

    def write(connection: Any) -> str:
        lose(connection, "the function runs")
        connection.execute(INSERT)
        lose(connection, "the function has returned")
        return "written"

    async def write_later(connection: Any) -> str:
        lose(connection, "the function runs")
        await connection.execute(INSERT)
        lose(connection, "the function has returned")
        return "written"

    with table_in_postgres() as rows:
        assert await result_of(postgres_url, where, write if kind is psycopg.Connection else write_later) == "written"
        assert (len(opened), rows()) == (2, [("own",)])


async def test_a_function_that_loses_a_connection_of_its_own_has_failed(postgres_url: str) -> None:
    def write(connection: Any) -> str:
        connection.execute(INSERT)
        psycopg.connect("host=127.0.0.1 port=1")
        return "written"

    with table_in_postgres() as rows:
        with pytest.raises(WorkflowFailed, match="connection failed"):
            await result_of(postgres_url, True, write)
        assert rows() == []


async def test_a_function_that_commits_by_itself_is_refused(postgres_url: str) -> None:
    def write(connection: Any) -> str:
        connection.execute(INSERT)
        connection.commit()
        return "written"

    with table_in_postgres():
        with pytest.raises(WorkflowFailed, match="commit"):  # psycopg knows it in the connection that Ojster opens
            await result_of(postgres_url, True, write)
        with pytest.raises(WorkflowFailed, match="Leave the commit to the end of the step"):
            await result_of(postgres_url, psycopg_connection, write)


# SQLite


async def test_a_connection_of_ones_own_to_a_file_is_refused(file_url: str) -> None:
    engine = sqlalchemy.create_engine(file_url)
    with pytest.raises(WorkflowFailed, match="Pass in_transaction=True: the function gets a connection to this file"):
        await result_of(file_url, engine, plain)


async def test_a_worker_over_http_refuses_a_step_in_a_transaction(service: Service) -> None:
    async with serving(service) as (_, port):
        app = App(f"http://127.0.0.1:{port}")

        @app.flow("pay")
        async def pay(flow: Flow) -> str:
            return await flow.step("charge", plain, in_transaction=True)

        async with working(app):
            run = await pay.astart()
            with pytest.raises(WorkflowFailed, match="Run the flow in a worker with the URL of the database"):
                await run.aresult(PATIENCE)
        await app.aclose()


@pytest.fixture
def connection() -> Iterator[StepConnection]:
    database = SqliteDatabase(":memory:", ServiceSettings())
    database.open()
    with database.reading() as lane:
        lane.run(lambda own: own.execute("CREATE TABLE entries (number, what)"))
        yield StepConnection(lane)
    database.close()


@pytest.mark.parametrize(
    "sql",
    [
        "BEGIN",
        "COMMIT",
        "ROLLBACK",
        "SAVEPOINT mine",
        "PRAGMA user_version = 7",
        "PRAGMA journal_mode",
        "ATTACH 'other.db' AS other",
        "VACUUM",
        "CREATE TABLE mine (number)",
        "DROP TABLE entries",
        "SELECT 1; SELECT 2",
        "EXPLAIN SELECT 1",
        "INSERT INTO entries VALUES (1, 'a') RETURNING number",
        *(f"DELETE FROM {table}" for table in sorted(tables_of_jobs())[:5]),
        "INSERT INTO jobs SELECT * FROM jobs",
        "",
    ],
)
def test_a_step_in_a_file_runs_one_statement_on_tables_of_its_own_at_a_time(
    connection: StepConnection, sql: str
) -> None:
    with pytest.raises(InvalidRequest):
        connection.execute(sql)


def test_a_step_in_a_file_reads_before_it_writes(connection: StepConnection) -> None:
    assert connection.execute("WITH two AS (SELECT 2) SELECT * FROM two") == [(2,)]
    for _ in range(MAX_STATEMENTS):
        assert connection.execute("INSERT INTO entries VALUES (:number, 'it''s')", {"number": 1}) == []
    with pytest.raises(InvalidRequest, match="Read first"):
        connection.execute("SELECT * FROM entries")
    with pytest.raises(InvalidRequest, match="at most 1000 statements"):
        connection.execute("DELETE FROM entries")


def test_all_tables_of_jobs_are_known(connection: StepConnection) -> None:
    rows = connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%'")
    assert {name for (name,) in rows} == tables_of_jobs() | {"entries"}


async def test_what_has_changed_since_it_was_read_is_read_again(file_url: str) -> None:
    app = App(file_url)
    seen: list[int] = []
    with closing(apsw.Connection(file_url.removeprefix("sqlite:///"))) as other:
        other.set_busy_timeout(10_000)  # the worker writes at the same time
        other.execute("CREATE TABLE account (balance)")
        other.execute("INSERT INTO account VALUES (100)")

        def draw(connection: Any, often: int) -> int:
            balance: int = connection.execute("SELECT balance FROM account")[0][0]
            seen.append(balance)
            if len(seen) <= often:
                other.execute("UPDATE account SET balance = balance - 1")
            update = "UPDATE account SET balance = ? WHERE balance = ?"
            connection.execute(update, (balance - 10, balance), expect=1)
            return balance - 10

        @app.flow("pay")
        async def pay(flow: Flow, often: int) -> int:
            return await flow.step("draw", draw, often, in_transaction=True)

        run = await pay.astart(2)
        await Worker(app).run(until_empty=True)
        assert (await run.aresult(), seen) == (88, [100, 99, 98])
        assert other.execute("SELECT balance FROM account").fetchall() == [(88,)]
        run = await pay.astart(100)
        await Worker(app).run(until_empty=True)
        with pytest.raises(WorkflowFailed, match="changed 0 rows, not 1"):
            await run.aresult()
    await app.aclose()


@pytest.mark.thorough
async def test_each_write_happens_once_although_its_worker_is_killed(shared_url: str, tmp_path: Path) -> None:
    app = App(shared_url, migrate=True)
    app.flow("pay")(mortal.pay.function.__wrapped__)  # type: ignore[attr-defined]
    ledger = Ledger(app.service())
    ledger.run("DROP TABLE IF EXISTS step_ledger")
    ledger.run(TABLE)
    declared: Any = app.handlers["pay"]
    runs = [await declared.astart(place) for place in mortal.PLACES]
    variables = os.environ | {"OJSTER_DATABASE_URL": shared_url, mortal.FOLDER: str(tmp_path)}
    command = [sys.executable, "-m", "ojster", "worker", "tests.flows.mortal:app", "--lease", "1", "--until-empty"]
    deaths = 0
    while not all([(await run.arefresh()).finished for run in runs]):
        with (tmp_path / "log").open("ab") as log:
            process = forked.Popen([*command, "--concurrency", "1"], stdout=log, stderr=log, env=variables)
        deaths += await asyncio.to_thread(process.wait, PATIENCE) == -9
    assert [await run.aresult() for run in runs] == [place.upper() for place in mortal.PLACES]
    assert deaths == len(mortal.PLACES)
    assert ledger.rows() == sorted(mortal.PLACES)
    ledger.run("DROP TABLE step_ledger")
    await app.aclose()


async def test_a_flow_sees_its_cancellation_after_each_step_in_a_transaction(bench: FlowBench, ledger: Ledger) -> None:
    async def cancel(connection: Any) -> None:
        await bench.service.workflows.cancel(bench.id)

    @bench.app.flow("pay")
    async def pay(flow: Flow) -> None:
        for what in "abc":
            await flow.step("charge", ledger.insert, what, in_transaction=True)
            if what == "b":
                await flow.step("cancel", cancel, in_transaction=True)

    await bench.start(pay.s())
    assert (await bench.finish()).state == "cancelled"
    assert ledger.rows() == ["a", "b"]


async def test_a_step_that_ends_after_its_timeout_writes_nothing(bench: FlowBench, ledger: Ledger) -> None:
    async def write_late(connection: Any) -> None:
        await ledger.ainsert(connection, "late")
        end = time.monotonic() + 0.02
        while time.monotonic() < end:  # the timer of the worker is due, and has had no chance to run
            pass

    @bench.app.flow("pay")
    async def pay(flow: Flow) -> str:
        try:
            async with asyncio.timeout(0.01):
                await flow.step("charge", write_late, in_transaction=True)
        except TimeoutError:
            return "late"
        return "written"

    await bench.start(pay.s())
    told = result_in(await bench.finish())
    assert (told, ledger.rows()) in (("late", []), ("written", ["late"]))


async def test_what_ends_while_a_step_commits_comes_after_it(bench: FlowBench, ledger: Ledger) -> None:
    @bench.app.flow("pay")
    async def pay(flow: Flow) -> str:
        message = asyncio.create_task(flow.receive("go", str))
        step = asyncio.create_task(flow.step("charge", ledger.insert, "a", in_transaction=True))
        await asyncio.wait({message, step}, return_when=asyncio.FIRST_COMPLETED)
        return "written" if step.done() else "given up"

    admit = bench.service.flows.admit

    async def admit_late(turn: Any) -> Any:
        await bench.send("go", "now")
        return await admit(turn)

    bench.service.flows.admit = admit_late  # type: ignore[assignment]
    bench.when = lambda number: "before" if number == 2 else NEVER  # when it says that it waits for the message no more
    await bench.start(pay.s())
    assert result_in(await bench.finish()) == "written"
    assert bench.attempts["pay"] == 2
