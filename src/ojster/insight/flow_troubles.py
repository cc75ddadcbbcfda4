"""Flows that do not go on: their code does not fit their records, a worker runs them for too long, or none does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, Literal

import msgspec

from ojster.core.durations import DAY, HOUR
from ojster.core.job import NODE_BITS
from ojster.fleet.unrunnable import Unrunnable, list_unrunnable
from ojster.storage.transaction import Transaction
from ojster.workflows.node import Kind

STUCK_US: Final = HOUR
"""Time after which a flow that a worker runs should have waited or ended, in microseconds."""

RECENT_US: Final = DAY
"""Time for which a flow that has stopped because its code has changed is shown, in microseconds."""

MAX_EXAMINED: Final = 2_000
"""Number of failed workflows, and of active jobs, that are looked at."""

TroubleKind = Literal["mismatched", "stuck", "unrunnable"]
"""Why flows do not go on: their code asks for something else than what is recorded (``FlowChanged``), a worker runs
them without pause for ``STUCK_US``, or no worker runs them."""

_MAIN_BODY: Final = 2
"""Number of the node that runs the function of a workflow that is a flow: it follows the root and the flow."""


class FlowTrouble(msgspec.Struct, frozen=True):
    """Flows of a name that do not go on for the same reason: their number, one of them, and since when it is so."""

    kind: TroubleKind
    name: str
    count: int
    workflow_id: str
    since: int | None = None


def find_flow_troubles(tx: Transaction, requests: Sequence[None]) -> list[list[FlowTrouble]]:
    """Return the flows that do not go on, by reason and name, for each request."""
    (groups,) = list_unrunnable(tx, (None,))
    troubles = [*_mismatched(tx), *_stuck(tx), *unrunnable_flows(tx, groups)]
    return [list(troubles) for _ in requests]


def _mismatched(tx: Transaction) -> Iterator[FlowTrouble]:
    rows = tx.execute(
        f"""
        SELECT j.type, count(*), min(w.id), min(w.finished_at)
        FROM (
            SELECT seq, id, finished_at
            FROM workflows
            WHERE state = 'failed' AND type = 'flow' AND finished_at > :since
            ORDER BY finished_at DESC
            LIMIT :most
        ) AS w
        JOIN jobs AS j ON j.node = (w.seq << {NODE_BITS}) + {_MAIN_BODY}
        WHERE j.error_type = 'FlowChanged' AND j.superseded_by IS NULL
        GROUP BY j.type
        """,
        {"since": tx.now - RECENT_US, "most": MAX_EXAMINED},
    )
    yield from _troubles("mismatched", rows)


def _stuck(tx: Transaction) -> Iterator[FlowTrouble]:
    rows = tx.execute(
        f"""
        SELECT j.type, count(*), min(w.id), min(j.started_at)
        FROM (
            SELECT type, node, started_at
            FROM jobs
            WHERE state = 'active' AND due_at IS NOT NULL AND node IS NOT NULL AND started_at < :before
            LIMIT :most
        ) AS j
        JOIN nodes AS n ON n.id = j.node
        JOIN nodes AS p ON p.id = n.parent
        JOIN workflows AS w ON w.seq = (j.node >> {NODE_BITS})
        WHERE p.kind = '{Kind.FLOW.value}' AND n.position = 0
        GROUP BY j.type
        """,
        {"before": tx.now - STUCK_US, "most": MAX_EXAMINED},
    )
    yield from _troubles("stuck", rows)


def unrunnable_flows(tx: Transaction, groups: Sequence[Unrunnable]) -> Iterator[FlowTrouble]:
    """Yield the flows among the jobs that no worker can run: one for each group whose oldest job runs a flow."""
    for group in groups:
        rows = tx.execute(
            f"""
            SELECT w.id, j.type, j.enqueued_at
            FROM jobs AS j
            JOIN nodes AS n ON n.id = j.node
            JOIN nodes AS p ON p.id = n.parent
            JOIN workflows AS w ON w.seq = (j.node >> {NODE_BITS})
            WHERE j.id = :id AND p.kind = '{Kind.FLOW.value}' AND n.position = 0
            """,
            {"id": group.job_id},
        )
        for workflow_id, type, since in rows:
            yield FlowTrouble("unrunnable", type, group.jobs, str(workflow_id), since)


def _troubles(kind: TroubleKind, rows: Sequence[Sequence[Any]]) -> Iterator[FlowTrouble]:
    for type, count, workflow_id, since in rows:
        yield FlowTrouble(kind, type, count, str(workflow_id), since)
