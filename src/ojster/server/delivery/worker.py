"""Webhook worker: a worker inside the server that delivers events to subscribers, and the notifications of jobs."""

from __future__ import annotations

import asyncio
import logging
import smtplib
from collections import Counter
from functools import partial
from typing import Any, Final

import httpx
import msgspec

from ojster.core.durations import SECOND
from ojster.core.errors import OjsterError
from ojster.core.ids import new_id
from ojster.core.job import Job
from ojster.core.tenant import called
from ojster.events import notifications, webhooks
from ojster.events.channel import Channel, Message
from ojster.events.subscription import Subscription
from ojster.insight.receivers import DeliveryOutcome, public_address
from ojster.jobs.claim_policy import Claim
from ojster.jobs.failure import Failure
from ojster.jobs.messages import Acknowledgement, FailureReport, Release, hand_back
from ojster.server.delivery import mail
from ojster.server.delivery.mail import Smtp
from ojster.server.delivery.sender import Refused
from ojster.server.delivery.webhook import EndpointResponse, WebhookSender
from ojster.service import Service

log = logging.getLogger(__name__)

MAX_CONCURRENT_DELIVERIES: Final = 100
"""Maximum number of concurrent deliveries."""

SLOTS: Final = 5
"""Maximum number of concurrent deliveries to one receiver, so that a slow one does not make others wait."""

SPACING: Final = SECOND // 10
"""Time between deliveries that wait because all slots of their receiver are taken, in microseconds."""

GRACE: Final = 5.0
"""Time deliveries in progress get to finish when the server stops, in seconds."""

MAX_REASON_CHARS: Final = 500
"""Maximum length of what the failure of a malformed delivery says, in characters."""

PAUSE: Final = 1.0
"""Delay before the next fetch after a failed one, in seconds."""


