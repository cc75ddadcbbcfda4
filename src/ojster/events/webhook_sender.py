"""Webhook sender: a worker inside the server that signs and sends events, and checks the target addresses.

It also sends the notifications of jobs, by webhook or e-mail.

Spec: ojs-webhooks 5.3, 7, 8
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import ipaddress
import logging
import smtplib
import socket
import threading
import time
from typing import Any, Final
from urllib.parse import urljoin, urlsplit

import httpx
import msgspec

from ojster.core.durations import SECOND
from ojster.core.errors import InvalidRequest, OjsterError
from ojster.core.ids import new_id
from ojster.core.job import Job
from ojster.core.tenant import called
from ojster.events import mail, notifications, webhooks
from ojster.events.channel import Channel, Message
from ojster.events.mail import Smtp
from ojster.events.subscription import Subscription
from ojster.jobs.claim_policy import Claim
from ojster.jobs.failure import Failure
from ojster.jobs.messages import Acknowledgement, FailureReport, Release
from ojster.service import Service
from ojster.version import __version__

log = logging.getLogger(__name__)

MAX_CONCURRENT_DELIVERIES: Final = 20
"""Maximum number of concurrent deliveries."""

TIMEOUT: Final = 30.0
"""Timeout of each phase (connect, write, read) of a call to an endpoint, in seconds. Spec: ojs-webhooks 7.3"""

MAX_REDIRECTS: Final = 3
MAX_RESPONSE_CHARACTERS: Final = 1_000
"""Maximum length of a stored response body, in characters."""

DNS_TIMEOUT_SECONDS: Final = 5.0
"""DNS lookup timeout, in seconds."""

GRACE: Final = 5.0
"""Time deliveries in progress get to finish when the server stops, in seconds."""

PAUSE: Final = 1.0
"""Delay before the next fetch after a failed one, in seconds."""


class Refused(Exception):
    """The endpoint must not, or cannot, be called."""


class EndpointResponse(msgspec.Struct, frozen=True):
    """The response of an endpoint."""

    status: int
    seconds: float
    body: str

    @property
    def succeeded(self) -> bool:
        """Whether the endpoint accepted the delivery (status 2xx)."""
        return 200 <= self.status < 300

    @property
    def final(self) -> bool:
        """Whether a retry is pointless: status 4xx, except 408 and 429."""
        return 400 <= self.status < 500 and self.status not in (408, 429)


class WebhookSender:
    """Sends signed requests to endpoints.

    Parameters
    ----------
    trusting:
        Whether plain HTTP and non-public addresses are allowed, for development or inside a private network.
    """

    def __init__(self, *, trusting: bool = False) -> None:
        self.trusting = trusting
        self._http = httpx.AsyncClient(timeout=TIMEOUT, follow_redirects=False, trust_env=False)

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def check(self, url: str) -> None:
        """Reject a URL that can never be called (see ``_addresses``). A host that does not resolve now is accepted.

        Raises
        ------
        InvalidRequest
            The URL is malformed or not allowed.
        """
        try:
            parts = self._parts(url)
            if not self.trusting:
                await self._addresses(parts.hostname or "", parts.port or 443)
        except Refused as refusal:
            raise InvalidRequest(f"The URL cannot be used: {refusal}.", field="url") from None
        except OSError:
            log.info("cannot resolve the host of the webhook %s; accepting it anyway", url)

    async def send(self, subscription: Subscription, event: dict[str, Any], delivery_id: str) -> EndpointResponse:
        """Sign an event and send it.

        Raises
        ------
        Refused
            The endpoint must not be called, or it redirects too often.
        httpx.HTTPError, OSError
            The endpoint did not respond.
        """
        body = msgspec.json.encode(event)
        timestamp = str(int(time.time()))
        headers = {
            "Content-Type": "application/json",
            "User-Agent": f"OJS-Webhook/1.0 (ojster/{__version__})",
            "X-OJS-Event-Type": event["type"],
            "X-OJS-Delivery-ID": delivery_id,
            "X-OJS-Subscription-ID": subscription.id,
            "X-OJS-Timestamp": timestamp,
            "X-OJS-Signature": sign(subscription, timestamp, body),
        }
        started = time.perf_counter()
        url = subscription.url
        for _ in range(MAX_REDIRECTS + 1):
            response = await self._post(url, headers, body)
            location = response.headers.get("location")
            if not (300 <= response.status_code < 400 and location):
                return EndpointResponse(
                    response.status_code, time.perf_counter() - started, response.text[:MAX_RESPONSE_CHARACTERS]
                )
            url = urljoin(url, location)
        raise Refused(f"it redirects more than {MAX_REDIRECTS} times")

    async def _post(self, url: str, headers: dict[str, str], body: bytes) -> httpx.Response:
        """Send a request to the first reachable address of a host.

        It calls only addresses that were checked: a second DNS lookup could return others.
        """
        parts = self._parts(url)
        host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
        named = headers | {"Host": parts.netloc}
        failure: httpx.ConnectError | None = None
        for address in await self._addresses(host, port):
            shown = f"[{address}]" if ":" in address else address
            target = parts._replace(netloc=f"{shown}:{port}").geturl()
            try:
                return await self._http.post(target, headers=named, content=body, extensions={"sni_hostname": host})
            except httpx.ConnectError as error:
                failure = error
        raise failure or httpx.ConnectError(f"the host {host} has no address")

    def _parts(self, url: str) -> Any:
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError:
            raise Refused("it is not a valid URL") from None
        allowed = ("https", "http") if self.trusting else ("https",)
        if parts.scheme not in allowed or not parts.hostname or port == 0:
            raise Refused(f"it must begin with {' or '.join(f'{scheme}://' for scheme in allowed)} and name a host")
        if parts.username or parts.password:
            raise Refused("it must not contain a user name or a password")
        return parts

    async def _addresses(self, host: str, port: int) -> list[str]:
        """Return the addresses of a host. Raise ``Refused`` if one is not public, unless ``trusting`` is set."""
        async with asyncio.timeout(DNS_TIMEOUT_SECONDS):
            found = await _look_up(host, port)
        addresses = [str(entry[4][0]).partition("%")[0] for entry in found]
        for address in addresses:
            if not self.trusting and not ipaddress.ip_address(address).is_global:
                raise Refused(f"{host} is not a public host")
        return addresses


async def _look_up(host: str, port: int) -> list[Any]:
    """Run ``getaddrinfo`` in a daemon thread, so that neither cancellation nor a closing event loop waits for it."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[list[Any]] = loop.create_future()

    def look() -> None:
        found: list[Any] = []
        error: OSError | None = None
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except OSError as refused:
            error = refused
        except UnicodeError:
            error = socket.gaierror(f"{host[:60]!r} is not a valid host name")
        with contextlib.suppress(RuntimeError):  # the loop may be closed
            loop.call_soon_threadsafe(tell, found, error)

    def tell(found: list[Any], error: OSError | None) -> None:
        if answer.done():
            return
        if error is None:
            answer.set_result(found)
        else:
            answer.set_exception(error)

    threading.Thread(target=look, name="ojster-lookup", daemon=True).start()
    return await answer


