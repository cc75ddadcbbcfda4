"""Calls about jobs and the defaults of job types, as a service, a server and its client have them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ojster.core.access import CANCEL, DEQUEUE, ENQUEUE, INSPECT
from ojster.core.calls import Call, Calls, Deletion, Handled, Listing
from ojster.core.errors import OjsterError
from ojster.core.job import Job
from ojster.core.json_objects import Members
from ojster.core.parsing import LogNumber
from ojster.jobs.answer_wire import (
    AdjustedAnswer,
    CheckpointAnswer,
    DeletedJobAnswer,
    EncodedRevivedAnswer,
    JobResultsAnswer,
    KeptLinesAnswer,
    RetriedAnswer,
    RevivedAnswer,
)
from ojster.jobs.checkpoints import Checkpoint, NewCheckpoint
from ojster.jobs.claim_policy import Claim
from ojster.jobs.explanation import Explanation
from ojster.jobs.filter_walk import JobFilter
from ojster.jobs.history import Entry, Lineage
from ojster.jobs.history_wire import LineageAnswer, PurgedHistoryAnswer
from ojster.jobs.interventions import Adjusted, Adjustment, DeadLetterRetry
from ojster.jobs.job_logs import JobLog, NewLines
from ojster.jobs.job_type_wire import (
    AnnouncedAnswer,
    DeletedJobTypeAnswer,
    JobTypeAnswer,
    JobTypeBody,
    JobTypesAnswer,
    SignaturesAnswer,
    SignaturesBody,
)
from ojster.jobs.job_types import JobTypeDefaults
from ojster.jobs.messages import Acknowledgement, FailureReport, Progress, Release
from ojster.jobs.push import Pushed
from ojster.jobs.queries import JobPage, Page
from ojster.jobs.schema_wire import DeletedSchemaAnswer, SchemaAnswer, SchemasAnswer
from ojster.jobs.schemas import Schema
from ojster.jobs.signatures import Signature
from ojster.jobs.transitions import ChangedJob
from ojster.jobs.wire import AdjustmentBody, DeadLetterRetryBody, LogBody, ResultsBody, SchemaBody

_JOBS: Final = "Jobs"
_HISTORY: Final = "History"
_DEAD: Final = "Dead letters"
_JOB: Final = "/jobs/{id}"
_TAG: Final = "Job types"
_SCHEMAS: Final = "Schemas"
_LATEST: Final = "/schemas/{type}"
_VERSION: Final = "/schemas/{type}/{version}"
_ONE: Final = "/job-types/{type}"
_SIGNATURES: Final = "/signatures"


class JobCalls(Calls):
    """Calls about jobs. The endpoints of those that raise ``NotImplementedError`` here are written by hand."""

    async def enqueue(self, requests: Sequence[Members]) -> list[Pushed]:
        """Push jobs, all or none."""
        raise NotImplementedError

    async def fetch(self, request: Claim, wait: float = 0.0) -> list[Job]:
        """Claim jobs. If none is available, wait for one, at most ``wait`` seconds (long poll)."""
        raise NotImplementedError

    async def acknowledge(self, items: Sequence[Acknowledgement]) -> Sequence[Job | OjsterError]:
        """Complete jobs."""
        raise NotImplementedError

    async def acknowledge_and_fetch(
        self, items: Sequence[Acknowledgement], request: Claim
    ) -> tuple[Sequence[Job | OjsterError], list[Job] | OjsterError]:
        """Complete jobs, and claim further ones after that; return the outcomes, and the jobs or why there are none."""
        raise NotImplementedError

    async def fail(self, items: Sequence[FailureReport]) -> Sequence[Job | OjsterError]:
        """Report failed attempts."""
        raise NotImplementedError

    async def release(self, items: Sequence[Release]) -> Sequence[Job | OjsterError]:
        """Release claimed jobs that have neither completed nor failed."""
        raise NotImplementedError

    async def report(self, item: Progress) -> object:
        """Record a job's progress."""
        raise NotImplementedError

    async def save_checkpoint(self, item: NewCheckpoint) -> object:
        """Save a job's checkpoint, replacing the previous one."""
        raise NotImplementedError

    async def find(self, job_id: str) -> Job:
        """Return a job in its current state, with its result or its errors."""
        raise NotImplementedError

    async def wait_for(self, job_id: str, wait: float) -> Job:
        """Wait until a job has finished, at most ``wait`` seconds, and return it in its current state."""
        raise NotImplementedError

    async def cancel(self, job_id: str) -> ChangedJob:
        """Cancel an unfinished job."""
        raise NotImplementedError

    async def select(self, chosen: JobFilter = JobFilter(), page: Page = Page()) -> JobPage:  # noqa: B008  (frozen)
        """Return the jobs that match a filter, a page at a time."""
        raise NotImplementedError

    async def history(self, job_id: str) -> list[Entry]:
        """Return a job's history, oldest entry first."""
        raise NotImplementedError

    async def adjust_priority(self, job_id: str, by: int) -> Job:
        """Set the priority of an unfinished job to its original priority plus ``by``; raises as ``adjust`` does."""
        return (await self.adjust(Adjustment(job_id, by))).job

    @Call("PATCH", _JOB, "adjust_job", _JOBS, AdjustedAnswer, body=AdjustmentBody, needs=CANCEL)
    async def adjust(self, change: Adjustment) -> Adjusted:
        """Set the ``priority`` of a waiting job, or raise or lower it by ``priority_adjustment``.

        Only administrators may raise it.
        """

    @Call("POST", "/admin/jobs/{id}/retry", "retry_admin_job", "Operators", RetriedAnswer)
    async def retry(self, job_id: str) -> RetriedAnswer:
        """Run a discarded or cancelled job again, with attempts and errors reset."""

    @Call("GET", f"{_JOB}/checkpoint", "find_checkpoint", _JOBS, CheckpointAnswer)
    async def find_checkpoint(self, job_id: str) -> Checkpoint:
        """Show the checkpoint of a job."""

    @Call("POST", f"{_JOB}/logs", "keep_log_lines", _JOBS, KeptLinesAnswer, body=LogBody, needs=DEQUEUE, once=True)
    async def add_to_log(self, item: NewLines) -> int:
        """Add lines to the log of a job, which keeps the newest 1,000 lines and 256 KiB; return the last number."""

    @Call("GET", f"{_JOB}/logs", "show_log", _JOBS, JobLog)
    async def log(self, job_id: str, after: LogNumber = 0) -> JobLog:
        """Show what the handler of a job has logged, if its type keeps it: the lines after a number, oldest first."""

    @Call("POST", "/jobs/results", "show_results", _JOBS, JobResultsAnswer, body=ResultsBody, needs=INSPECT)
    async def results(self, ids: list[str]) -> JobResultsAnswer:
        """Show the results of several jobs; ids are ``omitted`` once the answer has 16 MiB.

        Jobs that do not exist are missing.
        """

    @Call("GET", f"{_JOB}/explanation", "explain_job", _HISTORY, Explanation)
    async def explain(self, job_id: str) -> Explanation:
        """Say why a job waits: a pause, a limit, no worker that can run it, its turn, or a time."""

    @Call("DELETE", f"{_JOB}/history", "purge_history", _HISTORY, PurgedHistoryAnswer)
    async def purge_history(self, job_id: str) -> int:
        """Delete the execution history of a job up to now."""

    @Call("GET", f"{_JOB}/lineage", "show_lineage", _HISTORY, LineageAnswer)
    async def lineage(self, job_id: str) -> Lineage:
        """Show the predecessors and successors of a job in its workflow."""

    @Call(
        "POST",
        "/dead-letter/{id}/retry",
        "retry_dead_letter",
        _DEAD,
        EncodedRevivedAnswer,
        documented=RevivedAnswer,
        body=DeadLetterRetryBody,
        may_be_empty=True,
        needs=CANCEL,
    )
    async def retry_dead(self, job_id: str, revival: DeadLetterRetry | None = None) -> Job:
        """Run a discarded job again with attempts and errors reset; ``override`` replaces arguments or options."""

    @Deletion("DELETE", "/dead-letter/{id}", "delete_dead_letter", _DEAD, DeletedJobAnswer)
    async def delete_dead(self, job_id: str) -> None:
        """Delete a discarded job permanently."""


