"""Replacing a worker process that has run many jobs or has grown large: it finishes what it runs, and ends."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ojster.worker.children import ChildLimits

if TYPE_CHECKING:
    from ojster.worker.worker import Worker

log = logging.getLogger(__name__)

_LOOK_SECONDS: Final = 0.05
"""Interval at which the worker looks whether its last job has ended, in seconds."""


class Recycling:
    """Stops a worker that has reached a limit, when its last job has ended.

    Parameters
    ----------
    worker:
        The worker, which runs on the current event loop.
    limits:
        When to stop it.

    Attributes
    ----------
    reached:
        Whether a limit was reached.
    """

    def __init__(self, worker: Worker, limits: ChildLimits) -> None:
        self.reached = False
        self._worker = worker
        self._limits = limits
        self._jobs = 0

    def count(self) -> None:
        """Count a job that has ended."""
        self._jobs += 1
        if self.reached:
            return
        most = self._limits
        if most.max_jobs is not None and self._jobs >= most.max_jobs:
            why = f"it has run {self._jobs} jobs"
        elif most.max_memory is not None and (peak := peak_memory()) >= most.max_memory:
            why = f"it has used {peak >> 20} MiB of memory"
        else:
            return
        self.reached = True
        log.info("worker %s finishes its jobs and is replaced: %s", self._worker.id, why)
        self._worker.quiet()
        asyncio.get_running_loop().call_soon(self._stop_if_idle)

    def _stop_if_idle(self) -> None:
        if self._worker.active:
            asyncio.get_running_loop().call_later(_LOOK_SECONDS, self._stop_if_idle)
        else:
            self._worker.stop()


def peak_memory() -> int:
    """Return the largest memory that this process has had, in bytes."""
    with contextlib.suppress(OSError):  # on Linux, the other figure is at least that of the process that started it
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    import resource  # here, because Windows has none

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
