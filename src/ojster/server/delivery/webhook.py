"""Calls to webhook endpoints.

Spec: ojs-webhooks 7, 8
"""

from __future__ import annotations

import time
from typing import Any, Final

import msgspec

from ojster.core.durations import DAY, SECOND
from ojster.core.version import __version__
from ojster.events.subscription import Subscription
from ojster.push.answers import read_retry_after
from ojster.server.delivery.cloud_event import encode_event
from ojster.server.delivery.sender import Sender

TIMEOUT: Final = 30.0
"""Timeout of a whole call to an endpoint, with its redirects, in seconds. Spec: ojs-webhooks 7.3"""

LONGEST_PAUSE: Final = DAY
"""Longest pause that an endpoint may ask for with ``Retry-After``, in microseconds."""

MAX_RESPONSE_BYTES: Final = 65_536
"""Number of bytes of a response that are read at most."""

MAX_RESPONSE_CHARACTERS: Final = 1_000
"""Maximum length of a stored response body, in characters."""


class EndpointResponse(msgspec.Struct, frozen=True):
    """The response of an endpoint."""

    status: int
    seconds: float
    body: str
    pause: int = 0
    """Shortest time until the next attempt, in microseconds."""

    @property
    def succeeded(self) -> bool:
        """Whether the endpoint accepted the delivery (status 2xx)."""
        return 200 <= self.status < 300

    @property
    def final(self) -> bool:
        """Whether a retry is pointless: status 4xx, except 408 and 429."""
        return 400 <= self.status < 500 and self.status not in (408, 429)


class WebhookSender(Sender):
    """Sends events to webhooks."""

    async def send(self, subscription: Subscription, event: dict[str, Any], delivery_id: str) -> EndpointResponse:
        """Sign an event and send it. Raises as ``Sender.post``."""
        content, body = encode_event(event, subscription.cloudevents)
        headers = content | {
            "User-Agent": f"OJS-Webhook/1.0 (ojster/{__version__})",
            "X-OJS-Event-Type": event["type"],
            "X-OJS-Delivery-ID": delivery_id,
            "X-OJS-Subscription-ID": subscription.id,
        }
        received = await self.post(
            subscription.url,
            headers,
            body,
            subscription.keys(int(time.time()) * SECOND),
            seconds=TIMEOUT,
            largest=MAX_RESPONSE_BYTES,
        )
        text = received.body.decode("utf-8", "replace")[:MAX_RESPONSE_CHARACTERS]
        pause = 0
        if received.status in (429, 503):
            pause = read_retry_after(received.headers.get("retry-after"), int(time.time() * SECOND)) or 0
        return EndpointResponse(received.status, received.seconds, text, min(pause, LONGEST_PAUSE))
