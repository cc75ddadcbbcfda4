"""PostgreSQL without some of its abilities: see also ``tests.abilities``, which runs other tests without them."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from ojster.core.errors import Duplicate, InvalidRequest
from ojster.jobs.claim_policy import Claim
from ojster.jobs.topics import worker_topic
from ojster.service import Service
from ojster.storage.migrations import scripts
from ojster.storage.open import migrate_database, open_database
from ojster.storage.postgres import notifier
from ojster.storage.postgres.abilities import ABILITIES, lacked_by, migration_without, slots_of, without
from ojster.storage.postgres.url import parse_postgres_url
from tests.abilities import USES
from tests.conftest import LACKING_VARIABLE, SERVER_VARIABLE, request
from tests.waiting import LONG_WAIT

pytestmark = pytest.mark.anyio

EVERYTHING = frozenset(ABILITIES)


@pytest.fixture(params=[(), ABILITIES])
def lacking_url(request: pytest.FixtureRequest, postgres_url: str) -> str:
    """The URL of a database with all abilities, and with none."""
    if os.environ.get(LACKING_VARIABLE) and not request.param:
        pytest.skip("the database of the tests lacks something")
    return f"{postgres_url}&lacks={','.join(request.param)}"


@pytest.fixture
async def services(lacking_url: str) -> AsyncIterator[list[Service]]:
    """Two processes' worth of engines on one database."""
    made = [Service(open_database(lacking_url)) for _ in range(2)]
    yield made
    for one in made:
        await one.close()


def test_each_ability_can_be_recognized() -> None:
    assert set(USES) == EVERYTHING


def test_an_unknown_ability_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="listening"):
        parse_postgres_url("postgresql://h/d?lacks=notifications,listening")


@pytest.mark.parametrize(
    ("version", "lacks"),
    [
        ("PostgreSQL 17.2 on x86_64-pc-linux-gnu, compiled by gcc", frozenset()),
        ("CockroachDB CCL v24.3.1 (x86_64-pc-linux-gnu, built 2024/12/02)", EVERYTHING - {"skip-locked"}),
        (
            "PostgreSQL 15.12-YB-2.25.2.0-b0 on x86_64-pc-linux-gnu",
            {"advisory-locks", "notifications", "unlogged-tables", "storage-parameters"},
        ),
    ],
)
def test_databases_are_known_by_their_version(version: str, lacks: frozenset[str]) -> None:
    assert lacked_by(version) == lacks


def test_what_is_lacking_is_left_out_of_migrations_and_statements() -> None:
    for script in scripts("postgres"):
        code = re.sub(r"--.*", "", migration_without(script, EVERYTHING))
        for name in ("unlogged-tables", "storage-parameters"):
            assert not re.search(USES[name], code), code
        assert migration_without(script, frozenset()) == script
    assert without("SELECT 1 FROM jobs FOR UPDATE OF j SKIP LOCKED", EVERYTHING) == "SELECT 1 FROM jobs FOR UPDATE OF j"


def columns_of(connection: psycopg.Connection, schema: str) -> list[tuple[object, ...]]:
    return connection.execute(
        "SELECT table_name, column_name, data_type, is_nullable, column_default IS NULL "
        "FROM information_schema.columns WHERE table_schema = %s ORDER BY 1, 2",
        (schema,),
    ).fetchall()


def indexes_of(connection: psycopg.Connection, schema: str) -> list[str]:
    rows = connection.execute("SELECT indexdef FROM pg_indexes WHERE schemaname = %s", (schema,)).fetchall()
    return sorted(re.sub(r" WITH \(.*?\)", "", row[0]).replace(schema, "") for row in rows)


@pytest.fixture
def schemas() -> Iterator[tuple[str, str]]:
    names = (f"able_{os.getpid()}", f"unable_{os.getpid()}")
    yield names
    with psycopg.connect(os.environ[SERVER_VARIABLE], autocommit=True) as connection:
        for name in names:
            connection.execute(f'DROP SCHEMA IF EXISTS "{name}" CASCADE'.encode())


@pytest.mark.needs(*ABILITIES)
def test_the_tables_are_the_same_without_any_ability_also_if_many_processes_make_them(schemas: tuple[str, str]) -> None:
    able, unable = schemas
    server = os.environ[SERVER_VARIABLE]
    migrate_database(f"{server}&schema={able}")
    with ThreadPoolExecutor(4) as pool:
        url = f"{server}&schema={unable}&lacks={','.join(ABILITIES)}"
        assert len(set(pool.map(migrate_database, [url] * 4))) == 1
    with psycopg.connect(server) as connection:
        assert columns_of(connection, able) == columns_of(connection, unable)
        assert indexes_of(connection, able) == indexes_of(connection, unable)
        unlogged = "SELECT relname FROM pg_class WHERE relpersistence = 'u' AND relnamespace = %s::regnamespace"
        assert not connection.execute(unlogged, (unable,)).fetchall()


async def test_unique_jobs_are_unique(services: list[Service]) -> None:
    """Docs: databases.md."""
    options = {"unique": {"key": ["type"], "on_conflict": "reject"}}

    async def push(service: Service) -> bool:
        try:
            await service.jobs.enqueue([request("t", **options)])
        except Duplicate:
            return False
        return True

    pushed = await asyncio.gather(*[push(service) for service in services for _ in range(20)])
    assert pushed.count(True) == 1


async def test_a_waiting_worker_gets_a_job_of_another_process(services: list[Service]) -> None:
    here, there = services
    waiting = asyncio.create_task(there.jobs.fetch(Claim(("default",), 1, "w"), wait=LONG_WAIT))
    await asyncio.sleep(0)
    (pushed,) = await here.jobs.enqueue([request()])
    assert [job.id for job in await waiting] == [pushed.job.id]


async def test_each_job_is_handed_out_once(services: list[Service]) -> None:
    pushed = await services[0].jobs.enqueue([request() for _ in range(200)])

    async def take(service: Service, name: str) -> list[str]:
        ids: list[str] = []
        while jobs := await service.jobs.fetch(Claim(("default",), 7, name)):
            ids += [job.id for job in jobs]
        return ids

    taken = await asyncio.gather(*[take(service, f"w{number}") for service in services for number in range(4)])
    ids = [id for some in taken for id in some]
    assert sorted(ids) == sorted(one.job.id for one in pushed)


def test_keys_that_share_a_row_are_few() -> None:
    slots = slots_of(f"key {number}" for number in range(1000))
    assert len(set(slots.values())) > 800


def ignore(*_: object) -> None:
    return


def connect_nowhere() -> psycopg.Connection:
    raise psycopg.OperationalError


def test_only_work_makes_a_process_look_for_more_work_soon() -> None:
    """A worker that is idle sends heartbeats, too."""
    made = notifier.PostgresNotifier(
        connect_nowhere, "channel", ignore, ignore, ignore, ignore, lambda: False, listens=False
    )
    made._interval = notifier.MAX_POLL_SECONDS
    made.ring(["due:1", worker_topic("w"), "configured"])
    assert made._interval == notifier.MAX_POLL_SECONDS
    for topic in ("queue:default", "job:1", "workflow:1", "workflows", "finished"):
        made._interval = notifier.MAX_POLL_SECONDS
        made.ring([topic])
        assert made._interval == notifier.FIRST_POLL_SECONDS, topic