class JobTypeCalls(Calls):
    """Calls about the defaults of job types, and the signatures of their handlers."""

    @Listing("GET", "/job-types", "list_job_types", _TAG, JobTypesAnswer)
    async def all(self) -> list[JobTypeDefaults]:
        """List the job types that have defaults, by type."""

    @Call("GET", _ONE, "show_one_job_type", _TAG, JobTypeAnswer)
    async def find(self, type: str) -> JobTypeDefaults:
        """Show the defaults of a job type."""

    @Handled("PUT", _ONE, "put_job_type", _TAG, JobTypeAnswer, body=JobTypeBody, needs=ENQUEUE)
    async def put(self, type: str, members: Members) -> JobTypeDefaults:
        """Set the defaults of a job type: members that its jobs have if their requests leave them out."""

    @Deletion("DELETE", _ONE, "delete_job_type", _TAG, DeletedJobTypeAnswer)
    async def delete(self, type: str) -> None:
        """Delete the defaults of a job type. Jobs that have them keep them."""

    @Call(
        "PUT", _SIGNATURES, "announce_signatures", _TAG, AnnouncedAnswer, body=SignaturesBody, large=True, needs=DEQUEUE
    )
    async def announce(self, signatures: Sequence[Signature]) -> int:
        """Announce the arguments of the job types that a worker handles, by a JSON Schema of each, for forms.

        Nothing is checked against them. An announcement replaces earlier ones of its types.
        """

    @Call("GET", _SIGNATURES, "list_signatures", _TAG, SignaturesAnswer)
    async def signatures(self, type: str | None = None) -> list[Signature]:
        """List the arguments of job types, as workers announce them: of one type, or of all."""


