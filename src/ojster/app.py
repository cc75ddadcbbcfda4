"""How does an application declare and enqueue jobs? One ``App``, whether they are in a file or on a server."""

from __future__ import annotations

import asyncio
import functools
import importlib
import inspect
import math
import os
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, ParamSpec, TypeVar

import msgspec

from ojster import tracing
from ojster.agents import attributes
from ojster.capabilities import EXTENSIONS
from ojster.client.event_loop_thread import Portal
from ojster.client.interface import Client
from ojster.codec import Codec, Codecs
from ojster.collections.handles import SharedCollection
from ojster.collections.items import Where
from ojster.context import JobCancelled, JobContext, JobFailed
from ojster.core.errors import Duplicate, InvalidRequest, NotFound
from ojster.core.ids import new_id
from ojster.core.job import Job
from ojster.core.reacts import BITS
from ojster.core.settings import Settings
from ojster.core.states import FINISHED, JobState
from ojster.core.tenant import check_tenant, shown_tenant
from ojster.core.values import Seconds, to_duration, to_expiration_delay, to_json, to_millis, to_timestamp
from ojster.events.reaction_rules import ATTRIBUTE
from ojster.files.store import store_for
from ojster.files.transfer import restore
from ojster.fleet import ml_resources
from ojster.jobs.expiration import ATTRIBUTE as EXPIRATION
from ojster.jobs.extension import install
from ojster.jobs.push import push
from ojster.jobs.request import DEFAULT_QUEUE, Members, check_queue_name, read_job, read_options, read_type
from ojster.jobs.service import through_middleware
from ojster.jobs.versions import ANY, Handled, parse_handled
from ojster.schedules.cron import Cron
from ojster.schedules.cron_expression import OverlapPolicy
from ojster.scope import EnqueueMiddleware, accepted
from ojster.service import Engine
from ojster.storage.database import POSTGRES, names_a_database, open_database, without_password
from ojster.storage.transaction import Later, Transaction
from ojster.workflow import Step, Workflow, chain, start_request
from ojster.workflows.definition import Definition
from ojster.workflows.handle import AsyncRun, Run
from ojster.workflows.info import WorkflowInfo
from ojster.workflows.orchestrator import Orchestrator, Orchestrators
from ojster.workflows.orchestrator_request import MEMBER as ORCHESTRATOR
from ojster.workflows.orchestrator_request import ORCHESTRATE_TYPE, queue_of

if TYPE_CHECKING:
    from ojster.client.client import HttpClient

P = ParamSpec("P")
R = TypeVar("R")
O = TypeVar("O", bound=Orchestrator)  # noqa: E741

Startable = Step | str | type[Orchestrator]
"""What is started as a workflow: its steps, the name of a definition, or an orchestrator that lays it out."""

ExecutionMiddleware = Callable[[JobContext, Callable[[], Awaitable[Any]]], Awaitable[Any]]
"""Wraps the execution of every job: gets its context and ``next``, which runs what is inside and returns the result."""

DEFAULT_URL: Final = "sqlite:///ojster.db"
URL_VARIABLE: Final = "OJSTER_DATABASE_URL"
TOKEN_VARIABLE: Final = "OJSTER_TOKEN"  # noqa: S105  (a name)
LONGEST_POLL: Final = 30.0

_encode: Final = msgspec.json.Encoder().encode


class Retry(msgspec.Struct, frozen=True, kw_only=True):
    """How often and how fast a failed job is tried again (ojs-retry.md).

    Parameters
    ----------
    max_attempts:
        How often the job runs at most, the first time included.
    initial_interval, max_interval:
        The first delay, and the longest, in seconds or as a ``timedelta``.
    backoff:
        How the delay grows.
    coefficient:
        The base of exponential, the exponent of polynomial backoff.
    jitter:
        Whether delays vary by half, so that jobs that failed together are not tried again together.
    give_up_on:
        Exception classes, or error types (``auth.*`` for a prefix), after which it is not tried again.
    dead_letter:
        Whether a job that has used up its attempts is kept as a dead letter, to be looked at and retried by hand.
    """

    max_attempts: int = 3
    initial_interval: Seconds = 1.0
    max_interval: Seconds = 300.0
    backoff: Literal["exponential", "linear", "constant", "polynomial"] = "exponential"
    coefficient: float = 2.0
    jitter: bool = True
    give_up_on: Sequence[type[BaseException] | str] = ()
    dead_letter: bool = False

    def to_wire(self) -> dict[str, Any]:
        """Return the policy as the ``retry`` object of a job."""
        return {
            "max_attempts": self.max_attempts,
            "initial_interval_ms": to_millis(self.initial_interval),
            "max_interval_ms": to_millis(self.max_interval),
            "backoff_strategy": self.backoff,
            "backoff_coefficient": self.coefficient,
            "jitter": self.jitter,
            "non_retryable_errors": [
                entry if isinstance(entry, str) else error_type(entry) for entry in self.give_up_on
            ],
            "on_exhaustion": "dead_letter" if self.dead_letter else "discard",
        }


