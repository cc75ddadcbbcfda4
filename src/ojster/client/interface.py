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
from ojster.jobs.filter_walk import JobFilter
from ojster.jobs.history import Entry
from ojster.jobs.messages import Acknowledgement, FailureReport, Progress, Release
from ojster.jobs.push import Pushed
from ojster.jobs.queries import JobPage, Page
from ojster.jobs.transitions import ChangedJob
from ojster.queues.calls import PoolCalls, QueueCalls, RateLimitCalls
from ojster.schedules.calls import ScheduleCalls
from ojster.tenancy.calls import TenantCalls, TokenCalls
from ojster.workflows.calls import NoteCalls, WorkflowCalls
from ojster.workflows.definition import Definition
from ojster.workflows.definitions import Deletion, Named
from ojster.workflows.flow_calls import FlowCalls


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
    def notes(self) -> NoteCalls:
        """Calls about notes of jobs and workflows."""

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
