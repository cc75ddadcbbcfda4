"""The protocols of all calls to Ojster, by capability: in the same process, or over HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from ojster.agents.calls import AgentCalls
from ojster.audit.calls import AuditCalls
from ojster.collections.calls import CollectionCalls
from ojster.core.errors import OjsterError
from ojster.core.job import Job
from ojster.core.json_objects import Members
from ojster.events.calls import EventCalls, WebhookCalls
from ojster.files.file import File, NewFile
from ojster.fleet.calls import FleetCalls
from ojster.insight.calls import TaskCalls
from ojster.jobs.bulk import Action
from ojster.jobs.bulk_service import Sweep
from ojster.jobs.calls import JobTypeCalls
from ojster.jobs.checkpoints import NewCheckpoint
from ojster.jobs.claim_policy import Claim
from ojster.jobs.explanation import Explanation
from ojster.jobs.failure import Failure
from ojster.jobs.filter_walk import JobFilter
from ojster.jobs.history import Entry
from ojster.jobs.messages import Acknowledgement, FailureReport, Progress, Release
from ojster.jobs.push import Pushed
from ojster.jobs.queries import JobPage, Page
from ojster.jobs.transitions import ChangedJob
from ojster.queues.calls import PoolCalls, QueueCalls, RateLimitCalls
from ojster.schedules.calls import ScheduleCalls
from ojster.tenancy.calls import TenantCalls, TokenCalls
from ojster.workflows.definition import Definition
from ojster.workflows.definitions import Deletion, Named
from ojster.workflows.flow_calls import FlowCalls
from ojster.workflows.notes import NewNote, Note
from ojster.workflows.properties import Properties, PropertyChange
from ojster.workflows.read.info import WorkflowInfo, WorkflowPage
from ojster.workflows.read.selection import WorkflowFilter
from ojster.workflows.read.status import WorkflowStatistics, WorkflowStatus
from ojster.workflows.read.step_pages import StepFilter, StepPage
from ojster.workflows.run.control import Review
from ojster.workflows.run.dependencies import NewDependencies
from ojster.workflows.run.steps import StepAddress
from ojster.workflows.run.suspensions import WorkflowResumption


class JobCalls(Protocol):
    """Calls about jobs."""

    async def enqueue(self, requests: Sequence[Members]) -> list[Pushed]:
        """Push jobs, all or none."""

    async def fetch(self, request: Claim, wait: float = 0.0) -> list[Job]:
        """Claim jobs. If none is available, wait for one, at most ``wait`` seconds (long poll)."""

    async def acknowledge(self, items: Sequence[Acknowledgement]) -> Sequence[Job | OjsterError]:
        """Complete jobs."""

    async def acknowledge_and_fetch(
        self, items: Sequence[Acknowledgement], request: Claim
    ) -> tuple[Sequence[Job | OjsterError], list[Job] | OjsterError]:
        """Complete jobs, and claim further ones after that; return the outcomes, and the jobs or why there are none."""

    async def fail(self, items: Sequence[FailureReport]) -> Sequence[Job | OjsterError]:
        """Report failed attempts."""

    async def release(self, items: Sequence[Release]) -> Sequence[Job | OjsterError]:
        """Release claimed jobs that have neither completed nor failed."""

    async def report(self, item: Progress) -> object:
        """Record a job's progress."""

    async def save_checkpoint(self, item: NewCheckpoint) -> object:
        """Save a job's checkpoint, replacing the previous one."""

    async def find(self, job_id: str) -> Job:
        """Return a job."""

    async def wait_for(self, job_id: str, wait: float) -> Job:
        """Wait until a job has finished, at most ``wait`` seconds, and return it in its current state."""

    async def cancel(self, job_id: str) -> ChangedJob:
        """Cancel an unfinished job."""

    async def adjust_priority(self, job_id: str, by: int) -> Job:
        """Set the priority of an unfinished job to its original priority plus ``by``."""

    async def select(self, chosen: JobFilter = ..., page: Page = ...) -> JobPage:
        """Return a page of jobs."""

    async def history(self, job_id: str) -> list[Entry]:
        """Return a job's history, oldest entry first."""

    async def explain(self, job_id: str) -> Explanation:
        """Return why a job waits."""

    async def retry_dead(self, job_id: str) -> Job:
        """Run a discarded job again."""

    async def delete_dead(self, job_id: str) -> object:
        """Delete a discarded job."""


class BulkCalls(Protocol):
    """Calls about many jobs at once."""

    async def sweep(self, action: Action, chosen: JobFilter, *, dry_run: bool = False) -> Sweep:
        """Apply an action to all matching jobs, in small transactions; ``dry_run``: only return what would be done."""


