"""What a worker reads of a job at once is what it reads in two steps: JSON first, and then what the annotations say."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any, Literal

import msgspec
import pytest

from ojster.handlers.arguments import HandlerTypes, InvalidArguments


@dataclass
class Point:
    x: int


KINDS = (
    *(Any, None, str, int, float, bool, list[int], dict[str, int], dict[int, str], dict[str, list[float]]),
    *(int | None, int | str, list[int | None], Point, Point | None, Decimal, datetime, bytes, object),
    *(msgspec.Raw, set[int], tuple[int, ...], Literal["a", 1]),
)
VALUES = (
    *("null", "true", "1", "1.0", "1.5", "-0", "1e3", "1.10", "1e400", "123456789012345678901234567890"),
    *('"a"', '"1.10"', '"aGk="', '"2026-01-01T00:00:00Z"', "[]", "[1,2]", "[1,null]", "{}", '{"1":1}', '{"1":"a"}'),
    *('{"x":1}', '{"x":1,"y":[1e400]}', '{"a":1,"a":2}', '{"a":[1.5]}'),
)


def types_of(handler: Callable[..., Any], kind: Any) -> HandlerTypes:
    handler.__annotations__ = dict.fromkeys(inspect.signature(handler).parameters, kind)
    return HandlerTypes("t", handler, inspect.signature(handler), 0)


def one(a: Any) -> None: ...


def more(a: Any, b: Any = "default", c: Any = None) -> None: ...


def named(a: Any, *, b: Any = 1) -> None: ...


def variable(*a: Any) -> None: ...


def in_two_steps(types: HandlerTypes, envelope: bytes) -> object:
    try:
        return tuple(types.convert(msgspec.json.decode(envelope)["args"]).positional)
    except (InvalidArguments, msgspec.ValidationError):
        return None


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_what_is_read_at_once_is_what_two_steps_read(kind: Any) -> None:
    for handler, count in ((one, 1), (more, 1), (more, 2), (more, 3)):
        types = types_of(handler, kind)
        for value, last in itertools.product(VALUES, VALUES[:8]):
            args = ",".join([value, last, last][:count])
            envelope = f'{{"type":"t","args":[{args}],"meta":{{}}}}'.encode()
            read = types.read(envelope)
            assert read is None or repr(read) == repr(in_two_steps(types, envelope)), args


def test_simple_types_are_read_at_once_and_others_are_left() -> None:
    envelope = b'{"args":[1,2]}'
    assert types_of(more, int).read(envelope) == (1, 2)
    assert types_of(more, Any).read(envelope) == (1, 2)
    assert types_of(more, int | None).read(envelope) == (1, 2)
    assert [types_of(handler, int).read(envelope) for handler in (one, named, variable)] == [None, None, None]
    assert [types_of(more, kind).read(envelope) for kind in (Decimal, Point, str, msgspec.Raw)] == [None] * 4
    assert types_of(more, int).read(b'{"args":[1,2,3,4]}') is None
    assert types_of(more, int).read(b'{"args":[]}') is None