class Unique(msgspec.Struct, frozen=True, kw_only=True):
    """Which jobs count as duplicates, and what to do with one (ojs-unique-jobs.md).

    Parameters
    ----------
    keys:
        What must be equal, of ``queue``, ``args`` and ``meta``; the type always must.
    args_keys, meta_keys:
        Only these members of ``args`` and ``meta``.
    period:
        For how long after it was created another job counts, in seconds; ``None``: as long as it is in ``states``.
    states:
        In which states another job counts; by default in all that are not finished.
    on_conflict:
        ``reject`` raises ``Duplicate``; ``ignore`` returns the other job; ``replace`` cancels it.
    """

    keys: Sequence[str] = ("args",)
    args_keys: Sequence[str] | None = None
    meta_keys: Sequence[str] | None = None
    period: Seconds | None = None
    states: Sequence[str] | None = None
    on_conflict: Literal["reject", "ignore", "replace", "replace_except_schedule"] = "reject"

    def to_wire(self) -> dict[str, Any]:
        """Return the policy as the ``unique`` object of a job."""
        wire: dict[str, Any] = {"keys": ["type", *self.keys], "on_conflict": self.on_conflict}
        for name in ("args_keys", "meta_keys", "states"):
            if (value := getattr(self, name)) is not None:
                wire[name] = list(value)
        if self.period is not None:
            wire["period"] = to_duration(self.period)
        return wire


class RateLimit(msgspec.Struct, frozen=True, kw_only=True):
    """How many of the jobs with a key may run at a time, and how many may start (ojs-rate-limiting.md).

    All limits hold for all jobs with the key together, whatever their types, queues and workers; of jobs that say
    different things the last one is right.

    Parameters
    ----------
    key:
        What is to be protected, such as ``stripe-api`` or ``tenant:acme``.
    concurrency:
        How many may run at a time; 0: none.
    rate:
        ``(100, 60)``: a hundred may start in a window of sixty seconds, which begins with the first of them.
    throttle:
        ``(10, 1)``: ten a second, evenly spread.
    on_limit:
        ``wait``: in the queue, until there is room; ``reschedule``: as scheduled; ``drop``: discard it.
    """

    key: str
    concurrency: int | None = None
    rate: tuple[int, Seconds] | None = None
    throttle: tuple[int, Seconds] | None = None
    on_limit: Literal["wait", "reschedule", "drop"] = "wait"

    def to_wire(self) -> dict[str, Any]:
        """Return the policy as the ``rate_limit`` object of a job."""
        wire: dict[str, Any] = {"key": self.key, "on_limit": self.on_limit}
        if self.concurrency is not None:
            wire["concurrency"] = self.concurrency
        for name, rate in (("rate", self.rate), ("throttle", self.throttle)):
            if rate is not None:
                wire[name] = {"limit": rate[0], "period": to_duration(rate[1])}
        return wire


class JobOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How jobs are to be treated; what is ``None`` is left to the server. See ``App.job``."""

    queue: str | None = None
    priority: int | None = None
    timeout: Seconds | None = None
    retry: Retry | int | Mapping[str, Any] | None = None
    unique: Unique | Mapping[str, Any] | None = None
    rate_limit: RateLimit | Mapping[str, Any] | None = None
    delay: Seconds | None = None
    scheduled_at: datetime | None = None
    expires_in: Seconds | None = None
    expires_at: datetime | None = None
    tags: Sequence[str] | None = None
    pending: bool | None = None
    meta: Mapping[str, Any] | None = None
    version: str | None = None
    resources: Mapping[str, Any] | None = None
    requires: Mapping[str, Any] | None = None
    agent: Mapping[str, Any] | None = None
    reactions: Mapping[str, Sequence[Mapping[str, Any]]] | None = None
    expiration_delay: Seconds | Literal["never"] | None = None

    def beside(self) -> Members:
        """Return the members of a job that stand beside its ``options``."""
        members: dict[str, Any] = {} if self.version is None else {"version": self.version}
        members |= {ml_resources.PREFIX + name: value for name, value in (self.resources or {}).items()}
        members |= {attributes.PREFIX + name: value for name, value in (self.agent or {}).items()}
        if self.requires is not None:
            members[ml_resources.REQUIRES] = self.requires
        if self.reactions is not None:
            members[ATTRIBUTE] = self.reactions
        if self.expiration_delay is not None:
            members[EXPIRATION] = to_expiration_delay(self.expiration_delay)
        return {name: msgspec.Raw(_encode(value)) for name, value in members.items()}

    def to_wire(self) -> bytes:
        """Return the ``options`` object of a job, as JSON."""
        wire: dict[str, Any] = {}
        for name in ("queue", "priority", "tags", "pending"):
            if (value := getattr(self, name)) is not None:
                wire[name] = value
        if self.timeout is not None:
            wire["timeout_ms"] = to_millis(self.timeout)
        if self.retry is not None:
            wire["retry"] = _wire_of({"max_attempts": self.retry} if isinstance(self.retry, int) else self.retry)
        if self.unique is not None:
            wire["unique"] = _wire_of(self.unique)
        if self.rate_limit is not None:
            wire["rate_limit"] = _wire_of(self.rate_limit)
        if self.delay is not None:
            wire["scheduled_at"] = "+" + to_duration(self.delay)
        if self.scheduled_at is not None:
            wire["scheduled_at"] = to_timestamp(self.scheduled_at, "scheduled_at")
        if self.expires_in is not None:
            wire["expires_at"] = "+" + to_duration(self.expires_in)
        if self.expires_at is not None:
            wire["expires_at"] = to_timestamp(self.expires_at, "expires_at")
        return _encode(wire)


class JobHandle:
    """A job that was enqueued: its id, and what has become of it."""

    def __init__(self, app: App, job: Job) -> None:
        self._app = app
        self._job = job

    def __repr__(self) -> str:
        return f"<JobHandle {self.id} {self._job.type} {self.state}>"

    @property
    def id(self) -> str:
        """The job's id."""
        return self._job.id

    @property
    def state(self) -> str:
        """The state that the job was in when it was last looked at; ``refresh`` looks again."""
        return self._job.state

    @property
    def job(self) -> Job:
        """The job as it was when it was last looked at."""
        return self._job

    def refresh(self) -> JobHandle:
        """Look at the job again; return this handle."""
        return self._app._portal.call(self.arefresh())

    async def arefresh(self) -> JobHandle:
        """Look at the job again; return this handle."""
        self._job = await self._app.client().find(self.id)
        return self

    def cancel(self) -> None:
        """Cancel the job.

        Raises
        ------
        Conflict
            It is finished.
        """
        self._app._portal.call(self.acancel())

    async def acancel(self) -> None:
        """Cancel the job. See ``cancel``."""
        self._job = (await self._app.client().cancel(self.id)).job

    def result(self, timeout: float | None = None) -> Any:
        """Wait until the job is finished, and return what its handler returned.

        Parameters
        ----------
        timeout:
            How long to wait, in seconds; ``None``: as long as it takes.

        Raises
        ------
        TimeoutError
            It is not finished in time.
        JobFailed
            It was discarded; the error has the last attempt's error.
        JobCancelled
            It was cancelled.
        """
        return self._app._portal.call(self.aresult(timeout))

    async def aresult(self, timeout: float | None = None) -> Any:
        """Wait until the job is finished, and return what its handler returned. See ``result``."""
        client = self._app.client()
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            left = LONGEST_POLL if deadline is None else max(0.0, deadline - time.monotonic())
            job = self._job = await client.wait_for(self.id, min(left, LONGEST_POLL))
            if job.state in FINISHED:
                return await restore(client, _result_of(job), self.id)
            if deadline is not None and time.monotonic() >= deadline:
                raise TimeoutError(f"The job {self.id} is {job.state}, not finished, after {timeout} s.")


def _result_of(job: Job) -> Any:
    match job.state:
        case JobState.COMPLETED:
            return None if job.result is None else msgspec.json.decode(job.result)
        case JobState.CANCELLED:
            raise JobCancelled(f"The job {job.id} was cancelled.")
        case _:
            error = job.error or {"type": "expired", "message": "It was not started before it expired."}
            raise JobFailed(f"The job {job.id} was discarded: {error['type']}: {error['message']}", error)


