"""Options of commands that follow a declaration in Python: its types, bounds, defaults and texts."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final, Literal, get_args, get_origin

import click
from msgspec import UNSET, UnsetType

from ojster.core.declared_options import MOST_BYTES, MOST_COUNT, Option, bounds_of, options_of
from ojster.core.durations import LONGEST_SECONDS, format_duration, parse_duration
from ojster.core.errors import InvalidRequest
from ojster.core.timestamps import parse_timestamp

Command = Callable[..., Any]
"""The function of a command, whose parameters its decorators add and take away."""

NEVER: Final = "never"
"""Stands for a duration without end."""

NONE: Final = "none"
"""Stands for a setting that is removed."""


NUMBER: Final = click.IntRange(1, MOST_COUNT)
"""A whole number from 1."""

PLACE: Final = click.IntRange(0, MOST_COUNT)
"""A whole number from 0, after which a list goes on."""

PROCESSES: Final = click.IntRange(1, 1_000)
"""A number of processes on one machine."""

MEBIBYTES: Final = click.IntRange(1, MOST_BYTES >> 20)
"""A size in MiB."""


class Seconds(click.FloatRange):
    """A finite number of seconds in a range, of a hundred years at most."""

    name = "number of seconds"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number; NaN and infinity are in no range."""
        seconds: float = super().convert(value, param, ctx)
        if not math.isfinite(seconds):
            self.fail(f"{value} is no number of seconds. Use one such as 2.5.", param, ctx)
        if seconds > LONGEST_SECONDS:
            self.fail(f"{value} seconds are more than a hundred years. Use less.", param, ctx)
        return seconds


class PointInTime(click.ParamType[int | timedelta]):
    """A time: RFC 3339, or a duration before now such as ``-PT1H``; ``moment_at`` reads both."""

    name = "time"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int | timedelta:
        """Return the time in microseconds since the epoch, or the duration."""
        if isinstance(value, (int, timedelta)):
            return value
        text = str(value)
        try:
            return timedelta(microseconds=parse_duration(text[1:])) if text.startswith("-") else parse_timestamp(text)
        except InvalidRequest as error:
            self.fail(error.message, param, ctx)


class IsoSpan(click.ParamType[timedelta | None]):
    """An ISO 8601 duration.

    Parameters
    ----------
    least:
        The shortest, in seconds; 0 by default.
    takes_never:
        Whether it may be ``never``, which becomes ``None``.
    """

    name = "duration"

    def __init__(self, *, least: float = 0.0, takes_never: bool = True) -> None:
        self._least = least
        self._takes_never = takes_never

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> timedelta | None:
        """Return the duration, or ``None`` for ``never``."""
        if value is None or isinstance(value, timedelta):
            return value
        if value == NEVER and self._takes_never:
            return None
        try:
            span = timedelta(microseconds=parse_duration(str(value)))
        except InvalidRequest as error:
            self.fail(f"{error.message} 'never' is for no limit." if self._takes_never else error.message, param, ctx)
        if span.total_seconds() < self._least:
            self.fail(f"{value} is no limit. Use at least {self._least:g} seconds, such as PT30S.", param, ctx)
        return span


class OrNone(click.ParamType[Any]):
    """A value of another type, or ``none``, which becomes ``None``. The default stays as it is."""

    def __init__(self, kind: click.ParamType[Any]) -> None:
        self.kind = kind
        self.name = kind.name

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the value, or ``None`` for ``none``."""
        if value == NONE or value is UNSET:
            return UNSET if value is UNSET else None
        try:
            return self.kind.convert(value, param, ctx)
        except click.BadParameter as error:
            self.fail(f"{error.message.rstrip('.')}. '{NONE}' is for no limit.", param, ctx)


def micros_of(span: timedelta) -> int:
    """Return a duration in microseconds."""
    return span // timedelta(microseconds=1)


def option_of(declaration: Any, name: str, *flags: str, **more: Any) -> Callable[[Command], Command]:
    """Return the option of a command for an option that a struct or a function declares.

    A member of a request that may be left out, or null, may be left out, or ``none``.

    Parameters
    ----------
    declaration, name:
        The struct or the function, and the field or parameter.
    flags:
        Its names on the command line; by default ``--`` and its name with dashes.
    more:
        What the command line says otherwise, as ``click.option`` takes it: ``help``, ``metavar``, …
    """
    declared = options_of(declaration)[name]
    named = (*(flags or (f"--{name.replace('_', '-')}",)), name)
    told = {"help": _text_of(declared)} | _default_of(declared) | type_of(declared) | more
    if is_removable(declared):
        told["type"] = OrNone(told["type"])
    return click.option(*named, **told)


def together(*options: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """Return a decorator that adds options, in this order."""
    return lambda command: functools.reduce(lambda decorated, option: option(decorated), reversed(options), command)


def is_removable(declared: Option) -> bool:
    """Whether an option is a member of a request that stays as it is if it is left out, and is removed by null."""
    return {UnsetType, type(None)} <= {*get_args(declared.kind)}


def _default_of(declared: Option) -> dict[str, Any]:
    default = declared.default
    if default is None or default is inspect.Parameter.empty:
        return {}
    if default is UNSET:
        return {"default": UNSET}
    shown = format_duration(round(default.total_seconds() * 1e6)) if isinstance(default, timedelta) else default
    return {"default": shown, "show_default": True}


def type_of(declared: Option) -> dict[str, Any]:
    """Return the type of an option as ``click.option`` takes it, with its bounds."""
    kinds = (declared.kind, *get_args(declared.kind))
    bounds = bounds_of(declared.kind)
    least, most = bounds.get("ge"), bounds.get("le")
    if bool in kinds:
        return {"is_flag": True}
    if choices := [get_args(kind) for kind in kinds if get_origin(kind) is Literal]:
        return {"type": click.Choice(choices[0])}
    if isinstance(declared.default, timedelta):
        return {"type": IsoSpan(least=least or 0.0, takes_never=type(None) in kinds), "metavar": "DURATION"}
    if timedelta in kinds or float in kinds:
        return {"type": Seconds(least, None if most == LONGEST_SECONDS else most), "metavar": "SECONDS"}
    if any(int in (kind, *get_args(kind)) for kind in kinds):
        return {"type": click.IntRange(least, most)}
    return {"type": str}


def _text_of(declared: Option) -> str:
    """Return what an option means, with the word for no limit if there is one."""
    text = declared.text.replace("``", "")
    takes_never = isinstance(declared.default, timedelta) and type(None) in get_args(declared.kind)
    word = NEVER if takes_never else NONE if is_removable(declared) else None
    return f"{text}." if word is None else f"{text}; '{word}' for no limit."
