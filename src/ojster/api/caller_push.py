"""Pushing jobs and starting workflows in a caller's own transaction, on PostgreSQL."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from ojster.capabilities import all_extensions
from ojster.client.event_loop_thread import EventLoopThread
from ojster.core.errors import InvalidRequest
from ojster.core.job import Job
from ojster.core.job_flags import ANY_EVENT, BITS
from ojster.core.json_objects import Members
from ojster.core.public_settings import Settings, in_microseconds
from ojster.jobs import schemas
from ojster.jobs.extension import install
from ojster.jobs.middleware import EnqueueMiddleware, MiddlewareChain, through_middleware
from ojster.jobs.names import refuse_reserved
from ojster.jobs.new_job import NewJob, read_job
from ojster.jobs.preparation import find_missing, log_warnings
from ojster.jobs.push import push
from ojster.jobs.scope import accepted, check_owner
from ojster.queues.rules import completed
from ojster.storage.database import POSTGRES, without_password
from ojster.storage.transaction import Later, Transaction
from ojster.workflows.plan.values import NewWorkflow
from ojster.workflows.read.info import WorkflowInfo
from ojster.workflows.read.views import WorkflowRequest, show_workflows
from ojster.workflows.run.creation import create_whole

if TYPE_CHECKING:
    from ojster.service import Service
    from ojster.storage.postgres.url import PostgresUrl


class Pushing(Protocol):
    """An application, as far as a push in a caller's transaction needs it."""

    url: str
    tenant: str | None
    settings: Settings
    enqueue_middleware: MiddlewareChain[EnqueueMiddleware]
    _event_loop_thread: EventLoopThread

    def _scoped_service(self) -> Service: ...


