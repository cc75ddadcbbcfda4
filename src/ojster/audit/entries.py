"""Entries of the audit log, in a chain of hashes.

The hash of an entry covers its text and the hash of the entry before it, so that nobody can change or delete an entry
and leave the others as they are. Retention deletes from the beginning, and notes where the rest begins.

Spec: ojs-security 11
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal

import msgspec

from ojster.core.calls import MOMENT
from ojster.core.errors import InvalidRequest
from ojster.core.parsing import Bounded, PageLimit
from ojster.core.timestamps import format_timestamp
from ojster.core.wire import Json
from ojster.storage.call import for_each
from ojster.storage.system import note
from ojster.storage.transaction import ColumnType, Transaction

AccessEvent = Literal["access.used", "access.denied", "auth.refused"]
"""What an entry tells: a caller did something, lacked the role for it, or was not admitted at all."""

HEAD: Final = "audit_head"
"""Name of the number and the hash of the last entry."""

BASE: Final = "audit_base"
"""Name of the number and the hash of the last entry that retention has deleted."""

ENTRIES_PER_CHECK: Final = 2_000
"""Number of entries that one transaction checks."""

_POSITION: Final = re.compile(r"([0-9]{1,18}):([0-9a-f]{64}|)")

_COLUMNS: Final[dict[str, ColumnType]] = {
    "seq": "bigint",
    "at": "bigint",
    "event": "text",
    "principal": "text",
    "tenant": "text",
    "operation": "text",
    "object": "text",
    "outcome": "text",
    "body": "bytea",
    "hash": "bytea",
}


class AuditEvent(msgspec.Struct, frozen=True, kw_only=True):
    """Something to record.

    Parameters
    ----------
    event:
        What kind of event it is.
    principal:
        The name of the caller's token; ``unknown`` without a valid one, ``anyone`` on a server that asks for none.
    operation:
        The name of the endpoint, such as ``cancel_job``.
    object:
        What it was done to: the values in the path of the request, such as the id of a job.
    outcome:
        Whether it succeeded.
    source_ip:
        The address that the request came from.
    correlation_id:
        The id of the request, which is also in the answer and in the server's log.
    tenant:
        The workspace of the request; ``None``: all.
    refusal:
        The code of the error.
    detail:
        More about the request.
    """

    event: AccessEvent
    principal: str
    operation: str
    object: str = ""
    outcome: Literal["success", "failure"] = "success"
    source_ip: str = ""
    correlation_id: str = ""
    tenant: str | None = None
    refusal: str | None = None
    detail: dict[str, Json] = {}


class Position(msgspec.Struct, frozen=True):
    """A place in the chain: the number of an entry and its hash, in hexadecimal digits. It begins with number 0."""

    number: int = 0
    hash: str = ""

    @classmethod
    def read(cls, text: str) -> Position:
        """Return the place in a text such as ``17:9f86…``.

        Raises
        ------
        InvalidRequest
            It is malformed.
        """
        parts = _POSITION.fullmatch(text)
        if parts is None:
            message = f"'after' is {text[:80]!r}. Write the number and the hash of an entry, as in '17:9f86…'."
            raise InvalidRequest(message, field="after")
        return cls(int(parts[1]), parts[2])

    def __str__(self) -> str:
        """Return the text that ``read`` reads."""
        return f"{self.number}:{self.hash}"


class AuditEntry(msgspec.Struct, frozen=True):
    """An entry as stored: its place in the chain, and its text as it was hashed."""

    number: int
    hash: str
    body: bytes


def record(tx: Transaction, events: Sequence[AuditEvent]) -> list[Position]:
    """Append entries; return the place of each in the chain."""
    last = _position(tx, HEAD, lock=True)
    rows, places = [], []
    for event in events:
        body = _text_of(event, tx.now)
        last = Position(last.number + 1, _hash(last.hash, body))
        places.append(last)
        rows.append(
            (
                last.number,
                tx.now,
                event.event,
                event.principal,
                event.tenant,
                event.operation,
                event.object,
                event.outcome,
                body,
                bytes.fromhex(last.hash),
            )
        )
    tx.insert_rows("audit_log", _COLUMNS, rows)
    note(tx, HEAD, last)
    return places


def _text_of(event: AuditEvent, at: int) -> bytes:
    """Return an entry as JSON, as it is hashed, stored and shown."""
    shown = {
        "timestamp": format_timestamp(at),
        "event_type": event.event,
        "principal": event.principal,
        "tenant": event.tenant,
        "source_ip": event.source_ip,
        "correlation_id": event.correlation_id,
        "outcome": event.outcome,
        "operation": event.operation,
        "object": event.object,
        "refusal": event.refusal,
        "detail": event.detail,
    }
    return msgspec.json.encode({name: value for name, value in shown.items() if value not in (None, {})})


def _hash(before: str, body: bytes) -> str:
    return hashlib.sha256(before.encode() + b"\n" + body).hexdigest()


def _position(tx: Transaction, name: str, *, lock: bool = False) -> Position:
    """Return a stored place; ``lock``: transactions that append take turns, once there is one."""
    # Two entries that are appended to the same one would break the chain of hashes. The first entry has no row to lock:
    # of two, one violates the primary key of audit_log, and its transaction runs again.
    rows = tx.execute(
        "SELECT value FROM system WHERE name = :name" + (tx.for_update if lock else ""),
        {"name": name},
    )
    return msgspec.json.decode(rows[0][0], type=Position) if rows else Position()


class AuditQuery(Bounded, frozen=True, kw_only=True):
    """Which entries to read, the newest first. ``None``: any. Times are microseconds since the epoch.

    Parameters
    ----------
    operation:
        The name of an endpoint; ``cancel_*`` for all with this beginning.
    object:
        What it was done to, or the beginning of it up to a slash: the id of a workflow also finds its steps.
    since, until:
        Entries from the first moment on, and before the second.
    before:
        Entries with a lower number.
    limit:
        Maximum number of entries.
    """

    principal: str | None = None
    tenant: str | None = None
    event: str | None = None
    operation: str | None = None
    object: str | None = None
    outcome: str | None = None
    since: Annotated[int | None, MOMENT] = None
    until: Annotated[int | None, MOMENT] = None
    before: Annotated[int, msgspec.Meta(ge=0, lt=10**18)] | None = msgspec.field(name="cursor", default=None)
    limit: PageLimit = 100


@for_each
def select(tx: Transaction, query: AuditQuery) -> list[AuditEntry]:
    """Return the entries of each query."""
    conditions = ["1 = 1"]
    parameters: dict[str, Any] = {}
    for name in ("principal", "tenant", "event", "operation", "outcome"):
        if (wanted := getattr(query, name)) is None:
            continue
        if name == "operation" and wanted.endswith("*"):
            conditions.append("operation >= :operation AND operation < :operation_end")
            parameters |= {"operation": wanted[:-1], "operation_end": wanted[:-1] + "\U0010ffff"}
        else:
            conditions.append(f"{name} = :{name}")
            parameters[name] = wanted
    if query.object is not None:
        conditions.append("(object = :object OR (object >= :inside AND object < :beyond))")
        parameters |= {"object": query.object, "inside": f"{query.object}/", "beyond": f"{query.object}0"}
    for name, column, sign in (("since", "at", ">="), ("until", "at", "<"), ("before", "seq", "<")):
        if (bound := getattr(query, name)) is not None:
            conditions.append(f"{column} {sign} :{name}")
            parameters[name] = bound
    rows = tx.execute(
        f"SELECT seq, hash, body FROM audit_log WHERE {' AND '.join(conditions)} ORDER BY seq DESC LIMIT :limit",
        parameters | {"limit": query.limit},
    )
    return [AuditEntry(number, bytes(hash).hex(), bytes(body)) for number, hash, body in rows]


class AuditCheck(msgspec.Struct, frozen=True):
    """The result of checking some entries.

    Parameters
    ----------
    last:
        The last entry that was found to be right.
    head:
        The last entry of the log.
    problem:
        What is wrong with the next one; ``None``: nothing.
    """

    last: Position
    head: Position
    problem: str | None = None


@for_each
def check(tx: Transaction, start: Position) -> AuditCheck:
    """Check the entries after each position, at most ``ENTRIES_PER_CHECK``: that none is missing or was changed."""
    head, base = _position(tx, HEAD), _position(tx, BASE)
    last = max(start, base, key=lambda position: position.number)
    rows = tx.execute(
        f"""
        SELECT seq, hash, body, at, event, principal, tenant, operation, object, outcome
        FROM audit_log
        WHERE seq > :after
        ORDER BY seq
        LIMIT {ENTRIES_PER_CHECK}
        """,
        {"after": last.number},
    )
    for number, hash, body, at, *columns in rows:
        if number != last.number + 1:
            return AuditCheck(last, head, f"The entries {last.number + 1} to {number - 1} are missing.")
        if _hash(last.hash, body) != bytes(hash).hex():
            return AuditCheck(last, head, f"The entry {number}, or its hash, was changed.")
        shown = msgspec.json.decode(body)
        names = ("event_type", "principal", "tenant", "operation", "object", "outcome")
        if [format_timestamp(at), *columns] != [shown["timestamp"], *(shown.get(name) for name in names)]:
            return AuditCheck(last, head, f"The columns of the entry {number} were changed.")
        last = Position(number, bytes(hash).hex())
    if len(rows) < ENTRIES_PER_CHECK and last != head:
        return AuditCheck(last, head, f"The last entry is {last.number}, and should be {head.number}.")
    return AuditCheck(last, head)


def forget(tx: Transaction, room: int) -> int:
    """Delete entries past their retention, at most ``room``, from the beginning; return their number."""
    retention = tx.settings.retention.audit
    if retention is None:
        return 0
    rows = tx.execute(
        "SELECT seq, hash, at FROM audit_log ORDER BY seq LIMIT :room",
        {"room": room},
    )
    past = [(number, hash) for number, hash, at in rows if at < tx.now - retention]
    if not past:
        return 0
    number, hash = past[-1]
    tx.execute("DELETE FROM audit_log WHERE seq <= :last", {"last": number})
    note(tx, BASE, Position(number, bytes(hash).hex()))
    return len(past)
