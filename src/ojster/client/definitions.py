"""Calls about workflow definitions, made to a server."""

from __future__ import annotations

from typing import Final
from urllib.parse import quote

import msgspec

from ojster.client.connection import RemoteCapability
from ojster.core.json_objects import Members
from ojster.workflows.answer_wire import DefinitionAnswer, DefinitionsAnswer, read_definition
from ojster.workflows.definition import Definition
from ojster.workflows.definitions import DefinitionDeletion, Named

_encode: Final = msgspec.json.Encoder().encode


class RemoteDefinitions(RemoteCapability):
    """Calls about workflow definitions."""

    async def create(self, name: str, members: Members) -> Definition:
        """Create a workflow definition."""
        body = members | {"name": msgspec.Raw(_encode(name))}
        return read_definition((await self._connection.ask(DefinitionAnswer, "POST", "/definitions", body)).definition)

    async def update(self, name: str, members: Members) -> Definition:
        """Give a definition a new version, unless its latest version is the same."""
        return read_definition((await self._connection.ask(DefinitionAnswer, "PUT", _path(name), members)).definition)

    async def find(self, which: Named) -> Definition:
        """Return a version of a definition, or its latest."""
        path = _path(which.name) + ("" if which.version is None else f"/versions/{which.version}")
        return read_definition((await self._connection.ask(DefinitionAnswer, "GET", path)).definition)

    async def all(self) -> list[Definition]:
        """Return the latest version of every definition."""
        definitions: list[Definition] = []
        while True:
            path = f"/definitions?limit=200&offset={len(definitions)}"
            answer = await self._connection.ask(DefinitionsAnswer, "GET", path)
            definitions += [read_definition(shown) for shown in answer.definitions]
            if not answer.pagination.has_more:
                return definitions

    async def delete(self, what: DefinitionDeletion) -> None:
        """Delete a definition."""
        await self._connection.call("DELETE", _path(what.name) + "?force=true" * what.force)


def _path(name: str) -> str:
    return f"/definitions/{quote(name, safe='')}"
