"""The database server's clock."""

from __future__ import annotations

import time
from typing import Final

import psycopg

NOW: Final = "CAST(extract(epoch FROM clock_timestamp()) * 1000000 AS BIGINT)"
"""SQL expression for the database's time, in microseconds since the epoch."""

MAX_ROUND_TRIP_US: Final = 100_000
"""Maximum round trip of a precise clock measurement, in microseconds."""


JUMP_US: Final = 1_000_000
"""Smallest change of the database's clock that counts as a jump, in microseconds."""


class ServerClock:
    """The database's clock, in microseconds since the epoch, so that servers with different clocks agree on the time.

    Its offset from this machine's monotonic clock is measured at the start and at each heartbeat. Reading the clock
    needs no query.
    """

    def __init__(self) -> None:
        self._offset = time.time_ns() // 1000 - time.monotonic_ns() // 1000
        self._measured = False

    def __call__(self) -> int:
        return time.monotonic_ns() // 1000 + self._offset

    def measure(self, connection: psycopg.Connection) -> bool:
        """Measure the offset of the database's clock; return whether somebody has set that clock forward."""
        before = self._offset if self._measured else None
        self._measure(connection)
        return before is not None and self._offset - before > JUMP_US

    def _measure(self, connection: psycopg.Connection) -> None:
        for _ in range(3):
            before = time.monotonic_ns() // 1000
            row = connection.execute(f"SELECT {NOW}").fetchone()
            after = time.monotonic_ns() // 1000
            assert row is not None
            if after - before < MAX_ROUND_TRIP_US or not self._measured:
                self._offset = int(row[0]) - (before + after) // 2
                self._measured = True
            if after - before < MAX_ROUND_TRIP_US:
                return
