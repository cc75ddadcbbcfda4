"""What does a PostgreSQL URL say? What libpq understands, and a few words of our own."""

from __future__ import annotations

from typing import Final
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

import msgspec
import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from ojster.core.errors import InvalidRequest
from ojster.storage.database import without_password

DEFAULTS: Final = {
    "application_name": "ojster",
    "connect_timeout": "10",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "15000",
    "client_encoding": "utf8",
}
"""What libpq is told unless the URL says otherwise: a connection that is cut is noticed within half a minute."""

ISOLATIONS: Final = ("read committed", "serializable")
"""At "repeatable read", a transaction that has waited for another would not see what that one has inserted."""

MOST_CONNECTIONS: Final = 64


class PostgresUrl(msgspec.Struct, frozen=True):
    """Where a database is, and how it is to be used.

    Parameters
    ----------
    conninfo:
        What libpq is to connect to.
    shown:
        The URL as people may see it, without its password.
    schema:
        The schema of our tables; ``?schema=`` in the URL.
    isolation:
        The isolation level of transactions; ``?isolation=``. Higher ones are for databases that have no lower.
    connections:
        How many transactions may run at once; ``?connections=``.
    pooled:
        Whether a pooler in transaction mode stands before the database; ``?pooler=transaction``. Statements are not
        prepared then, and LISTEN needs a way of its own.
    """

    conninfo: str
    shown: str
    schema: str = "ojster"
    isolation: str = "read committed"
    connections: int = 3
    pooled: bool = False


def parse_postgres_url(url: str) -> PostgresUrl:
    """Read a URL like ``postgresql://user@host/database?schema=jobs``.

    Raises
    ------
    InvalidRequest
        It says something that neither libpq nor Ojster understands.
    """
    shown = without_password(url)
    try:
        parts = urlsplit(url)
    except ValueError:
        raise InvalidRequest(
            f"The database URL {shown!r} cannot be read; are all special characters escaped?"
        ) from None
    if not parts.scheme.startswith("postgres") or "//" not in url or parts.netloc.count("@") > 1:
        raise InvalidRequest(
            f"The database URL {shown!r} cannot be read: in user and password, '@' is written %40, '/' %2F, '?' %3F "
            "and '#' %23."
        )
    ours: dict[str, str] = {}
    theirs: list[tuple[str, str]] = []
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if name in ("schema", "isolation", "connections", "pooler"):
            ours[name] = value
        else:
            theirs.append((name, value))
    rest = urlunsplit(parts._replace(query=urlencode(theirs, quote_via=quote)))
    if not parts.netloc and not rest.startswith(f"{parts.scheme}://"):  # urlunsplit drops an empty host
        rest = rest.replace(f"{parts.scheme}:", f"{parts.scheme}://", 1)
    try:
        given = conninfo_to_dict(rest)
        conninfo = make_conninfo(rest, **{name: value for name, value in DEFAULTS.items() if name not in given})
    except psycopg.Error as error:
        # libpq's words may have a part of the password in them.
        reason = "are all special characters of the password escaped?" if "***" in shown else str(error).strip()
        raise InvalidRequest(f"The database URL {shown!r} cannot be read: {reason}") from None
    schema = ours.get("schema", "ojster")
    if not schema or "\0" in schema or len(schema.encode()) > 63 or schema.startswith("pg_"):
        raise InvalidRequest(f"{schema!r} cannot be the name of a schema.")
    isolation = ours.get("isolation", "read committed").replace("_", " ").lower()
    if isolation not in ISOLATIONS:
        raise InvalidRequest(
            f"isolation, in the database URL, must be one of {', '.join(ISOLATIONS)}, not {isolation!r}."
        )
    connections = ours.get("connections", "3")
    if not connections.isdecimal() or not 1 <= int(connections) <= MOST_CONNECTIONS:
        raise InvalidRequest(
            f"connections, in the database URL, must be a number from 1 to {MOST_CONNECTIONS}, not {connections!r}."
        )
    pooler = ours.get("pooler", "none")
    if pooler not in ("none", "session", "transaction"):
        raise InvalidRequest(f"pooler, in the database URL, must be none, session or transaction, not {pooler!r}.")
    return PostgresUrl(conninfo, shown, schema, isolation, int(connections), pooler == "transaction")
