"""Calls about collections and their items."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from ojster.collections import contents, named
from ojster.collections.calls import CollectionCalls
from ojster.collections.items import Item, Matching, NewItem, Where, check_collection_name
from ojster.collections.named import Collection
from ojster.collections.places import Place
from ojster.core.errors import InvalidRequest
from ojster.core.tenant import split, tenants_around
from ojster.jobs.expiration import read_expiration_delay
from ojster.jobs.scope import CapabilityService


class CollectionService(CapabilityService, CollectionCalls):
    """Calls about collections and their items."""

    async def create(
        self, name: str, description: str | None = None, *, keep_removed: str | None = None, shared: bool = False
    ) -> Collection:
        """Create a named collection.

        Parameters
        ----------
        keep_removed:
            How long it keeps removed and replaced items, an ISO 8601 duration. ``None`` and ``never``: as long as the
            collection.
        shared:
            Whether the workspaces inside the caller's workspace can read it.

        Raises
        ------
        InvalidRequest
            The name or the duration is invalid.
        Conflict
            A collection with this name exists.
        """
        self.scope.need_all_queues("A collection")
        qualified = self.scope.named(check_collection_name(name))
        new = named.NewCollection(qualified, description, self.scope.who, _period(keep_removed), shared)
        return await self.scope.do(named.create_collections, new)

    async def change(
        self,
        name: str,
        *,
        description: str | UnsetType | None = UNSET,
        keep_removed: str | UnsetType | None = UNSET,
        shared: bool | UnsetType = UNSET,
    ) -> Collection:
        """Change settings of a named collection, as ``create`` has them; return it. Others stay as they are.

        Raises
        ------
        InvalidRequest
            The duration is invalid.
        NotFound
            The collection does not exist.
        """
        self.scope.need_all_queues("A collection")
        period = UNSET if keep_removed is UNSET else _period(keep_removed)
        change = named.CollectionChange(self.scope.named(name), description, period, shared)
        return await self.scope.do(named.change_collections, change)

    async def all(self) -> list[Collection]:
        """Return the named collections, by name, those among them that workspaces around the caller's share."""
        everything = await self.database.read(named.list_collections, None)
        seen = [collection for name, collection in everything if self.scope.sees(split(name)[0])]
        if not self.scope.tenant:
            return seen
        taken = {collection.name for collection in seen}
        by_key = dict(everything)
        for around in tenants_around(self.scope.tenant):
            for key, collection in by_key.items():
                if split(key)[0] == around and collection.shared and collection.name not in taken:
                    taken.add(collection.name)
                    seen.append(msgspec.structs.replace(collection, workspace=around))
        return sorted(seen, key=lambda collection: collection.name)

    async def delete(self, name: str, *, force: bool = False) -> None:
        """Delete a named collection with its items and their history.

        Raises
        ------
        NotFound
            The collection does not exist.
        Conflict
            The collection has items, and ``force`` is false.
        """
        self.scope.need_all_queues("A collection")
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
        Forbidden
            The caller is limited to certain queues, and names no job of these.
        """
        return await self.scope.do(
            contents.add, contents.Addition(await self._changed(where), item.check(), self.scope.who)
        )

    async def remove(self, where: Where, name: str) -> Item:
        """Remove an item from a collection, keep it in the history, and return it.

        Raises
        ------
        NotFound
            The collection, workflow or item does not exist.
        """
        return await self.scope.do(
            contents.remove, contents.ItemRemoval(await self._changed(where), name, self.scope.who)
        )

    async def items(self, where: Where, matching: Matching | None = None, *, history: bool = False) -> list[Item]:
        """Return the matching items of a collection, in insertion order, at most 1,001.

        Parameters
        ----------
        matching:
            Conditions on the items; ``None``: all.
        history:
            Whether to include removed and replaced items.

        Raises
        ------
        NotFound
            The collection or workflow does not exist.
        """
        question = contents.ItemQuery(await self._place(where), matching or Matching(), history)
        return await self.scope.look(contents.show, question)

    async def _changed(self, where: Where) -> Place:
        """Return the place of items that the caller may change: in its own name, or for a job."""
        if where.holder is None and where.job_id is None:
            self.scope.need_all_queues("A collection")
        return await self._place(where)

    async def _place(self, where: Where) -> Place:
        job_id = where.job_id if where.holder is None else where.holder.job_id
        if job_id is not None:
            await self.scope.check_job(job_id)
        name = None if where.name is None else self.scope.named(where.name)
        return Place(name, where.workflow_id, where.job_id, self.scope.tenant, self.scope.holder(where.holder))


def _period(text: str | None) -> int | None:
    """Return a retention in microseconds; ``None``: unlimited."""
    if text is None:
        return None
    try:
        return read_expiration_delay(msgspec.json.encode(text)) or None
    except InvalidRequest:
        message = f"'keep_removed' must be an ISO 8601 duration such as 'P30D', or 'never', not {text!r:.40}."
        raise InvalidRequest(message, field="keep_removed") from None
