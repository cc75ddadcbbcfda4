"""Job types as Python declares them, and handles of enqueued jobs."""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Concatenate, Final, Generic, ParamSpec, Protocol, Self, TypeVar, Unpack, cast, overload

import msgspec

from ojster.agents import attributes
from ojster.core.json_objects import Members
from ojster.core.references import may_hold_references
from ojster.core.values import each_to_json, to_json
from ojster.fleet import ml_resources
from ojster.handlers import tracing
from ojster.handlers.arguments import HandlerTypes
from ojster.handlers.context import JobContext
from ojster.handlers.handler_signature import HandlerSignature, check_handler
from ojster.handlers.injection import needs_of
from ojster.handlers.job_class import Runs, RunsAsync
from ojster.handlers.job_handle import HandleOwner, JobHandle, T_co
from ojster.handlers.job_options import JobOptions, JobOptionsDict, with_changes
from ojster.handlers.named_arguments import Call, arguments_of_call
from ojster.handlers.other_queues import OF_JOB_TYPES, SaysOtherNames
from ojster.jobs.job_logs import LogLevel
from ojster.jobs.models import AlikeRequests
from ojster.jobs.names import DEFAULT_QUEUE
from ojster.jobs.options_wire import read_options
from ojster.jobs.versions import HandledVersions
from ojster.workflows.declaration import Step

P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R")

_encode: Final = msgspec.json.Encoder().encode


