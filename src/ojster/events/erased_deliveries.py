"""Deletion of deliveries and notifications about workflows and jobs that were deleted on request."""

from __future__ import annotations

from collections.abc import Set
from typing import Any, Final

from ojster.core.states import FINISHED
from ojster.events import notifications, webhooks
from ojster.jobs.extension import Erasure, settle
from ojster.jobs.interventions import delete_jobs
from ojster.jobs.transitions import cancel_jobs
from ojster.storage.transaction import Transaction

WINDOW: Final = 5_000
"""Number of jobs that one step examines."""

_LAST: Final = """
    SELECT max(seq), count(*)
    FROM (SELECT seq FROM jobs WHERE seq > :after ORDER BY seq LIMIT :window) AS examined
"""

_DELIVERIES: Final = f"""
    SELECT id
    FROM jobs
    WHERE seq > :after AND seq <= :last AND type IN ('{webhooks.JOB_TYPE}', '{notifications.JOB_TYPE}')
"""


def erase_deliveries(tx: Transaction, erasure: Erasure) -> int | None:
    """Delete those among the next jobs; return where the next step begins, or ``None`` at the end.

    Deliveries that are under way are cancelled: their receivers may get them all the same.
    """
    bounds = {"after": erasure.position, "window": WINDOW}
    ((last, examined),) = tx.execute(_LAST, bounds)
    if not examined:
        return None
    deliveries = tx.execute(_DELIVERIES, {"after": erasure.position, "last": last})
    about = [
        id
        for id, job in tx.find_jobs([str(id) for (id,) in deliveries]).items()
        if _is_among(job.args, erasure.subjects)
    ]
    jobs = list(tx.lock_jobs(about).values())  # a server may take or end them now
    cancel_jobs(tx, [job for job in jobs if job.state not in FINISHED])
    settle(tx)
    delete_jobs(tx, [(job.seq, job.queue, job.tenant, job.state) for job in jobs])
    return int(last) if examined == WINDOW else None


def _is_among(value: Any, subjects: Set[str]) -> bool:
    """Return whether a JSON value has one of some texts anywhere."""
    if isinstance(value, str):
        return value in subjects
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return any(_is_among(member, subjects) for member in inner)
