"""How do processes that share a SQLite file wake each other? Each listens on a socket beside it, the others ring.

A socket costs nothing while nobody rings, and a ring arrives within a fraction of a millisecond; polling ``PRAGMA
data_version`` would cost a hundred wake-ups a second to be as fast. The processes must run as the same user. A ring
that is lost only delays: whoever waits looks again when its poll is over.
"""

from __future__ import annotations

import contextlib
import os
import socket
import tempfile
import threading
from collections.abc import Callable, Iterable, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Final

from ojster.model.errors import BackendUnavailable

LARGEST_RING: Final = 60_000
_STOP: Final = b"\x00"


class Doorbell:
    """The bell of this process for one database file, and the way to the bells of the others.

    Parameters
    ----------
    path:
        The database file.
    on_ring:
        Called in the bell's thread with the topics that somebody rang for.
    """

    def __init__(self, path: Path, on_ring: Callable[[Sequence[str]], None]) -> None:
        self._on_ring = on_ring
        name = sha256(str(path.resolve()).encode()).hexdigest()[:16]
        mine = Path(tempfile.gettempdir()) / f"ojster-{os.getuid()}"
        mine.mkdir(exist_ok=True, mode=0o700)
        if mine.stat().st_uid != os.getuid():
            raise BackendUnavailable(f"The folder {mine} belongs to another user; remove it, or set TMPDIR.")
        self._folder = mine / name
        self._folder.mkdir(exist_ok=True)
        self._address = self._folder / f"{os.getpid()}-{id(self):x}"
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._listener.bind(str(self._address))
        self._sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._sender.setblocking(False)
        self._others: list[str] = []
        self._looked_at = -1
        self._thread = threading.Thread(target=self._listen, name="ojster-doorbell", daemon=True)
        self._thread.start()

    def ring(self, topics: Iterable[str]) -> None:
        """Ring for these topics at every other process. Costs one system call when there is none."""
        changed = os.stat(self._folder).st_mtime_ns
        if changed != self._looked_at:
            self._looked_at = changed
            mine = self._address.name
            self._others = [entry.path for entry in os.scandir(self._folder) if entry.name != mine]
        if not self._others:
            return
        message = "\n".join(topics).encode()
        for address in self._others:
            try:
                self._sender.sendto(message, address)
            except BlockingIOError:
                pass  # it has rings enough that it has not heard yet
            except OSError:  # nobody is behind that door any more
                with contextlib.suppress(OSError):
                    os.unlink(address)

    def close(self) -> None:
        """Stop listening."""
        with contextlib.suppress(OSError):
            self._sender.sendto(_STOP, str(self._address))
        self._thread.join(timeout=1)
        with contextlib.suppress(OSError):
            os.unlink(self._address)
        self._listener.close()
        self._sender.close()

    def _listen(self) -> None:
        while True:
            message = self._listener.recv(LARGEST_RING)
            if message == _STOP:
                return
            self._on_ring(message.decode().split("\n"))
