"""What a validation costs: schemas that would stop a server are refused, values that would are not validated."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ojster.core import json_schema
from ojster.core.errors import InvalidRequest
from ojster.core.json_schema import compile_schema
from ojster.core.schema_cost import MAX_COST, SchemaCost, TooComplex

Json = dict[str, Any]


def doubling(levels: int, keyword: str = "allOf") -> Json:
    """A schema of some hundred bytes with 2 ** levels parts."""
    parts = {f"a{n}": {keyword: [{"$ref": f"#/$defs/a{n + 1}"}] * 2} for n in range(levels)}
    return {"$defs": {**parts, f"a{levels}": {"type": "integer"}}, "$ref": "#/$defs/a0"}


def long_line(length: int) -> Json:
    parts = {f"a{n}": {"$ref": f"#/$defs/a{n + 1}"} for n in range(length)}
    return {"$defs": {**parts, f"a{length}": True}, "$ref": "#/$defs/a0"}


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    "bomb",
    [
        doubling(30),
        doubling(30, "anyOf"),
        {"items": doubling(20) | {"$defs": {}}, "$defs": doubling(20)["$defs"]},
        long_line(5_000),
        {"anyOf": [{"const": number} for number in range(15_000)]},
        {"pattern": "a?" * 10_000},
        {"patternProperties": {"a?" * 10_000: True}},
        {"$ref": "https://example.com/schema.json"},
        {"$ref": "#/$defs/nowhere"},
        {"$ref": "#nowhere"},
    ],
    ids=["allOf", "anyOf", "items", "line", "alternatives", "pattern", "names", "outside", "path", "anchor"],
)
def test_a_schema_that_is_too_complex_is_refused(bomb: Json) -> None:
    with pytest.raises(InvalidRequest, match="The schema is refused"):
        compile_schema(bomb)


TREE: Json = {"type": "object", "properties": {"children": {"type": "array", "items": {"$ref": "#"}}}}
FORKS: Json = {"anyOf": [{"type": "string"}, *[{"type": "array", "items": {"$ref": "#"}} for _ in range(2)]]}
DYNAMIC: Json = {"$dynamicAnchor": "n", "anyOf": [{"type": "array", "items": {"$dynamicRef": "#n"}}] * 2}


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        (FORKS, nested(40)),
        (DYNAMIC, nested(40)),
        ({"items": {"anyOf": [{"const": str(n)} for n in range(1_000)]}}, [1] * 2_000),
        ({"items": {"enum": [{"a": n} for n in range(1_000)]}}, [{"a": -1}] * 1_000),
        ({"items": {"pattern": "(a|b)*c" * 50}}, ["ab" * 5_000] * 200),
    ],
    ids=["forks", "dynamic", "alternatives", "enum", "pattern"],
)
def test_a_value_that_is_too_large_for_a_schema_is_not_validated(schema: Json, value: Any) -> None:
    assert compile_schema(schema)(value) == [json_schema._TOO_LARGE]


def test_many_violations_are_found_as_one() -> None:
    """To list 200,000 violations takes seconds, also if only the first are wanted."""
    assert compile_schema({"items": {"type": "integer"}})(["a"] * 40_000) == ['args[0]: "a" is not of type "integer"']
    assert len(compile_schema({"items": {"type": "integer"}})(["a"] * 100)) == 20


@pytest.mark.parametrize(
    ("schema", "value", "is_valid"),
    [
        (TREE, {"children": [{"children": []}, {"children": [{}]}]}, True),
        (TREE, {"children": [{"children": [{"children": 1}]}]}, False),
        (FORKS, nested(5), False),
        (FORKS, [["a"]], True),
        ({"$ref": "#"}, 1, True),
        ({"allOf": [{"$ref": "#"}], "type": "string"}, 1, False),
        ({"$defs": {"a/b~c": {"$anchor": "x", "type": "integer"}}, "$ref": "#/$defs/a~1b~0c"}, "no", False),
        ({"$defs": {"one": {"$anchor": "x", "type": "integer"}}, "$ref": "#x"}, 1, True),
        ({"type": "array", "items": {"type": "integer"}}, list(range(50_000)), True),
        ({"enum": list(range(10_000))}, 9_999, True),
        ({"propertyNames": {"pattern": "^[a-z]+$"}, "additionalProperties": {"type": "integer"}}, {"a": 1}, True),
        ({"items": [{"type": "integer"}], "additionalItems": False}, [1, 2], False),
    ],
)
def test_what_people_write_is_validated(schema: Json, value: Any, is_valid: bool) -> None:
    assert bool(compile_schema(schema)(value)) is not is_valid


values = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from(["", "a", "bb"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=12,
)
schemas = st.recursive(
    st.booleans()
    | st.sampled_from(
        [{"type": "integer"}, {"enum": [1, "a"]}, {"$ref": "#"}, {"$ref": "#/$defs/x"}, {"pattern": "a"}]
    ),
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map(lambda parts: {"anyOf": parts}),
        st.lists(inner, min_size=1, max_size=3).map(lambda parts: {"allOf": parts}),
        inner.map(lambda part: {"items": part}),
        inner.map(lambda part: {"not": part}),
        st.dictionaries(st.sampled_from("abc"), inner, max_size=3).map(lambda parts: {"properties": parts}),
    ),
    max_leaves=8,
)


@given(schema=schemas, definition=schemas, value=values)
def test_the_cost_of_every_schema_is_found(schema: Any, definition: Any, value: Any) -> None:
    whole = {"allOf": [schema], "$defs": {"x": definition}}
    cost = SchemaCost(whole)
    assert cost.parts >= 1
    assert cost.of(value) >= 1


def test_the_cost_grows_with_the_value_and_the_schema() -> None:
    numbers = SchemaCost({"items": {"type": "integer"}})
    assert numbers.of([1] * 1_000) > 9 * numbers.of([1] * 100)
    assert SchemaCost(FORKS).of(nested(10)) * 4 > SchemaCost(FORKS).of(nested(11)) > SchemaCost(FORKS).of(nested(10))
    assert SchemaCost(FORKS).of(nested(60)) > MAX_COST
    assert SchemaCost(TREE).of({"children": [{"children": []}] * 1_000}) < MAX_COST
    with pytest.raises(TooComplex):
        SchemaCost(doubling(40))
