"""The progress of active jobs.

Spec: ojs-progress
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec
from msgspec import UNSET, UnsetType

from ojster.core.errors import OjsterError
from ojster.core.job import Job
from ojster.core.tenant import called
from ojster.core.timestamps import format_timestamp
from ojster.jobs.leases import lease_end, refusal_of
from ojster.jobs.messages import Progress
from ojster.storage.transaction import Transaction

MAX_MESSAGE_CHARACTERS: Final = 1_000
"""Maximum length of the message of a report, in characters."""


class ProgressState(msgspec.Struct, omit_defaults=True):
    """The progress of a job, as it is stored and shown. ``updated_at`` is RFC 3339."""

    progress: float | None
    message: str | None
    updated_at: str
    data: msgspec.Raw | UnsetType = UNSET


_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder(ProgressState).decode


def progress_of(job: Job) -> ProgressState | None:
    """Return the last progress of a job; ``None`` if it has reported none."""
    return None if job.progress is None else _decode(job.progress)


def report(tx: Transaction, items: Sequence[Progress]) -> list[Job | OjsterError]:
    """Record the progress of active jobs, and extend their leases; return each job, or the refusal of its report.

    A report on a job that is not active any more changes nothing. The fraction never decreases.
    """
    jobs = tx.lock_jobs([item.job_id for item in items])
    results: list[Job | OjsterError] = []
    rows = []
    for item in items:
        job = jobs.get(item.job_id)
        if job is not None and job.state != "active":
            results.append(job)
            continue
        if refusal := refusal_of(job, item):
            results.append(refusal)
            continue
        assert job is not None
        before = progress_of(job)
        known = None if before is None else before.progress
        fraction = known if item.fraction is None else max(item.fraction, known or 0.0)
        data = UNSET if item.data is None else msgspec.Raw(item.data)
        job.progress = _encode(ProgressState(fraction, item.message, format_timestamp(tx.now), data))
        extended = lease_end(tx, job, tx.settings.default_lease)
        job.due_at = max(job.due_at or 0, extended)
        tx.expect(job.due_at)
        rows.append((job.progress, job.due_at, job.seq))
        more = {} if item.data is None else {"data": msgspec.json.decode(item.data)}
        if fraction is not None:
            more["progress_percent"] = fraction * 100
        if item.message is not None:
            more["progress_message"] = item.message
        holder = {"worker_id": called(job.worker_id or ""), "attempt": job.attempt}
        tx.emit("job.progress", job, progress=fraction, message=item.message, **holder, **more)
        results.append(job)
    tx.execute_many("UPDATE jobs SET progress = ?, due_at = ? WHERE seq = ?", rows)
    return results


def clear_progress(tx: Transaction, jobs: Iterable[Job]) -> None:
    """Clear the progress of the previous attempt of jobs that start."""
    rows = []
    for job in jobs:
        job.progress = None
        rows.append((job.seq,))
    tx.execute_many("UPDATE jobs SET progress = NULL WHERE seq = ?", rows)


def complete_progress(tx: Transaction, jobs: Iterable[Job]) -> None:
    """Set the progress of completed jobs that have reported some to 1."""
    rows = []
    for job in jobs:
        if (state := progress_of(job)) is not None and state.progress is not None:
            state.progress = 1.0
            job.progress = _encode(state)
            rows.append((job.progress, job.seq))
    tx.execute_many("UPDATE jobs SET progress = ? WHERE seq = ?", rows)
