"""The JSON of answers about jobs, workers' reports and dead letters."""

from __future__ import annotations

from typing import Annotated, Literal, Self

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from ojster.core.calls import Single, Whole
from ojster.core.job import Job
from ojster.core.states import JobState
from ojster.core.timestamps import format_optional, format_timestamp, parse_timestamp
from ojster.core.wire import Count, Json, NumberedPaginationBody, PaginationBody, Timestamp
from ojster.jobs.checkpoints import Checkpoint
from ojster.jobs.interventions import Adjusted
from ojster.jobs.job_json import from_json, to_json
from ojster.jobs.policy_wire import RetryPolicyBody
from ojster.jobs.transitions import ChangedJob

State = Annotated[str, Meta(extra_json_schema={"enum": [state.value for state in JobState]})]


class JobBody(Struct):
    """A job, with its standard attributes and those that its producer added.

    Spec: ojs-core 5
    """

    specversion: str
    id: str
    type: str
    queue: str
    args: list[Json]
    meta: dict[str, Json]
    state: State
    priority: int
    attempt: Count
    max_attempts: Count
    created_at: Timestamp
    enqueued_at: Timestamp | UnsetType = UNSET
    started_at: Timestamp | UnsetType = UNSET
    completed_at: Timestamp | UnsetType = UNSET
    cancelled_at: Timestamp | UnsetType = UNSET
    discarded_at: Timestamp | UnsetType = UNSET
    next_attempt_at: Timestamp | UnsetType = UNSET
    error: dict[str, Json] | UnsetType = UNSET
    errors: list[dict[str, Json]] | UnsetType = UNSET
    result: Json | UnsetType = UNSET


class JobAnswer(Struct):
    """A job, as the member ``job``."""

    job: JobBody


class EncodedJobAnswer(Struct):
    """``JobAnswer`` with the JSON of the job as the database has it: users' values are not decoded."""

    job: Raw

    @classmethod
    def of(cls, job: Job) -> Self:
        return cls(Raw(to_json(job)))

    def value(self) -> Job:
        return from_json(bytes(self.job))


class EnqueuedAnswer(Struct):
    """An enqueued job, or the existing one that it duplicates."""

    job: JobBody | UnsetType = UNSET
    deduplicated: bool | UnsetType = UNSET
    dropped: bool | UnsetType = UNSET
    """Whether middleware of the server has dropped the job, which was then not enqueued."""
    warnings: tuple[str, ...] | UnsetType = UNSET


class AdjustedAnswer(Struct):
    """A job with a new priority.

    Spec: ojs-priority 10.2
    """

    id: str
    priority: int
    previous_priority: int
    priority_adjustment: int
    job: Raw

    @classmethod
    def of(cls, done: Adjusted) -> Self:
        job = done.job
        return cls(job.id, job.priority, done.previous_priority, done.by, Raw(to_json(job)))

    def value(self) -> Adjusted:
        return Adjusted(from_json(bytes(self.job)), self.priority_adjustment, self.previous_priority)


class RevivedAnswer(Struct):
    """A dead letter that runs again."""

    job: JobBody
    re_enqueued_at: Timestamp


class EncodedRevivedAnswer(Struct):
    """``RevivedAnswer`` with the JSON of the job as the database has it."""

    job: Raw
    re_enqueued_at: Timestamp

    @classmethod
    def of(cls, job: Job) -> Self:
        return cls(Raw(to_json(job)), format_timestamp(job.enqueued_at or 0))

    def value(self) -> Job:
        return from_json(bytes(self.job))


class JobsAnswer(Struct):
    """Several jobs."""

    jobs: list[JobBody]


class JobPageAnswer(Struct):
    """A page of jobs."""

    jobs: list[JobBody]
    pagination: PaginationBody


class ItemPageAnswer(Struct):
    """A page of jobs, for operators."""

    items: list[dict[str, Json]]
    pagination: NumberedPaginationBody


class CancelledJobBody(JobBody, kw_only=True):
    """A job that was cancelled, and its state before."""

    previous_state: State


class CancelledJobAnswer(Struct):
    """A job that was cancelled."""

    job: CancelledJobBody


