"""The protocols of all calls to Ojster, by capability: in the same process, or over HTTP."""

from __future__ import annotations

from typing import Protocol

from ojster.agents.calls import AgentCalls
from ojster.audit.calls import AuditCalls
from ojster.collections.calls import CollectionCalls
from ojster.core.json_objects import Members
from ojster.events.calls import EventCalls, WebhookCalls
from ojster.files.calls import FileCalls
from ojster.fleet.calls import FleetCalls
from ojster.insight.calls import InsightCalls, TaskCalls
from ojster.jobs.bulk import Action
from ojster.jobs.calls import JobCalls, JobTypeCalls, SchemaCalls
from ojster.jobs.filter_walk import JobFilter
from ojster.jobs.sweeps import Sweep
from ojster.push.calls import PushCalls
from ojster.queues.calls import PoolCalls, QueueCalls, RateLimitCalls
from ojster.schedules.calls import MaintenanceCalls, ScheduleCalls
from ojster.tenancy.calls import TenantCalls, TokenCalls
from ojster.workflows.calls import NoteCalls, WorkflowBulkCalls, WorkflowCalls
from ojster.workflows.definition import Definition
from ojster.workflows.definitions import DefinitionDeletion, Named
from ojster.workflows.flow_calls import FlowCalls


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

    async def delete(self, what: DefinitionDeletion) -> None:
        """Delete a definition."""


class Client(Protocol):
    """Everything that can be asked of Ojster: ``ojster.service.Service``, or ``ojster.client.client.HttpClient``."""

    @property
    def jobs(self) -> JobCalls:
        """Calls about jobs."""

    @property
    def job_types(self) -> JobTypeCalls:
        """Calls about the defaults of job types."""

    @property
    def schemas(self) -> SchemaCalls:
        """Calls about the schemas of job arguments."""

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
    def workflow_bulk(self) -> WorkflowBulkCalls:
        """Calls about all workflows that match a filter."""

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
    def push(self) -> PushCalls:
        """Calls about push endpoints."""

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
    def insight(self) -> InsightCalls:
        """Calls about the work of the whole system."""

    @property
    def agents(self) -> AgentCalls:
        """Calls of agents' tasks."""

    @property
    def maintenance(self) -> MaintenanceCalls:
        """Calls about maintenance."""

    async def close(self) -> None:
        """Disconnect."""
