"""JSON Schemas for the arguments of jobs, their versions, and changes between them.

The validator is jsonschema-rs, an extra: ``pip install ojster[schemas]``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from ojster.core.errors import InvalidRequest, Unsupported

MAX_REPORTED_VIOLATIONS: Final = 20
"""Maximum number of violations of a schema that are reported."""

_VERSION: Final = re.compile(r"(0|[1-9][0-9]{0,8})(?:\.(0|[1-9][0-9]{0,8}))?(?:\.(0|[1-9][0-9]{0,8}))?")

Version = tuple[int, int, int]
Check = Callable[[Any], list[str]]
"""Returns the violations in arguments, as messages."""


def parse_version(given: Any) -> Version:
    """Return a version such as ``2``, ``"2.1"`` or ``"2.1.0"`` as three numbers; missing numbers are 0.

    Raises
    ------
    InvalidRequest
        It is not a version.
    """
    match = _VERSION.fullmatch(str(given)) if isinstance(given, int | str) and not isinstance(given, bool) else None
    if match is None:
        raise InvalidRequest(f"{given!r:.40} is not a version such as 2, '2.1' or '2.1.0'.", field="version")
    major, minor, patch = (int(part or 0) for part in match.groups())
    return major, minor, patch


def compile_schema(schema: Any) -> Check:
    """Return the check for a schema: draft 2020-12, unless its ``$schema`` names another.

    Without ``$schema``, a schema that is invalid in draft 2020-12 is tried as draft 2019-09, in which ``items`` may be
    an array (later ``prefixItems``). Nothing is fetched from the network, and patterns are matched in linear time.

    Raises
    ------
    InvalidRequest
        It is not a JSON Schema.
    Unsupported
        The extra ``ojster[schemas]`` is not installed.
    """
    try:
        import jsonschema_rs
    except ImportError:
        raise Unsupported("This server cannot validate schemas: install ojster[schemas].") from None
    if not isinstance(schema, dict | bool):
        raise InvalidRequest("A schema must be a JSON object.", field="schema")
    named = isinstance(schema, dict) and "$schema" in schema
    makers: list[Any] = [jsonschema_rs.validator_for]
    if not named:
        makers = [jsonschema_rs.Draft202012Validator, jsonschema_rs.Draft201909Validator]
    problem = ""
    for make in makers:
        try:
            validator = make(schema, validate_formats=True, offline=True, pattern_options=jsonschema_rs.RegexOptions())
        except (ValueError, TypeError) as error:
            problem = problem or str(error).split("\n\n")[0]
        else:
            return lambda args: _violations(validator.iter_errors(args))
    raise InvalidRequest(f"'schema' is not a JSON Schema: {problem[:500]}", field="schema")


def _violations(errors: Iterator[Any]) -> list[str]:
    found = []
    for error in errors:
        path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in error.instance_path)
        found.append(f"args{path}: {error.message}"[:500])
        if len(found) == MAX_REPORTED_VIOLATIONS:
            break
    return found


def breaking_changes(old: Any, new: Any, where: str = "args") -> list[str]:
    """Return the changes that may make arguments invalid that are valid under the old schema, as messages.

    Types, required and forbidden members, bounds and lists of values are compared, at every depth.

    Spec: ojs-schema-registry 8.2
    """
    if not isinstance(old, Mapping) or not isinstance(new, Mapping):
        return []
    found: list[str] = []
    before, after = _types(old), _types(new)
    if after and (not before or before - after):
        found.append(f"The type of {where} was narrowed to {' or '.join(sorted(after))}.")
    known: Mapping[str, Any] = old.get("properties") or {}
    wanted: Mapping[str, Any] = new.get("properties") or {}
    added = set(new.get("required") or ()) - set(old.get("required") or ())
    found += [f"Required field {name!r} was added to {where}." for name in sorted(added)]
    found += [f"Field {name!r} was removed from {where}." for name in sorted(known.keys() - wanted.keys())]
    if new.get("additionalProperties") is False and old.get("additionalProperties", True) is not False:
        found.append(f"Additional fields of {where} are forbidden now.")
    for name, widens in _BOUNDS.items():
        limit, former = new.get(name), old.get(name)
        if limit is not None and (former is None or (limit < former if widens else limit > former)):
            found.append(f"{name} of {where} was narrowed to {limit}.")
    if "enum" in new and (gone := [value for value in old.get("enum", [None]) if value not in new["enum"]]):
        found.append(f"Values of {where} were removed: {', '.join(map(repr, gone))[:200]}.")
    if "pattern" in new and new["pattern"] != old.get("pattern"):
        found.append(f"The pattern of {where} was changed.")
    for name in sorted(known.keys() & wanted.keys()):
        found += breaking_changes(known[name], wanted[name], f"{where}.{name}")
    for place, (one, other) in enumerate(zip(_tuple(old), _tuple(new), strict=False)):
        found += breaking_changes(one, other, f"{where}[{place}]")
    if isinstance(old.get("items"), Mapping) and isinstance(new.get("items"), Mapping):
        found += breaking_changes(old["items"], new["items"], f"{where}[]")
    return found


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
    given = schema.get("type", [])
    named = {given} if isinstance(given, str) else set(given)
    return named | {"integer"} if "number" in named else named


def _tuple(schema: Mapping[str, Any]) -> list[Any]:
    found = schema.get("prefixItems", schema.get("items"))
    return found if isinstance(found, list) else []
