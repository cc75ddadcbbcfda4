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
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from ojster.jobs.failure import Failure, clean
from ojster.workflows.property_values import LARGEST_NOTE

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
LONGEST_TALK: Final = 8 * 2**20
MOST_FRAMES: Final = 2_000
LONGEST_OUTPUT: Final = 65_536
"""How much a child may say: at once, in all, in how many pieces, and of what it prints."""

LARGEST_DETAILS: Final = 16_384
LONGEST_TYPE: Final = 200
"""How much of an error is passed on: of its details, in bytes, and of its type."""

LAST_WORDS: Final = 2.0
"""How long to wait for the end of a child that was killed, in seconds."""

STALE: Final = 86_400.0
"""After how many seconds a directory of a child is removed whose worker was killed before it could."""

LOOK_AGAIN: Final = 0.1
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
        details, retryable, lines = (self.error.get(name) for name in ("details", "retryable", "backtrace"))
        if not isinstance(details, dict) or len(msgspec.json.encode(details)) > LARGEST_DETAILS:
            details = None
        return Failure(
            type=clean(str(self.error.get("type"))[:LONGEST_TYPE]),
            message=clean(str(self.error.get("message"))),
            code=clean(str(self.error.get("code", "handler_error"))[:LONGEST_TYPE]),
            retryable=retryable if isinstance(retryable, bool) else None,
            details=details,
            backtrace=tuple(clean(str(line)) for line in lines) if isinstance(lines, list) else (),
        )


class _Frame(msgspec.Struct):
    """What a child says; that of its end is decoded once it is known to be that."""

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
        await asyncio.to_thread(_remove_stale)
        try:
            end = await self.run(Request("def body(job): return 1"), timeout=30.0)
            if end.failure is None and self.guarantee == "confined":
                prober = Sandbox(("fcntl", "os", "socket"), memory=self.memory, restricted=False)
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
                "parent": os.getpid(),
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
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(LAST_WORDS):
                        await process.stdout.read()  # or its end is never seen, if nobody has read all that it said
                        await process.wait()

    async def _talk(
        self, process: asyncio.subprocess.Process, request: bytes, on_note: Callable[[bytes], Awaitable[None]] | None
    ) -> End:
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # how it ended is known below
            process.stdin.write(len(request).to_bytes(4, "big") + request)
            await process.stdin.drain()
        room = LONGEST_TALK
        for _ in range(MOST_FRAMES):
            try:
                size = int.from_bytes(await process.stdout.readexactly(4), "big")
                room -= size
                if size > LARGEST_FRAME or room < 0:
                    raise CodeFailed(Failure("OutputTooLarge", f"The code said {size} bytes at once, or too much."))
                raw = await process.stdout.readexactly(size)
                frame = msgspec.json.decode(raw, type=_Frame)
                if frame.unconfined is not None:
                    raise CodeFailed(Failure("NotConfined", f"The code cannot be confined here: {frame.unconfined}"))
                if frame.note is msgspec.UNSET:
                    end = msgspec.json.decode(raw, type=End)
                    end.output = clean(end.output[:LONGEST_OUTPUT])
                    return end
                if len(frame.note) > LARGEST_NOTE:
                    raise CodeFailed(Failure("OutputTooLarge", f"The code made a note of {len(frame.note)} bytes."))
                msgspec.json.decode(frame.note)  # or it is refused
            except asyncio.IncompleteReadError:
                raise CodeFailed(await _death_of(process)) from None
            except (msgspec.MsgspecError, ValueError, RecursionError) as error:
                raise CodeFailed(Failure("Unreadable", f"The child said something unreadable: {error}")) from None
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


def _remove_stale() -> None:
    """Remove what is left of children whose workers were killed."""
    for path in Path(tempfile.gettempdir()).glob("ojster-code-*"):
        with contextlib.suppress(OSError):
            if path.stat().st_mtime < time.time() - STALE:
                shutil.rmtree(path, ignore_errors=True)


async def _watch(process: asyncio.subprocess.Process, scratch: str) -> None:
    """Kill a child that fills its scratch directory."""
    while process.returncode is None:
        files = size = 0
        with os.scandir(scratch) as entries:  # it can make no directories, and take nothing away
            for entry in entries:
                files += 1
                size += entry.stat(follow_symlinks=False).st_blocks * 512
                if files > MOST_FILES or size > LARGEST_SCRATCH:
                    _kill(process)
                    return
        await asyncio.sleep(LOOK_AGAIN)


_PROBE: Final = """
import fcntl, os, socket, sys

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
    attempt("it can have signals sent", lambda: fcntl.fcntl(1, fcntl.F_SETOWN, os.getppid()))
    attempt("it can truncate files", lambda: os.close(os.open(executable, 3)))
    attempt("it can make directories", lambda: os.mkdir("directory"))
    with open("probe.txt", "w") as file:
        file.write("scratch")
    with open("probe.txt") as file:
        assert file.read() == "scratch"
    return found
"""
"""Code that tries to get out, and returns how it could."""
