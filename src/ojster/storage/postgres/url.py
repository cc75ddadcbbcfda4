"""PostgreSQL URLs: the parameters of libpq, and Ojster's own."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

import msgspec
import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from ojster.core.errors import InvalidRequest
from ojster.storage.database import without_password
from ojster.storage.postgres.abilities import NOTHING, Lacks, lacked_by, read_lacks

DEFAULTS: Final = {
    "application_name": "ojster",
    "connect_timeout": "10",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "15000",
    "client_encoding": "utf8",
}
"""Default parameters for libpq, which the URL can override. They detect a broken connection within 30 seconds."""

PRIMARY: Final = {"target_session_attrs": "read-write", "connect_timeout": "3"}
"""Default parameters of a URL with several hosts: it leads to the one that accepts writes, and soon past one that
hangs."""

ISOLATIONS: Final = ("read committed", "serializable")
"""Supported isolation levels. At "repeatable read", a transaction would not see rows inserted by another one that it
has waited for."""

MAX_CONNECTIONS: Final = 64
"""Maximum number of connections that a URL can ask for with the parameter ``connections``."""


_UNUSABLE: Final = frozenset("\0?:$'")
"""Characters that no schema may have. They mark parameters or texts in statements, some of which have the name in them
before their parameters are numbered, by Ojster or by the driver of a caller's connection."""


class PostgresUrl(msgspec.Struct, frozen=True):
    """A parsed PostgreSQL URL.

    Parameters
    ----------
    conninfo:
        Connection string for libpq.
    shown:
        The URL without its password, for logs and errors.
    schema:
        Schema of Ojster's tables: ``?schema=``.
    isolation:
        Isolation level of transactions: ``?isolation=``. Use a higher one only for databases that have no lower one.
    connections:
        Maximum number of concurrent transactions: ``?connections=``.
    pooled:
        Whether a pooler in transaction mode is in front of the database: ``?pooler=transaction``. Statements are then
        not prepared, and LISTEN needs a direct connection (``OJSTER_LISTEN_URL``).
    lacks:
        What the database lacks of PostgreSQL's abilities, which Ojster then does without: ``?lacks=``.
    replica:
        Connection string of a replica that answers lists and statistics: ``?read_host=``, a host or several, each with
        a port if it is another one.
    max_lag:
        How far the replica may be behind, in seconds: ``?read_lag=``. Otherwise, the primary answers.
    """

    conninfo: str
    shown: str
    schema: str = "ojster"
    isolation: str = "read committed"
    connections: int = 3
    pooled: bool = False
    lacks: Lacks = NOTHING
    replica: str | None = None
    max_lag: float = 5.0


def with_lacks(url: PostgresUrl, version: str) -> PostgresUrl:
    """Return a URL that also says what a database lacks that calls itself so in ``version()``."""
    return msgspec.structs.replace(url, lacks=url.lacks | lacked_by(version))


