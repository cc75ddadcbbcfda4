"""Outages of a database, and the grace period after each, in which leases do not end.

While nothing can be written, workers can neither report finished jobs nor extend their leases. After the outage, the
reports and the search for expired leases begin at the same moment, so leases that ended meanwhile must wait.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final, NamedTuple

from ojster.core.durations import SECOND

OUTAGE_GRACE_SECONDS: Final = 5.0
"""Grace period after a database outage, in seconds, in which no lease expires, so that workers can report first."""

LONG_TRANSACTION_SECONDS: Final = 2.0
"""Time since the start of a transaction from which on the database counts as one that has hung, in seconds."""


class Horizon(NamedTuple):
    """Which leases have expired, in microseconds since the epoch.

    Parameters
    ----------
    ended_by:
        Those that ended at this time or before.
    spared_until:
        When the others may expire, too; not later than ``ended_by`` if there was no outage.
    """

    ended_by: int
    spared_until: int

    def next_expiry(self, lease_end: int) -> int:
        """Return when a lease may expire."""
        return lease_end if lease_end <= self.ended_by else max(lease_end, self.spared_until)


class Outages:
    """The outages of a database that this process has noticed.

    An outage begins at the last moment at which this process has written: it cannot know when the others could no
    longer. A lease that ended before that moment has expired; a later one waits for the end of the grace period. This
    also bounds the wait if the database is always slow: each outage begins where the one before has ended.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()  # several threads write to one database
        self._written_at = 0
        self._since: int | None = None
        self._grace = OUTAGE_GRACE_SECONDS
        self._recent: list[tuple[int, int]] = []
        """Outages that have ended: their beginnings, and the ends of their grace periods."""

    def begin(self, grace: float = OUTAGE_GRACE_SECONDS) -> None:
        """Note that the database cannot be written, or has kept a transaction waiting. Thread-safe.

        ``grace`` is the grace period after it, in seconds.
        """
        with self._lock:
            if self._since is None:
                self._since, self._grace = self._written_at, OUTAGE_GRACE_SECONDS
            self._grace = max(self._grace, grace)

    def note_write(self, now: int, clock: Callable[[], int]) -> None:
        """Note that a transaction has been committed, whose time was ``now``: an outage is over. Thread-safe.

        ``clock`` returns the present time, which is later if the transaction itself had to wait.
        """
        self._written_at = now
        if self._since is not None:
            with self._lock:
                end = clock()
                self._recent = [outage for outage in self._recent if outage[1] > end]
                if self._since is not None:
                    self._recent.append((self._since, self._spares_until(end)))
                    self._since = None

    def horizon(self, now: int) -> Horizon:
        """Return which leases have expired at ``now``. Thread-safe."""
        if self._since is None and not self._recent:
            return Horizon(now, now)
        with self._lock:
            current = [outage for outage in self._recent if outage[1] > now]
            if self._since is not None:
                current.append((self._since, self._spares_until(now)))
        if not current:
            return Horizon(now, now)
        return Horizon(min(now, *(since for since, _ in current)), max(until for _, until in current))

    def _spares_until(self, moment: int) -> int:
        return moment + round(self._grace * SECOND)
