"""SQLite files that change their place or their names under running processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ojster.cli.archive import back_up
from ojster.core.errors import BackendUnavailable
from ojster.core.settings import ServiceSettings
from ojster.service import Service
from ojster.storage.open import open_database
from ojster.storage.sqlite.database import SqliteDatabase
from tests.conftest import request

pytestmark = pytest.mark.anyio

COUNT = "import apsw, sys; print(apsw.Connection(sys.argv[1]).execute('SELECT count(*) FROM jobs').get)"


@pytest.mark.parametrize("ending", ["-wal", "-shm"])
async def test_what_was_acknowledged_before_a_file_of_sqlite_was_removed_is_kept_and_nothing_more_is_accepted(
    tmp_path: Path, ending: str
) -> None:
    file = tmp_path / "jobs.db"
    database = SqliteDatabase(str(file), ServiceSettings())
    database.open()
    service = Service(database)
    await service.jobs.enqueue([request(), request()])
    (tmp_path / f"jobs.db{ending}").unlink()
    for call in (service.jobs.enqueue([request()]), service.jobs.select()):
        with pytest.raises(BackendUnavailable, match=rf"jobs\.db{ending} was removed .* Stop all processes"):
            await call
    with pytest.raises(BackendUnavailable, match=f"{ending} was removed"), database.transaction_of_caller():
        pass
    await service.close()
    assert int(subprocess.check_output([sys.executable, "-c", COUNT, str(file)])) == 2


async def test_a_link_in_the_place_of_the_file_leads_running_processes_nowhere(tmp_path: Path) -> None:
    """The log stays where the file was, so that new processes would use another one."""
    file, elsewhere = tmp_path / "jobs.db", tmp_path / "elsewhere.db"
    service = Service(open_database(f"sqlite:///{file}"))
    await service.jobs.enqueue([request()])
    file.rename(elsewhere)
    file.symlink_to(elsewhere)
    with pytest.raises(BackendUnavailable, match="moved, removed or replaced"):
        await service.jobs.enqueue([request()])
    await service.close()


async def test_a_file_with_two_names_is_refused_under_both_and_saved_under_none(tmp_path: Path) -> None:
    open_database(f"sqlite:///{tmp_path}/jobs.db").close()
    os.link(tmp_path / "jobs.db", tmp_path / "alias.db")
    for name in ("jobs.db", "alias.db"):
        with pytest.raises(BackendUnavailable, match=rf"{name} has several names \(hard links\)"):
            open_database(f"sqlite:///{tmp_path}/{name}")
        with pytest.raises(BackendUnavailable, match="several names"):
            back_up(tmp_path / name, tmp_path / "jobs.tar", None)
    (tmp_path / "alias.db").unlink()
    open_database(f"sqlite:///{tmp_path}/jobs.db").close()


@pytest.mark.parametrize("path", ["jobs.db", "current/jobs.db"])
async def test_a_process_that_changes_its_directory_or_a_link_keeps_its_file_after_a_fork(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        open_database(f"sqlite:///{tmp_path}/{name}/jobs.db").close()
    current = tmp_path / "current"
    current.symlink_to("first")
    monkeypatch.chdir(tmp_path / "first" if path == "jobs.db" else tmp_path)
    service = Service(open_database(f"sqlite:///{path}"))
    await service.jobs.enqueue([request()])
    current.unlink()
    current.symlink_to("second")
    monkeypatch.chdir(tmp_path / "second" if path == "jobs.db" else tmp_path)
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    await service.jobs.enqueue([request()])
    assert len((await service.jobs.select()).jobs) == 2
    await service.close()
