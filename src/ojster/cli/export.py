"""Whole lists on standard output, as lines of JSON or as CSV."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Final, Literal, TypeVar, get_args

import click
import msgspec

from ojster.core.csv_text import Row, csv_line

Command = TypeVar("Command", bound=Callable[..., Any])

LineFormat = Literal["jsonl", "csv"]


with_format: Final = click.option(
    "--format",
    type=click.Choice(get_args(LineFormat)),
    default="jsonl",
    show_default=True,
    help="Lines of JSON, or CSV, in which no cell is a formula.",
)


async def write_rows(format: LineFormat, columns: Sequence[str], pages: AsyncIterator[Sequence[Row]]) -> None:
    """Print rows, page by page. CSV has the given columns of them, and JSON has all members."""
    if format == "csv":
        sys.stdout.write(csv_line(columns))
    async for rows in pages:
        for row in rows:
            if format == "csv":
                sys.stdout.write(csv_line(row.get(column) for column in columns))
            else:
                sys.stdout.write(msgspec.json.encode(row).decode() + "\n")
