"""Configuration of queues by operators.

Limits are rows of ``rate_limits`` (see ``ojster.queues.limits``); the rest is one JSON object per queue.

Spec: ojs-admin-api 6.6
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from ojster.core.errors import InvalidRequest
from ojster.jobs.push import ensure_queues
from ojster.queues.limits import limit_queue
from ojster.queues.rules import Bound, Rules
from ojster.storage.call import for_each, returns_refusal
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

    ``limits`` has members of ``Limits``, ``retention`` those of ``QueueRetention``, ``rules`` those of ``Rules``, and
    ``bound`` those of ``Bound``, where a ``max_depth`` of 0 removes the bound.
    """

    queue: str
    limits: dict[str, Any] = {}
    retention: dict[str, int | None] = {}
    rules: dict[str, Any] = {}
    bound: dict[str, Any] = {}


_decode: Final = msgspec.json.Decoder(QueueConfig).decode


def read_config(tx: Transaction, queue: str) -> QueueConfig:
    """Return the configuration of a queue; the defaults if it has none."""
    rows = tx.execute("SELECT config FROM queues WHERE name = :name AND config IS NOT NULL", {"name": queue})
    return _decode(rows[0][0]) if rows else QueueConfig()


def apply(tx: Transaction, change: Configuration) -> None:
    """Change the configuration of a queue, effective at once; create the queue if it does not exist.

    Raises
    ------
    InvalidRequest
        The change has no effect on the queue as it is. Nothing has changed.
    """
    changed(read_config(tx, change.queue), change)  # a change that is refused must not leave a new queue behind
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


configure: Final = for_each(returns_refusal(apply))
"""Changes the configuration of queues; returns ``None`` or the refusal for each."""


def changed(config: QueueConfig, change: Configuration) -> QueueConfig:
    """Return a configuration after a change; itself if the change is about limits alone.

    Raises
    ------
    InvalidRequest
        The change sets how a full queue behaves, and the queue has no bound and gets none.
    """
    news = dict(change.rules)
    if change.retention:
        news["retention"] = msgspec.structs.replace(config.retention, **change.retention)
    if change.bound:
        news["backpressure"] = _changed_bound(config.backpressure, change.bound)
    return msgspec.structs.replace(config, **news) if news else config


def _changed_bound(known: Bound | None, members: dict[str, Any]) -> Bound | None:
    if members.get("max_depth") == 0:
        return None
    if known is not None or "max_depth" in members:
        return msgspec.structs.replace(known or Bound(0), **members)
    if msgspec.structs.replace(Bound(0), **members) != Bound(0):
        raise InvalidRequest(
            "The queue has no bound: what a push does when it is full, or warns from, has no effect. Set 'max_size', "
            "too.",
            field="max_size",
        )
    return None


def configured_retention(tx: Transaction, requests: Sequence[None]) -> list[dict[str, QueueRetention]]:
    """Return the retention of the queues that configure one, for each request."""
    rows = tx.execute("SELECT name, config FROM queues WHERE config IS NOT NULL")
    retentions = {name: _decode(config).retention for name, config in rows}
    kept = {name: retention for name, retention in retentions.items() if retention != QueueRetention()}
    return [kept for _ in requests]
