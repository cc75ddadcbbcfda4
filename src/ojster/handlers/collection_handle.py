"""Collections in programs (``app.collection("releases")``) and in handlers (``job.collection``)."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from os import PathLike
from pathlib import Path
from typing import Any, TypedDict, Unpack

import msgspec

from ojster.client.file_transfer import content_of, download, upload
from ojster.client.interface import Client
from ojster.client.plain_methods import plain
from ojster.collections.items import Item, Matching, NewItem, Where
from ojster.core.errors import NotFound
from ojster.core.values import to_json
from ojster.files.file import FileRef
from ojster.jobs.messages import Holder


class Conditions(TypedDict, total=False):
    """Conditions on items: parts of the name, the category, and members of the data or parts of strings in it."""

    name: str | None
    name_startswith: str | None
    name_endswith: str | None
    name_contains: str | None
    category: str | None
    data: dict[str, Any] | None
    data_startswith: dict[str, str] | None
    data_endswith: dict[str, str] | None
    data_contains: dict[str, str] | None


class SharedCollection:
    """A collection of named items: JSON data of at most 64 KiB each, and files of at most 1 TiB.

    The asynchronous methods begin with ``a``; the others block. All raise ``NotFound`` if the collection does not
    exist.
    """

    def __init__(
        self,
        client: Callable[[], Client],
        where: Where,
        wait: Callable[[Coroutine[Any, Any, Any]], Any],
        holder: Holder | None = None,
    ) -> None:
        self._client = client
        self._where = where
        self._wait = wait
        self._holder = holder

    async def aadd(self, name: str, data: Any = None, *, category: str | None = None, replace: bool = False) -> Item:
        """Add an item to the collection, and return it.

        Parameters
        ----------
        replace:
            Whether to replace an item of the same name. The history keeps the replaced item.

        Raises
        ------
        Conflict
            An item of the same name exists, and ``replace`` is false.
        """
        return await self._client().collections.add(self._where, NewItem(name, to_json(data), category, replace))

    add = plain(aadd)

    async def aadd_file(
        self,
        name: str,
        source: str | PathLike[str] | bytes,
        *,
        data: Any = None,
        category: str | None = None,
        replace: bool | None = None,
        filename: str | None = None,
        content_type: str | None = None,
    ) -> Item:
        """Upload a file, add it to the collection as an artifact, and return the artifact.

        A file that the workspace already has is not uploaded again. An interrupted upload is resumed automatically.

        Parameters
        ----------
        source:
            Path of the file, or its content.
        data:
            Additional data of the artifact, as a JSON value.
        replace:
            Whether to replace an item of the same name. Default: only for a job's own artifacts, because an earlier
            attempt may have added them.
        filename, content_type:
            Name and media type of the file. Default: derived from the path.

        Raises
        ------
        OSError
            The file cannot be read.
        Unsupported
            There is no file store.
        BackendUnavailable
            The server or its file store stays unavailable after several retries.
        Conflict
            An item of the same name exists, and is not to be replaced.
        """
        content = source if isinstance(source, bytes) else Path(source)
        file = await upload(self._client(), content, filename=filename, content_type=content_type, holder=self._holder)
        is_of_job = self._where.job_id is not None and self._where.name is None
        replaces = is_of_job if replace is None else replace
        filename = filename or (content.name if isinstance(content, Path) else None)
        item = NewItem(name, to_json(data), category, replaces, file.id, filename, content_type)
        return await self._client().collections.add(self._where, item)

    add_file = plain(aadd_file)

    async def adownload(self, name: str, target: str | PathLike[str] = ".") -> Path:
        """Download the file of an artifact, verify it, and return its path.

        Parameters
        ----------
        target:
            Path of the file to write. In a directory, the file keeps its original name.

        Raises
        ------
        NotFound
            There is no such artifact.
        OSError
            The file cannot be written.
        HashMismatch
            The downloaded bytes differ from the uploaded ones.
        BackendUnavailable
            The server or its file store stays unavailable after several retries.
        """
        return await download(self._client(), await self._file(name), Path(target))

    download = plain(adownload)

    async def aread(self, name: str) -> bytes:
        """Return the content of an artifact's file. Raises the same errors as ``adownload``."""
        return await content_of(self._client(), await self._file(name))

    read = plain(aread)

    async def _file(self, name: str) -> FileRef:
        item = await self._item(name)
        if item.file is None:
            raise NotFound(f"The item {name!r} has no file.", resource_type="file", resource_id=name)
        return item.file

    async def aget(self, name: str) -> Any:
        """Return the data of an item.

        Raises
        ------
        NotFound
            The item does not exist, or is only promised.
        """
        return msgspec.json.decode((await self._item(name)).data)

    get = plain(aget)

    async def _item(self, name: str) -> Item:
        actual = [item for item in await self.aitems(name=name) if item.kind != "promise"]
        if not actual:
            raise NotFound(f"The collection has no item {name!r}.", resource_type="item", resource_id=name)
        return actual[0]

    async def aitems(self, *, history: bool = False, **conditions: Unpack[Conditions]) -> list[Item]:
        """Return the items that match, in the order in which they were added.

        Parameters
        ----------
        history:
            Whether to include removed and replaced items.
        conditions:
            What the items must have: see ``Conditions``.
        """
        wanted = {name: value for name, value in conditions.items() if value is not None}
        return await self._client().collections.items(self._where, msgspec.convert(wanted, Matching), history=history)

    items = plain(aitems)

    async def aremove(self, name: str) -> Item:
        """Remove an item, and return it. The history keeps it.

        Raises
        ------
        NotFound
            The item does not exist.
        """
        return await self._client().collections.remove(self._where, name)

    remove = plain(aremove)
