"""The JSON of requests and answers about webhooks and channels."""

from __future__ import annotations

from typing import Annotated, Final, Literal, Self

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from ojster.core.calls import Request, Single, SinglePage, Whole
from ojster.core.declared_options import described_by
from ojster.core.timestamps import format_timestamp, parse_timestamp
from ojster.core.wire import Count, Json, NumberedPaginationBody, PaginationBody, Timestamp
from ojster.events.channel import Channel
from ojster.events.subscription import CloudEventsForm, Subscription
from ojster.insight.receivers import FailingReceiver


@described_by(Subscription)
class EventFilterBody(Struct):
    """Queues and job types to which events are limited; an empty list means all."""

    queues: list[str] = []
    job_types: list[str] = []


@described_by(Subscription)
class SubscriptionBody(Request):
    """A webhook subscription.

    Parameters
    ----------
    filter:
        Queues and job types of the events; null: all.
    """

    url: Annotated[str, Meta(max_length=2000)]
    events: Annotated[list[str], Meta(min_length=1, max_length=100)]
    secret: Annotated[str, Meta(min_length=8, max_length=255)] | None = None
    active: bool = True
    filter: EventFilterBody | None = None
    metadata: dict[str, Json] = msgspec.field(default_factory=dict)
    cloudevents: CloudEventsForm | None = None


@described_by(SubscriptionBody)
class SubscriptionPatchBody(Request):
    """Changes of a webhook subscription."""

    url: Annotated[str, Meta(max_length=2000)] | UnsetType = UNSET
    events: Annotated[list[str], Meta(min_length=1, max_length=100)] | UnsetType = UNSET
    active: bool | UnsetType = UNSET
    filter: EventFilterBody | UnsetType | None = UNSET
    metadata: dict[str, Json] | UnsetType = UNSET
    cloudevents: CloudEventsForm | UnsetType | None = UNSET


@described_by(Channel)
class ChannelBody(Struct, forbid_unknown_fields=True):
    """A notification channel: ``email`` (``from``, ``to``) or ``webhook`` (``url``)."""

    method: Literal["email", "webhook"]
    sender: str | None = msgspec.field(default=None, name="from")
    to: list[str] = []
    cc: list[str] = []
    subject: str | None = None
    url: str | None = None
    secret: Annotated[str, Meta(min_length=16, max_length=256)] | None = None


class FailingBody(Struct):
    """Failures of a webhook since it last accepted a delivery, and the number of deliveries that wait for it."""

    since: Timestamp
    failed_at: Timestamp
    failures: Count
    error: str
    waiting: Count


@described_by(SubscriptionBody)
class SubscriptionInfo(Struct):
    """A webhook subscription.

    Parameters
    ----------
    secret:
        Signs the deliveries; it is shown when it is made and when it changes.
    former_secret_expires_at:
        Until when deliveries are signed with the previous secret, too.
    failing:
        Failures since the last delivery that was accepted, if the last one was not.

    Spec: ojs-webhooks 5.1
    """

    id: str
    url: str
    events: tuple[str, ...]
    active: bool
    metadata: dict[str, Json]
    created_at: Timestamp
    filter: EventFilterBody | UnsetType = UNSET
    cloudevents: CloudEventsForm | UnsetType = UNSET
    secret: str | UnsetType = UNSET
    former_secret_expires_at: Timestamp | UnsetType = UNSET
    failing: FailingBody | UnsetType = UNSET


class SubscriptionAnswer(SubscriptionInfo, kw_only=True):
    """A webhook subscription bare, as in the specification, and also in a wrapper, as in its conformance suite."""

    subscription: SubscriptionInfo

    @classmethod
    def of(cls, shown: SubscriptionInfo) -> Self:
        return cls(**msgspec.structs.asdict(shown), subscription=shown)

    def value(self) -> SubscriptionInfo:
        return self.subscription


class SubscriptionsAnswer(SinglePage[list[SubscriptionInfo]]):
    """Webhook subscriptions, oldest first."""

    subscriptions: list[SubscriptionInfo]
    pagination: PaginationBody


