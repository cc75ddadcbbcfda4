"""Configuration of queues by operators.

Limits are rows of ``rate_limits`` (see ``ojster.queues.limits``); the rest is one JSON object per queue.

Spec: ojs-admin-api 6.6
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from ojster.jobs.push import ensure_queues
from ojster.queues.limits import limit_queue
from ojster.queues.rules import OverflowStrategy, Rules
from ojster.storage.system import RETENTION_POSITION, drop
from ojster.storage.transaction import Transaction


class QueueRetention(msgspec.Struct, frozen=True):
    """Retention of finished jobs of a queue, in microseconds; ``None``: the server's setting.

    ``most_dead_letters`` is the maximum number of dead letters.
    """

    completed: int | None = None
    cancelled: int | None = None
    discarded: int | None = None
    dead_letter: int | None = None
    most_dead_letters: int | None = None


class QueueConfig(Rules, frozen=True):
    """Configuration of a queue, without its limits."""

    retention: QueueRetention = QueueRetention()


class Configuration(msgspec.Struct, frozen=True):
    """Changes to the configuration of a queue; members that are left out stay unchanged.

    ``limits`` has members of ``Limits``, ``retention`` those of ``QueueRetention``, and ``rules`` those of ``Rules``.
    ``overflow`` is the strategy of a bound that the queue has already.
    """

    queue: str
    limits: dict[str, Any] = {}
    retention: dict[str, int | None] = {}
    rules: dict[str, Any] = {}
    overflow: OverflowStrategy | None = None


_decode: Final = msgspec.json.Decoder(QueueConfig).decode


def read_config(tx: Transaction, queue: str) -> QueueConfig:
    """Return the configuration of a queue; the defaults if it has none."""
    rows = tx.execute("SELECT config FROM queues WHERE name = :name AND config IS NOT NULL", {"name": queue})
    return _decode(rows[0][0]) if rows else QueueConfig()


def configure(tx: Transaction, changes: Sequence[Configuration]) -> list[None]:
    """Change the configuration of queues, effective at once; create queues that do not exist."""
    for change in changes:
        ensure_queues(tx, (change.queue,))
        # Two changes of different members must both last: they are merged into one value and written back.
        tx.execute("SELECT name FROM queues WHERE name = :name" + tx.for_update, {"name": change.queue})
        config = read_config(tx, change.queue)
        if (news := changed(config, change)) is not config:
            tx.execute(
                "UPDATE queues SET config = :config WHERE name = :name",
                {"name": change.queue, "config": msgspec.json.encode(news)},
            )
            drop(tx, RETENTION_POSITION)  # other jobs may have expired: scan from the beginning
            tx.effects.configured = True
        if change.limits:
            limit_queue(tx, change.queue, **change.limits)
        tx.emit_about("queue.configured", change.queue, change.queue)
    return [None for _ in changes]


def changed(config: QueueConfig, change: Configuration) -> QueueConfig:
    """Return a configuration after a change; itself if the change is about limits alone."""
    news = dict(change.rules)
    if change.retention:
        news["retention"] = msgspec.structs.replace(config.retention, **change.retention)
    if change.overflow is not None and config.backpressure is not None and "backpressure" not in news:
        news["backpressure"] = msgspec.structs.replace(config.backpressure, strategy=change.overflow)
    return msgspec.structs.replace(config, **news) if news else config


def configured_retention(tx: Transaction, requests: Sequence[None]) -> list[dict[str, QueueRetention]]:
    """Return the retention of the queues that configure one, for each request."""
    rows = tx.execute("SELECT name, config FROM queues WHERE config IS NOT NULL")
    retentions = {name: _decode(config).retention for name, config in rows}
    kept = {name: retention for name, retention in retentions.items() if retention != QueueRetention()}
    return [kept for _ in requests]
