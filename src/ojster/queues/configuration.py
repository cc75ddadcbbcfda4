"""What has an operator set for a queue? (ojs-admin-api.md section 6.6)

Limits on what runs are rows of ``rate_limits`` (see ``ojster.queues.limits``); the rest is one JSON object.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from ojster.queues.limits import limit_queue
from ojster.queues.rules import Rules, queue_rules
from ojster.storage.system import FORGOTTEN, drop
from ojster.storage.transaction import Transaction


class Kept(msgspec.Struct, frozen=True):
    """How long finished jobs of a queue are kept, in microseconds; ``None``: as the server's settings say."""

    completed: int | None = None
    cancelled: int | None = None
    discarded: int | None = None
    dead_letter: int | None = None
    most_dead_letters: int | None = None


class QueueConfig(Rules, frozen=True):
    """What is set for a queue, beside what is limited."""

    retention: Kept = Kept()


class Configuration(msgspec.Struct, frozen=True):
    """Changes to what is set for a queue; what is not mentioned stays.

    ``limits`` and ``retention`` are by members of ``Limits`` and ``Kept``, ``rules`` by members of ``Rules``.
    """

    queue: str
    limits: dict[str, Any] = {}
    retention: dict[str, int | None] = {}
    rules: dict[str, Any] = {}


_decode: Final = msgspec.json.Decoder(QueueConfig).decode


def read_config(tx: Transaction, queue: str) -> QueueConfig:
    """Return what is set for a queue."""
    rows = tx.execute("SELECT config FROM queues WHERE name = :name AND config IS NOT NULL", {"name": queue})
    return _decode(rows[0][0]) if rows else QueueConfig()


def configure(tx: Transaction, changes: Sequence[Configuration]) -> list[None]:
    """Change what is set for queues, whether there is one of that name yet or not. It holds at once."""
    for change in changes:
        tx.know_queues((change.queue,))
        tx.execute("SELECT name FROM queues WHERE name = :name" + tx.for_update, {"name": change.queue})
        config = read_config(tx, change.queue)
        news = dict(change.rules)
        if change.retention:
            news["retention"] = msgspec.structs.replace(config.retention, **change.retention)
        if news:
            tx.execute(
                "UPDATE queues SET config = :config WHERE name = :name",
                {"name": change.queue, "config": msgspec.json.encode(msgspec.structs.replace(config, **news))},
            )
            drop(tx, FORGOTTEN)  # others may be forgotten now: look at all again
            tx.effects.configured = True
        if change.limits:
            limit_queue(tx, change.queue, **change.limits)
        tx.emit_about("queue.configured", change.queue, change.queue)
    return [None for _ in changes]


def rules(tx: Transaction, requests: Sequence[None]) -> list[Mapping[str, Rules]]:
    """Return the rules of the queues that have some, for each request."""
    known = queue_rules(tx)
    return [known for _ in requests]


def configured_retention(tx: Transaction, requests: Sequence[None]) -> list[dict[str, Kept]]:
    """Return how long finished jobs are kept in the queues for which that is set, for each request."""
    rows = tx.execute("SELECT name, config FROM queues WHERE config IS NOT NULL")
    found = {name: _decode(config).retention for name, config in rows}
    kept = {name: retention for name, retention in found.items() if retention != Kept()}
    return [kept for _ in requests]
