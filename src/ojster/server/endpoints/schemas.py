"""Endpoints for the schema registry of job arguments.

The registry's own paths and the paths under ``/admin`` serve the same endpoints.

Spec: ojs-schema-registry 10, ojs-job-versioning 11
"""

from __future__ import annotations

from typing import Final

import msgspec

from ojster.core.errors import InvalidRequest
from ojster.core.json_schema import Version, compile_schema, parse_version
from ojster.core.parsing import read_value
from ojster.core.tenant import NOBODY, called, split
from ojster.core.timestamps import format_timestamp
from ojster.jobs import history_wire, schemas
from ojster.jobs.history_wire import (
    DeletedSchemaAnswer,
    SchemaAnswer,
    SchemasAnswer,
    SchemaVersionBody,
    SchemaVersionsAnswer,
    show_version,
)
from ojster.jobs.names import read_type
from ojster.jobs.schemas import Mode, Schema, no_schema
from ojster.jobs.wire import SCHEMA, SchemaBody
from ojster.server.answer import Answer, encode
from ojster.server.pages import offset_page_of, offset_pagination
from ojster.server.request import HttpRequest
from ojster.server.route import BASE, PAGE, Route


async def register_schema(request: HttpRequest) -> Answer:
    """Register a JSON Schema for the arguments of a job type, as a new version."""
    body = await request.read(SCHEMA)
    schema = await _register(request, body, body.job_type or body.type, body.version)
    return Answer(encode(_registered(schema) if body.uri is None else _by_uri(schema)), 201)


async def put_schema(request: HttpRequest) -> Answer:
    """Register a JSON Schema for the arguments of the job type in the path, as a new version."""
    body = await request.read(SCHEMA)
    schema = await _register(request, body, request.path["type"], request.path["version"])
    return Answer(encode(_registered(schema)), 201)


async def _register(request: HttpRequest, body: SchemaBody, type: str | None, version: int | str | None) -> Schema:
    if type is None or version is None:
        raise InvalidRequest("'job_type' or 'version' is missing. Send both.", field="job_type")
    given = body.args_schema if body.schema is msgspec.UNSET else body.schema
    if given is msgspec.UNSET:
        raise InvalidRequest("'schema' is missing. Send a JSON Schema.", field="schema")
    name = read_type(encode(type))
    compile_schema(read_value(given, "schema"))
    mode = request.service.database.settings.schema_mode if body.mode is None else body.mode
    uri = None if body.uri is None else schemas.check_uri(body.uri)
    named = request.service.scope.named(name)
    schema = Schema(named, parse_version(version), str(version), Mode(mode), bytes(given), given_uri=uri)
    return await request.service.scope.do(schemas.register_schemas, schema)


async def show_latest_schema(request: HttpRequest) -> Answer:
    """Show the latest schema of a job type, or the schema with a URI."""
    if _is_uri(request):
        return Answer(encode(_by_uri(await _find_by_uri(request))))
    found = await _versions(request)
    if not found:
        raise no_schema(request.path["type"])
    return Answer(encode(_registered(found[0])))


async def show_schema(request: HttpRequest) -> Answer:
    """Show a version of the schema of a job type."""
    version = parse_version(request.path["version"])
    found = await _versions(request)
    for schema in found:
        if schema.version == version:
            return Answer(encode(_registered(schema)))
    raise no_schema(request.path["type"], request.path["version"])


async def list_schema_versions(request: HttpRequest) -> Answer:
    """List the schema versions of a job type, latest first."""
    found = await _versions(request)
    if not found:
        raise no_schema(request.path["type"])
    versions = [
        SchemaVersionBody(show_version(one), format_timestamp(one.created_at), one is found[0]) for one in found
    ]
    return Answer(encode(SchemaVersionsAnswer(request.path["type"], versions)))


async def list_schemas(request: HttpRequest) -> Answer:
    """List all schemas by job type, latest version first."""
    service = request.service
    limit, offset = offset_page_of(request.query)
    found = [
        one for one in await service.scope.look(schemas.list_schemas, None) if service.scope.sees(split(one.type)[0])
    ]
    shown = [history_wire.show_schema(one) for one in found[offset : offset + limit]]
    return Answer(encode(SchemasAnswer(shown, offset_pagination(len(found), limit, offset))))


async def delete_schema(request: HttpRequest) -> Answer:
    """Delete a version of the schema of a job type."""
    return await _delete(request, _type(request), parse_version(request.path["version"]))


async def delete_schema_with_uri(request: HttpRequest) -> Answer:
    """Delete the schema with a URI. Jobs that name it are not affected."""
    if not _is_uri(request):
        message = f"{request.path['type'][:80]!r} is not a URI. Name the version, too: DELETE /schemas/TYPE/VERSION."
        raise InvalidRequest(message, field="uri")
    schema = await _find_by_uri(request)
    return await _delete(request, schema.type, schema.version)


async def _delete(request: HttpRequest, type: str, version: Version) -> Answer:
    found = await request.service.scope.do(schemas.delete_schemas, (type, version))
    return Answer(encode(DeletedSchemaAnswer(called(found.type), show_version(found), found.uri)))


def _is_uri(request: HttpRequest) -> bool:
    return ":" in request.path["type"]


async def _find_by_uri(request: HttpRequest) -> Schema:
    service, uri = request.service, request.path["type"]
    found = await service.scope.look(schemas.find_by_uri, (service.scope.tenant or NOBODY, uri))
    if found is None:
        raise no_schema(uri)
    return found


def _by_uri(schema: Schema) -> SchemaAnswer:
    """Return a schema for those who know it by its URI."""
    shown = _registered(schema)
    shown.schema = msgspec.Raw(encode(shown.registered))
    return shown


def _type(request: HttpRequest) -> str:
    return request.service.scope.named(request.path["type"])


async def _versions(request: HttpRequest) -> list[Schema]:
    return await request.service.scope.look(schemas.list_schemas, _type(request))


def _registered(schema: Schema) -> SchemaAnswer:
    """Return a schema in the conformance suite's format, and the registry's format in the member ``registered``."""
    shown = history_wire.show_schema(schema)
    return SchemaAnswer(**msgspec.structs.asdict(shown), registered=shown)


_TAG: Final = "Schemas"

ROUTES: Final = (
    Route("POST", f"{BASE}/schemas", register_schema, _TAG, SchemaBody, SchemaAnswer, status=201),
    *(
        route
        for base in (BASE, f"{BASE}/admin")
        for route in (
            Route("GET", f"{base}/schemas", list_schemas, _TAG, answer=SchemasAnswer, query=PAGE),
            Route("GET", f"{base}/schemas/{{type}}/versions", list_schema_versions, _TAG, answer=SchemaVersionsAnswer),
            Route("GET", f"{base}/schemas/{{type}}", show_latest_schema, _TAG, answer=SchemaAnswer),
            Route("DELETE", f"{base}/schemas/{{type}}", delete_schema_with_uri, _TAG, answer=DeletedSchemaAnswer),
            Route("GET", f"{base}/schemas/{{type}}/{{version}}", show_schema, _TAG, answer=SchemaAnswer),
            Route("DELETE", f"{base}/schemas/{{type}}/{{version}}", delete_schema, _TAG, answer=DeletedSchemaAnswer),
        )
    ),
    Route("PUT", f"{BASE}/admin/schemas/{{type}}/{{version}}", put_schema, _TAG, SchemaBody, SchemaAnswer, status=201),
)
