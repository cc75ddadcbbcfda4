"""``App``: declares and enqueues jobs, in a database or on a server."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, Self, TypeVar

from ojster.api.caller_push import CallerPush, InMemoryPush
from ojster.api.eager import Eager, EagerMode, eager_in_environment
from ojster.api.flows import FlowDeclarations
from ojster.api.job_lookup import JobLookup
from ojster.api.workflow_calls import AppWorkflows
from ojster.client.event_loop_thread import EventLoopThread
from ojster.client.interface import Client
from ojster.client.plain_client import PlainClient
from ojster.core.declared_options import checks_options
from ojster.core.environment import warn_of_unknown_variables
from ojster.core.job import Job
from ojster.core.json_objects import Members
from ojster.core.public_settings import Settings, in_microseconds
from ojster.core.tenant import check_tenant, shown_tenant
from ojster.files.open import store_for
from ojster.handlers.codec import Codec
from ojster.handlers.other_queues import OF_APPLICATIONS, SaysOtherNames
from ojster.jobs.scope import Caller
from ojster.service import Service
from ojster.storage.database import URL_VARIABLE, names_a_database
from ojster.storage.open import MEMORY, open_database
from ojster.storage.urls import DEFAULT_URL, TOKEN_VARIABLE, known_url, left_behind, refuse_other
from ojster.workflows.read.info import WorkflowInfo

if TYPE_CHECKING:
    from ojster.client.client import HttpClient


log = logging.getLogger(__name__)

P = ParamSpec("P")
R = TypeVar("R")

TaskOf = Callable[[Any], tuple[str, Callable[..., Any], bool] | None]
"""Returns job type and function of a framework's task, and whether that takes a context; ``None``: it is no task."""