class WorkflowCalls(Protocol):
    """Calls about workflows."""

    async def activate(self, job_id: str, data: bytes | None = None, failure: Failure | None = None) -> ChangedJob:
        """Make a pending job available, or resume a suspended one."""

    async def add_note(self, item: NewNote) -> Note:
        """Add a note to a job or a workflow."""

    async def notes_of_job(self, job_id: str) -> list[Note]:
        """Return a job's notes, oldest first."""

    async def create(self, members: Members) -> WorkflowInfo:
        """Create a workflow, and start it unless it is scheduled."""

    async def show(
        self, workflow_id: str, *, wait: float = 0.0, version: int | None = None, steps: bool = True
    ) -> WorkflowInfo:
        """Return a workflow in its current state.

        With ``wait``, first wait at most so many seconds until the workflow has finished or, if ``version`` is given,
        until its version differs from ``version``.
        """

    async def steps(self, chosen: StepFilter) -> StepPage:
        """Return a page of the steps of a workflow, containers among them."""

    async def select(self, chosen: WorkflowFilter) -> WorkflowPage:
        """Return a page of workflows without their steps."""

    async def cancel(self, workflow_id: str, *, stop_active: bool = False) -> WorkflowInfo:
        """Cancel a workflow."""

    async def retry(self, workflow_id: str) -> WorkflowInfo:
        """Retry the steps of a workflow that did not succeed."""

    async def hold(self, workflow_id: str) -> WorkflowInfo:
        """Hold a workflow: no step starts until it is released."""

    async def release(self, workflow_id: str) -> WorkflowInfo:
        """Release a held workflow."""

    async def resume(self, item: WorkflowResumption) -> WorkflowInfo:
        """Resume a suspended job of a workflow."""

    async def properties(self, workflow_id: str) -> Properties:
        """Return the shared properties of a workflow."""

    async def change_properties(self, item: PropertyChange) -> Properties:
        """Change the shared properties of a workflow, and return all of them."""

    async def notes(self, workflow_id: str) -> list[Note]:
        """Return the notes of a workflow and its jobs, oldest first."""

    async def status(self, workflow_id: str) -> WorkflowStatus:
        """Return the current status of each step of a workflow."""

    async def statistics(self, definition: str | None = None) -> WorkflowStatistics:
        """Return the number of workflows in each state, of all definitions or of one."""

    async def review_step(self, review: Review) -> WorkflowInfo:
        """Approve or reject a step."""

    async def cancel_step(self, address: StepAddress) -> WorkflowInfo:
        """Cancel a step and its nested steps."""

    async def add_dependencies(self, item: NewDependencies) -> WorkflowInfo:
        """Let a step of a graph that has not started wait for others of the graph, too."""

    async def retry_step(self, address: StepAddress) -> WorkflowInfo:
        """Run a failed or cancelled step again, with everything after it."""


class DefinitionCalls(Protocol):
    """Calls about workflow definitions."""

    async def create(self, name: str, members: Members) -> Definition:
        """Create a workflow definition."""

    async def update(self, name: str, members: Members) -> Definition:
        """Add a version to a workflow definition."""

    async def find(self, which: Named) -> Definition:
        """Return a version of a workflow definition, by default the latest."""

    async def all(self) -> list[Definition]:
        """Return the latest version of each workflow definition."""

    async def delete(self, what: Deletion) -> None:
        """Delete a definition."""


class FileCalls(Protocol):
    """Calls about files."""

    async def create(self, new: NewFile) -> File:
        """Start a file upload. A file that the workspace already has is returned complete."""

    async def write(self, file_id: str, offset: int, source: AsyncIterator[bytes]) -> File:
        """Upload the bytes of a file from ``offset`` on."""

    async def find(self, file_id: str, job_id: str | None = None) -> File:
        """Return a file, complete or partly uploaded; with ``job_id``, only a file of that job's workspace."""

    async def select(self, limit: int = 50, before: str | None = None) -> list[File]:
        """Return files, newest first."""

    async def read(self, file_id: str, start: int = 0) -> AsyncIterator[bytes]:
        """Return the bytes of a file from ``start`` on."""

    async def delete(self, file_id: str) -> None:
        """Delete a file that no collection item refers to."""


class MaintenanceCalls(Protocol):
    """Calls about maintenance."""

    async def prune(self, *, dry_run: bool = False) -> dict[str, int]:
        """Delete, or count, ``jobs`` and ``workflows`` past their retention; return both numbers by these names."""


class Client(Protocol):
    """Everything that can be asked of Ojster: ``ojster.service.Service``, or ``ojster.client.client.HttpClient``."""

    @property
    def jobs(self) -> JobCalls:
        """Calls about jobs."""

    @property
    def job_types(self) -> JobTypeCalls:
        """Calls about the defaults of job types."""

    @property
    def bulk(self) -> BulkCalls:
        """Calls about many jobs at once."""

    @property
    def workflows(self) -> WorkflowCalls:
        """Calls about workflows."""

    @property
    def definitions(self) -> DefinitionCalls:
        """Calls about workflow definitions."""

    @property
    def flows(self) -> FlowCalls:
        """Calls about flows."""

    @property
    def queues(self) -> QueueCalls:
        """Calls about queues."""

    @property
    def rate_limits(self) -> RateLimitCalls:
        """Calls about rate limits."""

    @property
    def pools(self) -> PoolCalls:
        """Calls about pools."""

    @property
    def fleet(self) -> FleetCalls:
        """Calls about workers."""

    @property
    def schedules(self) -> ScheduleCalls:
        """Calls about cron jobs."""

    @property
    def events(self) -> EventCalls:
        """Calls about notification channels."""

    @property
    def webhooks(self) -> WebhookCalls:
        """Calls about webhook subscriptions and their deliveries."""

    @property
    def collections(self) -> CollectionCalls:
        """Calls about collections."""

    @property
    def files(self) -> FileCalls:
        """Calls about files."""

    @property
    def audit(self) -> AuditCalls:
        """Calls about the audit log."""

    @property
    def tenants(self) -> TenantCalls:
        """Calls about tenants."""

    @property
    def tokens(self) -> TokenCalls:
        """Calls about tokens."""

    @property
    def tasks(self) -> TaskCalls:
        """Calls about the history of tasks."""

    @property
    def agents(self) -> AgentCalls:
        """Calls of agents' tasks."""

    @property
    def maintenance(self) -> MaintenanceCalls:
        """Calls about maintenance."""

    async def close(self) -> None:
        """Disconnect."""