def sign(subscription: Subscription, timestamp: str, body: bytes) -> str:
    """Return the signatures of a delivery, one for each active secret.

    Spec: ojs-webhooks 8.1, 8.3
    """
    keys = [subscription.secret]
    if subscription.former_secret is not None and int(timestamp) * SECOND < subscription.former_until:
        keys.append(subscription.former_secret)
    message = timestamp.encode() + b"." + body
    return ",".join(f"sha256={hmac.new(key.encode(), message, hashlib.sha256).hexdigest()}" for key in keys)


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

    def __init__(self, engine: Service, sender: WebhookSender, smtp: Smtp | None = None) -> None:
        self._engine = engine
        self.sender = sender
        self._smtp = smtp
        self._id = f"webhooks_{new_id()}"
        self._loop: asyncio.Task[None] | None = None
        self._under_way: set[asyncio.Task[None]] = set()

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
        while not self._engine.database.draining:
            room = MAX_CONCURRENT_DELIVERIES - len(self._under_way)
            if not room:
                await asyncio.wait(self._under_way, return_when=asyncio.FIRST_COMPLETED)
                continue
            try:
                jobs = await self._engine.jobs.fetch(
                    Claim((webhooks.QUEUE, notifications.QUEUE), room, self._id), wait=30.0
                )
            except OjsterError as error:
                log.warning("cannot fetch deliveries, retrying: %s", error)
                await asyncio.sleep(PAUSE)
                continue
            for job in jobs:
                task = asyncio.create_task(self.deliver(job))
                self._under_way.add(task)
                task.add_done_callback(self._under_way.discard)

    async def deliver(self, job: Job) -> None:
        """Make one delivery and report its outcome."""
        if job.type == notifications.JOB_TYPE:
            await self._deliver_notification(job)
        else:
            await self._deliver(job)

    async def _deliver_notification(self, job: Job) -> None:
        """Send one message and report its outcome."""
        engine, failure = self._engine, None
        key, shown = job.args
        message = msgspec.convert(shown, Message)
        try:
            channel = await engine.scope.look(notifications.find_channels, key)
        except OjsterError:
            await engine.jobs.acknowledge([Acknowledgement(job.id, b'{"dropped":true}', job.worker_id, job.attempt)])
            return
        try:
            await (self._mail(channel, message) if channel.method == "email" else self._call(channel, message, job))
        except _Failed as failed:
            failure = failed.failure
        except asyncio.CancelledError:
            await engine.jobs.release([Release(job.id, job.worker_id, job.attempt)])
            raise
        try:
            if failure is None:
                await engine.jobs.acknowledge([Acknowledgement(job.id, b'{"sent":true}', job.worker_id, job.attempt)])
                event = "notification.sent"
            else:
                (ended,) = await engine.jobs.fail([FailureReport(job.id, failure, job.worker_id, job.attempt)])
                is_over = isinstance(ended, Job) and ended.state == "discarded"
                event = "notification.dead" if is_over else "notification.failed"
            await engine.scope.do(notifications.told, (event, key, {"attempt": job.attempt}))
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
        try:
            answered = await self.sender.send(receiver, event, f"msg_{job.id}")
        except Refused as refusal:
            raise _Failed(Failure("WebhookRefused", f"{url}: {refusal}", retryable=False)) from None
        except (httpx.HTTPError, OSError, TimeoutError) as error:
            why = f"{url}: {str(error) or type(error).__name__}"
            raise _Failed(Failure("WebhookUnreachable", why)) from None
        if not answered.succeeded:
            code = "DEAD_LETTER" if answered.final else "handler_error"
            raise _Failed(Failure("WebhookFailed", f"{url} answered {answered.status}.", code=code))

    async def _deliver(self, job: Job) -> None:
        engine = self._engine
        subscription_id, event = job.args
        try:
            subscription = await engine.scope.look(webhooks.find_subscriptions, subscription_id)
        except OjsterError:
            await engine.jobs.acknowledge([Acknowledgement(job.id, b'{"dropped":true}', job.worker_id, job.attempt)])
            return
        failure: Failure | None = None
        result: dict[str, Any] = {}
        try:
            answered = await self.sender.send(subscription, event, f"del_{job.id}")
        except Refused as refusal:
            failure = Failure("WebhookRefused", f"{subscription.url}: {refusal}", retryable=False)
        except (httpx.HTTPError, OSError, TimeoutError) as error:
            failure = Failure("WebhookUnreachable", f"{subscription.url}: {str(error) or type(error).__name__}")
        except asyncio.CancelledError:
            await engine.jobs.release([Release(job.id, job.worker_id, job.attempt)])
            raise
        else:
            result = {
                "status_code": answered.status,
                "response_time_ms": round(answered.seconds * 1000),
                "response_body": answered.body,
            }
            if not answered.succeeded:
                failure = Failure(
                    "WebhookFailed",
                    f"{subscription.url} answered {answered.status}.",
                    code="DEAD_LETTER" if answered.final else "handler_error",
                    details=result,
                )
        try:
            await self._report_outcome(job, subscription, result, failure)
        except OjsterError as error:
            log.warning("cannot record the outcome of delivery %s; it will be sent again: %s", job.id, error)

    async def _report_outcome(
        self, job: Job, subscription: Subscription, result: dict[str, Any], failure: Failure | None
    ) -> None:
        engine = self._engine
        if failure is None:
            ack = Acknowledgement(job.id, msgspec.json.encode(result), job.worker_id, job.attempt)
            await engine.jobs.acknowledge([ack])
            event = "webhook.delivered"
        else:
            (ended,) = await engine.jobs.fail([FailureReport(job.id, failure, job.worker_id, job.attempt)])
            event = "webhook.dead" if isinstance(ended, Job) and ended.state == "discarded" else "webhook.failed"
        more = {"delivery_id": f"del_{job.id}", "event_type": job.meta["event_type"], "attempt": job.attempt}
        await engine.scope.do(webhooks.told, (event, subscription.id, {"tenant": subscription.tenant} | more))
