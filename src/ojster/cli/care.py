"""How does an operator look after a database from the command line?"""

from __future__ import annotations

import asyncio
import os
import platform
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import click

from ojster.app import URL_VARIABLE
from ojster.cli.common import ask, done, examples, with_json, with_url
from ojster.cli.output import console, print_json
from ojster.client.interface import Client
from ojster.database.sqlite import migrate as migrate_schema
from ojster.model.errors import InvalidRequest, OjsterError
from ojster.version import __version__


@click.command(epilog=examples("ojster migrate --database sqlite:///jobs.db"))
@click.option(
    "--database", "--url", envvar=URL_VARIABLE, required=True, show_envvar=True, metavar="URL", help="The database."
)
@with_json
def migrate(database: str, as_json: bool) -> None:
    """Bring a database's schema up to date; servers and workers do so themselves when they start."""
    if not database.startswith("sqlite:///"):
        raise InvalidRequest(f"{database!r} is no database; write it like sqlite:///jobs.db.")
    path = Path(database.removeprefix("sqlite:///"))
    path.parent.mkdir(parents=True, exist_ok=True)
    connection = apsw.Connection(str(path))
    connection.set_busy_timeout(30_000)
    version = migrate_schema(connection)
    connection.close()
    done(f"The schema of {database} has version {version}.", as_json, {"database": database, "version": version})


@click.command(epilog=examples("ojster doctor", "ojster doctor --url http://127.0.0.1:8080"))
@with_url
@with_json
def doctor(url: str, as_json: bool) -> int:
    """Check that the database or the server works, and how well."""
    findings: list[dict[str, Any]] = []

    def check(name: str, examine: Callable[[], tuple[bool, str]]) -> None:
        try:
            fine, words = examine()
        except (OjsterError, apsw.Error, OSError) as error:
            fine, words = False, str(error)
        findings.append({"check": name, "ok": fine, "finding": words})

    check("versions", _versions)
    if url.startswith("sqlite:///") and url != "sqlite:///:memory:":
        path = Path(url.removeprefix("sqlite:///"))
        check("file", lambda: _file(path))
        check("integrity", lambda: _integrity(path))
        check("disk", lambda: _disk(path.parent))
    check("answers", lambda: _answers(url))
    check("backlog", lambda: _backlog(url))
    healthy = all(finding["ok"] for finding in findings)
    if as_json:
        print_json({"ok": healthy, "checks": findings})
    else:
        for finding in findings:
            mark = "[green]✓[/]" if finding["ok"] else "[bold red]✗[/]"
            console.print(f"{mark} [bold]{finding['check']}[/]  {finding['finding']}", soft_wrap=True)
    return 0 if healthy else 1


def _versions() -> tuple[bool, str]:
    return True, (
        f"Ojster {__version__}, Python {platform.python_version()} on {sys.platform}, "
        f"SQLite {apsw.sqlite_lib_version()} (Python's own: {sqlite3.sqlite_version})"
    )


def _file(path: Path) -> tuple[bool, str]:
    if not path.exists():
        return False, f"{path} does not exist yet; it is made by the first server, worker or push"
    log = path.with_name(path.name + "-wal")
    sizes = (
        f"{path.stat().st_size / 1e6:.1f} MB, write-ahead log {log.stat().st_size / 1e6 if log.exists() else 0:.1f} MB"
    )
    return os.access(path, os.W_OK), f"{path}, {sizes}"


def _integrity(path: Path) -> tuple[bool, str]:
    if not path.exists():
        return False, "nothing to check"
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    (result,) = connection.execute("PRAGMA quick_check(1)").fetchall()[0]
    connection.close()
    return result == "ok", str(result)


def _disk(folder: Path) -> tuple[bool, str]:
    """How fast a commit is, at least: a write of a page that is forced to the disk."""
    with tempfile.TemporaryFile(dir=folder) as file:
        times = []
        for _ in range(50):
            started = time.perf_counter()
            os.pwrite(file.fileno(), b"\0" * 4096, 0)
            os.fsync(file.fileno())
            times.append(time.perf_counter() - started)
    median = sorted(times)[25] * 1000
    return median < 50, f"a forced write takes {median:.2f} ms (median of 50)" + (
        "; commits will be slow, see --synchronous" if median >= 10 else ""
    )


def _answers(url: str) -> tuple[bool, str]:
    started = time.perf_counter()
    queues = ask(url, lambda client: client.queues())
    return True, f"{len(queues)} queues, in {(time.perf_counter() - started) * 1000:.0f} ms"


def _backlog(url: str) -> tuple[bool, str]:
    async def look(client: Client) -> tuple[int, int, int]:
        statistics = await asyncio.gather(*[client.queue_statistics(queue.name) for queue in await client.queues()])
        waiting = sum(one.counts.get("available", 0) for one in statistics)
        dead = (await client.list_jobs(_dead_letters())).total
        return waiting, dead, len(await client.workers())

    waiting, dead, workers = ask(url, look)
    words = f"{waiting} jobs wait, {workers} workers, {dead} dead letters"
    if waiting and not workers:
        return False, words + ": nobody works on them; start one with 'ojster worker'"
    return True, words


def _dead_letters() -> Any:
    from ojster.engine.inspect import JobFilter

    return JobFilter(dead=True, limit=1)
