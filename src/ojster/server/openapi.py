"""An OpenAPI 3.1 document and an HTML page of the API, generated from the routes and their types."""

from __future__ import annotations

import html
import inspect
import re
from collections.abc import Iterable
from typing import Any

import msgspec

from ojster.core.wire import ErrorAnswer
from ojster.server.route import Route
from ojster.version import __version__

_PARAMETER = re.compile(r"\{(\w+)\}")
_MEDIA = "application/openjobspec+json"
_REF = "#/components/schemas/{name}"


def document(routes: Iterable[Route]) -> dict[str, Any]:
    """Return the OpenAPI document of these routes."""
    routes = list(routes)
    types = [kind for route in routes for kind in (route.body, route.answer) if kind is not None]
    types.append(ErrorAnswer)
    _, components = msgspec.json.schema_components(types, ref_template=_REF)
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Ojster",
            "version": __version__,
            "description": "A durable job server that speaks Open Job Spec 1.0.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {"schemas": components},
    }


def _operation(route: Route) -> dict[str, Any]:
    text = inspect.cleandoc(route.handler.__doc__ or "")
    operation: dict[str, Any] = {
        "operationId": route.handler.__name__,
        "tags": [route.tag],
        "summary": text.split(".")[0] + ".",
        "description": text.replace("``", "`"),
        "responses": {
            str(route.status): {"description": "Success.", "content": {_MEDIA: {"schema": _schema(route.answer)}}},
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


def _schema(kind: Any) -> dict[str, Any]:
    return {"type": "object"} if kind is None else {"$ref": _REF.format(name=kind.__name__)}


def page(described: dict[str, Any]) -> bytes:
    """Return the document as an HTML page, without scripts or external resources."""
    by_tag: dict[str, list[str]] = {}
    for path, methods in described["paths"].items():
        for method, operation in methods.items():
            by_tag.setdefault(operation["tags"][0], []).append(_entry(path, method, operation))
    parts = [f"<h2>{html.escape(tag)}</h2>{''.join(entries)}" for tag, entries in by_tag.items()]
    types = [
        f"<h3 id='{html.escape(name)}'>{html.escape(name)}</h3><p>{html.escape(kind.get('description', ''))}</p>"
        + _members(kind)
        for name, kind in sorted(described["components"]["schemas"].items())
    ]
    return (
        "<!doctype html><html lang='en'><meta charset='utf-8'><meta name='viewport' content='width=device-width'>"
        f"<title>Ojster API</title><style>{_STYLE}</style><main><h1>Ojster API</h1>"
        f"<p>{html.escape(described['info']['description'])} Version {html.escape(described['info']['version'])}. "
        "For tools: <a href='/openapi.json'>openapi.json</a>.</p>"
        f"{''.join(parts)}<h2>Types</h2>{''.join(types)}</main></html>"
    ).encode()


def _entry(path: str, method: str, operation: dict[str, Any]) -> str:
    notes = []
    if "requestBody" in operation:
        notes.append("body " + _link(operation["requestBody"]["content"][_MEDIA]["schema"]))
    status, answer = next(iter(operation["responses"].items()))
    shown = _link(answer["content"][_MEDIA]["schema"])
    notes.append(f"returns {status}" + (f" with {shown}" if shown else ""))
    query = [parameter["name"] for parameter in operation.get("parameters", []) if parameter["in"] == "query"]
    if query:
        notes.append("parameters " + ", ".join(f"<code>{html.escape(name)}</code>" for name in query))
    return (
        f"<section><h3><b class='{method}'>{method.upper()}</b> <code>{html.escape(path)}</code></h3>"
        f"<p>{html.escape(operation['description'])}</p><p class='notes'>{'; '.join(notes)}</p></section>"
    )


def _link(schema: dict[str, Any]) -> str:
    name = html.escape(schema.get("$ref", "").rpartition("/")[2])
    return f"<a href='#{name}'>{name}</a>" if name else ""


def _members(kind: dict[str, Any]) -> str:
    required = set(kind.get("required", ()))
    rows = "".join(
        f"<tr><td><code>{html.escape(name)}</code></td><td>{_type(member)}</td>"
        f"<td>{'required' if name in required else ''}</td></tr>"
        for name, member in kind.get("properties", {}).items()
    )
    return f"<table>{rows}</table>"


def _type(member: dict[str, Any]) -> str:
    if "$ref" in member:
        return _link(member)
    if "anyOf" in member:
        return " or ".join(_type(choice) for choice in member["anyOf"])
    if "enum" in member:
        return html.escape(" | ".join(map(str, member["enum"])))
    if member.get("type") == "array":
        return "array of " + (_type(member.get("items", {})) or "anything")
    return html.escape(str(member.get("type", "anything")))


_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #1c2430; background: #fff; margin: 0 }
main { max-width: 52rem; margin: 2rem auto; padding: 0 1rem }
h2 { margin-top: 2.5rem; border-bottom: 1px solid #d8dee6 }
h3 { font-size: 1rem; margin: 1.2rem 0 .2rem }
p { margin: .2rem 0 }
code { font-size: .95em }
b { display: inline-block; min-width: 4.2rem }
td { padding: .1rem 1rem .1rem 0; vertical-align: top }
.notes { color: #5a6675; font-size: .9rem }
.get { color: #0b6bcb } .post, .put { color: #1a7f37 } .delete { color: #c62828 } .patch { color: #9a6700 }
@media (prefers-color-scheme: dark) {
  body { background: #12161c; color: #dfe5ee } a { color: #6cb6ff }
  h2 { border-color: #2c3440 } .notes { color: #98a4b3 }
}
"""
