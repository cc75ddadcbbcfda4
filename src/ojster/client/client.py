"""The HTTP client: the calls of ``ojster.service.Service``, made to a server."""

from __future__ import annotations

from collections.abc import Mapping

from ojster.agents.calls import AgentCalls
from ojster.audit.calls import AuditCalls
from ojster.client.collections import RemoteCollections
from ojster.client.connection import DEFAULT_RETRY_SECONDS, Connection, RemoteCapability
from ojster.client.definitions import RemoteDefinitions
from ojster.client.events import RemoteEvents
from ojster.client.files import RemoteFiles
from ojster.client.fleet import RemoteFleet
from ojster.client.flows import RemoteFlows
from ojster.client.job_types import RemoteJobTypes
from ojster.client.jobs import RemoteBulk, RemoteJobs
from ojster.client.queues import RemoteQueues
from ojster.client.schedules import RemoteSchedules
from ojster.client.schemas import RemoteSchemas
from ojster.client.workflows import RemoteWorkflows
from ojster.events.calls import WebhookCalls
from ojster.insight.calls import InsightCalls, TaskCalls
from ojster.push.calls import PushCalls
from ojster.queues.calls import PoolCalls, RateLimitCalls
from ojster.schedules.calls import MaintenanceCalls
from ojster.tenancy.calls import TenantCalls, TokenCalls
from ojster.workflows.calls import NoteCalls, WorkflowBulkCalls


class RemoteAgents(RemoteCapability, AgentCalls):
    """Calls of agents' tasks."""


class RemoteAudit(RemoteCapability, AuditCalls):
    """Calls about the audit log."""


class RemoteNotes(RemoteCapability, NoteCalls):
    """Calls about notes of jobs and workflows."""


class RemoteTasks(RemoteCapability, TaskCalls):
    """Calls about the history of tasks."""


class RemoteInsight(RemoteCapability, InsightCalls):
    """Calls about the work of the whole system."""


class RemoteMaintenance(RemoteCapability, MaintenanceCalls):
    """Calls about maintenance."""


class RemoteTenants(RemoteCapability, TenantCalls):
    """Calls about tenants."""


class RemoteWebhooks(RemoteCapability, WebhookCalls):
    """Calls about webhook subscriptions and their deliveries."""


class RemoteRateLimits(RemoteCapability, RateLimitCalls):
    """Calls about rate limits."""


class RemotePools(RemoteCapability, PoolCalls):
    """Calls about pools."""


class RemotePush(RemoteCapability, PushCalls):
    """Calls about push endpoints."""


class RemoteTokens(RemoteCapability, TokenCalls):
    """Calls about tokens."""


class RemoteWorkflowBulk(RemoteCapability, WorkflowBulkCalls):
    """Calls about all workflows that match a filter."""


class HttpClient:
    """A client of an Open Job Spec server, for one event loop.

    It raises error responses as exceptions, and retries calls while the server is unreachable.

    Parameters
    ----------
    url:
        Server, such as ``http://127.0.0.1:8080``.
    patience:
        Time for which a call is retried while the server is unreachable, in seconds. Job ids are part of a push, so
        that a retried push creates no second job.
    headers:
        HTTP headers of every request, for example ``Authorization``.
    """

    def __init__(
        self, url: str, *, patience: float = DEFAULT_RETRY_SECONDS, headers: Mapping[str, str] | None = None
    ) -> None:
        self._connection = Connection(url, patience=patience, headers=headers)
        self.url = self._connection.url
        self.jobs = RemoteJobs(self._connection)
        self.job_types = RemoteJobTypes(self._connection)
        self.schemas = RemoteSchemas(self._connection)
        self.bulk = RemoteBulk(self._connection)
        self.workflows = RemoteWorkflows(self._connection)
        self.notes = RemoteNotes(self._connection)
        self.workflow_bulk = RemoteWorkflowBulk(self._connection)
        self.definitions = RemoteDefinitions(self._connection)
        self.flows = RemoteFlows(self._connection)
        self.queues = RemoteQueues(self._connection)
        self.rate_limits = RemoteRateLimits(self._connection)
        self.pools = RemotePools(self._connection)
        self.fleet = RemoteFleet(self._connection)
        self.schedules = RemoteSchedules(self._connection)
        self.events = RemoteEvents(self._connection)
        self.webhooks = RemoteWebhooks(self._connection)
        self.push = RemotePush(self._connection)
        self.collections = RemoteCollections(self._connection)
        self.files = RemoteFiles(self._connection)
        self.audit = RemoteAudit(self._connection)
        self.tenants = RemoteTenants(self._connection)
        self.tokens = RemoteTokens(self._connection)
        self.tasks = RemoteTasks(self._connection)
        self.insight = RemoteInsight(self._connection)
        self.agents = RemoteAgents(self._connection)
        self.maintenance = RemoteMaintenance(self._connection)

    async def close(self) -> None:
        """Close the connections."""
        await self._connection.close()
