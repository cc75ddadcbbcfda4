"""The `ojster bench` command."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import click
from rich.markup import escape
from rich.table import Table

from ojster.cli.declared import Seconds
from ojster.cli.options import examples, with_json
from ojster.cli.output import console, errors, print_json
from ojster.cli.signals import on_signals
from ojster.cli.trial_store import trial_store
from ojster.storage.database import URL_VARIABLE, without_password
from ojster.storage.urls import DEFAULT_URL

if TYPE_CHECKING:
    from ojster.cli.trial import Reading
    from ojster.cli.trial_store import TrialStore

BUSY: Final = 0.8
"""Share of a core from which the processor of this process is what limits a rate."""

SECONDS_OF_A_DAY: Final = 86_400


@click.command(
    epilog=examples(
        "ojster bench --database sqlite:///jobs.db",
        "ojster bench --database postgresql://jobs@db.example.com/shop",
        "ojster bench --seconds 10 --jobs 100000 --json",
    )
)
@click.option(
    "--database",
    "--url",
    envvar=URL_VARIABLE,
    default=DEFAULT_URL,
    show_default=True,
    show_envvar=True,
    metavar="URL",
    help="The database. Its jobs are not touched.",
)
@click.option(
    "--seconds",
    type=Seconds(0.1, 600),
    default=3.0,
    show_default=True,
    help="Maximum time for which jobs are enqueued in each measurement; they are all run.",
)
@click.option(
    "--jobs",
    type=click.IntRange(1_000, 1_000_000),
    default=20_000,
    show_default=True,
    help="Maximum number of jobs in each measurement.",
)
@with_json
def bench(database: str, seconds: float, jobs: int, as_json: bool) -> None:
    """Measure what this installation can do, and say what limits it.

    The jobs do nothing, and are in a store of their own: a file beside the SQLite file, or a schema in the PostgreSQL
    database, which is deleted at the end. Other users of the disk or the database notice the load, usually for half a
    minute.
    """
    if sys.platform == "win32":
        raise click.UsageError("Databases cannot be opened on Windows. Run this on the server's machine, or in WSL.")
    import uvloop  # here, because it would slow down help

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that it deletes the store
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    if load > cores / 2:
        errors.print(f"This machine is busy (load {load:.1f}, {cores} cores): the figures will be too low.")
    try:
        with trial_store(database) as store:
            readings, bytes_per_job = uvloop.run(_measure(store, seconds, jobs, shows=not as_json))
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
    if as_json:
        print_json({"database": without_password(database), "readings": readings, "bytes_per_job": bytes_per_job})
        return
    console.print(_table(readings))
    for sentence in conclusions(readings, bytes_per_job):
        console.print(f"* {escape(sentence)}", highlight=False)


async def _measure(store: TrialStore, seconds: float, jobs: int, *, shows: bool) -> tuple[list[Reading], float]:
    from ojster.cli.trial import Bounds, Trial  # here, because its libraries would slow down help
    from ojster.core.tuning import tune_interpreter

    task = asyncio.current_task()
    assert task is not None
    # Not an exception at any place: it might be in the middle of a transaction.
    on_signals(asyncio.get_running_loop(), {"SIGTERM": task.cancel, "SIGINT": task.cancel})
    tune_interpreter()
    trial = Trial(store, Bounds(seconds, jobs))
    readings: list[Reading] = []
    with errors.status("measuring", spinner="line") as status:
        async for reading in trial.readings():
            readings.append(reading)
            if shows:
                status.update(f"{reading.name}: {_shown(reading)}")
    return readings, trial.bytes_per_job


def _shown(reading: Reading) -> str:
    return f"{reading.value:,.0f}/s" if reading.unit == "/s" else f"{reading.value:.2f} ms"


def _table(readings: Sequence[Reading]) -> Table:
    table = Table(title="What this installation can do", title_justify="left", header_style="bold")
    table.add_column("")
    for head in ("measured", "of a core", "processor a job"):
        table.add_column(head, justify="right", no_wrap=True)
    for reading in readings:
        core = "" if reading.core is None else f"{reading.core:.0%}"
        processor = "" if reading.processor_us is None else f"{reading.processor_us:.0f} µs"
        table.add_row(reading.name, _shown(reading), core, processor)
    return table


def conclusions(readings: Sequence[Reading], bytes_per_job: float) -> list[str]:
    """Return sentences that say what limits the rates, and what they mean for a day.

    Parameters
    ----------
    readings:
        What was measured; the first is the time of one enqueue alone.
    bytes_per_job:
        What a finished job takes on the disk, in bytes.
    """
    from ojster.cli.trial import RUN

    alone, *others = readings
    rates = [reading for reading in others if reading.core is not None]
    busy = [reading.name for reading in rates if (reading.core or 0) >= BUSY]
    waiting = [reading.name for reading in rates if (reading.core or 0) < BUSY]
    said: list[str] = []
    if busy:
        said.append(
            f"Limited by the processor of one process: {'; '.join(busy)}. More processes do more, until the database "
            "is the limit: 'ojster serve --processes', 'ojster worker --processes'."
        )
    if waiting:
        said.append(
            f"Limited by the database: {'; '.join(waiting)}. One commit takes about {alone.value:.1f} ms: look at its "
            "disk, its processors and the network to it ('ojster doctor')."
        )
    (run,) = [reading for reading in rates if reading.name == RUN]
    daily = run.value * SECONDS_OF_A_DAY
    said.append(
        f"{run.value:,.0f} jobs a second are {daily / 1e6:,.0f} million a day in one worker process, if jobs do "
        "nothing; plan with a third of it, for peaks and for what your jobs do."
    )
    said.append(
        f"A finished job takes about {bytes_per_job:,.0f} bytes besides its arguments and its result, until its "
        f"retention ends: {bytes_per_job * 1e6 / 1e9:.1f} GB for a million."
    )
    return said
