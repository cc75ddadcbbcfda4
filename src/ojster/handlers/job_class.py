"""Handlers that are classes: a new object for each job, whose method ``run`` gets the arguments."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, Protocol, TypeVar

P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)


class Runs(Protocol[P, R_co]):
    """A class that can be a handler."""

    def run(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """Run a job."""


class RunsAsync(Protocol[P, R_co]):
    """A class that can be an asynchronous handler."""

    def run(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R_co]:
        """Run a job."""


def handler_of_class(kind: type) -> Callable[..., Any]:
    """Return a function that runs jobs with new objects of a class.

    Raises
    ------
    TypeError
        The class has no method ``run``, or it cannot be created without arguments.
    """
    run = inspect.getattr_static(kind, "run", None)
    if not inspect.isfunction(run):
        raise TypeError(f"The class {kind.__qualname__} has no method run(self, …), which gets the arguments of jobs.")
    try:
        inspect.signature(kind).bind()
    except TypeError as error:
        message = f"An object of {kind.__qualname__} is created for each job without arguments, but: {error}."
        raise TypeError(f"{message} Let run() take what it needs, with Depends(…).") from None
    if inspect.isgeneratorfunction(run) or inspect.isasyncgenfunction(run):
        raise TypeError(
            f"The method run of {kind.__qualname__} is a generator. Return a value instead of yielding some."
        )

    def plain(*args: Any, **kwargs: Any) -> Any:
        return run(kind(), *args, **kwargs)

    async def asynchronous(*args: Any, **kwargs: Any) -> Any:
        return await run(kind(), *args, **kwargs)

    handler: Callable[..., Any] = asynchronous if inspect.iscoroutinefunction(run) else plain
    _, *parameters = inspect.signature(run).parameters.values()
    handler.__dict__.update(__wrapped__=run, __signature__=inspect.signature(run).replace(parameters=parameters))
    handler.__name__, handler.__qualname__ = kind.__name__, kind.__qualname__
    handler.__module__, handler.__doc__ = kind.__module__, kind.__doc__
    return handler


def type_of_class(kind: type) -> str:
    """Return the job type that a class has by default: ``SendEmail`` becomes ``send_email``."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", kind.__name__).lower()
