"""Webhook subscriptions: the events a URL receives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal

import msgspec

from ojster.core.parsing import matches_any
from ojster.core.signatures import keys_at
from ojster.storage.memory import Remembered
from ojster.storage.transaction import Transaction

URI_REFERENCE: Final = r"^([A-Za-z0-9._~:/?#\[\]@!$&'()*+,;=-]|%[0-9A-Fa-f]{2})+$(?!\n)"
"""Matches the characters of a URI reference. Spec: RFC 3986"""


class CloudEventsForm(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How deliveries become CloudEvents: their ``source``, the prefix of their types, and where attributes are.

    ``structured`` has them in the body, ``binary`` in headers, with the data alone in the body.

    Spec: ojs-cloudevents-interop 7.2
    """

    source_uri: Annotated[str, msgspec.Meta(max_length=2000, pattern=URI_REFERENCE)]
    content_mode: Literal["structured", "binary"] = "structured"
    type_prefix: Annotated[str, msgspec.Meta(max_length=200, pattern=r"^[!-~]*$(?!\n)")] = "org.openjobspec."


class Subscription(msgspec.Struct, frozen=True):
    """A webhook subscription to events. Times are microseconds since the epoch.

    Parameters
    ----------
    url:
        Address to which the events are posted.
    events:
        Types of events; ``job.*`` matches all types with this prefix, ``*`` all types.
    secret:
        Signs the deliveries; the server makes one if there is none.
    active:
        Whether events are delivered.
    queues, job_types:
        Only events of these; empty: of all.
    metadata:
        What its owner notes about it.
    cloudevents:
        How events are sent as CloudEvents; ``None``: as events of Open Job Spec.
    former_secret, former_until:
        The previous secret, and until when deliveries are signed with it too.

    Spec: ojs-webhooks 5.1
    """

    id: str
    url: str
    events: tuple[str, ...]
    secret: str
    created_at: int
    active: bool = True
    queues: tuple[str, ...] = ()
    job_types: tuple[str, ...] = ()
    metadata: dict[str, Any] = {}
    cloudevents: CloudEventsForm | None = None
    former_secret: str | None = None
    former_until: int = 0
    tenant: str | None = None
    """Tenant of the events; ``None``: all tenants."""

    def keys(self, now: int) -> list[str]:
        """Return the secrets to sign a delivery with: also the previous one, for some time after a rotation."""
        return keys_at(now, self.secret, self.former_secret, self.former_until)

    def wants(self, type: str, queue: str | None, job_type: str | None, tenant: str = "") -> bool:
        """Whether the subscription matches an event."""
        if self.tenant not in (None, tenant):
            return False
        if self.queues and queue not in self.queues:
            return False
        if self.job_types and job_type not in self.job_types:
            return False
        return matches_any(type, self.events)


decode_subscription: Final = msgspec.json.Decoder(Subscription).decode


def _read_subscriptions(tx: Transaction) -> Sequence[Subscription]:
    rows = tx.execute("SELECT body FROM webhooks ORDER BY id")
    return [subscription for (body,) in rows if (subscription := decode_subscription(body)).active]


active_subscriptions: Final = Remembered[Sequence[Subscription]](_read_subscriptions, in_callers=())
"""All active subscriptions."""
