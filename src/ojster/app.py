"""``App``: declares and enqueues jobs, in a database or on a server."""

from __future__ import annotations

import asyncio
import inspect
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, ParamSpec, Self, TypeVar

import msgspec

from ojster import tracing
from ojster.client.caller_push import CallerPush
from ojster.client.event_loop_thread import EventLoopThread
from ojster.client.interface import Client
from ojster.codec import Codec, Codecs
from ojster.collections.handles import SharedCollection
from ojster.collections.items import Where
from ojster.core.errors import Duplicate, InvalidRequest, NotFound
from ojster.core.job import Job
from ojster.core.json_objects import Members
from ojster.core.tenant import check_tenant, shown_tenant
from ojster.core.values import to_json
from ojster.files.open import store_for
from ojster.job_decorator import JobDecorator
from ojster.job_handle import JobHandle
from ojster.job_options import policy_to_wire
from ojster.job_type import JobType
from ojster.jobs.middleware import EnqueueMiddleware, MiddlewareChain
from ojster.jobs.names import check_queue_name
from ojster.jobs.scope import Caller
from ojster.jobs.versions import Handled
from ojster.lifespan import Lifespan
from ojster.middleware import ExecutionMiddleware, ThreadMiddleware
from ojster.schedules.cron import Cron
from ojster.schedules.cron_expression import OverlapPolicy
from ojster.service import Service
from ojster.settings import Settings, for_engine
from ojster.storage.database import names_a_database, without_password
from ojster.storage.open import open_database
from ojster.workflow import Step, Workflow, chain, start_request
from ojster.workflows.definition import Definition
from ojster.workflows.handle import AsyncRun, Run
from ojster.workflows.info import WorkflowInfo
from ojster.workflows.orchestrator import Orchestrator, Orchestrators
from ojster.workflows.orchestrator_request import ORCHESTRATE_TYPE, queue_of
from ojster.workflows.orchestrator_request import ORCHESTRATOR_MEMBER as ORCHESTRATOR

if TYPE_CHECKING:
    from ojster.client.client import HttpClient


P = ParamSpec("P")


R = TypeVar("R")


O = TypeVar("O", bound=Orchestrator)  # noqa: E741

J = TypeVar("J", bound=JobType[..., Any])


Startable = Step | str | type[Orchestrator]
"""Anything that can be started as a workflow: steps, the name of a definition, or an orchestrator class."""


DEFAULT_URL: Final = "sqlite:///ojster.db"


URL_VARIABLE: Final = "OJSTER_DATABASE_URL"


TOKEN_VARIABLE: Final = "OJSTER_TOKEN"  # noqa: S105  (a name)


_encode: Final = msgspec.json.Encoder().encode


def _workflow_type(workflow: Startable) -> str:
    if isinstance(workflow, str):
        return workflow
    if isinstance(workflow, type):
        return workflow.name
    return str(workflow.wire.get("type", "chain")) if isinstance(workflow, Workflow) else "chain"


