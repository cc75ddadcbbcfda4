"""How does a program, or a handler, use a collection? ``app.collection("releases")``, ``job.collection``. (seed 003)"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from os import PathLike
from pathlib import Path
from typing import Any

import msgspec

from ojster.client.interface import Client
from ojster.collections.items import Item, Lookup, NewItem, Where
from ojster.core.errors import NotFound
from ojster.core.values import to_json
from ojster.files.file import FileRef
from ojster.files.transfer import content_of, download, upload


def _name_of(source: Path | bytes) -> str | None:
    return source.name if isinstance(source, Path) else None


class SharedCollection:
    """Items with names: what JSON can say, at most 64 KiB each, and files of any size.

    Methods that begin with ``a`` are for asynchronous code, the others for plain code. All of them raise ``NotFound``
    if there is no such collection.
    """

    def __init__(
        self,
        client: Callable[[], Client],
        where: Where,
        wait: Callable[[Coroutine[Any, Any, Any]], Any],
        job_id: str | None = None,
    ) -> None:
        self._client = client
        self._where = where
        self._wait = wait
        self._job_id = job_id

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
        """Upload a file, and put it into the collection as an artifact; return that.

        A file that the workspace has already is not uploaded again; an upload that is cut off goes on by itself.

        Parameters
        ----------
        source:
            The path of the file, or what is in it.
        data:
            What else is to be known of it.
        replace:
            Whether it takes the place of what has the same name; by default only among the artifacts of a job, which
            may have been tried before.
        filename, content_type:
            How it is called, and what it is; by default as its path says.

        Raises
        ------
        OSError
            It cannot be read.
        Unsupported
            There is no file store.
        BackendUnavailable
            The server or its file store cannot be reached for a long time.
        Conflict
            Something has the same name, and is not to be replaced.
        """
        given = source if isinstance(source, bytes) else Path(source)
        file = await upload(self._client(), given, filename=filename, content_type=content_type, job_id=self._job_id)
        is_of_job = self._where.job_id is not None and self._where.name is None
        replaces = is_of_job if replace is None else replace
        item = NewItem(name, to_json(data), category, replaces, file.id, filename or _name_of(given), content_type)
        return await self._client().add_item(self._where, item)

    async def adownload(self, name: str, target: str | PathLike[str] = ".") -> Path:
        """Download the file of an artifact, verify it, and return its path.

        Parameters
        ----------
        target:
            Where to; in a directory, it is called as it was.

        Raises
        ------
        NotFound
            There is no such artifact.
        OSError
            It cannot be written.
        HashMismatch
            What has come is not what was uploaded.
        BackendUnavailable
            The server or its file store cannot be reached for a long time.
        """
        return await download(self._client(), await self._file(name), Path(target))

    async def aread(self, name: str) -> bytes:
        """Return what is in the file of an artifact; raises as ``adownload`` does."""
        return await content_of(self._client(), await self._file(name))

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
            There is none, or it is only promised.
        """
        return msgspec.json.decode((await self._item(name)).data)

    async def _item(self, name: str) -> Item:
        found = [item for item in await self.aitems(name=name) if item.kind != "promise"]
        if not found:
            raise NotFound(f"The collection has no item {name!r}.", resource_type="item", resource_id=name)
        return found[0]

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

    def add_file(self, name: str, source: str | PathLike[str] | bytes, **options: Any) -> Item:
        """Upload a file, and put it into the collection. See ``aadd_file``."""
        made: Item = self._wait(self.aadd_file(name, source, **options))
        return made

    def download(self, name: str, target: str | PathLike[str] = ".") -> Path:
        """Download the file of an artifact. See ``adownload``."""
        path: Path = self._wait(self.adownload(name, target))
        return path

    def read(self, name: str) -> bytes:
        """Return what is in the file of an artifact. See ``aread``."""
        content: bytes = self._wait(self.aread(name))
        return content

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
