"""The JSON of requests and answers about webhooks and channels."""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from ojster.core.wire import (
    Json,
)


class EventFilterBody(Struct):
    """Queues and job types to which events are limited; an empty list means all."""

    queues: list[str] = []
    job_types: list[str] = []


class SubscriptionBody(Struct):
    """A webhook subscription. In ``events``, ``job.*`` matches all types with that prefix, and ``*`` all types."""

    url: Annotated[str, Meta(max_length=2000)]
    events: Annotated[list[str], Meta(min_length=1, max_length=100)]
    secret: Annotated[str, Meta(min_length=8, max_length=255)] | None = None
    active: bool = True
    filter: EventFilterBody | None = None
    metadata: dict[str, Json] = {}


class SubscriptionPatchBody(Struct):
    """Changes of a webhook subscription."""

    url: Annotated[str, Meta(max_length=2000)] | UnsetType = UNSET
    events: Annotated[list[str], Meta(min_length=1, max_length=100)] | UnsetType = UNSET
    active: bool | UnsetType = UNSET
    filter: EventFilterBody | UnsetType | None = UNSET
    metadata: dict[str, Json] | UnsetType = UNSET


class ChannelBody(Struct, forbid_unknown_fields=True):
    """A notification channel: ``email`` (``from``, ``to``) or ``webhook`` (``url``)."""

    method: Literal["email", "webhook"]
    sender: str | None = msgspec.field(default=None, name="from")
    to: list[str] = []
    cc: list[str] = []
    subject: str | None = None
    url: str | None = None
    secret: Annotated[str, Meta(min_length=16, max_length=256)] | None = None


SUBSCRIPTION: Final = msgspec.json.Decoder(SubscriptionBody)


SUBSCRIPTION_PATCH: Final = msgspec.json.Decoder(SubscriptionPatchBody)


CHANNEL: Final = msgspec.json.Decoder(ChannelBody)