class App(EagerMode, JobLookup, AppWorkflows, FlowDeclarations, SaysOtherNames):
    """An application: its job handlers, and the database or server for its jobs.

    Parameters
    ----------
    url:
        Database (``sqlite:///jobs.db``, ``postgresql://user@host/name``) or server (``http://127.0.0.1:8080``,
        ``unix:///run/ojster.sock``). By default the environment variable ``OJSTER_DATABASE_URL``, or else
        ``sqlite:///ojster.db``. If the variable names another one than this parameter, using the application is an
        error: commands without an application would use the other one. Not for a database in memory.
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
        called; for example ``[Gzip(), Encryption(keys)]``. None by default. See ``ojster.handlers.codec``.
    tenant:
        Tenant scope: the application can create and read only this tenant's jobs. ``None``: jobs of all tenants; a job
        may name its tenant as ``tenant_id`` in its ``meta``.
    files:
        File storage of a database: a directory, or the URL of an object store (``s3://bucket/prefix``, with the extra
        ``files``). ``None``: the environment variable ``OJSTER_FILES``, or else a directory beside the SQLite database
        file with the suffix ``-files``, memory for a SQLite database in memory, and no storage for PostgreSQL.
    eager:
        Whether jobs run in the thread of the caller, before ``enqueue`` returns, and are not kept: for development and
        tests, without workers. The URL is then unused. ``None``, the default: as the environment variable
        ``OJSTER_EAGER`` says, and not without it. See ``eager``, the method.

    Raises
    ------
    TypeError, ValueError
        An option has another type, or a text that is none of its choices.
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

    _other_names = OF_APPLICATIONS

    @checks_options
    def __init__(
        self,
        url: str | None = None,
        *,
        settings: Settings = Settings(),  # noqa: B008  (it is frozen)
        synchronous: Literal["FULL", "NORMAL"] = "FULL",
        migrate: bool = False,
        headers: Mapping[str, str] | None = None,
        token: str | None = None,
        codecs: Sequence[Codec] = (),
        tenant: str | None = None,
        files: str | None = None,
        eager: bool | None = None,
    ) -> None:
        self.files = files
        self.tenant = None if tenant is None else check_tenant(tenant)
        super().__init__(known_url(url or os.environ.get(URL_VARIABLE) or DEFAULT_URL), codecs)
        self._written = url or None
        """The URL in the program or its configuration; ``None``: none, or another one was chosen for this process."""
        self.settings = settings
        self.on_startup = self.lifespan.on_startup
        self.on_shutdown = self.lifespan.on_shutdown
        self.migrate = migrate
        self.task_of: TaskOf | None = None
        self.waiting_for_commit: Callable[[], Awaitable[Collection[str]]] | None = None
        """Returns the ids of jobs that a framework enqueues after the commit of the caller's transaction."""
        self.under_test = False  # whether a JobTester has its jobs
        self._synchronous = synchronous
        self._headers = dict(headers or {})
        self._token = token
        self._has_warned = False
        self._event_loop_thread = EventLoopThread()
        self._eager = None
        if eager or (eager is None and eager_in_environment()):
            self._begin_to_be_eager()
        self._service: Service | None = None
        self._service_lock = threading.Lock()
        self._http: dict[asyncio.AbstractEventLoop, HttpClient] = {}
        self._scoped: tuple[Service, Service] | None = None
        self._inherited_after_fork: list[object] = []
        self._was_in_memory = False
        """Whether a fork has left the jobs behind."""
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forget_after_fork)

    def _begin_to_be_eager(self) -> None:
        self._eager = Eager(self)
        self._event_loop_thread = self._eager.loop

    def work_on(self, service: Service, url: str) -> None:
        """Use a service that is already open.

        Parameters
        ----------
        service:
            Open service; ``close`` closes it.
        url:
            URL of its database.
        """
        self.url, self._service = url, service
        service.check_orchestrator = self.orchestrators.check

    def choose_url(self, url: str) -> None:
        """Use the database or server that was named for this process, such as with ``--url``, whatever else names one.

        Raises
        ------
        InvalidRequest
            The URL is neither a database nor a server.
        """
        self.url, self._written = known_url(url), None

    def check_url(self) -> None:
        """Raise ``InvalidRequest`` if the program and the environment name different databases or servers."""
        if self._written is not None and self._written == self.url != MEMORY:
            refuse_other(self.url)

    def client(self) -> Client:
        """Return the client for the running event loop, created on first use.

        Returns
        -------
        Client
            The service of the database, or the HTTP client of the server.

        Raises
        ------
        BackendUnavailable
            The database cannot be opened.
        RuntimeError
            The application uses a server, and no event loop runs.
        """
        if self._included_in is not None:
            return self.root.client()
        if self._eager is not None or names_a_database(self.url):
            return self._scoped_service()
        self.check_url()
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

            warn_of_unknown_variables(log.warning)
            self._warn_of_idle(
                "server",
                settings=self.settings != Settings(),
                synchronous=self._synchronous != "FULL",
                migrate=self.migrate,
                files=self.files is not None,
            )
            client = self._http[loop] = HttpClient(self.url, headers=headers)
            client.jobs.middleware = self.enqueue_middleware
        return client

    def plain_client(self) -> PlainClient:
        """Return the calls of operators as plain methods, for code without an event loop.

        Returns
        -------
        PlainClient
            The calls of ``client``, to the same database or server.

        Examples
        --------
        >>> from ojster import App
        >>> app = App("sqlite:///:memory:")
        >>> app.plain_client().queues.pause("mail").paused
        True
        >>> app.close()
        """
        return PlainClient(self.root)

    def service(self) -> Service:
        """Return the service of the application's database, opened on first use.

        Returns
        -------
        Service
            The service; ``close`` closes it.

        Raises
        ------
        InvalidRequest
            The application uses a server.
        BackendUnavailable
            The database cannot be opened.
        """
        if self._included_in is not None:
            return self.root.service()
        service = self._service
        if service is None and self._was_in_memory:
            raise left_behind(self.url)
        if service is None:
            with self._service_lock:  # so that two threads do not open it twice
                service = self._service
                if service is None and self._eager is not None:
                    log.warning("jobs run eagerly, in the thread of their caller, and are kept in memory alone")
                    service = self._service = self._eager.open()
                if service is None:
                    self.check_url()
                    warn_of_unknown_variables(log.warning)
                    database = open_database(
                        self.url, in_microseconds(self.settings), synchronous=self._synchronous, migrate=self.migrate
                    )
                    self._warn_of_idle("database", headers=bool(self._headers), token=self._token is not None)
                    service = self._service = Service(database, store=store_for(self.url, self.files))
                    service.middleware = self.enqueue_middleware
                    service.check_orchestrator = self.orchestrators.check
        return service

    def _warn_of_idle(self, what: str, **options: bool) -> None:
        """Log once which options have no effect on a database, or on a server: another URL may be for a test alone."""
        idle = [name for name, is_set in options.items() if is_set]
        if idle and not self._has_warned:
            self._has_warned = True
            log.warning("%s of App: no effect on a %s", ", ".join(idle), what)

    def _scoped_service(self) -> Service:
        """Return the service for the tenant of the application, the same each time."""
        service = self.service()
        if self.tenant is None:
            return service
        if self._scoped is None or self._scoped[0] is not service or self._scoped[1].scope.tenant != self.tenant:
            self._scoped = service, service.as_(Caller(self.tenant))
            if self._eager is not None:
                self._eager.follow(self._scoped[1])
        return self._scoped[1]

    def _push_of_caller(self) -> CallerPush:
        return (InMemoryPush if self.is_eager or self.root.under_test else CallerPush)(self.root)

    def _enqueue_in(self, connection: Any, requests: Sequence[Members]) -> list[Job]:
        return self._push_of_caller().push(connection, requests)

    async def _aenqueue_in(self, connection: Any, requests: Sequence[Members]) -> list[Job]:
        return await self._push_of_caller().apush(connection, requests)

    def _start_in(self, connection: Any, request: Members) -> WorkflowInfo:
        return self._push_of_caller().start(connection, request)

    async def _astart_in(self, connection: Any, request: Members) -> WorkflowInfo:
        return await self._push_of_caller().astart(connection, request)

    def close(self) -> None:
        """Disconnect. The application can be used again afterwards."""
        self._event_loop_thread.call(self.aclose())
        self._event_loop_thread.close()

    async def aclose(self) -> None:
        """Disconnect. See ``close``."""
        service, self._service = self._service, None
        scoped, self._scoped = self._scoped, None
        if scoped is not None:
            await scoped[1].maintenance.stop()
        if service is not None:
            await service.close()
        client = self.root._http.pop(asyncio.get_running_loop(), None)
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
        self._was_in_memory = self._service is not None and self.url == MEMORY
        self._inherited_after_fork += [self._service, self._http, self._event_loop_thread]
        self._service = self._scoped = None
        self._service_lock = threading.Lock()
        self._http = {}
        self._event_loop_thread = EventLoopThread()
        if self._eager is not None:
            self._was_in_memory = False  # all has run that was enqueued before the fork
            self._begin_to_be_eager()
