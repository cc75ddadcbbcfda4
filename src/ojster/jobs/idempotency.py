"""Has this request been answered already? Keys that clients give to requests which they may send again.

(ojs-bulk-operations.md section 10, seed 004)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from ojster.core.durations import DAY, MINUTE
from ojster.core.errors import Conflict, OjsterError
from ojster.storage.transaction import Later, Transaction

KEPT_FOR: Final = DAY
"""How long an answer is kept, in microseconds."""

IN_PROGRESS: Final = 0
"""The status of what is still being answered, in several transactions."""

GIVEN_UP: Final = 10 * MINUTE
"""After how long nobody is at an answer any more, in microseconds: the process has died."""


class Key(msgspec.Struct, frozen=True):
    """The key of a request. The same one means different things for different operations.

    ``fingerprint`` tells whether it is the same request.
    """

    operation: str
    key: str
    fingerprint: str


class Reply(msgspec.Struct, frozen=True):
    """What was, or is to be answered."""

    status: int
    body: bytes


def recall(tx: Transaction, key: Key) -> Reply | OjsterError | Later | None:
    """Return what was answered to a request, or ``None`` if it is new; nobody else may answer it until we have.

    A refusal, if the key was given to another request; ``Later``, if somebody else is at it.
    """
    if tx.lock_keys({f"idempotency:{key.operation}:{key.key}"}):
        return Later(f"The request with the idempotency key {key.key!r} is still being answered.")
    rows = tx.execute(
        "SELECT fingerprint, status, body, created_at FROM idempotency_keys "
        "WHERE operation = :operation AND key = :key",
        {"operation": key.operation, "key": key.key},
    )
    if not rows:
        return None
    fingerprint, status, body, created_at = rows[0]
    if created_at <= tx.now - (GIVEN_UP if status == IN_PROGRESS else KEPT_FOR):
        return None
    if fingerprint != key.fingerprint:
        return Conflict(
            f"The idempotency key {key.key!r} was given to another request; a key belongs to one request.",
            idempotency_key=key.key,
        )
    return Reply(status, body)


def begin(tx: Transaction, keys: Sequence[Key]) -> list[Reply | OjsterError | Later | None]:
    """Begin to answer requests that take several transactions, unless they were answered already, as ``recall`` says.

    A reply whose status is ``IN_PROGRESS`` means that somebody else is at it.
    """
    results: list[Reply | OjsterError | Later | None] = []
    for key in keys:
        known = recall(tx, key)
        if known is None:
            remember(tx, key, Reply(IN_PROGRESS, b""))
        results.append(known)
    return results


def finish(tx: Transaction, answers: Sequence[tuple[Key, Reply | None]]) -> list[None]:
    """Note what is answered in the end; ``None``: nothing, so that the request can be made again."""
    for key, reply in answers:
        if reply is not None:
            remember(tx, key, reply)
        else:
            tx.execute(
                "DELETE FROM idempotency_keys WHERE operation = :operation AND key = :key",
                {"operation": key.operation, "key": key.key},
            )
    return [None for _ in answers]


def remember(tx: Transaction, key: Key, reply: Reply) -> None:
    """Note what is answered to a request."""
    tx.execute(
        "INSERT INTO idempotency_keys (operation, key, fingerprint, status, body, created_at) "
        "VALUES (:operation, :key, :fingerprint, :status, :body, :now) "
        "ON CONFLICT (operation, key) DO UPDATE SET fingerprint = excluded.fingerprint, status = excluded.status, "
        "body = excluded.body, created_at = excluded.created_at",
        {
            "operation": key.operation,
            "key": key.key,
            "fingerprint": key.fingerprint,
            "status": reply.status,
            "body": reply.body,
            "now": tx.now,
        },
    )


def forget_replies(tx: Transaction) -> None:
    """Delete answers that were kept long enough."""
    tx.execute("DELETE FROM idempotency_keys WHERE created_at <= :horizon", {"horizon": tx.now - KEPT_FOR})