class _Failed(Exception):
    """A message could not be sent."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


class WebhookWorker:
    """Delivers events to webhook subscribers, and notifications through channels, until it is stopped.

    Several servers may do so for one database.

    Parameters
    ----------
    smtp:
        The mail server. ``None``: this server sends no e-mail; the attempt fails, and is retried by any server.
    """

    def __init__(self, service: Service, sender: WebhookSender, smtp: Smtp | None = None) -> None:
        self._service = service
        self.sender = sender
        self._smtp = smtp
        self._id = f"webhooks_{new_id()}"
        self._loop: asyncio.Task[None] | None = None
        self._under_way: set[asyncio.Task[None]] = set()
        self._taken: Counter[str] = Counter()
        """The number of deliveries under way, by receiver."""
        self._next: dict[str, int] = {}
        """When the next delivery that waits for a slot begins, by receiver, in microseconds since the epoch."""

    def start(self) -> None:
        """Start delivering."""
        self._loop = asyncio.create_task(self._run(), name="ojster-webhooks")

    async def stop(self) -> None:
        """Wait up to ``GRACE`` seconds for deliveries in progress, hand back the rest, and close the connections."""
        if self._loop is not None:
            self._loop.cancel()
            await asyncio.gather(self._loop, return_exceptions=True)
        if self._under_way:
            _, late = await asyncio.wait(self._under_way, timeout=GRACE)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        await self.sender.close()

    async def _run(self) -> None:
        while not self._service.database.draining:
            room = MAX_CONCURRENT_DELIVERIES - len(self._under_way)
            if not room:
                await asyncio.wait(self._under_way, return_when=asyncio.FIRST_COMPLETED)
                continue
            try:
                jobs = await self._service.jobs.fetch(
                    Claim((webhooks.QUEUE, notifications.QUEUE), room, self._id), wait=30.0
                )
            except OjsterError as error:
                log.warning("cannot fetch deliveries, retrying: %s", error)
                await asyncio.sleep(PAUSE)
                continue
            later: list[Release] = []
            for job in jobs:
                receiver = str(job.args[0]) if job.args else ""
                if self._taken[receiver] >= SLOTS:
                    later.append(hand_back(job, job.worker_id, self._delay(receiver)))
                    continue
                self._taken[receiver] += 1
                task = asyncio.create_task(self.deliver(job))
                self._under_way.add(task)
                task.add_done_callback(partial(self._ended, receiver))
            if later:
                await self._postpone(later)

    def _delay(self, receiver: str) -> int:
        """Return how long the next delivery to a busy receiver waits, in microseconds."""
        now = self._service.database.clock()
        self._next[receiver] = max(self._next.get(receiver, 0), now) + SPACING
        return self._next[receiver] - now

    def _ended(self, receiver: str, task: asyncio.Task[None]) -> None:
        self._under_way.discard(task)
        self._taken[receiver] -= 1
        if not self._taken[receiver]:
            del self._taken[receiver]
            self._next.pop(receiver, None)

    async def _postpone(self, later: list[Release]) -> None:
        try:
            await self._service.jobs.release(later)
        except OjsterError as error:
            log.warning("cannot postpone deliveries; they wait for the end of their leases: %s", error)

    async def deliver(self, job: Job) -> None:
        """Make one delivery and report its outcome. A job that is no delivery becomes a dead letter."""
        try:
            if job.type == notifications.JOB_TYPE:
                await self._deliver_notification(job)
            elif job.type == webhooks.JOB_TYPE:
                await self._deliver(job)
            else:
                raise ValueError(f"There are no deliveries of the type {job.type!r}")
        except Exception as error:
            log.exception("job %s is no delivery, and becomes a dead letter", job.id)
            what = f"The job is no delivery: {type(error).__name__}: {error}"
            failure = Failure("MalformedDelivery", what[:MAX_REASON_CHARS], code="DEAD_LETTER", retryable=False)
            try:
                await self._service.jobs.fail([FailureReport(job.id, failure, job.worker_id, job.attempt)])
            except OjsterError as refusal:
                log.warning("cannot record the failure of job %s: %s", job.id, refusal)

    async def _deliver_notification(self, job: Job) -> None:
        """Send one message and report its outcome."""
        service, failure = self._service, None
        key, shown = job.args
        message = msgspec.convert(shown, Message)
        try:
            channel = await service.scope.look(notifications.find_channels, key)
        except OjsterError:
            await service.jobs.acknowledge([Acknowledgement(job.id, b'{"dropped":true}', job.worker_id, job.attempt)])
            return
        try:
            await (self._mail(channel, message) if channel.method == "email" else self._call(channel, message, job))
        except _Failed as failed:
            failure = failed.failure
        except asyncio.CancelledError:
            await service.jobs.release([hand_back(job, job.worker_id)])
            raise
        try:
            if failure is None:
                await service.jobs.acknowledge([Acknowledgement(job.id, b'{"sent":true}', job.worker_id, job.attempt)])
                event = "notification.sent"
            else:
                (ended,) = await service.jobs.fail([FailureReport(job.id, failure, job.worker_id, job.attempt)])
                is_over = isinstance(ended, Job) and ended.state == "discarded"
                event = "notification.dead" if is_over else "notification.failed"
            address = f"{called(key)} ({', '.join(channel.to) or public_address(channel.url or '')})"
            outcome = DeliveryOutcome(key, address, None if failure is None else failure.message)
            await service.scope.do(notifications.record_outcomes, (event, outcome, {"attempt": job.attempt}))
        except OjsterError as error:
            log.warning("cannot record the outcome of message %s; it will be sent again: %s", job.id, error)

    async def _mail(self, channel: Channel, message: Message) -> None:
        if self._smtp is None:
            raise _Failed(Failure("NoMailServer", "This server has no mail server. Start it with --smtp URL."))
        facts = "\n".join(
            f"{name}: {value if isinstance(value, str) else msgspec.json.encode(value).decode()}"
            for name, value in message.job.items()
        )
        text = f"{message.text}\n\n{facts}\n" if message.text else f"{facts}\n"
        to, cc = message.to or channel.to, message.cc or channel.cc
        try:
            await mail.send(self._smtp, mail.compose(channel.sender or "", to, cc, message.subject, text))
        except (smtplib.SMTPException, OSError) as error:
            final = mail.is_final(error)
            code = "DEAD_LETTER" if final else "handler_error"
            raise _Failed(Failure("MailRefused" if final else "MailFailed", str(error), code=code)) from None

    async def _call(self, channel: Channel, message: Message, job: Job) -> None:
        event = {
            "type": "notification",
            "id": f"msg_{job.id}",
            "event": message.event,
            "subject": message.subject,
            "text": message.text,
            "job": message.job,
        }
        url = channel.url or ""
        receiver = Subscription(called(channel.name), url, (), channel.secret or "", channel.created_at)
        shown = public_address(url)
        try:
            answered = await self.sender.send(receiver, event, f"msg_{job.id}")
        except Refused as refusal:
            raise _Failed(Failure("WebhookRefused", f"{shown}: {refusal}", retryable=False)) from None
        except (httpx.HTTPError, OSError, TimeoutError) as error:
            why = f"{shown}: {str(error) or type(error).__name__}"
            raise _Failed(Failure("WebhookUnreachable", why)) from None
        if not answered.succeeded:
            raise _Failed(_failure_of(answered, shown))

    async def _deliver(self, job: Job) -> None:
        service = self._service
        subscription_id, event = job.args
        try:
            subscription = await service.scope.look(webhooks.find_subscriptions, subscription_id)
        except OjsterError:
            await service.jobs.acknowledge([Acknowledgement(job.id, b'{"dropped":true}', job.worker_id, job.attempt)])
            return
        failure: Failure | None = None
        result: dict[str, Any] = {}
        address = public_address(subscription.url)  # whoever may look at jobs reads the message of a failure
        try:
            answered = await self.sender.send(subscription, event, f"del_{job.id}")
        except Refused as refusal:
            failure = Failure("WebhookRefused", f"{address}: {refusal}", retryable=False)
        except (httpx.HTTPError, OSError, TimeoutError) as error:
            failure = Failure("WebhookUnreachable", f"{address}: {str(error) or type(error).__name__}")
        except asyncio.CancelledError:
            await service.jobs.release([hand_back(job, job.worker_id)])
            raise
        else:
            result = {
                "status_code": answered.status,
                "response_time_ms": round(answered.seconds * 1000),
                "response_body": answered.body,
            }
            if not answered.succeeded:
                failure = _failure_of(answered, address, result)
        try:
            await self._report_outcome(job, subscription, result, failure)
        except OjsterError as error:
            log.warning("cannot record the outcome of delivery %s; it will be sent again: %s", job.id, error)

    async def _report_outcome(
        self, job: Job, subscription: Subscription, result: dict[str, Any], failure: Failure | None
    ) -> None:
        service = self._service
        if failure is None:
            ack = Acknowledgement(job.id, msgspec.json.encode(result), job.worker_id, job.attempt)
            await service.jobs.acknowledge([ack])
            event = "webhook.delivered"
        else:
            (ended,) = await service.jobs.fail([FailureReport(job.id, failure, job.worker_id, job.attempt)])
            event = "webhook.dead" if isinstance(ended, Job) and ended.state == "discarded" else "webhook.failed"
        more = {"delivery_id": f"del_{job.id}", "event_type": job.meta["event_type"], "attempt": job.attempt}
        error = None if failure is None else failure.message
        outcome = DeliveryOutcome(subscription.id, public_address(subscription.url), error)
        await service.scope.do(webhooks.record_outcomes, (event, outcome, {"tenant": subscription.tenant} | more))


def _failure_of(answered: EndpointResponse, address: str, details: dict[str, Any] | None = None) -> Failure:
    """Return the failure of a delivery that an endpoint did not accept."""
    return Failure(
        "WebhookFailed",
        f"{address} answered {answered.status}.",
        code="DEAD_LETTER" if answered.final else "handler_error",
        details=details,
        least_delay=answered.pause,
    )
