"""Endpoints for webhook subscriptions and their deliveries.

Spec: ojs-webhooks 10
"""

from __future__ import annotations

from typing import Any, Final, Literal

import httpx
import msgspec
from msgspec import UNSET

from ojster.core.access import ADMIN_ONLY
from ojster.core.errors import InvalidRequest, NotFound
from ojster.core.events import SOURCE, describe_event
from ojster.core.ids import new_id
from ojster.core.job import Job
from ojster.core.states import JobState
from ojster.core.timestamps import format_timestamp
from ojster.events import webhooks, wire
from ojster.events.subscription import Subscription
from ojster.events.webhooks import Change
from ojster.events.wire import (
    SUBSCRIPTION,
    SUBSCRIPTION_PATCH,
    EventFilterBody,
    SubscriptionBody,
    SubscriptionPatchBody,
)
from ojster.jobs import interventions
from ojster.jobs.filter_walk import JobFilter
from ojster.jobs.queries import Page
from ojster.server.answer import Answer, encode
from ojster.server.delivery.webhook import Refused
from ojster.server.pages import numbered_page, numbered_pagination, offset_page_of, offset_pagination
from ojster.server.request import HttpRequest
from ojster.server.route import BASE, NUMBERED_PAGE, PAGE, Route


async def create_subscription(request: HttpRequest) -> Answer:
    """Subscribe to events. Only this answer and rotations contain the secret that signs deliveries."""
    body = await request.read(SUBSCRIPTION)
    await request.sender.check(body.url)
    chosen = body.filter or EventFilterBody()
    subscription = Subscription(
        id=f"sub_{new_id()}",
        url=body.url,
        events=_events(body.events),
        secret=body.secret or webhooks.new_secret(),
        created_at=request.service.database.clock(),
        active=body.active,
        queues=tuple(chosen.queues),
        job_types=tuple(chosen.job_types),
        metadata=body.metadata,
        tenant=request.service.scope.tenant,
    )
    await request.service.scope.do(webhooks.subscribe, subscription)
    shown = wire.show_subscription(subscription)
    shown.secret = subscription.secret
    return _answer(shown, 201)


async def list_subscriptions(request: HttpRequest) -> Answer:
    """List the subscriptions, oldest first."""
    service = request.service
    found = await service.scope.look(webhooks.list_subscriptions, None)
    shown = [wire.show_subscription(one) for one in found if service.scope.tenant in (None, one.tenant)]
    limit, offset = offset_page_of(request.query, default=200)
    pagination = offset_pagination(len(shown), limit, offset)
    return Answer(encode(wire.SubscriptionsAnswer(shown[offset : offset + limit], pagination)))


async def show_subscription(request: HttpRequest) -> Answer:
    """Show a subscription, without its secret."""
    return _answer(wire.show_subscription(await _find(request)))


async def change_subscription(request: HttpRequest) -> Answer:
    """Change a subscription. Omitted members keep their values."""
    body = await request.read(SUBSCRIPTION_PATCH)
    await _find(request)
    members: dict[str, Any] = {}
    if body.url is not UNSET:
        await request.sender.check(body.url)
        members["url"] = body.url
    if body.events is not UNSET:
        members["events"] = _events(body.events)
    if body.active is not UNSET:
        members["active"] = body.active
    if body.metadata is not UNSET:
        members["metadata"] = body.metadata
    if body.filter is not UNSET:
        chosen = body.filter or EventFilterBody()
        members |= {"queues": tuple(chosen.queues), "job_types": tuple(chosen.job_types)}
    changed = await request.service.scope.do(webhooks.change_subscriptions, Change(request.path["id"], members))
    return _answer(wire.show_subscription(changed))


async def delete_subscription(request: HttpRequest) -> Answer:
    """Delete a subscription and drop its pending deliveries."""
    await _find(request)
    gone = await request.service.scope.do(webhooks.unsubscribe, request.path["id"])
    return Answer(encode(wire.DeletedSubscriptionAnswer(gone.id)))


async def rotate_secret(request: HttpRequest) -> Answer:
    """Give a subscription a new secret; for a day, deliveries are signed with both."""
    await _find(request)
    changed = await request.service.scope.do(webhooks.change_subscriptions, Change(request.path["id"], rotate=True))
    shown = wire.show_subscription(changed)
    shown.secret, shown.former_secret_expires_at = changed.secret, format_timestamp(changed.former_until)
    return _answer(shown)


async def test_subscription(request: HttpRequest) -> Answer:
    """Send the event ``webhook.test`` now, and return the endpoint's answer."""
    service = request.service
    subscription = await _find(request)
    data = {"subscription_id": subscription.id}
    event = ("webhook.test", service.database.clock(), subscription.id, None, None, data, subscription.tenant or "")
    described = describe_event(event, f"evt_{new_id()}", SOURCE)
    try:
        answered = await request.sender.send(subscription, described, f"del_{new_id()}")
    except (Refused, httpx.HTTPError, OSError, TimeoutError) as error:
        return Answer(encode(wire.WebhookTestAnswer(False, error=str(error) or type(error).__name__)))
    milliseconds = round(answered.seconds * 1000)
    return Answer(encode(wire.WebhookTestAnswer(answered.succeeded, answered.status, milliseconds, answered.body)))


async def _find(request: HttpRequest) -> Subscription:
    id, service = request.path["id"], request.service
    found = await service.scope.look(webhooks.find_subscriptions, id)
    if service.scope.tenant not in (None, found.tenant):
        raise webhooks.no_subscription(id)
    return found


