"""The signatures of handlers as JSON Schemas, which forms for new jobs are made of."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from ojster.core.values import to_json
from ojster.handlers.arguments import HandlerTypes
from ojster.handlers.job_type import JobType
from ojster.jobs.signatures import MAX_SIGNATURE_BYTES, Signature

_REFERENCE: Final = "#/$defs/{name}"


def signature_schema(types: HandlerTypes) -> dict[str, Any] | None:
    """Return a JSON Schema of the array of arguments of a handler's jobs; ``None``: it would be too large.

    The named arguments are an object at the end of the array. Types that have no JSON Schema may be anything.
    """
    definitions: dict[str, Any] = {}
    items = [_described(parameter, type, definitions) for parameter, type in types.positional]
    fewest = sum(parameter.default is parameter.empty for parameter, _ in types.positional)
    if named := types.keyword_only:
        required = [parameter.name for parameter, _ in named if parameter.default is parameter.empty]
        members = {parameter.name: _described(parameter, type, definitions) for parameter, type in named}
        items.append({"title": "Named arguments", "type": "object", "properties": members, "required": required})
        fewest = len(items) if required else fewest
    schema: dict[str, Any] = {"type": "array", "prefixItems": items, "minItems": fewest}
    if not types.takes_more:
        schema["items"] = False
    if definitions:
        schema["$defs"] = definitions
    return schema if len(msgspec.json.encode(schema)) <= MAX_SIGNATURE_BYTES else None


def _described(parameter: inspect.Parameter, type: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a parameter, with its name and default; what it refers to is added to the definitions."""

    def of_other_class(kind: Any) -> dict[str, Any]:
        if not hasattr(kind, "__pydantic_validator__"):
            return {}
        own: dict[str, Any] = kind.model_json_schema(ref_template=_REFERENCE.replace("name", "model"))
        definitions.update(own.pop("$defs", {}))
        return own

    try:
        (schema,), components = msgspec.json.schema_components(
            [type], schema_hook=of_other_class, ref_template=_REFERENCE
        )
        definitions.update(components)
    except Exception:  # whatever classes of others raise: only forms need it
        schema = {}
    described = schema | {"title": parameter.name}
    if parameter.default is not parameter.empty:
        try:
            described["default"] = msgspec.json.decode(to_json(parameter.default))
        except (TypeError, ValueError, msgspec.MsgspecError):
            described.pop("default", None)
    return described


def signatures_of(handlers: Sequence[JobType[Any, Any]]) -> list[Signature]:
    """Return the signatures of handlers, without those that are too large."""
    schemas = [(declared, signature_schema(declared.types)) for declared in handlers]
    return [Signature(declared.type, schema, declared.is_flow) for declared, schema in schemas if schema is not None]
