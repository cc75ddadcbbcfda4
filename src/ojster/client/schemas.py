"""Calls about the schemas of job arguments, made to a server."""

from __future__ import annotations

from urllib.parse import quote

from msgspec import Raw

from ojster.client.connection import RemoteCapability
from ojster.jobs.calls import SchemaCalls
from ojster.jobs.schema_wire import SchemaAnswer, SchemaVersionsAnswer
from ojster.jobs.schemas import Schema


class RemoteSchemas(RemoteCapability, SchemaCalls):
    """Calls about the schemas of job arguments."""

    async def register(
        self, type: str, version: int | str, schema: bytes, *, mode: str | None = None, uri: str | None = None
    ) -> Schema:
        """Register a JSON Schema for the arguments of a job type, as a new version."""
        members = {"job_type": type, "version": version, "schema": Raw(schema), "mode": mode, "uri": uri}
        body = {name: value for name, value in members.items() if value is not None}
        return (await self._connection.ask(SchemaAnswer, "POST", "/schemas", body)).value()

    async def versions(self, type: str) -> list[Schema]:
        """Return the versions of the schema of a job type, latest first. The server lists them, and shows each."""
        path = f"/schemas/{quote(type, safe='')}/versions"
        answer = await self._connection.ask(SchemaVersionsAnswer, "GET", path)
        return [await self.find(type, str(known.version)) for known in answer.versions]
