"""The primary of a PostgreSQL cluster dies, and a standby takes its place."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from ojster.api.app import App
from ojster.core.errors import BackendUnavailable, InvalidRequest
from ojster.core.events import EventFilter
from ojster.insight.readiness import why_not_ready
from ojster.jobs.claim_policy import Claim
from ojster.jobs.messages import Acknowledgement
from ojster.server.event_streams import Feed
from ojster.service import Service
from ojster.storage.open import migrate_database, open_database, wait_for_database
from ojster.storage.outages import OUTAGE_GRACE_SECONDS
from ojster.storage.postgres import notifier
from ojster.storage.postgres.reachable import with_first
from ojster.storage.postgres.schema import are_events_logged
from ojster.worker.backoff import LONGEST_PAUSE_SECONDS
from tests import forked
from tests.conftest import request
from tests.postgres import PostgresServer, catch_up, free_port
from tests.waiting import LONG_WAIT, PATIENCE, answers, until

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("used", [False, True])
async def test_a_standby_takes_over_right_after_the_tables_were_made(
    primary: PostgresServer, standby: PostgresServer, used: bool
) -> None:
    """What is not in the write-ahead log, such as the contents of unlogged tables, begins anew, and works."""
    migrate_database(primary.url)
    before: list[str] = []
    if used:
        service = Service(open_database(primary.url))
        service.database.records_events = True
        before = [one.job.id for one in await service.jobs.enqueue([request("t", number) for number in range(3)])]
        await service.close()
    catch_up(primary, standby)
    primary.stop("immediate")
    standby.promote()
    service = Service(open_database(standby.url))
    service.database.records_events = True
    try:
        after = [one.job.id for one in await service.jobs.enqueue([request("t", number) for number in range(3)])]
        jobs = await service.jobs.fetch(Claim(("default",), 10, "w"))
        assert {job.id for job in jobs} == {*before, *after}
        await service.jobs.acknowledge([Acknowledgement(job.id, b"1", "w", 1) for job in jobs])
        page = await service.events.select(EventFilter(limit=100))
        types = [event["type"] for event in page.events]
        assert (types.count("job.enqueued"), types.count("job.completed")) == (3, len(jobs))
    finally:
        await service.close()


async def test_a_standby_is_not_ready_and_is_not_migrated(primary: PostgresServer, standby: PostgresServer) -> None:
    migrate_database(primary.url)
    catch_up(primary, standby)
    with pytest.raises(BackendUnavailable, match=r"read-only|recovery"):
        migrate_database(standby.url)
    service = Service(open_database(standby.url))
    try:
        reason = await why_not_ready(service.database)
        assert reason is not None
        assert "read-only" in reason
    finally:
        await service.close()


async def test_of_several_hosts_the_one_that_accepts_writes_is_used(
    primary: PostgresServer, standby: PostgresServer
) -> None:
    migrate_database(primary.url)
    catch_up(primary, standby)
    hosts = f"127.0.0.1:{standby.port},127.0.0.1:{primary.port}"
    service = Service(open_database(f"postgresql://postgres@{hosts}/postgres"))
    try:
        await service.jobs.enqueue([request("t", 1)])
        assert await why_not_ready(service.database) is None
    finally:
        await service.close()


def test_a_server_and_a_worker_start_while_the_database_is_away(primary: PostgresServer, tmp_path: Path) -> None:
    """Both say what they wait for, and work as soon as the database is back."""
    (tmp_path / "shop.py").write_text(
        'from ojster import App\napp = App()\n@app.job("which")\ndef which() -> int: return 7\n'
    )
    migrate_database(primary.url)
    primary.stop()
    port = free_port()
    commands = {
        "server": ("serve", "--database", primary.url, "--port", str(port)),
        "worker": ("worker", "shop:app", "--url", primary.url),
    }
    running: list[forked.Popen] = []
    logs = {name: tmp_path / name for name in commands}
    try:
        for name, command in commands.items():
            with logs[name].open("wb") as log:
                arguments = [sys.executable, "-m", "ojster", *command]
                running.append(forked.Popen(arguments, cwd=tmp_path, stdout=log, stderr=log))
        until(lambda: all("waiting for the database postgresql://" in log.read_text() for log in logs.values()))
        primary.start()
        until(lambda: answers(f"http://127.0.0.1:{port}/ready"))
        with App(primary.url) as app:
            assert app.job("which")(lambda: 7).enqueue().result(timeout=PATIENCE) == 7
    finally:
        for process in running:
            process.terminate()
        assert [process.wait(PATIENCE) for process in running] == [0, 0], {
            name: log.read_text() for name, log in logs.items()
        }


def test_nothing_waits_for_a_database_that_refuses(primary: PostgresServer) -> None:
    """A database that does not exist, or no database at all: waiting would not help, or its time is over."""
    missing = primary.url.replace("/postgres?", "/nothing?")
    begun = time.monotonic()
    wait_for_database(missing, LONG_WAIT)
    wait_for_database(f"postgresql://postgres@127.0.0.1:{free_port()}/postgres", 0.2)
    wait_for_database("sqlite:///nowhere.db", LONG_WAIT)
    assert time.monotonic() - begun < PATIENCE


async def test_followers_are_told_of_the_events_that_a_crash_has_lost(primary: PostgresServer) -> None:
    service = Service(open_database(primary.url, migrate=True))
    service.database.records_events = True
    feed = Feed(service)

    async def push() -> None:
        while True:
            try:
                await service.jobs.enqueue([request()])
                return
            except BackendUnavailable:
                await asyncio.sleep(0.05)

    await push()
    begin = await service.events.last()
    following = feed.follow(begin, 5.0)
    news = asyncio.ensure_future(anext(following))
    await asyncio.sleep(0.2)
    await push()
    batch = await news
    assert ([event[0] for _, event in batch.events], batch.is_whole) == (["job.enqueued"], True)
    await asyncio.to_thread(primary.stop, "immediate")
    await asyncio.to_thread(primary.start)
    await push()
    found: list[str] = []
    wholes: list[bool] = []
    while not found:
        batch = await anext(following)
        found = [event[0] for _, event in batch.events]
        wholes.append(batch.is_whole)
    assert (found, wholes.count(False)) == (["job.enqueued"], 1), "the loss is told, and told once"
    late = await service.events.last()
    assert (await service.events.read_on(late)).is_whole
    stretch = await service.events.read_on(begin)
    assert (len(stretch.events), stretch.is_whole) == (1, False)
    await following.aclose()  # type: ignore[attr-defined]
    await service.close()


async def test_a_follower_who_resumes_before_anything_new_has_happened_is_told_of_lost_events(
    primary: PostgresServer,
) -> None:
    service = Service(open_database(primary.url, migrate=True))
    service.database.records_events = True
    await service.jobs.enqueue([request()])
    ((seen, _),) = (await service.events.read_on(0)).events
    await asyncio.to_thread(primary.stop, "immediate")
    await asyncio.to_thread(primary.start)
    feed = Feed(service)  # as of another server, or of one without followers meanwhile
    while True:
        with contextlib.suppress(BackendUnavailable):
            assert not (await service.events.read_on(seen)).is_whole
            break
    following = feed.follow(seen, 5.0)
    batch = await anext(following)
    assert (batch.events, batch.is_whole) == ([], False)
    await service.jobs.enqueue([request()])
    batch = await anext(following)
    assert ([event[0] for _, event in batch.events], batch.is_whole) == (["job.enqueued"], True)
    await following.aclose()  # type: ignore[attr-defined]
    await service.close()


async def test_followers_miss_nothing_if_events_are_logged(primary: PostgresServer, standby: PostgresServer) -> None:
    """Neither when the database crashes, nor when a standby takes its place."""
    migrate_database(primary.url, events="logged")
    hosts = f"127.0.0.1:{primary.port},127.0.0.1:{standby.port}"
    service = Service(open_database(f"postgresql://postgres@{hosts}/postgres"))
    service.database.records_events = True
    await service.jobs.enqueue([request()])
    following = Feed(service).follow(0, 5.0)
    seen: list[str] = []

    async def read_until(count: int) -> None:
        while len(seen) < count:
            batch = await anext(following)
            assert batch.is_whole
            seen.extend(event[0] for _, event in batch.events)

    await read_until(1)
    await asyncio.to_thread(primary.stop, "immediate")
    await asyncio.to_thread(primary.start)
    await pushed_at_last(service)
    await read_until(2)
    await service.jobs.enqueue([request()])
    await asyncio.to_thread(catch_up, primary, standby)
    await asyncio.to_thread(primary.stop, "immediate")
    await asyncio.to_thread(standby.promote)
    await pushed_at_last(service)
    await read_until(4)
    assert seen == ["job.enqueued"] * 4
    await following.aclose()  # type: ignore[attr-defined]
    await service.close()


async def test_whether_events_are_logged_can_be_changed_while_others_work(primary: PostgresServer) -> None:
    service = Service(open_database(primary.url, migrate=True))
    service.database.records_events = True
    with psycopg.connect(primary.url, autocommit=True) as connection:
        for events in ("logged", "logged", "unlogged", None, "logged"):
            await service.jobs.enqueue([request()])
            await asyncio.to_thread(migrate_database, primary.url, events=events)
            assert are_events_logged(connection, "ojster") == (events == "logged")
    stretch = await service.events.read_on(0)
    assert (len(stretch.events), stretch.is_whole) == (5, True)
    await service.close()


def test_a_database_without_a_choice_of_how_events_are_kept_says_so(primary: PostgresServer, tmp_path: Path) -> None:
    lacking = f"{primary.url}&lacks=unlogged-tables"
    migrate_database(lacking, events="logged")
    with pytest.raises(InvalidRequest, match="no unlogged tables"):
        migrate_database(lacking, events="unlogged")
    with pytest.raises(InvalidRequest, match="only PostgreSQL has a choice"):
        migrate_database(f"sqlite:///{tmp_path}/jobs.db", events="logged")


async def test_a_follower_is_told_even_if_a_standby_lacks_the_events_that_it_has_seen(primary: PostgresServer) -> None:
    """The positions of new events must not be those of lost ones."""
    service = Service(open_database(primary.url, migrate=True))
    service.database.records_events = True
    for _ in range(5):
        await service.jobs.enqueue([request()])
        seen = (await service.events.read_on(0)).events[-1][0]
    with psycopg.connect(primary.url, autocommit=True) as connection:  # as if the last transactions were lost
        connection.execute("UPDATE ojster.event_positions SET last = 2")
        connection.execute("TRUNCATE ojster.event_batches")
    for _ in range(6):
        await service.jobs.enqueue([request()])
        await service.events.last()
    stretch = await service.events.read_on(seen)
    assert (len(stretch.events), stretch.is_whole) == (6, False)
    await service.close()


def test_workers_report_what_they_have_finished_before_leases_end_after_an_outage() -> None:
    """A pause between two tries is up to half longer by chance."""
    assert 1.5 * LONGEST_PAUSE_SECONDS < OUTAGE_GRACE_SECONDS


async def test_a_process_is_not_deaf_for_ever_if_the_database_hangs(
    primary: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that hangs keeps its connections open; a connection to the one that has taken its place is needed."""
    monkeypatch.setattr(notifier, "HEARTBEAT", 0.2)
    monkeypatch.setattr(notifier, "ANSWER_SECONDS", 0.5)
    service = Service(open_database(primary.url, migrate=True))
    listening = "SELECT pid FROM pg_stat_activity WHERE query LIKE '%clock_timestamp%'"
    try:
        with psycopg.connect(primary.url, autocommit=True) as connection:

            def listeners() -> set[int]:
                return {pid for (pid,) in connection.execute(f"{listening} AND pid <> pg_backend_pid()").fetchall()}

            until(lambda: len(listeners()) > 0)
            hanging = listeners()
            for pid in hanging:
                os.kill(pid, signal.SIGSTOP)
            try:
                until(lambda: bool(listeners() - hanging))
            finally:
                for pid in hanging:
                    os.kill(pid, signal.SIGCONT)
    finally:
        await service.close()


