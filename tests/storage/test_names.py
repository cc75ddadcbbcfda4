"""The storage runs transactions for all capabilities, and knows what they do by no name."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ojster import storage
from ojster.capabilities import CAPABILITIES

FOLDER = Path(str(storage.__file__)).parent

JOBS_ARE_COUNTED = "jobs are counted, and their work added up, by queue"
JOBS_HAVE_TENANTS = "a job and an event have a tenant, as a column"
ATTEMPTS = "the attempt that has ended is named by its job, number, start and worker"
LEASES = "leases are those of workers, and no lease ends after an outage before they could report"

WORDS: dict[str, dict[str, dict[str, str]]] = {
    "jobs": {},  # the storage stores jobs
    "queues": {
        r"(?<!en)queue": {
            "effects.py": JOBS_ARE_COUNTED,
            "memory.py": "job types are counted beside queues",
            "postgres/statements.py": JOBS_ARE_COUNTED,
            "postgres/transaction.py": JOBS_ARE_COUNTED,
            "tally.py": JOBS_ARE_COUNTED,
            "transaction.py": JOBS_ARE_COUNTED,
        },
    },
    "tenancy": {r"tenan": {"tally.py": JOBS_HAVE_TENANTS, "transaction.py": JOBS_HAVE_TENANTS}},
    "fleet": {
        r"worker": {
            "outages.py": LEASES,
            "postgres/statements.py": ATTEMPTS,
            "sqlite/statements.py": ATTEMPTS,
            "transaction.py": ATTEMPTS,
            "urls.py": "an error says which commands to start with the same URL",
        }
    },
    "events": {r"\breact|webhook|\bsubscri": {}},
    "insight": {r"\binsight|\bfacet": {}},
    "push": {r"\bpush.?endpoint": {}},
    "collections": {r"\bcollected\b|\bartifact": {}},
    "files": {r"\bupload|\bobject.?store": {}},
    "workflows": {r"workflow|\bflow_?|saga|\bsuspension": {}},
    "schedules": {r"\bcrons?\b|cron_|schedules|maintenance": {}},
    "agents": {r"\bagents?\b": {}},
    "audit": {r"\baudit": {}},
}
"""Words of each capability, in any case, with the files of the storage whose own they are, and the reason."""


def test_each_capability_has_its_words() -> None:
    assert {capability.name for capability in CAPABILITIES} == WORDS.keys()


@pytest.mark.parametrize("capability", WORDS)
def test_the_storage_knows_no_capability_by_name(capability: str) -> None:
    for word, own in WORDS[capability].items():
        known = {
            str(path.relative_to(FOLDER))
            for path in FOLDER.rglob("*.py")
            if re.search(word, path.read_text(), re.IGNORECASE)
        }
        assert known == own.keys(), word
