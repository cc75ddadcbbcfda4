"""Job types and calls as tests name them: by name, by handler, or by a task of a framework."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, Self

import msgspec

from ojster.api.app import App
from ojster.core.values import to_json
from ojster.handlers.job_type import JobType
from ojster.handlers.named_arguments import NamedParameters

CONDITIONS: Final = ("count", "meta", "priority", "queue", "state", "tenant")
"""What ``assert_enqueued`` compares beside arguments, by name."""

Call = tuple[Sequence[Any], Mapping[str, Any]]
"""Positional and named arguments."""


class Callee(msgspec.Struct, frozen=True):
    """What a test expects to be called.

    Parameters
    ----------
    type:
        The job type.
    signature:
        The arguments that it takes; ``None``: not known here.
    is_packed:
        Whether jobs have two arguments, the list of the positional and the object of the named ones.
    named:
        The parameters whose arguments have names; ``None``: it is not known here.
    """

    type: str
    signature: inspect.Signature | None
    is_packed: bool = False
    named: NamedParameters | None = None

    @classmethod
    def of(cls, app: App, named: Any) -> Self:
        """Return what a name, a handler or a task stands for.

        Raises
        ------
        TypeError
            It is none of these.
        """
        handler = app.handlers.get(named) if isinstance(named, str) else named
        if isinstance(handler, JobType):
            signature = _without_context(handler.signature, takes_context=handler.takes_context)
            return cls(handler.type, signature, named=handler.types.named)
        if isinstance(named, str):
            return cls(named, None)
        if app.task_of is not None and (task := app.task_of(named)) is not None:
            type, function, takes_context = task
            signature = _without_context(inspect.signature(function), takes_context=takes_context)
            return cls(type, signature, is_packed=True)
        raise TypeError(f"{named!r} is no job type. Pass the name of the type, or the function with its decorator.")

    def expect(self, call: Call) -> Any:
        """Return what arguments compare equal to, as JSON.

        Raises
        ------
        TypeError
            The job type does not take them.
        """
        try:
            return self._bound(call)
        except TypeError as error:
            raise TypeError(f"{self.type}: {error}. Conditions beside arguments are {', '.join(CONDITIONS)}.") from None

    def actual(self, args: list[Any]) -> Any:
        """Return the same for the arguments of a job."""
        try:
            return self._bound(self.call_of(args))
        except TypeError:  # an older version has enqueued it
            return args

    def call_of(self, args: list[Any]) -> Call:
        """Return the arguments with which the job's function is called."""
        if self.is_packed and len(args) == 2:
            return args[0], args[1]
        if self.named is None:
            return args, {}
        try:
            return self.named.divided(args)
        except TypeError:  # another program has enqueued it
            return args, {}

    def _bound(self, call: Call) -> Any:
        if self.signature is None:
            if call[1]:
                raise TypeError(f"unexpected argument {next(iter(call[1]))!r}")
            return msgspec.json.decode(to_json(list(call[0])))
        members = dict(self.signature.bind(*call[0], **call[1]).arguments)
        for name, parameter in self.signature.parameters.items():
            if parameter.default is not parameter.empty:
                with suppress(TypeError):  # a default need not be JSON
                    members.setdefault(name, msgspec.json.decode(to_json(parameter.default)))
        return msgspec.json.decode(to_json(members))


def _without_context(signature: inspect.Signature, *, takes_context: bool) -> inspect.Signature:
    return signature.replace(parameters=list(signature.parameters.values())[int(takes_context) :])


def shown_call(type: str, call: Call) -> str:
    """Return a call as errors show it; without arguments, only the type."""
    shown = [*map(repr, call[0]), *(f"{name}={value!r}" for name, value in call[1].items())]
    return f"{type}({', '.join(shown)})" if shown else type
