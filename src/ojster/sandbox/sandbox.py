"""Runs code carried by a job in a confined child process, and kills the process after a timeout.

docs/node-workflow.md lists the guarantees for each platform.
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

from ojster.core.property_values import MAX_NOTE_BYTES
from ojster.jobs.failure import Failure, clean

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
"""Modules that code may import by default: modules that only compute."""

DEFAULT_TIMEOUT_SECONDS: Final = 60.0
"""Default timeout of code, in seconds."""

DEFAULT_MEMORY_BYTES: Final = 256 * 2**20
"""Default memory limit of the child, in bytes."""
MAX_FILE_BYTES: Final = 16 * 2**20
"""Maximum size of a file that code writes, in bytes."""
MAX_SCRATCH_BYTES: Final = 64 * 2**20
"""Maximum total size of the scratch directory, in bytes."""
MAX_SCRATCH_FILES: Final = 1_000
"""Maximum number of files in the scratch directory."""

MAX_FRAME_BYTES: Final = 2 * 2**20
"""Maximum size of one frame from the child, in bytes."""
MAX_TOTAL_FRAME_BYTES: Final = 8 * 2**20
"""Maximum size of all frames from the child, in bytes."""
MAX_FRAMES: Final = 2_000
"""Maximum number of frames from the child."""
MAX_OUTPUT_CHARS: Final = 65_536
"""Maximum number of characters kept of the code's printed output."""

MAX_ERROR_DETAILS_BYTES: Final = 16_384
"""Maximum size of an error's details as JSON, in bytes; larger details are dropped."""
MAX_ERROR_TYPE_CHARS: Final = 200
"""Maximum length of an error's type and of its code, in characters."""

CHILD_EXIT_WAIT_SECONDS: Final = 2.0
"""Maximum wait for a killed child to exit, in seconds."""

STALE_SCRATCH_SECONDS: Final = 86_400.0
"""Minimum age, in seconds, at which a scratch directory left behind by a killed worker is removed."""

SCRATCH_CHECK_SECONDS: Final = 0.1
"""Interval between checks of the scratch directory's size, in seconds."""

_CHILD: Final = str(Path(__file__).with_name("child.py"))

Guarantee = Literal["confined", "weak"]


class NotConfined(Exception):
    """The platform cannot confine the code."""


class CodeFailed(Exception):
    """Code failed in the sandbox.

    ``failure`` describes the error, and ``class_names`` are those of the classes that it belongs to, as in
    ``give_up_on``.
    """

    def __init__(self, failure: Failure, class_names: Sequence[str] = ("builtins.Exception",)) -> None:
        super().__init__(failure.message)
        self.failure = failure
        self.class_names = class_names


