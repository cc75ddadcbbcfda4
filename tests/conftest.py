"""Fixtures of all tests: a database of each kind, a clock that moves only when advanced, a service, an HTTP client."""

from __future__ import annotations

import asyncio
import atexit
import gc
import os
import shutil
import signal
from collections.abc import AsyncIterator, Generator, Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import httpx
import msgspec
import psycopg
import pytest
from hypothesis import HealthCheck, settings

from ojster.capabilities import all_extensions
from ojster.core.durations import SECOND
from ojster.core.events import EventFilter
from ojster.core.job import Job
from ojster.core.json_objects import Members
from ojster.core.settings import ServiceSettings
from ojster.jobs.extension import install
from ojster.jobs.job_json import to_json
from ojster.schedules.due_work import run_due
from ojster.server.application import Application
from ojster.service import Service
from ojster.storage.call import TransactionFunction
from ojster.storage.database import Database
from ojster.storage.open import open_database
from ojster.storage.postgres.url import parse_postgres_url
from tests.answers import check_all_answers
from tests.cheap import make_cheap
from tests.faithful.spec_answers import RECORDS, SpecAnswers, spec_answers
from tests.kept_connections import kept_connections
from tests.postgres import PostgresServer
from tests.waiting import PATIENCE

if TYPE_CHECKING:
    from tests.workflows.bench import WorkflowBench

A = TypeVar("A")
R = TypeVar("R")

settings.register_profile(
    "here", deadline=None, max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
settings.register_profile("thorough", parent=settings.get_profile("here"), max_examples=2000)
settings.load_profile(os.environ.get("OJSTER_TEST_PROFILE", "here"))

START = 1_800_000_000 * SECOND
"""Time at which the clock of each test starts, in microseconds since the epoch."""


class Clock:
    """A clock, in microseconds, that moves only when `advance` is called."""

    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> int:
        return self.now

    def advance(self, seconds: float) -> None:
        """Advance the clock by ``seconds``."""
        self.now += round(seconds * SECOND)


@pytest.fixture(scope="session", autouse=True)
def every_answer_is_checked() -> Iterator[None]:
    """Check the answers of all servers in this process against the types that their routes declare."""
    with pytest.MonkeyPatch.context() as patch:
        check_all_answers(patch)
        yield


@pytest.fixture(scope="session", autouse=True)
def what_never_differs_is_made_once() -> Iterator[None]:
    """Keep what thousands of tests would make again, and make cheap what none of them is about."""
    with pytest.MonkeyPatch.context() as patch:
        make_cheap(patch)
        yield


@pytest.fixture(scope="session")
def spec_check() -> Iterator[SpecAnswers | None]:
    """Check the answers and events of all servers in this process against the specification, if it is there."""
    with spec_answers() as check:
        yield check


@pytest.fixture(autouse=True)
def answers_follow_the_specification(spec_check: SpecAnswers | None) -> Iterator[None]:
    """Fail if an answer or event of the test breaks a rule of the specification."""
    yield
    if spec_check is not None and (broken := spec_check.unexplained()) and RECORDS not in os.environ:
        pytest.fail("\n".join(sorted(set(broken))))


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def clock() -> Clock:
    return Clock()


SERVER_VARIABLE = "OJSTER_TEST_POSTGRES"
LACKING_VARIABLE = "OJSTER_TEST_LACKS"
"""Abilities that the PostgreSQL of the tests is said to lack: see ``tests.abilities``."""


MEMORY = Path("/dev/shm")
"""A folder in memory, where Linux has one."""

MEMORY_NEEDED = 2 << 30
"""Free memory from which the files of tests are kept there, in bytes."""


def pytest_configure(config: pytest.Config) -> None:
    """Keep the files of tests in memory, let Ctrl-C through, and start one PostgreSQL server for all test processes.

    SQLite forces each transaction to disk: on a disk, half of the tests' time is that wait.
    """
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "logfire-plugin")  # its import takes each process half a second
    if MEMORY.is_dir() and os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free >= MEMORY_NEEDED:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # so a shell starts what it runs in the background
        signal.signal(signal.SIGINT, signal.default_int_handler)  # else the commands that tests start ignore it, too
    if not hasattr(config, "workerinput") and SERVER_VARIABLE not in os.environ:
        server = PostgresServer(fsync="off")
        server.start()
        os.environ[SERVER_VARIABLE] = server.url
        config.add_cleanup(server.remove)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Look for garbage after the collection, not during it, and never again among what it has made: all of it stays.

    Garbage of tests is rare: what is young is looked at less often than by default.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(10_000, 20, 20)
        gc.enable()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make a test for each kind of database, and none that the run would deselect: to collect them costs seconds.

    HTTP tests leave out databases in memory and serializable ones: the tests of the service cover these. Commands, HTTP
    requests and processes are tried on PostgreSQL in thorough runs alone: they make the same calls there, and the
    tests of the service run on it each time.
    """
    over_http = not CALLERS_OVER_HTTP.isdisjoint(metafunc.fixturenames)
    is_outer = over_http or metafunc.definition.path.name.endswith(OUTER)
    is_quick = "not thorough" in metafunc.config.getoption("markexpr")
    for fixture, kinds in KINDS.items():
        if fixture in metafunc.fixturenames:
            later = LATER | {"postgres"} if is_outer else LATER
            chosen = [
                pytest.param(kind, marks=[pytest.mark.thorough] if kind in later else [])
                for kind in kinds
                if not ((over_http and kind in LATER) or (is_quick and kind in later))
            ]
            metafunc.parametrize(fixture, chosen)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests that need an ability which the PostgreSQL of this run lacks, and leave some to thorough runs.

    Those are tests that reach a server before PostgreSQL by a parameter, as ``pytest_generate_tests`` says of others,
    and those that start a browser or a PostgreSQL cluster of their own: each costs as much as a hundred others.
    """
    for item in items:
        parameters = getattr(item, "callspec", None)
        chosen = {value for value in parameters.params.values() if isinstance(value, str)} if parameters else set()
        by_parameter = "postgres" in chosen and not CALLERS_BY_PARAMETER.isdisjoint(chosen)
        if by_parameter or not COSTLY.isdisjoint(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.thorough)
    for needed in filter(None, os.environ.get(LACKING_VARIABLE, "").split(",")):
        for item in items:
            if needed in {name for mark in item.iter_markers("needs") for name in mark.args}:
                item.add_marker(pytest.mark.skip(f"{needed} is lacking"))


