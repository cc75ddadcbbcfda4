"""Whether a server can listen at a port, checked before it opens its database."""

from __future__ import annotations

import contextlib
import errno
import socket

from ojster.core.errors import BackendUnavailable, InvalidRequest


def check_port(host: str, port: int) -> None:
    """Check that a server can listen there.

    Raises
    ------
    InvalidRequest
        The host is none of this machine.
    BackendUnavailable
        The port is in use, or this user may not use it.
    """
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise InvalidRequest(f"The host {host!r} is unknown ({error.strerror}). Check --host.") from None
    for family, kind, protocol, _, address in addresses:
        with contextlib.closing(socket.socket(family, kind, protocol)) as one:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                one.bind(address)
            except OSError as error:
                raise _refusal(host, port, error) from None


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
