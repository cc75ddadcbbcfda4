"""Every option of applications and workers, and every environment variable, has an effect.

A scene ends in one way with the default, and in another with another value. An option without a scene fails.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import pytest
from click.testing import CliRunner

from ojster import App, Gzip, Settings, Sharing, Worker
from ojster.cli.main import cli
from ojster.cli.serve import serve
from ojster.core.declared_options import options_of
from ojster.core.durations import SECOND
from ojster.core.environment import VARIABLES
from ojster.core.errors import BackendUnavailable, OjsterError
from ojster.core.ids import new_id
from ojster.core.job import Job
from ojster.files.file import NewFile
from ojster.jobs.code import CODE_TYPE
from ojster.jobs.filter_walk import JobFilter
from ojster.sandbox.sandbox import Sandbox
from ojster.storage.postgres.database import listen_conninfo
from ojster.storage.postgres.url import parse_postgres_url
from ojster.worker.local_queue import LocalQueue
from ojster.worker.worker import DEFAULT_GRACE
from tests.conftest import url_of_schema
from tests.postgres import free_port
from tests.server.test_tls import Authority
from tests.waiting import PATIENCE
from tests.worker import handlers

pytestmark = pytest.mark.anyio


class Effect(NamedTuple):
    """Another value of an option, a scene, and what is seen at its end with the default and with that value.

    In a text, ``{folder}`` stands for the folder of the test.
    """

    value: Any
    scene: Callable[..., Awaitable[Any]]
    by_default: Any
    otherwise: Any


@pytest.fixture(autouse=True)
def no_variable_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def put(value: Any, folder: Path) -> Any:
    """Return a value with the name of the folder in it."""
    if isinstance(value, Path):
        return folder / value
    return value.format(folder=folder) if isinstance(value, str) else value


def clear(folder: Path) -> None:
    """Remove what a scene has left."""
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


# Applications

REFUSAL: Final = msgspec.json.encode({"error": {"code": "not_found", "message": "no", "retryable": False}})
ANSWER: Final = (
    b"HTTP/1.1 404 Not Found\r\nContent-Type: application/openjobspec+json\r\nConnection: close\r\n"
    b"Content-Length: %d\r\n\r\n%b" % (len(REFUSAL), REFUSAL)
)


async def request_of(tls: ssl.SSLContext | None = None, **options: Any) -> str:
    """Return the head of a request that an application makes to a server; the empty string: it cannot make one."""
    heads = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, OSError):
            heads.append((await reader.readuntil(b"\r\n\r\n")).decode().lower())
            writer.write(ANSWER)
            await writer.drain()
        writer.close()

    port = free_port()
    async with (
        await asyncio.start_server(answer, "127.0.0.1", port, ssl=tls),
        App(f"http{'s' * (tls is not None)}://localhost:{port}", **options) as app,
    ):
        with suppress(OjsterError):
            client = app.client()
            client._connection.patience = 0.0  # type: ignore[attr-defined]
            await client.jobs.find(new_id())
    return "".join(heads)


async def files_of(**options: Any) -> list[str]:
    """Return which databases an application has made."""
    async with App(**options) as app:
        app.service()
    return sorted(path.name for path in Path().glob("*.db"))


async def state_without_a_worker(**options: Any) -> str:
    async with App("sqlite:///jobs.db", **options) as app:
        return (await (await app.job("echo")(_echo).aenqueue("x")).arefresh()).state


async def large_job(**options: Any) -> str | None:
    async with App("sqlite:///jobs.db", **options) as app:
        try:
            await app.job("echo")(_echo).aenqueue("x" * 3_000)
        except OjsterError as error:
            return error.code
    return None


async def durability(**options: Any) -> Any:
    """Return what SQLite waits for at the end of a transaction: 2 is FULL, 1 NORMAL."""
    async with App("sqlite:///jobs.db", **options) as app:
        database = app.service().database
        return database._lanes[0].run(  # type: ignore[attr-defined]
            lambda connection: connection.execute("PRAGMA synchronous").fetchall()
        )


async def new_schema(**options: Any) -> str:
    """Open a schema of PostgreSQL without tables."""
    async with App(url_of_schema("effects_of_options"), **options) as app:
        try:
            database = app.service().database
        except BackendUnavailable:
            return "refused"
        await database.run(_drop, None)
    return "migrated"


def _drop(tx: Any, requests: Any) -> list[None]:
    tx.execute("DROP SCHEMA effects_of_options CASCADE")
    return [None for _ in requests]


def header(name: str) -> Callable[..., Awaitable[bool]]:
    """Return a scene: whether a request has a header."""

    async def scene(**options: Any) -> bool:
        return f"\r\n{name}: " in await request_of(**options)

    return scene


async def stored_arguments(**options: Any) -> bool:
    """Return whether the database has the arguments as they were given."""
    async with App("sqlite:///jobs.db", **options) as app:
        handle = await app.job("echo")(_echo).aenqueue("hello")
        return (await app.client().jobs.find(handle.id)).args == ["hello"]


def _echo(value: Any) -> Any:
    return value


async def tenant_of_a_job(**options: Any) -> str:
    async with App("sqlite:///jobs.db", **options) as app:
        handle = await app.job("echo")(_echo).aenqueue("hello")
        return (await app.client().jobs.find(handle.id)).tenant


async def place_of_a_file(**options: Any) -> bool:
    """Return whether a file is kept in the folder ``store``."""
    async with App("sqlite:///jobs.db", **options) as app:
        await app.service().files.keep(b"x" * 1_000, NewFile())
    return any(path.is_file() for path in Path("store").rglob("*"))


APP: Final[dict[str, Effect]] = {
    "url": Effect("sqlite:///{folder}/other.db", files_of, ["ojster.db"], ["other.db"]),
    "settings": Effect(Settings(largest_job=2_000), large_job, None, "payload_too_large"),
    "synchronous": Effect("NORMAL", durability, [(2,)], [(1,)]),
    "migrate": Effect(True, new_schema, "refused", "migrated"),
    "headers": Effect({"X-Trace": "1"}, header("x-trace"), False, True),
    "token": Effect("secret", header("authorization"), False, True),
    "codecs": Effect([Gzip()], stored_arguments, True, False),
    "tenant": Effect("acme", tenant_of_a_job, "", "acme"),
    "files": Effect("{folder}/store", place_of_a_file, False, True),
    "eager": Effect(True, state_without_a_worker, "available", "completed"),
}
"""The scene of each option of an application."""


# Workers


@asynccontextmanager
async def application() -> AsyncIterator[App]:
    async with App("sqlite:///:memory:") as app:
        yield app


async def run(app: App, **options: Any) -> Worker:
    """Run all jobs that a worker with these options gets."""
    worker = Worker(app, **options)
    async with asyncio.timeout(PATIENCE):
        await worker.run(until_empty=True)
    return worker


async def active(app: App) -> Sequence[Job]:
    """Return the jobs that workers have."""
    return (await app.client().jobs.select(JobFilter(states=("active",)))).jobs


async def job_of_another_queue(**options: Any) -> str:
    async with application() as app:
        handle = await app.job("echo")(_echo).using(queue="mail").aenqueue(1)
        await run(app, **options)
        return (await handle.arefresh()).state


async def at_once(**options: Any) -> bool:
    """Return whether several jobs have run at once."""
    running, most = 0, 0

    async def count() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        for _ in range(20):
            await asyncio.sleep(0)
        running -= 1

    async with application() as app:
        counted = app.job("count")(count)
        for _ in range(3):
            await counted.aenqueue()
        await run(app, **options)
    return most > 1


async def stop_of_a_long_job(**options: Any) -> str:
    """Stop a worker while a job runs, which then ends soon if it has time to."""
    begun = asyncio.Event()
    free = asyncio.get_running_loop().create_future()

    async def wait() -> None:
        begun.set()
        await asyncio.wait({free}, timeout=DEFAULT_GRACE / 2)

    async with application() as app:
        handle = await app.job("wait")(wait).aenqueue()
        worker = Worker(app, **options)
        running = asyncio.create_task(worker.run())
        async with asyncio.timeout(PATIENCE):
            await begun.wait()
        worker.stop()
        if worker.grace:
            free.set_result(None)
        await running
        return (await handle.arefresh()).state


async def seen_in_a_job(see: Callable[[App], Awaitable[Any]], **options: Any) -> Any:
    """Return what a handler sees of its application."""
    seen: list[Any] = []
    async with application() as app:

        async def look() -> None:
            seen.append(await see(app))

        await app.job("look", retry=1)(look).aenqueue()
        await run(app, **options)
    return seen[0]


async def length_of_a_lease(**options: Any) -> Any:
    async def see(app: App) -> int:
        (job,) = await active(app)
        assert job.due_at is not None
        assert job.started_at is not None
        return round((job.due_at - job.started_at) / SECOND)

    return await seen_in_a_job(see, **options)


def shown(attribute: str) -> Callable[..., Awaitable[Any]]:
    """Return a scene: what operators see of a worker."""

    async def scene(**options: Any) -> Any:
        async def see(app: App) -> Any:
            (worker,) = await app.client().fleet.all()
            return getattr(worker, attribute)

        return await seen_in_a_job(see, **options)

    return scene


async def order(**options: Any) -> str:
    """Return from which queues four jobs of two queues were taken, one at a time."""
    taken: list[str] = []
    async with application() as app:
        note = app.job("note")(taken.append)
        for queue in "aabb":
            await note.using(queue=queue).aenqueue(queue)
        await run(app, queues=["a", "b"], concurrency=1, prefetch=0, **options)
    return "".join(taken)


async def job_with_a_requirement(**options: Any) -> str:
    async with application() as app:
        handle = await app.job("echo")(_echo).using(resources={"gpu_count": 1}).aenqueue(1)
        await run(app, **options)
        return (await handle.arefresh()).state


async def types_of_a_worker(**options: Any) -> bool:
    """Return whether a worker gets jobs that carry code."""
    async with application() as app:
        app.job("echo")(_echo)
        return CODE_TYPE in Worker(app, **options).job_types


async def two_workers(**options: Any) -> bool:
    """Return whether a worker has the id of the one that ran before."""
    async with application() as app:
        app.job("echo")(_echo)
        return (await run(app, **options)).id == (await run(app, **options)).id


async def process_of_a_job(**options: Any) -> bool:
    """Return whether a handler with ``process=True`` runs in a process of its own."""
    handlers.app.url = "sqlite:///:memory:"
    async with handlers.app:  # its module can be imported
        handle = await handlers.process_pid.using(retry=1).aenqueue()
        await run(handlers.app, queues=["default"], **options)
        return await handle.aresult() != os.getpid()


async def held_jobs(**options: Any) -> bool:
    """Run jobs one at a time, a millisecond each: return whether the worker has ever more than the one that runs."""
    numbers: list[int] = []
    async with application() as app:

        async def count() -> None:
            numbers.append(len(await active(app)))

        counted = app.job("count", retry=1)(count)
        for _ in range(100):
            await counted.aenqueue()
        with pytest.MonkeyPatch.context() as patch:
            queue = partial(LocalQueue, clock=lambda: len(numbers) / 1000)
            patch.setattr("ojster.worker.worker.LocalQueue", queue)
            await run(app, concurrency=1, **options)
    return max(numbers) > 1


WORKER: Final[dict[str, Effect]] = {
    "queues": Effect(["mail"], job_of_another_queue, "available", "completed"),
    "concurrency": Effect(1, at_once, True, False),
    "grace": Effect(0, stop_of_a_long_job, "completed", "available"),
    "lease": Effect(300, length_of_a_lease, 30, 300),
    "labels": Effect(["eu"], shown("labels"), [], ["eu"]),
    "sharing": Effect(Sharing("round-robin"), order, "aabb", "abab"),
    "pool": Effect("p", shown("pool"), None, "p"),
    "capabilities": Effect({"gpu": {"count": 1}}, job_with_a_requirement, "available", "completed"),
    "code": Effect(Sandbox(), types_of_a_worker, False, True),
    "identity": Effect(Path("identity"), two_workers, False, True),
    "children": Effect(None, process_of_a_job, True, False),
    "prefetch": Effect(0, held_jobs, True, False),
}
"""The scene of each option of a worker."""


# Environment variables


def option(name: str, *more: str) -> Callable[..., Awaitable[Any]]:
    """Return a scene: the option of a server that a variable sets; ``test_options_of_commands.py`` shows its effect."""

    async def scene() -> Any:
        return str(serve.make_context("serve", list(more)).params[name])

    return scene


async def wakeups() -> bool:
    """Return whether a process behind a pooler listens to a database without it."""
    url = parse_postgres_url("postgresql://jobs@pooler.test/jobs?pooler=transaction")
    return "host=db.test" in (listen_conninfo(url) or "")


async def secret_of_a_webhook() -> bool:
    command = ("channels", "webhook", "chat", "https://chat.example.com/hook", "--url", "sqlite:///jobs.db")
    done = await asyncio.to_thread(CliRunner().invoke, cli, command)
    assert done.exit_code == 0, done.output
    return done.output.strip() == SECRET


async def secret_of_an_endpoint() -> bool:
    command = ("endpoints", "set", "fn", "https://fn.functions.example/", "--url", "sqlite:///jobs.db")
    done = await asyncio.to_thread(CliRunner().invoke, cli, command)
    assert done.exit_code == 0, done.output
    return done.output.strip() == SECRET


SECRET: Final = "whsec_" + "c2VjcmV0" * 6

ENVIRONMENT: Final[dict[str, Effect]] = {
    "OJSTER_DATABASE_URL": Effect("sqlite:///{folder}/other.db", files_of, ["ojster.db"], ["other.db"]),
    "OJSTER_LISTEN_URL": Effect("postgresql://jobs@db.test/jobs", wakeups, False, True),
    "OJSTER_EAGER": Effect("1", state_without_a_worker, "available", "completed"),
    "OJSTER_MIGRATE": Effect("1", option("migrate"), "False", "True"),
    "OJSTER_FILES": Effect("{folder}/store", place_of_a_file, False, True),
    "OJSTER_TENANT_FILE": Effect("tenants.json", option("tenant_file"), "None", "tenants.json"),
    "OJSTER_TRIGGER_FILE": Effect("triggers.json", option("trigger_file"), "None", "triggers.json"),
    "OJSTER_SMTP": Effect("smtp://mail.test", option("smtp"), "None", "smtp://mail.test"),
    "OJSTER_OIDC_CLIENT_SECRET": Effect("secret", option("oidc_client_secret"), "None", "secret"),
    "OJSTER_TOKEN": Effect("secret", header("authorization"), False, True),
    "OJSTER_PUSH_SECRET": Effect(SECRET, secret_of_an_endpoint, False, True),
    "OJSTER_CHANNEL_SECRET": Effect(SECRET, secret_of_a_webhook, False, True),
}
"""The scene of each variable but those of TLS, which need each other."""

TLS: Final = ("OJSTER_TLS_CA", "OJSTER_TLS_CERT", "OJSTER_TLS_KEY")


# The tables


def test_each_option_and_each_variable_has_a_scene() -> None:
    assert APP.keys() == options_of(App.__init__).keys()
    assert WORKER.keys() | {"app"} == options_of(Worker.__init__).keys()
    assert ENVIRONMENT.keys() | set(TLS) == VARIABLES.keys()
    for effect in (*APP.values(), *WORKER.values(), *ENVIRONMENT.values()):
        assert effect.by_default != effect.otherwise


@pytest.mark.usefixtures("postgres_tables")
@pytest.mark.parametrize("name", APP)
async def test_an_option_of_an_application_has_an_effect(name: str, folder: Path) -> None:
    effect = APP[name]
    assert await effect.scene(**{name: put(effect.value, folder)}) == effect.otherwise
    clear(folder)
    assert await effect.scene() == effect.by_default


@pytest.mark.parametrize("name", WORKER)
async def test_an_option_of_a_worker_has_an_effect(name: str, tmp_path: Path) -> None:
    effect = WORKER[name]
    assert await effect.scene() == effect.by_default
    assert await effect.scene(**{name: put(effect.value, tmp_path)}) == effect.otherwise


@pytest.mark.parametrize("name", ENVIRONMENT)
async def test_a_variable_has_an_effect(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    effect = ENVIRONMENT[name]
    for file in ("tenants.json", "triggers.json"):
        (folder / file).write_text("{}")
    with monkeypatch.context() as patch:
        patch.setenv(name, put(effect.value, folder))
        assert await effect.scene() == effect.otherwise
    clear(folder)
    assert await effect.scene() == effect.by_default


async def test_each_variable_of_tls_has_an_effect(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority = Authority(folder, "ours")
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=authority.path)
    server.load_cert_chain(*authority.issue("server"))
    server.verify_mode = ssl.CERT_REQUIRED
    certificate, key = authority.issue("client")
    for name, path in zip(TLS, (authority.path, certificate, key), strict=True):
        assert not await request_of(server)
        monkeypatch.setenv(name, str(path))
    assert await request_of(server)