def show_subscription(subscription: Subscription, failing: FailingReceiver | None = None) -> SubscriptionInfo:
    """Return the JSON form of a webhook subscription, without its secret, and of its failures."""
    shown = SubscriptionInfo(
        subscription.id,
        subscription.url,
        subscription.events,
        subscription.active,
        subscription.metadata,
        format_timestamp(subscription.created_at),
    )
    if failing is not None:
        times = format_timestamp(failing.since), format_timestamp(failing.failed_at)
        shown.failing = FailingBody(*times, failing.failures, failing.error, failing.waiting)
    if subscription.queues or subscription.job_types:
        shown.filter = EventFilterBody(list(subscription.queues), list(subscription.job_types))
    if subscription.cloudevents is not None:
        shown.cloudevents = subscription.cloudevents
    return shown


class DeletedSubscriptionAnswer(Struct):
    """A webhook subscription that was deleted."""

    id: str
    deleted: Literal[True] = True


class WebhookTestAnswer(Whole):
    """The answer of a webhook's endpoint to a test, or why there was none."""

    success: bool
    status_code: int | UnsetType = UNSET
    response_time_ms: int | UnsetType = UNSET
    response_body: str | UnsetType = UNSET
    error: str | UnsetType = UNSET


class DeliveryInfo(Whole):
    """A delivery of an event to a webhook."""

    id: str
    subscription_id: str | None
    event_type: str | None
    state: Literal["pending", "delivered", "dead"]
    attempts: Count
    created_at: Timestamp
    next_attempt_at: Timestamp | None
    finished_at: Timestamp | None
    response: Json
    error: dict[str, Json] | None
    event: Json | UnsetType = UNSET
    errors: list[Json] | UnsetType = UNSET


class DeliveriesAnswer(Struct):
    """A page of deliveries, newest first."""

    deliveries: list[DeliveryInfo]
    pagination: NumberedPaginationBody


class RetriedDeliveryAnswer(Single[str]):
    """A delivery that is tried again."""

    id: str
    state: Literal["pending"] = "pending"


class ChannelInfo(Struct, omit_defaults=True):
    """A notification channel. ``secret`` is shown when it is made and when it changes."""

    name: str
    method: Literal["email", "webhook"]
    created_at: Timestamp
    sender: str | None = msgspec.field(default=None, name="from")
    to: tuple[str, ...] = ()
    cc: tuple[str, ...] = ()
    subject: str | None = None
    url: str | None = None
    secret: str | UnsetType = UNSET


class ChannelAnswer(Struct):
    """One notification channel."""

    channel: ChannelInfo


class ChannelsAnswer(Struct):
    """The notification channels."""

    channels: list[ChannelInfo]

    @classmethod
    def of(cls, channels: list[Channel]) -> Self:
        return cls([show_channel(channel) for channel in channels])

    def value(self) -> list[Channel]:
        return [read_channel(shown) for shown in self.channels]


def show_channel(channel: Channel, secret: str | None = None) -> ChannelInfo:
    """Return the JSON form of a notification channel, with the secret only if it is given."""
    return ChannelInfo(
        channel.name,
        channel.method,
        format_timestamp(channel.created_at),
        channel.sender,
        channel.to,
        channel.cc,
        channel.subject,
        channel.url,
        UNSET if secret is None else secret,
    )


def read_channel(shown: ChannelInfo) -> Channel:
    """Return the channel with this JSON form."""
    created_at = parse_timestamp(shown.created_at)
    return Channel(
        shown.name, shown.method, shown.sender, shown.to, shown.cc, shown.subject, shown.url, created_at=created_at
    )


SUBSCRIPTION: Final = msgspec.json.Decoder(SubscriptionBody)

SUBSCRIPTION_PATCH: Final = msgspec.json.Decoder(SubscriptionPatchBody)

CHANNEL: Final = msgspec.json.Decoder(ChannelBody)
