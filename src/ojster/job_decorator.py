"""The decorator ``App.job``, which declares functions as handlers, with or without arguments."""

from __future__ import annotations

import builtins
import inspect
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Concatenate, Final, ParamSpec, TypeVar, Unpack, overload

import msgspec

from ojster.context import JobContext
from ojster.job_class import Runs, RunsAsync, handler_of_class, type_of_class
from ojster.job_handle import Application
from ojster.job_options import JobOptions, JobOptionsDict, with_changes
from ojster.job_type import Declare, DeclaredJob, JobType
from ojster.jobs.names import read_type
from ojster.jobs.versions import ANY, parse_handled

P = ParamSpec("P")
R = TypeVar("R")

_encode: Final = msgspec.json.Encoder().encode


def check_free(type: str, handlers: Mapping[str, JobType[Any, Any]], function: Callable[..., Any]) -> None:
    """Check that a job type has no handler yet.

    Raises
    ------
    ValueError
        It has one; the message names both places.
    """
    if type in handlers:
        raise ValueError(
            f"The job type {type!r} already has a handler, {_place(handlers[type].function)}, so that "
            f"{_place(function)} cannot be one. Give it another type: @app.job('…')."
        )


def _place(function: Callable[..., Any]) -> str:
    code = getattr(inspect.unwrap(function), "__code__", None)
    where = "" if code is None else f" ({code.co_filename}:{code.co_firstlineno})"
    return f"{function.__module__}.{function.__qualname__}{where}"


class JobDecorator:
    """Declares functions as handlers of job types: ``@app.job``, or ``@app.job("email.send", retry=5)``.

    Parameters
    ----------
    app:
        The application of the jobs.
    handlers:
        The handlers by job type, to which it adds.
    """

    def __init__(self, app: Application, handlers: dict[str, JobType[Any, Any]]) -> None:
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
        self, type: str | None = None, *, process: bool = False, versions: str = ANY, **options: Unpack[JobOptionsDict]
    ) -> Declare: ...

    def __call__(
        self, type: Any = None, *, process: bool = False, versions: str = ANY, **options: Unpack[JobOptionsDict]
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
            An option does not exist; ``process`` is set for a coroutine function or a handler with a ``JobContext``; or
            a class has no method ``run``. The decorator raises it.
        ValueError
            The type already has a handler. The decorator raises it.
        """

        def declare(given: Callable[..., Any]) -> Any:
            handlers = self._handlers
            function = handler_of_class(given) if inspect.isclass(given) else given
            default = type_of_class(given) if inspect.isclass(given) else given.__name__
            name = read_type(_encode(default if type is None or callable(type) else type))
            check_free(name, handlers, function)
            declared: DeclaredJob[..., Any, ..., Any] = DeclaredJob(
                self._app, name, function, with_changes(JobOptions(), options), process
            )
            declared.handled = parse_handled(name, versions)
            handlers[name] = declared
            return declared

        return declare(type) if callable(type) else declare
