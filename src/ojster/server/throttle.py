"""A limit on how often something is done."""

from __future__ import annotations

import time
from typing import Final

MAX_KEYS: Final = 10_000
"""Maximum number of keys that a throttle remembers."""


class Throttle:
    """Limits how often something is done, by key: so many times in a row, and so many per second in the long run."""

    def __init__(self) -> None:
        self._spent: dict[str, tuple[float, float]] = {}
        """What was spent by each key, and when that was computed."""

    def allows(self, key: str, most: int, per_second: float) -> bool:
        """Spend one, and return ``True``; or ``False`` if nothing is left."""
        now = time.monotonic()
        spent, at = self._spent.get(key, (0.0, now))
        spent = max(0.0, spent - (now - at) * per_second)
        if spent + 1 > most:
            return False
        if len(self._spent) >= MAX_KEYS:
            self._spent.clear()
        self._spent[key] = (spent + 1, now)
        return True
