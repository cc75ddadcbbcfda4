"""Waiting for a database that is away, such as one that is being restarted, and finding one that has moved."""

from __future__ import annotations

import logging
import os
import time
from typing import Final

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from ojster.storage.postgres.notifier import ListeningConnection
from ojster.storage.postgres.url import PostgresUrl

log = logging.getLogger(__name__)

FIRST_PAUSE_SECONDS: Final = 0.1
"""First pause before another try, in seconds; doubled each time."""

MAX_PAUSE_SECONDS: Final = 2.0
"""Maximum pause before another try, in seconds."""

LOG_SECONDS: Final = 5.0
"""Time without an answer to a statement, in seconds, from which on the log says so."""

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


def log_wait(waited: float) -> None:
    """Log that a statement is still without an answer, and how to find out why. ``waited``: since when, in seconds."""
    if waited >= LOG_SECONDS:
        log.warning(
            "the database has not answered for %.0f s; if the statement waits for a lock, `ojster doctor` says who "
            "holds it",
            waited,
        )


def birth_of(connection: psycopg.Connection, conninfo: str) -> object:
    """Return when the server of a connection was started, if its connection string has several hosts."""
    if "," not in conninfo:
        return None
    return connection.execute("SELECT pg_postmaster_start_time()").fetchone()


DEFAULT_PORT: Final = 5432


def successor(birth: object, conninfo: str) -> str | None:
    """Return a connection string that begins with the present primary, if that is another server than one.

    A server that hangs may keep its connections open for hours, although a standby has been promoted. Several hosts
    may also be poolers of one server, which is then only slow.

    Parameters
    ----------
    birth:
        When the one was started; ``None``: there is no other.
    """
    if birth is None:
        return None
    try:
        with ListeningConnection.connect(
            conninfo, autocommit=True, connect_timeout=2, target_session_attrs="read-write", prepare_threshold=None
        ) as other:
            return None if birth_of(other, conninfo) == birth else with_first(conninfo, other)
    except psycopg.Error:
        return None


def with_first(conninfo: str, connection: psycopg.Connection) -> str:
    """Return a connection string that begins with the host that was found to be the primary.

    The next connection then does not wait first for one that hangs.
    """
    parts = conninfo_to_dict(conninfo)
    hosts, ports = str(parts.get("host") or "").split(","), str(parts.get("port") or "").split(",")
    if len(hosts) == 1 or "hostaddr" in parts or len(ports) not in (1, len(hosts)):
        return conninfo
    places = list(zip(hosts, ports if len(ports) > 1 else ports * len(hosts), strict=True))
    here = (connection.info.host, connection.info.port)
    places.sort(key=lambda place: (place[0], int(place[1] or os.environ.get("PGPORT") or DEFAULT_PORT)) != here)
    port = {"port": ",".join(port for _, port in places)} if "port" in parts else {}
    return make_conninfo(conninfo, host=",".join(host for host, _ in places), **port)
