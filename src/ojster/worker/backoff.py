"""Growing pauses between attempts to reach the server."""

from __future__ import annotations

import asyncio
import random
from typing import Final

from ojster.core.errors import BackendError, BackendUnavailable

UNREACHABLE: Final = (BackendUnavailable, BackendError)
"""Errors of the server or its database after which a call is tried again."""

FIRST_PAUSE_SECONDS: Final = 0.1
"""The pause after the first failed attempt; each further one is twice as long."""

LONGEST_PAUSE_SECONDS: Final = 2.0
"""Maximum pause. It is short, so that workers report what they finished during an outage before leases end again
(``ojster.storage.outages.OUTAGE_GRACE_SECONDS``)."""


class Backoff:
    """The pauses between the attempts to make one call.

    Attributes
    ----------
    seconds:
        The next pause, which is by chance up to half shorter or half longer.
    """

    def __init__(self) -> None:
        self.seconds = FIRST_PAUSE_SECONDS

    @property
    def is_longest(self) -> bool:
        """Whether the pauses do not grow any more."""
        return self.seconds >= LONGEST_PAUSE_SECONDS

    def take(self) -> float:
        """Return the next pause, in seconds. The one after it is longer."""
        pause = self.seconds * random.uniform(0.5, 1.5)
        self.seconds = min(self.seconds * 2, LONGEST_PAUSE_SECONDS)
        return pause

    async def wait(self) -> None:
        """Wait for the next pause. The one after it is longer."""
        await asyncio.sleep(self.take())