class JobType(Generic[P, R]):
    """A function that can be called as it is, or enqueued to be called by a worker."""

    def __init__(self, app: App, type: str, function: Callable[P, R], options: JobOptions, process: bool) -> None:
        functools.update_wrapper(self, function)
        self.app = app
        self.type = type
        self.function = function
        self.options = options
        self.process = process
        self.handled: Handled | None = None
        self.is_async = inspect.iscoroutinefunction(function)
        self.signature = inspect.signature(function)
        self.takes_context = _takes_context(function, self.signature)
        if process and (self.is_async or self.takes_context):
            raise TypeError(f"{type}: a handler that runs in a child process is a plain function without a context.")
        self._fewest, self._most = _arity(self.signature, self.takes_context)
        self._type_json = msgspec.Raw(_encode(type))
        self._options_json = msgspec.Raw(options.to_wire())
        self._meta_json = msgspec.Raw(_encode(dict(options.meta or {})))
        self._beside = options.beside()
        read_options(bytes(self._options_json))
        ml_resources.read_resources(self._beside)
        attributes.read_agent(self._beside)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function here and now."""
        return self.function(*args, **kwargs)

    def using(self, **options: Any) -> JobType[P, R]:
        """Return this job type with other options, for one enqueue or many. See ``JobOptions``.

        Raises
        ------
        TypeError
            There is no such option.
        """
        changed = msgspec.structs.replace(self.options, **options)
        return JobType(self.app, self.type, self.function, changed, self.process)

    def enqueue(self, *args: Any, **kwargs: Any) -> JobHandle:
        """Enqueue a job with these arguments, which must be JSON.

        Raises
        ------
        TypeError
            The function does not take these arguments, or they are no JSON.
        Duplicate
            The job is unique, and there is one already.
        BackendUnavailable
            The server cannot be reached.
        """
        with self._traced() as carried:  # here, in the thread and the trace of the caller
            return self.app._portal.call(self._enqueue(self.request(args, kwargs, carried)))

    async def aenqueue(self, *args: Any, **kwargs: Any) -> JobHandle:
        """Enqueue a job with these arguments. See ``enqueue``."""
        with self._traced() as carried:
            return await self._enqueue(self.request(args, kwargs, carried))

    async def _enqueue(self, request: Members) -> JobHandle:
        (pushed,) = await self.app.client().enqueue((request,))
        return JobHandle(self.app, pushed.job)

    def _traced(self, count: int = 1) -> AbstractContextManager[dict[str, str]]:
        return tracing.enqueuing(self.options.queue or DEFAULT_QUEUE, self.type, count)

    def enqueue_many(self, calls: Iterable[Sequence[Any]]) -> list[JobHandle]:
        """Enqueue one job for each list of arguments, all or none, in one go. A server takes at most 1,000 at once.

        Raises
        ------
        TypeError, Duplicate, BackendUnavailable
            As ``enqueue`` does.
        PayloadTooLarge
            These are more than the server takes at once.
        """
        requests = list(calls)
        with self._traced(len(requests)) as carried:
            return self.app._portal.call(self._enqueue_many([self.request(args, {}, carried) for args in requests]))

    async def aenqueue_many(self, calls: Iterable[Sequence[Any]]) -> list[JobHandle]:
        """Enqueue one job for each list of arguments, all or none. See ``enqueue_many``."""
        requests = list(calls)
        with self._traced(len(requests)) as carried:
            return await self._enqueue_many([self.request(args, {}, carried) for args in requests])

    async def _enqueue_many(self, requests: Sequence[Members]) -> list[JobHandle]:
        pushed = await self.app.client().enqueue(requests) if requests else []
        return [JobHandle(self.app, one.job) for one in pushed]

    def s(self, *args: Any, **kwargs: Any) -> Step:
        """Return a step of a workflow with these arguments, some of which may be references.

        Raises
        ------
        TypeError
            The function does not take these arguments, or they are no JSON; or the application encodes arguments, which
            those of steps cannot be, for the server puts results into them.
        """
        if self.app.codecs:
            raise TypeError(f"{self.type}: the arguments of steps cannot be encoded; use an App without codecs.")
        request = self.request(args, kwargs)
        return Step({name: value for name, value in request.items() if bytes(value) != b"{}"} | {"type": self.type})

    def enqueue_in(self, connection: Any, *args: Any, **kwargs: Any) -> JobHandle:
        """Enqueue a job inside the transaction of ``connection``: there is a job if, and only if, that commits.

        Parameters
        ----------
        connection:
            A connection to the PostgreSQL database that the ``App`` has as its URL, with a transaction open: a
            ``psycopg.Connection``, an SQLAlchemy ``Connection`` or ``Session``, or Django's ``connection``.

        Raises
        ------
        TypeError
            As ``enqueue`` does; or this is no such connection.
        Duplicate
            The job is unique, and there is one already. The transaction can go on.
        NotInTransaction
            No transaction is open.
        InvalidRequest
            The application's jobs are not in PostgreSQL.
        """
        with self._traced() as carried:
            (handle,) = self.app._enqueue_in(connection, [self.request(args, kwargs, carried)])
        return handle

    async def aenqueue_in(self, connection: Any, *args: Any, **kwargs: Any) -> JobHandle:
        """Enqueue a job inside the transaction of ``connection``. See ``enqueue_in``.

        ``connection`` may also be a ``psycopg.AsyncConnection``, an ``asyncpg`` connection, or an SQLAlchemy
        ``AsyncConnection`` or ``AsyncSession``.
        """
        with self._traced() as carried:
            (handle,) = await self.app._aenqueue_in(connection, [self.request(args, kwargs, carried)])
        return handle

    def enqueue_many_in(self, connection: Any, calls: Iterable[Sequence[Any]]) -> list[JobHandle]:
        """Enqueue one job for each list of arguments inside the transaction of ``connection``. See ``enqueue_in``."""
        requests = list(calls)
        with self._traced(len(requests)) as carried:
            return self.app._enqueue_in(connection, [self.request(args, {}, carried) for args in requests])

    async def aenqueue_many_in(self, connection: Any, calls: Iterable[Sequence[Any]]) -> list[JobHandle]:
        """Enqueue one job for each list of arguments inside the transaction of ``connection``. See ``aenqueue_in``."""
        requests = list(calls)
        with self._traced(len(requests)) as carried:
            return await self.app._aenqueue_in(connection, [self.request(args, {}, carried) for args in requests])

    def request(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], carried: Mapping[str, str] | None = None
    ) -> Members:
        """Return the enqueue request for these arguments.

        Parameters
        ----------
        carried:
            What the job carries of the trace of who enqueues it.
        """
        if kwargs:
            given = ((), *args) if self.takes_context else args
            bound = self.signature.bind(*given, **kwargs)
            bound.apply_defaults()
            if bound.kwargs:
                raise TypeError(f"{self.type}: arguments of jobs are positional; {list(bound.kwargs)} are not.")
            args = bound.args[1:] if self.takes_context else bound.args
        elif not self._fewest <= len(args) <= self._most:
            self.signature.bind(*(((), *args) if self.takes_context else args))  # raises, and says what is wrong
        encoded = to_json(list(args))
        meta = self._meta_json
        if carried:
            meta = msgspec.Raw(_encode({**carried, **(self.options.meta or {})}))
        if self.app.codecs:
            return self._encoded(encoded, meta)
        return {
            "type": self._type_json,
            "args": msgspec.Raw(encoded),
            "meta": meta,
            "options": self._options_json,
            **self._beside,
        }

    def _encoded(self, args: bytes, given: msgspec.Raw) -> Members:
        meta, options = msgspec.json.decode(given), msgspec.json.decode(self._options_json)
        args, meta, options = self.app.codecs.encode(args, meta, options, self.type)
        return {
            "type": self._type_json,
            "args": msgspec.Raw(args),
            "meta": msgspec.Raw(_encode(meta)),
            "options": msgspec.Raw(_encode(options)),
            **self._beside,
        }


def _kind_of(workflow: Startable) -> str:
    if isinstance(workflow, str):
        return workflow
    if isinstance(workflow, type):
        return workflow.name
    return str(workflow.wire.get("type", "chain")) if isinstance(workflow, Workflow) else "chain"


class App:
    """An application's jobs, and where they are kept.

    Parameters
    ----------
    url:
        A database (``sqlite:///jobs.db``, ``postgresql://user@host/name``) or a server (``http://127.0.0.1:8080``). By
        default the environment variable ``OJSTER_DATABASE_URL``, else ``sqlite:///ojster.db``.
    settings:
        Defaults and limits, for a database; a server has its own.
    synchronous:
        ``FULL`` survives a power loss, ``NORMAL`` only a crash of the process and is faster; see ``open_database``.
    migrate:
        Whether to bring the tables of a PostgreSQL database up to date when it is opened; by default only
        ``ojster migrate`` does. Those of a file always are.
    headers:
        Sent with every request to a server.
    token:
        What a server wants to see before it lets anybody in (``ojster tokens create``); by default what stands in
        ``OJSTER_TOKEN``.
    codecs:
        What is done to the arguments of jobs before the server sees them, the first first, and undone before a handler
        is called; for example ``[Gzip(), Encryption(keys)]``. See ``ojster.codec``.
    tenant:
        Whose jobs they are (ojs-multi-tenancy.md); nothing else is seen or made. ``None``: all are seen, and jobs may
        say whose they are in their ``meta``, as ``tenant_id``.
    files:
        Of a database: where files are kept, a directory or the URL of an object store (``s3://bucket/prefix``, with the
        extra ``files``). ``None``: as ``OJSTER_FILES`` says; else, for a file, the directory beside it whose name ends
        in ``-files``; for PostgreSQL: nowhere.
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
        self.enqueue_middleware: list[EnqueueMiddleware] = []
        self.execution_middleware: list[ExecutionMiddleware] = []
        self.migrate = migrate
        self._synchronous = synchronous
        self._headers = dict(headers or {})
        self._token = token
        self._portal = Portal()
        self._engine: Engine | None = None
        self._opening = threading.Lock()
        self._http: dict[asyncio.AbstractEventLoop, HttpClient] = {}
        self._abandoned: list[object] = []
        if not (names_a_database(self.url) or self.url.startswith(("http://", "https://"))):
            raise InvalidRequest(
                f"The URL {without_password(self.url)!r} is neither a database (sqlite:///…, postgresql://…) nor a "
                "server (http://…)."
            )
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forget_after_fork)

    def work_on(self, engine: Engine, url: str) -> None:
        """Let the application work on an engine that is open already, of the database of this URL."""
        self.url, self._engine = url, engine
        engine.check_orchestrator = self.orchestrators.check

    @property
    def handled(self) -> tuple[Handled, ...]:
        """Of which types only some versions are handled here."""
        declared = sorted(self.handlers.values(), key=lambda one: one.type)
        return tuple(one.handled for one in declared if one.handled is not None)

    def job(
        self, type: str | None = None, *, process: bool = False, versions: str = ANY, **options: Any
    ) -> Callable[[Callable[P, R]], JobType[P, R]]:
        """Declare a function as the handler of a job type.

        Parameters
        ----------
        type:
            The job type, such as ``email.send``; by default the function's name.
        process:
            Run the handler in a child process, which is killed at its timeout or when the job is cancelled.
        versions:
            Which versions of its jobs the handler understands: ``2.0``, ``>=1.0 <3.0``, or ``*`` for all. Workers are
            given no others; jobs without a version go to any.
        options:
            How its jobs are to be treated, as in ``JobOptions``: ``queue``, ``priority`` (-100 to 100), ``timeout``
            (seconds), ``retry`` (a ``Retry``, a number of attempts, or a policy of ojs-retry.md), ``unique``,
            ``delay`` (seconds), ``scheduled_at``, ``expires_in`` (seconds), ``expires_at``, ``tags``, ``meta``,
            ``version`` (of their arguments), ``resources`` (what they need of a worker, as in ojs-ml-resources.md, but
            without ``ext_ml_``: ``{"gpu_type": "nvidia-t4", "memory_gb": 16}``), ``requires`` (the same in plain words:
            ``{"region": "eu", "memory_mb": 4096}``; numbers are minima), ``agent`` (how they use models, as in
            ojs-ai-agents.md, but without ``ext_agent_``: ``{"model": "…", "token_budget": 8000}``), ``reactions`` (what
            is to happen when something happens to a job, by event, as ``ojster.events.reaction_builders`` makes them),
            ``expiration_delay`` (for how long it is kept once it is finished, in seconds, or ``never``: for ever).

        Raises
        ------
        InvalidRequest
            The type or an option is malformed.
        ValueError
            The type has a handler already.
        """

        def declare(function: Callable[P, R]) -> JobType[P, R]:
            name = read_type(_encode(type or function.__name__))
            if name in self.handlers:
                raise ValueError(f"The job type {name!r} has a handler already: {self.handlers[name].function!r}.")
            declared = JobType(self, name, function, JobOptions(**options), process)
            declared.handled = parse_handled(name, versions)
            self.handlers[name] = declared
            return declared

        return declare

    def orchestrator(self, name: str | None = None) -> Callable[[type[O]], type[O]]:
        """Declare a class that lays out workflows while they run (``ojster.workflows.orchestrator``).

        It runs in workers of this application, and in servers that are started with it (``ojster serve --app``).

        Parameters
        ----------
        name:
            What it is called; by default as the class, in lower case.

        Raises
        ------
        ValueError
            There is one of that name; or its ``validate`` is asynchronous.
        InvalidRequest
            It is no such name.
        """

        def declare(kind: type[O]) -> type[O]:
            kind.name = name or kind.__name__.lower()
            check_queue_name(queue_of(kind.name))
            if inspect.iscoroutinefunction(kind.validate):
                raise ValueError(f"{kind.__name__}.validate must be a plain method: a request waits for it.")
            if kind.name in self.orchestrators:
                raise ValueError(f"There is an orchestrator {kind.name!r} already: {self.orchestrators[kind.name]!r}.")
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
    ) -> Callable[[JobType[P, R]], JobType[P, R]]:
        """Let a declared job recur; workers register it when they start.

        Parameters
        ----------
        expression:
            When, as in ``*/5 * * * *``, ``@daily`` or ``@every 90s``.
        args:
            The arguments of each of its jobs.
        name:
            What it is known by; by default its job type.
        timezone:
            In which zone of the IANA database the expression is read.
        overlap_policy:
            What happens if its last job is not finished: ``skip``, ``allow``, ``cancel_previous`` or ``enqueue``.

        Raises
        ------
        InvalidRequest
            The expression or the zone is malformed.
        """

        def declare(declared: JobType[P, R]) -> JobType[P, R]:
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
        """Return the client for the running event loop, connected when it is first used."""
        if names_a_database(self.url):
            return self.engine() if self.tenant is None else self.engine().of(self.tenant)
        loop = asyncio.get_running_loop()
        client = self._http.get(loop)
        if client is None:
            self._http = {known: client for known, client in self._http.items() if not known.is_closed()}
            headers = dict(self._headers)
            if self.tenant is not None:
                headers["X-OJS-Tenant"] = shown_tenant(self.tenant)
            if token := self._token or os.environ.get(TOKEN_VARIABLE):
                headers.setdefault("Authorization", f"Bearer {token}")
            from ojster.client.client import HttpClient  # only here: importing it takes longer than all else

            client = self._http[loop] = HttpClient(self.url, headers=headers)
        return client

    def engine(self) -> Engine:
        """Return the engine of the application's database, opened when it is first used.

        Raises
        ------
        InvalidRequest
            The application's jobs are on a server.
        BackendUnavailable
            The database cannot be opened.
        """
        engine = self._engine
        if engine is None:
            with self._opening:  # or two threads would open it twice
                engine = self._engine
                if engine is None:
                    database = open_database(
                        self.url, self.settings, synchronous=self._synchronous, migrate=self.migrate
                    )
                    engine = self._engine = Engine(database, store=store_for(self.url, self._files))
                    engine.middleware = self.enqueue_middleware
                    engine.check_orchestrator = self.orchestrators.check
        return engine

    def define(self, name: str, workflow: Step, **options: Any) -> Definition:
        """Give workflows that are started often a name; if there is a definition of it, and it differs, a new version.

        Workflows that were started from it before stay as they are (seed 002).

        Parameters
        ----------
        options:
            What holds for all of its workflows: ``params_schema``, a JSON Schema of their parameters; ``retry``, how
            often and when they are run again as a whole (``RetryWorkflow``); and, as in ``start``, ``options``,
            ``timeout``, ``on_error``, ``on_cancel`` and ``on_lost_worker``.

        Raises
        ------
        InvalidRequest, InvalidWorkflow
            No workflow can be made of it.
        """
        return self._portal.call(self.adefine(name, workflow, **options))

    async def adefine(self, name: str, workflow: Step, **options: Any) -> Definition:
        """Give workflows that are started often a name. See ``define``."""
        retry, schema = options.pop("retry", None), options.pop("params_schema", None)
        whole = workflow if isinstance(workflow, Workflow) else chain(workflow)
        members = whole.request(**options)
        if retry is not None:
            members["retry"] = msgspec.Raw(to_json(_wire_of(retry)))
        if schema is not None:
            members["params_schema"] = msgspec.Raw(to_json(schema))
        client = self.client()
        try:
            return await client.update_definition(name, members)
        except NotFound:
            pass
        try:
            return await client.create_definition(name, members)
        except Duplicate:  # somebody else has created it meanwhile
            return await client.update_definition(name, members)

    def start(self, workflow: Startable, **options: Any) -> Run:
        """Start a workflow, or one of the definition of that name; a single step is as good as a chain of one.

        Parameters
        ----------
        options:
            What is said of the whole: ``name``; ``params``, to which references lead; ``metadata``; ``options`` and
            ``priority``, which its jobs inherit; ``timeout`` (seconds), after which it fails; ``scheduled_at`` or
            ``delay`` (seconds), before which it does not start; ``expires_in`` (seconds), after which it does not start
            any more; ``on_error`` and ``on_cancel``, steps that run if it fails or is cancelled; ``on_lost_worker``:
            ``"cancel"`` if it is to be cancelled when a worker is lost with one of its jobs; ``properties``, with which
            it begins, that its tasks share; ``expiration_delay`` (seconds, or ``never``), for which it is kept once it
            is finished, with all its jobs.

            Of a definition, instead of what that says itself: ``version``, by default the latest; ``target``, what it
            works on: no other workflow of the definition may have the same target and ``params`` until it is over;
            ``locks``, a regular expression: until it is over, none is started for a target that it matches.

        Raises
        ------
        InvalidWorkflow
            It breaks a rule; the error says where.
        NotFound
            There is no such definition.
        Duplicate, Conflict
            The target is taken, or locked; ``existing_workflow_id`` in the details says by which workflow.
        BackendUnavailable
            The server cannot be reached.
        """
        with tracing.starting(_kind_of(workflow)) as carried:
            return Run(self, self._portal.call(self._create(workflow, options, carried)))

    async def astart(self, workflow: Startable, **options: Any) -> AsyncRun:
        """Start a workflow. See ``start``."""
        with tracing.starting(_kind_of(workflow)) as carried:
            return AsyncRun(self, await self._create(workflow, options, carried))

    async def _create(
        self, workflow: Startable, options: Mapping[str, Any], carried: Mapping[str, str]
    ) -> WorkflowInfo:
        if carried:
            options = {**options, "metadata": {**carried, **(options.get("metadata") or {})}}
        if isinstance(workflow, type):
            members = Workflow({}).request(**options)
            members[ORCHESTRATOR] = msgspec.Raw(_encode(workflow.name))
            return await self.client().create_workflow(members)
        if isinstance(workflow, str):
            return await self.client().create_workflow(start_request(workflow, **options))
        whole = workflow if isinstance(workflow, Workflow) else chain(workflow)
        return await self.client().create_workflow(whole.request(**options))

    def collection(self, name: str) -> SharedCollection:
        """Return the named collection, as it can be used; whether there is one is seen then."""
        return SharedCollection(self.client, Where(name), self._portal.call)

    def collection_of(self, workflow_id: str) -> SharedCollection:
        """Return the collection of a workflow, which its jobs call ``internal``."""
        return SharedCollection(self.client, Where(workflow_id=workflow_id), self._portal.call)

    def find_workflow(self, workflow_id: str) -> Run:
        """Return a workflow that was started before.

        Raises
        ------
        NotFound
            There is no such workflow.
        """
        return Run(self, self._portal.call(self._show(workflow_id)))

    async def afind_workflow(self, workflow_id: str) -> AsyncRun:
        """Return a workflow that was started before. See ``find_workflow``."""
        return AsyncRun(self, await self._show(workflow_id))

    async def _show(self, workflow_id: str) -> WorkflowInfo:
        return await self.client().show_workflow(workflow_id)

    def find(self, job_id: str) -> JobHandle:
        """Return the handle of a job that was enqueued before.

        Raises
        ------
        NotFound
            There is no such job.
        """
        return self._portal.call(self.afind(job_id))

    async def afind(self, job_id: str) -> JobHandle:
        """Return the handle of a job that was enqueued before. See ``find``."""
        return JobHandle(self, await self.client().find(job_id))

    def _enqueue_in(self, connection: Any, requests: Sequence[Members]) -> list[JobHandle]:
        from ojster.storage.postgres import caller_transaction

        schema = self._schema()
        if not requests:
            return []
        execute = caller_transaction.executes(connection)
        prepared = self._portal.call(self._prepare(requests)) if self.enqueue_middleware else requests
        jobs = caller_transaction.run_as_guest(execute, lambda tx: self._push(tx, prepared), self.settings, schema)
        return [JobHandle(self, job) for job in jobs]

    async def _aenqueue_in(self, connection: Any, requests: Sequence[Members]) -> list[JobHandle]:
        from ojster.storage.postgres import caller_transaction

        schema = self._schema()
        if not requests:
            return []
        prepared = await self._prepare(requests)
        jobs = await caller_transaction.run_as_guest_of(
            connection, lambda tx: self._push(tx, prepared), self.settings, schema
        )
        return [JobHandle(self, job) for job in jobs]

    async def _prepare(self, requests: Sequence[Members]) -> list[Members]:
        return [await through_middleware(self.enqueue_middleware, members) for members in requests]

    def _push(self, tx: Transaction, requests: Sequence[Members]) -> list[Job]:
        install(tx.memory, EXTENSIONS)
        settings = self.settings
        jobs = [
            read_job(
                members, tx.now, largest=settings.largest_job, tenant=self.tenant, otherwise=settings.default_tenant
            )
            for members in requests
        ]
        if any(job.reacts & BITS["on_creation"] for job in jobs):
            raise InvalidRequest(
                "A job that is pushed in a transaction of yours cannot have reactions to its creation."
            )
        (pushed,) = push(tx, [jobs])
        assert not isinstance(pushed, Later), "a guest waits for keys itself"
        return [one.job for one in accepted(pushed)]

    def _schema(self) -> str:
        """The schema of the application's tables, where a caller's own transaction can reach them."""
        if not self.url.startswith(POSTGRES):
            raise InvalidRequest("Only jobs that are kept in PostgreSQL can be enqueued in a transaction of your own.")
        from ojster.storage.postgres.url import parse_postgres_url

        return parse_postgres_url(self.url).schema

    def close(self) -> None:
        """Disconnect. The application can be used again afterwards."""
        self._portal.call(self.aclose())
        self._portal.close()

    async def aclose(self) -> None:
        """Disconnect. See ``close``."""
        engine, self._engine = self._engine, None
        if engine is not None:
            await engine.close()
        client = self._http.pop(asyncio.get_running_loop(), None)
        if client is not None:
            await client.close()

    def _forget_after_fork(self) -> None:
        """A child process has no threads and must not use its parent's connections, nor close them."""
        self._abandoned += [self._engine, self._http, self._portal]
        self._engine = None
        self._opening = threading.Lock()
        self._http = {}
        self._portal = Portal()


