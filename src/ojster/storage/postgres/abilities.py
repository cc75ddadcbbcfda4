"""What a database with PostgreSQL's protocol can do, and how Ojster does without what it lacks.

Databases that spread one schema over several machines leave some of PostgreSQL out. Each part that Ojster can do
without is an ability with a fallback, and a URL can say that the database lacks it: ``?lacks=notifications``.

=====================  ================================================================================================
Ability                Without it
=====================  ================================================================================================
advisory-locks         Keys are locked by rows of the table ``key_locks``; two keys may share a row, and then wait.
notifications          Processes look for what others have changed, ten times a second to once in two seconds.
skip-locked            Claims wait for each other.
unlogged-tables        The event log is written ahead, too.
storage-parameters     Tables have no room for changes beside their rows, and the database's own vacuum settings.
planner-settings       The database plans as it likes.
=====================  ================================================================================================
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final
from zlib import crc32

from ojster.core.errors import InvalidRequest

ABILITIES: Final = (
    "advisory-locks",
    "notifications",
    "skip-locked",
    "unlogged-tables",
    "storage-parameters",
    "planner-settings",
)
"""Abilities that a database may lack."""

Lacks = frozenset[str]
"""The abilities that a database lacks."""

NOTHING: Final[Lacks] = frozenset()
"""What PostgreSQL itself lacks."""

KNOWN: Final[dict[str, Lacks]] = {
    "CockroachDB": frozenset(ABILITIES) - {"skip-locked"},
    "-YB-": frozenset({"advisory-locks", "notifications", "unlogged-tables", "storage-parameters"}),
}
"""What databases lack, by a part of their ``version()``. CockroachDB has functions for advisory locks that lock
nothing."""

KEY_SLOTS: Final = 4096
"""Number of rows that keys share as locks where there are no advisory locks."""

_SKIPPING: Final = re.compile(r"(?i)\s+SKIP\s+LOCKED\b")
_UNLOGGED: Final = re.compile(r"(?i)\bUNLOGGED\s+")
_PARAMETERS: Final = re.compile(
    r"(?is)(?<=\))\s*WITH\s*\([^()]*\)(?=\s*[;)])|\bALTER\s+TABLE\s+\w+\s+(RE)?SET\s*\([^()]*\)\s*;"
    r"|\bALTER\s+TABLE\s+\w+\s+ALTER\s+COLUMN\s+\w+\s+SET\s+STORAGE\s+\w+\s*;"
)


def read_lacks(text: str) -> Lacks:
    """Read the list of abilities in the parameter ``lacks`` of a URL.

    Raises
    ------
    InvalidRequest
        It names something else.
    """
    named = frozenset(filter(None, text.split(",")))
    if unknown := sorted(named - set(ABILITIES)):
        raise InvalidRequest(
            f"lacks, in the database URL, must name some of {', '.join(ABILITIES)}, not {', '.join(unknown)!r}."
        )
    return named


def lacked_by(version: str) -> Lacks:
    """Return what a database lacks that calls itself so in ``version()``."""
    return frozenset().union(*(lacks for mark, lacks in KNOWN.items() if mark in version))


def without(sql: str, lacks: Lacks) -> str:
    """Return a statement as a database understands it that lacks some abilities."""
    return _SKIPPING.sub("", sql) if "skip-locked" in lacks else sql


def migration_without(script: str, lacks: Lacks) -> str:
    """Return a migration script as a database understands it that lacks some abilities."""
    if "unlogged-tables" in lacks:
        script = _UNLOGGED.sub("", script)
    if "storage-parameters" in lacks:
        script = _PARAMETERS.sub("", script)
    return script


def slots_of(names: Iterable[str]) -> dict[str, int]:
    """Return the rows of ``key_locks`` for keys, by name."""
    return {name: crc32(name.encode()) % KEY_SLOTS for name in names}