class CallerPush:
    """Pushes jobs and starts workflows of an application in a caller's transaction."""

    def __init__(self, app: Pushing) -> None:
        self._app = app

    def push(self, connection: Any, requests: Sequence[Members]) -> list[Job]:
        """Push jobs on a synchronous connection."""
        from ojster.storage.postgres import caller_transaction

        url = self._database_url("Enqueueing", "enqueue")
        if not requests:
            return []
        execute = caller_transaction.executes(connection)
        thread = self._app._event_loop_thread
        prepared = thread.call(self._prepare(requests)) if self._app.enqueue_middleware else requests
        return caller_transaction.run_in_caller_transaction(
            execute, lambda tx: self._push(tx, prepared), in_microseconds(self._app.settings), url
        )

    async def apush(self, connection: Any, requests: Sequence[Members]) -> list[Job]:
        """Push jobs on an asynchronous or a synchronous connection."""
        from ojster.storage.postgres import caller_transaction

        url = self._database_url("Enqueueing", "enqueue")
        if not requests:
            return []
        prepared = await self._prepare(requests)
        return await caller_transaction.run_in_caller_transaction_async(
            connection, lambda tx: self._push(tx, prepared), in_microseconds(self._app.settings), url
        )

    async def _prepare(self, requests: Sequence[Members]) -> list[Members]:
        return [await through_middleware(self._app.enqueue_middleware, members) for members in requests]

    def _push(self, tx: Transaction, requests: Sequence[Members]) -> list[Job]:
        install(tx.memory, all_extensions())
        new = [self._read(tx, members) for members in requests]
        (pushed,) = push(tx, [new])
        assert not isinstance(pushed, Later), "the caller's transaction waits for keys itself"
        jobs = [outcome.job for outcome in accepted(pushed)]
        log_warnings(new)
        return jobs

    def _read(self, tx: Transaction, members: Members) -> NewJob:
        """Return the job that a request describes. What ``Preparation`` looks up, the caller's connection reads."""
        tenant, settings = self._app.tenant, tx.settings
        members = completed(tx, members, tenant, settings.default_tenant)
        args, uri = members.get("args", msgspec.Raw(b"null")), schemas.schema_uri(members)
        job = read_job(members, tx.now, largest=settings.largest_job, tenant=tenant, otherwise=settings.default_tenant)
        check_owner(settings, job.tenant)
        refuse_reserved(job.queue)
        job.warnings += schemas.check_args(schemas.registered(tx), job, args, uri)
        if job.flags & BITS["on_creation"]:
            raise InvalidRequest(
                "A job that is enqueued in the caller's transaction cannot have reactions to on_creation; remove them."
            )
        if job.flags & ANY_EVENT:
            (missing,) = find_missing(tx, [job])
            accepted(missing)
        return job

    def start(self, connection: Any, request: Members) -> WorkflowInfo:
        """Start a workflow on a synchronous connection."""
        from ojster.storage.postgres import caller_transaction

        url = self._database_url("Starting a workflow", "start")
        execute = caller_transaction.executes(connection)
        new = self._app._event_loop_thread.call(self._prepare_start(request))
        return caller_transaction.run_in_caller_transaction(
            execute, lambda tx: self._start(tx, new), in_microseconds(self._app.settings), url
        )

    async def astart(self, connection: Any, request: Members) -> WorkflowInfo:
        """Start a workflow on an asynchronous or a synchronous connection."""
        from ojster.storage.postgres import caller_transaction

        url = self._database_url("Starting a workflow", "start")
        new = await self._prepare_start(request)
        return await caller_transaction.run_in_caller_transaction_async(
            connection, lambda tx: self._start(tx, new), in_microseconds(self._app.settings), url
        )

    async def _prepare_start(self, request: Members) -> NewWorkflow:
        """Return the checked workflow. Definitions and schemas are read on a connection of the application."""
        new = await self._app._scoped_service().workflows.prepare(request)
        if new.target is not None:
            # Other starts for the target would wait in the database for the end of the transaction, and block servers.
            raise InvalidRequest(
                f"A workflow with a target ({new.target!r:.80}) cannot be started in the caller's transaction, because "
                "others for this target would wait for its end. Start it after the commit.",
                field="target",
            )
        return new

    def _start(self, tx: Transaction, new: NewWorkflow) -> WorkflowInfo:
        install(tx.memory, all_extensions())
        with tx.savepoint():  # a refusal leaves the caller's transaction as it was
            workflow_id = accepted(create_whole(tx, new))
            if tx.effects.watched:
                names = ", ".join(sorted({event for _, event in tx.effects.watched}))
                raise InvalidRequest(
                    f"A step that starts in the caller's transaction cannot have reactions to {names}; remove them."
                )
        (workflow,) = show_workflows(tx, [WorkflowRequest(workflow_id)])
        assert workflow is not None, "this transaction has created it"
        return workflow

    def _database_url(self, what: str, instead: str) -> PostgresUrl:
        """Return the parsed URL of the application's database, for use in a caller's transaction."""
        if not self._app.url.startswith(POSTGRES):
            raise InvalidRequest(
                f"{what} in the caller's transaction requires an App with a PostgreSQL URL, not "
                f"{without_password(self._app.url)!r}. Use {instead} instead."
            )
        from ojster.storage.postgres.url import parse_postgres_url

        return parse_postgres_url(self._app.url)


class InMemoryPush(CallerPush):
    """Pushes jobs and starts workflows at once, whatever becomes of the caller's transaction: jobs are in memory."""

    def push(self, connection: Any, requests: Sequence[Members]) -> list[Job]:
        """Push jobs."""
        return self._app._event_loop_thread.call(self.apush(connection, requests))

    async def apush(self, connection: Any, requests: Sequence[Members]) -> list[Job]:
        """Push jobs."""
        if not requests:
            return []
        return [outcome.job for outcome in await self._app._scoped_service().jobs.enqueue(requests)]

    def start(self, connection: Any, request: Members) -> WorkflowInfo:
        """Start a workflow."""
        return self._app._event_loop_thread.call(self.astart(connection, request))

    async def astart(self, connection: Any, request: Members) -> WorkflowInfo:
        """Start a workflow."""
        return await self._app._scoped_service().workflows.create(request)
