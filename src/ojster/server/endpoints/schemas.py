"""Endpoints for the schema registry of job arguments.

The registry's own paths and the paths under ``/admin`` serve the same endpoints.

Spec: ojs-schema-registry 10, ojs-job-versioning 11
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from ojster.core.errors import InvalidRequest
from ojster.core.json_objects import canonical_json
from ojster.core.json_schema import parse_version
from ojster.core.parsing import read_value
from ojster.core.timestamps import format_timestamp
from ojster.jobs.calls import SchemaCalls
from ojster.jobs.schema_wire import SchemaAnswer, SchemaVersionBody, SchemaVersionsAnswer, show_version
from ojster.jobs.schemas import Schema
from ojster.jobs.wire import SCHEMA, SchemaBody
from ojster.server.answer import Answer, encode
from ojster.server.declared import Method, endpoints_of
from ojster.server.request import Handler, HttpRequest
from ojster.server.route import BASE, Route


async def register_schema(request: HttpRequest) -> Answer:
    """Register a JSON Schema for the arguments of a job type, as a new version."""
    body = await request.read(SCHEMA)
    schema = await _register(request, body, body.job_type or body.type, body.version)
    return Answer(encode(SchemaAnswer.of(schema) if body.uri is None else SchemaAnswer.by_uri(schema)), 201)


async def put_schema(request: HttpRequest) -> Answer:
    """Register a JSON Schema for the arguments of the job type in the path, as a new version."""
    body = await request.read(SCHEMA)
    schema = await _register(request, body, request.path["type"], request.path["version"])
    return Answer(encode(SchemaAnswer.of(schema)), 201)


async def _register(request: HttpRequest, body: SchemaBody, type: str | None, version: int | str | None) -> Schema:
    if type is None or version is None:
        raise InvalidRequest("'job_type' or 'version' is missing. Send both.", field="job_type")
    for other in (body.job_type, body.type):
        if other is not None and other != type:
            raise InvalidRequest(f"The job type is {type!r:.80} and {other!r:.80}. Use one name.", field="job_type")
    if body.version is not None and parse_version(body.version) != parse_version(version):
        raise InvalidRequest(f"The version is {version!r:.80} and {body.version!r:.80}. Use one.", field="version")
    named = {"schema": body.schema, "args_schema": body.args_schema}
    schemas = {name: bytes(raw) for name, raw in named.items() if raw is not msgspec.UNSET and bytes(raw) != b"null"}
    if len({canonical_json(read_value(raw, name)) for name, raw in schemas.items()}) > 1:
        raise InvalidRequest("'schema' and 'args_schema' differ. Send one of them.", field="args_schema")
    if body.compatible_with:
        request.warn("The member 'compatible_with' has no effect: each version is checked by its own schema alone.")
    if not schemas:
        raise InvalidRequest("'schema' is missing. Send a JSON Schema.", field="schema")
    schema = next(iter(schemas.values()))
    return await request.service.schemas.register(type, version, schema, mode=body.mode, uri=body.uri)


async def show_latest_schema(request: HttpRequest) -> Answer:
    """Show the latest schema of a job type, or the schema with a URI."""
    type = request.path["type"]
    if _is_uri(type):
        return Answer(encode(SchemaAnswer.by_uri(await request.service.schemas.find_by_uri(type))))
    latest, *_ = await request.service.schemas.versions(type)
    return Answer(encode(SchemaAnswer.of(latest)))


async def list_schema_versions(request: HttpRequest) -> Answer:
    """List the schema versions of a job type, latest first."""
    versions = await request.service.schemas.versions(request.path["type"])
    shown = [
        SchemaVersionBody(show_version(schema), format_timestamp(schema.created_at), schema is versions[0])
        for schema in versions
    ]
    return Answer(encode(SchemaVersionsAnswer(request.path["type"], shown)))


async def delete_schema_with_uri(request: HttpRequest) -> Answer:
    """Delete the schema with a URI. Jobs that name it are not affected."""
    uri = request.path["type"]
    if not _is_uri(uri):
        message = f"{uri[:80]!r} is not a URI. Name the version, too: DELETE /schemas/TYPE/VERSION."
        raise InvalidRequest(message, field="uri")
    return Answer(encode(await request.service.schemas.delete_by_uri(uri)))


def _is_uri(name: str) -> bool:
    return ":" in name


_TAG: Final = "Schemas"
_BY_HAND: Final[Mapping[Method, Handler]] = {
    SchemaCalls.register: register_schema,
    SchemaCalls.find_by_uri: show_latest_schema,
    SchemaCalls.delete_by_uri: delete_schema_with_uri,
}

ROUTES: Final = (
    *(  # before a schema with a version in its path
        Route("GET", f"{base}/schemas/{{type}}/versions", list_schema_versions, _TAG, answer=SchemaVersionsAnswer)
        for base in (BASE, f"{BASE}/admin")
    ),
    *endpoints_of(SchemaCalls, lambda service: service.schemas, _BY_HAND),
    Route("PUT", f"{BASE}/admin/schemas/{{type}}/{{version}}", put_schema, _TAG, SchemaBody, SchemaAnswer, status=201),
)
