"""Plain jobs: when one completes, its row and its queue's counts change, and nothing else.

A report about a plain job can be written without a look at the whole job before: its attempt is checked and it is
completed at once. Jobs that became something else meanwhile, such as by a report of progress, are left alone.
"""

from __future__ import annotations

from typing import Final

from ojster.core.job import Job

PLAIN_END: Final = "j.node IS NULL AND j.flags = 0 AND j.agent IS NULL AND j.progress IS NULL"
"""Condition for plain jobs. It is the whole of what extensions may ask in ``refuse_result`` and ``acknowledge``."""

PLAIN_COLUMNS: Final = "seq, type, queue, tenant, enqueued_at, exclusive_key, limit_key, needs, trace_id"
"""What the end of a plain job must know beside its report."""


def plain_seq(job: Job) -> int | None:
    """Return the number of a plain job in its database; ``None``: it is not plain, or comes from a server."""
    is_plain = job.node is None and not job.flags and job.agent is None and job.progress is None
    return job.seq or None if is_plain else None
