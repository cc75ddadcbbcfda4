"""The JSON of answers about bulk operations."""

from __future__ import annotations

from typing import Literal

from msgspec import UNSET, Raw, Struct, UnsetType

from ojster.core.timestamps import format_timestamp
from ojster.core.wire import Count, Json, Timestamp
from ojster.jobs.answer_wire import JobBody, State
from ojster.jobs.sweeps import Sweep


class BatchResultBody(Struct):
    """The outcome of an item of ``/jobs/batch``."""

    index: Count
    status: int
    job_id: str | UnsetType | None = UNSET
    error: dict[str, Json] | UnsetType = UNSET
    deduplicated: bool | UnsetType = UNSET


class BatchSummaryBody(Struct):
    """Numbers of jobs of a batch."""

    total: Count
    succeeded: Count
    failed: Count


class BatchAnswer(Struct):
    """The outcomes of ``/jobs/batch``; a push also has the ``jobs``.

    After a dry run, the outcomes are those that there would be. Its jobs that are finished were so before ``as_of``.

    Spec: ojs-bulk-operations
    """

    results: list[BatchResultBody]
    summary: BatchSummaryBody
    jobs: list[Raw] | UnsetType = UNSET
    count: Count | UnsetType = UNSET
    dry_run: Literal[True] | UnsetType = UNSET
    as_of: Timestamp | UnsetType = UNSET
    next_cursor: str | UnsetType | None = UNSET
    """Where the next part begins, if the request has a ``cursor``; null: this was the last one."""
    warnings: list[str] | UnsetType = UNSET


class EnqueuedBatchAnswer(Struct):
    """The jobs of a batch; with a ``mode`` also the outcome of each.

    Spec: ojs-http-binding 9.2
    """

    jobs: list[JobBody]
    count: Count
    results: list[BatchResultBody] | UnsetType = UNSET
    summary: BatchSummaryBody | UnsetType = UNSET
    warnings: list[str] | UnsetType = UNSET


class BulkJobBody(Struct):
    """A job of a bulk operation."""

    id: str
    type: str
    state: State


class BulkItemBody(Struct):
    """The outcome of an item of ``/jobs/bulk``."""

    index: Count
    status: str
    error: dict[str, Json] | UnsetType = UNSET
    job_id: str | UnsetType | None = UNSET
    reason: str | UnsetType = UNSET
    job: BulkJobBody | UnsetType = UNSET


class BulkEnqueuedAnswer(Struct):
    """The outcomes of a bulk push.

    Spec: ojs-bulk-operations
    """

    total: Count
    succeeded: Count
    failed: Count
    items: list[BulkItemBody]
    warnings: list[str] | UnsetType = UNSET


class BulkChangedAnswer(Struct):
    """The outcomes of a bulk operation on existing jobs; of ``cancelled``, ``retried`` and ``deleted`` it has one.

    After a dry run, the outcomes are those that there would be. Its jobs that are finished were so before ``as_of``.
    """

    total_matched: Count
    skipped: Count
    items: list[BulkItemBody]
    cancelled: Count | UnsetType = UNSET
    retried: Count | UnsetType = UNSET
    deleted: Count | UnsetType = UNSET
    dry_run: Literal[True] | UnsetType = UNSET
    as_of: Timestamp | UnsetType = UNSET
    next_cursor: str | UnsetType | None = UNSET
    """Where the next part begins, if the request has a ``cursor``; null: this was the last one."""


class SweepErrorBody(Struct):
    """A job that was not changed, and why."""

    job_id: str
    error: str


class SweepAnswer(Struct):
    """The outcome of an operation on all jobs that match a filter; after a dry run, what it would be.

    The jobs of a dry run that are finished were so before ``as_of``.
    """

    action: str
    matched: Count
    succeeded: Count
    failed: Count
    errors: list[SweepErrorBody]
    purged_count: Count | UnsetType = UNSET
    dry_run: Literal[True] | UnsetType = UNSET
    as_of: Timestamp | UnsetType = UNSET


def show_sweep(sweep: Sweep) -> SweepAnswer:
    """Return the JSON form of the outcome of an operation on all jobs that match a filter."""
    errors = [SweepErrorBody(job_id, refusal.message) for job_id, refusal in sweep.items if refusal is not None]
    shown = SweepAnswer(sweep.action, sweep.matched, sweep.succeeded, sweep.failed, errors)
    mark_dry_run(shown, sweep.as_of)
    return shown


def mark_dry_run(shown: BatchAnswer | BulkChangedAnswer | SweepAnswer, as_of: int | None) -> None:
    """Say in an answer that nothing was changed, and when the jobs were counted; ``None``: they were changed."""
    if as_of is not None:
        shown.dry_run, shown.as_of = True, format_timestamp(as_of)
