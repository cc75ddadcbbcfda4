"""Each call of a service refuses text that no database stores, wherever its arguments have it."""

from __future__ import annotations

import inspect
import types
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from functools import cached_property
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin, get_type_hints

import pytest
from msgspec import Raw, Struct, structs

from ojster.core.errors import OjsterError
from ojster.service import Service
from tests.options.scenes import server

pytestmark = pytest.mark.anyio

ODD: Final = "a\ud800b"

WAITING: Final = {"maintenance.run"}
"""Calls that do not end by themselves."""


class _NoValue(Exception):
    """A type that has no plain value, such as a callable."""


def _calls() -> dict[str, Any]:
    """Return the calls of a service, by name."""
    capabilities = {
        name: get_type_hints(prop.func)["return"]
        for name, prop in vars(Service).items()
        if isinstance(prop, cached_property)
    }
    return {
        f"{capability}.{name}": inspect.unwrap(call)
        for capability, kind in capabilities.items()
        for name, call in inspect.getmembers(kind, inspect.iscoroutinefunction)
        if not name.startswith("_") and name != "make" and f"{capability}.{name}" not in WAITING
    }


def _values(kind: Any) -> Iterator[Any]:
    """Yield a plain value of a type, and then values with odd text in one place each."""
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Annotated:
        yield from _values(parts[0])
    elif origin in (types.UnionType, Union):
        for part in sorted(parts, key=lambda part: part is type(None)):
            yield from _values(part)
    elif origin is Literal:
        yield from (parts[0], ODD)
    elif origin in (list, tuple, Sequence):
        for value in ("a", ODD) if parts[0] is Any else _values(parts[0]):
            yield (tuple if origin is tuple else list)([value])
    elif origin in (dict, Mapping):
        key, value = (next(_values(part)) for part in parts)
        yield from ({key: value}, {ODD: value}, *({key: odd} for odd in _values(parts[1])))
    elif kind in _PLAIN:
        yield from _PLAIN[kind]
    elif inspect.isclass(kind) and issubclass(kind, Enum):
        yield from kind
    elif inspect.isclass(kind) and issubclass(kind, Struct):
        yield from _structs(kind)
    else:
        raise _NoValue(kind)


_PLAIN: Final[dict[Any, tuple[Any, ...]]] = {
    str: ("a", ODD),
    Any: (None,),
    int: (1,),
    float: (1.0,),
    bool: (False,),
    bytes: (b"{}",),
    Raw: (Raw(b"{}"),),
    type(None): (None,),
}


def _structs(kind: Any) -> Iterator[Any]:
    hints = get_type_hints(kind, include_extras=True)
    plain = {field.name: next(_values(hints[field.name])) for field in structs.fields(kind) if field.required}
    yield kind(**plain)
    for field in structs.fields(kind):
        try:
            values = list(_values(hints[field.name]))
        except _NoValue:
            continue
        for value in values:
            try:
                yield kind(**plain | {field.name: value})
            except OjsterError:  # it refuses the value itself
                continue


def _attempts(call: Any) -> Iterator[dict[str, Any]]:
    """Yield arguments for a call, each with odd text in one place at most."""
    hints = get_type_hints(call, include_extras=True)
    parameters = list(inspect.signature(call).parameters.values())[1:]
    plain = {one.name: next(_values(hints[one.name])) for one in parameters if one.default is one.empty}
    for parameter in parameters:
        for value in _values(hints[parameter.name]):
            yield plain | {parameter.name: value}


@pytest.mark.parametrize("name", _calls())
async def test_a_call_refuses_text_that_cannot_be_stored(name: str) -> None:
    try:
        attempts = [one for one in _attempts(_calls()[name]) if "ud800" in repr(one)]
    except _NoValue as kind:
        pytest.skip(f"It takes a {kind}.")
    capability, call = name.split(".")
    bare = []
    async with server() as (_, bench):
        for arguments in attempts:
            try:
                await getattr(getattr(bench.service, capability), call)(**arguments)
            except OjsterError:
                continue
            except UnicodeEncodeError:
                bare.append(ascii(arguments))
    assert not bare
