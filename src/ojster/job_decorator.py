"""The decorator ``App.job``, which declares functions as handlers, with or without arguments."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, Final, ParamSpec, TypeVar, Unpack, overload

import msgspec

from ojster.context import JobContext
from ojster.job_handle import Application
from ojster.job_options import JobOptions, JobOptionsDict
from ojster.job_type import Declare, DeclaredJob, JobType
from ojster.jobs.names import read_type
from ojster.jobs.versions import ANY, parse_handled

P = ParamSpec("P")
R = TypeVar("R")

_encode: Final = msgspec.json.Encoder().encode


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
        """Declare a function as the handler of a job type.

        Parameters
        ----------
        type:
            Job type, such as ``email.send``; by default the function's name. Or the function, for ``@app.job`` without
            parentheses.
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
            An option does not exist, or ``process`` is set for a coroutine function or a handler with a ``JobContext``.
            The decorator raises it.
        ValueError
            The type already has a handler. The decorator raises it.
        """

        def declare(function: Callable[..., Any]) -> Any:
            handlers = self._handlers
            name = read_type(_encode(function.__name__ if type is None or callable(type) else type))
            if name in handlers:
                raise ValueError(f"The job type {name!r} already has a handler: {handlers[name].function!r}.")
            declared: DeclaredJob[..., Any, ..., Any] = DeclaredJob(
                self._app, name, function, JobOptions(**options), process
            )
            declared.handled = parse_handled(name, versions)
            handlers[name] = declared
            return declared

        return declare(type) if callable(type) else declare
