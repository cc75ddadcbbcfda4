"""Calls about webhook subscriptions and their deliveries.

Spec: ojs-webhooks 10
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Final, Literal

import msgspec
from msgspec import UNSET

from ojster.core.errors import NotFound
from ojster.core.ids import new_id
from ojster.core.job import Job
from ojster.core.signatures import new_secret
from ojster.core.states import JobState
from ojster.core.timestamps import format_timestamp
from ojster.events import webhooks, wire
from ojster.events.calls import WebhookCalls
from ojster.events.event_types import check_event_types, check_filter
from ojster.events.subscription import Subscription
from ojster.events.webhooks import Change
from ojster.events.wire import EventFilterBody, SubscriptionBody, SubscriptionInfo, SubscriptionPatchBody
from ojster.insight.receivers import FailingReceiver, failing_receivers
from ojster.jobs import interventions
from ojster.jobs.scope import CapabilityService, Scope
from ojster.jobs.service import JobService


class WebhookService(CapabilityService, WebhookCalls):
    """Calls about webhook subscriptions and their deliveries.

    A server also checks whether it may call a URL when a subscription names it; every delivery is checked in any case.
    """

    def __init__(self, scope: Scope, jobs: JobService) -> None:
        super().__init__(scope)
        self._jobs = jobs

    async def subscribe(self, body: SubscriptionBody) -> SubscriptionInfo:
        """Subscribe to events; return the subscription with the secret that signs deliveries.

        Raises
        ------
        InvalidRequest
            A type of events does not exist, or none of its events passes the filter.
        Forbidden
            The caller is limited to certain queues, and the filter names others or none.
        """
        chosen = body.filter or EventFilterBody()
        self.scope.check_queue(chosen.queues or None)
        check_filter(body.events, chosen.queues, chosen.job_types, prefix="filter.")
        subscription = Subscription(
            id=f"sub_{new_id()}",
            url=body.url,
            events=_events(body.events),
            secret=body.secret or new_secret(),
            created_at=self.database.clock(),
            active=body.active,
            queues=tuple(chosen.queues),
            job_types=tuple(chosen.job_types),
            metadata=body.metadata,
            cloudevents=body.cloudevents,
            tenant=self.scope.tenant,
        )
        await self.scope.do(webhooks.subscribe, subscription)
        shown = wire.show_subscription(subscription)
        shown.secret = subscription.secret
        return shown

    async def all(self) -> list[SubscriptionInfo]:
        """Return the subscriptions, oldest first: those of the caller's tenant, and of its queues."""
        subscriptions = await self.scope.look(webhooks.list_subscriptions, None)
        failing = await self._failing()
        return [
            wire.show_subscription(subscription, failing.get(subscription.id))
            for subscription in subscriptions
            if self._sees(subscription)
        ]

    async def find(self, subscription_id: str) -> SubscriptionInfo:
        """Return a subscription, without its secret. Raises as ``stored``."""
        subscription = await self.stored(subscription_id)
        return wire.show_subscription(subscription, (await self._failing()).get(subscription_id))

    async def _failing(self) -> dict[str, FailingReceiver]:
        known = await self.scope.survey(failing_receivers, None)
        return {failing.receiver: failing for failing in known}

    async def stored(self, subscription_id: str) -> Subscription:
        """Return a subscription with its secret.

        Raises
        ------
        NotFound
            There is no such subscription.
        """
        subscription = await self.scope.look(webhooks.find_subscriptions, subscription_id)
        if not self._sees(subscription):
            raise webhooks.no_subscription(subscription_id)
        return subscription

    def _sees(self, subscription: Subscription) -> bool:
        is_theirs = self.scope.tenant in (None, subscription.tenant)
        queues = subscription.queues or ("*",)
        return is_theirs and all(map(self.scope.covers, queues))

    async def change(self, subscription_id: str, body: SubscriptionPatchBody) -> SubscriptionInfo:
        """Change what ``body`` sets of a subscription.

        Raises
        ------
        NotFound
            There is no such subscription.
        InvalidRequest
            A type of events does not exist, or none of its events passes the filter.
        Forbidden
            The caller is limited to certain queues, and the filter names others or none.
        """
        await self.stored(subscription_id)
        values = {name: getattr(body, name) for name in ("url", "events", "active", "metadata", "cloudevents")}
        members: dict[str, Any] = {name: value for name, value in values.items() if value is not UNSET}
        if body.events is not UNSET:
            members["events"] = _events(body.events)
        if body.filter is not UNSET:
            chosen = body.filter or EventFilterBody()
            self.scope.check_queue(chosen.queues or None)
            members |= {"queues": tuple(chosen.queues), "job_types": tuple(chosen.job_types)}
        changed = await self.scope.do(webhooks.change_subscriptions, Change(subscription_id, members))
        return wire.show_subscription(changed)

    async def delete(self, subscription_id: str) -> None:
        """Delete a subscription and drop its pending deliveries. Raises as ``stored``."""
        await self.stored(subscription_id)
        await self.scope.do(webhooks.unsubscribe, subscription_id)

    async def rotate(self, subscription_id: str) -> SubscriptionInfo:
        """Give a subscription a new secret, and return it with that. Raises as ``stored``."""
        await self.stored(subscription_id)
        changed = await self.scope.do(webhooks.change_subscriptions, Change(subscription_id, rotate=True))
        shown = wire.show_subscription(changed)
        shown.secret, shown.former_secret_expires_at = changed.secret, format_timestamp(changed.former_until)
        return shown

    async def delivery(self, delivery_id: str) -> wire.DeliveryInfo:
        """Return a delivery with its event and the errors of its attempts.

        Raises
        ------
        NotFound
            There is no such delivery.
        """
        job = await self._delivery(delivery_id)
        shown = show_delivery(job)
        shown.event, shown.errors = job.args[1], _decoded(job.errors) or []
        return shown

    async def retry(self, delivery_id: str) -> str:
        """Retry a delivery that has failed or was cancelled; return its id.

        Raises
        ------
        NotFound, Conflict
            There is no such delivery, or it is pending or delivered.
        """
        job = await self._delivery(delivery_id)
        return f"del_{(await self.scope.do(interventions.revive, job.id)).id}"

    async def _delivery(self, delivery_id: str) -> Job:
        with suppress(NotFound):  # which would speak of a job
            job = await self._jobs.find(delivery_id.removeprefix("del_"))
            if job.queue == webhooks.QUEUE:
                return job
        message = f"There is no delivery {delivery_id[:80]}."
        raise NotFound(message, resource_type="webhook_delivery", resource_id=delivery_id)


DELIVERY_STATES: Final[dict[Literal["pending", "delivered", "dead"], tuple[str, ...]]] = {
    "pending": tuple(state.value for state in JobState if state.value not in ("completed", "discarded", "cancelled")),
    "delivered": ("completed",),
    "dead": ("discarded", "cancelled"),
}
"""States of deliveries, and those of their jobs."""


def show_delivery(job: Job) -> wire.DeliveryInfo:
    """Return the JSON form of a delivery, without its event."""
    state = next(name for name, states in DELIVERY_STATES.items() if job.state in states)
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


def _events(names: list[str]) -> tuple[str, ...]:
    check_event_types(names, "events", may_end_in_star=True)
    return tuple(dict.fromkeys(names))
