"""What a validation costs: schemas that would stop a server are refused, values that would are not validated."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ojster.core import json_schema
from ojster.core.errors import InvalidRequest
from ojster.core.json_schema import compile_schema
from ojster.core.schema_cost import MAX_COST, MAX_PARTS, SchemaCost, TooComplex

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


PARTS: list[tuple[Any, int]] = [
    (True, 1),
    ({}, 1),
    ({"type": "integer"}, 2),
    ({"minimum": 3, "title": "long" * 100}, 3),
    ({"pattern": "abc"}, 4),
    ({"pattern": 5}, 2),
    ({"enum": [1, 2]}, 4),
    ({"const": {"a": 1}}, 4),
    ({"required": ["a", "b"]}, 4),
    ({"dependentRequired": {"a": ["b"]}}, 5),
    ({"properties": {"a": {}, "b": {"type": "integer"}}}, 4),
    ({"properties": {}}, 2),
    ({"properties": 5}, 2),
    ({"patternProperties": {"abc": {}}}, 5),
    ({"patternProperties": 5}, 2),
    ({"dependentSchemas": {"a": {}}}, 2),
    *(({name: {"type": "integer"}}, 3) for name in ("not", "if", "then", "else")),
    *(({name: {"type": "integer"}}, 3) for name in ("items", "additionalItems", "contains", "unevaluatedItems")),
    *(({name: {"type": "integer"}}, 3) for name in ("additionalProperties", "unevaluatedProperties")),
    *(({name: {"type": "integer"}}, 3) for name in ("propertyNames", "contentSchema")),
    *(({name: [{}, {"type": "integer"}]}, 4) for name in ("allOf", "anyOf", "oneOf", "prefixItems", "items")),
    *(({name: {"x": {"type": "integer"}}}, 1) for name in ("$defs", "definitions")),
    ({"$defs": {"x": {"type": "integer"}}, "$ref": "#/$defs/x"}, 3),
    ({"$defs": {"x": {"type": "integer"}}, "allOf": [{"$ref": "#/$defs/x"}, {"$ref": "#/$defs/x"}]}, 7),
    ({"$ref": "#"}, 2),
    ({"$dynamicRef": "#"}, 2),
    ({"$recursiveRef": "#"}, 2),
]


@pytest.mark.parametrize(("schema", "parts"), PARTS, ids=[str(n) for n in range(len(PARTS))])
def test_the_parts_of_a_schema_are_counted(schema: Any, parts: int) -> None:
    assert SchemaCost(schema).parts == parts


VALUES: list[tuple[Any, int]] = [
    (1, 1),
    (None, 1),
    ([], 1),
    ([1, [2]], 4),
    ({}, 1),
    ({"a": 1, "b": [2]}, 6),
    ("x" * 999, 1),
    ("x" * 1_000, 2),
    (["x" * 2_000], 4),
]


@pytest.mark.parametrize(("value", "parts"), VALUES, ids=[str(n) for n in range(len(VALUES))])
def test_without_recursion_each_part_of_a_schema_meets_each_part_of_a_value(value: Any, parts: int) -> None:
    assert SchemaCost({"type": "integer", "minimum": 3}).of(value) == 3 * parts


def test_a_schema_has_at_most_20000_parts() -> None:
    assert SchemaCost({"pattern": "a" * 19_999}).parts == MAX_PARTS
    for schema in ({"pattern": "a" * 20_000}, {"items": {"pattern": "a" * 19_999}}):
        with pytest.raises(TooComplex, match="with its references replaced, it has more than 20000 parts"):
            SchemaCost(schema)


def test_a_schema_that_is_nested_too_deeply_is_refused() -> None:
    deep: Any = {}
    for _ in range(5_000):
        deep = {"not": deep}
    with pytest.raises(TooComplex, match="its parts are nested too deeply"):
        SchemaCost(deep)


RECURSIVE: list[tuple[Json, Any, int]] = [
    (TREE, 5, 3),
    (TREE, {}, 3),
    (TREE, {"other": 1}, 3),
    (TREE, {"children": []}, 6),
    (TREE, {"children": [{}]}, 11),
    (TREE, {"children": [{}, {}]}, 16),
    ({"$ref": "#"}, 1, 3),
    ({"allOf": [{"$ref": "#"}], "pattern": "ab"}, "x", 7),
    ({"allOf": [{"$ref": "#"}], "pattern": "ab"}, "x" * 1_000, 9),
    ({"additionalProperties": {"$ref": "#"}}, {"a": 1, "b": [2]}, 10),
    ({"additionalProperties": {"$ref": "#"}}, [1], 2),
    ({"patternProperties": {"a": {"$ref": "#"}}}, {"a": 1}, 6),
    ({"propertyNames": {"$ref": "#"}}, {"a": 1}, 6),
    ({"propertyNames": {"$ref": "#"}}, [1], 2),
    ({"prefixItems": [{"$ref": "#"}, True]}, [[], 1], 12),
    ({"prefixItems": [{"$ref": "#"}]}, {}, 2),
    ({"contains": {"$ref": "#"}, "$defs": {"x": {"enum": [1]}}}, [1], 6),
    ({"not": {"$ref": "#"}, "dependentSchemas": {"a": True}}, 1, 7),
]


@pytest.mark.parametrize(("schema", "value", "cost"), RECURSIVE, ids=[str(n) for n in range(len(RECURSIVE))])
def test_the_comparisons_with_a_recursive_schema_are_counted(schema: Json, value: Any, cost: int) -> None:
    assert SchemaCost(schema).of(value) == cost


def test_too_many_pairs_of_parts_cost_infinitely_much() -> None:
    def tree(leaves: int) -> Json:
        return {"children": [{} for _ in range(leaves)]}

    assert SchemaCost(TREE).of(tree(9_999)) == 6 + 5 * 9_999
    assert SchemaCost(TREE).of(tree(10_000)) == math.inf
    assert SchemaCost(TREE).of(nested(3_000)) < math.inf
    deep: Any = {}
    for _ in range(3_000):
        deep = {"children": [deep]}
    assert SchemaCost(TREE).of(deep) == math.inf


RESOLVED: list[tuple[str, str]] = [
    ("#", "root"),
    ("#/$defs/a", "a"),
    ("#/$defs/b~1c", "slash"),
    ("#/$defs/b~0c", "tilde"),
    ("#/$defs/b%20c", "space"),
    ("#/$defs/~01", "tilde one"),
    ("#/allOf/1", "second"),
    ("#/", "empty"),
    ("#x", "anchor"),
    ("#y", "dynamic anchor"),
]

WHOLE: Json = {
    "title": "root",
    "": {"title": "empty"},
    "$defs": {
        "a": {"title": "a", "$anchor": "x2"},
        "b/c": {"title": "slash"},
        "b~c": {"title": "tilde"},
        "b c": {"title": "space"},
        "~1": {"title": "tilde one"},
        "one": {"title": "anchor", "$anchor": "x"},
        "two": [{"title": "dynamic anchor", "$dynamicAnchor": "y"}],
    },
    "allOf": [{"title": "first"}, {"title": "second"}],
}


@pytest.mark.parametrize(("reference", "title"), RESOLVED)
def test_a_reference_leads_to_a_part_of_its_schema(reference: str, title: str) -> None:
    assert SchemaCost(WHOLE).resolve(reference)["title"] == title


@pytest.mark.parametrize(
    "reference",
    ["#/allOf/2", "#/allOf/-1", "#/allOf/\u0661", "#/allOf/x", "#/title/0", "#z", "#/z", "#/allOf/" + 5_000 * "9"],
)
def test_a_reference_that_leads_nowhere_is_refused(reference: str) -> None:
    with pytest.raises(TooComplex) as refused:
        SchemaCost(WHOLE).resolve(reference)
    assert str(refused.value) == f"there is nothing at {reference!r:.80}"


@pytest.mark.parametrize("reference", ["https://example.com/a", "other.json#/a", "", 5, None])
def test_a_reference_that_leads_out_of_its_schema_is_refused(reference: Any) -> None:
    with pytest.raises(TooComplex, match="leads out of it; use '#/"):
        SchemaCost(WHOLE).resolve(reference)


def test_violations_are_listed_if_that_is_cheap() -> None:
    """Five thousand comparisons are; beyond them, one violation is reported."""
    check = compile_schema({"items": {"type": "integer"}})
    assert SchemaCost({"items": {"type": "integer"}}).of(["a"] * 1_665) == 4_998
    assert len(check(["a"] * 1_665)) == 20
    assert len(check(["a"] * 1_666)) == 1
    assert check(["a", 1, "b"]) == ['args[0]: "a" is not of type "integer"', 'args[2]: "b" is not of type "integer"']
    deep = compile_schema({"properties": {"to": {"items": {"type": "integer"}}}})
    assert deep({"to": [1, "b"]}) == ['args.to[1]: "b" is not of type "integer"']
