"""How does a program, or a handler, use a collection? ``app.collection("releases")``, ``job.collection``. (seed 003)"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import msgspec

from ojster.client.interface import Client
from ojster.model.collection import Item, Lookup, NewItem, Where
from ojster.model.errors import NotFound
from ojster.values import to_json


class SharedCollection:
    """Items with names: what JSON can say, at most 64 KiB each.

    Methods that begin with ``a`` are for asynchronous code, the others for plain code. All of them raise ``NotFound``
    if there is no such collection.
    """

    def __init__(
        self, client: Callable[[], Client], where: Where, wait: Callable[[Coroutine[Any, Any, Any]], Any]
    ) -> None:
        self._client = client
        self._where = where
        self._wait = wait

    async def aadd(self, name: str, data: Any = None, *, category: str | None = None, replace: bool = False) -> Item:
        """Put something into the collection, and return it.

        Parameters
        ----------
        replace:
            Whether it takes the place of what has the same name, whose history stays.

        Raises
        ------
        Conflict
            Something has the same name, and is not to be replaced.
        """
        return await self._client().add_item(self._where, NewItem(name, to_json(data), category, replace))

    async def aget(self, name: str) -> Any:
        """Return the data of an item.

        Raises
        ------
        NotFound
            There is none, or it is only promised.
        """
        found = [item for item in await self.aitems(name=name) if item.kind != "promise"]
        if not found:
            raise NotFound(f"The collection has no item {name!r}.", resource_type="item", resource_id=name)
        return msgspec.json.decode(found[0].data)

    async def aitems(
        self,
        *,
        name: str | None = None,
        name_startswith: str | None = None,
        name_endswith: str | None = None,
        name_contains: str | None = None,
        category: str | None = None,
        data: dict[str, Any] | None = None,
        history: bool = False,
    ) -> list[Item]:
        """Return the items that match, in the order in which they were added.

        Parameters
        ----------
        data:
            Members that the data must have, with these values.
        history:
            Whether those too that were removed or replaced.
        """
        lookup = Lookup("", name, name_startswith, name_endswith, name_contains, category, data or {})
        return await self._client().items(self._where, lookup, history=history)

    async def aremove(self, name: str) -> Item:
        """Remove an item, whose history stays, and return it.

        Raises
        ------
        NotFound
            There is none.
        """
        return await self._client().remove_item(self._where, name)

    def add(self, name: str, data: Any = None, *, category: str | None = None, replace: bool = False) -> Item:
        """Put something into the collection. See ``aadd``."""
        made: Item = self._wait(self.aadd(name, data, category=category, replace=replace))
        return made

    def get(self, name: str) -> Any:
        """Return the data of an item. See ``aget``."""
        return self._wait(self.aget(name))

    def items(self, **wanted: Any) -> list[Item]:
        """Return the items that match. See ``aitems``."""
        found: list[Item] = self._wait(self.aitems(**wanted))
        return found

    def remove(self, name: str) -> Item:
        """Remove an item. See ``aremove``."""
        removed: Item = self._wait(self.aremove(name))
        return removed
