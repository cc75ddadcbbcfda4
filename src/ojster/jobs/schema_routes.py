"""Endpoints for the schema registry of job arguments.

The registry's own paths and the paths under ``/admin`` serve the same endpoints.

Spec: ojs-schema-registry 10, ojs-job-versioning 11
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from ojster.core.errors import InvalidRequest
from ojster.core.json_schema import compile_schema, parse_version
from ojster.core.tenant import called, split
from ojster.core.timestamps import format_timestamp
from ojster.jobs import schemas
from ojster.jobs.names import read_type
from ojster.jobs.schemas import Mode, Schema, no_schema
from ojster.jobs.wire import SCHEMA, SchemaBody
from ojster.server.request import Answer, HttpRequest, encode
from ojster.server.route import BASE, Route


async def register_schema(exchange: HttpRequest) -> Answer:
    """Register a JSON Schema for the arguments of a job type, as a new version."""
    body = await exchange.read(SCHEMA)
    schema = await _register(exchange, body, body.job_type or body.type, body.version)
    return Answer(encode(_shown(schema)), 201)


async def put_schema(exchange: HttpRequest) -> Answer:
    """Register a JSON Schema for the arguments of the job type in the path, as a new version."""
    body = await exchange.read(SCHEMA)
    schema = await _register(exchange, body, exchange.path["type"], exchange.path["version"])
    return Answer(encode(_shown(schema)), 201)


async def _register(exchange: HttpRequest, body: SchemaBody, type: str | None, version: Any) -> Schema:
    if type is None or version is None:
        raise InvalidRequest("'job_type' or 'version' is missing. Send both.", field="job_type")
    given = body.args_schema if body.schema is msgspec.UNSET else body.schema
    if given is msgspec.UNSET:
        raise InvalidRequest("'schema' is missing. Send a JSON Schema.", field="schema")
    name = read_type(encode(type))
    compile_schema(msgspec.json.decode(given))
    mode = exchange.engine.database.settings.schema_mode if body.mode is None else body.mode
    schema = Schema(exchange.engine.scope.named(name), parse_version(version), str(version), Mode(mode), bytes(given))
    return await exchange.engine.scope.do(schemas.register_schemas, schema)


async def show_latest_schema(exchange: HttpRequest) -> Answer:
    """Show the latest schema of a job type."""
    found = await _versions(exchange)
    if not found:
        raise no_schema(exchange.path["type"])
    return Answer(encode(_shown(found[0])))


async def show_schema(exchange: HttpRequest) -> Answer:
    """Show a version of the schema of a job type."""
    version = parse_version(exchange.path["version"])
    found = await _versions(exchange)
    for schema in found:
        if schema.version == version:
            return Answer(encode(_shown(schema)))
    raise no_schema(exchange.path["type"], exchange.path["version"])


async def list_schema_versions(exchange: HttpRequest) -> Answer:
    """List the schema versions of a job type, latest first."""
    found = await _versions(exchange)
    if not found:
        raise no_schema(exchange.path["type"])
    versions = [
        {"version": _version(one), "created_at": format_timestamp(one.created_at), "is_latest": one is found[0]}
        for one in found
    ]
    return Answer(encode({"type": exchange.path["type"], "versions": versions}))


async def list_schemas(exchange: HttpRequest) -> Answer:
    """List all schemas by job type, latest version first."""
    engine = exchange.engine
    found = [
        one for one in await engine.scope.look(schemas.list_schemas, None) if engine.scope.sees(split(one.type)[0])
    ]
    return Answer(encode({"schemas": [_members(one) for one in found]}))


async def delete_schema(exchange: HttpRequest) -> Answer:
    """Delete a version of the schema of a job type."""
    version = parse_version(exchange.path["version"])
    found = await exchange.engine.scope.do(schemas.delete_schemas, (_type(exchange), version))
    return Answer(encode({"deleted": True, "type": called(found.type), "version": _version(found)}))


def _type(exchange: HttpRequest) -> str:
    return exchange.engine.scope.named(exchange.path["type"])


async def _versions(exchange: HttpRequest) -> list[Schema]:
    return await exchange.engine.scope.look(schemas.list_schemas, _type(exchange))


def _shown(schema: Schema) -> dict[str, Any]:
    """Return a schema in the conformance suite's format, and the registry's format in the member ``registered``."""
    members = _members(schema)
    return members | {"registered": members}


def _members(schema: Schema) -> dict[str, Any]:
    return {
        "type": called(schema.type),
        "job_type": called(schema.type),
        "version": _version(schema),
        "mode": schema.mode,
        "schema": msgspec.Raw(schema.body),
        "created_at": format_timestamp(schema.created_at),
    }


def _version(schema: Schema) -> int | str:
    return int(schema.name) if schema.name.isdigit() else schema.name


_TAG: Final = "Schemas"

ROUTES: Final = (
    Route("POST", f"{BASE}/schemas", register_schema, _TAG, SchemaBody, status=201),
    *(
        route
        for base in (BASE, f"{BASE}/admin")
        for route in (
            Route("GET", f"{base}/schemas", list_schemas, _TAG),
            Route("GET", f"{base}/schemas/{{type}}/versions", list_schema_versions, _TAG),
            Route("GET", f"{base}/schemas/{{type}}", show_latest_schema, _TAG),
            Route("GET", f"{base}/schemas/{{type}}/{{version}}", show_schema, _TAG),
            Route("DELETE", f"{base}/schemas/{{type}}/{{version}}", delete_schema, _TAG),
        )
    ),
    Route("PUT", f"{BASE}/admin/schemas/{{type}}/{{version}}", put_schema, _TAG, SchemaBody, status=201),
)
