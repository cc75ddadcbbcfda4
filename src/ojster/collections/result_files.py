"""Results of jobs that are kept as files."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import msgspec

from ojster.collections.contents import put
from ojster.collections.items import NewItem, key_of_job
from ojster.core.errors import PayloadTooLarge
from ojster.core.job import Job
from ojster.core.reacts import COLLECTS
from ojster.events.reaction_rules import Collect, reactions_of
from ojster.files.file import RESULT, reference_to
from ojster.jobs.messages import Acknowledgement
from ojster.storage.transaction import Transaction
from ojster.workflows.node import NUMBER_BITS


def keep_result(tx: Transaction, job: Job, ack: Acknowledgement) -> bytes | None:
    """Return the result of a job; of one that is a file, what refers to that (ojs-workflows.md section 7.5)."""
    if ack.result_file is None:
        return None
    if refusal := _must_be_at_hand(tx, job):
        raise refusal
    item = put(tx, key_of_job(job.seq), job.tenant, NewItem(RESULT, b"null", None, True, ack.result_file), job=job)
    assert item.file is not None
    return reference_to(item.file)


def _must_be_at_hand(tx: Transaction, job: Job) -> PayloadTooLarge | None:
    """Return why the result of a job may not be a file, if something looks into it."""
    tx.envelopes([job])
    if not _is_looked_into(tx, job):
        return None
    largest = tx.settings.largest_job
    message = f"Something looks into the result of the job, so it cannot be a file, and has at most {largest} bytes."
    return PayloadTooLarge(message, limit=largest)


def may_be_files(tx: Transaction, ids: Sequence[str]) -> list[bool]:
    """Return whether the results of jobs may be files: not where steps look into the results of others."""
    jobs = tx.find_jobs(ids)
    return [id in jobs and not _is_looked_into(tx, jobs[id]) for id in ids]


_LOOKS_INTO_RESULTS: Final = re.compile(rb'"(names|condition|over)":')
"""Stands in what is noted of a node that refers to other steps, decides by them, or is made of a list of theirs."""


def _is_looked_into(tx: Transaction, job: Job) -> bool:
    """Whether something that happens in a transaction looks into the result of a job, so that it must be at hand."""
    if job.agent is not None or b"job.result" in job.envelope or _is_collected(job):
        return True
    if job.node is None:
        return False
    low = job.node >> NUMBER_BITS << NUMBER_BITS
    specs = tx.execute(
        "SELECT spec FROM node_specs WHERE id BETWEEN :low AND :high",
        {"low": low, "high": low + (1 << NUMBER_BITS) - 1},
    )
    return any(_LOOKS_INTO_RESULTS.search(spec) for (spec,) in specs)


def _is_collected(job: Job) -> bool:
    """Whether the result of a job is put into a collection."""
    return bool(job.reacts & COLLECTS) and any(
        isinstance(action, Collect) and action.data is msgspec.UNSET and action.artifacts is None
        for action in reactions_of(job.envelope).get("on_success", ())
    )
