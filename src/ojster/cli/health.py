"""The health of a worker in a file, which is touched at every heartbeat: an old one tells of a worker that hangs."""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path
from typing import Final

import click

from ojster.cli.declared import Seconds
from ojster.cli.option_rules import used_options
from ojster.cli.options import examples
from ojster.storage.database import without_password
from ojster.storage.urls import known_url

log = logging.getLogger(__name__)

MAX_AGE_SECONDS: Final = 30.0
"""Age from which a health file tells of a worker that hangs, in seconds: six heartbeats."""

PROBE_SECONDS: Final = 5.0
"""Time in which a server must say that it is ready, in seconds."""


def touch(file: Path) -> None:
    """Set the time of a health file to now, on the clock of this machine; what prevents it is logged."""
    try:
        file.touch()
    except OSError as error:
        log.error("cannot touch the health file %s: %s", file, error.strerror)


def age_of(file: Path) -> float | None:
    """Return the age of a health file, in seconds; ``None`` if there is none."""
    try:
        return time.time() - file.stat().st_mtime
    except FileNotFoundError:
        return None


@click.command(
    epilog=examples(
        "ojster worker myapp:app --health-file /tmp/healthy",
        "ojster healthy /tmp/healthy",
        "ojster healthy /tmp/healthy --max-age 60",
        "ojster healthy http://127.0.0.1:8080",
        "ojster healthy unix:///run/ojster.sock",
    )
)
@click.argument("file", metavar="FILE|URL")
@click.option(
    "--max-age",
    type=Seconds(1),
    default=MAX_AGE_SECONDS,
    show_default=True,
    metavar="SECONDS",
    help="Oldest sign of a worker.",
)
def healthy(file: str, max_age: float) -> int:
    """Check that a worker is well, by its --health-file, or that a server is ready, by its URL: for probes.

    Exits with 0 if the worker's last heartbeat was answered within --max-age seconds, or if the server can write to its
    database; otherwise with 1.
    """
    if file.startswith(("http://", "https://", "unix:")):
        if used_options("max_age"):
            raise click.UsageError("--max-age has no effect on a server. Leave it out.")
        return _ready(file)
    age = age_of(Path(file))
    if age is None:
        click.echo(f"{file} does not exist: the worker has not started, or has stopped.", err=True)
        return 1
    if age > max_age:
        click.echo(f"The last heartbeat was {age:.0f} seconds ago: the worker hangs, or its server is away.", err=True)
        return 1
    click.echo(f"The last heartbeat was {age:.0f} seconds ago.")
    return 0


def _ready(url: str) -> int:
    from ojster.client.transport import NETWORK_ERRORS, Response, Transport  # not needed for a file

    async def ask() -> Response:
        transport = Transport(known_url(url).rstrip("/"), {})
        try:
            return await transport.send("GET", "/ready", patience=PROBE_SECONDS)
        finally:
            await transport.close()

    try:
        answer = asyncio.run(ask())
    except NETWORK_ERRORS as error:
        click.echo(f"The server at {without_password(url)} does not answer: {error or type(error).__name__}", err=True)
        return 1
    click.echo(answer.content.decode(errors="replace"), err=not answer.is_success)
    return 0 if answer.is_success else 1
