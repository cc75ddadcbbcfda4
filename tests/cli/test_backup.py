"""Backup and restore: while jobs are written, with files, and of archives that are damaged."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import sqlite3
import stat
import tarfile
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from ojster import App
from ojster.cli import archive
from ojster.cli.archive import ArchiveSummary, back_up, restore
from ojster.cli.main import cli
from ojster.core.errors import BackendError, BackendUnavailable, Conflict, InvalidRequest, NotFound
from ojster.files.file import NewFile
from ojster.files.open import store_for
from ojster.files.store import DirectoryStore
from ojster.service import Service
from ojster.storage.open import open_database
from tests.conftest import request

pytestmark = pytest.mark.anyio

CONTENT = os.urandom(9_000_000)
"""What is in the file: more than one piece."""


async def save(*arguments: Any) -> ArchiveSummary:
    return await asyncio.to_thread(back_up, *arguments)


async def put_file(app: App, content: bytes) -> str:
    async def pieces() -> AsyncIterator[bytes]:
        yield content

    files = app.service().files
    made = await files.create(NewFile(filename="photo.png", content_type="image/png", size=len(content)))
    await files.write(made.id, 0, pieces())
    return made.id


@pytest.fixture
async def saved(tmp_path: Path) -> tuple[Path, str]:
    """An archive with 50 jobs and a file, and the id of the file."""
    url = f"sqlite:///{tmp_path}/jobs.db"
    app = App(url)
    app.job("a")(lambda number: number)
    await app.handlers["a"].aenqueue_many([(number,) for number in range(50)])
    file = await put_file(app, CONTENT)
    await app.aclose()
    summary = await save(tmp_path / "jobs.db", tmp_path / "saved.tar", store_for(url))
    assert (summary.jobs, summary.files, summary.missing) == (50, 1, [])
    return tmp_path / "saved.tar", file


async def test_what_was_saved_is_restored_with_its_files(saved: tuple[Path, str], tmp_path: Path) -> None:
    source, file = saved
    target = tmp_path / "new" / "place.db"
    summary = restore(source, target, tmp_path / "new" / "place.db-files")
    assert (summary.jobs, summary.files) == (50, 1)
    app = App(f"sqlite:///{target}")
    content = b"".join([piece async for piece in await app.service().files.read(file)])
    assert content == CONTENT
    await app.aclose()
    assert sorted(os.listdir(tmp_path / "new")) == ["place.db", "place.db-files"]


async def test_a_backup_is_consistent_while_jobs_are_written(tmp_path: Path) -> None:
    app = App(f"sqlite:///{tmp_path}/jobs.db")
    app.job("a")(print)
    stop = threading.Event()
    written = 0

    async def write() -> None:
        nonlocal written
        while not stop.is_set():
            await app.handlers["a"].aenqueue_many([(number,) for number in range(20)])
            written += 20

    writing = asyncio.create_task(write())
    counts = []
    for number in range(5):
        while written < 200 * (number + 1):
            await asyncio.sleep(0.005)
        before = written
        target = tmp_path / f"{number}.tar"
        await asyncio.to_thread(back_up, tmp_path / "jobs.db", target, None)
        summary = restore(target, tmp_path / f"{number}.db", None)
        assert before <= summary.jobs <= written + 20
        assert summary.jobs % 20 == 0
        counts.append(summary.jobs)
    stop.set()
    await writing
    await app.aclose()
    assert counts == sorted(counts)


async def test_nobody_else_can_read_an_archive_or_a_database(saved: tuple[Path, str], tmp_path: Path) -> None:
    restore(saved[0], tmp_path / "again.db", tmp_path / "again")
    for path in (saved[0], tmp_path / "jobs.db", tmp_path / "again.db", *(tmp_path / "again").rglob("*")):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path
    assert stat.S_IMODE((tmp_path / "jobs.db-files").stat().st_mode) == 0o700


@pytest.mark.parametrize("place", [0.02, 0.5, 0.97])
async def test_a_damaged_archive_restores_nothing(saved: tuple[Path, str], tmp_path: Path, place: float) -> None:
    content = bytearray(saved[0].read_bytes())
    at = int(len(content) * place)
    content[at : at + 64] = bytes(one ^ 0xFF for one in content[at : at + 64])
    saved[0].write_bytes(content)
    before = sorted(os.listdir(tmp_path))
    with pytest.raises(InvalidRequest):
        restore(saved[0], tmp_path / "again.db", tmp_path / "again")
    assert sorted(os.listdir(tmp_path)) == before


@pytest.mark.parametrize("share", [0.1, 0.6, 0.999])
async def test_an_archive_that_was_cut_off_restores_nothing(
    saved: tuple[Path, str], tmp_path: Path, share: float
) -> None:
    content = saved[0].read_bytes()
    saved[0].write_bytes(content[: int((len(content) - 10_240) * share)])
    with pytest.raises(InvalidRequest):
        restore(saved[0], tmp_path / "again.db", tmp_path / "again")
    assert not (tmp_path / "again.db").exists()
    assert not (tmp_path / "again").exists()


@pytest.mark.parametrize("name", ["../evil", "/etc/evil", "files/../../evil", "files/a/..", "other", "files/a"])
def test_members_that_lead_outside_are_refused(tmp_path: Path, name: str) -> None:
    with tarfile.open(tmp_path / "bad.tar", "w") as bad:
        archive._add(bad, {}, name, b"evil")
    with pytest.raises(InvalidRequest, match="it has the member"):
        restore(tmp_path / "bad.tar", tmp_path / "x.db", tmp_path / "x")
    assert os.listdir(tmp_path) == ["bad.tar"]


def test_links_in_an_archive_are_refused(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "bad.tar", "w") as bad:
        link = tarfile.TarInfo("jobs.db")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        bad.addfile(link)
    with pytest.raises(InvalidRequest):
        restore(tmp_path / "bad.tar", tmp_path / "x.db", None)


async def test_nothing_is_overwritten(saved: tuple[Path, str], tmp_path: Path) -> None:
    with pytest.raises(Conflict, match="exists"):
        restore(saved[0], tmp_path / "jobs.db", None)
    with pytest.raises(Conflict, match="exists"):
        await save(tmp_path / "jobs.db", saved[0], None)


async def test_a_backup_without_the_place_of_the_files_is_refused(saved: tuple[Path, str], tmp_path: Path) -> None:
    (tmp_path / "jobs.db-files").rename(tmp_path / "elsewhere")  # as with: ojster serve --files elsewhere
    target = tmp_path / "second.tar"
    with pytest.raises(
        InvalidRequest, match=r"has files \(1\), but there is no directory .*jobs.db-files. .*--no-files"
    ):
        await save(tmp_path / "jobs.db", target, store_for(f"sqlite:///{tmp_path}/jobs.db"))
    assert not list(tmp_path.glob("second*"))
    assert (await save(tmp_path / "jobs.db", target, DirectoryStore(tmp_path / "elsewhere"))).files == 1
    assert (await save(tmp_path / "jobs.db", tmp_path / "third.tar", None)).jobs == 50


async def test_a_file_with_a_missing_piece_is_damaged_in_the_backup(saved: tuple[Path, str], tmp_path: Path) -> None:
    piece = next((tmp_path / "jobs.db-files" / saved[1]).iterdir())
    piece.write_bytes(b"something else")
    summary = await save(tmp_path / "jobs.db", tmp_path / "second.tar", DirectoryStore(tmp_path / "jobs.db-files"))
    assert (summary.files, summary.missing) == (0, [saved[1]])
    restore(tmp_path / "second.tar", tmp_path / "again.db", tmp_path / "again")
    app = App(f"sqlite:///{tmp_path}/again.db")
    with pytest.raises(BackendError):
        _ = [piece async for piece in await app.service().files.read(saved[1])]
    assert await put_file(app, CONTENT) != saved[1]
    await app.aclose()


async def test_a_file_that_could_not_be_read_while_its_store_was_away_is_saved(
    saved: tuple[Path, str], tmp_path: Path
) -> None:
    store, away = tmp_path / "jobs.db-files", tmp_path / "away"
    app = App(f"sqlite:///{tmp_path}/jobs.db")
    store.rename(away)
    with pytest.raises(BackendError):
        _ = [piece async for piece in await app.service().files.read(saved[1])]
    away.rename(store)
    summary = await save(tmp_path / "jobs.db", tmp_path / "second.tar", DirectoryStore(store))
    assert (summary.files, summary.missing) == (1, [])
    await app.aclose()


@pytest.mark.parametrize("is_lost", [False, True])
async def test_an_upload_goes_on_after_a_restore_or_begins_again(tmp_path: Path, is_lost: bool) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    app = App(url)
    files = app.service().files
    begun = await files.create(NewFile(size=len(CONTENT)))
    await files.write(begun.id, 0, pieces_of(CONTENT[:5_000_000]))
    await app.aclose()
    if is_lost:
        shutil.rmtree(tmp_path / "jobs.db-files" / begun.id)
    summary = await save(tmp_path / "jobs.db", tmp_path / "saved.tar", store_for(url))
    assert summary.missing == [begun.id] * is_lost
    restore(tmp_path / "saved.tar", tmp_path / "again.db", tmp_path / "again.db-files")
    app = App(f"sqlite:///{tmp_path}/again.db")
    files = app.service().files
    if is_lost:
        with pytest.raises(NotFound):
            await files.find(begun.id)
    else:
        assert (await files.write(begun.id, 5_000_000, pieces_of(CONTENT[5_000_000:]))).complete
    await app.aclose()


async def pieces_of(content: bytes) -> AsyncIterator[bytes]:
    yield content


def test_the_database_of_another_program_is_never_touched(tmp_path: Path) -> None:
    path = tmp_path / "theirs.db"
    with sqlite3.connect(path) as theirs:
        theirs.execute("CREATE TABLE jobs (id INTEGER)")
    theirs.close()
    before = path.read_bytes()
    with pytest.raises(BackendUnavailable, match="of another program"):
        open_database(f"sqlite:///{path}")
    assert path.read_bytes() == before
    path.write_text("my diary " * 1_000)
    with pytest.raises(BackendUnavailable, match="not a database"):
        open_database(f"sqlite:///{path}")
    assert path.read_text() == "my diary " * 1_000


def run(*arguments: Any) -> Any:
    return CliRunner().invoke(cli, [str(one) for one in arguments])


async def test_commands_say_what_they_did_and_what_they_cannot_do(saved: tuple[Path, str], tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    done = await asyncio.to_thread(run, "backup", tmp_path / "b.tar", "--url", url)
    assert "Saved 50 jobs, 0 workflows and 1 files" in done.output.replace("\n", " ")
    done = await asyncio.to_thread(run, "restore", tmp_path / "b.tar", "--url", f"sqlite:///{tmp_path}/c.db", "--json")
    assert '"jobs": 50' in done.output
    for wrong, words in (
        ("postgresql:///x", "pg_dump"),
        ("http://127.0.0.1:1", "not the URL"),
        ("sqlite:///:memory:", "not"),
    ):
        refused = await asyncio.to_thread(run, "backup", tmp_path / "d.tar", "--url", wrong)
        assert words in str(refused.exception)


async def test_a_full_disk_leaves_nothing_behind(saved: tuple[Path, str], tmp_path: Path, monkeypatch: Any) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    before = sorted(os.listdir(tmp_path))
    with pytest.raises(BackendUnavailable, match="No space left"):
        await save(tmp_path / "jobs.db", tmp_path / "full.tar", None)
    with pytest.raises(BackendUnavailable, match="No space left"):
        restore(saved[0], tmp_path / "full.db", None)
    assert sorted(os.listdir(tmp_path)) == before
    with pytest.raises(BackendUnavailable, match="No space left"):
        await DirectoryStore(tmp_path / "store").put("file/piece", b"content")
    assert [path for path in (tmp_path / "store").rglob("*") if path.is_file()] == []


def test_a_file_that_litestream_has_touched_first_is_no_database_of_another_program(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    with sqlite3.connect(path) as theirs:
        theirs.execute("CREATE TABLE _litestream_seq (id INTEGER PRIMARY KEY, seq INTEGER)")
        theirs.execute("CREATE TABLE _litestream_lock (id INTEGER)")
    theirs.close()
    open_database(f"sqlite:///{path}").close()
    open_database(f"sqlite:///{path}").close()


async def test_a_log_of_sqlite_that_was_left_behind_keeps_a_backup_from_being_restored(tmp_path: Path) -> None:
    """SQLite would replay it into the restored file."""
    live, archive, restored = tmp_path / "jobs.db", tmp_path / "backup.tar", tmp_path / "other" / "jobs.db"
    service = Service(open_database(f"sqlite:///{live}"))
    await service.jobs.enqueue([request("saved")])
    back_up(live, archive, None)
    await service.close()
    restored.parent.mkdir()
    for ending in ("-wal", "-shm", "-journal"):
        left = restored.with_name(restored.name + ending)
        left.touch()
        with pytest.raises(Conflict, match=re.escape(f"{left} exists")):
            restore(archive, restored, None)
        left.unlink()
    restore(archive, restored, None)
