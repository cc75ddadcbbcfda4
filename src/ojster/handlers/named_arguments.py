"""Named arguments of jobs: one JSON object after the positional arguments.

The handler ``f(a, b=1, *, c)`` gets ``["ada", 1, {"c": "Hello"}]``. The object follows all positional parameters, so
that it cannot be taken for one of them. A handler with ``*args`` has no fixed number of them: the last argument of its
jobs always is the object.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

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
        positional = sum(parameter.kind in POSITIONAL for parameter in parameters)
        has_more = any(parameter.kind is parameter.VAR_POSITIONAL for parameter in parameters)
        self._place = None if has_more else positional
        """Where the object is in the JSON array; ``None``: it is the last."""

    def __bool__(self) -> bool:
        """Return whether there are any."""
        return bool(self.keyword_only) or self.more is not None

    def joined(self, arguments: CallArguments) -> Sequence[Any]:
        """Return arguments as the JSON array has them; all positional parameters have one."""
        if not self or (not arguments.named and self._place is not None):
            return arguments.positional
        return [*arguments.positional, dict(arguments.named)]

    def divided(self, args: Sequence[Any]) -> CallArguments:
        """Return the arguments that a JSON array has.

        Raises
        ------
        TypeError
            There is no object where it must be.
        """
        if not self or (self._place is not None and len(args) <= self._place):
            return CallArguments(args, {})
        place = len(args) - 1 if self._place is None else self._place
        if not args or len(args) > place + 1 or not isinstance(args[place], dict):
            raise TypeError(
                f"the argument after the {place} positional ones must be the object of the named arguments, and the "
                "last one"
                if args
                else "the object of the named arguments is missing, which must be the last argument"
            )
        return CallArguments(args[:place], args[place])


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
    return CallArguments((), call) if isinstance(call, Mapping) else CallArguments(call, {})
