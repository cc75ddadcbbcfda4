"""Calls about files, collections, and the history of tasks."""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec

from ojster.collections import contents
from ojster.collections.contents import Collection, Place
from ojster.collections.items import Item, Lookup, NewItem, Where, check_collection_name
from ojster.core.errors import Unsupported
from ojster.core.tenant import split
from ojster.files.file import File, NewFile
from ojster.files.streams import Archive
from ojster.insight import task_history
from ojster.insight.task_values import MOST_SHOWN as MOST_SHOWN_TASKS
from ojster.insight.task_values import TaskFilter, TaskRun, TaskStatistics
from ojster.scope import View


class CollectionCalls(View):
    """Calls about files, collections, and the history of tasks."""

    # Files

    @property
    def files(self) -> Archive:
        """The files in the caller's tenant scope.

        Raises
        ------
        Unsupported
            No file store is configured.
        """
        if self.store is None:
            raise Unsupported(
                "No file store is configured. Start the server with --files DIRECTORY or --files s3://BUCKET."
            )
        return Archive(self, self.store)

    async def create_file(self, new: NewFile) -> File:
        """Begin an upload. See ``Archive.create``."""
        return await self.files.create(new)

    async def write_file(self, file_id: str, offset: int, source: AsyncIterator[bytes]) -> File:
        """Append bytes to an upload. See ``Archive.write``."""
        return await self.files.write(file_id, offset, source)

    async def find_file(self, file_id: str, job_id: str | None = None) -> File:
        """Return a file. See ``Archive.find``."""
        return await self.files.find(file_id, job_id)

    async def list_files(self, limit: int = 50, before: str | None = None) -> list[File]:
        """Return files. See ``Archive.list``."""
        return await self.files.list(limit, before)

    async def read_file(self, file_id: str, start: int = 0) -> AsyncIterator[bytes]:
        """Return the bytes of a file. See ``Archive.read``."""
        return await self.files.read(file_id, start)

    async def delete_file(self, file_id: str) -> None:
        """Delete a file. See ``Archive.delete``."""
        await self.files.delete(file_id)

    # Tasks

    async def task_runs(self, chosen: TaskFilter = TaskFilter()) -> list[TaskRun]:  # noqa: B008  (frozen)
        """Return the recorded runs of tasks that match, newest first."""
        return await self.look(task_history.list_runs, self._tasks(chosen))

    async def task_statistics(self, chosen: TaskFilter = TaskFilter()) -> list[TaskStatistics]:  # noqa: B008  (frozen)
        """Return how often tasks have succeeded and failed, and how long they took."""
        return await self.look(task_history.list_statistics, self._tasks(chosen))

    def _tasks(self, chosen: TaskFilter) -> TaskFilter:
        return msgspec.structs.replace(chosen, tenant=self.tenant, limit=max(1, min(chosen.limit, MOST_SHOWN_TASKS)))

    # Collections

    async def create_collection(self, name: str, description: str | None = None) -> Collection:
        """Create a named collection.

        Raises
        ------
        InvalidRequest
            The name is invalid.
        Conflict
            A collection with this name exists.
        """
        new = contents.NewCollection(self.named(check_collection_name(name)), description, self.who)
        return await self.do(contents.create_collections, new)

    async def collections(self) -> list[Collection]:
        """Return the named collections, by name."""
        found = await self.database.read(contents.list_collections, None)
        return [one for name, one in found if self.sees(split(name)[0])]

    async def delete_collection(self, name: str, *, force: bool = False) -> None:
        """Delete a named collection with its items and their history.

        Raises
        ------
        NotFound
            The collection does not exist.
        Conflict
            The collection has items, and ``force`` is false.
        """
        await self.do(contents.delete_collections, contents.Removal(self.named(name), force))

    async def add_item(self, where: Where, item: NewItem) -> Item:
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
        return await self.do(contents.add, contents.Addition(self._place(where), item.check(), self.who))

    async def remove_item(self, where: Where, name: str) -> Item:
        """Remove an item from a collection, keep it in the history, and return it.

        Raises
        ------
        NotFound
            The collection, workflow or item does not exist.
        """
        return await self.do(contents.remove, contents.ItemRemoval(self._place(where), name, self.who))

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
        question = contents.ItemQuery(self._place(where), lookup or Lookup(""), history)
        return await self.look(contents.show, question)

    def _place(self, where: Where) -> Place:
        name = None if where.name is None else self.named(where.name)
        return Place(name, where.workflow_id, where.job_id, self.tenant)