class JobType(SaysOtherNames, Generic[P, R]):
    """A declared job type.

    ``App.job`` creates it from a handler. ``P`` are the arguments of its jobs, without a ``JobContext``, which the
    worker adds; ``R`` is the handler's result.

    Parameters
    ----------
    app:
        The application.
    type:
        Job type, such as ``email.send``.
    function:
        The handler.
    options:
        Options of its jobs.
    process:
        Whether the handler runs in a child process.

    Raises
    ------
    TypeError
        The function cannot be a handler, such as a method or a generator; ``process`` is set for a coroutine function
        or a handler with a ``JobContext``, or with an ``agent`` that only such a handler can use; or a parameter with
        ``Depends`` precedes an argument of the job.
    InvalidRequest
        An option is malformed.

    Examples
    --------
    >>> from ojster import App
    >>> app = App("sqlite:///:memory:")
    >>> @app.job("email.send")
    ... def send(to: str) -> str:
    ...     return f"sent to {to}"
    >>> send("ada@example.com")
    'sent to ada@example.com'
    >>> send.using(queue="mail").enqueue("ada@example.com").job.queue
    'mail'
    >>> app.close()
    """

    is_flow: bool = False
    """Whether it is a flow, which is started as a workflow."""
    _other_names = OF_JOB_TYPES

    def __init__(
        self, app: HandleOwner, type: str, function: Callable[..., Any], options: JobOptions, process: bool
    ) -> None:
        check_handler(type, function)
        functools.update_wrapper(cast("Callable[..., Any]", self), function)
        self.app = app
        self.type = type
        self.function = function
        self.process = process
        self.handled: HandledVersions | None = None
        self.keep_logs: LogLevel | None = None
        self.is_async = inspect.iscoroutinefunction(function)
        whole = inspect.signature(function)
        self.signature, self.needs = needs_of(function, whole)
        self.needed = whole.parameters.keys() - self.signature.parameters.keys()
        self._arguments = HandlerSignature(type, self.signature, self.needed)
        self.takes_context = self._arguments.takes_context
        self.types = HandlerTypes(type, function, self.signature, int(self.takes_context))
        if process and (self.is_async or self.takes_context):
            raise TypeError(
                f"{type}: a handler with process=True must be a plain function without a JobContext. A dependency can "
                "read its job: see Depends."
            )
        self._set_options(options)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.type}>"

    @property
    def is_direct(self) -> bool:
        """Whether it has nothing around its function: a worker calls it with the arguments, and that is all."""
        return self.needs is None and self.keep_logs is None and not self.process

    def _set_options(self, options: JobOptions) -> None:
        if self.process and (idle := sorted(attributes.NEED_CONTEXT.intersection(options.agent or ()))):
            raise TypeError(
                f"{self.type}: 'agent' has {', '.join(map(repr, idle))}, which only a handler with a JobContext can "
                "use. Take one as the first parameter, without process=True."
            )
        self.options = options
        encoded = {"type": _encode(self.type), "meta": to_json(dict(options.meta or {})), "options": options.to_wire()}
        beside = options.beside()
        self._common_members = {name: msgspec.Raw(raw) for name, raw in encoded.items()} | beside
        """The members of every request, without its arguments."""
        read_options(encoded["options"])
        ml_resources.read_resources(beside)
        attributes.read_agent(beside)

    def defaults(self) -> Members:
        """Return the options of this job type as the members that its workers register with the server.

        Versions and points in time are left out: they belong to single jobs.

        Returns
        -------
        dict
            The members, as JSON, by name; empty if the type has no options.
        """
        lasting = msgspec.structs.replace(self.options, version=None, scheduled_at=None, expires_at=None)
        meta = {name: value for name, value in (self.options.meta or {}).items() if name != "tenant_id"}
        members = {"options": msgspec.Raw(lasting.to_wire()), "meta": msgspec.Raw(_encode(meta))}
        return {name: raw for name, raw in members.items() if bytes(raw) != b"{}"} | lasting.beside()

    def using(self, **options: Unpack[JobOptionsDict]) -> Self:
        """Return a copy of this job type with changed options, for one or more enqueues.

        Parameters
        ----------
        options:
            The changed options; see ``JobOptions``.

        Returns
        -------
        JobType
            The copy. This job type does not change.

        Raises
        ------
        TypeError
            An option does not exist.
        InvalidRequest
            An option is malformed.
        """
        changed = with_changes(self.options, options)
        copied = copy.copy(self)
        copied._set_options(changed)
        return copied

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        """Enqueue a job with these arguments, which are stored as JSON.

        Parameters
        ----------
        args, kwargs:
            Arguments of the handler, without a ``JobContext``.

        Returns
        -------
        JobHandle
            The handle of the job.

        Raises
        ------
        TypeError
            The function does not take these arguments, or they are not what its annotations say.
        Duplicate
            The job is unique, and a duplicate exists.
        PayloadTooLarge
            The job is larger than the server accepts.
        BackendUnavailable
            The server cannot be reached.
        """
        # Not derived: arguments are read and encoded in the caller's thread. A generator of calls, or a codec, may use
        # a database, which frameworks refuse in an event loop; and a wrong argument shows a short traceback.
        with self._traced() as carried:
            return self.app._event_loop_thread.call(self._enqueue(self.request(args, kwargs, carried)))

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        """Enqueue a job with these arguments. See ``enqueue``.

        Returns
        -------
        JobHandle
            The handle of the job.
        """
        with self._traced() as carried:
            return await self._enqueue(self.request(args, kwargs, carried))

    async def _enqueue(self, request: Members) -> JobHandle[R]:
        (pushed,) = await self.app.client().jobs.enqueue((request,))
        return JobHandle(self.app, pushed.job, self.types)

    def _traced(self, count: int = 1) -> AbstractContextManager[dict[str, str]]:
        return tracing.enqueuing(self.options.queue or DEFAULT_QUEUE, self.type, count)

    def enqueue_many(self, calls: Iterable[Call]) -> list[JobHandle[R]]:
        """Enqueue one job for each list of arguments in one request, all or none.

        Parameters
        ----------
        calls:
            The positional arguments of each job, or a ``dict`` of all by name. A server takes 1,000 jobs by default.

        Returns
        -------
        list of JobHandle
            The handles of the jobs, in the same order.

        Raises
        ------
        TypeError, Duplicate, BackendUnavailable
            See ``enqueue``.
        PayloadTooLarge
            The request is larger than the server accepts.
        """
        requests = list(calls)
        with self._traced(len(requests)) as carried:
            return self.app._event_loop_thread.call(self._enqueue_many(self._requests(requests, carried)))

    async def aenqueue_many(self, calls: Iterable[Call]) -> list[JobHandle[R]]:
        """Enqueue one job for each list of arguments, all or none. See ``enqueue_many``.

        Returns
        -------
        list of JobHandle
            The handles of the jobs, in the same order.
        """
        requests = list(calls)
        with self._traced(len(requests)) as carried:
            return await self._enqueue_many(self._requests(requests, carried))

    async def _enqueue_many(self, requests: Sequence[Members]) -> list[JobHandle[R]]:
        pushed = await self.app.client().jobs.enqueue(requests) if requests else []
        return [JobHandle(self.app, outcome.job, self.types) for outcome in pushed]

    def s(self, *args: P.args, **kwargs: P.kwargs) -> Step[R]:
        """Return a workflow step with these arguments, which may contain references.

        Parameters
        ----------
        args, kwargs:
            Arguments of the handler, without a ``JobContext``.

        Returns
        -------
        Step
            The step.

        Raises
        ------
        TypeError
            The function does not take these arguments; they are not JSON-serializable; or they contain a reference, and
            the application has codecs: the server cannot resolve what is encoded.
        """
        if self.app.codecs and may_hold_references(self.encoded_args(args, kwargs)):
            raise TypeError(
                f"{self.type}: the server cannot resolve a reference in arguments that codecs encode. Read the result "
                "in the handler (JobContext.parent_results), or use an App without codecs."
            )
        try:
            return self.with_data(args, kwargs)
        except TypeError as error:
            if "missing a required argument" in str(error):
                error.add_note("A step is not called with the result of the one before it: pass result_of(NAME).")
            raise

    def with_data(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Step[R]:
        """Return a workflow step with these arguments, for a server that takes them as they are.

        Returns
        -------
        Step
            The step.
        """
        request = self.request(args, kwargs)
        members = {name: value for name, value in request.items() if bytes(value) != b"{}"}
        return Step(members | {"type": self.type}, self.types.convert_result)

    def enqueue_in(self, connection: Any, /, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        """Enqueue a job in the caller's transaction on ``connection``: the job exists if and only if it commits.

        Parameters
        ----------
        connection:
            Connection to the PostgreSQL database of the ``App``, with an open transaction: a ``psycopg.Connection``, an
            SQLAlchemy ``Connection`` or ``Session``, or Django's ``connection``.
        args, kwargs:
            Arguments of the handler, without a ``JobContext``.

        Returns
        -------
        JobHandle
            The handle of the job.

        Raises
        ------
        TypeError
            See ``enqueue``; or ``connection`` is none of these.
        Duplicate
            The job is unique, and a duplicate exists. The transaction stays usable.
        NotInTransaction
            The connection has no open transaction.
        InvalidRequest
            The application does not use PostgreSQL, or the job is malformed. The transaction stays usable.
        """
        with self._traced() as carried:
            (job,) = self.app._enqueue_in(connection, [self.request(args, kwargs, carried)])
        return JobHandle(self.app, job, self.types)

    async def aenqueue_in(self, connection: Any, /, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        """Enqueue a job in the caller's transaction on ``connection``. See ``enqueue_in``.

        ``connection`` may also be a ``psycopg.AsyncConnection``, an ``asyncpg`` connection, or an SQLAlchemy
        ``AsyncConnection`` or ``AsyncSession``.

        Returns
        -------
        JobHandle
            The handle of the job.
        """
        with self._traced() as carried:
            (job,) = await self.app._aenqueue_in(connection, [self.request(args, kwargs, carried)])
        return JobHandle(self.app, job, self.types)

    def enqueue_many_in(self, connection: Any, calls: Iterable[Call]) -> list[JobHandle[R]]:
        """Enqueue one job for each list of arguments in the caller's transaction. See ``enqueue_in``.

        Parameters
        ----------
        connection:
            Connection with an open transaction, as in ``enqueue_in``.
        calls:
            The positional arguments of each job, or a ``dict`` of all by name.

        Returns
        -------
        list of JobHandle
            The handles of the jobs, in the same order.
        """
        requests = list(calls)
        with self._traced(len(requests)) as carried:
            jobs = self.app._enqueue_in(connection, self._requests(requests, carried))
        return [JobHandle(self.app, job, self.types) for job in jobs]

    async def aenqueue_many_in(self, connection: Any, calls: Iterable[Call]) -> list[JobHandle[R]]:
        """Enqueue one job for each list of arguments in the caller's transaction. See ``aenqueue_in``.

        Returns
        -------
        list of JobHandle
            The handles of the jobs, in the same order.
        """
        requests = list(calls)
        with self._traced(len(requests)) as carried:
            jobs = await self.app._aenqueue_in(connection, self._requests(requests, carried))
        return [JobHandle(self.app, job, self.types) for job in jobs]

    def request(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], carried: Mapping[str, str] | None = None
    ) -> Members:
        """Return the enqueue request for these arguments.

        Parameters
        ----------
        args, kwargs:
            Arguments of the handler, without a ``JobContext``.
        carried:
            Trace context to store in the job's ``meta``; none by default.

        Returns
        -------
        dict
            The members of the request, as JSON, by name.

        Raises
        ------
        TypeError
            The function does not take these arguments, or they are not what its annotations say.
        """
        return self._request(args, kwargs, self._members_beside(carried))

    def _requests(self, calls: Sequence[Call], carried: Mapping[str, str]) -> Sequence[Members]:
        """Return the enqueue requests of calls; what they have in common is made once."""
        members = self._members_beside(carried)
        if not self.app.codecs:
            args = self._arguments.of_calls(calls)
            if args is not None and (encoded := each_to_json(args)) is not None:
                self.types.check_each(encoded, args)
                return AlikeRequests(members, encoded)
        return [self._request(*arguments_of_call(call), members) for call in calls]

    def _members_beside(self, carried: Mapping[str, str] | None) -> Members:
        """Return the members of a request beside its arguments."""
        if not carried:
            return self._common_members
        return self._common_members | {"meta": msgspec.Raw(_encode({**carried, **(self.options.meta or {})}))}

    def _request(self, args: Sequence[Any], kwargs: Mapping[str, Any], members: Members) -> Members:
        encoded = self.encoded_args(args, kwargs)
        return self._encoded(encoded, members) if self.app.codecs else {**members, "args": msgspec.Raw(encoded)}

    def encoded_args(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bytes:
        """Return arguments of the handler as JSON, before codecs.

        Returns
        -------
        bytes
            A JSON array.

        Raises
        ------
        TypeError
            The function does not take these arguments, or they are not what its annotations say.
        """
        args = self._arguments.arguments(args, kwargs)
        try:
            encoded = to_json(list(args))
        except TypeError as error:
            raise self._arguments.not_json(args, error) from None
        self.types.check(encoded, len(args))
        return encoded

    def _encoded(self, args: bytes, members: Members) -> Members:
        meta, options = msgspec.json.decode(members["meta"]), msgspec.json.decode(members["options"])
        args, meta, options = self.app.codecs.encode(args, meta, options, self.type)
        encoded = {"args": args, "meta": _encode(meta), "options": _encode(options)}
        return members | {name: msgspec.Raw(raw) for name, raw in encoded.items()}


class DeclaredJob(JobType[P, R], Generic[Q, T_co, P, R]):
    """A decorated function: a job type that can also be called directly, as the function that it is."""

    def __call__(self, *args: Q.args, **kwargs: Q.kwargs) -> T_co:
        """Call the function directly, without a queue."""
        result: T_co = self.function(*args, **kwargs)
        return result


class Declare(Protocol):
    """The decorator that ``App.job`` returns: it keeps the function's signature."""

    @overload
    def __call__(self, function: type[RunsAsync[P, R]], /) -> DeclaredJob[P, Coroutine[Any, Any, R], P, R]: ...

    @overload
    def __call__(self, function: type[Runs[P, R]], /) -> DeclaredJob[P, R, P, R]: ...

    @overload
    def __call__(
        self, function: Callable[Concatenate[JobContext, P], Coroutine[Any, Any, R]], /
    ) -> DeclaredJob[Concatenate[JobContext, P], Coroutine[Any, Any, R], P, R]: ...

    @overload
    def __call__(
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> DeclaredJob[P, Coroutine[Any, Any, R], P, R]: ...

    @overload
    def __call__(
        self, function: Callable[Concatenate[JobContext, P], R], /
    ) -> DeclaredJob[Concatenate[JobContext, P], R, P, R]: ...

    @overload
    def __call__(self, function: Callable[P, R], /) -> DeclaredJob[P, R, P, R]: ...