class SandboxRequest(msgspec.Struct, frozen=True):
    """Code to run, and its input.

    Parameters
    ----------
    body:
        Python source that defines a function ``body``.
    modules:
        Modules that the code may import. ``None``: all modules that the worker allows.
    args:
        Arguments of ``body`` after the job.
    properties:
        The shared properties of the workflow.
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
    was_resumed: bool = False


class End(msgspec.Struct):
    """The outcome of code: a result, a release of its job, or an error.

    Parameters
    ----------
    properties:
        The new shared properties of the workflow. ``None``: the code has not changed them.
    output:
        The text that the code printed.
    means:
        The means of confinement used.
    """

    result: Any = None
    release: dict[str, Any] | None = None
    error: dict[str, Any] | None = None
    properties: dict[str, Any] | None = None
    output: str = ""
    means: tuple[str, ...] = ()

    @property
    def failure(self) -> Failure | None:
        """The failure to report for the attempt, or ``None`` if the code did not raise an error."""
        if self.error is None:
            return None
        details, retryable, lines = (self.error.get(name) for name in ("details", "retryable", "backtrace"))
        if not isinstance(details, dict) or len(msgspec.json.encode(details)) > MAX_ERROR_DETAILS_BYTES:
            details = None
        return Failure(
            type=clean(str(self.error.get("type"))[:MAX_ERROR_TYPE_CHARS]),
            message=clean(str(self.error.get("message"))),
            code=clean(str(self.error.get("code", "handler_error"))[:MAX_ERROR_TYPE_CHARS]),
            retryable=retryable if isinstance(retryable, bool) else None,
            details=details,
            backtrace=tuple(clean(str(line)) for line in lines) if isinstance(lines, list) else (),
        )

    @property
    def class_names(self) -> list[str]:
        """The names of the classes that the error belongs to, as far as the child, which may be hostile, says them."""
        names = (self.error or {}).get("classes")
        return [name for name in names if isinstance(name, str)] if isinstance(names, list) else []


class _Frame(msgspec.Struct):
    """A frame from a child: a note, or a refusal. A frame with neither is decoded again as an ``End``."""

    note: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    unconfined: str | None = None


class Sandbox:
    """Runs code that jobs carry.

    Parameters
    ----------
    modules:
        Modules that code may import.
    values:
        Additional globals for code, by name: JSON values.
    memory:
        Memory limit of the child, in bytes.
    weak:
        Whether to run code even if the platform cannot confine it.
    restricted:
        Whether code is limited to a subset of Python. The confinement does not depend on it.
    """

    def __init__(
        self,
        modules: Sequence[str] = DEFAULT_MODULES,
        *,
        values: Mapping[str, Any] | None = None,
        memory: int = DEFAULT_MEMORY_BYTES,
        weak: bool = False,
        restricted: bool = True,
    ) -> None:
        self.modules = tuple(modules)
        self.values = dict(values or {})
        self.memory = memory
        self.restricted = restricted
        self.without: tuple[str, ...] = ()
        """Means of confinement to leave out, for tests of the others."""
        self.guarantee: Guarantee = "weak" if weak else "confined"

    async def check(self) -> tuple[str, ...]:
        """Run code that tries to escape the sandbox, and return the means of confinement used.

        Raises
        ------
        NotConfined
            The code can escape, the sandbox does not work, or the extra is not installed.
        """
        await asyncio.to_thread(_remove_stale)
        try:
            end = await self.run(SandboxRequest("def body(job): return 1"), timeout=30.0)
            if end.failure is None and self.guarantee == "confined":
                prober = Sandbox(("fcntl", "os", "socket"), memory=self.memory, restricted=False)
                prober.without = self.without
                end = await prober.run(SandboxRequest(_ESCAPE_PROBE, args=(sys.executable,)), timeout=30.0)
        except CodeFailed as error:
            raise NotConfined(error.failure.message) from None
        if end.failure is not None:
            raise NotConfined(f"the sandbox cannot run code: {end.failure.message}")
        if self.guarantee == "confined" and end.result:
            raise NotConfined(f"code can escape the sandbox: {', '.join(map(str, end.result))}")
        return end.means

    async def run(
        self,
        request: SandboxRequest,
        *,
        timeout: float | None = None,
        on_note: Callable[[bytes], Awaitable[None]] | None = None,
    ) -> End:
        """Run code and return its outcome. The child is killed on cancellation and after the timeout.

        Parameters
        ----------
        timeout:
            Maximum run time, in seconds. ``None``: 60 seconds.
        on_note:
            Callback for each note that the code adds, as JSON.

        Raises
        ------
        CodeFailed
            The code asks for a module that is not allowed, exceeds its timeout or a limit, or cannot be confined; or
            the child was killed, died, or sent a malformed frame.
        """
        wanted = self._allowed(request)
        seconds = DEFAULT_TIMEOUT_SECONDS if timeout is None else timeout
        async with _scratch() as scratch:
            input = msgspec.structs.asdict(request) | {
                "modules": wanted,
                "values": self.values,
                "raw": not self.restricted,
                "without": self.without,
                "parent": os.getpid(),
                "scratch": None if self.guarantee == "weak" else scratch,
                "limits": {"memory": self.memory, "seconds": math.ceil(seconds) + 1, "file": MAX_FILE_BYTES},
            }
            process = await _start_child(scratch)
            watching = asyncio.create_task(_watch(process, scratch))
            try:
                async with asyncio.timeout(seconds):
                    return await self._exchange_frames(process, msgspec.json.encode(input), on_note)
            except TimeoutError:
                raise CodeFailed(
                    Failure("timeout", f"The job ran longer than {seconds:g} seconds.", code="timeout")
                ) from None
            finally:
                watching.cancel()
                _kill(process)
                assert process.stdout is not None
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(CHILD_EXIT_WAIT_SECONDS):
                        await process.stdout.read()  # the exit is not noticed while output is unread
                        await process.wait()

    def _allowed(self, request: SandboxRequest) -> Sequence[str]:
        """Return the modules that the code asks for."""
        wanted = self.modules if request.modules is None else request.modules
        if unknown := sorted(set(wanted) - set(self.modules)):
            raise CodeFailed(
                Failure(
                    "ModuleNotAllowed",
                    f"The worker does not allow the module {unknown[0]!r}. Allowed: {', '.join(self.modules)}.",
                    retryable=False,
                )
            )
        return wanted

    async def _exchange_frames(
        self, process: asyncio.subprocess.Process, request: bytes, on_note: Callable[[bytes], Awaitable[None]] | None
    ) -> End:
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the failure is read below
            process.stdin.write(len(request).to_bytes(4, "big") + request)
            await process.stdin.drain()
        room = MAX_TOTAL_FRAME_BYTES
        for _ in range(MAX_FRAMES):
            try:
                size = int.from_bytes(await process.stdout.readexactly(4), "big")
                room -= size
                if size > MAX_FRAME_BYTES or room < 0:
                    raise CodeFailed(
                        Failure(
                            "OutputTooLarge",
                            f"The code sent {size} bytes at once; at most {MAX_FRAME_BYTES} are allowed, and in all "
                            f"{MAX_TOTAL_FRAME_BYTES}).",
                        )
                    )
                raw = await process.stdout.readexactly(size)
                frame = msgspec.json.decode(raw, type=_Frame)
                if frame.unconfined is not None:
                    raise CodeFailed(Failure("NotConfined", f"The code cannot be confined here: {frame.unconfined}"))
                if frame.note is msgspec.UNSET:
                    end = msgspec.json.decode(raw, type=End)
                    end.output = clean(end.output[:MAX_OUTPUT_CHARS])
                    return end
                if len(frame.note) > MAX_NOTE_BYTES:
                    raise CodeFailed(
                        Failure("OutputTooLarge", f"The note has {len(frame.note)} bytes (limit {MAX_NOTE_BYTES}).")
                    )
                msgspec.json.decode(frame.note)  # reject malformed JSON
            except asyncio.IncompleteReadError:
                raise CodeFailed(await _exit_failure(process)) from None
            except (msgspec.MsgspecError, ValueError, RecursionError) as error:
                raise CodeFailed(Failure("Unreadable", f"The child sent a malformed frame: {error}")) from None
            if on_note is not None:
                await on_note(bytes(frame.note))
        raise CodeFailed(Failure("OutputTooLarge", f"The code added {MAX_FRAMES} or more notes. Add fewer notes."))


async def _exit_failure(process: asyncio.subprocess.Process) -> Failure:
    """Return the failure for a child that exited before it sent its result."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(1.0):
            await process.wait()
    status = process.returncode
    if status is not None and -status == signal.SIGXCPU:
        return Failure("CpuLimit", "The code exceeded its limit of processor time.", code="timeout")
    if status is not None and status < 0:
        return Failure("ProcessDied", f"The process that ran the code was killed by signal {-status}.")
    return Failure("ProcessDied", f"The process that ran the code exited with status {status} before it sent a result.")


