"""Cross-process counts of the jobs that have run, and their latencies, recorded inside the job for every peer.

Uses only the standard library, because the workers of every peer import it in their own virtual environments. Programs
in other languages write the same files: the count of a process to the slot that ``PEERS_SLOT`` names, and latencies.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
import threading
import time
from pathlib import Path

FOLDER = Path(os.environ.get("PEERS_FOLDER", "."))
PROCESSES = 256

_lock = threading.Lock()
_owner = 0
_memory: mmap.mmap
_offset = 0
_count = 0


def reset() -> None:
    """Reset the count and the latencies."""
    (FOLDER / "count").write_bytes(b"\0" * 8 * (PROCESSES + 1))
    (FOLDER / "latencies").write_bytes(b"")


def tick() -> None:
    """Count a job. Each process has its own slot in the shared file."""
    global _count
    with _lock:
        if _owner != os.getpid():
            _begin()
        _count += 1
        struct.pack_into("<q", _memory, _offset, _count)


def note(enqueued_at: float) -> None:
    """Record the latency from ``enqueued_at``, in seconds since the epoch, to now."""
    with (FOLDER / "latencies").open("ab", buffering=0) as file:
        file.write(struct.pack("<d", time.time() - enqueued_at))


def total() -> int:
    """Return the number of jobs that have run."""
    return int(sum(struct.unpack_from(f"<{PROCESSES}q", (FOLDER / "count").read_bytes(), 8)))


def processes() -> int:
    """Return the number of processes that have run a job."""
    return sum(count > 0 for count in struct.unpack_from(f"<{PROCESSES}q", (FOLDER / "count").read_bytes(), 8))


def latencies() -> list[float]:
    """Return the recorded latencies, in seconds, in ascending order."""
    noted = (FOLDER / "latencies").read_bytes()
    return sorted(struct.unpack(f"<{len(noted) // 8}d", noted))


def _begin() -> None:
    global _owner, _memory, _offset, _count
    with (FOLDER / "count").open("r+b") as file:
        _memory = mmap.mmap(file.fileno(), 8 * (PROCESSES + 1))
        fcntl.lockf(file, fcntl.LOCK_EX)
        (place,) = struct.unpack_from("<q", _memory, 0)
        struct.pack_into("<q", _memory, 0, place + 1)
    _owner, _offset, _count = os.getpid(), 8 + 8 * (place % PROCESSES), 0
