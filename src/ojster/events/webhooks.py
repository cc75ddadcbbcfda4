"""Who is told of what has happened? Subscriptions, and a job for each delivery. (ojs-webhooks.md)

The jobs are pushed by the very transaction in which the event happens: what is committed is told, and nothing else.
They wait in a queue of their own, are retried like all jobs, and end as dead letters if nobody answers. What happens to
them is told to nobody, or there would be no end.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from ojster.core.durations import DAY
from ojster.core.errors import NotFound, OjsterError
from ojster.core.events import SOURCE, describe_event
from ojster.core.ids import new_id
from ojster.events.subscription import Subscription, active_subscriptions, decode_subscription
from ojster.jobs.admission import admit
from ojster.jobs.request import NewJob, read_job
from ojster.storage.transaction import Transaction

QUEUE: Final = "ojster.webhooks"
"""Where deliveries wait."""

JOB_TYPE: Final = "ojster.webhook"

RETRY: Final = {
    "max_attempts": 8,
    "initial_interval": "PT30S",
    "backoff_coefficient": 5.0,
    "max_interval": "PT24H",
    "on_exhaustion": "dead_letter",
}
"""After 30 seconds, 2½ minutes, a quarter of an hour, an hour, five hours, and a day twice (section 7.2)."""

ROTATION: Final = DAY
"""For how long deliveries are signed with the former secret too, in microseconds (section 8.3)."""

_SILENT: Final = ("webhook.",)
"""Events of which nobody is told."""


def tell_subscribers(tx: Transaction) -> None:
    """Push a delivery for each event that a subscription wants; each event of the transaction once."""
    events, since = tx.effects.events, tx.effects.told
    if since == len(events):
        return
    if subscriptions := active_subscriptions(tx):
        deliveries = [
            delivery(tx, subscription, describe_event(event, f"evt_{new_id()}", SOURCE))
            for event in events[since:]
            if event[3] != QUEUE and not event[0].startswith(_SILENT)
            for subscription in subscriptions
            if subscription.wants(event[0], event[3], event[4], event[6])
        ]
        if deliveries:
            admit(tx, [deliveries])
    tx.effects.told = len(events)


def delivery(tx: Transaction, subscription: Subscription, event: dict[str, Any]) -> NewJob:
    """Return the job that tells a subscriber of an event."""
    members = {
        "type": JOB_TYPE,
        "args": [subscription.id, event],
        "meta": {"subscription_id": subscription.id, "event_type": event["type"]},
        "options": {"queue": QUEUE, "retry": RETRY, "timeout": 120},
    }
    raw = {name: msgspec.Raw(msgspec.json.encode(value)) for name, value in members.items()}
    return read_job(raw, tx.now, largest=4 * tx.settings.largest_job, tenant=subscription.tenant or "")


def subscribe(tx: Transaction, subscriptions: Sequence[Subscription]) -> list[Subscription]:
    """Note who wants to be told of events."""
    for one in subscriptions:
        _write(tx, one)
        tx.emit_about("webhook.subscription.created", one.id, tenant=one.tenant, subscription_id=one.id)
    return list(subscriptions)


class Change(msgspec.Struct, frozen=True):
    """What is to be changed of a subscription: the members that are given; or a new secret."""

    id: str
    members: dict[str, Any] = {}
    rotate: bool = False


def change_subscriptions(tx: Transaction, changes: Sequence[Change]) -> list[Subscription | OjsterError]:
    """Change subscriptions; for each return it, or that there is none."""
    results: list[Subscription | OjsterError] = []
    for change in changes:
        known = _find(tx, change.id, tx.for_update)
        if known is None:
            results.append(no_subscription(change.id))
            continue
        members = dict(change.members)
        if change.rotate:
            members |= {
                "secret": new_secret(),
                "former_secret": known.secret,
                "former_until": tx.now + ROTATION,
            }
        changed = msgspec.structs.replace(known, **members)
        _write(tx, changed)
        results.append(changed)
    return results


def unsubscribe(tx: Transaction, ids: Sequence[str]) -> list[Subscription | OjsterError]:
    """Delete subscriptions; what is still to be delivered to them is dropped when its turn comes."""
    results: list[Subscription | OjsterError] = []
    for id in ids:
        known = _find(tx, id)
        if known is None:
            results.append(no_subscription(id))
            continue
        tx.execute("DELETE FROM webhooks WHERE id = :id", {"id": id})
        tx.effects.configured = True
        tx.emit_about("webhook.subscription.deleted", id, tenant=known.tenant, subscription_id=id)
        results.append(known)
    return results


def find_subscriptions(tx: Transaction, ids: Sequence[str]) -> list[Subscription | OjsterError]:
    """Return the subscription of each id, or that there is none."""
    return [_find(tx, id) or no_subscription(id) for id in ids]


def list_subscriptions(tx: Transaction, requests: Sequence[None]) -> list[list[Subscription]]:
    """Return all subscriptions, the oldest first, for each request."""
    found = [decode_subscription(body) for (body,) in tx.execute("SELECT body FROM webhooks ORDER BY id")]
    return [found for _ in requests]


def new_secret() -> str:
    """Return a secret to sign deliveries with."""
    return f"whsec_{secrets.token_urlsafe(32)}"


def no_subscription(id: str) -> NotFound:
    """Return the refusal for a subscription that there is not."""
    return NotFound(f"There is no subscription {id}.", resource_type="webhook_subscription", resource_id=id)


def told(tx: Transaction, outcomes: Sequence[tuple[str, str, dict[str, Any]]]) -> list[None]:
    """Record how deliveries went: ``(event, subscription, more)``."""
    for event, subscription_id, more in outcomes:
        tx.emit_about(event, subscription_id, QUEUE, subscription_id=subscription_id, **more)
    return [None for _ in outcomes]


def _find(tx: Transaction, id: str, lock: str = "") -> Subscription | None:
    rows = tx.execute("SELECT body FROM webhooks WHERE id = :id" + lock, {"id": id})
    return decode_subscription(rows[0][0]) if rows else None


def _write(tx: Transaction, one: Subscription) -> None:
    tx.execute(
        "INSERT INTO webhooks (id, body) VALUES (:id, :body) ON CONFLICT (id) DO UPDATE SET body = excluded.body",
        {"id": one.id, "body": msgspec.json.encode(one)},
    )
    tx.effects.configured = True
