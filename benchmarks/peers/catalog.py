"""The task queues that are compared: where each keeps its jobs, how it is installed, and its settings."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

ROOT = Path(__file__).parent.parent.parent

Store = Literal["PostgreSQL", "SQLite", "Redis"]
Toolchain = Literal["python", "node", "go", "cargo"]

KEPT: Mapping[Store, str] = {
    "PostgreSQL": "PostgreSQL, each commit",
    "SQLite": "SQLite, each commit",
    "Redis": "Redis, each second",
}
"""What is on disk when: every commit is synced, or (``appendfsync everysec``) all commands, once a second."""


@dataclass(frozen=True)
class Peer:
    """One row of the table.

    Parameters
    ----------
    name, store:
        Name of the task queue, and where it keeps its jobs.
    module:
        The driver module ``with_…``.
    packages:
        Packages of the virtual environment in which the driver runs.
    environment:
        Environment variables of the driver and the workers.
    toolchain:
        What installs the peer.
    source:
        Folder of a program in another language, or its file in ``node``.
    settings:
        Settings of the workers of such a program: the number of processes, and the arguments of ``work``.
    server:
        Go package, with its version, of the server of a peer that brings one; it keeps its data in ``store``.
    """

    name: str
    store: Store
    module: str
    packages: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    toolchain: Toolchain = "python"
    source: str = ""
    settings: Mapping[str, tuple[int, Sequence[str]]] = field(default_factory=dict)
    server: str = ""

    @property
    def label(self) -> str:
        """Name and store."""
        return f"{self.name} on {self.store}"

    @property
    def variables(self) -> dict[str, str]:
        """Environment variables of the driver, with the settings of a program."""
        return {**self.environment, "PEERS_SETTINGS": json.dumps(dict(self.settings))}


def _program(
    name: str, store: Store, toolchain: Toolchain, source: str, settings: Mapping[str, tuple[int, Sequence[str]]]
) -> Peer:
    return Peer(name, store, "with_program", toolchain=toolchain, source=source, settings=settings)


OJSTER = ("-e", f"{ROOT}[postgres]")

BULLMQ = _program(
    "BullMQ (Node)",
    "Redis",
    "node",
    "bullmq.mjs",
    {
        "1 process, 100 at once": (1, ["100"]),
        "1 process, 500 at once": (1, ["500"]),
        "2 processes, 100 at once": (2, ["100"]),
    },
)

PG_BOSS = _program(
    "pg-boss (Node)",
    "PostgreSQL",
    "node",
    "pgboss.mjs",
    {
        "1 process, batches of 1,000": (1, ["1000", "2"]),
        "2 processes, batches of 1,000": (2, ["1000", "1"]),
    },
)

TEMPORAL_PACKAGES = ("temporalio", "uvloop")
TEMPORAL = "github.com/temporalio/cli/cmd/temporal@v1.5.1"
"""The newest version from the module proxy that ``go install`` takes: the go.mod of later ones has a replacement."""

PEERS = (
    Peer("Ojster", "PostgreSQL", "with_ojster", OJSTER),
    Peer("Ojster", "SQLite", "with_ojster", OJSTER, {"PEERS_OJSTER": "sqlite"}),
    Peer("PgQueuer", "PostgreSQL", "with_pgqueuer", ("pgqueuer[asyncpg]", "uvloop")),
    Peer("Procrastinate", "PostgreSQL", "with_procrastinate", ("procrastinate", "psycopg[binary,pool]")),
    _program(
        "River (Go)",
        "PostgreSQL",
        "go",
        "river",
        {
            "1 process, 500 at once": (1, ["500"]),
            "1 process, 2,000 at once": (1, ["2000"]),
            "2 processes, 500 at once": (2, ["500"]),
        },
    ),
    _program(
        "graphile-worker (Node)",
        "PostgreSQL",
        "node",
        "graphile.mjs",
        {"1 process, 24 at once": (1, ["24"]), "2 processes, 24 at once": (2, ["24"])},
    ),
    PG_BOSS,
    replace(PG_BOSS, name="pg-boss (Node), notified", environment={"PEERS_NOTIFY": "1"}),
    Peer("Huey", "SQLite", "with_huey", ("huey", "redis"), {"PEERS_HUEY": "sqlite"}),
    _program(
        "apalis (Rust)",
        "SQLite",
        "cargo",
        "apalis",
        {
            "1 process, batches of 100": (1, ["100"]),
            "1 process, batches of 1,000": (1, ["1000"]),
            "2 processes, batches of 1,000": (2, ["1000"]),
        },
    ),
    Peer("Huey", "Redis", "with_huey", ("huey", "redis")),
    BULLMQ,
    Peer("taskiq", "Redis", "with_taskiq", ("taskiq", "taskiq-redis", "uvloop")),
    Peer("Dramatiq", "Redis", "with_dramatiq", ("dramatiq[redis]",)),
    Peer("Celery", "Redis", "with_celery", ("celery[redis]",)),
    Peer("RQ", "Redis", "with_rq", ("rq",)),
)

WORKFLOW_PEERS = (
    Peer("Ojster", "PostgreSQL", "with_ojster", OJSTER),
    Peer("Ojster", "SQLite", "with_ojster", OJSTER, {"PEERS_OJSTER": "sqlite"}),
    Peer("DBOS", "PostgreSQL", "with_dbos", ("dbos",)),
    Peer("Temporal", "SQLite", "with_temporal", TEMPORAL_PACKAGES, server=TEMPORAL),
    Peer(
        "Temporal, local activities",
        "SQLite",
        "with_temporal",
        TEMPORAL_PACKAGES,
        {"PEERS_TEMPORAL_LOCAL": "1"},
        server=TEMPORAL,
    ),
    BULLMQ,
    Peer("Celery", "Redis", "with_celery", ("celery[redis]",), {"PEERS_WORKFLOWS": "1"}),
)

FLOW_PEERS = (
    *WORKFLOW_PEERS[:3],
    Peer("DBOS", "SQLite", "with_dbos", ("dbos",), {"PEERS_DBOS": "sqlite"}),
    Peer("Absurd", "PostgreSQL", "with_absurd", ("absurd-sdk", "absurdctl", "psycopg[binary]")),
    WORKFLOW_PEERS[4],
)
