"""What server processes count: the numbers behind metrics, added up over the processes that share a port.

A scrape of ``/metrics`` reaches any of the processes, and should see the same numbers from each. So every process
writes what it has counted to a file once a second, and adds what the files of the others say. A process that replaces
another goes on with the numbers in its file.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncIterator, Callable, Iterable
from itertools import accumulate
from pathlib import Path
from typing import Final

import msgspec

log = logging.getLogger("ojster")

SECONDS_BETWEEN_WRITES: Final = 1.0
"""Time after which a process writes its numbers again, in seconds."""


class Series(msgspec.Struct):
    """The numbers of a metric for some label values: a total, and for a histogram the observations in each bucket."""

    total: float = 0.0
    buckets: list[int] = msgspec.field(default_factory=list)

    def add(self, other: Series) -> None:
        """Add the numbers of another process."""
        self.total += other.total
        if len(self.buckets) != len(other.buckets):  # of another version, which was replaced
            return
        self.buckets = [mine + theirs for mine, theirs in zip(self.buckets, other.buckets, strict=True)]

    def cumulated(self, bounds: Iterable[float]) -> list[tuple[str, int]]:
        """Return the buckets as Prometheus has them: each with the observations up to its upper bound."""
        return list(zip((*map(str, bounds), "+Inf"), accumulate(self.buckets), strict=True))


class Counts(msgspec.Struct):
    """What a process has counted, by the name of the metric and its label values."""

    series: dict[str, list[tuple[tuple[str, ...], Series]]] = msgspec.field(default_factory=dict)


def add_up(counted: Iterable[Counts]) -> dict[str, dict[tuple[str, ...], Series]]:
    """Return the sums of several processes, by the name of the metric and its label values."""
    sums: dict[str, dict[tuple[str, ...], Series]] = {}
    for counts in counted:
        for name, series in counts.series.items():
            known = sums.setdefault(name, {})
            for labels, numbers in series:
                if labels in known:
                    known[labels].add(numbers)
                else:
                    known[labels] = Series(numbers.total, list(numbers.buckets))
    return sums


class SharedCounts:
    """The numbers of the processes that share a port, in files.

    Parameters
    ----------
    folder:
        Folder of the files; each process has its own file there.
    number:
        Number of this process among them.
    """

    def __init__(self, folder: Path, number: int) -> None:
        self._file = folder / f"counts.{number}"
        self._before = self._read(self._file)

    def others(self) -> list[Counts]:
        """Return what the other processes have counted, and those that this one has replaced."""
        files = self._file.parent.glob("counts.[0-9]*")
        return [self._before, *(self._read(file) for file in files if file != self._file)]

    def write(self, mine: Counts) -> None:
        """Write what this process has counted, for the others."""
        sums = add_up([self._before, mine])
        written = Counts({name: list(series.items()) for name, series in sums.items()})
        new = self._file.with_name(f"new.{self._file.name}")
        new.write_bytes(msgspec.msgpack.encode(written))
        os.replace(new, self._file)

    @contextlib.asynccontextmanager
    async def written(self, count: Callable[[], Counts]) -> AsyncIterator[None]:
        """Write the numbers now and then while the block runs, and at its end."""

        async def keep_writing() -> None:
            while True:
                await asyncio.sleep(SECONDS_BETWEEN_WRITES)
                self._try_to_write(count())

        writing = asyncio.create_task(keep_writing())
        try:
            yield
        finally:
            writing.cancel()
            self._try_to_write(count())

    def _try_to_write(self, mine: Counts) -> None:
        try:
            self.write(mine)
        except OSError as error:
            log.warning("cannot write metrics for the other processes at this port: %s", error)

    @staticmethod
    def _read(file: Path) -> Counts:
        try:
            return msgspec.msgpack.decode(file.read_bytes(), type=Counts)
        except FileNotFoundError:
            return Counts()
