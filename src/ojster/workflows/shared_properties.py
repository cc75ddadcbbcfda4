"""How does a handler share what it knows with the other tasks of its workflow? (seed 002: properties of the job)"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

import msgspec

from ojster.client.interface import Client
from ojster.core.job import Job
from ojster.core.values import to_json
from ojster.workflows.properties import Properties, PropertyChange
from ojster.workflows.property_values import Changes, PropertyConflict

R = TypeVar("R")

MOST_TRIES: Final = 100
"""How often ``update`` begins anew because others have changed the same property."""


class SharedProperties:
    """What the tasks of a workflow share: named values that JSON can say.

    A handler gets it as ``job.properties``. Methods that begin with ``a`` are for asynchronous handlers, the others for
    plain functions. All of them raise ``Conflict`` if the job has lost its lease: then the handler should stop.
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
        """Return all values, by name."""
        return {name: one.decoded() for name, one in (await self._read()).items()}

    async def aget(self, name: str, default: Any = None) -> Any:
        """Return a value, or ``default`` if it is not there."""
        known = await self._read()
        return known[name].decoded() if name in known else default

    async def aset(self, **values: Any) -> None:
        """Set values, whatever others have set them to; all or none.

        Raises
        ------
        PayloadTooLarge
            One takes more than 64 KiB as JSON.
        """
        await self._change(Changes({name: msgspec.Raw(to_json(value)) for name, value in values.items()}))

    async def adelete(self, *names: str) -> None:
        """Delete values; those that are not there stay so."""
        await self._change(Changes(delete=names))

    async def aupdate(self, name: str, change: Callable[[Any], Any], default: Any = None) -> Any:
        """Set a value to what ``change`` makes of it, so that nobody's change is lost; return the new one.

        ``change`` is called again with the newer value if somebody else was faster.

        Parameters
        ----------
        default:
            What ``change`` is given if the value is not there.

        Raises
        ------
        PropertyConflict
            Others were faster a hundred times.
        """
        for left in reversed(range(MOST_TRIES)):
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
        raise AssertionError  # the last try has returned or raised

    def all(self) -> dict[str, Any]:
        """Return all values, by name."""
        return self._wait(self.aall())

    def get(self, name: str, default: Any = None) -> Any:
        """Return a value, or ``default`` if it is not there."""
        return self._wait(self.aget(name, default))

    def set(self, **values: Any) -> None:
        """Set values. See ``aset``."""
        self._wait(self.aset(**values))

    def delete(self, *names: str) -> None:
        """Delete values. See ``adelete``."""
        self._wait(self.adelete(*names))

    def update(self, name: str, change: Callable[[Any], Any], default: Any = None) -> Any:
        """Set a value to what ``change`` makes of it. See ``aupdate``."""
        return self._wait(self.aupdate(name, change, default))

    async def _read(self) -> Properties:
        return await self._client.properties(self._id)

    async def _change(self, changes: Changes) -> None:
        change = PropertyChange(self._id, changes, self._job.id, self._worker_id, self._job.attempt)
        await self._client.change_properties(change)

    @property
    def _id(self) -> str:
        if self._workflow_id is None:
            raise LookupError(f"The job {self._job.id} is of no workflow that could have properties.")
        return self._workflow_id

    def _wait(self, call: Coroutine[Any, Any, R]) -> R:
        return wait_in_thread(call, self._loop)


def wait_in_thread(call: Coroutine[Any, Any, R], loop: asyncio.AbstractEventLoop) -> R:
    """Return what a call returns that is made in the worker's loop, to a plain function in a thread.

    Raises
    ------
    RuntimeError
        It is called in the loop itself, which would wait for itself.
    """
    try:
        running: asyncio.AbstractEventLoop | None = asyncio.get_running_loop()
    except RuntimeError:
        running = None
    if running is loop:
        name = getattr(call, "__name__", "")
        call.close()
        raise RuntimeError(f"An asynchronous handler would wait for itself here; it calls: await ….{name}(…)")
    return asyncio.run_coroutine_threadsafe(call, loop).result()
