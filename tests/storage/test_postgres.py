"""PostgreSQL: URLs and passwords, migrations, concurrent transactions, and callers' transactions that stay open."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence, Set

import msgspec
import psycopg
import pytest

from ojster import App, Unique
from ojster.collections.items import NewItem, Where
from ojster.core.errors import BackendUnavailable, Duplicate, InvalidRequest
from ojster.core.json_objects import read_members
from ojster.core.settings import ServiceRetention, ServiceSettings
from ojster.jobs.claim_policy import Claim
from ojster.jobs.messages import Acknowledgement
from ojster.jobs.new_job import read_job
from ojster.jobs.push import push
from ojster.schedules.cron import Cron
from ojster.schedules.due_work import run_due
from ojster.schedules.retention import forget
from ojster.service import Service
from ojster.storage.call import for_each
from ojster.storage.database import without_password
from ojster.storage.open import migrate_database, open_database
from ojster.storage.postgres import notifier, pipeline, reachable, transaction
from ojster.storage.postgres.abilities import ABILITIES
from ojster.storage.postgres.database import PostgresDatabase
from ojster.storage.postgres.pipeline import ConnectionLost, translate
from ojster.storage.postgres.url import parse_postgres_url
from ojster.storage.transaction import Transaction, TryAgain
from ojster.tenancy.wire import TenantBody, TenantLimitsBody
from ojster.workflows.run import due as workflow_due
from ojster.workflows.run import retention as workflow_retention
from ojster.workflows.run.fork import Fork
from tests.conftest import SERVER_VARIABLE, Clock, request, until_parked, url_of_schema
from tests.postgres import PostgresServer
from tests.waiting import LONG_WAIT, PATIENCE, until

pytestmark = pytest.mark.anyio


@pytest.fixture
async def engines(postgres_url: str) -> AsyncIterator[list[Service]]:
    """Two engines that act as two servers on one database."""
    made = [Service(open_database(postgres_url)) for _ in range(2)]
    yield made
    for service in made:
        await service.close()


@pytest.fixture
def guest(postgres_url: str) -> Iterator[psycopg.Connection]:
    """A connection for the caller's transaction."""
    with psycopg.connect(parse_postgres_url(postgres_url).conninfo) as connection:
        yield connection


THREE_AN_HOUR = {"limit": 3, "period": "PT1H"}
UNIQUE = {"keys": ["type", "args"]}

COLLECT = {"action": "collect", "collection": "builds", "name": "latest", "replace": True}
"""A reaction that puts the result of its job into a collection."""


async def until_blocked(postgres_url: str, number: int) -> None:
    """Wait until so many other connections wait for locks."""
    url = parse_postgres_url(postgres_url)
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND position(%s IN query) > 0"
    async with await psycopg.AsyncConnection.connect(url.conninfo, autocommit=True) as look:
        async with asyncio.timeout(PATIENCE):
            while await (await look.execute(waiting, (f'"{url.schema}".',))).fetchone() != (number,):
                await asyncio.sleep(0.01)


