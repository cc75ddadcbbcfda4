"""Processor time of processes and all their descendants, from ``/proc``. Standard library only."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")


def processor_seconds(roots: Iterable[int]) -> float:
    """Return the user and system time of ``roots`` and all their descendants, in seconds.

    Time of a descendant that has ended counts in its parent, so the difference of two results misses no process.
    """
    parents, ticks = {}, {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_bytes().rpartition(b")")[2].split()
            except OSError:
                continue  # it has just ended
            parents[int(entry.name)] = int(fields[1])
            ticks[int(entry.name)] = sum(map(int, fields[11:15]))
    wanted = set(roots)
    return sum(spent for process, spent in ticks.items() if _descends(process, wanted, parents)) / TICKS


def _descends(process: int, wanted: set[int], parents: dict[int, int]) -> bool:
    while process > 1:
        if process in wanted:
            return True
        process = parents.get(process, 0)
    return False
