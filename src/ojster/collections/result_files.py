"""Results of jobs that are kept as files."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from typing import Final

import msgspec

from ojster.collections.collect import collects_of
from ojster.collections.contents import put, release_references
from ojster.collections.items import NewItem, key_of_job
from ojster.core.errors import BackendUnavailable, NotFound, PayloadTooLarge
from ojster.core.job import NODE_BITS, Job
from ojster.core.job_flags import COLLECTS_BIT
from ojster.core.refusals import size_details
from ojster.files.file import JSON, MAX_INLINE_RESULT_BYTES, RESULT, NewFile, reference_to
from ojster.files.service import FileService
from ojster.jobs.messages import Acknowledgement
from ojster.jobs.scope import CapabilityService, Scope
from ojster.storage.transaction import Transaction

log = logging.getLogger("ojster")


def keep_result(tx: Transaction, job: Job, ack: Acknowledgement) -> bytes | None:
    """Return the result of a job; if it is a file, store that and return a reference to it.

    Spec: ojs-workflows 7.5
    """
    if ack.result_file is None:
        return None
    if refusal := _must_be_at_hand(tx, job):
        raise refusal
    item = put(tx, key_of_job(job.seq), job.tenant, NewItem(RESULT, b"null", None, True, ack.result_file), job=job)
    assert item.file is not None
    return reference_to(item.file)


def let_go(tx: Transaction, jobs: Sequence[int]) -> None:
    """Delete what keeps the files of results that are deleted; ``jobs``: the ``seq`` of their jobs."""
    if not jobs:
        return
    rows = tx.execute(
        f"""
        DELETE FROM collection_items
        WHERE collection {tx.among_texts} AND name = ? AND removed_at IS NULL
        RETURNING file_id
        """,
        (tx.texts([key_of_job(seq) for seq in jobs]), RESULT),
    )
    release_references(tx, [(None, file_id) for (file_id,) in rows])


def _must_be_at_hand(tx: Transaction, job: Job) -> PayloadTooLarge | None:
    """Return the error if the result of a job cannot be a file because the server reads it, else ``None``."""
    tx.load_envelopes([job])
    if not _is_looked_into(tx, job):
        return None
    largest = tx.settings.largest_job
    message = (
        f"The result of the job {job.id} cannot be a file, because a reaction, a workflow or an agent check reads it. "
        f"Send it inline, with at most {largest} bytes."
    )
    return PayloadTooLarge(message, **size_details(largest, None, "result"))


def may_be_files(tx: Transaction, ids: Sequence[str]) -> list[bool]:
    """Return for each job whether its result may be a file: only if no transaction has to read it."""
    jobs = tx.find_jobs(ids)
    return [id in jobs and not _is_looked_into(tx, jobs[id]) for id in ids]


_LOOKS_INTO_RESULTS: Final = re.compile(rb'"(names|condition|over)":')
"""Matches the specification of a node that reads results of other steps: a reference, a condition or a map."""


def _is_looked_into(tx: Transaction, job: Job) -> bool:
    """Return whether a transaction reads the result of a job, so that it must be stored inline."""
    if job.agent is not None or b"job.result" in job.envelope or _is_collected(job):
        return True
    if job.node is None:
        return False
    low = job.node >> NODE_BITS << NODE_BITS
    specs = tx.execute(
        "SELECT spec FROM node_specs WHERE id BETWEEN :low AND :high",
        {"low": low, "high": low + (1 << NODE_BITS) - 1},
    )
    return any(_LOOKS_INTO_RESULTS.search(spec) for (spec,) in specs)


def _is_collected(job: Job) -> bool:
    """Return whether a reaction puts the result of a job into a collection."""
    return bool(job.flags & COLLECTS_BIT) and any(
        action.data is msgspec.UNSET and action.artifacts is None for action in collects_of(job.envelope)
    )


class ResultFiles(CapabilityService):
    """Keeps large results of jobs as files."""

    def __init__(self, scope: Scope, files: FileService) -> None:
        super().__init__(scope)
        self._files = files

    async def shrink(self, items: Sequence[Acknowledgement]) -> Sequence[Acknowledgement]:
        """Return acknowledgements with the large results among them replaced by files.

        Results that workflows, reactions or collections read stay as they are.
        """
        if not self._files.has_store or all(len(item.result or b"") <= MAX_INLINE_RESULT_BYTES for item in items):
            return items
        return [await self._with_file(item) for item in items]

    async def _with_file(self, item: Acknowledgement) -> Acknowledgement:
        """Store a large result of a job as a file."""
        if item.append:
            return item  # appended steps may refer to the result
        if item.result is None or not MAX_INLINE_RESULT_BYTES < len(item.result) <= self.database.settings.largest_job:
            return item
        if not await self.database.read(may_be_files, item.job_id):
            return item
        try:
            file = await self._files.keep(item.result, NewFile(content_type=JSON, job_id=item.job_id))
        except (BackendUnavailable, NotFound, PayloadTooLarge) as error:
            log.warning("result of job %s stays in the database, storing it as a file failed: %s", item.job_id, error)
            return item
        return msgspec.structs.replace(item, result=None, result_file=file.id)