async def test_statements_of_which_there_is_no_end_are_not_all_prepared(
    engines: list[Service], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Conditions of lists depend on what callers ask for."""
    database = engines[0].database
    await database.read(_prepared, None)
    most = await database.read(_prepared, None)
    monkeypatch.setattr(pipeline, "MAX_STATEMENTS", most)

    def many(tx: Transaction, _: None) -> list[int]:
        return [tx.execute(f"SELECT CAST(? AS bigint) + {number}", (1,))[0][0] for number in range(9)]

    assert await database.read(for_each(many), None) == [*range(1, 10)]
    assert await database.read(_prepared, None) == most


@for_each
def _prepared(tx: Transaction, _: None) -> int:
    number: int = tx.execute("SELECT count(*) FROM pg_prepared_statements WHERE name LIKE 'ojster_%'")[0][0]
    return number


class TestUrls:
    def test_what_libpq_understands_is_passed_on(self) -> None:
        parsed = parse_postgres_url("postgresql://ada:pw@one:5433,two/shop?sslmode=verify-full&schema=jobs")
        given = psycopg.conninfo.conninfo_to_dict(parsed.conninfo)
        assert (given["host"], given["port"], given["dbname"]) == ("one,two", "5433,", "shop")
        assert (given["sslmode"], given["password"]) == ("verify-full", "pw")
        assert (parsed.schema, parsed.isolation, parsed.pooled) == ("jobs", "read committed", False)
        assert given["application_name"] == "ojster"

    @pytest.mark.needs(*ABILITIES)
    def test_sockets_and_environment_variables_are_understood(self, monkeypatch: pytest.MonkeyPatch) -> None:
        where = psycopg.conninfo.conninfo_to_dict(os.environ[SERVER_VARIABLE])
        for name, value in (("PGHOST", where["host"]), ("PGPORT", where["port"]), ("PGUSER", where["user"])):
            monkeypatch.setenv(name, str(value))
        monkeypatch.setenv("PGDATABASE", "postgres")
        database = open_database("postgresql://?schema=from_environment", migrate=True)
        database.close()
        assert database.schema_version >= 1

    @pytest.mark.parametrize(
        "url",
        [
            "postgresql://h/d?isolation=repeatable_read",
            "postgresql://h/d?connections=0",
            "postgresql://h/d?connections=x",
            "postgresql://h/d?pooler=sometimes",
            "postgresql://h/d?schema=",
            "postgresql://h/d?schema=pg_mine",
            "postgresql://h/d?schema=my%3Fjobs",
            "postgresql://h/d?schema=my :jobs",
            "postgresql://h/d?schema=my$1",
            "postgresql://h/d?schema=my'jobs",
            "postgresql://h/d?nonsense=1",
            "postgresql://u:s3 cret[@h/d",
            "mysql://u:s3cret@h/d",
            "postgresql://u:s3@cret:s3@h/d",
            "postgresql:/u:s3cret@h/d",
            "host=localhost password=s3cret dbname=x",
        ],
    )
    def test_what_nobody_understands_is_refused(self, url: str) -> None:
        with pytest.raises(InvalidRequest) as refused:
            open_database(url)
        assert "s3" not in str(refused.value)

    @pytest.mark.parametrize(
        "url",
        [
            "postgresql://ada:s3cret@h/d",
            "postgresql://ada:s3@cret:s3/x@h/d",
            "postgresql://ada:s3?cret@h/d",
            "postgresql://h/d?user=ada&password=s3cret",
            "postgresql://h/d?sslpassword=s3cret&sslmode=require",
            "postgresql://h/d?pass%77ord=s3cret",
            "postgresql://h/d?oauth_client_secret=s3cret",
        ],
    )
    def test_no_password_is_shown(self, url: str) -> None:
        shown = without_password(url)
        assert "s3" not in shown
        assert "***" in shown

    async def test_a_password_is_in_no_error_and_in_no_log(self, caplog: pytest.LogCaptureFixture) -> None:
        with pytest.raises(BackendUnavailable) as refused:
            open_database("postgresql://ada:s3cret@127.0.0.1:1/d?connect_timeout=2")
        assert "s3cret" not in str(refused.value) + caplog.text
        assert "ada:***@127.0.0.1:1" in str(refused.value)


class TestSchema:
    def test_statements_name_their_schema(self) -> None:
        statement = translate(
            "UPDATE jobs SET queue = :queue FROM payloads WHERE jobs.seq = :seq OR :queue = ''", 'a"b'
        )
        assert statement.sql == (
            b'UPDATE "a""b".jobs SET queue = $1 FROM "a""b".payloads WHERE jobs.seq = $2 OR $1 = \'\''
        )
        assert statement.names == ("queue", "seq")

    @pytest.mark.parametrize(
        ("sql", "returns_rows"),
        [
            ("SELECT 1", True),
            ("WITH one AS (SELECT 1) SELECT * FROM one", True),
            ("WITH gone AS (DELETE FROM jobs RETURNING seq) SELECT count(*) FROM gone", True),
            ("WITH gone AS (DELETE FROM jobs RETURNING seq) INSERT INTO a (b) SELECT seq FROM gone", False),
            ("WITH one AS (SELECT f(1)) INSERT INTO a (b) SELECT 1 FROM one RETURNING b", True),
            ("UPDATE a SET b = (SELECT 1) WHERE c = ') RETURNING (' -- SELECT", False),
            ("VALUES (1)", True),
            ("COMMIT", False),
        ],
    )
    def test_a_statement_returns_rows_if_its_outermost_part_does(self, sql: str, returns_rows: bool) -> None:
        assert translate(sql, "s").returns_rows is returns_rows

    def test_tables_are_made_only_if_that_is_asked_for(self) -> None:
        url = url_of_schema("nothing_here")
        with pytest.raises(BackendUnavailable, match="ojster migrate"):
            open_database(url)
        with psycopg.connect(parse_postgres_url(url).conninfo) as connection:
            assert connection.execute("SELECT to_regnamespace('nothing_here')").fetchone() == (None,)

    def test_a_schema_from_the_future_is_refused(self) -> None:
        url = url_of_schema(f"future_{os.getpid()}")
        migrate_database(url)
        with psycopg.connect(parse_postgres_url(url).conninfo) as connection:
            connection.execute(f"INSERT INTO future_{os.getpid()}.migrations VALUES (99, now(), '9.9')")
        for attempt in (open_database, migrate_database):
            with pytest.raises(BackendUnavailable, match="upgrade Ojster"):
                attempt(url)


class TestManyServers:
    async def test_a_fetch_that_waits_gets_what_is_pushed_elsewhere(self, engines: list[Service]) -> None:
        here, there = engines
        for number in range(20):
            waiting = asyncio.create_task(here.jobs.fetch(Claim(("default",)), wait=LONG_WAIT))
            await asyncio.sleep(0.02 if number else 0.3)
            (pushed,) = await there.jobs.enqueue([request()])
            assert [job.id for job in await asyncio.wait_for(waiting, PATIENCE)] == [pushed.job.id]

    async def test_a_process_that_ends_at_once_is_heard_before_anybody_looks(
        self, postgres_url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The pushing process ends before it learns that another process exists."""
        monkeypatch.setattr(notifier, "HEARTBEAT", 1_000.0)
        here = Service(open_database(postgres_url))
        assert isinstance(here.database, PostgresDatabase)
        ear, hear = here.database._notifier, notifier.PostgresNotifier._hear
        monkeypatch.setattr(
            notifier.PostgresNotifier, "_hear", lambda self, message: self is ear and hear(self, message)
        )
        for _ in range(10):
            waiting = asyncio.create_task(here.jobs.fetch(Claim(("default",)), wait=LONG_WAIT))
            await asyncio.sleep(0.05)
            there = Service(open_database(postgres_url))
            (pushed,) = await there.jobs.enqueue([request()])
            await there.close()
            assert [job.id for job in await asyncio.wait_for(waiting, PATIENCE)] == [pushed.job.id]
        await here.close()

    async def test_a_result_that_is_waited_for_is_heard_of(self, engines: list[Service]) -> None:
        from ojster.jobs.messages import Acknowledgement

        here, there = engines
        (pushed,) = await here.jobs.enqueue([request()])
        waiting = asyncio.create_task(here.jobs.wait_for(pushed.job.id, LONG_WAIT))
        await asyncio.sleep(0.2)
        (job,) = await there.jobs.fetch(Claim(("default",)))
        await there.jobs.acknowledge([Acknowledgement(job.id, b"42")])
        assert (await asyncio.wait_for(waiting, PATIENCE)).result == b"42"

    async def test_a_lost_connection_is_found_again_and_nothing_is_missed(
        self, postgres_url: str, guest: psycopg.Connection
    ) -> None:
        name = f"cut_{os.getpid()}"
        here, there = [Service(open_database(f"{postgres_url}&application_name={name}")) for _ in range(2)]
        for _ in range(5):
            waiting = asyncio.create_task(here.jobs.fetch(Claim(("default",)), wait=LONG_WAIT))
            await until_parked(here.database)
            guest.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = %s",
                (name,),
            )
            guest.commit()
            for attempt in range(20):
                try:
                    (pushed,) = await there.jobs.enqueue([request()])
                    break
                except BackendUnavailable:
                    await asyncio.sleep(0.01 * attempt)
            assert [job.id for job in await asyncio.wait_for(waiting, PATIENCE)] == [pushed.job.id]
        await asyncio.gather(here.close(), there.close())

    async def test_each_job_is_handed_out_once_however_many_ask(self, engines: list[Service]) -> None:
        for _ in range(6):
            await engines[0].jobs.enqueue([request(queue=queue) for queue in ("a", "b") for _ in range(50)])
        held: list[str] = []

        async def ask(service: Service, queues: tuple[str, ...]) -> None:
            while jobs := await service.jobs.fetch(Claim(queues, 7)):
                held.extend(job.id for job in jobs)

        lists = [("a", "b"), ("b", "a"), ("a",), ("b",)]
        await asyncio.gather(*(ask(service, queues) for service in engines for queues in lists for _ in range(3)))
        assert len(held) == len(set(held)) == 600
        counts = await engines[1].jobs.count()
        assert {queue: {s: n for s, n in states.items() if n} for queue, states in counts.items()} == {
            "a": {"active": 300},
            "b": {"active": 300},
        }

    async def test_a_unique_key_is_taken_once_however_many_push(self, engines: list[Service]) -> None:
        members = [request("t", 1, unique={"keys": ["type", "args"], "on_conflict": "reject"}) for _ in range(40)]
        pushes = [engines[n % 2].jobs.enqueue([one]) for n, one in enumerate(members)]
        results = await asyncio.gather(*pushes, return_exceptions=True)
        assert sum(isinstance(result, list) for result in results) == 1
        assert sum(isinstance(result, Duplicate) for result in results) == 39

    async def test_an_id_is_taken_once_however_many_push(self, engines: list[Service]) -> None:
        from ojster.core.ids import new_id

        id = new_id()
        pushes = [engines[n % 2].jobs.enqueue([request(id=id)]) for n in range(20)]
        results = await asyncio.gather(*pushes, return_exceptions=True)
        assert sum(isinstance(result, list) for result in results) == 1
        assert sum(isinstance(result, Duplicate) for result in results) == 19

    async def test_a_cron_job_that_two_register_at_once_is_one(self, engines: list[Service]) -> None:
        cron = Cron(name="c", expression="* * * * *", template=b'{"type": "t", "args": []}')
        registered = await asyncio.gather(*(engines[n % 2].schedules.register(cron) for n in range(10)))
        assert sum(one.is_new for one in registered) == 1

    @pytest.mark.parametrize("by_reaction", [False, True])
    async def test_no_item_outlives_a_collection_that_is_deleted_meanwhile(
        self, postgres_url: str, engines: list[Service], guest: psycopg.Connection, by_reaction: bool
    ) -> None:
        """A guest keeps the transaction that adds the item, by a call or by the reaction of a job, from ending."""
        (adder, deleter), schema = engines, parse_postgres_url(postgres_url).schema
        await adder.collections.create("builds")
        await adder.collections.add(Where("builds"), NewItem("latest", b"1"))
        job = {"type": "t", "args": [], "event_reactions": {"on_success": [COLLECT]}}
        await adder.jobs.enqueue([read_members(msgspec.json.encode(job))])
        (claimed,) = await adder.jobs.fetch(Claim(("default",)))
        guest.execute(f"SELECT 1 FROM {schema}.collection_items FOR UPDATE")
        adding = asyncio.ensure_future(
            adder.jobs.acknowledge([Acknowledgement(claimed.id, b"2")])
            if by_reaction
            else adder.collections.add(Where("builds"), NewItem("latest", b"2", replace=True))
        )
        await until_blocked(postgres_url, 1)
        deleting = asyncio.ensure_future(deleter.collections.delete("builds", force=True))
        await until_blocked(postgres_url, 2)
        guest.rollback()
        await asyncio.gather(adding, deleting)
        assert guest.execute(f"SELECT name FROM {schema}.collection_items").fetchall() == []

    @pytest.mark.needs("advisory-locks")  # with one, the test stops retention in the middle
    async def test_a_workflow_that_is_forked_while_retention_looks_for_workflows_is_kept(
        self, postgres_url: str, engines: list[Service], guest: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Retention sees what was committed when it began to look, and locks rows as they are then."""
        eager = ServiceSettings(retention=ServiceRetention(completed=0))
        cleaner = Service(open_database(postgres_url, eager))
        deletable = workflow_retention._deletable_workflows
        pause = "AND (SELECT pg_advisory_xact_lock(7)) IS NOT NULL"
        monkeypatch.setattr(
            workflow_retention,
            "_deletable_workflows",
            lambda tx: [
                each._replace(condition=f"{each.condition} {pause}")
                for each in deletable(tx)
                if each.parameters.get("state") == "completed"
            ],
        )
        request = {"type": "chain", "steps": [{"type": "t", "args": []}]}
        source = await engines[0].workflows.create(read_members(msgspec.json.encode(request)))
        (job,) = await engines[0].jobs.fetch(Claim(("default",)))
        await engines[0].jobs.acknowledge([Acknowledgement(job.id)])
        guest.execute("SELECT pg_advisory_xact_lock(7)")
        cleaning = asyncio.ensure_future(cleaner.database.run(forget, None))
        await until_blocked(postgres_url, 1)
        fork = await engines[1].workflows.fork(Fork(source.id))
        guest.rollback()
        await cleaning
        assert (await engines[0].workflows.show(fork.id)).forked_from == source.id
        assert (await engines[0].workflows.show(source.id)).state == "completed"
        await cleaner.close()

    async def test_conflicts_are_tried_again(self, engines: list[Service]) -> None:
        tries = 0

        def stumble(tx: Transaction, requests: Sequence[int]) -> list[int]:
            nonlocal tries
            tries += 1
            if tries < 4:
                raise TryAgain("somebody was in the way")
            return list(requests)

        assert await engines[0].database.run(stumble, 7) == 7
        tries = -1000
        with pytest.raises(BackendUnavailable, match="conflicted with others"):
            await engines[0].database.run(stumble, 7)

    async def test_a_deadlock_is_untied(self, engines: list[Service]) -> None:
        await engines[0].jobs.enqueue([request(queue="a"), request(queue="b")])
        both = threading.Barrier(2)

        def lock(tx: Transaction, orders: Sequence[tuple[str, str]]) -> list[str]:
            for first, second in orders:
                tx.execute("SELECT name FROM queues WHERE name = :name FOR UPDATE", {"name": first})
                with contextlib.suppress(threading.BrokenBarrierError):  # on the retry, the other call does not wait
                    both.wait(PATIENCE)
                    both.abort()
                tx.execute("SELECT name FROM queues WHERE name = :name FOR UPDATE", {"name": second})
            return [first for first, _ in orders]

        runs = (engines[0].database.run(lock, ("a", "b")), engines[1].database.run(lock, ("b", "a")))
        assert list(await asyncio.wait_for(asyncio.gather(*runs), PATIENCE)) == ["a", "b"]

    async def test_a_database_that_is_read_only_is_unavailable_at_once(self, postgres_url: str) -> None:
        service = Service(open_database(postgres_url + "&options=-c%20default_transaction_read_only%3Don"))
        calls = [service.jobs.enqueue([request()]) for _ in range(20)]
        results = await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), PATIENCE)
        assert all(isinstance(result, BackendUnavailable) for result in results)
        assert not any("unknown" in str(result) for result in results)
        await service.close()

    async def test_a_number_that_the_database_cannot_hold_is_refused(self, engines: list[Service]) -> None:
        from ojster.fleet.workers import Heartbeat

        with pytest.raises(InvalidRequest, match="A number is out of range"):
            await engines[0].fleet.beat(Heartbeat("w", pid=2**70))


class TestCallersTransactionsThatStayOpen:
    """NoJobsAllowed else waits for them, but who wants the same unique key."""

    @pytest.mark.needs("skip-locked")
    @pytest.mark.needs("advisory-locks")  # without them, two keys may share a lock
    async def test_servers_continue(self, postgres_url: str, engines: list[Service], guest: psycopg.Connection) -> None:
        app = App(postgres_url)

        @app.job("t", queue="new", unique=Unique(keys=["args"]))
        async def t(n: int) -> None: ...

        for n in range(100):
            t.enqueue_in(guest, n)
        held = asyncio.create_task(engines[0].jobs.enqueue([t.request([3], {})]))
        await asyncio.sleep(0.05)
        others = [engines[n % 2].jobs.enqueue([t.request([1000 + n], {})]) for n in range(20)]
        await asyncio.wait_for(asyncio.gather(*others), PATIENCE)
        assert len(await engines[1].jobs.fetch(Claim(("new",), 100))) == 20
        assert not held.done()
        guest.rollback()
        await asyncio.wait_for(held, PATIENCE)
        await app.aclose()

    async def test_their_counts_are_added_up_and_their_queues_are_known(
        self, postgres_url: str, engines: list[Service], guest: psycopg.Connection
    ) -> None:
        app = App(postgres_url)

        @app.job("t", queue="new")
        async def t(n: int) -> None: ...

        for n in range(50):
            t.enqueue_in(guest, n)
            guest.commit()
        assert (await engines[0].jobs.count())["new"] == {"available": 50}
        await engines[0].database.run(run_due, None)
        assert (await engines[0].jobs.count())["new"] == {"available": 50}
        statistics = await engines[1].queues.statistics("new")
        assert (statistics.enqueued, statistics.counts) == (50, {"available": 50})
        schema = parse_postgres_url(postgres_url).schema
        (rows,) = guest.execute(f"SELECT count(*) FROM {schema}.job_count_slots").fetchone() or (0,)
        assert rows == 1
        await app.aclose()

    @pytest.mark.needs("skip-locked")  # without it, the push waits in one try
    async def test_a_push_that_waits_for_one_counts_once_towards_the_rate_of_its_tenant(
        self, postgres_url: str, engines: list[Service], guest: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        tries = []
        lock_keys = transaction.PostgresTransaction.lock_keys

        def counting(tx: transaction.PostgresTransaction, keys: Iterable[str]) -> Set[str]:
            tries.append(held := lock_keys(tx, keys))
            return held

        monkeypatch.setattr(transaction.PostgresTransaction, "lock_keys", counting)
        app = App(postgres_url)

        @app.job("t", unique=Unique(), meta={"tenant_id": "acme"})
        async def t() -> None: ...

        await engines[0].tenants.put("acme", TenantBody(limits=TenantLimitsBody(max_enqueue_rate=THREE_AN_HOUR)))
        t.enqueue_in(guest)
        pushing = asyncio.ensure_future(
            engines[0].jobs.enqueue([request("t", meta={"tenant_id": "acme"}, unique=UNIQUE)])
        )
        async with asyncio.timeout(PATIENCE):
            while sum(map(bool, tries)) < 5 and not pushing.done():
                await asyncio.sleep(0.01)
        guest.rollback()
        (pushed,) = await pushing
        assert not pushed.existing
        (limit,) = [use for use in (await engines[0].jobs.explain(pushed.job.id)).limits if use.kind == "pushes"]
        assert limit.used == 1
        await app.aclose()

    async def test_a_queue_whose_only_job_has_already_ended_is_known_as_well(
        self, postgres_url: str, engines: list[Service], guest: psycopg.Connection
    ) -> None:
        app = App(postgres_url)

        @app.job("t", queue="new")
        async def t() -> None: ...

        t.enqueue_in(guest)
        guest.commit()
        (job,) = await engines[0].jobs.fetch(Claim(("new",)))
        await engines[0].jobs.acknowledge([Acknowledgement(job.id)])
        await engines[0].database.run(run_due, None)
        assert [queue.name for queue in await engines[0].queues.all()] == ["new"]
        await app.aclose()

    @pytest.mark.needs("skip-locked")
    async def test_chores_do_not_spin_on_a_row_that_somebody_holds(
        self, postgres_url: str, engines: list[Service], guest: psycopg.Connection
    ) -> None:
        (pushed,) = await engines[0].jobs.enqueue([request(scheduled_at="+PT0.05S")])
        schema = parse_postgres_url(postgres_url).schema
        guest.execute(f"SELECT 1 FROM {schema}.jobs FOR UPDATE")
        await asyncio.sleep(0.1)
        before = engines[0].database.clock()
        next_due = await engines[0].database.run(run_due, None)
        assert next_due is not None
        assert next_due > before + 50_000
        guest.rollback()
        await engines[0].database.run(run_due, None)
        assert (await engines[0].jobs.find(pushed.job.id)).state == "available"

    async def test_who_waits_for_a_lock_says_where_to_look(
        self,
        engines: list[Service],
        guest: psycopg.Connection,
        postgres_url: str,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        monkeypatch.setattr(pipeline, "DOUBT_SECONDS", 0.001)
        monkeypatch.setattr(reachable, "LOG_SECONDS", 0.0)
        (pushed,) = await engines[0].jobs.enqueue([request()])
        guest.execute(f"SELECT 1 FROM {parse_postgres_url(postgres_url).schema}.jobs FOR UPDATE")
        cancelled = asyncio.create_task(engines[0].jobs.cancel(pushed.job.id))
        await asyncio.to_thread(until, lambda: "`ojster doctor` says who holds it" in caplog.text)
        assert not cancelled.done()
        guest.rollback()
        await asyncio.wait_for(cancelled, PATIENCE)

    async def test_unique_jobs_need_to_see_what_others_have_committed(
        self, postgres_url: str, guest: psycopg.Connection
    ) -> None:
        app = App(postgres_url)

        @app.job("t", unique=Unique(keys=["args"]))
        async def t(n: int) -> None: ...

        guest.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        with pytest.raises(InvalidRequest, match="isolation level"):
            t.enqueue_in(guest, 1)
        await app.aclose()


@pytest.mark.needs("planner-settings")
async def test_a_pooler_in_transaction_mode_keeps_nothing_on_a_connection(postgres_url: str) -> None:
    """The service uses no prepared statements, session settings or LISTEN, which a pooler would lose."""
    service = Service(open_database(postgres_url + "&pooler=transaction"))
    other = Service(open_database(postgres_url))
    waiting = asyncio.create_task(service.jobs.fetch(Claim(("default",)), wait=LONG_WAIT))
    await asyncio.sleep(0.05)
    (pushed,) = await other.jobs.enqueue([request()])
    assert [job.id for job in await asyncio.wait_for(waiting, PATIENCE)] == [pushed.job.id]
    schema = parse_postgres_url(postgres_url).schema

    def look(tx: Transaction, requests: Sequence[None]) -> list[tuple[object, ...]]:
        (row,) = tx.execute("SELECT current_setting('enable_seqscan')")
        names = tx.execute("SELECT count(*) FROM pg_prepared_statements")
        return [(row[0], names[0][0]) for _ in requests]

    assert await service.database.run(look, None) == ("off", 0)
    assert schema in postgres_url
    await service.close()
    await other.close()


async def test_a_server_that_is_stopped_while_the_database_is_away_stops(tmp_path: object) -> None:
    server = PostgresServer(fsync="off")
    server.start()
    try:
        database = open_database(server.url, migrate=True)
        assert isinstance(database, PostgresDatabase)
        service = Service(database)
        await service.jobs.enqueue([request()])
        server.stop("immediate")
        with pytest.raises(BackendUnavailable):
            await service.jobs.enqueue([request()])
        waiting = asyncio.create_task(service.jobs.fetch(Claim(("default",)), wait=0))
        with pytest.raises(BackendUnavailable):
            await waiting
        await asyncio.wait_for(service.close(), PATIENCE)
    finally:
        server.remove()


async def test_the_whole_of_a_push_is_one_transaction(postgres_url: str) -> None:
    """A failed statement rolls back the statements before it, although they were sent together."""
    database = open_database(postgres_url)

    def push_and_fail(tx: Transaction, requests: Sequence[None]) -> list[None]:
        push(tx, [[read_job(request(), tx.now, largest=1_000_000)]])
        tx.execute("SELECT 1 / 0")
        return [None for _ in requests]

    with pytest.raises(InvalidRequest, match="division by zero"):
        await database.run(push_and_fail, None)
    assert await Service(database).jobs.count() == {}
    database.close()


async def test_events_that_were_forgotten_before_anybody_asked_leave_a_gap(
    postgres_url: str, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transaction, "LEAST_EVENT_BATCHES", 1)
    database = open_database(postgres_url, clock=clock)
    database.records_events = True
    service = Service(database)
    await service.jobs.enqueue([request()])
    ((last, _),) = (await service.events.read_on(0)).events
    for _ in range(3):
        await service.jobs.enqueue([request()])
    clock.advance(3600)
    await database.run(forget, None)
    stretch = await service.events.read_on(last)
    assert (len(stretch.events), stretch.is_whole) == (1, False)
    assert (await service.events.read_on(stretch.events[-1][0])).is_whole
    await service.close()


async def test_a_connection_that_is_lost_in_due_work_is_no_failed_maintenance(
    engines: list[Service],
    postgres_url: str,
    guest: psycopg.Connection,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The transaction runs again on another connection, and says nothing of retries in a minute."""
    real, tries = workflow_due._look_after, 0

    def lose_once(tx: Transaction, seq: int) -> None:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise ConnectionLost("the server has gone")
        real(tx, seq)

    monkeypatch.setattr(workflow_due, "_look_after", lose_once)
    wire = b'{"type":"chain","steps":[{"type":"a","args":[]}],"scheduled_at":"+PT1H"}'
    info = await engines[0].workflows.create(read_members(wire))
    with guest.transaction():
        guest.execute(f"UPDATE {parse_postgres_url(postgres_url).schema}.workflows SET due_at = 0")
    await engines[0].database.run(run_due, None)
    assert (tries, (await engines[0].workflows.show(info.id)).state) == (2, "running")
    assert "maintenance of" not in caplog.text
