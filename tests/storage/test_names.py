"""The storage runs transactions for all capabilities, and knows none of them by name."""

from __future__ import annotations

import re
from pathlib import Path

from ojster import storage
from ojster.capabilities import CAPABILITIES

FOLDER = Path(str(storage.__file__)).parent

SHARED = {
    "jobs": "the storage stores jobs",
    "queues": "a claim names the queue",
    "tenancy": "a claim names the tenant",
    "fleet": "a job names its worker",
    "events": "a transaction records events",
    "insight": "the storage adds up the work of minutes",
    "files": "a word for the files of SQLite",
    "collections": "a package of Python",
}
"""Capabilities whose words belong to the storage as well, with the reason."""

WORDS = {
    "workflows": r"workflow|\bflow_?|saga|\bsuspension",
    "schedules": r"\bcrons?\b|cron_|schedules",
    "agents": r"\bagents?\b",
    "audit": r"\baudit",
}
"""What each of the others is called, in any case."""


def test_each_capability_has_its_words_or_a_reason() -> None:
    assert {capability.name for capability in CAPABILITIES} == SHARED.keys() | WORDS.keys()


def test_the_storage_knows_no_capability_by_name() -> None:
    words = re.compile("|".join((*WORDS.values(), "webhook")), re.IGNORECASE)
    known = [
        f"{path.relative_to(FOLDER)}:{number} {line.strip()}"
        for path in sorted(FOLDER.rglob("*.py"))
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if words.search(line)
    ]
    assert known == []
