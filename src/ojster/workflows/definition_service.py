"""Calls about workflow definitions."""

from __future__ import annotations

import msgspec

from ojster.core.json_objects import Members, without_nulls
from ojster.core.tenant import NOBODY, called, split
from ojster.jobs.scope import CapabilityService, accepted
from ojster.workflows import definitions
from ojster.workflows.definition import Definition, read_definition
from ojster.workflows.definitions import DefinitionDeletion, Named
from ojster.workflows.plan.nested_definitions import Nested, complete_nested, has_definitions
from ojster.workflows.plan.request import refuse_unknown


class DefinitionService(CapabilityService):
    """Calls about workflow definitions."""

    async def create(self, name: str, members: Members) -> Definition:
        """Create a workflow definition.

        Raises
        ------
        InvalidRequest, InvalidWorkflow
            The definition describes no valid workflow.
        Duplicate
            A definition with this name exists.
        """
        definition = await self._read_definition(name, members)
        return _for_its_tenant(await self.scope.do(definitions.create_definitions, definition))

    async def update(self, name: str, members: Members) -> Definition:
        """Add a version to a definition, unless the latest is the same; return the latest.

        Raises
        ------
        InvalidRequest, InvalidWorkflow
            The definition describes no valid workflow.
        NotFound
            The definition does not exist.
        """
        definition = await self._read_definition(name, members)
        return _for_its_tenant(await self.scope.do(definitions.update_definitions, definition))

    async def _read_definition(self, name: str, members: Members) -> Definition:
        self.scope.need_all_queues("A definition")
        self.scope.check_contents(members)
        definition = read_definition(name, without_nulls(members))
        settings = self.database.settings
        whole = definition.members
        if has_definitions(whole):
            nested = Nested(whole, self.scope.tenant or NOBODY, name)
            whole = accepted(await self.database.read(complete_nested, nested))
        refuse_unknown(whole, self.database.clock(), largest=settings.largest_job, tenant=self.scope.tenant)
        return msgspec.structs.replace(definition, name=self.scope.named(definition.name))

    async def find(self, which: Named) -> Definition:
        """Return a version of a definition, or the latest.

        Raises
        ------
        NotFound
            The definition or the version does not exist.
        """
        self.scope.need_all_queues("A definition")
        which = msgspec.structs.replace(which, name=self.scope.named(which.name))
        return _for_its_tenant(await self.scope.look(definitions.find_definitions, which))

    async def all(self) -> list[Definition]:
        """Return the latest versions of all definitions, by name."""
        self.scope.need_all_queues("A definition")
        stored = await self.database.read(definitions.list_definitions, None)
        return [_for_its_tenant(definition) for definition in stored if self.scope.sees(split(definition.name)[0])]

    async def delete(self, what: DefinitionDeletion) -> None:
        """Delete a definition with all its versions.

        Raises
        ------
        NotFound
            The definition does not exist.
        Conflict
            The definition has unfinished workflows, and ``force`` is false.
        """
        self.scope.need_all_queues("A definition")
        await self.scope.do(
            definitions.delete_definitions, msgspec.structs.replace(what, name=self.scope.named(what.name))
        )


def _for_its_tenant(definition: Definition) -> Definition:
    return msgspec.structs.replace(definition, name=called(definition.name))
