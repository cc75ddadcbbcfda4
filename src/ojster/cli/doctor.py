"""The checks of ``ojster doctor``. Each returns whether it passed, and its finding as a sentence."""

from __future__ import annotations

import os
import platform
import sqlite3
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import apsw

from ojster.core.version import __version__
from ojster.storage.database import LISTEN_VARIABLE, SQLITE, sqlite_path
from ojster.storage.open import MEMORY

if TYPE_CHECKING:
    import psycopg

    from ojster.storage.postgres.url import PostgresUrl

Diagnosis = tuple[bool, str]
"""Whether all is well, and what was seen."""

Check = tuple[str, Callable[[], Diagnosis]]
"""What is examined, for people, and what examines it."""

SLOW_COMMIT_MS: Final = 50.0
"""Commit time from which the check fails, in milliseconds."""

MAX_DEAD_ROWS: Final = 200_000
MAX_NAPTIME_SECONDS: Final = 60
"""Maximum rest of autovacuum between two rounds, in seconds."""

MOST_SHOWN: Final = 5
"""Number of differences of the schema that a finding names."""

MAX_TRANSACTION_AGE_SECONDS: Final = 300
"""Maximum age of an open transaction, in seconds; an older one holds vacuum back."""

MAX_LOG_BYTES: Final = 128 << 20
"""Size of a write-ahead log of SQLite, in bytes, from which a reader is looked for that keeps it: twice what it has
under load."""

MAX_CLOCK_SKEW_SECONDS: Final = 5.0

LOCK_WAIT_MS: Final = 2_000
"""How long a check waits for a lock, in milliseconds."""

WAITING_SECONDS: Final = 5
"""Time from which on it counts that a session waits for the lock of another one, in seconds."""


def versions() -> Diagnosis:
    """Return the versions of Ojster, Python and SQLite."""
    return True, (
        f"Ojster {__version__}, Python {platform.python_version()} on {sys.platform}, "
        f"SQLite {apsw.sqlite_lib_version()} (Python's own: {sqlite3.sqlite_version})"
    )


def checks_of(url: str) -> list[Check]:
    """Return the checks of the database at ``url``; none for a server, which checks its own database."""
    if url.startswith(SQLITE) and url != MEMORY:
        path = Path(sqlite_path(url))
        return [
            ("file", lambda: _file(path)),
            ("integrity", lambda: _integrity(path)),
            ("disk", lambda: _disk(path.parent)),
            ("sharing", _file_sharing),
            ("clock", lambda: _file_clock(path)),
        ]
    if url.startswith(("postgresql://", "postgres://")):
        from ojster.storage.postgres.url import parse_postgres_url

        postgres = _Postgres(parse_postgres_url(url))
        return [
            ("database", postgres.server),
            ("locks", postgres.locks),
            ("schema", postgres.schema),
            ("tables", postgres.tables),
            ("durability", postgres.durability),
            ("commit", postgres.commit),
            ("vacuum", postgres.vacuum),
            ("horizon", postgres.horizon),
            ("connections", postgres.connections),
            ("clock", postgres.clock),
            ("wake-ups", postgres.wakeups),
            *([("replica", postgres.replica)] if postgres.has_replica else []),
        ]
    return []


def _file(path: Path) -> Diagnosis:
    if not path.exists():
        return False, f"{path} does not exist; the first server, worker or push creates it"
    log = path.with_name(path.name + "-wal")
    sizes = (
        f"{path.stat().st_size / 1e6:.1f} MB, write-ahead log {log.stat().st_size / 1e6 if log.exists() else 0:.1f} MB"
    )
    if not os.access(path, os.R_OK | os.W_OK):
        owner, mode = path.stat().st_uid, stat.filemode(path.stat().st_mode)
        return (
            False,
            f"{path} ({mode}, of user {owner}) is not writable for user {os.geteuid()}: change its owner or mode",
        )
    if log.exists() and log.stat().st_size > MAX_LOG_BYTES and _is_kept(path):
        return False, (
            f"{path}, {sizes}: the log grows until a process that has been reading for long ends its transaction; "
            f"'fuser {path}' names those that have the file open"
        )
    return True, f"{path}, {sizes}"


def _is_kept(path: Path) -> bool:
    """Return whether a reader keeps most of a write-ahead log from being copied to the file."""
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)
    rows: list[Any] = connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
    connection.close()
    ((is_elsewhere, pages, copied),) = rows  # another process may be copying it at this moment
    return bool(not is_elsewhere and copied < pages / 2)


def _integrity(path: Path) -> Diagnosis:
    if not path.exists():
        return False, "nothing to check"
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    (result,) = connection.execute("PRAGMA quick_check(1)").fetchall()[0]
    connection.close()
    return result == "ok", str(result)


