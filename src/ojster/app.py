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

from ojster.client.caller_push import CallerPush
from ojster.client.event_loop_thread import EventLoopThread
from ojster.client.interface import Client
from ojster.codec import Codec, Codecs
from ojster.core.job import Job
from ojster.core.json_objects import Members
from ojster.core.tenant import check_tenant, shown_tenant
from ojster.discovery import import_modules_named
from ojster.files.open import store_for
from ojster.job_decorator import JobDecorator, check_free
from ojster.job_lookup import JobLookup
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
from ojster.storage.database import URL_VARIABLE, names_a_database
from ojster.storage.open import MEMORY, open_database
from ojster.urls import DEFAULT_URL, TOKEN_VARIABLE, known_url, left_behind, refuse_other
from ojster.workflow_calls import WorkflowCalls
from ojster.workflows.orchestrator import Orchestrator, Orchestrators
from ojster.workflows.orchestrator_request import ORCHESTRATE_TYPE, queue_of

if TYPE_CHECKING:
    from ojster.client.client import HttpClient


P = ParamSpec("P")
R = TypeVar("R")
O = TypeVar("O", bound=Orchestrator)  # noqa: E741
J = TypeVar("J", bound=JobType[..., Any])

TaskOf = Callable[[Any], tuple[str, Callable[..., Any], bool] | None]
"""Returns job type and function of a framework's task, and whether that takes a context; ``None``: it is no task."""

_encode: Final = msgspec.json.Encoder().encode