def show_cancelled(changed: ChangedJob) -> bytes:
    """Return the JSON of the answer with a job that was cancelled."""
    return b'{"job":%b,"previous_state":"%b"}}' % (to_json(changed.job)[:-1], changed.before.encode())


class ChangedJobBody(Struct):
    """A job whose state was changed."""

    id: str
    type: str
    queue: str
    state: State
    attempt: Count
    max_attempts: Count
    previous_state: State
    activated_at: Timestamp | UnsetType = UNSET


class ChangedJobAnswer(Struct):
    """A job that was activated."""

    job: ChangedJobBody

    @classmethod
    def of(cls, changed: ChangedJob) -> Self:
        job, at = changed.job, format_timestamp(changed.job.enqueued_at or 0)
        shown = ChangedJobBody(
            job.id, job.type, job.queue, job.state, job.attempt, job.max_attempts, changed.before, at
        )
        return cls(shown)

    def value(self) -> ChangedJob:
        return ChangedJob(from_json(msgspec.json.encode(self.job)), self.job.previous_state)


class ProgressAnswer(Struct, kw_only=True):
    """The progress of a job.

    Spec: ojs-progress
    """

    job_id: str
    state: State
    progress: float | None = None
    message: str | None = None
    data: dict[str, Json] | None = None
    updated_at: Timestamp


class ResultBody(Struct):
    """The result of a job, or why it has none; ``result_ref`` names a file with it.

    Spec: ojs-results 8
    """

    state: State
    result: Raw = msgspec.field(default_factory=lambda: Raw(b"null"))
    result_ref: Json | UnsetType = UNSET
    error: dict[str, Json] | UnsetType = UNSET
    result_stored_at: Timestamp | UnsetType = UNSET
    result_expires_at: Timestamp | UnsetType = UNSET
    result_size_bytes: Count | UnsetType = UNSET


def show_result(job: Job) -> ResultBody:
    """Return the JSON form of the result of a job."""
    return msgspec.json.decode(to_json(job), type=ResultBody)


class ResultAnswer(ResultBody, kw_only=True):
    """The result of a job."""

    job_id: str


class JobResultsAnswer(Whole):
    """The results of jobs, by id. Jobs that do not exist are missing."""

    results: dict[str, ResultBody]
    omitted: list[str] | UnsetType = UNSET
    """The ids that are left to the next request, because the answer would be too large; missing if there are none."""


class CheckpointInfo(Struct):
    """The checkpoint of a job."""

    job_id: str
    state: Raw
    sequence: Count
    created_at: Timestamp


class KeptLinesAnswer(Single[int]):
    """The number of the last line in the log of a job."""

    last: int


class CheckpointAnswer(CheckpointInfo, kw_only=True):
    """The checkpoint of a job, in a wrapper as in the specification, and also without."""

    checkpoint: CheckpointInfo

    @classmethod
    def of(cls, saved: Checkpoint) -> Self:
        at = format_timestamp(saved.created_at)
        shown = CheckpointInfo(saved.job_id, Raw(saved.state), saved.sequence, at)
        return cls(**msgspec.structs.asdict(shown), checkpoint=shown)

    def value(self) -> Checkpoint:
        return Checkpoint(self.job_id, bytes(self.state), self.sequence, parse_timestamp(self.created_at))


class DeletedCheckpointAnswer(Struct):
    """Whether there was a checkpoint to delete."""

    job_id: str
    existed: bool
    deleted: Literal[True] = True


# Workers


class JobSummaryBody(Struct):
    """A job, in short: without its arguments, which its worker has, and which may be large."""

    id: str
    type: str
    queue: str
    state: State
    attempt: Count


def _summary(job: Job) -> JobSummaryBody:
    return JobSummaryBody(job.id, job.type, job.queue, job.state, job.attempt)


class AcknowledgedAnswer(Struct):
    """A completed job."""

    id: str
    job_id: str
    state: State
    completed_at: Timestamp
    job: JobSummaryBody
    acknowledged: Literal[True] = True
    jobs: list[JobBody] | UnsetType = UNSET
    fetch_error: dict[str, Json] | UnsetType = UNSET