def _disk(folder: Path) -> Diagnosis:
    """Measure the forced write of one page to disk, a lower bound of the commit time."""
    with tempfile.TemporaryFile(dir=folder) as file:
        median = _median_ms(lambda: _forced_write(file.fileno()), 50)
    return median < SLOW_COMMIT_MS, f"a forced write takes {median:.2f} ms (median of 50)" + _slow_commit_note(median)


def _forced_write(file: int) -> None:
    os.pwrite(file, b"\0" * 4096, 0)
    os.fsync(file)


def _file_sharing() -> Diagnosis:
    return True, "any number of processes on this machine can share the file; use PostgreSQL for more machines"


def _file_clock(path: Path) -> Diagnosis:
    from ojster.storage.sqlite.clock import SteadyClock, clock_file

    clock = SteadyClock(clock_file(path))
    behind = clock.behind
    clock.close()
    if abs(behind) < MAX_CLOCK_SKEW_SECONDS:
        return True, "the processes on the file follow this machine's clock"
    where = "behind" if behind > 0 else "ahead of"
    return False, (
        f"the machine's clock was set: the processes on the file are {abs(behind):.1f} s {where} it and catch up "
        "by 100 ms a second; stop all of them, then start them again, to follow it at once"
    )


class _Postgres:
    """The checks of a PostgreSQL database."""

    def __init__(self, url: PostgresUrl) -> None:
        self._url = url

    def server(self) -> Diagnosis:
        from ojster.storage.postgres.database import version_of
        from ojster.storage.postgres.url import with_lacks

        with self._connection() as connection:
            version = connection.info.parameter_status("server_version")
            lacks = with_lacks(self._url, version_of(connection)).lacks
            median = _median_ms(lambda: connection.execute("SELECT 1"), 20)
            encrypted = "TLS" if connection.pgconn.ssl_in_use else "no TLS"
            old = connection.info.server_version < 130000
            words = f"PostgreSQL {version} at {self._url.shown}, {encrypted}, a round trip takes {median:.2f} ms"
            words += f", without {', '.join(sorted(lacks))}" if lacks else ""
            return not old, words + ("; upgrade it to 13 or later" if old else "")

    def locks(self) -> Diagnosis:
        """Find who keeps most of Ojster's sessions waiting for a lock, such as one that is idle in a transaction."""
        with self._connection() as connection:
            rows = connection.execute(
                """
                SELECT b.pid, b.application_name, b.state, count(*)
                FROM pg_stat_activity AS w
                CROSS JOIN LATERAL unnest(pg_blocking_pids(w.pid)) AS blocking (pid)
                JOIN pg_stat_activity AS b ON b.pid = blocking.pid
                WHERE w.wait_event_type = 'Lock'
                    AND w.query_start < now() - make_interval(secs => %s)
                    AND cardinality(pg_blocking_pids(b.pid)) = 0
                    AND EXISTS (
                        SELECT 1
                        FROM pg_locks AS l
                        JOIN pg_class AS c ON c.oid = l.relation
                        JOIN pg_namespace AS n ON n.oid = c.relnamespace
                        WHERE l.pid = w.pid AND n.nspname = %s
                    )
                GROUP BY b.pid, b.application_name, b.state
                ORDER BY 4 DESC
                LIMIT 1
                """,
                (WAITING_SECONDS, self._url.schema),
            ).fetchall()
        for pid, name, state, waiting in rows:
            who = f"pid {pid} ({name}, {state})"
            others = "another one" if waiting == 1 else f"{waiting} others"
            return False, f"{who} keeps {others} waiting for a lock: end it with SELECT pg_terminate_backend({pid})"
        return True, f"nobody has waited for a lock for {WAITING_SECONDS} s"

    def schema(self) -> Diagnosis:
        from ojster.storage.migrations import scripts
        from ojster.storage.postgres.schema import schema_version

        with self._connection() as connection:
            version, known = schema_version(connection, self._url.schema), len(scripts("postgres"))
        words = f"schema {self._url.schema!r} has version {version}"
        if version < known:
            return False, f"{words}, but this Ojster needs {known}: run `ojster migrate`"
        return version == known, words + ("" if version == known else f", Ojster knows only {known}: upgrade it")

    def tables(self) -> Diagnosis:
        """Find indexes that are missing, and storage parameters of tables that are not those of the schema."""
        from ojster.storage.postgres.database import version_of
        from ojster.storage.postgres.shape import actual_shape, differences, intended_shape
        from ojster.storage.postgres.url import with_lacks

        with self._connection() as connection:
            actual = actual_shape(connection, self._url.schema)
            lacks = with_lacks(self._url, version_of(connection)).lacks
        intended = intended_shape()
        if "storage-parameters" in lacks:
            intended = intended._replace(parameters={})
        if problems := differences(intended, actual):
            others = f", and {len(problems) - MOST_SHOWN} more" if len(problems) > MOST_SHOWN else ""
            shown = "; ".join(problems[:MOST_SHOWN]) + others
            return False, f"{shown}: put it right as in the scripts of the schema, or jobs will be found slowly"
        return True, f"{len(intended.indexes)} indexes, and parameters of {len(intended.parameters)} tables, are right"

    def durability(self) -> Diagnosis:
        from ojster.storage.postgres.schema import are_events_logged

        with self._connection() as connection:
            values = {name: _setting(connection, name) for name in ("fsync", "synchronous_commit", "full_page_writes")}
            keeps_events = are_events_logged(connection, self._url.schema)
        words = ", ".join(f"{name} = {value}" for name, value in values.items())
        words += "; events survive a failover" if keeps_events else "; a failover loses events of the last minutes"
        if values["fsync"] == "off" or values["full_page_writes"] == "off":
            return False, f"{words}: a crash of the machine may destroy the database"
        if values["synchronous_commit"] == "off":
            return False, f"{words}: a crash may lose the last acknowledged jobs"
        return True, words

    def commit(self) -> Diagnosis:
        with self._connection() as connection:
            statement = "SELECT pg_logical_emit_message(true, 'ojster', 'doctor')"
            median = _median_ms(lambda: connection.execute(statement), 20)
        return median < SLOW_COMMIT_MS, f"a commit takes {median:.2f} ms (median of 20)" + _slow_commit_note(median)

    def vacuum(self) -> Diagnosis:
        with self._connection() as connection:
            if _setting(connection, "autovacuum") == "off" or _setting(connection, "track_counts") == "off":
                return False, "autovacuum is off: dead rows will slow down every claim; set autovacuum = on"
            rows = connection.execute(
                """
                SELECT relname, n_live_tup, n_dead_tup, pg_size_pretty(pg_total_relation_size(relid))
                FROM pg_stat_user_tables
                WHERE schemaname = %s AND relname IN ('jobs', 'payloads')
                ORDER BY relname
                """,
                (self._url.schema,),
            ).fetchall()
            rests = connection.execute(
                "SELECT setting::bigint FROM pg_settings WHERE name = 'autovacuum_naptime'"
            ).fetchall()
        words = "; ".join(f"{name}: {live} rows, {dead} dead, {size}" for name, live, dead, size in rows)
        if any(seconds > MAX_NAPTIME_SECONDS for (seconds,) in rests):
            return False, f"{words}: autovacuum rests too long; set autovacuum_naptime = {MAX_NAPTIME_SECONDS}s or less"
        if any(dead > MAX_DEAD_ROWS and dead > live / 2 for _, live, dead, _ in rows):
            return False, f"{words}: autovacuum does not keep up; see the check 'horizon', or run VACUUM"
        return True, words or "no tables"

    def horizon(self) -> Diagnosis:
        """Find the oldest transaction, which keeps dead rows, and replication slots that nobody reads."""
        with self._connection() as connection:
            (sees_all,) = connection.execute("SELECT pg_has_role('pg_read_all_stats', 'USAGE')").fetchone() or (False,)
            rows = connection.execute(
                """
                SELECT
                    'transaction of pid ' || pid || ' (' || application_name || ', ' || state || ')',
                    extract(epoch FROM now() - xact_start)
                FROM pg_stat_activity
                WHERE xact_start IS NOT NULL
                    AND pid <> pg_backend_pid()
                    AND backend_type = 'client backend'
                UNION ALL
                SELECT 'prepared transaction ' || gid, extract(epoch FROM now() - prepared)
                FROM pg_prepared_xacts
                ORDER BY 2 DESC
                LIMIT 1
                """
            ).fetchall()
            (slots,) = connection.execute(
                """
                SELECT string_agg(slot_name, ', ' ORDER BY slot_name)
                FROM pg_replication_slots
                WHERE NOT active AND restart_lsn IS NOT NULL
                """
            ).fetchone() or (None,)
        seen = "" if sees_all else " (of this role only; to see all, GRANT it pg_read_all_stats)"
        oldest = f"the oldest is the {rows[0][0]}, {float(rows[0][1]):.0f} s" if rows else "no transaction is open"
        oldest += seen
        if slots:
            return False, (
                f"{oldest}; nobody reads the replication slots {slots}: they keep write-ahead log until the disk "
                "is full; end what is not needed with SELECT pg_drop_replication_slot('NAME')"
            )
        if rows and rows[0][1] > MAX_TRANSACTION_AGE_SECONDS:
            return False, f"{oldest}: vacuum cannot remove newer dead rows; end it, or set a session timeout"
        return True, oldest

    def connections(self) -> Diagnosis:
        with self._connection() as connection:
            (used,) = connection.execute("SELECT sum(numbackends) FROM pg_stat_database").fetchone() or (0,)
            most = int(_setting(connection, "max_connections"))
        ours = self._url.connections + (3 if self.has_replica else 2)
        words = f"{used} of {most} are in use; each server, and each worker on this database, uses {ours}"
        return used < 0.9 * most, words

    def clock(self) -> Diagnosis:
        with self._connection() as connection:
            before = time.time()
            (now,) = connection.execute("SELECT extract(epoch FROM clock_timestamp())").fetchone() or (0,)
            skew = float(now) - (before + time.time()) / 2
        words = f"the database's clock is {abs(skew):.3f} s {'ahead of' if skew > 0 else 'behind'} this machine's"
        return abs(skew) < MAX_CLOCK_SKEW_SECONDS, words + "; servers use the database's clock"

    @property
    def has_replica(self) -> bool:
        """Whether the URL names a replica for lists."""
        return self._url.replica is not None

    def replica(self) -> Diagnosis:
        """Return what the replica lacks; only if there is one."""
        assert self._url.replica is not None
        from ojster.storage.postgres.replica import REPLAYED, WRITTEN

        with self._connection() as primary, self._connection(self._url.replica) as replica:
            (written,) = primary.execute(WRITTEN).fetchone() or (0,)
            started = time.monotonic()
            while True:
                (replayed,) = replica.execute(REPLAYED).fetchone() or (None,)
                lasted = time.monotonic() - started
                if replayed is None or replayed >= written or lasted > self._url.max_lag:
                    break
                time.sleep(0.05)
        if replayed is None:
            return False, "the host in read_host is no replica: it accepts writes; name another one"
        if replayed < written:
            limit = f"more than the {self._url.max_lag:g} s of read_lag"
            return False, f"the replica is {limit} behind, so that the primary is asked; see pg_stat_replication"
        return True, f"the replica had what the primary has written after {lasted:.1f} s"

    def wakeups(self) -> Diagnosis:
        from ojster.storage.postgres.database import listen_conninfo, version_of
        from ojster.storage.postgres.notifier import FIRST_POLL_SECONDS, MAX_POLL_SECONDS
        from ojster.storage.postgres.url import with_lacks

        with self._connection() as connection:
            url = with_lacks(self._url, version_of(connection))
        conninfo = listen_conninfo(url)
        if conninfo is None:
            polls = f"processes look for work every {FIRST_POLL_SECONDS:g} to {MAX_POLL_SECONDS:g} s"
            if "notifications" in url.lacks:
                return True, f"the database has no LISTEN: {polls}"
            bypass = f"set {LISTEN_VARIABLE} to a URL that bypasses the pooler"
            return False, f"LISTEN fails behind a transaction pooler: {polls}; {bypass}"
        with self._connection(conninfo) as connection:
            connection.execute("LISTEN ojster_doctor")
            started = time.perf_counter()
            connection.execute("NOTIFY ojster_doctor")
            heard = list(connection.notifies(timeout=5, stop_after=1))
        if not heard:
            return (
                False,
                "no notification arrived within 5 s; check for a pooler that the URL does not name",
            )
        return True, f"a notification takes {(time.perf_counter() - started) * 1000:.2f} ms"

    @contextmanager
    def _connection(self, conninfo: str | None = None) -> Iterator[psycopg.Connection]:
        import psycopg

        try:
            with psycopg.connect(conninfo or self._url.conninfo, autocommit=True, prepare_threshold=None) as connection:
                if not self._url.pooled:  # behind a pooler, it would stay for others
                    connection.execute(f"SET lock_timeout = {LOCK_WAIT_MS}".encode())
                yield connection
        except psycopg.Error as error:
            raise OSError(str(error).strip()) from error


def _setting(connection: psycopg.Connection, name: str) -> str:
    row = connection.execute("SELECT current_setting(%s)", (name,)).fetchone()
    return str(row[0]) if row is not None else ""


def _median_ms(work: Callable[[], Any], count: int) -> float:
    times = []
    for _ in range(count):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return sorted(times)[count // 2] * 1000


def _slow_commit_note(milliseconds: float) -> str:
    return "; commits will be slow, see --synchronous" if milliseconds >= 10 else ""
