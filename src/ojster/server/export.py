"""Exports: whole lists as files, in CSV or JSON, which are written while they are read."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from typing import Final, Literal, get_args

from ojster.core.csv_text import Row, csv_line
from ojster.core.errors import InvalidRequest
from ojster.server.answer import PLAIN_JSON, Answer, encode

FileFormat = Literal["csv", "json"]

FORMATS: Final[tuple[FileFormat, ...]] = get_args(FileFormat)

FORMAT: Final = ("format",)
"""Query parameter of exports."""

_CSV: Final = b"text/csv; charset=utf-8"


def format_of(query: Mapping[str, str]) -> FileFormat:
    """Return the parameter ``format`` of a query; ``json`` if it is missing.

    Raises
    ------
    InvalidRequest
        It is something else than ``csv`` or ``json``.
    """
    wanted = query.get("format", "json")
    for format in FORMATS:
        if wanted == format:
            return format
    raise InvalidRequest(f"The parameter 'format' must be 'csv' or 'json', not {wanted[:40]!r}.", field="format")


async def exported(
    format: FileFormat,
    name: str,
    columns: Sequence[str],
    pages: AsyncIterator[Sequence[Row]],
    around: tuple[bytes, bytes] = (b"[", b"]"),
) -> Answer:
    """Return the answer with all rows. The first page is read before, so that what is refused is answered as always.

    Parameters
    ----------
    name:
        Name of the file, without its ending.
    columns:
        The members of a row that CSV has, in this order. JSON has all.
    around:
        What JSON has before and behind the rows.
    """
    first = await anext(pages, ())
    rest = _lines(columns, first, pages) if format == "csv" else _objects(around, first, pages)
    headers = [(b"content-disposition", f'attachment; filename="{name}.{format}"'.encode())]
    kind = _CSV if format == "csv" else PLAIN_JSON + b"; charset=utf-8"
    return Answer(headers=headers, content_type=kind, stream=rest)


async def _lines(
    columns: Sequence[str], first: Sequence[Row], rest: AsyncIterator[Sequence[Row]]
) -> AsyncGenerator[bytes, None]:
    yield (csv_line(columns) + _csv_of(columns, first)).encode()
    async for rows in rest:
        yield _csv_of(columns, rows).encode()


def _csv_of(columns: Sequence[str], rows: Sequence[Row]) -> str:
    return "".join(csv_line(row.get(column) for column in columns) for row in rows)


async def _objects(
    around: tuple[bytes, bytes], first: Sequence[Row], rest: AsyncIterator[Sequence[Row]]
) -> AsyncGenerator[bytes, None]:
    yield around[0] + b"\n" + b",\n".join(map(encode, first))
    comma = b",\n" if first else b""
    async for rows in rest:
        if rows:
            yield comma + b",\n".join(map(encode, rows))
            comma = b",\n"
    yield b"\n" + around[1] + b"\n"