async def list_deliveries(request: HttpRequest) -> Answer:
    """List deliveries, newest first; with ``state`` only those that are pending, delivered or dead."""
    page = numbered_page(request.query)
    state = request.query.get("state")
    if state is not None and state not in _STATES:
        raise InvalidRequest(f"Unknown state {state[:40]!r}. Use one of {', '.join(_STATES)}.", field="state")
    states = _STATES[state] if state else ()
    found = await request.service.jobs.select(
        JobFilter(states=states, queue=webhooks.QUEUE), Page(page.size, page.offset)
    )
    items = [_delivery(job) for job in found.jobs]
    return Answer(encode(wire.DeliveriesAnswer(items, numbered_pagination(page, found.total))))


async def show_delivery(request: HttpRequest) -> Answer:
    """Show a delivery with its event and the errors of its attempts."""
    job = await _find_delivery(request)
    shown = _delivery(job)
    shown.event, shown.errors = job.args[1], _decoded(job.errors) or []
    return Answer(encode(shown))


async def retry_delivery(request: HttpRequest) -> Answer:
    """Retry a delivery that has failed or was cancelled."""
    job = await _find_delivery(request)
    again = await request.service.scope.do(interventions.revive, job.id)
    return Answer(encode(wire.RetriedDeliveryAnswer(f"del_{again.id}")))


async def _find_delivery(request: HttpRequest) -> Job:
    id = request.path["id"].removeprefix("del_")
    job = await request.service.jobs.find(id)
    if job.queue != webhooks.QUEUE:
        raise NotFound(f"There is no delivery {id}.", resource_type="webhook_delivery", resource_id=id)
    return job


_STATES: Final[dict[Literal["pending", "delivered", "dead"], tuple[str, ...]]] = {
    "pending": tuple(state.value for state in JobState if state.value not in ("completed", "discarded", "cancelled")),
    "delivered": ("completed",),
    "dead": ("discarded", "cancelled"),
}


def _delivery(job: Job) -> wire.DeliveryInfo:
    state = next(name for name, states in _STATES.items() if job.state in states)
    return wire.DeliveryInfo(
        id=f"del_{job.id}",
        subscription_id=job.meta.get("subscription_id"),
        event_type=job.meta.get("event_type"),
        state=state,
        attempts=job.attempt,
        created_at=format_timestamp(job.created_at),
        next_attempt_at=format_timestamp(job.due_at) if job.state == "retryable" and job.due_at else None,
        finished_at=format_timestamp(job.finished_at) if job.finished_at else None,
        response=_decoded(job.result),
        error=job.error,
    )


def _decoded(raw: bytes | None) -> Any:
    return msgspec.json.decode(raw) if raw else None


def _events(given: list[str]) -> tuple[str, ...]:
    for type in given:
        if "*" in type[:-1] or not type or (type.endswith("*") and type != "*" and not type.endswith(".*")):
            raise InvalidRequest(f"Invalid event type {type[:60]!r}. Use a type or 'job.*'.", field="events")
    return tuple(dict.fromkeys(given))


def _answer(shown: wire.SubscriptionInfo, status: int = 200) -> Answer:
    return Answer(encode(wire.SubscriptionAnswer(**msgspec.structs.asdict(shown), subscription=shown)), status)


_SUBSCRIPTIONS: Final = f"{BASE}/webhooks/subscriptions"
_TAG: Final = "Webhooks"

ROUTES: Final = (
    Route("POST", _SUBSCRIPTIONS, create_subscription, _TAG, SubscriptionBody, wire.SubscriptionAnswer, status=201),
    Route(
        "GET", _SUBSCRIPTIONS, list_subscriptions, _TAG, answer=wire.SubscriptionsAnswer, query=PAGE, needs=ADMIN_ONLY
    ),
    Route("GET", f"{_SUBSCRIPTIONS}/{{id}}", show_subscription, _TAG, answer=wire.SubscriptionAnswer, needs=ADMIN_ONLY),
    *(
        Route(
            method,
            f"{_SUBSCRIPTIONS}/{{id}}",
            change_subscription,
            _TAG,
            SubscriptionPatchBody,
            wire.SubscriptionAnswer,
        )
        for method in ("PATCH", "PUT")
    ),
    Route("DELETE", f"{_SUBSCRIPTIONS}/{{id}}", delete_subscription, _TAG, answer=wire.DeletedSubscriptionAnswer),
    Route("POST", f"{_SUBSCRIPTIONS}/{{id}}/test", test_subscription, _TAG, answer=wire.WebhookTestAnswer),
    Route("POST", f"{_SUBSCRIPTIONS}/{{id}}/rotate-secret", rotate_secret, _TAG, answer=wire.SubscriptionAnswer),
    Route(
        "GET",
        f"{BASE}/webhooks/deliveries",
        list_deliveries,
        _TAG,
        answer=wire.DeliveriesAnswer,
        query=("state", *NUMBERED_PAGE),
        needs=ADMIN_ONLY,
    ),
    Route("GET", f"{BASE}/webhooks/deliveries/{{id}}", show_delivery, _TAG, answer=wire.DeliveryInfo, needs=ADMIN_ONLY),
    Route("POST", f"{BASE}/webhooks/deliveries/{{id}}/retry", retry_delivery, _TAG, answer=wire.RetriedDeliveryAnswer),
)
