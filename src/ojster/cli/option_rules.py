"""Rules of a command about options that have no effect beside others, or without them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import click
from click.core import ParameterSource

from ojster.cli.declared import Command


def excludes(name: str, *idle: str) -> Callable[[Command], Command]:
    """Refuse parameters on the command line that have no effect beside another.

    Values from the environment are no contradiction: a variable may be there for other commands.

    Parameters
    ----------
    name:
        The parameter that leaves the others without effect.
    idle:
        The others.
    """

    def check(context: click.Context) -> None:
        if (reasons := _used(context, name)) and (unused := _used(context, *idle)):
            raise click.UsageError(f"{unused[0]} has no effect with {reasons[0]}. Leave one of them out.")

    return _with_check(check)


def needs(name: str, *idle: str) -> Callable[[Command], Command]:
    """Refuse parameters on the command line that have no effect without another.

    Parameters
    ----------
    name:
        The parameter that the others need, from the command line or the environment.
    idle:
        The others.
    """

    def check(context: click.Context) -> None:
        if not context.params.get(name) and (unused := _used(context, *idle)):
            raise click.UsageError(f"{unused[0]} has no effect without {_written(context, name)}. Add it.")

    return _with_check(check)


def _with_check(check: Callable[[click.Context], None]) -> Callable[[Command], Command]:
    def add(command: Command) -> Command:
        @functools.wraps(command)
        def checked(*args: Any, **parameters: Any) -> Any:
            check(click.get_current_context())
            return command(*args, **parameters)

        return checked

    return add


def used_options(*names: str) -> list[str]:
    """Return those of the parameters of the running command that its command line has, as they are written there."""
    return _used(click.get_current_context(), *names)


def _used(context: click.Context, *names: str) -> list[str]:
    return [_written(context, name) for name in names if _is_used(context, name)]


def _is_used(context: click.Context, name: str) -> bool:
    if context.get_parameter_source(name) is not ParameterSource.COMMANDLINE:
        return False
    # Arguments that are left out have this source, too; an option may be 0, or 'never', which is None.
    return not isinstance(_parameter(context, name), click.Argument) or bool(context.params.get(name))


def _written(context: click.Context, name: str) -> str:
    parameter = _parameter(context, name)
    return parameter.human_readable_name if isinstance(parameter, click.Argument) else max(parameter.opts, key=len)


def _parameter(context: click.Context, name: str) -> click.Parameter:
    return next(parameter for parameter in context.command.params if parameter.name == name)
