"""Webhook subscriptions, and one delivery job for each event and subscription.

The transaction that causes an event also pushes its delivery jobs, so exactly the committed events are delivered.
Deliveries wait in their own queue, are retried like all jobs, and become dead letters when retries are exhausted.
Events of delivery jobs are not delivered, which prevents an endless loop.

Spec: ojs-webhooks
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from ojster.core.errors import NotFound, OjsterError
from ojster.core.events import SOURCE, describe_event
from ojster.core.ids import new_id
from ojster.core.signatures import new_secret, replacement
from ojster.events.event_types import check_filter
from ojster.events.subscription import Subscription, active_subscriptions, decode_subscription
from ojster.insight.receivers import DeliveryOutcome, forget_receiver, note_outcome
from ojster.jobs.new_job import NewJob, read_job
from ojster.jobs.push import admit
from ojster.storage.call import for_each, returns_refusal
from ojster.storage.effects import PerTransaction
from ojster.storage.transaction import Transaction

QUEUE: Final = "ojster.webhooks"
"""Queue of the delivery jobs."""

JOB_TYPE: Final = "ojster.webhook"

RETRY: Final = {
    "max_attempts": 8,
    "initial_interval": "PT30S",
    "backoff_coefficient": 5.0,
    "max_interval": "PT24H",
    "on_exhaustion": "dead_letter",
}
"""Retry policy of deliveries: after about 30 s, 2.5 min, 12.5 min, 1 h, 5 h, 24 h and 24 h.

Spec: ojs-webhooks 7.2
"""

_UNDELIVERED_PREFIXES: Final = ("webhook.",)
"""Prefixes of event types that are never delivered."""

_DELIVERED: Final = PerTransaction(int)
"""Number of the transaction's events whose deliveries were pushed."""


def push_deliveries(tx: Transaction) -> None:
    """Push a delivery for each event that a subscription wants; each event of the transaction once."""
    events, since = tx.effects.events, _DELIVERED(tx)
    if since == len(events):
        return
    if subscriptions := active_subscriptions(tx):
        deliveries = [
            delivery(tx, subscription, describe_event(event, f"evt_{new_id()}", SOURCE))
            for event in events[since:]
            if event[3] != QUEUE and not event[0].startswith(_UNDELIVERED_PREFIXES)
            for subscription in subscriptions
            if subscription.wants(event[0], event[3], event[4], event[6])
        ]
        if deliveries:
            admit(tx, [deliveries])
    _DELIVERED.put(tx, len(events))


def delivery(tx: Transaction, subscription: Subscription, event: dict[str, Any]) -> NewJob:
    """Return the job that delivers an event to a subscription."""
    members = {
        "type": JOB_TYPE,
        "args": [subscription.id, event],
        "meta": {"subscription_id": subscription.id, "event_type": event["type"]},
        "options": {"queue": QUEUE, "retry": RETRY, "timeout": 120},
    }
    raw = {name: msgspec.Raw(msgspec.json.encode(value)) for name, value in members.items()}
    return read_job(raw, tx.now, largest=4 * tx.settings.largest_job, tenant=subscription.tenant or "")


def subscribe(tx: Transaction, subscriptions: Sequence[Subscription]) -> list[Subscription]:
    """Create subscriptions and return them."""
    for subscription in subscriptions:
        _write(tx, subscription)
        tx.emit_about(
            "webhook.subscription.created", subscription.id, tenant=subscription.tenant, subscription_id=subscription.id
        )
    return list(subscriptions)


class Change(msgspec.Struct, frozen=True):
    """Changes to a subscription: new values of ``members``, and with ``rotate`` a new secret."""

    id: str
    members: dict[str, Any] = {}
    rotate: bool = False


@for_each
@returns_refusal
def change_subscriptions(tx: Transaction, change: Change) -> Subscription | OjsterError:
    """Change subscriptions; for each, return the changed subscription or its refusal."""
    # The whole subscription is written back, and a rotation keeps the last secret as the former one: the second of
    # two changes must see the first.
    known = _find(tx, change.id, tx.for_update)
    if known is None:
        return no_subscription(change.id)
    members = dict(change.members)
    if change.rotate:
        members |= replacement(known.secret, new_secret(), tx.now)
    changed = msgspec.structs.replace(known, **members)
    if not members.keys().isdisjoint(("events", "queues", "job_types")):
        check_filter(changed.events, changed.queues, changed.job_types, prefix="filter.")
    forget_receiver(tx, change.id)  # it may be another address by now, or be turned off
    _write(tx, changed)
    return changed


@for_each
def unsubscribe(tx: Transaction, id: str) -> Subscription | OjsterError:
    """Delete subscriptions; for each, return it or a `NotFound`. Their pending deliveries are dropped when they run."""
    known = _find(tx, id)
    if known is None:
        return no_subscription(id)
    tx.execute("DELETE FROM webhooks WHERE id = :id", {"id": id})
    forget_receiver(tx, id)
    tx.effects.configured = True
    tx.emit_about("webhook.subscription.deleted", id, tenant=known.tenant, subscription_id=id)
    return known


def find_subscriptions(tx: Transaction, ids: Sequence[str]) -> list[Subscription | OjsterError]:
    """Return the subscription with each id, or a `NotFound`."""
    return [_find(tx, id) or no_subscription(id) for id in ids]


def list_subscriptions(tx: Transaction, requests: Sequence[None]) -> list[list[Subscription]]:
    """Return all subscriptions, the oldest first, for each request."""
    subscriptions = [decode_subscription(body) for (body,) in tx.execute("SELECT body FROM webhooks ORDER BY id")]
    return [subscriptions for _ in requests]


def no_subscription(id: str) -> NotFound:
    """Return the error for an unknown subscription."""
    return NotFound(f"There is no subscription {id}.", resource_type="webhook_subscription", resource_id=id)


@for_each
def record_outcomes(tx: Transaction, noted: tuple[str, DeliveryOutcome, dict[str, Any]]) -> None:
    """Record how deliveries ended, each as ``(event type, outcome, event data)``, and emit the events."""
    event, outcome, more = noted
    # An attempt may end after its subscription was deleted, which then nothing would forget any more. The lock lets
    # a deletion that runs now wait, and then see the note.
    known = None if outcome.error is None else _find(tx, outcome.receiver, tx.for_update)
    if outcome.error is None or (known is not None and known.active):
        note_outcome(tx, outcome)
    tx.emit_about(event, outcome.receiver, QUEUE, subscription_id=outcome.receiver, **more)


def _find(tx: Transaction, id: str, lock: str = "") -> Subscription | None:
    rows = tx.execute("SELECT body FROM webhooks WHERE id = :id" + lock, {"id": id})
    return decode_subscription(rows[0][0]) if rows else None


def _write(tx: Transaction, subscription: Subscription) -> None:
    tx.execute(
        "INSERT INTO webhooks (id, body) VALUES (:id, :body) ON CONFLICT (id) DO UPDATE SET body = excluded.body",
        {"id": subscription.id, "body": msgspec.json.encode(subscription)},
    )
    tx.effects.configured = True


def count_active(tx: Transaction, requests: Sequence[None]) -> list[int]:
    """Return the number of active subscriptions, for each request."""
    return [len(active_subscriptions(tx)) for _ in requests]
