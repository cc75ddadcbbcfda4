"""Options of a worker that has several processes, or one that is replaced now and then."""

from __future__ import annotations

import asyncio
import functools
import os
import sys
from pathlib import Path
from typing import Any, Final

import click
import msgspec

from ojster.cli.declared import MEBIBYTES, NUMBER, PROCESSES, together
from ojster.cli.declared import Command as Function
from ojster.cli.logs import log_to_console, with_logging
from ojster.cli.supervisor import NUMBER_VARIABLE, ProcessCommand, Supervisor, same_command
from ojster.worker.children import ChildLimits


class Process(msgspec.Struct, frozen=True):
    """What a worker process should do as one of several: when to ask for a new one, and which file to touch."""

    limits: ChildLimits = ChildLimits()
    health: Path | None = None


def with_processes(function: Function) -> Function:
    """Add the options of processes, as the argument ``process``, and those of logs.

    The command that the user starts supervises the processes, each of which is the same command with ``--supervised``.
    """

    @functools.wraps(function)
    def read(
        *args: Any,
        processes: int,
        max_jobs: int | None,
        max_memory: int | None,
        health_file: Path | None,
        supervised: bool,
        log_level: str,
        log_format: str,
        **more: Any,
    ) -> Any:
        log_to_console(log_level, log_format)
        if health_file is not None and not health_file.parent.is_dir():
            raise click.UsageError(f"--health-file: there is no folder {health_file.parent}.")
        limits = ChildLimits(max_jobs=max_jobs, max_memory=None if max_memory is None else max_memory << 20)
        if supervised or (processes == 1 and limits == ChildLimits()):
            number = os.environ.get(NUMBER_VARIABLE) if supervised else None
            if more["identity"] is not None:
                more["identity"] = _numbered(more["identity"], number)
            return function(*args, process=Process(limits, _numbered(health_file, number)), **more)
        if sys.platform == "win32":
            raise click.UsageError("--processes, --max-jobs and --max-memory need signals that Windows does not have.")
        return _supervise(processes, health_file, more["wait"])

    return _with_options(read)


def _numbered(file: Path | None, number: str | None) -> Path | None:
    """Return the file of one of several processes."""
    return file if file is None or number is None else file.with_name(f"{file.name}.{number}")


def _supervise(processes: int, health: Path | None, wait: float) -> int:
    """Run so many worker processes, each of which waits so long for the database; return the exit code."""
    numbers = [str(number) for number in range(1, processes + 1)]
    files = [file for number in numbers if (file := _numbered(health, number)) is not None]
    started = [ProcessCommand(same_command(), {NUMBER_VARIABLE: number}) for number in numbers]
    return asyncio.run(Supervisor(started, files, health, wait=wait).run())


_with_options: Final = together(
    with_logging,
    click.option(
        "--processes",
        type=PROCESSES,
        default=1,
        show_default=True,
        help="Number of worker processes, each with its own --concurrency. One that dies is started again, "
        "but not one that 'ojster workers tell ID terminate' ends.",
    ),
    click.option(
        "--max-jobs",
        type=NUMBER,
        help="Replace a worker process after so many jobs; it finishes those it runs.",
    ),
    click.option(
        "--max-memory",
        type=MEBIBYTES,
        metavar="MIB",
        help="Replace a worker process after a job when it has become larger than this.",
    ),
    click.option(
        "--health-file",
        type=click.Path(dir_okay=False, path_type=Path),
        help="File to touch at every heartbeat that was answered; 'ojster healthy FILE' checks it.",
    ),
    click.option("--supervised", is_flag=True, hidden=True),
)
