"""The decorator ``App.job``, which declares functions as handlers, with or without arguments."""

from __future__ import annotations

import builtins
import inspect
import sys
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Concatenate, Final, ParamSpec, TypeVar, Unpack, overload

import msgspec

from ojster.core.declared_options import check_option
from ojster.core.errors import InvalidRequest
from ojster.handlers.context import JobContext
from ojster.handlers.job_class import Runs, RunsAsync, handler_of_class, type_of_class
from ojster.handlers.job_handle import HandleOwner
from ojster.handlers.job_options import JobOptions, JobOptionsDict, with_changes
from ojster.handlers.job_type import Declare, DeclaredJob, JobType
from ojster.jobs.job_logs import LogLevel
from ojster.jobs.names import read_type
from ojster.jobs.versions import ANY, parse_handled

P = ParamSpec("P")
R = TypeVar("R")

_encode: Final = msgspec.json.Encoder().encode


def check_free(type: str, handlers: Mapping[str, JobType[Any, Any]], function: Callable[..., Any]) -> None:
    """Check that a job type has no handler yet. In a notebook or a shell, people define the same function again.

    Raises
    ------
    ValueError
        It has one; the message names both places.
    """
    if type in handlers and not is_defined_again(handlers[type].function, function):
        raise ValueError(
            f"The job type {type!r} already has a handler, {_place(handlers[type].function)}, so that "
            f"{_place(function)} cannot be one. Give it another type: @app.job('…')."
        )


def is_defined_again(before: Any, now: Any) -> bool:
    """Return whether somebody in a notebook or a shell has run the definition of a function or class once more."""
    is_same = (before.__module__, before.__qualname__) == (now.__module__, now.__qualname__)
    return is_same and is_interactive()


def is_interactive() -> bool:
    """Return whether this is a notebook or a shell: Python and IPython then have a prompt."""
    return hasattr(sys, "ps1")


def _place(function: Callable[..., Any]) -> str:
    code = getattr(inspect.unwrap(function), "__code__", None)
    where = "" if code is None else f" ({code.co_filename}:{code.co_firstlineno})"
    return f"{function.__module__}.{function.__qualname__}{where}"


def _default_type(handler: Any, *, has_type: bool) -> str:
    """Return the job type that a handler has if none is given.

    Raises
    ------
    TypeError
        It is no function or class, or it has no name and needs one.
    """
    if isinstance(handler, JobType):
        raise TypeError(f"{handler.type!r} is a job type already. Write @app.job once, next to the function.")
    if not callable(handler):
        raise TypeError(
            f"@app.job declares a function or a class with a method run as a handler, not {handler!r}. Write @app.job "
            "next to the function, below other decorators."
        )
    if inspect.isclass(handler):
        return type_of_class(handler)
    name = getattr(handler, "__name__", None)
    if name in (None, "<lambda>") and not has_type:
        raise TypeError(f"The handler {handler!r} has no name, so its job type must be given: app.job('…')(…).")
    return str(name)


def _type_by_name(name: str) -> str:
    """Return the job type of a handler that is named by nothing else.

    Raises
    ------
    InvalidRequest
        The name is no job type, such as one with capital letters; the message says how to give another one.
    """
    try:
        return read_type(_encode(name))
    except InvalidRequest as error:
        raise InvalidRequest(f"{error} Or give the job a type beside its name: @app.job('email.send').") from None


class JobDecorator:
    """Declares functions as handlers of job types: ``@app.job``, or ``@app.job("email.send", retry=5)``.

    Parameters
    ----------
    app:
        The application of the jobs.
    handlers:
        The handlers by job type, to which it adds.
    """

    def __init__(self, app: HandleOwner, handlers: dict[str, JobType[Any, Any]]) -> None:
        self._app = app
        self._handlers = handlers

    @overload
    def __call__(self, type: builtins.type[RunsAsync[P, R]], /) -> DeclaredJob[P, Coroutine[Any, Any, R], P, R]: ...

    @overload
    def __call__(self, type: builtins.type[Runs[P, R]], /) -> DeclaredJob[P, R, P, R]: ...

    @overload
    def __call__(
        self, type: Callable[Concatenate[JobContext, P], Coroutine[Any, Any, R]], /
    ) -> DeclaredJob[Concatenate[JobContext, P], Coroutine[Any, Any, R], P, R]: ...

    @overload
    def __call__(
        self, type: Callable[P, Coroutine[Any, Any, R]], /
    ) -> DeclaredJob[P, Coroutine[Any, Any, R], P, R]: ...

    @overload
    def __call__(
        self, type: Callable[Concatenate[JobContext, P], R], /
    ) -> DeclaredJob[Concatenate[JobContext, P], R, P, R]: ...

    @overload
    def __call__(self, type: Callable[P, R], /) -> DeclaredJob[P, R, P, R]: ...

    @overload
    def __call__(
        self,
        type: str | None = None,
        *,
        process: bool = False,
        versions: str = ANY,
        keep_logs: LogLevel | None = None,
        **options: Unpack[JobOptionsDict],
    ) -> Declare: ...

    def __call__(
        self,
        type: Any = None,
        *,
        process: bool = False,
        versions: str = ANY,
        keep_logs: LogLevel | None = None,
        **options: Unpack[JobOptionsDict],
    ) -> Any:
        """Declare a function, or a class with a method ``run``, as the handler of a job type.

        Parameters
        ----------
        type:
            Job type, such as ``email.send``; by default the function's name, or ``send_email`` for ``SendEmail``.
            Or the function, for ``@app.job`` without parentheses. A class is created anew for each job, and ``run``
            gets the job's arguments.
        process:
            Whether to run the handler in a child process, which is killed at its timeout or when the job is cancelled.
            The default is false.
        versions:
            Job versions that the handler supports: ``2.0``, ``>=1.0 <3.0``, or ``*`` for all, the default. Workers get
            only jobs of these versions, and jobs without a version.
        keep_logs:
            The least severe lines of its log (``debug``, ``info``, ``warning``, ``error``, ``critical``) to keep with
            the job: what it writes with ``logging`` while it runs, as far as the levels of the loggers let it through.
            ``JobHandle.logs`` returns them. ``None``, the default: none are kept.
        options:
            Options of its jobs; see ``JobOptions``.

        Returns
        -------
        Declare
            A decorator. It turns the function into a ``JobType`` that can still be called directly.

        Raises
        ------
        InvalidRequest
            The type, the versions or an option is malformed. The decorator raises it.
        TypeError
            An option does not exist, or is of the wrong type; ``process`` is set for a coroutine function or a handler
            with a ``JobContext``; or the function or class cannot be a handler. The decorator raises it.
        ValueError
            The type already has a handler, or a duration is negative. The decorator raises it.
        """
        check_option("process", process, bool)
        check_option("keep_logs", keep_logs, LogLevel | None)

        def declare(handler: Callable[..., Any]) -> Any:
            handlers = self._handlers
            default = _default_type(handler, has_type=isinstance(type, str))
            function = handler_of_class(handler) if inspect.isclass(handler) else handler
            name = _type_by_name(default) if type is None or callable(type) else read_type(_encode(type))
            check_free(name, handlers, function)
            declared: DeclaredJob[..., Any, ..., Any] = DeclaredJob(
                self._app, name, function, with_changes(JobOptions(), options), process
            )
            declared.handled = parse_handled(name, versions)
            declared.keep_logs = keep_logs
            handlers[name] = declared
            return declared

        return declare(type) if callable(type) else declare
