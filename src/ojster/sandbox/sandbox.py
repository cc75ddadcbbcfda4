"""How is code run that a job carries? In a child process of its own, which is confined, and killed when its time is up.

(Seed 002, "Task execution"; docs/node-workflow.md says what is guaranteed on which platform.)
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from ojster.model.failure import Failure, clean

DEFAULT_MODULES: Final = (
    "base64",
    "bisect",
    "collections",
    "datetime",
    "decimal",
    "fractions",
    "functools",
    "hashlib",
    "heapq",
    "html",
    "itertools",
    "json",
    "math",
    "random",
    "re",
    "statistics",
    "textwrap",
    "time",
    "unicodedata",
    "urllib.parse",
)
"""Modules that code may import, unless the worker says otherwise: those that only compute."""

DEFAULT_TIMEOUT: Final = 60.0
"""How many seconds code may run whose job does not say."""

DEFAULT_MEMORY: Final = 256 * 2**20
LARGEST_FILE: Final = 16 * 2**20
LARGEST_SCRATCH: Final = 64 * 2**20
MOST_FILES: Final = 1_000
"""What code may use of memory and of its scratch directory, in bytes and in files."""

LARGEST_FRAME: Final = 2 * 2**20
MOST_FRAMES: Final = 2_000
"""How much a child may say."""

LOOK_AGAIN: Final = 0.2
"""How often it is looked how large the scratch directory is, in seconds."""

_CHILD: Final = str(Path(__file__).with_name("child.py"))

Guarantee = Literal["confined", "weak"]


class NotConfined(Exception):
    """The platform cannot keep code from what it should not touch."""


class CodeFailed(Exception):
    """Code that was run in the sandbox failed; ``failure`` says how."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


class Request(msgspec.Struct, frozen=True):
    """Code that is to be run, and what it is given.

    Parameters
    ----------
    body:
        Python source with a function ``body``.
    modules:
        What it may import; ``None``: all that is allowed.
    args:
        What ``body`` is called with beside the job.
    properties:
        What the tasks of the workflow share.
    """

    body: str
    modules: tuple[str, ...] | None = None
    args: tuple[Any, ...] = ()
    id: str = ""
    attempt: int = 1
    workflow_id: str | None = None
    properties: dict[str, Any] = {}
    params: dict[str, Any] = {}
    target: str | None = None
    results: dict[str, Any] = {}
    resumed: Any = None


class End(msgspec.Struct):
    """How code has ended: with a result, letting go of its job, or with an error.

    Parameters
    ----------
    properties:
        What the tasks of the workflow share now, if the code has changed that.
    output:
        What it has printed.
    means:
        By what it was confined.
    """

    result: Any = None
    release: dict[str, Any] | None = None
    error: dict[str, Any] | None = None
    properties: dict[str, Any] | None = None
    output: str = ""
    means: tuple[str, ...] = ()

    @property
    def failure(self) -> Failure | None:
        """How the attempt is reported, if it failed."""
        if self.error is None:
            return None
        details, retryable = self.error.get("details"), self.error.get("retryable")
        return Failure(
            type=clean(str(self.error.get("type"))),
            message=clean(str(self.error.get("message"))),
            code=clean(str(self.error.get("code", "handler_error"))),
            retryable=retryable if isinstance(retryable, bool) else None,
            details=details if isinstance(details, dict) else None,
            backtrace=tuple(clean(str(line)) for line in self.error.get("backtrace", ())),
        )


class _Frame(End):
    note: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    unconfined: str | None = None


