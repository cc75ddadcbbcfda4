"""Options of a server that has several processes, which share the sockets at which it listens."""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import socket
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from ojster.cli.declared import PROCESSES
from ojster.cli.declared import Command as Function
from ojster.cli.logs import log_to_console
from ojster.cli.supervisor import NUMBER_VARIABLE, ProcessCommand, Supervisor, same_command

if TYPE_CHECKING:
    from ojster.server.counts import SharedCounts

log = logging.getLogger("ojster")

SOCKETS_VARIABLE: Final = "OJSTER_SOCKETS"
"""Environment variable of a process of a server: the numbers of the open files that are its sockets."""

COUNTS_VARIABLE: Final = "OJSTER_COUNTS"
"""Environment variable of a process of a server: the folder where the processes add up their metrics."""


class SharedPort(NamedTuple):
    """What the processes of a server share; nothing if there is only one."""

    listeners: Sequence[socket.socket] = ()
    counts: SharedCounts | None = None


def with_server_processes(function: Function) -> Function:
    """Add the option ``--processes``; the command gets what its process shares as the argument ``shared``.

    The command that the user starts opens the sockets and supervises the processes, each of which is the same command
    with ``--supervised``.
    """

    @functools.wraps(function)
    def read(*args: Any, processes: int, supervised: bool, **more: Any) -> Any:
        if supervised:
            return function(*args, shared=_inherited(), **more)
        if processes == 1:
            return function(*args, shared=SharedPort(), **more)
        if sys.platform == "win32":
            raise click.UsageError("--processes is not available on Windows, where processes cannot share sockets.")
        log_to_console(more["log_level"], more["log_format"])
        address = more["host"], more["port"], more["unix_socket"]
        return _supervise(processes, *address, wait=more["wait"], is_tls=more["tls_cert"] is not None)

    command: Function = read
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def _inherited() -> SharedPort:
    """Return what the supervisor has given to this process."""
    from ojster.server.counts import SharedCounts

    numbers = map(int, os.environ[SOCKETS_VARIABLE].split())
    counts = SharedCounts(Path(os.environ[COUNTS_VARIABLE]), int(os.environ[NUMBER_VARIABLE]))
    return SharedPort([socket.socket(fileno=number) for number in numbers], counts)


def _supervise(processes: int, host: str, port: int, path: Path | None, *, wait: float, is_tls: bool) -> int:
    """Run so many processes of a server, each of which waits so long for the database; return the exit code.

    They have no handlers for SIGTSTP and SIGCONT, which the supervisor passes on, and so leave them blocked.
    """
    from ojster.server.port import listen
    from ojster.server.run import tell_of_dashboard
    from ojster.server.unix_socket import listen_at

    sockets = listen(host, port) if path is None else [listen_at(path)]
    try:
        log.info("%d processes listen at %s", processes, path or _shown(sockets))
        if path is None:
            tell_of_dashboard(host, sockets[0].getsockname()[1], is_tls=is_tls)
        with tempfile.TemporaryDirectory(prefix="ojster-") as counts:
            commands = _commands(processes, sockets, counts)
            return asyncio.run(Supervisor(commands, on_stop=lambda: _close(sockets), wait=wait).run())
    finally:
        _close(sockets)
        if path is not None:
            path.unlink(missing_ok=True)


def _close(sockets: Sequence[socket.socket]) -> None:
    """Close sockets, so that new callers go elsewhere while the processes answer their last requests."""
    for listener in sockets:
        listener.close()


def _commands(processes: int, sockets: Sequence[socket.socket], counts: str) -> list[ProcessCommand]:
    words = same_command()
    files = tuple(listener.fileno() for listener in sockets)
    shared = {SOCKETS_VARIABLE: " ".join(map(str, files)), COUNTS_VARIABLE: counts}
    numbers = map(str, range(1, processes + 1))
    return [ProcessCommand(words, shared | {NUMBER_VARIABLE: number}, files, is_endless=True) for number in numbers]


def _shown(sockets: Sequence[socket.socket]) -> str:
    """Return the address and port of sockets."""
    host, port = sockets[0].getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


_OPTIONS: Final = (
    click.option(
        "--processes",
        type=PROCESSES,
        default=1,
        show_default=True,
        help="Number of processes that answer requests, for more than one core. One that dies is started again.",
    ),
    click.option("--supervised", is_flag=True, hidden=True),
)
