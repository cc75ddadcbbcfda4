"""Notifications of jobs to people and programs: one job for each message, pushed by a reaction.

They wait in a queue of their own. Servers send them (``ojster.server.delivery.worker``), retry them like all jobs, and
keep those that cannot be delivered as dead letters.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from ojster.collections.outputs import reference_resolver
from ojster.core.errors import NotFound, OjsterError
from ojster.core.job import Job
from ojster.core.job_flags import JobEvent as Event
from ojster.core.references import Unresolvable, parse_reference
from ojster.core.tenant import called, qualify
from ojster.events.channel import MAX_SUBJECT_LENGTH, Channel, Message, Notify
from ojster.events.webhooks import RETRY
from ojster.insight.receivers import DeliveryOutcome, forget_receiver, note_outcome
from ojster.jobs.job_json import to_json
from ojster.jobs.new_job import read_job
from ojster.jobs.push import admit
from ojster.jobs.scope import accepted
from ojster.storage.call import for_each
from ojster.storage.transaction import Transaction

QUEUE: Final = "ojster.notifications"
JOB_TYPE: Final = "ojster.notification"
DEFAULT_SUBJECT: Final = "The job {job.type} {event}"
_EVENT_PHRASES: Final[dict[Event, str]] = {
    "on_creation": "was created",
    "on_unblock": "is unblocked",
    "on_assignment": "has started",
    "on_success": "has succeeded",
    "on_failure": "has failed",
}
_FIELD: Final = re.compile(r"\{(job\.[^{}]+|event)\}")
_SHOWN: Final = ("id", "type", "queue", "state", "attempt", "created_at", "completed_at", "error", "workflow_id")
"""Attributes of a job that messages contain. Arguments and result are left out, because they may be secret."""

_decode: Final = msgspec.json.Decoder(Channel).decode


@for_each
def put_channels(tx: Transaction, channel: Channel) -> bool:
    """Create or replace channels; return for each whether it is new."""
    known = _find(tx, channel.name)
    kept = msgspec.structs.replace(channel, created_at=tx.now if known is None else known.created_at)
    tx.execute(
        """
        INSERT INTO channels (name, body)
        VALUES (:name, :body)
        ON CONFLICT (name) DO UPDATE SET body = excluded.body
        """,
        {"name": channel.name, "body": msgspec.json.encode(kept)},
    )
    forget_receiver(tx, channel.name)
    tx.effects.configured = True
    return known is None


def find_channels(tx: Transaction, names: Sequence[str]) -> list[Channel | OjsterError]:
    """Return each channel as stored, or ``NotFound``."""
    return [_find(tx, name) or no_channel(name) for name in names]


def list_channels(tx: Transaction, requests: Sequence[None]) -> list[list[Channel]]:
    """Return all channels as stored, ordered by name, for each request."""
    channels = [_decode(body) for (body,) in tx.execute("SELECT body FROM channels ORDER BY name")]
    return [channels for _ in requests]


@for_each
def delete_channels(tx: Transaction, name: str) -> OjsterError | None:
    """Delete channels. Messages that are still queued for them are dropped when their jobs run."""
    rows = tx.execute("DELETE FROM channels WHERE name = :name RETURNING name", {"name": name})
    forget_receiver(tx, name)
    tx.effects.configured = tx.effects.configured or bool(rows)
    return None if rows else no_channel(name)


def notify(tx: Transaction, job: Job, event: Event, action: Notify) -> None:
    """Push the job that sends a notification.

    Raises
    ------
    NotFound
        The channel does not exist.
    """
    key = qualify(job.tenant, action.channel)
    channel = _find(tx, key)
    if channel is None:
        raise no_channel(key)
    subject = action.subject or channel.subject or DEFAULT_SUBJECT
    shown = {name: value for name, value in msgspec.json.decode(to_json(job)).items() if name in _SHOWN}
    message = Message(
        event,
        _filled(subject, job, event)[:MAX_SUBJECT_LENGTH],
        _filled(action.text or "", job, event),
        shown,
        action.to,
        action.cc,
    )
    push_message(tx, key, message, job.tenant)


def push_message(tx: Transaction, key: str, message: Message, tenant: str) -> None:
    """Push the job that sends a message through a channel."""
    members: dict[str, Any] = {
        "type": JOB_TYPE,
        "args": [key, message],
        "meta": {"channel": called(key), "event_type": "notification"},
        "options": {"queue": QUEUE, "retry": RETRY, "timeout": 120},
    }
    raw = {name: msgspec.Raw(msgspec.json.encode(value)) for name, value in members.items()}
    (pushed,) = admit(tx, [[read_job(raw, tx.now, largest=4 * tx.settings.largest_job, tenant=tenant)]])
    accepted(pushed)


@for_each
def record_outcomes(tx: Transaction, noted: tuple[str, DeliveryOutcome, dict[str, Any]]) -> None:
    """Record how messages were delivered, each as ``(event type, outcome, event data)``, and emit the events."""
    event, outcome, more = noted
    # As of webhooks: of a channel that was deleted meanwhile nothing is noted, and a deletion sees the note.
    if outcome.error is None or _find(tx, outcome.receiver, tx.for_update) is not None:
        note_outcome(tx, outcome)
    tx.emit_about(event, outcome.receiver, QUEUE, channel=called(outcome.receiver), **more)


def _filled(template: str, job: Job, event: Event) -> str:
    resolver = reference_resolver(job)

    def fill(field: re.Match[str]) -> str:
        if field[1] == "event":
            return _EVENT_PHRASES[event]
        try:
            value = msgspec.json.decode(resolver(parse_reference(field[1])))
        except Unresolvable:
            return field[0]
        text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
        return "".join(character if character.isprintable() else " " for character in text)

    return _FIELD.sub(fill, template)


def _find(tx: Transaction, name: str, lock: str = "") -> Channel | None:
    rows = tx.execute("SELECT body FROM channels WHERE name = :name" + lock, {"name": name})
    return _decode(rows[0][0]) if rows else None


def no_channel(key: str) -> NotFound:
    """Return the error for a channel that does not exist."""
    return NotFound(f"There is no channel {called(key)!r}.", resource_type="channel", resource_id=called(key))