def load_app(where: str) -> App:
    """Return the application that ``module:name`` names; without a name, the module's only ``App``.

    Raises
    ------
    InvalidRequest
        There is no such module, or no application in it.
    """
    module_name, _, name = where.partition(":")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and module_name.startswith(error.name):
            raise InvalidRequest(f"There is no module {module_name!r} here ({os.getcwd()}).") from None
        raise
    if name:
        found = getattr(module, name, None)
        if not isinstance(found, App):
            raise InvalidRequest(f"{module_name!r} has no App named {name!r}.")
        return found
    apps = [value for value in vars(module).values() if isinstance(value, App)]
    if len(apps) != 1:
        raise InvalidRequest(f"{module_name!r} has {len(apps)} Apps; say which: {module_name}:NAME.")
    return apps[0]


def error_type(kind: type[BaseException]) -> str:
    """Return the error type under which an exception is reported: its ``error_type``, or the name of its class."""
    return getattr(kind, "error_type", None) or kind.__name__


def request_of(type: str, args: Sequence[Any], options: JobOptions = JobOptions()) -> Members:  # noqa: B008
    """Return the enqueue request of a job whose handler is not known here."""
    request: dict[str, Any] = {"id": new_id(), "type": type, "args": list(args), "meta": dict(options.meta or {})}
    members = {name: msgspec.Raw(to_json(value)) for name, value in request.items()}
    return members | {"options": msgspec.Raw(options.to_wire())} | options.beside()


def _arity(signature: inspect.Signature, takes_context: bool) -> tuple[int, float]:
    """How many positional arguments a call needs at least, and takes at most."""
    kinds = [parameter.kind for parameter in signature.parameters.values()]
    positional = [
        parameter
        for parameter in signature.parameters.values()
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]
    fewest = sum(parameter.default is parameter.empty for parameter in positional) - takes_context
    most = math.inf if inspect.Parameter.VAR_POSITIONAL in kinds else len(positional) - takes_context
    return fewest, most


def _takes_context(function: Callable[..., Any], signature: inspect.Signature) -> bool:
    """Whether the function's first parameter is annotated as ``JobContext``."""
    first = next(iter(signature.parameters.values()), None)
    if first is None:
        return False
    return first.annotation is JobContext or (
        isinstance(first.annotation, str) and first.annotation.rpartition(".")[2] == JobContext.__name__
    )


def _wire_of(policy: Retry | Unique | RateLimit | Mapping[str, Any]) -> dict[str, Any]:
    return dict(policy) if isinstance(policy, Mapping) else policy.to_wire()
