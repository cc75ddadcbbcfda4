"""Calls about collections and their items."""

from __future__ import annotations

from ojster.collections import contents, named
from ojster.collections.items import Item, Lookup, NewItem, Where, check_collection_name
from ojster.collections.named import Collection
from ojster.collections.places import Place
from ojster.core.tenant import split
from ojster.jobs.scope import CapabilityService


class CollectionService(CapabilityService):
    """Calls about collections and their items."""

    async def create(self, name: str, description: str | None = None) -> Collection:
        """Create a named collection.

        Raises
        ------
        InvalidRequest
            The name is invalid.
        Conflict
            A collection with this name exists.
        """
        new = named.NewCollection(self.scope.named(check_collection_name(name)), description, self.scope.who)
        return await self.scope.do(named.create_collections, new)

    async def all(self) -> list[Collection]:
        """Return the named collections, by name."""
        found = await self.database.read(named.list_collections, None)
        return [one for name, one in found if self.scope.sees(split(name)[0])]

    async def delete(self, name: str, *, force: bool = False) -> None:
        """Delete a named collection with its items and their history.

        Raises
        ------
        NotFound
            The collection does not exist.
        Conflict
            The collection has items, and ``force`` is false.
        """
        await self.scope.do(named.delete_collections, named.Removal(self.scope.named(name), force))

    async def add(self, where: Where, item: NewItem) -> Item:
        """Add an item to a collection, and record the caller and the time.

        Raises
        ------
        NotFound
            The collection, workflow or job does not exist.
        InvalidRequest, PayloadTooLarge
            The name or the data is invalid.
        Conflict
            The name is taken and ``replace`` is false; the collection is full; the file is incomplete; or the
            collection is a job's own, and the job is not active.
        """
        return await self.scope.do(
            contents.add, contents.Addition(await self._place(where), item.check(), self.scope.who)
        )

    async def remove(self, where: Where, name: str) -> Item:
        """Remove an item from a collection, keep it in the history, and return it.

        Raises
        ------
        NotFound
            The collection, workflow or item does not exist.
        """
        return await self.scope.do(
            contents.remove, contents.ItemRemoval(await self._place(where), name, self.scope.who)
        )

    async def items(self, where: Where, lookup: Lookup | None = None, *, history: bool = False) -> list[Item]:
        """Return the matching items of a collection, in insertion order, at most 1,001.

        Parameters
        ----------
        lookup:
            Filter for the items; its collection is ignored.
        history:
            Whether to include removed and replaced items.

        Raises
        ------
        NotFound
            The collection or workflow does not exist.
        """
        question = contents.ItemQuery(await self._place(where), lookup or Lookup(""), history)
        return await self.scope.look(contents.show, question)

    async def _place(self, where: Where) -> Place:
        if where.job_id is not None:
            await self.scope.check_job(where.job_id)
        name = None if where.name is None else self.scope.named(where.name)
        return Place(name, where.workflow_id, where.job_id, self.scope.tenant, self.scope.holder(where.holder))
