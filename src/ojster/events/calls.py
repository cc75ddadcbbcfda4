"""Calls about notification channels and webhooks, as a service, a server and its client have them."""

from __future__ import annotations

from typing import Final

from ojster.core.access import ADMIN_ONLY
from ojster.core.calls import Call, Calls, Deletion, Handled, Listing
from ojster.core.wire import DeletedAnswer
from ojster.events.channel import Channel
from ojster.events.wire import (
    ChannelsAnswer,
    DeletedSubscriptionAnswer,
    DeliveryInfo,
    RetriedDeliveryAnswer,
    SubscriptionAnswer,
    SubscriptionBody,
    SubscriptionInfo,
    SubscriptionPatchBody,
    SubscriptionsAnswer,
)

_TAG: Final = "Notifications"
_WEBHOOKS: Final = "Webhooks"
_ALL: Final = "/webhooks/subscriptions"
_ONE: Final = f"{_ALL}/{{id}}"
_DELIVERY: Final = "/webhooks/deliveries/{id}"


class EventCalls(Calls):
    """Calls about notification channels."""

    async def put_channel(self, channel: Channel) -> bool:
        """Create or replace a notification channel; return whether it is new. The endpoint is written by hand."""
        raise NotImplementedError

    @Call("GET", "/channels", "list_channels", _TAG, ChannelsAnswer)
    async def channels(self) -> list[Channel]:
        """List the channels, without their secrets."""

    @Deletion("DELETE", "/channels/{name}", "delete_channel", _TAG, DeletedAnswer)
    async def delete_channel(self, name: str) -> None:
        """Delete a channel and drop its pending notifications."""


class WebhookCalls(Calls):
    """Calls about webhook subscriptions and their deliveries.

    Spec: ojs-webhooks 10
    """

    @Handled("POST", _ALL, "create_subscription", _WEBHOOKS, SubscriptionAnswer, body=SubscriptionBody, status=201)
    async def subscribe(self, body: SubscriptionBody) -> SubscriptionInfo:
        """Subscribe to events. Only this answer and rotations contain the secret that signs deliveries."""

    @Listing("GET", _ALL, "list_subscriptions", _WEBHOOKS, SubscriptionsAnswer, needs=ADMIN_ONLY, page_size=200)
    async def all(self) -> list[SubscriptionInfo]:
        """List the subscriptions, oldest first."""

    @Call("GET", _ONE, "show_subscription", _WEBHOOKS, SubscriptionAnswer, needs=ADMIN_ONLY)
    async def find(self, subscription_id: str) -> SubscriptionInfo:
        """Show a subscription, without its secret."""

    @Handled("PATCH", _ONE, "change_subscription", _WEBHOOKS, SubscriptionAnswer, body=SubscriptionPatchBody)
    async def change(self, subscription_id: str, body: SubscriptionPatchBody) -> SubscriptionInfo:
        """Change a subscription. Omitted members keep their values."""

    @Deletion("DELETE", _ONE, "delete_subscription", _WEBHOOKS, DeletedSubscriptionAnswer)
    async def delete(self, subscription_id: str) -> None:
        """Delete a subscription and drop its pending deliveries."""

    @Call("POST", f"{_ONE}/rotate-secret", "rotate_secret", _WEBHOOKS, SubscriptionAnswer)
    async def rotate(self, subscription_id: str) -> SubscriptionInfo:
        """Give a subscription a new secret; for a day, deliveries are signed with both."""

    @Call("GET", _DELIVERY, "show_delivery", _WEBHOOKS, DeliveryInfo, needs=ADMIN_ONLY)
    async def delivery(self, delivery_id: str) -> DeliveryInfo:
        """Show a delivery with its event and the errors of its attempts."""

    @Call("POST", f"{_DELIVERY}/retry", "retry_delivery", _WEBHOOKS, RetriedDeliveryAnswer)
    async def retry(self, delivery_id: str) -> str:
        """Retry a delivery that has failed or was cancelled."""
