"""What ``unevaluatedProperties`` and nested ``$id`` cost is bounded like everything else in a schema."""

from __future__ import annotations

import time
from typing import Any

import pytest

from ojster.core.errors import InvalidRequest
from ojster.core.json_schema import compile_schema


def validation_time(schema: Any, value: Any) -> float:
    """Return the seconds to validate a value, or 0 if the schema or the value is refused."""
    started = time.process_time()
    try:
        compile_schema(schema)(value)
    except InvalidRequest:
        return 0.0
    return time.process_time() - started


@pytest.mark.parametrize("around", ["allOf", "anyOf", "oneOf"])
@pytest.mark.parametrize(
    ("keyword", "inner", "value"),
    [
        ("unevaluatedProperties", {"properties": {"a": True}}, {"a": 1}),
        ("unevaluatedItems", {"prefixItems": [True]}, [1]),
    ],
)
def test_nested_unevaluated_members_do_not_double_the_time_at_each_level(
    around: str, keyword: str, inner: Any, value: Any
) -> None:
    schema = inner
    for _ in range(18):  # less than 900 bytes; with 20 levels, this takes a quarter of a minute
        schema = {around: [schema], keyword: False}
    assert validation_time(schema, value) < 0.5


def test_a_nested_id_does_not_hide_what_references_lead_to() -> None:
    levels = 26
    inner: dict[str, Any] = {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(levels)}
    inner[f"d{levels}"] = {"type": "object"}
    outer: dict[str, Any] = dict.fromkeys(inner, True)
    outer["a"] = {"$id": "https://example.com/a", "$defs": inner, "$ref": "#/$defs/d0"}
    assert validation_time({"$defs": outer, "$ref": "#/$defs/a"}, {"a": 1}) < 0.5