def parse_postgres_url(url: str) -> PostgresUrl:
    """Parse a URL like ``postgresql://user@host/database?schema=jobs``.

    Raises
    ------
    InvalidRequest
        The URL is malformed, or neither libpq nor Ojster accepts one of its parameters.
    """
    shown = without_password(url)
    try:
        parts = urlsplit(url)
    except ValueError:
        raise InvalidRequest(f"The database URL {shown!r} cannot be parsed. Escape all special characters.") from None
    if not parts.scheme.startswith("postgres") or "//" not in url or parts.netloc.count("@") > 1:
        raise InvalidRequest(
            f"The database URL {shown!r} cannot be parsed. In user and password, write '@' as %40, '/' as %2F, '?' as "
            "%3F and '#' as %23."
        )
    ours: dict[str, str] = {}
    theirs: list[tuple[str, str]] = []
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if name in ("schema", "isolation", "connections", "pooler", "lacks", "read_host", "read_lag"):
            ours[name] = value
        else:
            theirs.append((name, value))
    rest = urlunsplit(parts._replace(query=urlencode(theirs, quote_via=quote)))
    if not parts.netloc and not rest.startswith(f"{parts.scheme}://"):  # urlunsplit drops an empty host
        rest = rest.replace(f"{parts.scheme}:", f"{parts.scheme}://", 1)
    try:
        members = conninfo_to_dict(rest)
        defaults = DEFAULTS | (PRIMARY if "," in f"{members.get('host', '')}{members.get('hostaddr', '')}" else {})
        conninfo = make_conninfo(rest, **{name: value for name, value in defaults.items() if name not in members})
    except (psycopg.Error, UnicodeError) as error:
        # libpq's message may contain a part of the password.
        reason = "escape all special characters of the password." if "***" in shown else str(error).strip()
        raise InvalidRequest(f"The database URL {shown!r} cannot be parsed: {reason}") from None
    schema = ours.get("schema", "ojster")
    if not schema or len(schema.encode()) > 63 or schema.startswith("pg_") or not _UNUSABLE.isdisjoint(schema):
        raise InvalidRequest(
            "schema, in the database URL, must have 1 to 63 bytes, not begin with pg_, and have no U+0000 and none of "
            f"the characters ? : $ ', not {schema!r}."
        )
    isolation = ours.get("isolation", "read committed").replace("_", " ").lower()
    if isolation not in ISOLATIONS:
        raise InvalidRequest(
            f"isolation, in the database URL, must be one of {', '.join(ISOLATIONS)}, not {isolation!r}."
        )
    connections = ours.get("connections", "3")
    if not connections.isdecimal() or len(connections) > 4 or not 1 <= int(connections) <= MAX_CONNECTIONS:
        raise InvalidRequest(
            f"connections, in the database URL, must be a number from 1 to {MAX_CONNECTIONS}, not {connections!r}."
        )
    pooler = ours.get("pooler", "none")
    if pooler not in ("none", "session", "transaction"):
        raise InvalidRequest(f"pooler, in the database URL, must be none, session or transaction, not {pooler!r}.")
    return PostgresUrl(
        conninfo,
        shown,
        schema,
        isolation,
        int(connections),
        pooler == "transaction",
        read_lacks(ours.get("lacks", "")),
        _replica(conninfo, ours["read_host"]) if "read_host" in ours else None,
        _seconds(ours.get("read_lag", "5")),
    )


def _seconds(lag: str) -> float:
    if not re.fullmatch(r"\d{1,6}(\.\d{1,6})?", lag, re.ASCII):
        raise InvalidRequest(f"read_lag, in the database URL, must be a number of seconds, not {lag!r}.")
    return float(lag)


_PLACE: Final = re.compile(r"(?P<host>\[[0-9a-fA-F:.]+\]|[^\s,:\[\]]+)(:(?P<port>\d{1,5}))?", re.ASCII)
"""A host, perhaps with a port. An IPv6 address is in brackets."""


def _replica(conninfo: str, hosts: str) -> str:
    """Return the connection string of a replica: that of the primary, with other hosts."""
    known = {name: str(value) for name, value in conninfo_to_dict(conninfo).items()}
    servers: list[tuple[str, str]] = []
    for place in hosts.split(","):
        match = _PLACE.fullmatch(place)
        if match is None:
            what = "must name a host, or several with commas, as host or host:port"
            raise InvalidRequest(f"read_host, in the database URL, {what}.")  # it may hold a password
        servers.append((match["host"].strip("[]"), match["port"] or known.get("port", "").split(",")[0]))
    own = {"host": ",".join(host for host, _ in servers), "port": ",".join(port for _, port in servers)}
    for name in ("hostaddr", "target_session_attrs"):
        known.pop(name, None)
    if known["connect_timeout"] == DEFAULTS["connect_timeout"]:
        known["connect_timeout"] = PRIMARY["connect_timeout"]
    return make_conninfo("", **known | own)
