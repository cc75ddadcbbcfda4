"""Receivers that accept no deliveries: since when, why, and how many deliveries wait for each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final
from urllib.parse import urlsplit

import msgspec

from ojster.core.durations import DAY
from ojster.jobs.names import INTERNAL_QUEUES_RANGE
from ojster.storage.transaction import Transaction

MAX_ERROR_CHARS: Final = 500
"""Maximum length of the last error of a receiver, in characters."""

MAX_COUNTED: Final = 2_000
"""Number of waiting deliveries that are looked at to count those of each receiver."""

REMEMBERED_US: Final = DAY
"""Time for which a receiver counts as failing after its last failure if nothing waits for it, in microseconds."""


class DeliveryOutcome(msgspec.Struct, frozen=True):
    """How a delivery ended.

    Parameters
    ----------
    receiver:
        The first argument of the delivery job: the id of a webhook subscription, or the stored name of a channel.
    address:
        What people know the receiver by.
    error:
        Why it was not accepted; ``None`` if it was.
    """

    receiver: str
    address: str
    error: str | None = None


class FailingReceiver(msgspec.Struct, frozen=True):
    """A receiver whose last delivery failed. Times are microseconds since the epoch.

    Parameters
    ----------
    since:
        First failure since the last delivery that was accepted.
    failures:
        Number of attempts that failed since then.
    waiting:
        Number of its deliveries that wait, among those that were looked at.
    is_counted:
        Whether all deliveries that wait were looked at.
    """

    receiver: str
    address: str
    since: int
    failed_at: int
    failures: int
    error: str
    waiting: int
    is_counted: bool


def public_address(url: str) -> str:
    """Return the scheme and the host of a URL: its user, its path and its query may be what keeps others out."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "A malformed URL"
    hidden = "/…" if parts.path.strip("/") or parts.query else ""
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{hidden}"


def note_outcome(tx: Transaction, outcome: DeliveryOutcome) -> None:
    """Remember a failed delivery of a receiver, or that it accepts deliveries again."""
    if outcome.error is None:
        forget_receiver(tx, outcome.receiver)
        return
    tx.execute(
        """
        INSERT INTO failing_receivers (receiver, address, since, failed_at, failures, error)
        VALUES (:receiver, :address, :now, :now, 1, :error)
        ON CONFLICT (receiver) DO UPDATE SET
            address = excluded.address,
            failed_at = excluded.failed_at,
            failures = failing_receivers.failures + 1,
            error = excluded.error
        """,
        {
            "receiver": outcome.receiver,
            "address": outcome.address,
            "error": outcome.error[:MAX_ERROR_CHARS],
            "now": tx.now,
        },
    )


def forget_receiver(tx: Transaction, receiver: str) -> None:
    """Forget the failures of a receiver: it has accepted a delivery, was changed, or is deleted."""
    tx.execute("DELETE FROM failing_receivers WHERE receiver = :receiver", {"receiver": receiver})


def failing_receivers(tx: Transaction, requests: Sequence[None]) -> list[list[FailingReceiver]]:
    """Return the receivers that accept no deliveries, the longest failing first, for each request."""
    rows = tx.execute(
        """
        SELECT receiver, address, since, failed_at, failures, error
        FROM failing_receivers
        ORDER BY since, receiver
        """
    )
    waiting, is_counted = _count_waiting(tx) if rows else (Counter[str](), True)
    known = [
        FailingReceiver(receiver, address, since, failed_at, failures, error, waiting[receiver], is_counted)
        for receiver, address, since, failed_at, failures, error in rows
    ]
    failing = [receiver for receiver in known if receiver.waiting or receiver.failed_at > tx.now - REMEMBERED_US]
    return [failing for _ in requests]


class _Delivery(msgspec.Struct):
    args: list[msgspec.Raw]


_delivery: Final = msgspec.json.Decoder(_Delivery).decode


def _count_waiting(tx: Transaction) -> tuple[Counter[str], bool]:
    """Return the numbers of waiting deliveries by receiver, and whether all were looked at."""
    first, end = INTERNAL_QUEUES_RANGE
    bounds = {"first": first, "end": end}
    names = tx.execute(
        """
        SELECT queue, CAST(sum(jobs) AS BIGINT)
        FROM job_counts
        WHERE queue >= :first AND queue < :end AND jobs > 0 AND state IN ('available', 'retryable')
        GROUP BY queue
        """,
        bounds,
    )
    counted: Counter[str] = Counter()
    for queue, _ in names:
        # Each half reads an index of its state, and at most so many rows, whatever else waits. Deliveries need nothing
        # and have no rate limit, which leads to the index of such jobs.
        rows = tx.execute(
            f"""
            SELECT {tx.envelope}
            FROM (
                SELECT seq
                FROM (
                    SELECT seq, queue
                    FROM jobs
                    WHERE state = 'retryable' AND due_at IS NOT NULL
                    ORDER BY due_at
                    LIMIT :most
                ) AS soonest
                WHERE queue = :queue
                UNION ALL
                SELECT seq
                FROM (
                    SELECT seq
                    FROM jobs
                    WHERE queue = :queue AND state = 'available' AND needs IS NULL AND limit_key IS NULL
                    LIMIT :most
                ) AS available
            ) AS j
            JOIN payloads AS p ON p.seq = j.seq
            """,
            {"queue": queue, "most": MAX_COUNTED},
        )
        for (envelope,) in rows:
            args = _delivery(envelope).args
            if args and bytes(args[0])[:1] == b'"':
                counted[msgspec.json.decode(args[0], type=str)] += 1
    return counted, counted.total() == sum(jobs for _, jobs in names)