KINDS: Final = {
    "url_kind": ("file", "postgres", "memory", "serializable"),
    "shared_url_kind": ("file", "postgres"),
}
"""Kinds of databases on which a test runs, by the fixture that it uses."""

LATER: Final = frozenset(("memory", "serializable"))
"""Kinds of databases that only thorough runs try."""

COSTLY: Final = frozenset(("primary", "chromium"))
"""Fixtures that start a PostgreSQL cluster or a browser."""

CALLERS_OVER_HTTP: Final = frozenset(("http", "door", "browser"))
"""Fixtures whose tests make HTTP requests."""

CALLERS_BY_PARAMETER: Final = frozenset(("http", "server"))
"""Parameters of tests that make the same calls in the process and over HTTP."""

OUTER: Final = (
    "_commands.py",
    "_over_http.py",
    "test_backup_heartbeat.py",
    "test_code.py",
    "test_ends_of_handlers.py",
    "test_forks.py",
    "test_node_workflow.py",
    "test_processes.py",
    "test_signals.py",
)
"""Ends of the names of files with tests of commands, processes, sandboxes, threads of workers and HTTP requests."""


def url_of_schema(name: str) -> str:
    """Return the URL of a PostgreSQL schema, which may not exist; it lacks what all the others lack."""
    lacking = os.environ.get(LACKING_VARIABLE)
    return f"{os.environ[SERVER_VARIABLE]}&schema={name}" + (f"&lacks={lacking}" if lacking else "")


@pytest.fixture(scope="session")
def postgres_tables(worker_id: str) -> Iterator[str]:
    """The URL of a PostgreSQL schema with all tables, one per test process."""
    url = url_of_schema(f"tests_{worker_id}")
    open_database(url, migrate=True).close()
    with kept_connections(parse_postgres_url(url)):
        yield url