class FailedAnswer(Struct):
    """A job whose attempt failed."""

    id: str
    job_id: str
    state: State
    attempt: Count
    max_attempts: Count
    job: JobSummaryBody
    next_attempt_at: Timestamp | UnsetType = UNSET
    retry_delay_ms: Count | UnsetType = UNSET
    discarded_at: Timestamp | UnsetType = UNSET
    completed_at: Timestamp | UnsetType = UNSET
    dead_letter: bool | UnsetType = UNSET


def show_failed(job: Job) -> FailedAnswer:
    """Return the JSON form of a job whose attempt failed."""
    shown = FailedAnswer(job.id, job.id, job.state, job.attempt, job.max_attempts, _summary(job))
    if job.state == JobState.RETRYABLE:
        shown.next_attempt_at = format_timestamp(job.due_at or 0)
        shown.retry_delay_ms = (job.retry_delay or 0) // 1000
    elif job.state == JobState.DISCARDED:
        shown.discarded_at = shown.completed_at = format_timestamp(job.finished_at or 0)
        shown.dead_letter = bool(job.dead)
    return shown


class ReleasedAnswer(Struct):
    """A released job."""

    id: str
    job_id: str
    state: State
    job: JobSummaryBody
    scheduled_at: Timestamp | UnsetType = UNSET
    deadline: Timestamp | UnsetType = UNSET
    released: Literal[True] = True


def show_released(job: Job) -> ReleasedAnswer:
    """Return the JSON form of a released job."""
    shown = ReleasedAnswer(job.id, job.id, job.state, _summary(job))
    if job.due_at is not None and job.state == JobState.SCHEDULED:
        shown.scheduled_at = format_timestamp(job.due_at)
    elif job.due_at is not None and job.state == JobState.PENDING:
        shown.deadline = format_timestamp(job.due_at)
    return shown


class ResultsAnswer(Struct):
    """The outcome of each item of a batch: as of a single call, or an ``error``."""

    results: list[dict[str, Json]]


class AckedBatchAnswer(ResultsAnswer):
    """The outcome of each acknowledgement, and the jobs that were asked for as well."""

    jobs: list[JobBody] | UnsetType = UNSET
    fetch_error: dict[str, Json] | UnsetType = UNSET


# Operators


class CancelledAnswer(Struct):
    """A job that an operator cancelled."""

    id: str
    state: State
    previous_state: State


class RetriedAnswer(Whole):
    """A job that an operator runs again."""

    id: str
    state: State
    attempt: Count


class JobTimesBody(Struct):
    """All times of a job; ``null`` if it has none."""

    created_at: Timestamp | None
    enqueued_at: Timestamp | None
    started_at: Timestamp | None
    scheduled_at: Timestamp | None
    expires_at: Timestamp | None
    completed_at: Timestamp | None
    cancelled_at: Timestamp | None
    discarded_at: Timestamp | None


def show_times(job: Job) -> JobTimesBody:
    """Return the JSON form of all times of a job."""
    completed, cancelled, discarded = (
        format_optional(job.finished_at if job.state == state else None)
        for state in ("completed", "cancelled", "discarded")
    )
    scheduled_at = format_optional(job.due_at if job.state == JobState.SCHEDULED else None)
    return JobTimesBody(
        created_at=format_optional(job.created_at),
        enqueued_at=format_optional(job.enqueued_at),
        started_at=format_optional(job.started_at),
        scheduled_at=scheduled_at,
        expires_at=format_optional(job.expires_at),
        completed_at=completed,
        cancelled_at=cancelled,
        discarded_at=discarded,
    )


class JobDetailAnswer(JobBody, kw_only=True):
    """A job with all that operators see of it."""

    retry_policy: RetryPolicyBody
    dead_letter: bool
    metadata: JobTimesBody


class DeadLetterLimitsInfo(Struct):
    """How long dead letters are kept, as an ISO 8601 duration, and how many."""

    max_age: str | None
    max_count: Count | None


class DeadLetterStatisticsAnswer(Whole):
    """Numbers of dead letters.

    Spec: ojs-dead-letter 10.1
    """

    total: Count
    by_queue: dict[str, Count]
    by_error_type: dict[str, Count]
    oldest_at: Timestamp | None
    newest_at: Timestamp | None
    retention: DeadLetterLimitsInfo


class DeletedJobAnswer(Struct):
    """A job that was deleted."""

    job_id: str
    deleted: Literal[True] = True
