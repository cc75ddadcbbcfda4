"""Sockets in the file system, on which a server can be called by programs of the same user alone."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from pathlib import Path

from ojster.core.errors import BackendUnavailable, Conflict


def listen_at(path: Path) -> socket.socket:
    """Return a listening socket that only the user of this process can open.

    A socket that a dead server has left is replaced.

    Raises
    ------
    Conflict
        Another server listens there, or the path is another kind of file.
    BackendUnavailable
        The socket cannot be created.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _remove_left(path)
        before = os.umask(0o177)
        try:
            listener.bind(os.fspath(path))
        finally:
            os.umask(before)
        listener.listen(2048)
    except OSError as error:
        listener.close()
        reason = error.strerror or str(error)  # a path that is too long has no strerror
        raise BackendUnavailable(f"Cannot listen at {path}: {reason}.") from None
    except Conflict:
        listener.close()
        raise
    listener.setblocking(False)
    return listener


def _remove_left(path: Path) -> None:
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise Conflict(f"{path} is not a socket. Choose another path, or remove it.")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(os.fspath(path))
        except OSError:
            with contextlib.suppress(FileNotFoundError):
                path.unlink()
            return
    raise Conflict(f"Another server listens at {path}. Stop it, or choose another path.")
