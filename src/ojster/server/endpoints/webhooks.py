"""Endpoints for webhook subscriptions and their deliveries.

Spec: ojs-webhooks 10
"""

from __future__ import annotations

from typing import Final

import httpx
from msgspec import UNSET

from ojster.core.access import ADMIN_ONLY
from ojster.core.errors import InvalidRequest
from ojster.core.events import SOURCE, describe_event
from ojster.core.ids import new_id
from ojster.events import webhooks, wire
from ojster.events.calls import WebhookCalls
from ojster.events.webhook_service import DELIVERY_STATES, show_delivery
from ojster.events.wire import SUBSCRIPTION, SUBSCRIPTION_PATCH
from ojster.jobs.filter_walk import JobFilter
from ojster.jobs.queries import Page
from ojster.server.answer import Answer, encode
from ojster.server.declared import endpoints_of
from ojster.server.delivery.sender import Refused
from ojster.server.pages import numbered_page, numbered_pagination
from ojster.server.request import HttpRequest
from ojster.server.route import BASE, NUMBERED_PAGE, Route


async def _subscribe(request: HttpRequest) -> Answer:
    body = await request.read(SUBSCRIPTION)
    await request.services.sender.check(body.url)
    return Answer(encode(wire.SubscriptionAnswer.of(await request.service.webhooks.subscribe(body))), 201)


async def _change(request: HttpRequest) -> Answer:
    body = await request.read(SUBSCRIPTION_PATCH)
    await request.service.webhooks.stored(request.path["id"])  # what does not exist is said before what is wrong
    if body.url is not UNSET:
        await request.services.sender.check(body.url)
    return Answer(encode(wire.SubscriptionAnswer.of(await request.service.webhooks.change(request.path["id"], body))))


async def test_subscription(request: HttpRequest) -> Answer:
    """Send the event ``webhook.test`` now, and return the endpoint's answer."""
    service = request.service
    subscription = await service.webhooks.stored(request.path["id"])
    data = {"subscription_id": subscription.id}
    event = ("webhook.test", service.database.clock(), subscription.id, None, None, data, subscription.tenant or "")
    described = describe_event(event, f"evt_{new_id()}", SOURCE)
    try:
        answered = await request.services.sender.send(subscription, described, f"del_{new_id()}")
    except (Refused, httpx.HTTPError, OSError, TimeoutError) as error:
        return Answer(encode(wire.WebhookTestAnswer(False, error=str(error) or type(error).__name__)))
    milliseconds = round(answered.seconds * 1000)
    return Answer(encode(wire.WebhookTestAnswer(answered.succeeded, answered.status, milliseconds, answered.body)))


async def list_deliveries(request: HttpRequest) -> Answer:
    """List deliveries, newest first; with ``state`` only those that are pending, delivered or dead."""
    page = numbered_page(request.query)
    state = request.query.get("state")
    if state is not None and state not in DELIVERY_STATES:
        raise InvalidRequest(f"Unknown state {state[:40]!r}. Use one of {', '.join(DELIVERY_STATES)}.", field="state")
    states = DELIVERY_STATES[state] if state else ()
    listed = await request.service.jobs.select(
        JobFilter(states=states, queue=webhooks.QUEUE), Page(page.size, page.offset)
    )
    items = [show_delivery(job) for job in listed.jobs]
    return Answer(encode(wire.DeliveriesAnswer(items, numbered_pagination(page, listed.total))))


_TAG: Final = "Webhooks"

_ONE: Final = f"{BASE}/webhooks/subscriptions/{{id}}"

ROUTES: Final = (
    *endpoints_of(
        WebhookCalls,
        lambda service: service.webhooks,
        {WebhookCalls.subscribe: _subscribe, WebhookCalls.change: _change},
    ),
    Route("PUT", _ONE, _change, _TAG, wire.SubscriptionPatchBody, wire.SubscriptionAnswer),
    Route("POST", f"{_ONE}/test", test_subscription, _TAG, answer=wire.WebhookTestAnswer),
    Route(
        "GET",
        f"{BASE}/webhooks/deliveries",
        list_deliveries,
        _TAG,
        answer=wire.DeliveriesAnswer,
        query=("state", *NUMBERED_PAGE),
        needs=ADMIN_ONLY,
    ),
)
