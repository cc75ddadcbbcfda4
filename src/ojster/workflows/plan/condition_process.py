"""The process that evaluates conditions which may take long: with limits of processor time and memory.

The library for conditions holds the interpreter while it works, and cannot be interrupted. So a condition is evaluated
in this process only if it certainly takes no time; all others are evaluated in ``condition_child``.
"""

from __future__ import annotations

import atexit
import os
import select
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import msgspec

from ojster.storage.database import without_urls

LENGTH: Final = struct.Struct(">I")
"""The length of a message, before it, as in ``condition_child``, which cannot import this module."""

MAX_SECONDS: Final = 0.05
"""Maximum processor time of one condition, in seconds."""

MAX_BYTES: Final = 128 << 20
"""Maximum memory that one condition takes, in bytes."""

_MAX_WAIT: Final = 5.0
"""Maximum time for an answer, in seconds, however busy the machine is; then the process is replaced."""

_PROGRAM: Final = Path(__file__).with_name("condition_child.py")


class ConditionVerdict(msgspec.Struct):
    """What the process says of a condition.

    Parameters
    ----------
    type:
        The type of the expression, if it was only compiled.
    value:
        Its value; texts for values that are neither true, false nor missing.
    invalid:
        Why it could not be compiled.
    error:
        Why it could not be evaluated.
    exceeded:
        The limit that it has exceeded: ``time`` or ``memory``.
    """

    type: str = ""
    value: bool | str | None = None
    invalid: str | None = None
    error: str | None = None
    exceeded: str | None = None


class ConditionProcess:
    """A process that evaluates conditions. It is started when it is first needed, and again if it ends."""

    def __init__(self) -> None:
        self.renew_lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0

    def renew_lock(self) -> None:
        """Begin with a free lock in a forked child: a thread of the parent may have had it."""
        self._lock = threading.Lock()

    def ask(self, text: str, names: Iterable[str], data: Any = msgspec.UNSET) -> ConditionVerdict:
        """Compile a condition; with ``data``, the values of its variables by name, evaluate it, too.

        Returns
        -------
        Answer
            Its ``exceeded`` is ``time`` as well if no process could answer.
        """
        request: dict[str, Any] = {"text": text, "names": sorted(names), "seconds": MAX_SECONDS, "bytes": MAX_BYTES}
        if data is not msgspec.UNSET:
            request["data"] = data
        message = msgspec.json.encode(request)
        with self._lock:
            for _ in range(2):  # the process may have been killed since its last answer
                try:
                    return msgspec.json.decode(
                        self._exchange(LENGTH.pack(len(message)) + message), type=ConditionVerdict
                    )
                except (OSError, EOFError):
                    self.close()
        return ConditionVerdict(exceeded="time")

    def _exchange(self, message: bytes) -> bytes:
        process = self._running()
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(message)
        process.stdin.flush()
        ends = time.monotonic() + _MAX_WAIT
        (length,) = LENGTH.unpack(_read(process.stdout.fileno(), LENGTH.size, ends))
        return _read(process.stdout.fileno(), length, ends)

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._owner != os.getpid():  # after a fork, it belongs to the parent
            self._process = subprocess.Popen(
                [sys.executable, "-I", str(_PROGRAM)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=without_urls(os.environ),
                start_new_session=True,  # signals from the terminal are for the parent
            )
            self._owner = os.getpid()
            atexit.register(self.close)
        return self._process

    def close(self) -> None:
        """End the process; the next question starts another."""
        process, self._process = self._process, None
        if process is not None and self._owner == os.getpid():
            process.kill()
            process.communicate()


def _read(pipe: int, length: int, ends: float) -> bytes:
    """Return so many bytes, or raise ``EOFError`` if they do not come before ``ends``."""
    received = b""
    while len(received) < length:
        ready, _, _ = select.select([pipe], [], [], max(0.0, ends - time.monotonic()))
        more = os.read(pipe, length - len(received)) if ready else b""
        if not more:
            raise EOFError("The process for conditions gives no answer.")
        received += more
    return received
