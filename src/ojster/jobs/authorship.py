"""Who created a job: the name of the caller's token, which the server adds to the job.

A step of a workflow belongs to whoever created the workflow, and what a reaction creates to whoever created its job.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from ojster.core.job import Job
from ojster.storage.call import for_each
from ojster.storage.transaction import Transaction


class _Signed(msgspec.Struct):
    created_by: str | None = None


_read: Final = msgspec.json.Decoder(_Signed).decode


def creator_of(envelope: bytes) -> str | None:
    """Return the name of the creator in the envelope of a job, if there is one."""
    return _read(envelope).created_by


def sign(envelope: bytes, creator: str | None) -> bytes:
    """Return the envelope of a job with the name of its creator, if that is known."""
    if creator is None:
        return envelope
    return b'%b,"created_by":%b}' % (envelope[:-1], msgspec.json.encode(creator))


@for_each
def find_creators(tx: Transaction, ids: tuple[str, ...]) -> dict[str, str | None]:
    """Return who created each existing job, by job id, for each request."""
    return creators_of(tx, list(tx.find_jobs(ids).values()))


def creators_of(tx: Transaction, jobs: Sequence[Job]) -> dict[str, str | None]:
    """Return who created each of these jobs, by job id. Their envelopes must be loaded."""
    numbers = {job.workflow for job in jobs if job.workflow is not None}
    of_workflows: dict[int, str | None] = {}
    if numbers:
        of_workflows = dict(
            tx.execute(f"SELECT seq, created_by FROM workflows WHERE seq {tx.among}", (tx.integers(numbers),))
        )
    return {
        job.id: creator_of(job.envelope) if job.workflow is None else of_workflows.get(job.workflow) for job in jobs
    }