class App(JobLookup, WorkflowCalls):
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
        self._codecs = Codecs(codecs)
        self.url = known_url(url or os.environ.get(URL_VARIABLE) or DEFAULT_URL)
        self._written = url or None
        """The URL in the program; ``None``: there is none, or another one was chosen for this process."""
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
        self.task_of: TaskOf | None = None
        self.under_test = False  # whether a JobTester has its jobs
        self._synchronous = synchronous
        self._headers = dict(headers or {})
        self._token = token
        self._event_loop_thread = EventLoopThread()
        self._engine: Service | None = None
        self._engine_lock = threading.Lock()
        self._http: dict[asyncio.AbstractEventLoop, HttpClient] = {}
        self._included_in: App | None = None
        self._scoped: tuple[Service, Service] | None = None
        self._inherited_after_fork: list[object] = []
        self._was_in_memory = False
        """Whether a fork has left the jobs behind."""
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

    @property
    def root(self) -> App:
        """The application that has included this one, with those around it, or itself."""
        return self if self._included_in is None else self._included_in.root

    @property
    def codecs(self) -> Codecs:
        """The codecs of job arguments."""
        return self.root._codecs

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

    def include(self, other: App) -> None:
        """Take over what another application declares: handlers, cron jobs, orchestrators and its lifespan.

        So modules need not import the application: each declares its jobs in an ``App()`` of its own, which from then
        on uses the database or server of this one, with its codecs and middleware.

        Parameters
        ----------
        other:
            The application, which has declared all that it will.

        Raises
        ------
        ValueError
            A job type, an orchestrator or a cron job of it is already declared here, or it includes this application or
            is included already. Nothing is taken over.

        Examples
        --------
        >>> from ojster import App
        >>> mail = App()
        >>> @mail.job("email.send")
        ... def send(to: str) -> None: ...
        >>> app = App("sqlite:///:memory:")
        >>> app.include(mail)
        >>> send.enqueue("ada@example.com").state
        'available'
        >>> app.close()
        """
        if other._included_in is not None or self.root is other:
            raise ValueError("An application is included once, and not in itself.")
        if taken := {cron.name for cron in self.crons} & {cron.name for cron in other.crons}:
            raise ValueError(f"The cron job {min(taken)!r} is already declared. Give one of them a name of its own.")
        theirs = [one for type, one in other.handlers.items() if type != ORCHESTRATE_TYPE]
        for declared in theirs:
            check_free(declared.type, self.handlers, declared.function)
        for kind in other.orchestrators.values():
            self.orchestrators.check_free(kind.name)
        self.handlers.update((declared.type, declared) for declared in theirs)
        for name, kind in other.orchestrators.items():
            self.orchestrator(name)(kind)
        self.crons += other.crons
        self.lifespan.include(other.lifespan, other)
        other._included_in = self

    def discover(self, *packages: str, name: str = "tasks") -> None:
        """Import the modules of packages, and of the packages in them, that declare jobs.

        Parameters
        ----------
        packages:
            Names of packages, such as ``"shop"``.
        name:
            Name of the modules; ``tasks`` by default: ``shop.tasks``, ``shop.mail.tasks``, …

        Raises
        ------
        ImportError
            A package does not exist, or a module cannot be imported.
        """
        for package in packages:
            import_modules_named(name, package)

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
            self.orchestrators.check_free(kind.name)
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
            The expression, the time zone or the overlap policy is malformed. The decorator raises it.
        TypeError
            What is decorated is no job type, or the job type does not take these arguments. The decorator raises it.
        """
        if not isinstance(expression, str):
            raise TypeError(f"@app.cron needs an expression, such as @app.cron('0 6 * * *'), not {expression!r}.")

        def declare(declared: J) -> J:
            if not isinstance(declared, JobType):
                raise TypeError(
                    f"@app.cron schedules a job type, and {getattr(declared, '__qualname__', declared)!r} is none. "
                    "Write @app.cron above @app.job, which makes the job type."
                )
            try:
                template = _encode(declared.request(args, {}))
            except TypeError as error:
                message = f"{error} The arguments of its jobs follow the expression: @app.cron('…', argument)."
                raise TypeError(message) from None
            cron = Cron(
                name=name or declared.type.replace("_", "-"),
                expression=expression,
                timezone=timezone,
                overlap_policy=overlap_policy,
                description=description,
                template=template,
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
        if self._included_in is not None:
            return self.root.client()
        if names_a_database(self.url):
            return self._scoped_engine()
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
        if self._included_in is not None:
            return self.root.engine()
        engine = self._engine
        if engine is None and self._was_in_memory:
            raise left_behind(self.url)
        if engine is None:
            with self._engine_lock:  # so that two threads do not open it twice
                engine = self._engine
                if engine is None:
                    self.check_url()
                    database = open_database(
                        self.url, for_engine(self.settings), synchronous=self._synchronous, migrate=self.migrate
                    )
                    engine = self._engine = Service(database, store=store_for(self.url, self._files))
                    engine.middleware = self.enqueue_middleware
                    engine.check_orchestrator = self.orchestrators.check
        return engine

    def _scoped_engine(self) -> Service:
        """Return the engine for the tenant of the application, the same each time."""
        engine = self.engine()
        if self.tenant is None:
            return engine
        if self._scoped is None or self._scoped[0] is not engine or self._scoped[1].scope.tenant != self.tenant:
            self._scoped = engine, engine.as_(Caller(self.tenant))
        return self._scoped[1]

    def _enqueue_in(self, connection: Any, requests: Sequence[Members]) -> list[Job]:
        return CallerPush(self.root).push(connection, requests)

    async def _aenqueue_in(self, connection: Any, requests: Sequence[Members]) -> list[Job]:
        return await CallerPush(self.root).apush(connection, requests)

    def close(self) -> None:
        """Disconnect. The application can be used again afterwards."""
        self._event_loop_thread.call(self.aclose())
        self._event_loop_thread.close()

    async def aclose(self) -> None:
        """Disconnect. See ``close``."""
        engine, self._engine = self._engine, None
        scoped, self._scoped = self._scoped, None
        if scoped is not None:
            await scoped[1].maintenance.stop()
        if engine is not None:
            await engine.close()
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
        self._was_in_memory = self._engine is not None and self.url == MEMORY
        self._inherited_after_fork += [self._engine, self._http, self._event_loop_thread]
        self._engine = self._scoped = None
        self._engine_lock = threading.Lock()
        self._http = {}
        self._event_loop_thread = EventLoopThread()
