"""The health of a worker in a file, which is touched at every heartbeat: an old one tells of a worker that hangs."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Final

import click

from ojster.cli.options import examples

log = logging.getLogger(__name__)

MAX_AGE_SECONDS: Final = 30.0
"""Age from which a health file tells of a worker that hangs, in seconds: six heartbeats."""


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
    )
)
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option(
    "--max-age", type=click.FloatRange(1), default=MAX_AGE_SECONDS, show_default=True, help="Oldest sign, in seconds."
)
def healthy(file: Path, max_age: float) -> int:
    """Check that a worker is well, by its --health-file: for the probes of Kubernetes and Docker.

    Exits with 0 if its last heartbeat was answered within --max-age seconds, otherwise with 1.
    """
    age = age_of(file)
    if age is None:
        click.echo(f"{file} does not exist: the worker has not started, or has stopped.", err=True)
        return 1
    if age > max_age:
        click.echo(f"The last heartbeat was {age:.0f} seconds ago: the worker hangs, or its server is away.", err=True)
        return 1
    click.echo(f"The last heartbeat was {age:.0f} seconds ago.")
    return 0
