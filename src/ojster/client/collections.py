"""Calls about collections, made to a server."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final
from urllib.parse import quote, urlencode

import msgspec

from ojster.client.connection import RemoteCapability
from ojster.collections.calls import CollectionCalls
from ojster.collections.items import DATA_QUERY, ITEM_QUERY, Item, Matching, NewItem, Where
from ojster.collections.wire import (
    ItemAnswer,
    ItemBody,
    ItemsAnswer,
)
from ojster.core.wire import Json
from ojster.jobs.messages import Holder

_encode: Final = msgspec.json.Encoder().encode


class RemoteCollections(RemoteCapability, CollectionCalls):
    """Calls about collections."""

    async def add(self, where: Where, item: NewItem) -> Item:
        """Add an item to a collection."""
        body = ItemBody(
            item.name,
            msgspec.Raw(item.data),
            item.category,
            item.replace,
            item.file_id,
            item.filename,
            item.content_type,
            None if where.holder is None else where.holder.worker_id,
            None if where.holder is None else where.holder.attempt,
        )
        return (await self._connection.ask(ItemAnswer, "POST", _items_path(where, by=where.holder), body)).item

    async def remove(self, where: Where, name: str) -> Item:
        """Remove an item from a collection."""
        return (await self._connection.ask(ItemAnswer, "DELETE", _items_path(where, name, by=where.holder))).item

    async def items(self, where: Where, matching: Matching | None = None, *, history: bool = False) -> list[Item]:
        """Return the items of a collection that match; with ``history``, removed and replaced ones too."""
        wanted = msgspec.structs.asdict(matching) if matching is not None else {}
        query: dict[str, Json] = {name: wanted.get(name) for name in ITEM_QUERY}
        query |= {name: _encode(wanted[name]).decode() if wanted.get(name) else None for name in DATA_QUERY}
        query["history"] = "true" if history else None
        conditions = {name: value for name, value in query.items() if value is not None}
        return (await self._connection.ask(ItemsAnswer, "GET", _items_path(where, query=conditions))).items


def _items_path(
    where: Where, name: str | None = None, query: Mapping[str, str] = MappingProxyType({}), by: Holder | None = None
) -> str:
    """Return the path and query of a collection's items, or of one item; ``by``: the attempt that changes them."""
    query = dict(query)
    if where.name is not None:
        path = f"/collections/{quote(where.name, safe='')}/items"
        if where.job_id is not None:
            query["job_id"] = where.job_id
    elif where.job_id is not None:
        path = f"/jobs/{quote(where.job_id, safe='')}/items"
    else:
        path = f"/workflows/{quote(where.workflow_id or '', safe='')}/items"
        if by is not None:
            query["job_id"] = by.job_id
    if name is not None:
        path += f"/{quote(name, safe='')}"
    return f"{path}?{urlencode(query)}" if query else path
