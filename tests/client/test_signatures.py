"""The signature of a handler is a JSON Schema of the arguments of its jobs, which its workers announce."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from enum import Enum
from typing import Annotated, Any, Literal

import msgspec
import pytest
from pydantic import BaseModel

from ojster import App
from ojster.core.json_schema import compile_schema
from ojster.handlers.arguments import HandlerTypes
from ojster.handlers.signature_schema import signature_schema
from ojster.jobs.signatures import MAX_SIGNATURE_BYTES


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Address:
    street: str
    city: str = "Vienna"


class Item(BaseModel):
    sku: str


class Order(BaseModel):
    items: list[Item]


class Unknown:
    """A class that has no JSON Schema."""


def everything(  # type: ignore[no-untyped-def]  # noqa: PLR0913  (a parameter of each kind, one without annotation)
    to: str,
    day: date,
    address: Address,
    order: Order,
    unknown: Unknown,
    plain,
    times: Annotated[int, msgspec.Meta(ge=1)] = 3,
    colour: Colour = Colour.RED,
    note: str | None = None,
    *,
    mode: Literal["a", "b"] = "a",
) -> None: ...


def types_of(function: Any) -> HandlerTypes:
    types: HandlerTypes = App("sqlite:///:memory:").job("a.b")(function).types
    return types


def schema_of(function: Any) -> dict[str, Any]:
    schema = signature_schema(types_of(function))
    assert schema is not None
    return schema


def test_arguments_have_the_names_types_and_defaults_of_the_parameters() -> None:
    schema = schema_of(everything)
    items = schema["prefixItems"]
    names = ["to", "day", "address", "order", "unknown", "plain", "times", "colour", "note"]
    assert [item["title"] for item in items] == [*names, "Named arguments"]
    assert items[0] == {"type": "string", "title": "to"}
    assert items[6] == {"type": "integer", "minimum": 1, "title": "times", "default": 3}
    assert (items[7]["default"], items[8]["default"], items[5]) == ("red", None, {"title": "plain"})
    assert items[9]["properties"] == {"mode": {"enum": ["a", "b"], "title": "mode", "default": "a"}}
    assert (schema["minItems"], schema["items"], sorted(schema["$defs"])) == (6, False, ["Address", "Colour", "Item"])


ARGS: list[Any] = ["ada", "2026-01-31", {"street": "Ring"}, {"items": [{"sku": "x"}]}, None, 1]


@pytest.mark.parametrize(
    ("args", "is_right"),
    [
        (ARGS, True),
        ([*ARGS, 3, "blue", None, {"mode": "b"}], True),
        (ARGS[:5], False),
        ([1, *ARGS[1:]], False),
        ([*ARGS[:2], {"city": "Graz"}, *ARGS[3:]], False),
        ([*ARGS[:3], {"items": [{}]}, *ARGS[4:]], False),
        ([*ARGS, 0], False),
        ([*ARGS, 3, "green"], False),
        ([*ARGS, 3, "red", None, {"mode": "c"}], False),
        ([*ARGS, 3, "red", None, {}, "more"], False),
    ],
)
def test_the_schema_accepts_what_the_handler_accepts(args: list[Any], is_right: bool) -> None:
    assert (not compile_schema(schema_of(everything))(args)) is is_right


def test_named_arguments_that_are_required_need_all_positional_ones() -> None:
    def named(a: int, b: int = 1, *, c: int) -> None: ...

    schema = schema_of(named)
    assert (schema["minItems"], schema["prefixItems"][2]["required"]) == (3, ["c"])


def test_a_handler_that_takes_more_arguments_has_no_end() -> None:
    def more(a: int, *others: int) -> None: ...

    assert "items" not in schema_of(more)


def test_a_default_that_is_no_json_is_left_out() -> None:
    def odd(a: Any = Unknown) -> None: ...

    assert schema_of(odd)["prefixItems"] == [{"title": "a"}]


def test_a_schema_that_is_too_large_is_not_announced() -> None:
    def large(a: str = "x" * MAX_SIGNATURE_BYTES) -> None: ...

    assert signature_schema(types_of(large)) is None
