"""Reads on a replica: lists and statistics, which may show what was true a moment ago.

A thread compares once a second how far the primary has written and the replica has replayed. Reads go to the replica
only while it is not too far behind; otherwise, and if it fails, the primary answers them.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Final, TypeVar

import psycopg

from ojster.core.errors import BackendError, BackendUnavailable
from ojster.storage.call import TransactionFunction
from ojster.storage.database import ReplicaState
from ojster.storage.dispatcher import Dispatcher
from ojster.storage.transaction import Transaction

log = logging.getLogger(__name__)

A = TypeVar("A")
R = TypeVar("R")

MEASURE_SECONDS: Final = 1.0
"""Interval of the measurements, in seconds."""

ANSWER_SECONDS: Final = 5.0
"""Maximum wait for an answer of the replica, in seconds; the primary answers then."""

CLOSING_SECONDS: Final = 5.0
"""Maximum wait for the last measurement, in seconds."""

MAX_POSITIONS: Final = 1_000
"""Maximum number of remembered positions of the primary that the replica has not reached."""

WRITTEN: Final = "SELECT CAST(pg_current_wal_lsn() - '0/0' AS bigint)"
"""How many bytes of its write-ahead log the primary has written."""

REPLAYED: Final = "SELECT CASE WHEN pg_is_in_recovery() THEN CAST(pg_last_wal_replay_lsn() - '0/0' AS bigint) END"
"""How many of them a replica has replayed; ``NULL``: it is none."""


class Lag:
    """How far a replica is behind, from positions in the write-ahead log. Times are in seconds."""

    def __init__(self) -> None:
        self.seconds: float | None = None
        """The lag; ``None``: unknown, until the replica has reached a position that the primary had."""
        self._ahead: deque[tuple[float, int]] = deque()
        """Positions of the primary that the replica has not reached, with the times at which they were seen."""

    def note(self, now: float, written: int, replayed: int | None) -> None:
        """Take a measurement. ``replayed=None``: the replica was promoted, and may have become another database."""
        if replayed is None:
            self.lose()
            return
        ahead = self._ahead
        if ahead and written < ahead[-1][1]:  # another primary, which lacks what this one had written last
            self.lose()
        if not ahead or (ahead[-1][1] < written and len(ahead) < MAX_POSITIONS):
            ahead.append((now, written))
        has_reached = self.seconds is not None
        while ahead and ahead[0][1] <= replayed:
            ahead.popleft()
            has_reached = True
        if has_reached:
            self.seconds = now - ahead[0][0] if ahead else 0.0

    def lose(self) -> None:
        """Forget the lag: one of the servers cannot be reached, or is another one."""
        self.seconds = None
        self._ahead.clear()


class Replica:
    """The replica of a database, and the calls that it answers.

    Parameters
    ----------
    transactions:
        Opens transactions on the replica; used by one thread.
    primary, replica:
        Open connections in autocommit mode, for the measurements.
    max_lag:
        Lag up to which the replica is used, in seconds.
    """

    def __init__(
        self,
        transactions: Callable[[], AbstractContextManager[Transaction]],
        primary: Callable[[], psycopg.Connection],
        replica: Callable[[], psycopg.Connection],
        max_lag: float,
    ) -> None:
        self._dispatcher = Dispatcher([transactions], "ojster-replica")
        self._connect = (primary, replica)
        self._connections: list[psycopg.Connection] = []
        self._max_lag = max_lag
        self._lag = Lag()
        self._measuring = threading.Lock()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ojster-replica-lag", daemon=True)

    @property
    def state(self) -> ReplicaState:
        """The present state."""
        lag = self._lag.seconds
        return ReplicaState(lag, lag is not None and lag <= self._max_lag)

    def start(self) -> None:
        """Start the threads."""
        self._dispatcher.start()
        self._thread.start()

    def close(self) -> None:
        """Stop the threads, and close the connections."""
        self._closing.set()
        self._dispatcher.close()
        self._thread.join(CLOSING_SECONDS)

    async def read(self, operation: TransactionFunction[A, R], arguments: Sequence[A]) -> Sequence[R] | None:
        """Run a transaction function that only reads; return ``None`` if the replica cannot."""
        if not self.state.is_used:
            return None
        try:
            return await self._dispatcher.run(operation, arguments)
        except (BackendUnavailable, BackendError) as error:
            log.info("the primary answers a read that the replica cannot: %s", error)
            self._lag = Lag()  # a new one, because the other thread may be about to note in it
            return None

    def measure(self) -> None:
        """Measure the lag. Safe to call from any thread."""
        with self._measuring:
            try:
                if not self._connections:
                    for connect in self._connect:
                        self._connections.append(connect())
                (written,), (replayed,) = (
                    connection.execute(query).fetchone() or (0,)
                    for connection, query in zip(self._connections, (WRITTEN, REPLAYED), strict=True)
                )
                self._lag.note(time.monotonic(), written, replayed)
            except psycopg.Error as error:
                if self._lag.seconds is not None:
                    log.warning("the lag of the replica is unknown: %s", " ".join(str(error).split()))
                self._lag.lose()
                self._disconnect()

    def _run(self) -> None:
        while not self._closing.is_set():
            self.measure()
            self._closing.wait(MEASURE_SECONDS)
        self._disconnect()

    def _disconnect(self) -> None:
        for connection in self._connections:
            connection.close()
        self._connections.clear()
