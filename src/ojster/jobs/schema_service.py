"""Calls about the schemas of job arguments."""

from __future__ import annotations

import msgspec

from ojster.core.json_schema import compile_schema, parse_version
from ojster.core.parsing import read_value, refuse_unknown
from ojster.core.tenant import NOBODY, split
from ojster.jobs import schemas
from ojster.jobs.names import read_type
from ojster.jobs.schemas import Mode, Schema, no_schema
from ojster.jobs.scope import CapabilityService


class SchemaService(CapabilityService):
    """Calls about the schemas of job arguments.

    Spec: ojs-schema-registry 10, ojs-job-versioning 11
    """

    async def register(
        self, type: str, version: int | str, schema: bytes, *, mode: str | None = None, uri: str | None = None
    ) -> Schema:
        """Register a JSON Schema for the arguments of a job type, as a new version.

        Parameters
        ----------
        version:
            ``2`` or ``1.2.3``.
        schema:
            A JSON Schema, as JSON.
        mode:
            ``strict`` refuses jobs that violate it, ``warn`` only says so, ``off`` does not check; ``None``: the
            setting ``schema_mode``.
        uri:
            The URI by which requests may name it; ``None``: one that is made of type and version.

        Raises
        ------
        InvalidRequest
            The type, the version, the schema, the mode or the URI is malformed.
        Conflict
            The version, or the URI, has another schema.
        """
        name = read_type(msgspec.json.encode(type))
        compile_schema(read_value(schema, "schema"))
        refuse_unknown("mode", mode, {known.value for known in Mode})
        chosen = Mode(self.database.settings.schema_mode if mode is None else mode)
        known_as = None if uri is None else schemas.check_uri(uri)
        named = self.scope.named(name)
        item = Schema(named, parse_version(version), str(version), chosen, schema, given_uri=known_as)
        return await self.scope.do(schemas.register_schemas, item)

    async def all(self) -> list[Schema]:
        """Return all schemas by job type, latest version first."""
        listed = await self.scope.look(schemas.list_schemas, None)
        return [schema for schema in listed if self.scope.sees(split(schema.type)[0])]

    async def versions(self, type: str) -> list[Schema]:
        """Return the versions of the schema of a job type, latest first.

        Raises
        ------
        NotFound
            The type has no schema.
        """
        listed = await self.scope.look(schemas.list_schemas, self.scope.named(type))
        if not listed:
            raise no_schema(type)
        return listed

    async def find(self, type: str, version: str) -> Schema:
        """Return a version of the schema of a job type.

        Raises
        ------
        InvalidRequest, NotFound
            The version is malformed, or does not exist.
        """
        wanted = parse_version(version)
        for schema in await self.scope.look(schemas.list_schemas, self.scope.named(type)):
            if schema.version == wanted:
                return schema
        raise no_schema(type, version)

    async def find_by_uri(self, uri: str) -> Schema:
        """Return the schema with a URI.

        Raises
        ------
        NotFound
            There is none.
        """
        schema = await self.scope.look(schemas.find_by_uri, (self.scope.tenant or NOBODY, uri))
        if schema is None:
            raise no_schema(uri)
        return schema

    async def delete(self, type: str, version: str) -> Schema:
        """Delete a version of the schema of a job type; return it.

        Raises
        ------
        InvalidRequest, NotFound
            The version is malformed, or does not exist.
        """
        return await self.scope.do(schemas.delete_schemas, (self.scope.named(type), parse_version(version)))

    async def delete_by_uri(self, uri: str) -> Schema:
        """Delete the schema with a URI; return it. Jobs that name it are not affected.

        Raises
        ------
        NotFound
            There is none.
        """
        schema = await self.find_by_uri(uri)
        return await self.scope.do(schemas.delete_schemas, (schema.type, schema.version))