class Sandbox:
    """Runs code that jobs carry.

    Parameters
    ----------
    modules:
        What code may import.
    values:
        What else is there for it, by name: what JSON can say.
    memory:
        How many bytes of memory it may use.
    weak:
        Whether to run code although the platform cannot confine it.
    restricted:
        Whether code is kept to a part of Python. What confines it holds without that, too.
    """

    def __init__(
        self,
        modules: Sequence[str] = DEFAULT_MODULES,
        *,
        values: Mapping[str, Any] | None = None,
        memory: int = DEFAULT_MEMORY,
        weak: bool = False,
        restricted: bool = True,
    ) -> None:
        self.modules = tuple(modules)
        self.values = dict(values or {})
        self.memory = memory
        self.restricted = restricted
        self.without: tuple[str, ...] = ()
        """Means of confinement that are not used, to try what the others are good for."""
        self.guarantee: Guarantee = "weak" if weak else "confined"

    async def check(self) -> tuple[str, ...]:
        """Try whether code is confined, by code that tries to get out; return by what means it is.

        Raises
        ------
        NotConfined
            It is not, or the extra is not installed.
        """
        try:
            end = await self.run(Request("def body(job): return 1"), timeout=30.0)
            if end.failure is None and self.guarantee == "confined":
                prober = Sandbox(("os", "socket"), memory=self.memory, restricted=False)
                prober.without = self.without
                end = await prober.run(Request(_PROBE, args=(sys.executable,)), timeout=30.0)
        except CodeFailed as error:
            raise NotConfined(error.failure.message) from None
        if end.failure is not None:
            raise NotConfined(f"the sandbox does not work: {end.failure.message}")
        if self.guarantee == "confined" and end.result:
            raise NotConfined(f"code can get out: {', '.join(map(str, end.result))}")
        return end.means

    async def run(
        self,
        request: Request,
        *,
        timeout: float | None = None,
        on_note: Callable[[bytes], Awaitable[None]] | None = None,
    ) -> End:
        """Run code, and return how it has ended. If this is cancelled, or the time is up, the child is killed.

        Parameters
        ----------
        timeout:
            How many seconds it may run.
        on_note:
            Called with each note that the code makes, as JSON.

        Raises
        ------
        CodeFailed
            The child was killed, died, or said something that nobody understands.
        """
        wanted = self.modules if request.modules is None else request.modules
        if unknown := sorted(set(wanted) - set(self.modules)):
            raise CodeFailed(
                Failure(
                    "ModuleNotAllowed",
                    f"The worker does not allow the module {unknown[0]!r}; it allows: {', '.join(self.modules)}.",
                    retryable=False,
                )
            )
        seconds = DEFAULT_TIMEOUT if timeout is None else timeout
        async with _scratch() as scratch:
            given = msgspec.structs.asdict(request) | {
                "modules": wanted,
                "values": self.values,
                "raw": not self.restricted,
                "without": self.without,
                "scratch": None if self.guarantee == "weak" else scratch,
                "limits": {"memory": self.memory, "seconds": math.ceil(seconds) + 1, "file": LARGEST_FILE},
            }
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-I",
                "-B",
                _CHILD,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
                cwd=scratch,
                env={"LANG": "C.UTF-8"},
                start_new_session=True,
            )
            watching = asyncio.create_task(_watch(process, scratch))
            try:
                async with asyncio.timeout(seconds):
                    return await self._talk(process, msgspec.json.encode(given), on_note)
            except TimeoutError:
                raise CodeFailed(
                    Failure("timeout", f"The job ran longer than {seconds:g} seconds.", code="timeout")
                ) from None
            finally:
                watching.cancel()
                _kill(process)
                assert process.stdout is not None
                await process.stdout.read()  # or its end would never be seen, if nobody has read all that it said
                await process.wait()

    async def _talk(
        self, process: asyncio.subprocess.Process, request: bytes, on_note: Callable[[bytes], Awaitable[None]] | None
    ) -> End:
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # how it ended is known below
            process.stdin.write(len(request).to_bytes(4, "big") + request)
            await process.stdin.drain()
        for _ in range(MOST_FRAMES):
            try:
                size = int.from_bytes(await process.stdout.readexactly(4), "big")
                if size > LARGEST_FRAME:
                    raise CodeFailed(Failure("OutputTooLarge", f"The code said {size} bytes at once."))
                frame = msgspec.json.decode(await process.stdout.readexactly(size), type=_Frame)
            except asyncio.IncompleteReadError:
                raise CodeFailed(await _death_of(process)) from None
            except msgspec.MsgspecError as error:
                raise CodeFailed(Failure("Unreadable", f"The child said something unreadable: {error}")) from None
            if frame.unconfined is not None:
                raise CodeFailed(Failure("NotConfined", f"The code cannot be confined here: {frame.unconfined}"))
            if frame.note is msgspec.UNSET:
                return frame
            if on_note is not None:
                await on_note(bytes(frame.note))
        raise CodeFailed(Failure("OutputTooLarge", f"The code made more than {MOST_FRAMES} notes."))


async def _death_of(process: asyncio.subprocess.Process) -> Failure:
    """Say how a child died that has not said how its code ended."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(1.0):
            await process.wait()
    status = process.returncode
    if status is not None and -status == signal.SIGXCPU:
        return Failure("CpuLimit", "The code used more processor time than it may.", code="timeout")
    if status is not None and status < 0:
        return Failure("ProcessDied", f"The process that ran the code was killed by signal {-status}.")
    return Failure("ProcessDied", f"The process that ran the code ended with status {status}, without a word.")


def _kill(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


@asynccontextmanager
async def _scratch() -> AsyncIterator[str]:
    """Make a directory for the code, and remove it with all that is in it."""
    scratch = tempfile.mkdtemp(prefix="ojster-code-")
    try:
        if os.geteuid() == 0:
            os.chown(scratch, 65_534, 65_534)  # whom the child becomes
        yield scratch
    finally:
        await asyncio.to_thread(shutil.rmtree, scratch, ignore_errors=True)


async def _watch(process: asyncio.subprocess.Process, scratch: str) -> None:
    """Kill a child that fills its scratch directory."""
    while process.returncode is None:
        files, size = 0, 0
        for place, directories, names in os.walk(scratch):
            files += len(names) + len(directories)
            with contextlib.suppress(OSError):  # it may be gone by now
                size += sum(os.lstat(os.path.join(place, name)).st_blocks * 512 for name in names)
            if files > MOST_FILES or size > LARGEST_SCRATCH:
                _kill(process)
                return
        await asyncio.sleep(LOOK_AGAIN)


_PROBE: Final = """
import os, socket, sys

def body(job, executable):
    found = []
    def attempt(what, action):
        try:
            action()
        except OSError:
            return
        except (AttributeError, ValueError) as error:
            found.append(f"{what}: {error}")
            return
        found.append(what)
    attempt("it can read files", lambda: os.close(os.open(executable, os.O_RDONLY)))
    attempt("it can read /proc", lambda: os.close(os.open("/proc/self/environ", os.O_RDONLY)))
    attempt("it can list /", lambda: os.listdir("/etc"))
    attempt("it can write files", lambda: os.close(os.open("/tmp/ojster-probe", os.O_WRONLY | os.O_CREAT)))
    attempt("it has a network", lambda: socket.socket().close())
    attempt("it can make processes", lambda: os.fork() or os._exit(0))
    attempt("it can run programs", lambda: os.execv(executable, [executable, "-c", "pass"]))
    attempt("it can send signals", lambda: os.kill(os.getppid(), 0))
    with open("probe.txt", "w") as file:
        file.write("scratch")
    with open("probe.txt") as file:
        assert file.read() == "scratch"
    return found
"""
"""Code that tries to get out, and returns how it could."""
