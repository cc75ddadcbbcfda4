"""How are handlers run in processes of their own? A few children that import the application once, each killable."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from typing import Any, Final

import msgspec

from ojster.app import JobType
from ojster.context import Released
from ojster.jobs.failure import Failure
from ojster.jobs.messages import Release

_HEADER: Final = 4


class ChildCrashed(Exception):
    """A handler failed in its child process, or the process died."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


class ReleasedInChild(Released):
    """A handler lets go of its job in its child process."""

    def __init__(self, what: Release) -> None:
        super().__init__(what.then)
        self._what = what

    def release(self, job_id: str, worker_id: str, attempt: int) -> Release:
        """Return what the worker is to tell the server."""
        return msgspec.structs.replace(self._what, job_id=job_id, worker_id=worker_id, attempt=attempt)


class _Child:
    """A child process and the socket to it."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.reader: asyncio.StreamReader
        self.writer: asyncio.StreamWriter | None = None
        self._killed = False

    async def connect(self, sock: socket.socket) -> None:
        """Talk to the process over ``sock``, which is closed if this fails."""
        try:
            self.reader, self.writer = await asyncio.open_connection(sock=sock)
        except BaseException:
            sock.close()
            self.kill()
            raise

    def kill(self) -> None:
        """End the process and all that it started. Once only: its number may be another's by the second time."""
        if self._killed:
            return
        self._killed = True
        if self.writer is not None:
            self.writer.close()
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            return

    async def call(self, module: str, type: str, args: list[Any]) -> Any:
        """Run a handler in the child and return its result."""
        assert self.writer is not None
        request = msgspec.json.encode({"module": module, "type": type, "args": args})
        self.writer.write(len(request).to_bytes(_HEADER, "big") + request)
        await self.writer.drain()
        size = int.from_bytes(await self.reader.readexactly(_HEADER), "big")
        answer = msgspec.json.decode(await self.reader.readexactly(size))
        if "failure" in answer:
            raise ChildCrashed(msgspec.convert(answer["failure"], Failure))
        if "release" in answer:
            raise ReleasedInChild(msgspec.convert(answer["release"], Release))
        return answer["result"]


class ChildPool:
    """Child processes that wait for work. There are as many as were ever needed at once."""

    def __init__(self) -> None:
        self._idle: list[_Child] = []
        self._all: set[_Child] = set()

    async def run(self, handler: JobType[Any, Any], args: list[Any]) -> Any:
        """Run a handler in a child; if this is cancelled, the child is killed.

        Raises
        ------
        ChildCrashed
            The handler raised, or its process died.
        """
        child = await self._take()
        try:
            result = await child.call(handler.function.__module__, handler.type, args)
        except (asyncio.IncompleteReadError, ConnectionError):
            child.kill()
            status = await child.process.wait()
            how = f"was killed by signal {-status}" if status < 0 else f"exited with status {status}"
            failure = Failure("ProcessDied", f"The process that ran the job {how}.", code="handler_error")
            raise ChildCrashed(failure) from None
        except (ChildCrashed, ReleasedInChild):
            self._idle.append(child)
            raise
        except BaseException:
            child.kill()
            raise
        self._idle.append(child)
        return result

    async def close(self) -> None:
        """End all children, and wait until they are gone, those that were killed before too."""
        children, self._all, self._idle = self._all, set(), []
        for child in children:
            child.kill()
        await asyncio.gather(*(child.process.wait() for child in children))

    async def _take(self) -> _Child:
        while self._idle:
            child = self._idle.pop()
            if child.process.returncode is None:
                return child
        self._all = {child for child in self._all if child.process.returncode is None}
        return await self._start()

    async def _start(self) -> _Child:
        ours, theirs = socket.socketpair()
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "ojster.worker.child",
                str(theirs.fileno()),
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        # Wrapping a connected socket does not wait for the network, but may be cancelled: the child is known before.
        child = _Child(process)
        self._all.add(child)
        await child.connect(ours)
        return child
