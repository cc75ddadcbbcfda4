"""The socket notifier: wake-ups between processes that share a SQLite file.

Each process listens on a Unix datagram socket in a temporary folder derived from the file's path, and sends to the
sockets of the others. An idle socket costs nothing, and a message arrives within a fraction of a millisecond; polling
``PRAGMA data_version`` would need a hundred wake-ups a second to be as fast. The processes must run as the same user.
A lost message only delays a fetch until its long poll ends; what operators change is also marked in the file
(``ojster.storage.sqlite.settings_watch``).
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Final

from ojster.core.errors import BackendUnavailable

log = logging.getLogger(__name__)

MAX_DATAGRAM_BYTES: Final = 60_000
"""Maximum size of a message, in bytes."""

COARSEST_CLOCK: Final = 50_000_000
"""Coarsest resolution of a folder's modification time, in nanoseconds."""

LONGEST_FOLDER: Final = 40
"""Maximum length of the temporary folder's path, in characters: a Unix socket address has about 100 bytes."""

_STOP: Final = b"\x00"


class SocketNotifier:
    """The socket of this process for one database file, and the sender to the sockets of the others.

    Parameters
    ----------
    path:
        The database file.
    on_ring:
        Called in the notifier's thread with the topics of a message.
    """

    def __init__(self, path: Path, on_ring: Callable[[Sequence[str]], None]) -> None:
        self._on_ring = on_ring
        self._folder = meeting_place(path)
        self._address = self._folder / f"{os.getpid()}-{id(self):x}"
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._bind()
        self._sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._sender.setblocking(False)
        self._others: list[str] = []
        self._looked_at = -1
        self._thread = threading.Thread(target=self._listen, name="ojster-notifier", daemon=True)
        self._thread.start()

    def _bind(self) -> None:
        """Bind the socket; try again if another process removes the folder at the same moment."""
        for _ in range(10):
            self._folder.mkdir(exist_ok=True)
            with contextlib.suppress(FileNotFoundError):
                self._listener.bind(str(self._address))
                return
        raise BackendUnavailable(f"Cannot create the socket {self._address}. Check its folder, or set TMPDIR.")

    def ring(self, topics: Iterable[str]) -> None:
        """Send topics to every other process. Costs one system call if there is none."""
        try:
            changed = os.stat(self._folder).st_mtime_ns
            if changed != self._looked_at:
                mine = self._address.name
                self._others = [entry.path for entry in os.scandir(self._folder) if entry.name != mine]
                self._looked_at = changed if time.time_ns() - changed > COARSEST_CLOCK else -1
        except OSError as error:
            log.warning("cannot wake other processes: %s", error)
            return
        if not self._others:
            return
        for message in _messages(topics):
            for address in self._others:
                self._send(message, address)

    def _send(self, message: bytes, address: str) -> None:
        try:
            self._sender.sendto(message, address)
        except BlockingIOError:
            log.debug("the buffer of the socket %s is full; message dropped", address)
        except (ConnectionRefusedError, FileNotFoundError):  # its process has ended
            with contextlib.suppress(OSError):
                os.unlink(address)
        except OSError as error:
            log.warning("cannot wake %s: %s", address, error)

    def close(self) -> None:
        """Stop listening."""
        with contextlib.suppress(OSError):
            self._sender.sendto(_STOP, str(self._address))
        self._thread.join(timeout=1)
        with contextlib.suppress(OSError):
            os.unlink(self._address)
            self._folder.rmdir()
        self._listener.close()
        self._sender.close()

    def _listen(self) -> None:
        while True:
            message = self._listener.recv(MAX_DATAGRAM_BYTES)
            if message == _STOP:
                return
            self._on_ring(message.decode().split("\n"))


def meeting_place(path: Path) -> Path:
    """Return where in the temporary folder this user's processes on a database file meet. Its parent folder exists.

    Raises
    ------
    BackendUnavailable
        The parent folder belongs to another user.
    """
    mine = _short_folder() / f"ojster-{os.getuid()}"
    mine.mkdir(exist_ok=True, mode=0o700)
    if mine.stat().st_uid != os.getuid():
        raise BackendUnavailable(f"The folder {mine} belongs to another user; remove it, or set TMPDIR.")
    return mine / sha256(str(path.resolve()).encode()).hexdigest()[:16]


def _short_folder() -> Path:
    folder = Path(tempfile.gettempdir())
    return folder if len(str(folder)) <= LONGEST_FOLDER else Path("/tmp")  # noqa: S108  (its owner is checked)


def _messages(topics: Iterable[str]) -> Iterator[bytes]:
    """Yield topics in as few messages as possible."""
    message = b""
    for topic in topics:
        encoded = topic.encode()
        if message and len(message) + len(encoded) >= MAX_DATAGRAM_BYTES:
            yield message
            message = b""
        message += b"\n" + encoded if message else encoded
    if message:
        yield message
