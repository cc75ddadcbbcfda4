"""JSON Schemas for the arguments of jobs, their versions, and changes between them.

The validator is jsonschema-rs, an extra: ``pip install ojster[schemas]``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any, Final

from ojster.core.errors import InvalidRequest, Unsupported
from ojster.core.json_objects import canonical_json
from ojster.core.schema_cost import MAX_COST, SchemaCost, TooComplex, has_array_of_items

MAX_REPORTED_VIOLATIONS: Final = 20
"""Maximum number of violations of a schema that are reported."""

MAX_COST_OF_A_LIST: Final = 5_000
"""Maximum cost of a validation whose violations are all listed; beyond it, the first is reported."""

_TOO_LARGE: Final = "args: too large for this schema: the validation would take too long"

_VERSION: Final = re.compile(r"(0|[1-9][0-9]{0,8})(?:\.(0|[1-9][0-9]{0,8}))?(?:\.(0|[1-9][0-9]{0,8}))?")

Version = tuple[int, int, int]
Check = Callable[[Any], list[str]]
"""Returns the violations in arguments, as messages."""


def parse_version(written: Any) -> Version:
    """Return a version such as ``2``, ``"2.1"`` or ``"2.1.0"`` as three numbers; missing numbers are 0.

    Raises
    ------
    InvalidRequest
        It is not a version.
    """
    match = (
        _VERSION.fullmatch(str(written)) if isinstance(written, int | str) and not isinstance(written, bool) else None
    )
    if match is None:
        raise InvalidRequest(f"{written!r:.40} is not a version such as 2, '2.1' or '2.1.0'.", field="version")
    major, minor, patch = (int(part or 0) for part in match.groups())
    return major, minor, patch


def compile_schema(schema: Any) -> Check:
    """Return the check for a schema: draft 2020-12, unless its ``$schema`` names another.

    Without ``$schema``, a schema whose ``items`` is an array (later ``prefixItems``) is of draft 2019-09, any other of
    draft 2020-12. Nothing is fetched from the network, and patterns are matched in linear time.

    Raises
    ------
    InvalidRequest
        It is not a JSON Schema, or too complex (``ojster.core.schema_cost``).
    Unsupported
        The extra ``ojster[schemas]`` is not installed.
    """
    try:
        import jsonschema_rs
    except ImportError:
        raise Unsupported("This server cannot validate schemas: install ojster[schemas].") from None
    if not isinstance(schema, dict | bool):
        raise InvalidRequest("A schema must be a JSON object.", field="schema")
    try:
        cost = SchemaCost(schema)
    except TooComplex as error:
        raise InvalidRequest(f"The schema is refused: {error}.", field="schema") from None
    named = isinstance(schema, dict) and "$schema" in schema
    makers: list[Any] = [jsonschema_rs.validator_for]
    if not named:
        makers = [jsonschema_rs.Draft202012Validator]
        if has_array_of_items(schema):
            makers.append(jsonschema_rs.Draft201909Validator)
    problem = ""
    for make in makers:
        try:
            validator = make(schema, validate_formats=True, offline=True, pattern_options=jsonschema_rs.RegexOptions())
        except (ValueError, TypeError, OverflowError) as error:
            problem = problem or str(error).split("\n\n")[0]
        else:
            return partial(_violations, validator, cost)
    raise InvalidRequest(f"'schema' is not a JSON Schema: {problem[:500]}", field="schema")


def _violations(validator: Any, cost: SchemaCost, args: Any) -> list[str]:
    price = cost.of(args)
    if price > MAX_COST:
        return [_TOO_LARGE]
    if validator.is_valid(args):  # a hundred times faster than to list errors
        return []
    if price > MAX_COST_OF_A_LIST:
        return [_shown(_first_error(validator, args))]
    return [_shown(error) for error in islice(validator.iter_errors(args), MAX_REPORTED_VIOLATIONS)]


def _first_error(validator: Any, args: Any) -> Any:
    """Return the first violation in arguments that are not valid."""
    try:
        validator.validate(args)
    except ValueError as error:
        return error
    raise AssertionError("valid arguments have no violation")


def _shown(error: Any) -> str:
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in error.instance_path)
    return f"args{path}: {error.message}"[:500]


def breaking_changes(old: Any, new: Any, where: str = "args") -> list[str]:
    """Return the changes that may make arguments invalid that are valid under the old schema, as messages.

    Types, required and forbidden members, bounds and lists of values are compared, at every depth.

    Spec: ojs-schema-registry 8.2
    """
    if not isinstance(old, Mapping) or not isinstance(new, Mapping):
        return []
    changes: list[str] = []
    before, after = _types(old), _types(new)
    if after and (not before or before - after):
        changes.append(f"The type of {where} was narrowed to {' or '.join(sorted(after))}.")
    known: Mapping[str, Any] = old.get("properties") or {}
    wanted: Mapping[str, Any] = new.get("properties") or {}
    added = set(new.get("required") or ()) - set(old.get("required") or ())
    changes += [f"Required field {name!r} was added to {where}." for name in sorted(added)]
    changes += [f"Field {name!r} was removed from {where}." for name in sorted(known.keys() - wanted.keys())]
    if new.get("additionalProperties") is False and old.get("additionalProperties", True) is not False:
        changes.append(f"Additional fields of {where} are forbidden now.")
    for name, widens in _BOUNDS.items():
        limit, previous = new.get(name), old.get(name)
        if limit is not None and (previous is None or (limit < previous if widens else limit > previous)):
            changes.append(f"{name} of {where} was narrowed to {limit}.")
    if "enum" in new and "enum" not in old:
        changes.append(f"The values of {where} were limited to {', '.join(map(repr, new['enum']))[:200]}.")
    elif "enum" in new and (gone := _removed(old["enum"], new["enum"])):
        changes.append(f"Values of {where} were removed: {', '.join(map(repr, gone))[:200]}.")
    if "pattern" in new and new["pattern"] != old.get("pattern"):
        changes.append(f"The pattern of {where} was changed.")
    for name in sorted(known.keys() & wanted.keys()):
        changes += breaking_changes(known[name], wanted[name], f"{where}.{name}")
    for place, (old_item, other) in enumerate(zip(_tuple(old), _tuple(new), strict=False)):
        changes += breaking_changes(old_item, other, f"{where}[{place}]")
    if isinstance(old.get("items"), Mapping) and isinstance(new.get("items"), Mapping):
        changes += breaking_changes(old["items"], new["items"], f"{where}[]")
    return changes


def _removed(old: Sequence[Any], new: Sequence[Any]) -> list[Any]:
    """Return the values of a list that another lacks."""
    kept = set(map(canonical_json, new))
    return [value for value in old if canonical_json(value) not in kept]


_BOUNDS: Final = {
    "maxLength": True,
    "maximum": True,
    "exclusiveMaximum": True,
    "maxItems": True,
    "maxProperties": True,
    "minLength": False,
    "minimum": False,
    "exclusiveMinimum": False,
    "minItems": False,
    "minProperties": False,
}
"""The bounds in a schema, and whether a greater bound allows more."""


def _types(schema: Mapping[str, Any]) -> set[str]:
    types = schema.get("type", [])
    named = {types} if isinstance(types, str) else set(types)
    return named | {"integer"} if "number" in named else named


def _tuple(schema: Mapping[str, Any]) -> list[Any]:
    items = schema.get("prefixItems", schema.get("items"))
    return items if isinstance(items, list) else []
