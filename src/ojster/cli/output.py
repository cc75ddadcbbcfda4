"""Output of the commands: tables for people, JSON for scripts."""

from __future__ import annotations

import time
from collections.abc import Container, Iterable, Sequence
from typing import Any, Final

import msgspec
from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderHook, RenderResult
from rich.segment import Segment
from rich.text import Text

from ojster.core.job import Job
from ojster.core.json_objects import read_members
from ojster.core.printable import printable
from ojster.jobs.job_json import to_json
from ojster.jobs.queries import JobPage


class _Printable(RenderHook):
    """Shows control characters in texts as replacement characters, so that no text steers the terminal."""

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        """Return what is printed in place of the given objects."""
        return [_PrintableText(renderable) for renderable in renderables]


class _PrintableText:
    def __init__(self, shown: ConsoleRenderable) -> None:
        self._shown = shown

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for part in console.render(self._shown, options):
            yield part if part.control else Segment(printable(part.text, "\n"), part.style)


def _console(**options: Any) -> Console:
    made = Console(highlight=False, **options)
    made.push_render_hook(_Printable())
    return made


_terminal: Final = _console()

console: Final = _terminal if _terminal.is_terminal else _console(width=240)
"""Standard output; if it is not a terminal, lines are 240 characters wide."""

errors: Final = _console(stderr=True)

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


class Id(str):
    """The id of a job or of a workflow in a table: a narrow terminal shows its beginning, which commands take, too."""

    __slots__ = ()


def print_table(columns: Sequence[str], rows: Iterable[Sequence[Any]], empty: str) -> None:
    """Print a table, or ``empty`` if there are no rows.

    Columns with ``#`` in front of their name are numbers. On a terminal that is too narrow, the widest columns are cut,
    but neither numbers, nor states, nor the first one, which has ids and names; nor are ids, which are shortened.
    """
    listed = [list(row) for row in rows]
    ids = {place for place in range(len(columns)) if _shorten(listed, place)}
    lines = [[_cell(value) for value in row] for row in listed]
    if not lines:
        console.print(empty, style="bright_black")
        return
    lines.insert(0, [(column, "bold") for column in columns])
    widths = _widths(lines, console.width if console.is_terminal else None, ids)
    shown = Text()
    for line in lines:
        for place, ((text, style), width) in enumerate(zip(line, widths, strict=True)):
            padding = " " * (width - cell_len(text))
            fitting = text if cell_len(text) <= width else set_cell_size(text, width - 1) + "…"
            if columns[place].startswith("#"):
                fitting, padding = padding + fitting, ""
            shown.append(fitting, style)
            shown.append("\n" if place == len(line) - 1 else padding + _GAP)
    console.print(shown, soft_wrap=True, end="")


def print_list(as_json: bool, value: Any, columns: Sequence[str], rows: Iterable[Sequence[Any]], empty: str) -> None:
    """Print ``value`` as JSON, or its rows as ``print_table`` does."""
    if as_json:
        print_json(value)
    else:
        print_table(columns, rows, empty)


_GAP: Final = "  "

_MIN_WIDTH: Final = 6
"""Width below which no column is cut."""


def _cell(value: Any) -> tuple[str, str]:
    """Return the text of a cell, and its style."""
    style = str(value.style) if isinstance(value, Text) else ""
    return ("" if value is None else printable(str(value))), style


def _widths(lines: Sequence[Sequence[tuple[str, str]]], available: int | None, ids: Container[int]) -> list[int]:
    """Return the width of each column, so that all fit into the available width; ``None``: any width."""
    widths = [max(cell_len(text) for text, _ in column) for column in zip(*lines, strict=True)]
    excess = 0 if available is None else sum(widths) + len(_GAP) * (len(widths) - 1) - available
    may_shrink = [
        place
        for place, (name, _) in enumerate(lines[0])
        if place and place not in ids and name != "state" and not name.startswith("#")
    ]
    while excess > 0 and max((widths[place] for place in may_shrink), default=0) > _MIN_WIDTH:
        widest = max(may_shrink, key=widths.__getitem__)
        widths[widest] -= 1
        excess -= 1
    return widths


_NARROW: Final = 120
"""Width of a terminal below which ids are shortened."""

_SHORTEST_ID: Final = 13
"""Least number of characters of a shortened id: the time of a job in milliseconds."""


def _shorten(rows: list[list[Any]], place: int) -> bool:
    """Shorten the ids of a column if the terminal is narrow, so that they stay different; return whether it has ids."""
    ids = {row[place] for row in rows if isinstance(row[place], Id)}
    if not ids or not console.is_terminal or console.width >= _NARROW:
        return bool(ids)
    longest = max(map(len, ids))
    length = next(
        (size for size in range(_SHORTEST_ID, longest) if len({id[:size] for id in ids}) == len(ids)), longest
    )
    for row in rows:
        if isinstance(row[place], Id):
            row[place] = row[place][:length]
    return True


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
            Id(job.id),
            job.type,
            job.queue,
            state_text(job.state),
            f"{job.attempt}/{job.possible_attempts}",
            ago(job.created_at),
            note,
        )


JOB_COLUMNS: Final = ("id", "type", "queue", "state", "attempt", "created", "error")


def job_json(job: Job) -> msgspec.Raw:
    """Return a job as JSON. What a server has answered is complete; what a database keeps lacks the columns."""
    is_answer = "state" in read_members(job.envelope, "The job")
    return msgspec.Raw(job.envelope if is_answer else to_json(job))


def print_page(page: JobPage, as_json: bool, empty: str) -> None:
    """Print a page of jobs and the total number of matches, or ``empty`` if there are none."""
    if as_json:
        print_json({"jobs": [job_json(job) for job in page.jobs], "total": page.total, "is_complete": page.is_complete})
        return
    if not (page.is_complete or page.jobs):
        some = "newest jobs" if page.examined is None else f"newest {page.examined:,} jobs"
        empty = f"Among the {some} there are none that match; older ones were not examined."
    print_table(JOB_COLUMNS, job_rows(page.jobs), empty)
    if page.total > len(page.jobs):
        some = "" if page.is_complete else "at least "
        console.print(f"{len(page.jobs)} of {some}{page.total}", style="bright_black")
    if page.jobs and page.examined is not None:
        console.print(f"{page.examined:,} jobs were searched; others may match.", style="bright_black")
