"""SQLite files: creation, migration, rejection, notification between processes, and write-ahead log size."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from pathlib import Path
from unittest.mock import Mock

import apsw
import pytest

from ojster.core.errors import BackendUnavailable, InvalidRequest
from ojster.insight.readiness import why_not_ready
from ojster.jobs.claim_policy import Claim
from ojster.schedules.maintenance import answer
from ojster.service import Service
from ojster.storage.open import open_database
from ojster.storage.sqlite.database import MAX_LOG_PAGES
from ojster.storage.sqlite.disk_space import PAGE_BYTES
from ojster.storage.sqlite.notifier import SocketNotifier
from ojster.storage.sqlite.schema import migrate
from tests.conftest import request
from tests.waiting import LONG_WAIT, PATIENCE, until

pytestmark = pytest.mark.anyio


def test_a_path_with_a_typing_error_makes_no_folders(tmp_path: Path) -> None:
    with pytest.raises(BackendUnavailable, match=r"There is no folder .*/some/where for the database\. Create it, or"):
        open_database(f"sqlite:///{tmp_path}/some/where/jobs.db")
    assert list(tmp_path.iterdir()) == []


def test_migrating_twice_changes_nothing(tmp_path: Path) -> None:
    connection = apsw.Connection(str(tmp_path / "jobs.db"))
    schema = "SELECT type, name, sql FROM sqlite_schema ORDER BY 1, 2"
    version = migrate(connection)
    before = connection.execute(schema).fetchall()
    assert before
    connection.execute("INSERT INTO queues (name, created_at) VALUES ('q', 0)")
    assert migrate(connection) == version
    assert connection.execute(schema).fetchall() == before
    assert connection.execute("SELECT name FROM queues").fetchall() == [("q",)]


def test_a_newer_schema_is_refused_with_a_clear_message(tmp_path: Path) -> None:
    connection = apsw.Connection(str(tmp_path / "jobs.db"))
    migrate(connection)
    connection.execute("PRAGMA user_version = 999")
    connection.close()
    with pytest.raises(BackendUnavailable, match="upgrade Ojster"):
        open_database(f"sqlite:///{tmp_path}/jobs.db")


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / "jobs.db").write_text("this is a text, and a long one at that; no database begins like this" * 10)
    with pytest.raises(BackendUnavailable, match=r"not a database\. Check the path, or restore a backup\."):
        open_database(f"sqlite:///{tmp_path}/jobs.db")


def test_a_folder_is_no_database_file(tmp_path: Path) -> None:
    (tmp_path / "jobs.db").mkdir()
    with pytest.raises(BackendUnavailable, match=r"unable to open database file\. Check the path, and the rights"):
        open_database(f"sqlite:///{tmp_path}/jobs.db")


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="only Linux has /proc")
def test_a_folder_that_takes_no_files_is_named() -> None:
    with pytest.raises(BackendUnavailable, match="/proc"):
        open_database("sqlite:////proc/jobs.db")


@pytest.mark.parametrize("url", ["jobs.db", "sqlite://jobs.db", "mysql://host/db", ""])
def test_what_is_no_database_url_is_refused(url: str) -> None:
    with pytest.raises(InvalidRequest):
        open_database(url)


def test_a_password_in_a_url_is_not_repeated() -> None:
    with pytest.raises(InvalidRequest) as refusal:
        open_database("mysql://user:secret@host/db")
    assert "secret" not in str(refusal.value)


def test_several_processes_may_open_a_new_file_at_once(tmp_path: Path) -> None:
    script = f"from ojster.storage.open import open_database as o; o('sqlite:///{tmp_path}/jobs.db').close()"
    children = [subprocess.Popen([sys.executable, "-c", script]) for _ in range(4)]
    assert [child.wait(PATIENCE) for child in children] == [0, 0, 0, 0]


async def test_a_file_that_is_damaged_while_it_is_in_use_is_an_outage(tmp_path: Path) -> None:
    url, path = f"sqlite:///{tmp_path}/jobs.db", tmp_path / "jobs.db"
    service = Service(open_database(url))
    await service.jobs.enqueue([request("t", "x" * 1000) for _ in range(900)])
    await service.close()  # which moves everything from the write-ahead log to the file
    service = Service(open_database(url))
    await service.database.read(answer, None)
    with path.open("r+b") as file:
        file.seek(30 * PAGE_BYTES)
        file.write(b"!" * (path.stat().st_size - file.tell()))
    for call in (service.jobs.select(), service.jobs.enqueue([request()])):
        with pytest.raises(BackendUnavailable, match=r"jobs\.db cannot be \w+: .* malformed\. Stop all processes"):
            await call
    await service.close()


@pytest.mark.parametrize("fate", ["moved", "removed", "replaced", "with its folder"])
async def test_nothing_is_accepted_for_a_file_that_is_not_there_any_more(tmp_path: Path, fate: str) -> None:
    folder, elsewhere = tmp_path / "data", tmp_path / "elsewhere"
    folder.mkdir()
    service = Service(open_database(f"sqlite:///{folder}/jobs.db"))
    await service.jobs.enqueue([request()])
    if fate == "removed":
        (folder / "jobs.db").unlink()
    else:
        folder.rename(elsewhere)
    if fate in ("moved", "replaced"):
        folder.mkdir()
    if fate == "replaced":
        open_database(f"sqlite:///{folder}/jobs.db").close()
    for call in (service.jobs.enqueue([request()]), service.jobs.fetch(Claim(("default",))), service.jobs.select()):
        with pytest.raises(BackendUnavailable, match="moved, removed or replaced"):
            await call
    assert "restart the process" in str(await why_not_ready(service.database))
    if fate == "with its folder":
        elsewhere.rename(folder)
        await service.jobs.enqueue([request()])
        assert len((await service.jobs.select()).jobs) == 2
    await service.close()


async def test_a_push_in_another_process_wakes_a_waiting_fetch(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    service = Service(open_database(url))
    waiting = asyncio.create_task(service.jobs.fetch(Claim(("default",)), wait=LONG_WAIT))
    await asyncio.sleep(0.05)
    script = (
        "import asyncio, sys; from ojster.api.app import App; from ojster.handlers.job_options import request_of\n"
        "async def main():\n"
        "    app = App(sys.argv[1]); await app.client().jobs.enqueue([request_of('a', [])]); await app.aclose()\n"
        "asyncio.run(main())"
    )
    child = await asyncio.create_subprocess_exec(sys.executable, "-c", script, url)
    assert await child.wait() == 0
    assert len(await asyncio.wait_for(waiting, PATIENCE)) == 1
    await service.close()


def test_a_ring_reaches_the_others_and_only_them(tmp_path: Path) -> None:
    heard: dict[str, list[str]] = {"one": [], "two": []}
    arrived = threading.Event()

    def listen(name: str) -> SocketNotifier:
        def on_ring(topics: object) -> None:
            heard[name] += list(topics)  # type: ignore[call-overload]  # a sequence
            arrived.set()

        return SocketNotifier(tmp_path / "x.db", on_ring)

    one, two = listen("one"), listen("two")
    one.ring(["news:a", "finished"])
    assert arrived.wait(PATIENCE)
    assert heard == {"one": [], "two": ["news:a", "finished"]}
    two.close()
    one.ring(["queue:b"])
    one.close()


def test_the_door_of_a_killed_process_is_forgotten(tmp_path: Path) -> None:
    script = (
        "import sys, time; from pathlib import Path; from ojster.storage.sqlite.notifier import SocketNotifier\n"
        f"SocketNotifier(Path({str(tmp_path / 'x.db')!r}), print); print('ready', flush=True); time.sleep(60)"
    )
    child = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()
    bell = SocketNotifier(tmp_path / "x.db", print)
    child.kill()
    child.wait()
    child.stdout.close()
    bell.ring(["a"])
    assert os.listdir(bell._folder) == [bell._address.name]
    bell.close()


@pytest.mark.slow
async def test_the_write_ahead_log_stays_small_under_a_steady_load(tmp_path: Path) -> None:
    service = Service(open_database(f"sqlite:///{tmp_path}/jobs.db", synchronous="NORMAL"))
    largest = 0
    for _ in range(60):
        await asyncio.gather(*(service.jobs.enqueue([request("t", "x" * 500) for _ in range(200)]) for _ in range(5)))
        largest = max(largest, (tmp_path / "jobs.db-wal").stat().st_size)
    await service.close()
    assert largest < (MAX_LOG_PAGES + 4_000) * 4200


async def test_checkpoints_run_again_after_one_whose_connection_could_not_be_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As while a process has as many open files as it may have."""
    file = tmp_path / "jobs.db"
    service = Service(open_database(f"sqlite:///{file}"))
    await service.jobs.enqueue([request()])
    await service.jobs.select()  # the connections to write and to read are open now
    monkeypatch.setattr("ojster.storage.sqlite.database.CHECKPOINT_PAGES", 1)
    with monkeypatch.context() as patched:
        full = Mock(side_effect=apsw.CantOpenError("unable to open database file"))
        patched.setattr("ojster.storage.sqlite.database._use_write_ahead_log", full)
        await service.jobs.enqueue([request()])
        await asyncio.to_thread(until, lambda: "checkpoint of the write-ahead log failed" in caplog.text)
    before = file.stat().st_size
    await service.jobs.enqueue([request()])
    await asyncio.to_thread(until, lambda: file.stat().st_size > before)
    await service.close()
