"""What ``ojster doctor`` finds of a database that others use, and when it says so."""

from __future__ import annotations

import threading
from contextlib import closing
from pathlib import Path

import apsw
import psycopg
import pytest

from ojster.cli import doctor
from ojster.cli.doctor import checks_of
from ojster.cli.main import main
from ojster.storage.database import sqlite_path
from ojster.storage.open import migrate_database
from ojster.storage.postgres.url import parse_postgres_url
from tests.postgres import free_port
from tests.waiting import until


def test_each_check_is_printed_before_the_next_one_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    printed: list[str] = []

    def look() -> tuple[bool, str]:
        printed.append(capsys.readouterr().out)
        return True, "it is so"

    monkeypatch.setattr(doctor, "checks_of", lambda url: [("first", look), ("second", look)])
    with pytest.raises(SystemExit):
        main(["doctor", "--url", f"sqlite:///{tmp_path}/none.db"])
    assert ["versions" in printed[0], "first" in printed[1]] == [True, True]


def test_a_database_that_is_away_is_reported_once(capsys: pytest.CaptureFixture[str]) -> None:
    url = f"postgresql://127.0.0.1:{free_port()}/jobs"
    with pytest.raises(SystemExit):
        main(["doctor", "--url", url])
    versions, database = capsys.readouterr().out.splitlines()
    assert versions.startswith("✓ versions")
    assert database.startswith("✗ database  ")
    assert "Connection refused" in database


def test_a_reader_that_keeps_the_log_of_a_file_is_found(file_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "MAX_LOG_BYTES", 0)
    migrate_database(file_url)
    path = sqlite_path(file_url)
    check = dict(checks_of(file_url))["file"]
    with closing(apsw.Connection(path)) as writer:
        writer.execute("CREATE TABLE other AS SELECT zeroblob(100000)")
        assert check()[0], "what is in the log can be copied"
        with closing(apsw.Connection(path)) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM jobs").fetchall()
            writer.execute("INSERT INTO other VALUES (zeroblob(1000000))")
            found, words = check()
            assert not found
            assert "until a process that has been reading for long ends its transaction" in words
        assert check()[0]


def test_a_checkpoint_of_another_process_is_no_reader_that_keeps_the_log(
    file_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "MAX_LOG_BYTES", 0)
    migrate_database(file_url)
    path = sqlite_path(file_url)
    check = dict(checks_of(file_url))["file"]
    found: list[bool] = []

    def look(_: int) -> bool:
        found.append(check()[0])
        return False

    with closing(apsw.Connection(path)) as writer, closing(apsw.Connection(path)) as other:
        writer.execute("CREATE TABLE other (a)")
        writer.execute("BEGIN IMMEDIATE")
        other.set_busy_handler(look)  # it has begun a checkpoint, and meets the writer
        other.execute("PRAGMA wal_checkpoint(FULL)").fetchall()
    assert found == [True]


def test_who_keeps_others_waiting_for_a_lock_is_found_and_no_check_waits_long(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    migrate_database(postgres_url)
    monkeypatch.setattr(doctor, "WAITING_SECONDS", 0)
    monkeypatch.setattr(doctor, "LOCK_WAIT_MS", 10)
    url = parse_postgres_url(postgres_url)
    checks = dict(checks_of(postgres_url))
    assert checks["locks"]()[0]

    def wait() -> None:
        with psycopg.connect(url.conninfo) as other:
            other.execute(f"SELECT count(*) FROM {url.schema}.jobs".encode())

    with psycopg.connect(url.conninfo) as holder:
        holder.execute(f"LOCK TABLE {url.schema}.jobs IN ACCESS EXCLUSIVE MODE".encode())
        waiting = threading.Thread(target=wait)
        waiting.start()
        until(lambda: not checks["locks"]()[0])
        words = checks["locks"]()[1]
        pid = holder.info.backend_pid
        assert words.startswith(f"pid {pid} (ojster, idle in transaction) keeps another one waiting for a lock")
        assert f"pg_terminate_backend({pid})" in words
        with pytest.raises(OSError, match="lock timeout"):
            checks["vacuum"]()
    waiting.join()
