"""Ojster in one object: all calls on a database, by capability.

The HTTP server, in-process applications and the benchmarks use it; ``ojster.client`` has the same shape over HTTP.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

from ojster.agents.service import AgentService
from ojster.audit.service import AuditService
from ojster.capabilities import all_extensions
from ojster.collections.result_files import ResultFiles
from ojster.collections.service import CollectionService
from ojster.core.errors import InvalidRequest
from ojster.events.service import EventService
from ojster.events.webhook_service import WebhookService
from ojster.files.service import FileService
from ojster.files.store import FileStore
from ojster.fleet.service import Directive, FleetService
from ojster.insight.service import InsightService, TaskService
from ojster.jobs.bulk_service import BulkService
from ojster.jobs.extension import Extension, install
from ojster.jobs.job_type_service import JobTypeService
from ojster.jobs.middleware import EnqueueMiddleware, MiddlewareChain
from ojster.jobs.schema_service import SchemaService
from ojster.jobs.scope import Caller, Scope
from ojster.jobs.service import JobService
from ojster.metering import record_events
from ojster.push.service import PushService
from ojster.queues.limit_service import PoolService, RateLimitService
from ojster.queues.service import QueueService
from ojster.schedules.maintenance import MaintenanceTasks, answer
from ojster.schedules.service import ScheduleService
from ojster.storage.database import Database
from ojster.tenancy.service import TokenService
from ojster.tenancy.tenant_service import TenantService
from ojster.workflows.bulk_service import WorkflowBulkService
from ojster.workflows.definition_service import DefinitionService
from ojster.workflows.flow_service import FlowService
from ojster.workflows.note_service import NoteService
from ojster.workflows.orchestrator_request import ORCHESTRATOR_MEMBER
from ojster.workflows.service import WorkflowService


class Service:
    """All capabilities of one database, for one caller.

    Parameters
    ----------
    database:
        An open database; ``close`` closes it.
    middleware:
        Wraps every push, the first outermost.
    directives:
        Called in turn to choose a worker's directive; the first choice wins.
    store:
        Where the bytes of files are kept; ``None``: there are no files.
    extensions:
        The capabilities that take part in the life of jobs; by default all.
    """

    def __init__(
        self,
        database: Database,
        *,
        middleware: Sequence[EnqueueMiddleware] = (),
        directives: Sequence[Directive] = (),
        store: FileStore | None = None,
        extensions: Sequence[Extension] | None = None,
    ) -> None:
        self.database = database
        self.middleware = MiddlewareChain(middleware)
        self.directives = list(directives)
        self.store = store
        self.check_orchestrator: Callable[[str, Any], None] = _no_orchestrator
        """Checks the name of an orchestrator, and parameters for it; raises ``InvalidRequest``."""
        self.scope = Scope(database)
        install(database.memory, all_extensions() if extensions is None else extensions)
        record_events(database)

    def as_(self, caller: Caller) -> Service:
        """Return the same service for a caller (ojs-multi-tenancy; ojs-security 7)."""
        if caller == self.scope.caller:
            return self
        service = object.__new__(Service)
        service.database = self.database
        service.middleware = self.middleware
        service.directives = self.directives
        service.store = self.store
        service.check_orchestrator = self.check_orchestrator
        service.scope = Scope(self.database, caller)
        return service

    # Capabilities

    @cached_property
    def jobs(self) -> JobService:
        """Jobs: push, claim, complete, look up, change."""
        return JobService(self.scope, self.middleware, ResultFiles(self.scope, self.files).shrink)

    @cached_property
    def job_types(self) -> JobTypeService:
        """Defaults of job types."""
        return JobTypeService(self.scope)

    @cached_property
    def schemas(self) -> SchemaService:
        """Schemas of job arguments."""
        return SchemaService(self.scope)

    @cached_property
    def bulk(self) -> BulkService:
        """Many jobs at once."""
        return BulkService(self.scope)

    @cached_property
    def queues(self) -> QueueService:
        """Queues: list, pause, configure, delete."""
        return QueueService(self.scope, self.jobs)

    @cached_property
    def rate_limits(self) -> RateLimitService:
        """Rate limits of keys."""
        return RateLimitService(self.scope)

    @cached_property
    def pools(self) -> PoolService:
        """Pools of workers."""
        return PoolService(self.scope)

    @cached_property
    def workflows(self) -> WorkflowService:
        """Workflows: start, look up, steer, cancel."""
        return WorkflowService(self.scope, self.jobs, self.definitions, self.check_orchestrator)

    @cached_property
    def notes(self) -> NoteService:
        """Notes of jobs and workflows."""
        return NoteService(self.scope, self.workflows)

    @cached_property
    def workflow_bulk(self) -> WorkflowBulkService:
        """Many workflows at once."""
        return WorkflowBulkService(self.scope, self.files)

    @cached_property
    def definitions(self) -> DefinitionService:
        """Definitions of workflows."""
        return DefinitionService(self.scope)

    @cached_property
    def flows(self) -> FlowService:
        """Flows: records and messages."""
        return FlowService(self.scope)

    @cached_property
    def schedules(self) -> ScheduleService:
        """Cron jobs."""
        return ScheduleService(self.scope, self.workflows)

    @cached_property
    def audit(self) -> AuditService:
        """The audit log."""
        return AuditService(self.scope)

    @cached_property
    def fleet(self) -> FleetService:
        """Workers."""
        return FleetService(self.scope, self.directives)

    @cached_property
    def events(self) -> EventService:
        """Events and notification channels."""
        return EventService(self.scope)

    @cached_property
    def webhooks(self) -> WebhookService:
        """Webhook subscriptions and their deliveries."""
        return WebhookService(self.scope, self.jobs)

    @cached_property
    def push(self) -> PushService:
        """Push endpoints: functions to which servers send jobs."""
        return PushService(self.scope)

    @cached_property
    def collections(self) -> CollectionService:
        """Collections: items that jobs and workflows hand on."""
        return CollectionService(self.scope)

    @cached_property
    def files(self) -> FileService:
        """Files: upload, read, delete."""
        return FileService(self.scope, self.store)

    @cached_property
    def tenants(self) -> TenantService:
        """Tenants: their names, limits and workspaces."""
        return TenantService(self.scope)

    @cached_property
    def tokens(self) -> TokenService:
        """Tokens: what callers prove who they are with."""
        return TokenService(self.scope)

    @cached_property
    def agents(self) -> AgentService:
        """Agents' tasks."""
        return AgentService(self.scope)

    @cached_property
    def tasks(self) -> TaskService:
        """The history of tasks."""
        return TaskService(self.scope)

    @cached_property
    def insight(self) -> InsightService:
        """The work of the whole system."""
        return InsightService(self.scope, self.fleet)

    @cached_property
    def maintenance(self) -> MaintenanceTasks:
        """Due work and retention."""
        return MaintenanceTasks(self.scope, self.bulk, self.files)

    # Lifecycle

    async def ping(self) -> float:
        """Return the response time of the database, in seconds.

        Raises
        ------
        BackendUnavailable
            The database does not answer.
        """
        started = asyncio.get_running_loop().time()
        await self.database.run(answer, None)
        return asyncio.get_running_loop().time() - started

    def drain(self) -> None:
        """End all long polls now, and let no new ones begin. The first step of a shutdown."""
        self.database.draining = True
        self.database.answer_parked()
        self.database.wakeups.wake_all()

    async def close(self) -> None:
        """Stop maintenance and close the database."""
        await self.maintenance.stop()
        await asyncio.to_thread(self.database.close)


def _no_orchestrator(name: str, params: Any) -> None:
    raise InvalidRequest(
        f"There is no orchestrator {name!r:.80}. Register it with ojster serve --app MODULE:APP.",
        field=ORCHESTRATOR_MEMBER,
    )