async def test_a_primary_that_hangs_is_left_when_a_standby_was_promoted(
    primary: PostgresServer, standby: PostgresServer
) -> None:
    """Its connections stay open, and say nothing; those that were not in use, too."""
    migrate_database(primary.url)
    catch_up(primary, standby)
    hosts = f"127.0.0.1:{primary.port},127.0.0.1:{standby.port}"
    service = Service(open_database(f"postgresql://postgres@{hosts}/postgres"))
    for number in range(20):  # opens all connections
        await asyncio.gather(*(service.jobs.enqueue([request("t", number)]) for _ in range(3)))
        await service.jobs.select()
    with psycopg.connect(primary.url, autocommit=True) as connection:
        rows = connection.execute("SELECT pid FROM pg_stat_activity WHERE application_name = 'ojster'").fetchall()
    pids = [int((primary.data / "postmaster.pid").read_text().split()[0]), *(pid for (pid,) in rows)]
    try:
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        pushing = asyncio.create_task(pushed_at_last(service))
        await asyncio.sleep(0.5)
        await asyncio.to_thread(standby.promote)
        began = time.monotonic()
        await pushing
        for _ in range(20):
            await asyncio.gather(*(pushed_at_last(service) for _ in range(3)))
            await service.jobs.select()
        assert time.monotonic() - began < PATIENCE
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
        await service.close()


async def pushed_at_last(service: Service) -> None:
    """Push a job, as often as the database is unavailable."""
    while True:
        with contextlib.suppress(BackendUnavailable):
            await service.jobs.enqueue([request()])
            return
        await asyncio.sleep(0.1)


@pytest.mark.parametrize(
    ("conninfo", "reordered"),
    [
        ("host=a,b", "host=b,a"),
        ("host=a,b port=,", "host=b,a port=,"),
        ("host=a,b port=5555,5432", "host=b,a port=5432,5555"),
        ("host=a,b port=5555,", "host=b,a port=,5555"),
        ("host=a,b port=5432", "host=b,a port=5432,5432"),
        ("host=a", "host=a"),
        ("host=a,b hostaddr=192.0.2.1,192.0.2.2", "host=a,b hostaddr=192.0.2.1,192.0.2.2"),
    ],
)
def test_the_primary_is_the_first_of_the_hosts_that_are_tried_next(conninfo: str, reordered: str) -> None:
    found = SimpleNamespace(info=SimpleNamespace(host="b", port=5432))
    assert conninfo_to_dict(with_first(conninfo, found)) == conninfo_to_dict(reordered)  # type: ignore[arg-type]
