"""Whether a server can do its work: it writes a row, as any push would, and says why if it cannot."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Final

from ojster.core.errors import OjsterError
from ojster.core.ids import new_id
from ojster.storage.database import Database
from ojster.storage.memory import Local
from ojster.storage.system import note
from ojster.storage.transaction import Transaction

MAX_AGE_SECONDS: Final = 1.0
"""Time for which an answer is given again, so that many questions cost no more than one write each second."""

TIMEOUT_SECONDS: Final = 5.0
"""Time after which a write counts as failed."""

_ROW: Final = "ready"


_STARTED: Final = time.monotonic()
"""Time at which the process loaded this module, in seconds of the monotonic clock."""


def uptime() -> int:
    """Return for how long this process has run, in seconds."""
    return int(time.monotonic() - _STARTED)


class _Last:
    """The last answer: when it was found, and the reason why the database cannot be written, if so."""

    def __init__(self) -> None:
        self.at = float("-inf")
        self.reason: str | None = None


_last: Final = Local(_Last)


async def why_not_ready(database: Database) -> str | None:
    """Return why jobs cannot be written to the database; ``None`` if they can."""
    last = _last.of(database.memory)
    if time.monotonic() - last.at > MAX_AGE_SECONDS:
        try:
            full = await asyncio.wait_for(database.run(_write, None), TIMEOUT_SECONDS)
            last.reason = None if full is None else full.message
        except TimeoutError:
            last.reason = f"The database has not written a row within {TIMEOUT_SECONDS:g} seconds."
        except OjsterError as error:
            last.reason = error.message
        last.at = time.monotonic()
    return last.reason


def _write(tx: Transaction, calls: Sequence[None]) -> list[OjsterError | None]:
    full = tx.refuse_growth()  # returned, not raised: other calls share the transaction
    if full is None:
        note(tx, _ROW, new_id())  # another value each time: SQLite does not write what is there already
    return [full for _ in calls]
