"""The signature of a handler: what can be a handler at all, and which arguments its jobs have."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ojster.handlers.context import JobContext
from ojster.handlers.job_options import JobOptions
from ojster.handlers.named_arguments import POSITIONAL, CallArguments, NamedParameters


def check_handler(type: str, function: Callable[..., Any]) -> None:
    """Check that a function can be a handler, before anything is known of its parameters.

    Raises
    ------
    TypeError
        It cannot. The message says what to write instead.
    """
    if not callable(function):
        raise TypeError(f"{type}: a handler must be a function or a class with a method run, not {function!r}.")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise TypeError(
            f"{type}: {_named(function)} is a generator function, which would return before it has run. "
            "Return a value instead of yielding some; report how far it is with JobContext.progress."
        )
    first = next(iter(inspect.signature(function).parameters), None)
    holder = getattr(function, "__qualname__", "").rpartition(".")[0]
    if first in ("self", "cls") and holder and not holder.endswith("<locals>"):
        raise TypeError(
            f"{type}: {_named(function)} is a method, and a worker has no object to call it on. Declare a function, or "
            f"the class {holder} if it has a method run: a new object is created for each job."
        )


class HandlerSignature:
    """The parameters of a handler without those that the worker fills in with ``Depends``.

    Parameters
    ----------
    type:
        The job type, for errors.
    signature:
        The parameters.

    Attributes
    ----------
    takes_context:
        Whether the first parameter is a ``JobContext``, which the worker adds.

    Raises
    ------
    TypeError
        A ``JobContext`` is not the first parameter.
    """

    def __init__(self, type: str, signature: inspect.Signature) -> None:
        self._type = type
        self._signature = signature
        parameters = list(signature.parameters.values())
        self.takes_context = bool(parameters) and _is_context(parameters[0])
        for parameter in parameters[1:]:
            if _is_context(parameter):
                raise TypeError(
                    f"{type}: the parameter {parameter.name!r} is a JobContext, which the worker adds in front of the "
                    f"arguments of the job. Move it to the first place, before {parameters[0].name!r}."
                )
        self.named = NamedParameters(parameters[int(self.takes_context) :])
        positional = [parameter for parameter in parameters if parameter.kind in POSITIONAL]
        self._fewest = sum(parameter.default is parameter.empty for parameter in positional) - self.takes_context
        has_more = any(parameter.kind is parameter.VAR_POSITIONAL for parameter in parameters)
        self._most = math.inf if has_more else len(positional) - self.takes_context

    @property
    def argument_names(self) -> list[str]:
        """The names of the arguments of a job."""
        return list(self._signature.parameters)[int(self.takes_context) :]

    def arguments(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Sequence[Any]:
        """Return the arguments of a job as the JSON array has them.

        Raises
        ------
        TypeError
            The handler does not take these arguments. The message names the job and its signature.
        """
        if not kwargs and not self.named and self._fewest <= len(args) <= self._most:
            return args
        filled = ((), *args) if self.takes_context else args
        try:
            bound = self._signature.bind(*filled, **kwargs)
        except TypeError as error:
            meant = sorted(kwargs.keys() & JobOptions.__struct_fields__ - self._signature.parameters.keys())
            hint = f" Options are set before: .using({meant[0]}=…).enqueue(…)." if meant else ""
            raise TypeError(f"{self._type}: {error}. The job is {self}.{hint}") from None
        named = bound.kwargs  # without defaults, which may change, and need not be JSON
        bound.apply_defaults()
        return self.named.joined(CallArguments(bound.args[int(self.takes_context) :], named))

    def __str__(self) -> str:
        """Return the job type with the arguments of its jobs."""
        parameters = list(self._signature.parameters.values())[int(self.takes_context) :]
        shown = self._signature.replace(parameters=parameters, return_annotation=inspect.Signature.empty)
        return f"{self._type}{shown}"


def _named(function: Callable[..., Any]) -> str:
    return str(getattr(function, "__qualname__", repr(function)))


def _is_context(parameter: inspect.Parameter) -> bool:
    annotation = parameter.annotation
    return annotation is JobContext or (
        isinstance(annotation, str) and annotation.rpartition(".")[2] == JobContext.__name__
    )
