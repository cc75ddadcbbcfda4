"""Processes that run Python programs without the cost of a start: copies of one that has imported Ojster already.

A start of Python with Ojster costs a third of a second of processor time, and the tests start hundreds. ``run`` and
``Popen`` are those of ``subprocess`` for commands of this Python: ``-m MODULE``, ``-c CODE`` or a file, with arguments,
after ``-W``. A copy has the arguments, environment, folder and streams that the command would have; its parent is not
the test. Tests of what Python imports, of the list of processes, and of parents start real ones.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import runpy
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import IO, Any, Final

from tests.cheap import hash_cheaply

IMPORTED: Final = (
    "ojster.api.app",
    "ojster.cli.main",
    "ojster.cli.serve",
    "ojster.cli.worker",
    "ojster.client.client",
    "ojster.server.run",
    "ojster.storage.postgres.database",
    "ojster.storage.sqlite.database",
    "ojster.worker.worker",
)
"""What commands import."""

_NUMBER: Final = struct.Struct("!i")
_MAX_BYTES: Final = 1 << 18
"""Length of the longest request, in bytes."""


class Popen:
    """A running copy: the part of ``subprocess.Popen`` that tests use.

    ``stdout`` and ``stderr`` are files or ``subprocess.DEVNULL``; ``None``, the default: the streams of the test. The
    copy reads nothing.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        cwd: Path | str | None = None,
        env: Mapping[str, str] | None = None,
        stdout: IO[Any] | int | None = None,
        stderr: IO[Any] | int | None = None,
    ) -> None:
        assert command[0] == sys.executable
        self.args = list(command)
        self.returncode: int | None = None
        self._news, told = os.pipe()
        with open(os.devnull, "wb") as nowhere:
            streams = [
                nowhere.fileno() if stream == subprocess.DEVNULL else own if stream is None else _number(stream)
                for stream, own in ((stdout, 1), (stderr, 2))
            ]
            asked = [self.args[1:], str(cwd or Path.cwd()), dict(os.environ if env is None else env)]
            socket.send_fds(_original(), [json.dumps(asked).encode()], [*streams, told])
        os.close(told)
        self.pid = self._read(None) or 0

    def _read(self, timeout: float | None) -> int | None:
        if not select.select([self._news], [], [], timeout)[0]:
            return None
        return int(_NUMBER.unpack(os.read(self._news, _NUMBER.size))[0])

    def poll(self) -> int | None:
        return self._poll(0.0)

    def _poll(self, timeout: float | None) -> int | None:
        if self.returncode is None and (status := self._read(timeout)) is not None:
            self.returncode = os.waitstatus_to_exitcode(status)
            os.close(self._news)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if (code := self._poll(timeout)) is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def run(
    command: Sequence[str],
    *,
    cwd: Path | str | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float = 60.0,
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, and return its exit code and what it said on each stream."""
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        process = Popen(command, cwd=cwd, env=env, stdout=output, stderr=errors)
        try:
            code = process.wait(timeout)
        finally:
            process.kill()
        texts = []
        for stream in (output, errors):
            stream.seek(0)
            texts.append(stream.read().decode())
        return subprocess.CompletedProcess(process.args, code, *texts)


def _number(stream: IO[Any] | int) -> int:
    return stream if isinstance(stream, int) else stream.fileno()


@cache
def _original() -> socket.socket:
    """Start the process that is copied, once for each test process; it ends with it."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = [sys.executable, "-m", "tests.forked", str(theirs.fileno())]
    with theirs:
        process = subprocess.Popen(command, pass_fds=[theirs.fileno()], cwd=Path(__file__).parent.parent)
    atexit.register(process.wait)
    atexit.register(ours.close)
    return ours


def _serve(asking: socket.socket) -> list[Any] | None:
    """Make a copy for each request, and tell how it ended; return the request in the copy, ``None`` after the tests."""
    waking, wakes = os.pipe()
    sources: list[Any] = [asking, waking]
    os.set_blocking(wakes, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
    running: dict[int, int] = {}
    while True:
        ready, _, _ = select.select(sources, [], [])
        if waking in ready:
            os.read(waking, 4096)
            _tell_ends(running)
        if asking not in ready:
            continue
        message, passed, _, _ = socket.recv_fds(asking, _MAX_BYTES, 3)
        if not message:
            return None
        if (pid := os.fork()) == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.dup2(passed[0], 1)
            os.dup2(passed[1], 2)
            for number in (waking, wakes, *passed, *running.values()):
                os.close(number)
            asking.close()
            asked: list[Any] = json.loads(message)
            return asked
        *streams, running[pid] = passed
        os.write(running[pid], _NUMBER.pack(pid))
        for number in streams:
            os.close(number)


def _tell_ends(running: dict[int, int]) -> None:
    with suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            told = running.pop(pid)
            with suppress(BrokenPipeError):  # the test has ended
                os.write(told, _NUMBER.pack(status))
            os.close(told)


def _execute(command: list[str], folder: str, environment: dict[str, str]) -> None:
    """Do what Python does with such a command line."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w", buffering=1)  # noqa: SIM115
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    first, *words = command
    if first == "-W":
        warnings.simplefilter(words[0])  # type: ignore[arg-type]
        first, *words = words[1:]
    if first in ("-m", "-c"):
        what, *words = words
    sys.path[0] = folder if first == "-m" else "" if first == "-c" else str(Path(first).resolve().parent)
    sys.path[1:1] = filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))
    sys.argv = [first, *words]
    if first == "-m":
        runpy.run_module(what, run_name="__main__", alter_sys=True)
    elif first == "-c":
        sys.modules["__main__"] = ModuleType("__main__")
        exec(compile(what, "<string>", "exec"), vars(sys.modules["__main__"]))
    else:
        runpy.run_path(first, run_name="__main__")


def main() -> None:
    """Import what commands import, and be copied for each request."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the tests
    for name in IMPORTED:
        import_module(name)
    import_module("ojster.capabilities").all_extensions()  # what every command imports when it opens a database,
    import_module("ojster.server.endpoints").routes_of()  # and every server when it starts: a third of their time
    hash_cheaply()
    gc.collect()
    gc.freeze()
    asked = _serve(socket.socket(fileno=int(sys.argv[1])))
    if asked is not None:
        try:
            _execute(*asked)
            code: Any = 0
        except SystemExit as ended:
            code = ended.code or 0
        if isinstance(code, int):  # as Python ends, but it does not take down modules one by one
            threading._shutdown()  # type: ignore[attr-defined]
            atexit._run_exitfuncs()
            sys.stdout.flush()
            os._exit(code & 0xFF)
        sys.exit(code)


if __name__ == "__main__":
    main()
