"""A process that has imported Ojster, and forks a server or a worker in a few milliseconds.

Thousands of processes can be killed and replaced in minutes, because none of them starts an interpreter. Everything
else is as in a process of its own: the command line, the connections, the signals. Tests use it through ``Nursery``.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import NoReturn

import msgspec

from ojster.capabilities import all_extensions
from ojster.server.endpoints import routes_of

PRELOADED = (
    "ojster.cli.main",
    "ojster.cli.serve",
    "ojster.cli.worker",
    "ojster.server.run",
    "ojster.storage.postgres.database",
    "ojster.storage.sqlite.database",
    "ojster.worker.worker",
    "uvicorn",
)


class Start(msgspec.Struct):
    """A process to start: its arguments, environment, import path and log file."""

    arguments: list[str]
    environment: dict[str, str]
    folder: str
    log: str


class Child:
    """A process that the nursery has started, with those methods of ``subprocess.Popen`` that tests need."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._handle: int | None = os.pidfd_open(pid)

    def send_signal(self, number: int) -> None:
        if self.poll() is None and self._handle is not None:
            signal.pidfd_send_signal(self._handle, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def poll(self) -> int | None:
        """Return ``None`` while the process runs, and 0 after its end."""
        return 0 if self._ends(0) else None

    def wait(self) -> None:
        self._ends(None)

    def _ends(self, milliseconds: int | None) -> bool:
        """Return whether the process ends within a time; ``None``: wait for it."""
        if self._handle is None:
            return True
        waiting = select.poll()
        waiting.register(self._handle, select.POLLIN)
        if not waiting.poll(milliseconds):
            return False
        os.close(self._handle)
        self._handle = None
        return True


class Nursery:
    """Starts processes, all of which end with it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.chaos.nursery"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def start(self, arguments: list[str], environment: Mapping[str, str], log: Path) -> Child:
        """Start ``ojster`` with arguments."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        order = Start(arguments, dict(environment), str(self._folder), str(log))
        self._process.stdin.write(msgspec.json.encode(order) + b"\n")
        self._process.stdin.flush()
        return Child(int(self._process.stdout.readline()))

    def close(self) -> None:
        self._process.communicate()


def main() -> None:
    """Start what the lines of the input say; answer each with a process id."""
    for module in PRELOADED:
        import_module(module)
    routes_of()  # imports the modules of all capabilities
    all_extensions()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # ended children leave no zombies
    for line in sys.stdin.buffer:
        order = msgspec.json.decode(line, type=Start)
        if not (pid := os.fork()):
            _become(order)
        print(pid, flush=True)


def _become(order: Start) -> NoReturn:
    from ojster.cli.main import main as run

    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    log = os.open(order.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.environ.update(order.environment)
    sys.path.insert(0, order.folder)
    sys.argv = ["ojster", *order.arguments]
    try:
        run()
    except SystemExit as end:
        os._exit(int(end.code or 0))
    os._exit(0)


if __name__ == "__main__":
    main()
