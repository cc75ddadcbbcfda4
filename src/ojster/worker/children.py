"""Child processes for handlers: each imports the application once, runs handlers, and can be killed."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
import types
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from ojster.core.declared_options import Bytes, CheckedOptions, PositiveCount
from ojster.core.job import Job
from ojster.handlers.job_type import JobType
from ojster.handlers.kept_logs import LogReports, log_again
from ojster.handlers.outcomes import Released
from ojster.jobs.failure import Failure
from ojster.jobs.job_logs import NewLine
from ojster.jobs.messages import Release
from ojster.storage.database import without_urls
from ojster.storage.open import MEMORY

log = logging.getLogger(__name__)

_HEADER: Final = 4

FAREWELL_SECONDS: Final = 10.0
"""Longest time that an idle child process has to shut down, in seconds."""

_NOTHING: Final = types.SimpleNamespace()


class ChildCrashed(Exception):
    """A handler failed in its child process, or the process died.

    ``class_names``: the names of the classes that its exception belongs to, as in ``give_up_on``.
    """

    def __init__(self, failure: Failure, class_names: Sequence[str] = ()) -> None:
        super().__init__(failure.message)
        self.failure = failure
        self.class_names = class_names


class ReleasedInChild(Released):
    """A handler released its job in its child process."""

    def __init__(self, release: Release) -> None:
        super().__init__(release.then)
        self._release = release

    def release(self, job_id: str, worker_id: str, attempt: int) -> Release:
        """Return the release to report to the server."""
        return msgspec.structs.replace(self._release, job_id=job_id, worker_id=worker_id, attempt=attempt)


class _Child:
    """A child process and the socket to it."""

    def __init__(self, process: asyncio.subprocess.Process, lifeline: int) -> None:
        self.process = process
        self.jobs = 0
        self.peak = 0
        """The largest memory that it has had, in bytes."""
        self.is_set_up = True
        """Whether the function that is called before handlers are imported has not failed."""
        self._lifeline = lifeline
        self.reader: asyncio.StreamReader
        self.writer: asyncio.StreamWriter | None = None
        self._killed = False

    async def connect(self, sock: socket.socket) -> None:
        """Connect to the process over ``sock``. If this fails, close the socket and kill the process."""
        try:
            self.reader, self.writer = await asyncio.open_connection(sock=sock)
        except BaseException:
            sock.close()
            self.kill()
            raise

    def kill(self) -> None:
        """Kill the process and its process group. Only the first call acts, because the pid may be reused."""
        if self._killed:
            return
        self._killed = True
        os.close(self._lifeline)
        if self.writer is not None:
            self.writer.close()
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            return

    async def dismiss(self, patience: float) -> None:
        """Let the idle process end its lifespan and exit; kill it, with all that it has started, if it does not."""
        try:
            if self.writer is not None and not self._killed:
                self.writer.close()
                await asyncio.wait_for(self.process.wait(), patience)
        except TimeoutError:
            log.warning("a child process did not shut down within %g seconds and is killed", patience)
        finally:
            self.kill()

    async def call(
        self, handler: JobType[Any, Any], args: list[Any], job: Job | None, root: str | None, log: LogReports | None
    ) -> Any:
        """Run a handler in the child and return its result; ``log`` gets its lines while it runs."""
        assert self.writer is not None
        app = getattr(handler.app, "root", handler.app)
        request = msgspec.json.encode(
            {
                "setup": getattr(app, "child_setup", None),
                "module": handler.function.__module__,
                "root": root,
                "type": handler.type,
                "args": args,
                "job": job,
                "url": _url_of(app),
                "keep_logs": None if log is None else log.level,
            }
        )
        self.writer.write(len(request).to_bytes(_HEADER, "big") + request)
        await self.writer.drain()
        while True:
            size = int.from_bytes(await self.reader.readexactly(_HEADER), "big")
            answer = msgspec.json.decode(await self.reader.readexactly(size))
            if "record" in answer:
                log_again(logging.makeLogRecord(answer["record"]))
            elif "line" not in answer:
                break
            elif log is not None:
                log.offer(msgspec.convert(answer["line"], NewLine))
        self.jobs += 1
        self.peak = answer["peak"]
        if "failure" in answer:
            self.is_set_up = answer["is_set_up"]
            raise ChildCrashed(msgspec.convert(answer["failure"], Failure), answer["class_names"])
        if "release" in answer:
            raise ReleasedInChild(msgspec.convert(answer["release"], Release))
        return answer["result"]


def _url_of(app: object) -> str | None:
    """Return the database or server of an application; ``None``: the child cannot reach it."""
    url: str | None = getattr(app, "url", None)
    return None if url == MEMORY else url


class ChildLimits(CheckedOptions, frozen=True, kw_only=True):
    """When a process is replaced between two jobs: a child of a worker, or a worker. ``None``, the default: never.

    Parameters
    ----------
    max_jobs:
        After so many jobs.
    max_memory:
        After it has used so many bytes of memory at once.

    Examples
    --------
    >>> from ojster import App, ChildLimits, Worker
    >>> app = App("sqlite:///:memory:")
    >>> worker = Worker(app, children=ChildLimits(max_jobs=1_000, max_memory=512 * 2**20))
    >>> app.close()
    """

    max_jobs: PositiveCount | None = None
    max_memory: Bytes | None = None


class ChildPool:
    """Idle child processes for reuse. The pool grows to the largest number ever needed at once.

    Parameters
    ----------
    limits:
        When a child is replaced.
    """

    def __init__(self, limits: ChildLimits = ChildLimits()) -> None:  # noqa: B008  (it is frozen)
        self._limits = limits
        self._idle: list[_Child] = []
        self._all: set[_Child] = set()
        self._farewells: set[asyncio.Task[None]] = set()
        self._modules: dict[Any, str | None] = {}

    async def run(
        self, handler: JobType[Any, Any], args: list[Any], job: Job | None = None, log: LogReports | None = None
    ) -> Any:
        """Run a handler in a child. Cancelling this call kills the child.

        Parameters
        ----------
        args:
            The arguments of the job.
        job:
            The job, if the handler or a middleware wants it.
        log:
            What gets the lines that the handler logs; ``None``, the default: they are not kept.

        Raises
        ------
        ChildCrashed
            The handler raised an exception, or its process died.
        ReleasedInChild
            The handler released its job.
        """
        child = await self._take()
        try:
            result = await child.call(handler, args, job, self._root_of(handler), log)
        except (asyncio.IncompleteReadError, ConnectionError):
            child.kill()
            status = await child.process.wait()
            how = f"was killed by signal {-status}" if status < 0 else f"exited with status {status}"
            failure = Failure("ProcessDied", f"The process that ran the job {how}.", code="handler_error")
            raise ChildCrashed(failure) from None
        except (ChildCrashed, ReleasedInChild):
            self._keep(child)
            raise
        except BaseException:
            child.kill()
            raise
        self._keep(child)
        return result

    def _root_of(self, handler: JobType[Any, Any]) -> str | None:
        """Return the module of the application that includes the handler's; ``None`` if nothing includes it.

        Raises
        ------
        LookupError
            The application is in no module that a child could import.
        """
        root = getattr(handler.app, "root", handler.app)
        if root is handler.app:
            return None
        if root not in self._modules:
            modules = [
                name
                for name, module in list(sys.modules.items())
                if any(value is root for value in list(vars(module or _NOTHING).values()))
            ]
            self._modules[root] = next((name for name in modules if name != "__main__"), None)
        if self._modules[root] is None:
            raise LookupError(
                f"The handler of {handler.type!r} runs in a child process, which imports the application that includes "
                "it; so that must be at the top of a module, and not of '__main__'."
            )
        return self._modules[root]

    def _keep(self, child: _Child) -> None:
        """Keep a child for the next job, unless it has done enough, or what was to set it up has failed halfway."""
        most = self._limits
        if (
            not child.is_set_up
            or (most.max_jobs is not None and child.jobs >= most.max_jobs)
            or (most.max_memory is not None and child.peak >= most.max_memory)
        ):
            farewell = asyncio.create_task(child.dismiss(FAREWELL_SECONDS))
            self._farewells.add(farewell)
            farewell.add_done_callback(self._farewells.discard)
        else:
            self._idle.append(child)

    async def close(self, patience: float = FAREWELL_SECONDS) -> None:
        """Dismiss idle children, kill all others, and wait until they have exited, including those killed before."""
        children, self._all = self._all, set()
        idle, self._idle = self._idle, []
        await asyncio.gather(*(child.dismiss(patience) for child in idle), *self._farewells)
        for child in children:
            child.kill()
        await asyncio.gather(*(child.process.wait() for child in children))

    async def _take(self) -> _Child:
        while self._idle:
            child = self._idle.pop()
            if child.process.returncode is None:
                return child
            child.kill()  # it has died while it was idle
        self._all = {child for child in self._all if child.process.returncode is None}
        return await self._start()

    async def _start(self) -> _Child:
        if sys.platform == "win32":
            message = "Child processes need system calls that Windows lacks. Run the handler in a thread, or in WSL."
            raise ChildCrashed(Failure("Unsupported", message, retryable=False))
        ours, theirs = socket.socketpair()
        lifeline, end = os.pipe()  # not inheritable: only this process has the end that it keeps
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "ojster.worker.child",
                str(theirs.fileno()),
                str(lifeline),
                str(logging.getLogger().level),
                pass_fds=(theirs.fileno(), lifeline),
                env=without_urls(os.environ),  # what handlers start must not learn the password of the database
                start_new_session=True,
            )
        except BaseException:
            ours.close()
            os.close(end)
            raise
        finally:
            theirs.close()
            os.close(lifeline)
        # Connecting does not wait for the network but may be cancelled, so the child is registered before it.
        child = _Child(process, end)
        self._all.add(child)
        await child.connect(ours)
        return child
