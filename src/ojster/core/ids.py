"""Ids: of jobs, UUIDv7 in lower case with hyphens; of workflows, any short text.

Spec: ojs-core 5.1, ojs-workflows 3
"""

from __future__ import annotations

import re
from typing import Final

import uuid_utils

UUID: Final = "[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
"""Pattern of a UUID of any version, as it is stored."""

# The variant is not checked: examples of the specification have others than that of RFC 9562.
JOB_ID: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}")


def new_id() -> str:
    """Return a new UUIDv7. The ids of one process sort in the order in which they were made."""
    return str(uuid_utils.uuid7())


def is_job_id(text: str) -> bool:
    """Tell whether ``text`` is a UUIDv7 in its canonical form."""
    return JOB_ID.fullmatch(text) is not None


SHORTEST_BEGINNING: Final = 6
"""Number of characters from which on the beginning of an id may stand for it."""


def ids_beginning_with(start: str) -> tuple[str, str] | None:
    """Return the first and the last job id that begin with a text; ``None``: too short a text, or no id begins so."""
    first, last = start + _FIRST_ID[len(start) :], start + _LAST_ID[len(start) :]
    return (first, last) if len(start) >= SHORTEST_BEGINNING and is_job_id(first) else None


MOST_IDS_COMPARED: Final = 10_000
"""Number of ids with a beginning that are looked at for one of a tenant; beyond it, more characters are needed."""

_FIRST_ID: Final = "00000000-0000-7000-0000-000000000000"
_LAST_ID: Final = "ffffffff-ffff-7fff-ffff-ffffffffffff"


def canonical_job_id(text: str) -> str:
    """Return the id of a job in lower case, as it is stored; other text unchanged."""
    lower = text.lower()
    return lower if is_job_id(lower) else text


LONGEST_WORKFLOW_ID: Final = 128


def is_workflow_id(text: str) -> bool:
    """Tell whether ``text`` can be the id of a workflow: short, printable, and a segment of a URL's path."""
    return 0 < len(text) <= LONGEST_WORKFLOW_ID and is_segment(text) and text not in _RESERVED_WORKFLOW_IDS


_RESERVED_WORKFLOW_IDS: Final = {"statistics"}
"""Names that the paths of the API use in place of an id."""


def is_segment(text: str) -> bool:
    """Tell whether ``text`` can stand in a URL's path: it is printable, has no slash, and no spaces at its ends."""
    return text.isprintable() and "/" not in text and text == text.strip() and text not in ("", ".", "..")
