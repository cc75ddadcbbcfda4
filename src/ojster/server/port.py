"""The port of a server: opened, or tried before the server opens its database."""

from __future__ import annotations

import errno
import os
import socket
from contextlib import ExitStack
from typing import Final

from ojster.core.errors import BackendUnavailable, InvalidRequest

BACKLOG: Final = 2_048
"""Number of connections that may wait to be accepted."""


def check_port(host: str, port: int) -> None:
    """Check that a server can listen there.

    Raises
    ------
    InvalidRequest
        The host is none of this machine.
    BackendUnavailable
        The port is in use, or this user may not use it.
    """
    for listener in _bound(host, port):
        listener.close()


def listen(host: str, port: int) -> list[socket.socket]:
    """Return sockets that listen at all addresses of a host; the errors are those of ``check_port``.

    Several processes may accept connections from them.
    """
    sockets = _bound(host, port)
    try:
        for listener in sockets:
            listener.listen(BACKLOG)
            listener.setblocking(False)
    except OSError as error:
        for listener in sockets:
            listener.close()
        raise _refusal(host, port, error) from None
    return sockets


def _bound(host: str, port: int) -> list[socket.socket]:
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise InvalidRequest(f"The host {host!r} is unknown ({error.strerror}). Check --host.") from None
    with ExitStack() as stack:
        sockets: list[socket.socket] = []
        for family, kind, protocol, _, address in dict.fromkeys(addresses):
            listener = stack.enter_context(socket.socket(family, kind, protocol))
            if os.name == "posix":  # on Windows, it would let a port be shared that is in use
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            if port == 0 and sockets:  # the same one at all addresses
                address = (address[0], sockets[0].getsockname()[1], *address[2:])
            try:
                listener.bind(address)
            except OSError as error:
                raise _refusal(host, port, error) from None
            sockets.append(listener)
        stack.pop_all()
        return sockets


def _refusal(host: str, port: int, error: OSError) -> InvalidRequest | BackendUnavailable:
    match error.errno:
        case errno.EADDRINUSE:
            return BackendUnavailable(
                f"The port {port} of {host} is in use by another program. Stop it, or choose another with --port."
            )
        case errno.EACCES:
            return BackendUnavailable(f"This user may not listen at port {port}. Choose one from 1024 with --port.")
        case errno.EADDRNOTAVAIL:
            return InvalidRequest(f"The address {host} is none of this machine. Check --host.")
        case _:
            return BackendUnavailable(f"Cannot listen at {host}:{port}: {error.strerror}.")
