"""Calls about named collections, as a service, a server and its client have them."""

from __future__ import annotations

from typing import Final

from msgspec import UNSET, UnsetType

from ojster.collections.items import Item, Matching, NewItem, Where
from ojster.collections.named import Collection
from ojster.collections.wire import CollectionAnswer, CollectionBody, CollectionChangeBody, CollectionsAnswer
from ojster.core.calls import Call, Calls, Deletion
from ojster.core.wire import DeletedAnswer

_TAG: Final = "Collections"
_ALL: Final = "/collections"


class CollectionCalls(Calls):
    """Calls about collections. The endpoints for items, which have a path for each kind of collection, are by hand."""

    @Call("POST", _ALL, "create_collection", _TAG, CollectionAnswer, body=CollectionBody, status=201)
    async def create(
        self, name: str, description: str | None = None, *, keep_removed: str | None = None, shared: bool = False
    ) -> Collection:
        """Create a named collection."""

    @Call("PATCH", f"{_ALL}/{{name}}", "change_collection", _TAG, CollectionAnswer, body=CollectionChangeBody)
    async def change(
        self,
        name: str,
        *,
        description: str | UnsetType | None = UNSET,
        keep_removed: str | UnsetType | None = UNSET,
        shared: bool | UnsetType = UNSET,
    ) -> Collection:
        """Change settings of a named collection: those that the request has."""

    @Call("GET", _ALL, "list_collections", _TAG, CollectionsAnswer)
    async def all(self) -> list[Collection]:
        """List the named collections with their numbers of items.

        Those of a workspace around the caller's that shares them have its name as ``workspace``.
        """

    @Deletion("DELETE", f"{_ALL}/{{name}}", "delete_collection", _TAG, DeletedAnswer)
    async def delete(self, name: str, *, force: bool = False) -> None:
        """Delete a named collection with its history. A collection with items requires ``force=true``."""

    async def add(self, where: Where, item: NewItem) -> Item:
        """Add an item to a collection."""
        raise NotImplementedError

    async def remove(self, where: Where, name: str) -> Item:
        """Remove an item from a collection."""
        raise NotImplementedError

    async def items(self, where: Where, matching: Matching | None = None, *, history: bool = False) -> list[Item]:
        """Return the matching items of a collection; with ``history``, also removed and replaced ones."""
        raise NotImplementedError
