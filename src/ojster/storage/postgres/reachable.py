"""Waiting for a database that is away, such as one that is being restarted."""

from __future__ import annotations

import logging
import time
from typing import Final

import psycopg

from ojster.storage.postgres.url import PostgresUrl

log = logging.getLogger(__name__)

FIRST_PAUSE_SECONDS: Final = 0.1
"""First pause before another try, in seconds; doubled each time."""

MAX_PAUSE_SECONDS: Final = 2.0
"""Maximum pause before another try, in seconds."""

WRONG_URL: Final = ("authentication failed", "does not exist", "no pg_hba.conf entry", "no password supplied")
"""What errors say for which waiting is of no use: another URL is needed."""


def wait_until_reachable(url: PostgresUrl, seconds: float) -> None:
    """Wait until a database accepts connections; return at once if it refuses this user or this name.

    Parameters
    ----------
    seconds:
        How long to wait at most, in seconds. Then it returns, too; whoever connects next gets the error.
    """
    deadline = time.monotonic() + seconds
    pause = FIRST_PAUSE_SECONDS
    while True:
        try:
            psycopg.connect(url.conninfo, autocommit=True, prepare_threshold=None).close()
        except psycopg.Error as error:
            reason = " ".join(str(error).split())
            left = deadline - time.monotonic()
            if (
                left <= 0
                or not isinstance(error, psycopg.OperationalError)
                or any(text in reason for text in WRONG_URL)
            ):
                return
            log.warning("waiting for the database %s, for %.0f s at most: %s", url.shown, left, reason)
            time.sleep(min(pause, left))
            pause = min(pause * 2, MAX_PAUSE_SECONDS)
        else:
            return
