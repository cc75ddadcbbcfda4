"""Output of the commands: tables for people, JSON for scripts."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec
from rich.console import Console, JustifyMethod
from rich.table import Table
from rich.text import Text

from ojster.core.job import Job
from ojster.core.timestamps import format_timestamp
from ojster.jobs.job_json import to_json
from ojster.jobs.queries import JobPage

_terminal: Final = Console(highlight=False)

console: Final = _terminal if _terminal.is_terminal else Console(highlight=False, width=240)
"""Standard output; if it is not a terminal, lines are 240 characters wide."""

errors: Final = Console(stderr=True, highlight=False)

STATE_STYLES: Final = {
    "scheduled": "cyan",
    "available": "blue",
    "pending": "magenta",
    "active": "bold yellow",
    "completed": "green",
    "retryable": "yellow",
    "cancelled": "bright_black",
    "discarded": "bold red",
}


def print_json(value: Any) -> None:
    """Print indented JSON; ``value`` may contain encoded JSON as ``msgspec.Raw``."""
    encoded = msgspec.json.encode(value)
    console.print(msgspec.json.format(encoded, indent=2).decode(), soft_wrap=True, markup=False)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[Any]], empty: str) -> None:
    """Print a table, or ``empty`` if there are no rows."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in columns:
        justify: JustifyMethod = "right" if column.startswith("#") else "left"
        table.add_column(column, overflow="fold", justify=justify, no_wrap=column == columns[0])
    for row in rows:
        table.add_row(*(cell if isinstance(cell, Text) else Text("" if cell is None else str(cell)) for cell in row))
    if table.row_count:
        console.print(table)
    else:
        console.print(empty, style="bright_black")


def state_text(state: str) -> Text:
    """Return a state in its colour."""
    return Text(state, style=STATE_STYLES.get(state, ""))


def ago(moment: int | None) -> str:
    """Return the distance of a time from now in one unit, such as ``5 min ago`` or ``2 d ahead``."""
    if moment is None:
        return ""
    seconds = time.time() - moment / 1e6
    words = "ago" if seconds >= 0 else "ahead"
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if abs(seconds) >= size:
            return f"{abs(seconds) / size:.0f} {unit} {words}"
    return f"{abs(seconds):.0f} s {words}"


def job_rows(jobs: Iterable[Job]) -> Iterable[Sequence[Any]]:
    """Return the rows of a table of jobs."""
    for job in jobs:
        error = job.error
        note = f"{error['type']}: {error['message']}"[:60] if error else ""
        yield (
            job.id,
            job.type,
            job.queue,
            state_text(job.state),
            f"{job.attempt}/{job.max_attempts}",
            ago(job.created_at),
            note,
        )


JOB_COLUMNS: Final = ("id", "type", "queue", "state", "attempt", "created", "error")


def job_json(job: Job) -> msgspec.Raw:
    """Return a job as JSON."""
    return msgspec.Raw(to_json(job) if job.seq else job.envelope)


def timestamp_json(moment: int | None) -> str | None:
    """Return a time in JSON format, or ``None``."""
    return None if moment is None else format_timestamp(moment)


def print_page(page: JobPage, as_json: bool, empty: str) -> None:
    """Print a page of jobs and the total number of matches, or ``empty`` if there are none."""
    if as_json:
        print_json({"jobs": [job_json(job) for job in page.jobs], "total": page.total})
        return
    print_table(JOB_COLUMNS, job_rows(page.jobs), empty)
    if page.total > len(page.jobs):
        console.print(f"{len(page.jobs)} of {page.total}", style="bright_black")
