"""The signature of a handler: what can be a handler at all, and which arguments its jobs have."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from ojster.core.values import to_json
from ojster.handlers.context import JobContext
from ojster.handlers.job_options import JobOptions
from ojster.handlers.named_arguments import POSITIONAL, Call, CallArguments, NamedParameters, arguments_of_call

_NONE: Final[Mapping[str, Any]] = {}


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
    needed:
        The names of those parameters.

    Attributes
    ----------
    takes_context:
        Whether the first parameter is a ``JobContext``, which the worker adds.

    Raises
    ------
    TypeError
        A ``JobContext`` is not the first parameter.
    """

    def __init__(self, type: str, signature: inspect.Signature, needed: Collection[str] = ()) -> None:
        self._type = type
        self._signature = signature
        self._needed = needed
        parameters = list(signature.parameters.values())
        self.takes_context = bool(parameters) and _is_context(parameters[0])
        for parameter in parameters[1:]:
            if _is_context(parameter):
                raise TypeError(
                    f"{type}: the parameter {parameter.name!r} is a JobContext, which the worker adds in front of the "
                    f"arguments of the job. Move it to the first place, before {parameters[0].name!r}."
                )
        self.named = NamedParameters(parameters[int(self.takes_context) :])
        self._takes_named = bool(self.named)
        positional = [parameter for parameter in parameters if parameter.kind in POSITIONAL]
        self._fewest = sum(parameter.default is parameter.empty for parameter in positional) - self.takes_context
        has_more = any(parameter.kind is parameter.VAR_POSITIONAL for parameter in parameters)
        self._places = len(positional) - self.takes_context
        self._most = math.inf if has_more else self._places

    def by_name(self, args: Sequence[Any]) -> Iterator[tuple[str, Any]]:
        """Yield each argument of a job, as ``arguments`` returns them, with the name of its parameter."""
        positional, named = self.named.divided(args)
        names = list(self._signature.parameters)[int(self.takes_context) :]
        for place, value in enumerate(positional):
            yield names[min(place, self._places)], value
        yield from named.items()

    def not_json(self, args: Sequence[Any], error: TypeError) -> TypeError:
        """Return the error for arguments that JSON cannot hold; it names the first of them."""
        for name, value in self.by_name(args):
            try:
                to_json(value)
            except TypeError as cause:
                return TypeError(
                    f"{self._type}: the argument {name!r} cannot be stored as JSON: {cause}. "
                    "Pass numbers, texts, lists, dicts or dataclasses, or an id by which the handler finds the object."
                )
        return error

    def arguments(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Sequence[Any]:
        """Return the arguments of a job as the JSON array has them.

        Raises
        ------
        TypeError
            The handler does not take these arguments. The message names the job and its signature.
        """
        if not (kwargs or self._takes_named) and self._fewest <= len(args) <= self._most:
            return args
        filled = ((), *args) if self.takes_context else args
        try:
            bound = self._signature.bind(*filled, **kwargs)
        except TypeError as error:
            meant = sorted(kwargs.keys() & JobOptions.__struct_fields__ - self._signature.parameters.keys())
            hint = f" Options are set before: .using({meant[0]}=…).enqueue(…)." if meant else ""
            raise TypeError(f"{self._type}: {error}. The job is {self}.{hint}") from None
        named = self._named(bound.arguments)
        if filled_in := sorted(named.keys() & self._needed):
            raise TypeError(f"{self._type}: {filled_in[0]!r} has Depends(…), which gives its value. The job is {self}.")
        bound.apply_defaults()
        try:
            return self.named.joined(CallArguments(bound.args[int(self.takes_context) :], named))
        except TypeError as error:
            raise TypeError(f"{self._type}: {error}. The job is {self}.") from None

    def of_calls(self, calls: Iterable[Call]) -> list[Sequence[Any]] | None:
        """Return the arguments of each of many jobs, see ``arguments``; ``None``: it refuses one of them."""
        try:
            return [
                self.arguments(call, _NONE) if type(call) is tuple else list(self.arguments(*arguments_of_call(call)))
                for call in calls
            ]
        except TypeError:  # the first job may be refused for another reason
            return None

    def _named(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the named ones of bound arguments, without defaults, which may change, and need not be JSON."""
        named = {
            parameter.name: arguments[parameter.name]
            for parameter in self.named.keyword_only
            if parameter.name in arguments
        }
        return named if self.named.more is None else named | arguments.get(self.named.more.name, {})

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
