"""Calls about the schemas of job arguments."""

from __future__ import annotations

import msgspec

from ojster.core.json_schema import Version, compile_schema, parse_version
from ojster.core.parsing import read_value, refuse_unknown
from ojster.core.tenant import NOBODY, called, split
from ojster.jobs import schemas
from ojster.jobs.calls import SchemaCalls
from ojster.jobs.names import read_type
from ojster.jobs.schema_wire import DeletedSchemaAnswer, show_version
from ojster.jobs.schemas import Mode, Schema, no_schema
from ojster.jobs.scope import CapabilityService


class SchemaService(CapabilityService, SchemaCalls):
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
        self.scope.need_all_queues("A schema")
        name = read_type(msgspec.json.encode(type))
        compile_schema(read_value(schema, "schema"))
        refuse_unknown("mode", mode, {known.value for known in Mode})
        chosen = Mode(self.database.settings.schema_mode if mode is None else mode)
        known_as = None if uri is None else schemas.check_uri(uri)
        named = self.scope.named(name)
        item = Schema(named, parse_version(version), str(version), chosen, schema, given_uri=known_as)
        return _for_its_tenant(await self.scope.do(schemas.register_schemas, item))

    async def all(self) -> list[Schema]:
        """Return all schemas by job type, latest version first."""
        listed = await self.scope.look(schemas.list_schemas, None)
        return [_for_its_tenant(schema) for schema in listed if self.scope.sees(split(schema.type)[0])]

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
        return [_for_its_tenant(schema) for schema in listed]

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
                return _for_its_tenant(schema)
        raise no_schema(type, version)

    async def find_by_uri(self, uri: str) -> Schema:
        """Return the schema with a URI.

        Raises
        ------
        NotFound
            There is none.
        """
        return _for_its_tenant(await self._find_by_uri(uri))

    async def delete(self, type: str, version: str) -> DeletedSchemaAnswer:
        """Delete a version of the schema of a job type; say which.

        Raises
        ------
        InvalidRequest, NotFound
            The version is malformed, or does not exist.
        """
        return await self._delete(self.scope.named(type), parse_version(version))

    async def delete_by_uri(self, uri: str) -> DeletedSchemaAnswer:
        """Delete the schema with a URI; say which. Jobs that name it are not affected.

        Raises
        ------
        NotFound
            There is none.
        """
        schema = await self._find_by_uri(uri)
        return await self._delete(schema.type, schema.version)

    async def _find_by_uri(self, uri: str) -> Schema:
        """Return the schema with a URI, with the stored name of its type."""
        schema = await self.scope.look(schemas.find_by_uri, (self.scope.tenant or NOBODY, uri))
        if schema is None:
            raise no_schema(uri)
        return schema

    async def _delete(self, type: str, version: Version) -> DeletedSchemaAnswer:
        self.scope.need_all_queues("A schema")
        schema = await self.scope.do(schemas.delete_schemas, (type, version))
        return DeletedSchemaAnswer(called(schema.type), show_version(schema), schema.uri)


def _for_its_tenant(schema: Schema) -> Schema:
    return msgspec.structs.replace(schema, type=called(schema.type))