@pytest.fixture
def postgres_url(postgres_tables: str) -> str:
    """The URL of a PostgreSQL database with empty tables."""
    empty(postgres_tables)
    return postgres_tables


def empty(postgres_url: str) -> None:
    """Delete all rows of a PostgreSQL database."""
    _sweeper(postgres_url).execute(b"SELECT pg_temp.delete_all()")


@cache
def _sweeper(postgres_url: str) -> psycopg.Connection:
    """Return a cached connection with a function that deletes all rows: its plans are made once."""
    parsed = parse_postgres_url(postgres_url)
    connection = psycopg.connect(parsed.conninfo, autocommit=True, options=f"-c search_path={parsed.schema}")
    atexit.register(connection.close)
    tables = connection.execute(
        "SELECT tablename FROM pg_tables WHERE schemaname = %s AND tablename NOT IN ('migrations', 'key_locks')",
        (parsed.schema,),
    ).fetchall()
    deletions = " ".join(f"DELETE FROM {table};" for (table,) in tables)
    connection.execute(
        f"CREATE FUNCTION pg_temp.delete_all() RETURNS void LANGUAGE plpgsql AS $$ BEGIN {deletions} END $$".encode()
    )
    return connection


@pytest.fixture(scope="session")
def file_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SQLite file with empty tables: copying it is faster than creating one."""
    path = tmp_path_factory.mktemp("template") / "jobs.db"
    open_database(f"sqlite:///{path}").close()
    return path


@pytest.fixture
def file_url(file_template: Path, tmp_path: Path) -> str:
    """The URL of a SQLite file with empty tables."""
    return f"sqlite:///{shutil.copy(file_template, tmp_path / 'jobs.db')}"


@pytest.fixture
def url(url_kind: str, request: pytest.FixtureRequest) -> str:
    """The URL of a database of each kind: service tests run on all, two of them only in thorough runs."""
    match url_kind:
        case "file":
            return str(request.getfixturevalue("file_url"))
        case "memory":
            return "sqlite:///:memory:"
        case "serializable":
            return f"{request.getfixturevalue('postgres_url')}&isolation=serializable"
        case _:
            return str(request.getfixturevalue("postgres_url"))


@pytest.fixture
def shared_url(shared_url_kind: str, request: pytest.FixtureRequest) -> str:
    """The URL of a database of each kind that several processes can share."""
    return str(request.getfixturevalue(f"{shared_url_kind}_url"))


@pytest.fixture
def engine_settings() -> ServiceSettings:
    return ServiceSettings()


@pytest.fixture
def database(url: str, clock: Clock, engine_settings: ServiceSettings) -> Iterator[Database]:
    opened = open_database(url, engine_settings, clock)
    install(opened.memory, all_extensions())
    opened.records_events = True
    yield opened
    opened.close()


@pytest.fixture
async def service(database: Database) -> AsyncIterator[Service]:
    """A service without maintenance tasks: tests run them with ``Bench.run_due``."""
    made = Service(database)
    yield made
    await made.maintenance.stop()


async def until_parked(database: Database, count: int = 1) -> None:
    """Wait until so many calls have found nothing and wait for jobs."""
    parked = database._writer._parked
    async with asyncio.timeout(PATIENCE):
        while len({call for calls in [*parked._calls.values()] for call in [*calls]}) < count:
            await asyncio.sleep(0.001)


class Bench:
    """A service with shortcuts for tests."""

    def __init__(self, service: Service, clock: Clock) -> None:
        self.service = service
        self.clock = clock

    async def run(self, operation: TransactionFunction[A, R], argument: A) -> R:
        return await self.service.database.run(operation, argument)

    async def push(self, type: str = "test.job", *args: Any, **options: Any) -> Job:
        """Push one job; keywords are its options."""
        (pushed,) = await self.service.jobs.enqueue([request(type, *args, **options)])
        return pushed.job

    async def fetch(self, *queues: str, count: int = 1, **more: Any) -> list[Job]:
        from ojster.jobs.claim_policy import Claim

        return await self.service.jobs.fetch(Claim(queues or ("default",), count, **more))

    async def fetch_one(self, *queues: str, **more: Any) -> Job:
        (job,) = await self.fetch(*queues, **more)
        return job

    async def ack(self, job: Job, result: bytes | None = None) -> Job:
        from ojster.jobs.messages import Acknowledgement
        from ojster.jobs.scope import accepted

        (done,) = await self.service.jobs.acknowledge([Acknowledgement(job.id, result, job.worker_id, job.attempt)])
        return accepted(done)

    async def fail(
        self, job: Job, type: str = "SomeError", code: str = "handler_error", message: str = "it failed", **more: Any
    ) -> Job:
        from ojster.jobs.failure import Failure
        from ojster.jobs.messages import FailureReport
        from ojster.jobs.scope import accepted

        report = FailureReport(job.id, Failure(type, message, code, **more), job.worker_id, job.attempt)
        (done,) = await self.service.jobs.fail([report])
        return accepted(done)

    async def find(self, job: Job | str) -> Job:
        return await self.service.jobs.find(job if isinstance(job, str) else job.id)

    async def run_due(self, after: float = 0.0) -> int | None:
        """Advance the clock by ``after`` seconds (default 0), then run due maintenance once."""
        self.clock.advance(after)
        return await self.service.database.run(run_due, None)

    async def run_all_due(self) -> int:
        """Run due maintenance until nothing is due any more; return the number of transactions."""
        rounds = 1
        while (due := await self.run_due()) is not None and due <= self.clock.now:
            rounds += 1
        return rounds

    async def until_parked(self, count: int = 1) -> None:
        """Wait until so many fetches have found nothing and wait for jobs."""
        await until_parked(self.service.database, count)

    async def events(self) -> list[str]:
        page = await self.service.events.select(EventFilter(limit=10_000))
        return [event["type"] for event in page.events]


@pytest.fixture
def bench(service: Service, clock: Clock) -> Bench:
    return Bench(service, clock)


def request(type: str = "test.job", *args: Any, **options: Any) -> Members:
    """Return an enqueue request; keywords are its options, except ``id`` and ``meta``, which are top-level members."""
    body: dict[str, Any] = {"type": type, "args": list(args)}
    for name in ("id", "meta"):
        if name in options:
            body[name] = options.pop(name)
    if options:
        body["options"] = options
    return {name: msgspec.Raw(msgspec.json.encode(value)) for name, value in body.items()}


def shown(job: Job) -> dict[str, Any]:
    """Return the decoded JSON of a job."""
    decoded: dict[str, Any] = msgspec.json.decode(to_json(job))
    return decoded


MEDIA_TYPE = "application/openjobspec+json"


class Http:
    """An HTTP client of the application."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self.client = client

    async def __call__(self, method: str, path: str, body: Any = None, **more: Any) -> httpx.Response:
        if body is not None and not isinstance(body, bytes):
            more["json"] = body
        elif body is not None:
            more["content"] = body
        headers = {"Content-Type": MEDIA_TYPE} | more.pop("headers", {})
        return await self.client.request(method, path, headers=headers, **more)

    async def push(self, **body: Any) -> dict[str, Any]:
        response = await self("POST", "/ojs/v1/jobs", {"type": "test.job", "args": []} | body)
        assert response.status_code == 201, response.text
        job: dict[str, Any] = response.json()["job"]
        return job

    async def fetch(self, *queues: str, **more: Any) -> list[dict[str, Any]]:
        response = await self("POST", "/ojs/v1/workers/fetch", {"queues": queues or ["default"]} | more)
        assert response.status_code == 200, response.text
        jobs: list[dict[str, Any]] = response.json()["jobs"]
        return jobs


@pytest.fixture
async def http(service: Service) -> AsyncIterator[Http]:
    transport = httpx.ASGITransport(app=Application(service, max_body_bytes=200_000))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        yield Http(client)


@pytest.fixture
def flow(service: Service, clock: Clock) -> WorkflowBench:
    from tests.workflows.bench import WorkflowBench

    return WorkflowBench(service, clock)
