"""Shared properties: named JSON values that the jobs of a workflow read and change."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

import msgspec

from ojster.client.interface import Client
from ojster.client.plain_methods import plain
from ojster.core.job import Job
from ojster.core.property_values import Changes, Property, PropertyConflict
from ojster.core.values import to_json
from ojster.workflows.properties import PropertyChange

R = TypeVar("R")

MAX_UPDATE_ATTEMPTS: Final = 100
"""Maximum number of attempts of ``update`` when other jobs change the same property."""


class SharedProperties:
    """The shared properties of a workflow: named JSON values.

    A handler gets it as ``job.properties``. Methods that begin with ``a`` are for asynchronous handlers, the others for
    plain functions; those raise ``RuntimeError`` in a coroutine. Methods that change a value raise ``Conflict`` if the
    job has lost its lease; the handler should then stop. All methods raise ``LookupError`` if the job belongs to no
    workflow.

    Parameters
    ----------
    client:
        Client of the worker.
    job, workflow_id:
        The job, and the id of its workflow.
    worker_id:
        Id of the worker.
    loop:
        Event loop of the worker.

    Examples
    --------
    >>> import asyncio
    >>> from ojster import App, JobContext, Worker, group
    >>> app = App("sqlite:///:memory:")
    >>> @app.job("total.add")
    ... def add(job: JobContext, number: int) -> None:
    ...     job.properties.update("total", lambda total: total + number, default=0)
    >>> async def main() -> None:
    ...     run = await app.astart(group(add.s(1), add.s(2)))
    ...     await Worker(app).run(until_empty=True)
    ...     print(await run.aproperties())
    ...     await app.aclose()
    >>> asyncio.run(main())
    {'total': 3}
    """

    def __init__(
        self, client: Client, job: Job, workflow_id: str | None, worker_id: str, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._client = client
        self._job = job
        self._workflow_id = workflow_id
        self._worker_id = worker_id
        self._loop = loop

    async def aall(self) -> dict[str, Any]:
        """Return all values.

        Returns
        -------
        dict
            The values, by name.
        """
        return {name: stored.decoded() for name, stored in (await self._read()).items()}

    all = plain(aall)

    async def aget(self, name: str, default: Any = None) -> Any:
        """Return a value.

        Parameters
        ----------
        name:
            Name of the property.
        default:
            Value to return if the property does not exist; ``None`` by default.

        Returns
        -------
        Any
            The value, or ``default``.
        """
        known = await self._read()
        return known[name].decoded() if name in known else default

    get = plain(aget)

    async def aset(self, /, **values: Any) -> None:
        """Set values, all or none, and overwrite concurrent changes by other jobs.

        Parameters
        ----------
        values:
            New values, by name.

        Raises
        ------
        PayloadTooLarge
            A value is larger than 64 KiB as JSON.
        TypeError
            A value is not a JSON value.
        """
        await self._change(Changes({name: msgspec.Raw(to_json(value)) for name, value in values.items()}))

    set = plain(aset)

    async def adelete(self, *names: str) -> None:
        """Delete values, and ignore names that do not exist.

        Parameters
        ----------
        names:
            Names of the properties to delete.
        """
        await self._change(Changes(delete=names))

    delete = plain(adelete)

    async def aupdate(self, name: str, change: Callable[[Any], Any], default: Any = None) -> Any:
        """Replace a value with ``change(value)`` atomically.

        If another job changes the property in between, ``change`` is called again with the newer value.

        Parameters
        ----------
        name:
            Name of the property.
        change:
            Function that returns the new value.
        default:
            Argument of ``change`` if the property does not exist; ``None`` by default.

        Returns
        -------
        Any
            The new value.

        Raises
        ------
        PropertyConflict
            Other jobs changed the property during each of 100 attempts.
        """
        for left in reversed(range(MAX_UPDATE_ATTEMPTS)):
            known = (await self._read()).get(name)
            value = change(default if known is None else known.decoded())
            version = 0 if known is None else known.version
            try:
                await self._change(Changes({name: msgspec.Raw(to_json(value))}, expected={name: version}))
            except PropertyConflict:
                if not left:
                    raise
            else:
                return value
        raise AssertionError  # the last attempt returns or raises

    update = plain(aupdate)

    async def _read(self) -> dict[str, Property]:
        return await self._client.workflows.properties(self._id)

    async def _change(self, changes: Changes) -> None:
        change = PropertyChange(self._id, changes, self._job.id, self._worker_id, self._job.attempt)
        await self._client.workflows.change_properties(change)

    @property
    def _id(self) -> str:
        if self._workflow_id is None:
            raise LookupError(f"Job {self._job.id} is in no workflow, so it has no properties. Start it as a step.")
        return self._workflow_id

    def _wait(self, call: Coroutine[Any, Any, R], /) -> R:
        return run_from_thread(call, self._loop)


def run_from_thread(call: Coroutine[Any, Any, R], loop: asyncio.AbstractEventLoop) -> R:
    """Run a coroutine in the worker's event loop, and return its result to the calling thread.

    Raises
    ------
    RuntimeError
        The caller runs in an event loop, that of the worker or of a flow, so waiting would deadlock.
    """
    try:
        running: asyncio.AbstractEventLoop | None = asyncio.get_running_loop()
    except RuntimeError:
        running = None
    if running is not None:
        name = getattr(call, "__name__", "")
        call.close()
        raise RuntimeError(f"A blocking call in an asynchronous handler would deadlock. Use: await ….{name}(…)")
    return asyncio.run_coroutine_threadsafe(call, loop).result()