class SchemaCalls(Calls):
    """Calls about the schemas of job arguments. Those that raise ``NotImplementedError`` here are written by hand."""

    @Handled("POST", "/schemas", "register_schema", _SCHEMAS, SchemaAnswer, body=SchemaBody, status=201)
    async def register(
        self, type: str, version: int | str, schema: bytes, *, mode: str | None = None, uri: str | None = None
    ) -> Schema:
        """Register a JSON Schema for the arguments of a job type, as a new version."""

    @Listing("GET", "/schemas", "list_schemas", _SCHEMAS, SchemasAnswer, also=("/admin/schemas",))
    async def all(self) -> list[Schema]:
        """List all schemas by job type, latest version first."""

    async def versions(self, type: str) -> list[Schema]:
        """Return the versions of the schema of a job type, latest first."""
        raise NotImplementedError

    @Call("GET", _VERSION, "show_schema", _SCHEMAS, SchemaAnswer, also=("/admin" + _VERSION,))
    async def find(self, type: str, version: str) -> Schema:
        """Show a version of the schema of a job type."""

    @Call("DELETE", _VERSION, "delete_schema", _SCHEMAS, DeletedSchemaAnswer, also=("/admin" + _VERSION,))
    async def delete(self, type: str, version: str) -> DeletedSchemaAnswer:
        """Delete a version of the schema of a job type."""

    @Handled("GET", _LATEST, "show_latest_schema", _SCHEMAS, SchemaAnswer, also=("/admin" + _LATEST,))
    async def find_by_uri(self, uri: str) -> Schema:
        """Show the latest schema of a job type, or the schema with a URI."""

    @Handled("DELETE", _LATEST, "delete_schema_with_uri", _SCHEMAS, DeletedSchemaAnswer, also=("/admin" + _LATEST,))
    async def delete_by_uri(self, uri: str) -> DeletedSchemaAnswer:
        """Delete the schema with a URI. Jobs that name it are not affected."""