def _kill(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


@asynccontextmanager
async def _scratch() -> AsyncIterator[str]:
    """Create a scratch directory for the code, and remove it afterwards with its files."""
    scratch = tempfile.mkdtemp(prefix="ojster-code-")
    try:
        if os.geteuid() == 0:
            os.chown(scratch, 65_534, 65_534)  # the child's user and group
        yield scratch
    finally:
        await asyncio.to_thread(shutil.rmtree, scratch, ignore_errors=True)


def _remove_stale() -> None:
    """Remove scratch directories older than ``STALE_SCRATCH_SECONDS``, which killed workers have left behind."""
    for path in Path(tempfile.gettempdir()).glob("ojster-code-*"):
        with contextlib.suppress(OSError):
            if path.stat().st_mtime < time.time() - STALE_SCRATCH_SECONDS:
                shutil.rmtree(path, ignore_errors=True)


async def _start_child(scratch: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
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


async def _watch(process: asyncio.subprocess.Process, scratch: str) -> None:
    """Kill a child that exceeds the limits of its scratch directory."""
    while process.returncode is None:
        files = size = 0
        with os.scandir(scratch) as entries:  # the child can neither create directories nor delete files
            for entry in entries:
                files += 1
                size += entry.stat(follow_symlinks=False).st_blocks * 512
                if files > MAX_SCRATCH_FILES or size > MAX_SCRATCH_BYTES:
                    _kill(process)
                    return
        await asyncio.sleep(SCRATCH_CHECK_SECONDS)


_ESCAPE_PROBE: Final = """
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
"""Code that tries to escape the sandbox, and returns the attempts that succeeded."""
