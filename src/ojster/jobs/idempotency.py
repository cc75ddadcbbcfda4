"""Idempotency keys: stored responses to requests that clients may repeat.

Spec: ojs-bulk-operations 10
"""

from __future__ import annotations

from typing import Final

import msgspec

from ojster.core.durations import DAY, MINUTE
from ojster.core.errors import Conflict, OjsterError
from ojster.storage.call import for_each
from ojster.storage.transaction import Later, Transaction

RESPONSE_RETENTION_US: Final = DAY
"""Default retention of a stored response, in microseconds."""

IN_PROGRESS: Final = 0
"""Status of a request that is still being processed, in several transactions."""

ABANDONED_AFTER_US: Final = MINUTE
"""Time without a renewal after which an unfinished request counts as abandoned by its process, in microseconds."""


class Key(msgspec.Struct, frozen=True):
    """Idempotency key of a request. Keys are separate for each operation.

    ``fingerprint`` is a hash of the request, to detect that a key is reused for a different one. ``retention_us`` is
    that of its response.
    """

    operation: str
    key: str
    fingerprint: str
    retention_us: int = RESPONSE_RETENTION_US


class StoredReply(msgspec.Struct, frozen=True):
    """A stored response."""

    status: int
    body: bytes


def recall(tx: Transaction, key: Key) -> StoredReply | OjsterError | Later | None:
    """Return the stored response to a request, or ``None`` if the request is new.

    Lock the key until the transaction ends. Return ``Conflict`` if the key was used for a different request, and
    ``Later`` if another transaction holds it.
    """
    # The first request has no row before its commit, so a key stands for it. The lock is tried, not awaited: a
    # repetition says "in progress" at once, instead of occupying a connection as long as the first request takes.
    if tx.lock_keys({f"idempotency:{key.operation}:{key.key}"}):
        return Later(f"The request with the idempotency key {key.key!r} is still in progress. Retry later.")
    rows = tx.execute(
        """
        SELECT fingerprint, status, body, created_at
        FROM idempotency_keys
        WHERE operation = :operation AND key = :key
        """,
        {"operation": key.operation, "key": key.key},
    )
    if not rows:
        return None
    fingerprint, status, body, created_at = rows[0]
    if created_at <= tx.now - (ABANDONED_AFTER_US if status == IN_PROGRESS else RESPONSE_RETENTION_US):
        return None
    if fingerprint != key.fingerprint:
        return Conflict(
            f"The idempotency key {key.key!r} was used for a different request. Use a new key.",
            idempotency_key=key.key,
        )
    return StoredReply(status, body)


@for_each
def begin(tx: Transaction, key: Key) -> StoredReply | OjsterError | Later | None:
    """Mark requests that take several transactions as in progress, unless ``recall`` finds a response.

    Return what ``recall`` returned. A reply with the status ``IN_PROGRESS`` means that another caller is processing the
    request.
    """
    known = recall(tx, key)
    if known is None:
        remember(tx, key, StoredReply(IN_PROGRESS, b""))
    return known


@for_each
def renew(tx: Transaction, key: Key) -> None:
    """Record that requests are still being processed: they may take longer than ``ABANDONED_AFTER_US``."""
    tx.execute(
        """
        UPDATE idempotency_keys
        SET created_at = :now
        WHERE operation = :operation AND key = :key AND status = :in_progress
        """,
        {"operation": key.operation, "key": key.key, "in_progress": IN_PROGRESS, "now": tx.now},
    )


@for_each
def finish(tx: Transaction, answer: tuple[Key, StoredReply | None]) -> None:
    """Store the final response to each request; with ``None``, delete the key so that the request can be repeated.

    A key stays that has a response already, because what the request asks for was done before it failed.
    """
    key, reply = answer
    if reply is not None:
        remember(tx, key, reply)
    else:
        tx.execute(
            "DELETE FROM idempotency_keys WHERE operation = :operation AND key = :key AND status = :in_progress",
            {"operation": key.operation, "key": key.key, "in_progress": IN_PROGRESS},
        )


def remember(tx: Transaction, key: Key, reply: StoredReply) -> None:
    """Store the response to a request."""
    tx.execute(
        """
        INSERT INTO idempotency_keys (operation, key, fingerprint, status, body, created_at)
        VALUES (:operation, :key, :fingerprint, :status, :body, :now)
        ON CONFLICT (operation, key) DO UPDATE SET
            fingerprint = excluded.fingerprint, status = excluded.status, body = excluded.body,
            created_at = excluded.created_at
        """,
        {
            "operation": key.operation,
            "key": key.key,
            "fingerprint": key.fingerprint,
            "status": reply.status,
            "body": reply.body,
            # A response with another retention counts as that much older or newer, so that all expire at one age.
            "now": tx.now + key.retention_us - RESPONSE_RETENTION_US,
        },
    )


def forget_replies(tx: Transaction) -> None:
    """Delete responses older than ``RESPONSE_RETENTION_US``."""
    tx.execute("DELETE FROM idempotency_keys WHERE created_at <= :horizon", {"horizon": tx.now - RESPONSE_RETENTION_US})
