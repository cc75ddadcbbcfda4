"""Options that a program sets: one declaration gives the type, the bounds, the default and the text of each.

The declaration is a struct, or the signature of a function, with its docstring. Values are checked against it where a
program sets them, the command line makes its options of it (``ojster.cli.declared``), and OpenAPI describes with it the
members of requests and answers.
"""

from __future__ import annotations

import functools
import inspect
import re
import typing
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Annotated, Any, Final, NamedTuple, ParamSpec, TypeVar, get_args

import msgspec
from msgspec import Meta

from ojster.core.durations import LONGEST_SECONDS
from ojster.core.parsing import choices_of

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S", bound=msgspec.Struct)

_DECLARATIONS: Final = "__declarations__"

MOST_COUNT: Final = 1_000_000_000
"""Greatest number that an option can name: more is a slip, which would be noticed late, or never."""

MOST_BYTES: Final = 2**53 - 1
"""Greatest size that an option can name, in bytes: what all programs read exactly in JSON."""

MOST_PLACES: Final = 1_000_000
"""Maximum number of jobs that a worker runs at once."""

PositiveCount = Annotated[int, Meta(ge=1, le=MOST_COUNT)]
"""A whole number from 1."""

NonNegativeCount = Annotated[int, Meta(ge=0, le=MOST_COUNT)]
"""A whole number from 0."""

Places = Annotated[int, Meta(ge=1, le=MOST_PLACES)]
"""A number of jobs that run at once in a worker."""

Bytes = Annotated[int, Meta(ge=1, le=MOST_BYTES)]
"""A size in bytes."""

LEAST_SECONDS: Final = 0.001
"""Shortest duration that is longer than zero, in seconds: requests count in milliseconds."""

PositiveSeconds = Annotated[float, Meta(ge=LEAST_SECONDS, le=LONGEST_SECONDS)]
"""A duration in seconds that is longer than zero."""

NonNegativeSeconds = Annotated[float, Meta(ge=0, le=LONGEST_SECONDS)]
"""A duration in seconds, which may be zero."""

PositiveSpan = PositiveSeconds | timedelta
"""A duration that is longer than zero, in seconds or as a ``timedelta``."""

NonNegativeSpan = NonNegativeSeconds | timedelta
"""A duration, which may be zero, in seconds or as a ``timedelta``."""


class Option(NamedTuple):
    """An option as its declaration describes it.

    Parameters
    ----------
    name:
        Name of the field or parameter.
    kind:
        Its type, with its bounds.
    default:
        Its default; ``inspect.Parameter.empty`` if it has none.
    description:
        What the docstring says of it; empty without docstrings (``python -OO``).
    """

    name: str
    kind: Any
    default: Any
    description: str

    @property
    def text(self) -> str:
        """The first clause of the description: what it means, without the default."""
        return re.split(r"[;.](?:\s|$)", self.description, maxsplit=1)[0]


def check_option(name: str, value: object, kind: Any) -> None:
    """Check the value of an option against the type and the bounds that its declaration gives.

    Raises
    ------
    TypeError
        The value has another type.
    ValueError
        The value is out of bounds, or none of the texts that the type lists.
    """
    structs = _structs_in(kind)
    if structs and not isinstance(value, structs):
        wanted = " or ".join("None" if part is type(None) else part.__name__ for part in structs)
        raise TypeError(f"{name!r} is {value!r:.60}, but must be {wanted}.")
    plain = value.total_seconds() if isinstance(value, timedelta) else value  # the bounds of spans are in seconds
    try:
        msgspec.convert(plain, kind, builtin_types=(timedelta,))  # else a text would count as a timedelta
    except msgspec.ValidationError as error:
        problem = TypeError if ", got `" in str(error) else ValueError
        raise problem(f"{name!r} is {value!r:.60}: {error}.{choices_of(kind)}") from None


@functools.cache
def _structs_in(kind: Any) -> tuple[type, ...]:
    """Return the structs that a type allows, and the type of ``None`` if it allows that; none if it has no structs."""
    parts = (kind, *get_args(kind))
    structs = [part for part in parts if isinstance(part, type) and issubclass(part, msgspec.Struct)]
    return (*structs, *[part for part in parts if part is type(None)]) if structs else ()


def check_fields(options: msgspec.Struct) -> None:
    """Check each field of a struct with options. Raises as ``check_option`` does."""
    for option in options_of(type(options)).values():
        check_option(option.name, getattr(options, option.name), option.kind)


class CheckedOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options that are checked when they are set.

    Raises
    ------
    TypeError, ValueError
        An option has another type than its field, or is out of bounds.
    """

    def __post_init__(self) -> None:
        check_fields(self)


def checks_options(function: Callable[P, R]) -> Callable[P, R]:
    """Check the arguments of each call of a function against its annotations. Raises as ``check_option`` does.

    Parameters of types that only Python has, such as protocols and callables, are left to the function.
    """

    def check(args: tuple[Any, ...], arguments: Mapping[str, Any]) -> None:
        options = options_of(function)
        for name, value in _signature_of(function).bind(*args, **arguments).arguments.items():
            if name in options and _is_data(options[name].kind):
                check_option(name, value, options[name].kind)

    @functools.wraps(function)
    def checked(*args: P.args, **arguments: P.kwargs) -> R:
        check(args, arguments)
        return function(*args, **arguments)

    @functools.wraps(function)
    async def awaited(*args: P.args, **arguments: P.kwargs) -> Any:
        check(args, arguments)
        return await function(*args, **arguments)  # type: ignore[misc]  # it is a coroutine function

    return awaited if inspect.iscoroutinefunction(function) else checked  # type: ignore[return-value]  # both as function


@functools.cache
def _signature_of(function: Callable[..., Any]) -> inspect.Signature:
    """Return the signature of a function; to make it takes longer than the check."""
    return inspect.signature(function)


@functools.cache
def options_of(declaration: Any) -> Mapping[str, Option]:
    """Return the options that a struct or a function declares, by name."""
    hints = typing.get_type_hints(declaration, include_extras=True)
    texts = descriptions_of(declaration)
    return {
        name: Option(name, hints[name], parameter.default, texts.get(name, ""))
        for name, parameter in inspect.signature(declaration).parameters.items()
        if name in hints and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    }


@functools.cache
def _is_data(kind: Any) -> bool:
    """Whether a type consists of values that can be compared with it: JSON, durations, and structs."""
    try:
        described = msgspec.inspect.type_info(kind)
    except TypeError:  # a union of a type that only Python has
        return False
    return not any(isinstance(part, msgspec.inspect.CustomType) for part in _parts(described))


def _parts(kind: Any) -> list[Any]:
    inner = [kind.item_type] if hasattr(kind, "item_type") else [*getattr(kind, "types", ())]
    return [kind, *(part for nested in inner for part in _parts(nested))]


_PARAMETERS: Final = re.compile(r"^(?:Parameters|Attributes)\n-+\n(.*?)(?:\n\n\w+\n-+\n|\Z)", re.DOTALL | re.MULTILINE)
_SECTION: Final = re.compile(r"^\w+\n-+\n", re.MULTILINE)
_ENTRY: Final = re.compile(r"^(\w[\w, ]*):\n((?:    .*\n?|\n)+)", re.MULTILINE)


def described_by(*declarations: type) -> Callable[[type[S]], type[S]]:
    """Describe members of a struct as others describe fields of the same names, unless the struct does so itself."""

    def mark(struct: type[S]) -> type[S]:
        setattr(struct, _DECLARATIONS, declarations)
        return struct

    return mark


@functools.cache
def descriptions_of(declaration: Any) -> Mapping[str, str]:
    """Return what docstrings say of each parameter. A class describes those of its ``__init__``, and inherits texts."""
    owner = inspect.getmodule(declaration)
    documented = declaration
    if inspect.isfunction(declaration) and declaration.__name__ == "__init__":
        documented = getattr(owner, declaration.__qualname__.partition(".")[0])
    texts: dict[str, str] = {}
    for declared in vars(documented).get(_DECLARATIONS, ()):
        texts |= descriptions_of(declared)
    for described in reversed(documented.__mro__ if inspect.isclass(documented) else (documented,)):
        section = _PARAMETERS.search(inspect.cleandoc(described.__doc__ or ""))
        for names, text in _ENTRY.findall(section[1] if section else ""):
            texts |= dict.fromkeys(names.split(", "), " ".join(text.split()))
    return texts


def summary_of(declaration: type) -> str:
    """Return what the docstring of a struct says before its first section."""
    return _SECTION.split(inspect.cleandoc(declaration.__doc__ or ""), maxsplit=1)[0].strip()


def bounds_of(kind: Any) -> dict[str, Any]:
    """Return the bounds that a type gives to its numbers, as ``Meta`` names them: ``ge``, ``gt``, ``le``, ``lt``."""
    bounds = {
        name: bound
        for meta in getattr(kind, "__metadata__", ())
        if isinstance(meta, Meta)
        for name in ("ge", "gt", "le", "lt")
        if (bound := getattr(meta, name)) is not None
    }
    for part in get_args(kind):
        bounds |= bounds_of(part)
    return bounds
