"""Calls about workflow definitions, made to a server."""

from __future__ import annotations

from typing import Final
from urllib.parse import quote

import msgspec
from msgspec import UNSET, UnsetType

from ojster.client.connection import (
    RemoteCapability,
    list_of,
)
from ojster.core.json_objects import Members
from ojster.core.timestamps import parse_timestamp
from ojster.workflows.definition import Definition
from ojster.workflows.definitions import Deletion, Named

_encode: Final = msgspec.json.Encoder().encode


class RemoteDefinitions(RemoteCapability):
    """Calls about workflow definitions."""

    async def create(self, name: str, members: Members) -> Definition:
        """Create a workflow definition."""
        body = members | {"name": msgspec.Raw(_encode(name))}
        return _definition((await self._connection.call("POST", "/definitions", body))["definition"])

    async def update(self, name: str, members: Members) -> Definition:
        """Give a definition a new version, unless its latest version is the same."""
        answer = await self._connection.call("PUT", f"/definitions/{quote(name, safe='')}", members)
        return _definition(answer["definition"])

    async def find(self, which: Named) -> Definition:
        """Return a version of a definition, or its latest."""
        path = f"/definitions/{quote(which.name, safe='')}"
        if which.version is not None:
            path += f"/versions/{which.version}"
        return _definition((await self._connection.call("GET", path))["definition"])

    async def all(self) -> list[Definition]:
        """Return the latest version of every definition."""
        found: list[Definition] = []
        while True:
            answer = await self._connection.call("GET", f"/definitions?limit=200&offset={len(found)}")
            found += [_definition(raw) for raw in list_of(answer["definitions"])]
            if not msgspec.json.decode(answer["pagination"])["has_more"]:
                return found

    async def delete(self, what: Deletion) -> None:
        """Delete a definition."""
        await self._connection.call("DELETE", f"/definitions/{quote(what.name, safe='')}" + "?force=true" * what.force)


class _DefinitionBody(msgspec.Struct):
    name: str
    version: int
    workflow: msgspec.Raw
    hashes: dict[str, str]
    created_at: str
    params_schema: msgspec.Raw | UnsetType = UNSET


def _definition(raw: msgspec.Raw) -> Definition:
    seen = msgspec.json.decode(raw, type=_DefinitionBody)
    schema = None if seen.params_schema is UNSET else bytes(seen.params_schema)
    created_at = parse_timestamp(seen.created_at)
    return Definition(seen.name, seen.version, bytes(seen.workflow), schema, seen.hashes, created_at)
