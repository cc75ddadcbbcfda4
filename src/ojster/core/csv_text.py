"""Rows of CSV that a spreadsheet opens without running anything.

Spec: RFC 4180
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from io import StringIO
from typing import Any, Final

import msgspec

Row = Mapping[str, Any]
"""The members of a line in an exported list, by name."""

FORMULA_STARTS: Final = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")  # noqa: RUF001  (wide ones count, too)
"""Characters with which a spreadsheet begins a formula. A formula may send the other cells to anybody."""


def csv_line(values: Iterable[Any]) -> str:
    """Return a line with these values.

    ``None`` is an empty cell, and an array or object is JSON. A text that a spreadsheet would take for a formula begins
    with an apostrophe; numbers stay as they are.
    """
    line = StringIO()
    csv.writer(line).writerow([_cell(value) for value in values])
    return line.getvalue()


def _cell(value: Any) -> str:
    if isinstance(value, msgspec.Raw):
        value = msgspec.json.decode(value)
    if value is None:
        return ""
    if isinstance(value, bool | int | float):
        return msgspec.json.encode(value).decode()
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return f"'{text}" if text.startswith(FORMULA_STARTS) else text
