"""Maintenance commands: ``migrate``, ``prune`` and ``doctor``."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Callable
from typing import Any

import apsw
import click
import msgspec
from rich.markup import escape

from ojster.cli import doctor as checks
from ojster.cli.logs import log_to_console
from ojster.cli.option_rules import used_options
from ojster.cli.options import ask, confirm, done, examples, with_json, with_retention, with_url
from ojster.cli.output import console, print_json
from ojster.client.interface import Client
from ojster.core.durations import format_duration
from ojster.core.errors import OjsterError
from ojster.core.public_settings import Retention, Settings, in_microseconds
from ojster.fleet.unrunnable import Unrunnable
from ojster.jobs.filter_walk import JobFilter
from ojster.jobs.queries import Page
from ojster.storage.database import URL_VARIABLE, names_a_database, without_password
from ojster.storage.open import EventLogging, migrate_database


@click.command(
    epilog=examples(
        "ojster migrate --database postgresql://jobs@db.example.com/shop",
        "ojster migrate --database 'postgresql:///shop?schema=background'",
        "ojster migrate --database postgresql://jobs@db.example.com/shop --events logged",
        "ojster migrate --database sqlite:///jobs.db",
    )
)
@click.option(
    "--database", "--url", envvar=URL_VARIABLE, required=True, show_envvar=True, metavar="URL", help="Database to use."
)
@click.option(
    "--events",
    type=click.Choice(["logged", "unlogged"]),
    help="PostgreSQL: whether events are in the write-ahead log. Followers then miss none when a standby takes over, "
    "and each job that somebody follows costs 500 bytes more of that log. [default: as before; unlogged at first]",
)
@with_json
def migrate(database: str, events: EventLogging | None, as_json: bool) -> None:
    """Migrate the database schema to the current version. Repeated, interrupted and concurrent runs are safe.

    On PostgreSQL, each step is a transaction, and may run while others work: it waits half a second at most for the
    lock of a table, then lets the others go on and tries again. Indexes of large tables are built while others read and
    write. Use a connection without a pooler.

    Servers and workers migrate SQLite files themselves, and PostgreSQL databases if started with --migrate.
    """
    log_to_console("info")  # a build of an index may take minutes
    version = migrate_database(database, events=events)
    shown = without_password(database)
    done(f"The schema of {shown} has version {version}.", as_json, {"database": shown, "version": version})


@click.command(
    epilog=examples(
        "ojster prune --url http://127.0.0.1:8080 --dry-run",
        "ojster prune --url http://127.0.0.1:8080",
        "ojster prune --url sqlite:///jobs.db --keep-completed P7D --keep-cancelled never",
    )
)
@with_url
@click.option("--dry-run", is_flag=True, help="Count what would be deleted, and delete nothing.")
@with_retention
@click.option("--yes", "-y", is_flag=True, help="Skip the confirmation.")
@with_json
def prune(url: str, dry_run: bool, retention: Retention, yes: bool, as_json: bool) -> None:
    """Delete all jobs and workflows past their retention now, in small transactions.

    Servers do this continuously. A server uses its own retention periods. For a database, give the same periods as its
    servers use.
    """
    if not names_a_database(url) and (idle := used_options(*Retention.__struct_fields__)):
        raise click.UsageError(f"A server uses its own retention: {idle[0]} has no effect. Leave it out.")
    settings = Settings(retention=retention)
    if not (dry_run or yes or url.startswith(("http", "unix"))):
        periods = ", ".join(
            f"{name.replace('_', ' ')} {'never' if period is None else format_duration(period)}"
            for name, period in msgspec.structs.asdict(in_microseconds(settings).retention).items()
            if name != "most_dead_letters"
        )
        confirm(f"Delete finished jobs and workflows older than this: {periods}?")
    deleted = ask(url, lambda client: client.maintenance.prune(dry_run=dry_run), settings=settings)
    words = f"{deleted['jobs']} jobs, {deleted['workflows']} workflows and {deleted['files']} files"
    done(f"{words} {'would be' if dry_run else 'are'} deleted.", as_json, {"pruned": deleted, "dry_run": dry_run})


@click.command(
    epilog=examples(
        "ojster doctor",
        "ojster doctor --url postgresql://jobs@db.example.com/shop",
        "ojster doctor --url http://127.0.0.1:8080",
    )
)
@with_url
@with_json
def doctor(url: str, as_json: bool) -> int:
    """Check the health and the speed of the database or the server."""
    findings: list[dict[str, Any]] = []

    def check(name: str, examine: Callable[[], checks.Diagnosis]) -> bool:
        """Examine something, and return whether that was possible."""
        is_examined = True
        try:
            fine, words = examine()
        except (OjsterError, apsw.Error, OSError) as error:
            fine, is_examined = False, False
            words = " ".join(str(error).split())
        findings.append({"check": name, "ok": fine, "finding": words})
        if not as_json:  # at once: a later check may wait for as long as the database does not answer
            mark = "[green]✓[/]" if fine else "[bold red]✗[/]"
            console.print(f"{mark} [bold]{name}[/]  {escape(words)}", soft_wrap=True)
        return is_examined

    check("versions", checks.versions)
    try:
        named_checks = checks.checks_of(url)
    except (OjsterError, ImportError) as error:
        named_checks = [("url", functools.partial(_failed_finding, error))]
    named_checks += [
        ("answers", lambda: _check_round_trip(url)),
        ("backlog", lambda: _backlog(url)),
        ("audit log", lambda: _audit_log(url)),
    ]
    for name, examine in named_checks:
        if not check(name, examine) and name in ("database", "answers"):
            break  # the others would say the same
    healthy = all(finding["ok"] for finding in findings)
    if as_json:
        print_json({"ok": healthy, "checks": findings})
    return 0 if healthy else 1


def _failed_finding(error: Exception) -> checks.Diagnosis:
    return False, str(error)


def _check_round_trip(url: str) -> checks.Diagnosis:
    started = time.perf_counter()
    queues = ask(url, lambda client: client.queues.all())
    return True, f"{len(queues)} queues, in {(time.perf_counter() - started) * 1000:.0f} ms"


def _audit_log(url: str) -> checks.Diagnosis:
    verdict = ask(url, lambda client: client.audit.verify())
    if verdict.problem is not None:
        return False, f"{verdict.problem} Somebody has changed the table audit_log; compare it with a backup"
    return True, f"{verdict.head.number} entries were written; none is missing, and none was changed"


def _backlog(url: str) -> checks.Diagnosis:
    async def look(client: Client) -> tuple[int, int, int, list[Unrunnable]]:
        statistics = await asyncio.gather(
            *[client.queues.statistics(queue.name) for queue in await client.queues.all()]
        )
        waiting = sum(queue_statistics.counts.get("available", 0) for queue_statistics in statistics)
        dead = (await client.jobs.select(JobFilter(dead=True), Page(1))).total
        return waiting, dead, len(await client.fleet.all()), await client.fleet.unrunnable()

    waiting, dead, workers, unrunnable = ask(url, look)
    words = f"{waiting} available jobs, {workers} workers, {dead} dead letters"
    if waiting and not workers:
        return False, words + ": no worker is running; start one with 'ojster worker'"
    if unrunnable:
        jobs = sum(group.jobs for group in unrunnable)
        first = unrunnable[0]
        return False, (
            f"{words}: no worker can run {jobs} of the jobs, such as {first.job_id} in the queue {first.queue} "
            f"({'; '.join(first.reasons)}); 'ojster workers unrunnable' lists them"
        )
    return True, words
