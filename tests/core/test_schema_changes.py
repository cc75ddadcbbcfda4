"""Which changes of a JSON Schema break jobs that are already enqueued.

Spec: ojs-schema-registry 8.2
"""

from __future__ import annotations

from typing import Any

import pytest

from ojster.core.json_schema import breaking_changes

WIDER_IF_GREATER = ["maxLength", "maximum", "exclusiveMaximum", "maxItems", "maxProperties"]
NARROWER_IF_GREATER = ["minLength", "minimum", "exclusiveMinimum", "minItems", "minProperties"]


@pytest.mark.parametrize("name", [*WIDER_IF_GREATER, *NARROWER_IF_GREATER])
def test_a_bound_that_allows_less_breaks_and_one_that_allows_more_does_not(name: str) -> None:
    greater_is_wider = name in WIDER_IF_GREATER
    less, more = ({name: 4}, {name: 5}) if greater_is_wider else ({name: 5}, {name: 4})
    assert breaking_changes(less, more) == []
    assert breaking_changes(more, less) == [f"{name} of args was narrowed to {less[name]}."]
    assert breaking_changes(less, less) == []
    assert breaking_changes({}, less) == [f"{name} of args was narrowed to {less[name]}."]
    assert breaking_changes(less, {}) == []


def test_a_pattern_that_changes_breaks_and_one_that_is_dropped_does_not() -> None:
    old, new = {"pattern": "^a"}, {"pattern": "^b"}
    assert breaking_changes(old, new) == ["The pattern of args was changed."]
    assert breaking_changes(old, old) == []
    assert breaking_changes(old, {}) == []
    assert breaking_changes({}, new) == ["The pattern of args was changed."]


def test_values_that_are_removed_break() -> None:
    old, new = {"enum": ["a", "b", "c"]}, {"enum": ["a"]}
    assert breaking_changes(old, new) == ["Values of args were removed: 'b', 'c'."]
    assert breaking_changes(new, old) == []
    many = [f"value-{number:03}" for number in range(100)]
    (message,) = breaking_changes({"enum": many}, {"enum": []})
    assert len(message) == len("Values of args were removed: .") + 200


def test_changes_are_found_at_every_depth() -> None:
    def at(schema: dict[str, Any]) -> dict[str, Any]:
        return {"prefixItems": [{"properties": {"to": {"items": schema}}}]}

    assert breaking_changes(at({"maximum": 5}), at({"maximum": 4})) == ["maximum of args[0].to[] was narrowed to 4."]


@pytest.mark.parametrize(("old", "new"), [(True, {"maximum": 1}), ({"maximum": 1}, True), (True, False)])
def test_schemas_that_are_booleans_are_not_compared(old: Any, new: Any) -> None:
    assert breaking_changes(old, new) == []


CHANGES: list[tuple[Any, Any, list[str]]] = [
    ({}, {}, []),
    ({"type": "string"}, {}, []),
    ({}, {"type": "string"}, ["The type of args was narrowed to string."]),
    ({"type": "string"}, {"type": ["string", "null"]}, []),
    ({"type": ["string", "null"]}, {"type": "string"}, ["The type of args was narrowed to string."]),
    ({"type": "string"}, {"type": ["null", "array"]}, ["The type of args was narrowed to array or null."]),
    ({"type": "integer"}, {"type": "number"}, []),
    ({"type": "number"}, {"type": "integer"}, ["The type of args was narrowed to integer."]),
    ({"required": ["a"]}, {"required": ["a"]}, []),
    ({"required": ["a", "b"]}, {"required": ["a"]}, []),
    (
        {"required": ["a"]},
        {"required": ["c", "a", "b"]},
        ["Required field 'b' was added to args.", "Required field 'c' was added to args."],
    ),
    ({"required": None}, {"required": ["a"]}, ["Required field 'a' was added to args."]),
    ({"properties": {"a": {}}}, {"properties": {"a": {}, "b": {}}}, []),
    (
        {"properties": {"b": {}, "a": {}, "c": {}}},
        {"properties": {"c": {}}},
        ["Field 'a' was removed from args.", "Field 'b' was removed from args."],
    ),
    ({"properties": {"a": {}}}, {"properties": None}, ["Field 'a' was removed from args."]),
    ({}, {"additionalProperties": False}, ["Additional fields of args are forbidden now."]),
    ({"additionalProperties": {}}, {"additionalProperties": False}, ["Additional fields of args are forbidden now."]),
    ({"additionalProperties": False}, {"additionalProperties": False}, []),
    ({"additionalProperties": False}, {}, []),
    ({"additionalProperties": False}, {"additionalProperties": True}, []),
    ({"maximum": 0}, {"maximum": 0}, []),
    ({"maximum": 1}, {"maximum": 0}, ["maximum of args was narrowed to 0."]),
    ({"enum": ["a"]}, {"enum": ["b", "a"]}, []),
    ({}, {"enum": ["a"]}, ["The values of args were limited to 'a'."]),
    ({}, {"enum": [None, 1]}, ["The values of args were limited to None, 1."]),
    ({"enum": [True, 2]}, {"enum": [1, 2]}, ["Values of args were removed: True."]),
    ({"enum": [1]}, {"enum": [1.0]}, []),
    ({"enum": ["a"]}, {}, []),
    (
        {"properties": {"a": {"maximum": 2}, "b": {"maximum": 2}}},
        {"properties": {"a": {"maximum": 1}, "b": {"maximum": 1}}},
        ["maximum of args.a was narrowed to 1.", "maximum of args.b was narrowed to 1."],
    ),
    ({"items": {"maximum": 2}}, {"items": {"maximum": 1}}, ["maximum of args[] was narrowed to 1."]),
    ({"items": {"maximum": 2}}, {"items": True}, []),
    ({"items": [{"maximum": 2}]}, {"prefixItems": [{"maximum": 1}]}, ["maximum of args[0] was narrowed to 1."]),
    ({"prefixItems": [{}, {"maximum": 2}]}, {"prefixItems": [{}, {"maximum": 1}, {}]}, [
        "maximum of args[1] was narrowed to 1."
    ]),
    ({"prefixItems": [{"maximum": 2}]}, {"prefixItems": []}, []),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "expected"), CHANGES, ids=[str(n) for n in range(len(CHANGES))])
def test_a_change_breaks_if_it_may_make_a_job_invalid(old: Any, new: Any, expected: list[str]) -> None:
    assert breaking_changes(old, new) == expected
