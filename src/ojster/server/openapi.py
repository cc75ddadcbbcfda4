"""The OpenAPI 3.1 document of the API, generated from the routes and their types."""

from __future__ import annotations

import inspect
import re
from collections.abc import Container, Iterable
from typing import Any

import msgspec

from ojster.core.declared_options import descriptions_of, summary_of
from ojster.core.version import __version__
from ojster.core.wire import ErrorAnswer
from ojster.server.route import BASE, Route

_PARAMETER = re.compile(r"\{(\w+)\}")
_MEDIA = "application/openjobspec+json"
_REF = "#/components/schemas/{name}"


def document(routes: Iterable[Route]) -> dict[str, Any]:
    """Return the OpenAPI document of these routes."""
    routes = list(routes)
    types = [kind for route in routes for kind in (route.body, route.answer) if kind is not None]
    types.append(ErrorAnswer)
    _, components = msgspec.json.schema_components(types, ref_template=_REF)
    for struct in _structs_in(types):
        _describe(struct, components[struct.__name__])
    _spell_out(components)
    paths: dict[str, dict[str, Any]] = {}
    taken: set[str] = set()
    for route in routes:
        id = _operation_id(route, taken)
        taken.add(id)
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, id)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Ojster",
            "version": __version__,
            "description": "A durable job server that speaks Open Job Spec 1.0.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "security": [{"token": []}, {}],  # a server may do without
        "paths": paths,
        "components": {"schemas": components, "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
    }


def _structs_in(types: Iterable[Any]) -> set[type]:
    """Return the structs of which types consist."""
    structs: set[type] = set()
    waiting: list[Any] = list(msgspec.inspect.multi_type_info(types))
    while waiting:
        part = waiting.pop()
        if isinstance(part, msgspec.inspect.StructType):
            if part.cls in structs:
                continue
            structs.add(part.cls)
        if isinstance(part, tuple):
            waiting += part
        elif isinstance(part, msgspec.inspect.Type | msgspec.inspect.Field):
            waiting += msgspec.structs.astuple(part)
    return structs


def _describe(struct: type, schema: dict[str, Any]) -> None:
    """Describe a struct and its members in its schema as its docstring does."""
    if text := summary_of(struct):
        schema["description"] = _plain(text)
    texts = descriptions_of(struct)
    for field in msgspec.structs.fields(struct):
        if field.name in texts:
            schema["properties"][field.encode_name]["description"] = _plain(texts[field.name])


def _spell_out(part: Any) -> None:
    """Say in schemas what JSON Schema implies, because some generators of clients drop a type and its calls without it.

    They are the schema of the items of an array of anything, and the type of a value that is always true.
    """
    if isinstance(part, dict):
        if part.get("type") == "array" and "prefixItems" not in part:
            part.setdefault("items", {})
        if part.get("enum") == [True]:
            part["type"] = "boolean"
    for inner in part.values() if isinstance(part, dict) else part if isinstance(part, list) else ():
        _spell_out(inner)


def _plain(text: str) -> str:
    """Return a text with code as Markdown has it, and values as JSON has them."""
    return text.replace("``None``", "``null``").replace("``", "`")


def _operation_id(route: Route, taken: Container[str]) -> str:
    """Return the id of an operation, which no other has: its handler's name or, if others share that, its path."""
    name = route.handler.__name__
    if name not in taken:
        return name
    words = re.findall(r"[a-z0-9]+", route.path.removeprefix(BASE).lower())
    return "_".join([route.method.lower(), *words])


def _operation(route: Route, id: str) -> dict[str, Any]:
    text = inspect.cleandoc(route.handler.__doc__ or "")
    operation: dict[str, Any] = {
        "operationId": id,
        "tags": [route.tag],
        "summary": text.split(".")[0] + ".",
        "description": _plain(text),
        "responses": {
            **{
                str(status): {"description": "Success.", "content": _content(status, route)}
                for status in (route.status, *route.more)
            },
            "default": {"description": "Error.", "content": {_MEDIA: {"schema": _schema(ErrorAnswer)}}},
        },
    }
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in _PARAMETER.findall(route.path)
    ]
    parameters += [{"name": name, "in": "query", "schema": {"type": "string"}} for name in route.query]
    if parameters:
        operation["parameters"] = parameters
    if route.body is not None:
        operation["requestBody"] = {
            "required": not route.may_be_empty,
            "content": {_MEDIA: {"schema": _schema(route.body)}},
        }
    return operation


def _content(status: int, route: Route) -> dict[str, Any]:
    """Return the media type of the answers with a status, and their schema: a stream is text, an export a file."""
    if route.streams:
        return {"text/event-stream": {"schema": {"type": "string"}}}
    if route.exports:
        return {"application/json": {"schema": {}}, "text/csv": {"schema": {"type": "string"}}}
    return {_MEDIA: {"schema": _schema_at(status, route)}}


def _schema_at(status: int, route: Route) -> dict[str, Any]:
    """Return the schema of the answers with a status: with one of an error, they may also be errors."""
    answer = _schema(route.answer)
    return answer if status < 400 else {"anyOf": [answer, _schema(ErrorAnswer)]}


def _schema(kind: Any) -> dict[str, Any]:
    return {"type": "object"} if kind is None else {"$ref": _REF.format(name=kind.__name__)}
