"""Runs tests on a PostgreSQL that is said to lack abilities, and checks in its log that none of them was used.

``python -m tests.abilities`` does so once for all abilities together, ``--each`` once for each of them, and
``python -m tests.abilities notifications`` for one. Other arguments are for pytest.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import Final

from ojster.storage.postgres.abilities import ABILITIES
from tests.postgres import PostgresServer

USES: Final = {
    "advisory-locks": r"pg_(try_)?advisory",
    "notifications": r"\bpg_notify\b|\bLISTEN\b|\bNOTIFY\b",
    "skip-locked": r"\bSKIP\s+LOCKED\b",
    "unlogged-tables": r"\bUNLOGGED\b",
    "storage-parameters": r"\bfillfactor\b|\bautovacuum_|\bSET\s+STORAGE\b",
    "planner-settings": r"\benable_\w+|\bplan_cache_mode\b",
}
"""What shows in a statement that it uses an ability."""

FOLDERS: Final = ("storage", "jobs", "queues", "workflows", "schedules", "events", "fleet", "collections", "client")
"""Folders of the tests that run."""

SELECTED: Final = "postgres or enqueue_in_transaction or test_abilities"
"""Which of these tests."""


def main() -> int:
    """Run the tests for the abilities that the command line names."""
    named = [word for word in sys.argv[1:] if word in ABILITIES]
    others = [word for word in sys.argv[1:] if word not in ABILITIES and word != "--each"]
    runs = [[name] for name in ABILITIES] if "--each" in sys.argv else [named or list(ABILITIES)]
    return max(run(lacking, others) for lacking in runs)


def run(lacking: list[str], others: list[str]) -> int:
    """Run the tests once; return the exit status."""
    print(f"--- without {', '.join(lacking)}", flush=True)
    server = PostgresServer(fsync="off", log_statement="all", log_line_prefix="%a: ")
    server.start()
    try:
        chosen = others or [f"tests/{folder}" for folder in FOLDERS]
        environment = {"OJSTER_TEST_POSTGRES": server.url, "OJSTER_TEST_LACKS": ",".join(lacking)}
        command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "-k", SELECTED, *chosen]
        status = subprocess.run(command, env=os.environ | environment).returncode
        used = uses(server, lacking)
        for line in used:
            print(f"used what is lacking: {line}")
        return status or bool(used)
    finally:
        server.remove()


def uses(server: PostgresServer, lacking: list[str]) -> list[str]:
    """Return the lines of the server's log that show a use of what is lacking, by Ojster's own connections.

    Raises
    ------
    AssertionError
        There are no lines of Ojster's connections, so that nothing would be found.
    """
    words = re.compile("|".join(USES[name] for name in lacking))
    own = False
    number = 0
    found: dict[str, None] = {}
    with (server.folder / "log").open(errors="replace") as log:
        for line in log:
            if not line.startswith("\t"):  # else it continues the line before
                own = line.startswith(("ojster: LOG:", "ojster: DETAIL:"))  # details have the values of parameters
                number += own
            statement = line.partition("--")[0]  # the schema says in comments why it uses an ability
            if (
                own and words.search(statement) and "EXPLAIN" not in line
            ):  # which the tests of query plans send themselves
                found[line.strip()[:300]] = None
    assert number > 1000, f"{number} lines of the log are of Ojster's connections"
    return list(found)


if __name__ == "__main__":
    sys.exit(main())
