"""Starts of workers: on which host each ran, and which code, so that charts can mark when new code came."""

from __future__ import annotations

from typing import Final

import msgspec

from ojster.core.durations import DAY
from ojster.core.tenant import called
from ojster.storage.call import for_each
from ojster.storage.transaction import ColumnType, Transaction

KEPT_US: Final = 60 * DAY
"""Time for which the start of a worker is kept, in microseconds: as long as statistics."""

MAX_STARTS: Final = 10_000
"""Maximum number of starts that are read: those of the latest workers."""

MAX_WORKERS: Final = 1_000
"""Maximum number of workers of a host whose jobs are counted, the latest."""

MAX_DEPLOYMENTS: Final = 100
"""Maximum number of deployments of an answer, the latest."""


_COLUMNS: Final[dict[str, ColumnType]] = {
    "worker_id": "text",
    "hostname": "text",
    "queues": "text",
    "code_version": "text",
    "is_new": "bigint",
    "started_at": "bigint",
}


class Deployment(msgspec.Struct, frozen=True):
    """The first start of a worker of some queues with new code.

    Parameters
    ----------
    at:
        Its time, in microseconds since the epoch.
    queues:
        The queues of the worker.
    """

    at: int
    code_version: str
    queues: list[str]


def note_start(
    tx: Transaction, worker_id: str, hostname: str | None, queues: tuple[str, ...], code_version: str | None
) -> None:
    """Keep the start of a worker, and whether its code is new."""
    served = msgspec.json.encode(sorted(queues)).decode()
    is_new = code_version is not None and _is_new(tx, served, code_version)
    tx.insert_rows("worker_starts", _COLUMNS, [(worker_id, hostname, served, code_version, int(is_new), tx.now)])


def _is_new(tx: Transaction, served: str, code_version: str) -> bool:
    """Return whether no start of a worker of the same queues with this code is kept.

    Workers of two applications may serve the same queues, and while old workers are replaced by new ones, both start:
    only the first start of each code counts. So code that was taken back and comes again is not new.
    """
    return not tx.execute(
        "SELECT 1 FROM worker_starts WHERE code_version = :code_version AND queues = :queues LIMIT 1",
        {"queues": served, "code_version": code_version},
    )


def workers_of_host(tx: Transaction, hostname: str) -> list[str]:
    """Return the stored names of the workers that have run on a host, the latest ``MAX_WORKERS``."""
    rows = tx.execute(
        """
        SELECT worker_id
        FROM (
            SELECT worker_id, hostname, number
            FROM worker_starts
            ORDER BY number DESC
            LIMIT :most
        ) AS latest
        WHERE hostname = :hostname
        ORDER BY number DESC
        LIMIT :shown
        """,
        {"hostname": hostname, "most": MAX_STARTS, "shown": MAX_WORKERS},
    )
    return list(dict.fromkeys(id for (id,) in rows))


def workers_called(tx: Transaction, name: str) -> list[str]:
    """Return the stored names of the workers that have this name, of any tenant."""
    rows = tx.execute(
        """
        SELECT worker_id
        FROM (
            SELECT worker_id, number
            FROM worker_starts
            ORDER BY number DESC
            LIMIT :most
        ) AS latest
        WHERE worker_id LIKE '/%'
        ORDER BY number DESC
        """,
        {"most": MAX_STARTS},
    )
    return [name, *dict.fromkeys(id for (id,) in rows if called(id) == name)][:MAX_WORKERS]


@for_each
def list_deployments(tx: Transaction, span: tuple[int, int]) -> list[Deployment]:
    """Return when new code came between two times, in microseconds since the epoch, the first first, for each span."""
    since, until = span
    rows = tx.execute(
        """
        SELECT started_at, code_version, queues
        FROM worker_starts
        WHERE started_at >= :since AND started_at <= :until AND is_new = 1
        ORDER BY started_at DESC
        LIMIT :most
        """,
        {"since": since, "until": until, "most": MAX_DEPLOYMENTS},
    )
    return [Deployment(at, code, _names(queues)) for at, code, queues in reversed(rows)]


_names: Final = msgspec.json.Decoder(list[str]).decode


def forget_starts(tx: Transaction, room: int) -> int:
    """Delete at most ``room`` starts of long ago; return their number."""
    rows = tx.execute(
        """
        DELETE FROM worker_starts
        WHERE number IN (SELECT number FROM worker_starts WHERE started_at <= :before ORDER BY started_at LIMIT :room)
        RETURNING number
        """,
        {"before": tx.now - KEPT_US, "room": max(0, room)},
    )
    return len(rows)
