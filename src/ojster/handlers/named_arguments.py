"""Named arguments of jobs: one JSON object after the positional arguments.

The handler ``f(a, b=1, *, c)`` gets ``["ada", 1, {"c": "Hello"}]``. The object follows all positional parameters, so
that it cannot be taken for one of them.

A handler with ``*args`` has no fixed number of them. Its last argument is the object if all names in it are parameters
after ``*args``, or the handler has ``**``, too. With ``*args, **more`` alone, as in a decorator, all arguments are
positional: any object could be meant.

Arrays of other programs, and of older versions of the handler, keep their meaning or are refused. What could not be
read back is refused when it is enqueued.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from ojster.core.values import to_json
from ojster.workflows.read.shapes import is_indexed

POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
"""Kinds of parameters whose arguments have a place in the JSON array."""


class CallArguments(NamedTuple):
    """Arguments with which a handler is called."""

    positional: Sequence[Any]
    named: Mapping[str, Any]


class NamedParameters:
    """The parameters of a handler whose arguments have names: those after ``*``, and ``**``.

    Parameters
    ----------
    parameters:
        All parameters of the handler that are arguments of its jobs.
    """

    def __init__(self, parameters: Sequence[inspect.Parameter]) -> None:
        self.keyword_only = [parameter for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY]
        self.more = next((parameter for parameter in parameters if parameter.kind is parameter.VAR_KEYWORD), None)
        """The parameter ``**`` that takes all other names; ``None``: there is none."""
        positional = [parameter for parameter in parameters if parameter.kind in POSITIONAL]
        self._places = len(positional)
        self._fewest = sum(parameter.default is parameter.empty for parameter in positional)
        self._has_more_places = any(parameter.kind is parameter.VAR_POSITIONAL for parameter in parameters)
        self._names = {parameter.name for parameter in self.keyword_only}

    def __bool__(self) -> bool:
        """Return whether jobs can have named arguments."""
        return bool(self.keyword_only) or (self.more is not None and not self._has_more_places)

    def joined(self, arguments: CallArguments) -> Sequence[Any]:
        """Return arguments as the JSON array has them; all positional parameters have one.

        Raises
        ------
        TypeError
            They could not be read back.
        """
        positional, named = arguments
        if named:
            if not self:
                raise TypeError(
                    f"the argument {next(iter(named))!r} cannot be stored by its name, because the handler has *args "
                    "and **, and no parameters between them. Declare it after *args"
                )
            return [*positional, dict(named)]
        if not self or not self._could_be_read_as_named(positional):
            return positional
        if self._has_more_places:
            names = ", ".join(sorted(self._names))
            raise TypeError(
                f"the last argument would be taken for the named ones. Pass one of these by name, too: {names}"
            )
        return [*positional, {}]

    def divided(self, args: Sequence[Any]) -> CallArguments:
        """Return the arguments that a JSON array has.

        Raises
        ------
        TypeError
            There is no object where it must be, or it may be a positional argument as well as the named ones.
        """
        if not self or not args:
            return CallArguments(args, {})
        last = args[-1]
        if len(args) <= self._places:
            if len(args) > self._fewest and self._is_named(last):
                raise TypeError(
                    f"the last argument has names of parameters ({', '.join(last)}), but there are only {len(args)} "
                    f"arguments. Give all {self._places} positional ones before it; if it is a positional one itself, "
                    "give all of them, and then the object of the named ones, which may be empty"
                )
            return CallArguments(args, {})
        if self._has_more_places:
            is_named = self._is_named(last, others=self.more is not None)
            return CallArguments(args[:-1], last) if is_named else CallArguments(args, {})
        if len(args) > self._places + 1 or not isinstance(last, dict):
            raise TypeError(
                f"the argument after the {self._places} positional ones must be the object of the named arguments, and "
                "the last one"
            )
        return CallArguments(args[:-1], last)

    def _is_named(self, value: Any, *, others: bool = False) -> bool:
        """Return whether a value is an object whose names are all parameters, or any ``others``."""
        return isinstance(value, dict) and bool(value) and (others or value.keys() <= self._names)

    def _could_be_read_as_named(self, positional: Sequence[Any]) -> bool:
        if len(positional) <= self._fewest:
            return False
        value, others = positional[-1], self._has_more_places and self.more is not None
        if value is None or isinstance(value, str | int | float | list | tuple):
            return False
        try:
            read = msgspec.json.decode(to_json(value))
        except TypeError:  # refused when all arguments are encoded
            return False
        if isinstance(read, dict) and not read.keys().isdisjoint(_REFERENCES):
            return True
        return self._is_named(read, others=others)


_REFERENCES = ("$ref", "$lookup")
"""Members of objects in whose place the server puts another value, which may be any object."""


def with_lists(arguments: CallArguments) -> CallArguments:
    """Return arguments in which results of groups and maps, objects with a member for each index, are lists."""
    return CallArguments(
        [_as_list(value) for value in arguments.positional],
        {name: _as_list(value) for name, value in arguments.named.items()},
    )


def _as_list(value: Any) -> Any:
    return list(value.values()) if isinstance(value, dict) and is_indexed(value) else value


Call = Sequence[Any] | Mapping[str, Any]
"""The arguments of one job: positional ones, or all by name."""


def arguments_of_call(call: Call) -> CallArguments:
    """Return the arguments that one of many calls has."""
    if isinstance(call, tuple | list) or not isinstance(call, Mapping):  # the first is asked faster
        return CallArguments(call, {})
    return CallArguments((), call)