class App:
    """An application: its job handlers, and the database or server for its jobs.

    Parameters
    ----------
    url:
        Database (``sqlite:///jobs.db``, ``postgresql://user@host/name``) or server (``http://127.0.0.1:8080``,
        ``unix:///run/ojster.sock``). By default the environment variable ``OJSTER_DATABASE_URL``, or else
        ``sqlite:///ojster.db``.
    settings:
        Defaults and limits of a database; a server uses its own.
    synchronous:
        ``FULL``, the default, survives a power loss. ``NORMAL`` is faster, but a power loss (SQLite) or a crash
        (PostgreSQL) may lose the last commits. See ``open_database``.
    migrate:
        Whether to migrate the schema of a PostgreSQL database when it is opened; by default only ``ojster migrate``
        does. SQLite files are always migrated.
    headers:
        HTTP headers of every request to a server; none by default.
    token:
        Bearer token for a server (``ojster tokens create``); by default the environment variable ``OJSTER_TOKEN``.
    codecs:
        Codecs that encode job arguments before they are sent, in this order, and decode them before a handler is
        called; for example ``[Gzip(), Encryption(keys)]``. None by default. See ``ojster.codec``.
    tenant:
        Tenant scope: the application can create and read only this tenant's jobs. ``None``: jobs of all tenants; a job
        may name its tenant as ``tenant_id`` in its ``meta``.
    files:
        File storage of a database: a directory, or the URL of an object store (``s3://bucket/prefix``, with the extra
        ``files``). ``None``: the environment variable ``OJSTER_FILES``, or else a directory beside the SQLite database
        file with the suffix ``-files``, memory for a SQLite database in memory, and no storage for PostgreSQL.

    Raises
    ------
    InvalidRequest
        The URL is neither a database nor a server, or the name of the tenant is malformed.

    Examples
    --------
    >>> from ojster import App
    >>> app = App("sqlite:///:memory:")
    >>> @app.job("email.send", retry=5)
    ... def send(to: str, subject: str) -> None: ...
    >>> send.enqueue("ada@example.com", "Hello").state
    'available'
    >>> app.close()

    Spec: ojs-multi-tenancy
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        settings: Settings = Settings(),  # noqa: B008  (it is frozen)
        synchronous: str = "FULL",
        migrate: bool = False,
        headers: Mapping[str, str] | None = None,
        token: str | None = None,
        codecs: Sequence[Codec] = (),
        tenant: str | None = None,
        files: str | None = None,
    ) -> None:
        self._files = files
        self.tenant = None if tenant is None else check_tenant(tenant)
        self.codecs = Codecs(codecs)
        self.url = url or os.environ.get(URL_VARIABLE) or DEFAULT_URL
        self.settings = settings
        self.handlers: dict[str, JobType[Any, Any]] = {}
        self.crons: list[Cron] = []
        self.orchestrators = Orchestrators()
        self.enqueue_middleware = MiddlewareChain[EnqueueMiddleware]()
        self.execution_middleware = MiddlewareChain[ExecutionMiddleware]()
        self.thread_middleware = MiddlewareChain[ThreadMiddleware]()
        self.lifespan = Lifespan[App]()
        self.on_startup = self.lifespan.on_startup
        self.on_shutdown = self.lifespan.on_shutdown
        self.migrate = migrate
        self._synchronous = synchronous
        self._headers = dict(headers or {})
        self._token = token
        self._event_loop_thread = EventLoopThread()
        self._engine: Service | None = None
        self._engine_lock = threading.Lock()
        self._http: dict[asyncio.AbstractEventLoop, HttpClient] = {}
        self._inherited_after_fork: list[object] = []
        if not (names_a_database(self.url) or self.url.startswith(("http://", "https://", "unix:///"))):
            raise InvalidRequest(
                f"The URL {without_password(self.url)!r} is neither a database (sqlite:///…, postgresql://…) nor a "
                "server (http://…, unix:///…)."
            )
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forget_after_fork)

    def work_on(self, engine: Service, url: str) -> None:
        """Use an engine that is already open.

        Parameters
        ----------
        engine:
            Open engine; ``close`` closes it.
        url:
            URL of its database.
        """
        self.url, self._engine = url, engine
        engine.check_orchestrator = self.orchestrators.check

    @property
    def handled(self) -> tuple[Handled, ...]:
        """The version ranges of handlers that accept only some versions, sorted by job type."""
        declared = sorted(self.handlers.values(), key=lambda one: one.type)
        return tuple(one.handled for one in declared if one.handled is not None)

    @cached_property
    def job(self) -> JobDecorator:
        """The decorator that declares a function as the handler of a job type, with or without arguments.

        ``@app.job`` takes the function's name as the type; ``@app.job("email.send", retry=5)`` names it and sets
        options of its jobs. Beside ``JobOptions`` it takes ``process`` and ``versions``; see ``JobDecorator``.
        """
        return JobDecorator(self, self.handlers)

    def orchestrator(self, name: str | None = None) -> Callable[[type[O]], type[O]]:
        """Declare a class as an orchestrator: it adds steps to a workflow while the workflow runs.

        It runs in workers of this application, and in servers started with it (``ojster serve --app``).

        Parameters
        ----------
        name:
            Name of the orchestrator; by default the class name in lower case.

        Returns
        -------
        Callable
            A decorator that registers the class and returns it.

        Raises
        ------
        ValueError
            The name is taken, or ``validate`` is a coroutine function. The decorator raises it.
        InvalidRequest
            The name is malformed. The decorator raises it.
        """

        def declare(kind: type[O]) -> type[O]:
            kind.name = name or kind.__name__.lower()
            check_queue_name(queue_of(kind.name))
            if inspect.iscoroutinefunction(kind.validate):
                raise ValueError(f"{kind.__name__}.validate must not be a coroutine function; make it a plain method.")
            if kind.name in self.orchestrators:
                raise ValueError(f"The orchestrator {kind.name!r} already exists: {self.orchestrators[kind.name]!r}.")
            if ORCHESTRATE_TYPE not in self.handlers:
                self.job(ORCHESTRATE_TYPE)(self.orchestrators.run)
            self.orchestrators[kind.name] = kind
            return kind

        return declare

    def cron(
        self,
        expression: str,
        *args: Any,
        name: str | None = None,
        timezone: str = "UTC",
        overlap_policy: OverlapPolicy = "skip",
        description: str | None = None,
    ) -> Callable[[J], J]:
        """Schedule a declared job type as a cron job; workers register it when they start.

        Parameters
        ----------
        expression:
            Schedule, such as ``*/5 * * * *``, ``@daily`` or ``@every 90s``.
        args:
            Arguments of each job.
        name:
            Name of the cron job; by default the job type, with ``-`` instead of ``_``.
        timezone:
            IANA time zone of the expression; ``UTC`` by default.
        overlap_policy:
            Action if the previous job is unfinished: ``skip`` (the default), ``allow``, ``cancel_previous`` or
            ``enqueue``.
        description:
            Text for operators; none by default.

        Returns
        -------
        Callable
            A decorator that schedules the job type and returns it.

        Raises
        ------
        InvalidRequest
            The expression or the time zone is malformed. The decorator raises it.
        TypeError
            The job type does not take these arguments. The decorator raises it.
        """

        def declare(declared: J) -> J:
            cron = Cron(
                name=name or declared.type.replace("_", "-"),
                expression=expression,
                timezone=timezone,
                overlap_policy=overlap_policy,
                description=description,
                template=_encode(declared.request(args, {})),
            )
            _ = cron.schedule
            self.crons.append(cron)
            return declared

        return declare

    def client(self) -> Client:
        """Return the client for the running event loop, created on first use.

        Returns
        -------
        Client
            The engine of the database, or the HTTP client of the server.

        Raises
        ------
        BackendUnavailable
            The database cannot be opened.
        RuntimeError
            The application uses a server, and no event loop runs.
        """
        if names_a_database(self.url):
            return self.engine() if self.tenant is None else self.engine().as_(Caller(self.tenant))
        loop = asyncio.get_running_loop()
        client = self._http.get(loop)
        if client is None:
            self._http = {known: client for known, client in self._http.items() if not known.is_closed()}
            headers = dict(self._headers)
            if self.tenant is not None:
                headers["X-OJS-Tenant"] = shown_tenant(self.tenant)
            if token := self._token or os.environ.get(TOKEN_VARIABLE):
                headers.setdefault("Authorization", f"Bearer {token}")
            from ojster.client.client import HttpClient  # imported here, because the import is slow

            client = self._http[loop] = HttpClient(self.url, headers=headers)
            client.jobs.middleware = self.enqueue_middleware
        return client

    def engine(self) -> Service:
        """Return the engine of the application's database, opened on first use.

        Returns
        -------
        Service
            The engine; ``close`` closes it.

        Raises
        ------
        InvalidRequest
            The application uses a server.
        BackendUnavailable
            The database cannot be opened.
        """
        engine = self._engine
        if engine is None:
            with self._engine_lock:  # so that two threads do not open it twice
                engine = self._engine
                if engine is None:
                    database = open_database(
                        self.url, for_engine(self.settings), synchronous=self._synchronous, migrate=self.migrate
                    )
                    engine = self._engine = Service(database, store=store_for(self.url, self._files))
                    engine.middleware = self.enqueue_middleware
                    engine.check_orchestrator = self.orchestrators.check
        return engine

    def define(self, name: str, workflow: Step, **options: Any) -> Definition:
        """Create a workflow definition, or add a new version to it if the definition has changed.

        Workflows that were started from an earlier version do not change.

        Parameters
        ----------
        name:
            Name of the definition, with which ``start`` starts it.
        workflow:
            Steps of its workflows. A single step becomes a chain of one.
        options:
            Options of all its workflows: ``params_schema``, a JSON Schema of their parameters; ``retry``, the policy of
            workflow retries (``RetryWorkflow``); and ``options``, ``timeout``, ``on_error``, ``on_cancel`` and
            ``on_lost_worker``, as in ``start``.

        Returns
        -------
        Definition
            The latest version of the definition.

        Raises
        ------
        InvalidRequest, InvalidWorkflow
            The workflow is invalid.
        BackendUnavailable
            The server cannot be reached.
        """
        return self._event_loop_thread.call(self.adefine(name, workflow, **options))

    async def adefine(self, name: str, workflow: Step, **options: Any) -> Definition:
        """Create or update a workflow definition. See ``define``.

        Returns
        -------
        Definition
            The latest version of the definition.
        """
        retry, schema = options.pop("retry", None), options.pop("params_schema", None)
        whole = workflow if isinstance(workflow, Workflow) else chain(workflow)
        members = whole.request(**options)
        if retry is not None:
            members["retry"] = msgspec.Raw(to_json(policy_to_wire(retry)))
        if schema is not None:
            members["params_schema"] = msgspec.Raw(to_json(schema))
        client = self.client()
        try:
            return await client.definitions.update(name, members)
        except NotFound:
            pass
        try:
            return await client.definitions.create(name, members)
        except Duplicate:  # another client has just created it
            return await client.definitions.update(name, members)

    def start(self, workflow: Startable, **options: Any) -> Run:
        """Start a workflow: steps, a definition by name, or an orchestrator.

        Parameters
        ----------
        workflow:
            Steps, the name of a definition, or a class declared with ``orchestrator``. A single step becomes a chain of
            one.
        options:
            Options of the workflow: ``name``; ``params``, the values of parameter references; ``metadata``; ``options``
            and ``priority``, which its jobs inherit; ``timeout`` (seconds), after which it fails; ``scheduled_at`` or
            ``delay`` (seconds), before which it does not start; ``expires_in`` (seconds), after which it no longer
            starts; ``on_error`` and ``on_cancel``, a step or a list of steps that run if it fails or is cancelled;
            ``on_lost_worker``, ``"cancel"`` to cancel it when a worker is lost with one of its jobs; ``properties``,
            the initial properties that its tasks share; ``expiration_delay`` (seconds, or ``never``), the retention of
            the finished workflow and all its jobs.

            A definition sets ``options``, ``timeout``, ``on_error``, ``on_cancel`` and ``on_lost_worker`` itself, and
            adds: ``version``, by default the latest; ``target``, the resource that the workflow works on: no two
            unfinished workflows of a definition may have the same target and ``params``; ``locks``, a regular
            expression: until the workflow finishes, no other workflow starts for a target that matches.

        Returns
        -------
        Run
            The started workflow.

        Raises
        ------
        InvalidRequest
            An option is malformed, or the orchestrator rejects ``params``.
        InvalidWorkflow
            The workflow breaks a rule; the message names the place.
        TypeError
            An option does not exist.
        NotFound
            The definition does not exist.
        Duplicate, Conflict
            The target is taken or locked; ``existing_workflow_id`` in the details names the other workflow.
        BackendUnavailable
            The server cannot be reached.
        """
        with tracing.starting(_workflow_type(workflow)) as carried:
            return Run(self, self._event_loop_thread.call(self._create(workflow, options, carried)))

    async def astart(self, workflow: Startable, **options: Any) -> AsyncRun:
        """Start a workflow. See ``start``.

        Returns
        -------
        AsyncRun
            The started workflow.
        """
        with tracing.starting(_workflow_type(workflow)) as carried:
            return AsyncRun(self, await self._create(workflow, options, carried))

    async def _create(
        self, workflow: Startable, options: Mapping[str, Any], carried: Mapping[str, str]
    ) -> WorkflowInfo:
        if carried:
            options = {**options, "metadata": {**carried, **(options.get("metadata") or {})}}
        if isinstance(workflow, type):
            members = Workflow({}).request(**options)
            members[ORCHESTRATOR] = msgspec.Raw(_encode(workflow.name))
            return await self.client().workflows.create(members)
        if isinstance(workflow, str):
            return await self.client().workflows.create(start_request(workflow, **options))
        whole = workflow if isinstance(workflow, Workflow) else chain(workflow)
        return await self.client().workflows.create(whole.request(**options))

    def collection(self, name: str) -> SharedCollection:
        """Return a named collection. Its existence is checked on first use.

        Parameters
        ----------
        name:
            Name of the collection.

        Returns
        -------
        SharedCollection
            The collection.
        """
        return SharedCollection(self.client, Where(name), self._event_loop_thread.call)

    def collection_of(self, workflow_id: str) -> SharedCollection:
        """Return the collection of a workflow; its jobs call it ``internal``.

        Parameters
        ----------
        workflow_id:
            Id of the workflow.

        Returns
        -------
        SharedCollection
            The collection.
        """
        return SharedCollection(self.client, Where(workflow_id=workflow_id), self._event_loop_thread.call)

    def find_workflow(self, workflow_id: str) -> Run:
        """Return an existing workflow.

        Parameters
        ----------
        workflow_id:
            Id of the workflow.

        Returns
        -------
        Run
            The workflow.

        Raises
        ------
        NotFound
            The workflow does not exist.
        """
        return Run(self, self._event_loop_thread.call(self._show(workflow_id)))

    async def afind_workflow(self, workflow_id: str) -> AsyncRun:
        """Return an existing workflow. See ``find_workflow``.

        Returns
        -------
        AsyncRun
            The workflow.
        """
        return AsyncRun(self, await self._show(workflow_id))

    async def _show(self, workflow_id: str) -> WorkflowInfo:
        return await self.client().workflows.show(workflow_id)

    def find(self, job_id: str) -> JobHandle[Any]:
        """Return the handle of an existing job.

        Parameters
        ----------
        job_id:
            Id of the job.

        Returns
        -------
        JobHandle
            The handle of the job.

        Raises
        ------
        NotFound
            The job does not exist.
        """
        return self._event_loop_thread.call(self.afind(job_id))

    async def afind(self, job_id: str) -> JobHandle[Any]:
        """Return the handle of an existing job. See ``find``.

        Returns
        -------
        JobHandle
            The handle of the job.
        """
        job = await self.client().jobs.find(job_id)
        declared = self.handlers.get(job.type)
        return JobHandle(self, job, None if declared is None else declared.types)

    def _enqueue_in(self, connection: Any, requests: Sequence[Members]) -> list[Job]:
        return CallerPush(self).push(connection, requests)

    async def _aenqueue_in(self, connection: Any, requests: Sequence[Members]) -> list[Job]:
        return await CallerPush(self).apush(connection, requests)

    def close(self) -> None:
        """Disconnect. The application can be used again afterwards."""
        self._event_loop_thread.call(self.aclose())
        self._event_loop_thread.close()

    async def aclose(self) -> None:
        """Disconnect. See ``close``."""
        engine, self._engine = self._engine, None
        if engine is not None:
            await engine.close()
        client = self._http.pop(asyncio.get_running_loop(), None)
        if client is not None:
            await client.close()

    def __enter__(self) -> Self:
        """Return the application; the end of the block disconnects it."""
        return self

    def __exit__(self, *error: object) -> None:
        """Disconnect."""
        self.close()

    async def __aenter__(self) -> Self:
        """Return the application; the end of the block disconnects it."""
        return self

    async def __aexit__(self, *error: object) -> None:
        """Disconnect."""
        await self.aclose()

    def _forget_after_fork(self) -> None:
        """Drop, without closing them, the connections and the event-loop thread that a forked child inherits."""
        self._inherited_after_fork += [self._engine, self._http, self._event_loop_thread]
        self._engine = None
        self._engine_lock = threading.Lock()
        self._http = {}
        self._event_loop_thread = EventLoopThread()
