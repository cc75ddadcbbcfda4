"""How do subscribers hear of events? A worker in the server, which signs, sends, and minds where it sends to.

(ojs-webhooks.md sections 5.3, 7 and 8)
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
from ojster.service import Engine
from ojster.version import __version__

log = logging.getLogger(__name__)

AT_ONCE: Final = 20
"""How many deliveries are under way at once."""

TIMEOUT: Final = 30.0
"""How long an endpoint has to answer, in seconds (section 7.3)."""

MOST_REDIRECTS: Final = 3
MOST_OF_ANSWER: Final = 1_000
"""How many characters of an answer are kept."""

LONGEST_LOOKUP: Final = 5.0
"""How long it may take to find the address of a host, in seconds."""

GRACE: Final = 5.0
"""How long deliveries that are under way have to finish when the server stops, in seconds."""

PAUSE: Final = 1.0
"""How long to wait after the database was away, in seconds."""


class Refused(Exception):
    """An endpoint that must not, or cannot, be called."""


class Answered(msgspec.Struct, frozen=True):
    """What came of a call of an endpoint."""

    status: int
    seconds: float
    body: str

    @property
    def succeeded(self) -> bool:
        """Whether the endpoint has taken it."""
        return 200 <= self.status < 300

    @property
    def final(self) -> bool:
        """Whether it makes no sense to try again."""
        return 400 <= self.status < 500 and self.status not in (408, 429)


class Sender:
    """Calls endpoints.

    Parameters
    ----------
    trusting:
        Whether plain HTTP, and addresses that are not public, are allowed: for development, and inside a network.
    """

    def __init__(self, *, trusting: bool = False) -> None:
        self.trusting = trusting
        self._http = httpx.AsyncClient(timeout=TIMEOUT, follow_redirects=False, trust_env=False)

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def check(self, url: str) -> None:
        """Refuse a URL that can never be called: see ``_addresses``; a host that is not known yet may be later.

        Raises
        ------
        InvalidRequest
            It is none, or not allowed.
        """
        try:
            parts = self._parts(url)
            if not self.trusting:
                await self._addresses(parts.hostname or "", parts.port or 443)
        except Refused as refusal:
            raise InvalidRequest(f"The URL cannot be used: {refusal}.", field="url") from None
        except OSError:
            log.info("the host of the webhook %s is not known now", url)

    async def send(self, subscription: Subscription, event: dict[str, Any], delivery_id: str) -> Answered:
        """Send an event, signed.

        Raises
        ------
        Refused
            The endpoint must not be called.
        httpx.HTTPError, OSError
            It did not answer.
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
        for _ in range(MOST_REDIRECTS + 1):
            response = await self._post(url, headers, body)
            location = response.headers.get("location")
            if not (300 <= response.status_code < 400 and location):
                return Answered(response.status_code, time.perf_counter() - started, response.text[:MOST_OF_ANSWER])
            url = urljoin(url, location)
        raise Refused(f"it redirects more than {MOST_REDIRECTS} times")

    async def _post(self, url: str, headers: dict[str, str], body: bytes) -> httpx.Response:
        """Call the first address of a host that can be reached.

        The addresses that were checked are those that are called: a second look-up might give others.
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
        raise failure or httpx.ConnectError(f"{host} has no address")

    def _parts(self, url: str) -> Any:
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError:
            raise Refused("it is no URL") from None
        allowed = ("https", "http") if self.trusting else ("https",)
        if parts.scheme not in allowed or not parts.hostname or port == 0:
            raise Refused(f"it must begin with {' or '.join(f'{scheme}://' for scheme in allowed)} and name a host")
        if parts.username or parts.password:
            raise Refused("it must not hold a password")
        return parts

    async def _addresses(self, host: str, port: int) -> list[str]:
        """Return the addresses of a host; unless all are trusted, none may be private, or of this machine."""
        async with asyncio.timeout(LONGEST_LOOKUP):
            found = await _look_up(host, port)
        addresses = [str(entry[4][0]).partition("%")[0] for entry in found]
        for address in addresses:
            if not self.trusting and not ipaddress.ip_address(address).is_global:
                raise Refused(f"{host} is not a public host")
        return addresses


async def _look_up(host: str, port: int) -> list[Any]:
    """Return what ``getaddrinfo`` does, from a thread that nobody waits for: not the loop either, when it is closed."""
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
            error = socket.gaierror(f"{host[:60]!r} is no name of a host")
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
    """Return the signature of a delivery: one for each secret that is in use (sections 8.1 and 8.3)."""
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


class Deliverer:
    """Delivers events to subscribers, and messages through channels, until it is stopped.

    Any number of servers may do so for one database.

    Parameters
    ----------
    smtp:
        Who takes e-mail; ``None``: this server sends none, and leaves it to others, or to a later try.
    """

    def __init__(self, engine: Engine, sender: Sender, smtp: Smtp | None = None) -> None:
        self._engine = engine
        self.sender = sender
        self._smtp = smtp
        self._id = f"webhooks_{new_id()}"
        self._loop: asyncio.Task[None] | None = None
        self._under_way: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Begin to deliver."""
        self._loop = asyncio.create_task(self._run(), name="ojster-webhooks")

    async def stop(self) -> None:
        """Finish what is under way, if that does not take long, hand back the rest, and stop."""
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
        while not self._engine.draining:
            room = AT_ONCE - len(self._under_way)
            if not room:
                await asyncio.wait(self._under_way, return_when=asyncio.FIRST_COMPLETED)
                continue
            try:
                jobs = await self._engine.fetch(Claim((webhooks.QUEUE, notifications.QUEUE), room, self._id), wait=30.0)
            except OjsterError as error:
                log.warning("deliveries cannot be fetched, trying again: %s", error)
                await asyncio.sleep(PAUSE)
                continue
            for job in jobs:
                task = asyncio.create_task(self.deliver(job))
                self._under_way.add(task)
                task.add_done_callback(self._under_way.discard)

    async def deliver(self, job: Job) -> None:
        """Make one delivery, and tell what came of it."""
        if job.type == notifications.JOB_TYPE:
            await self._tell(job)
        else:
            await self._deliver(job)

    async def _tell(self, job: Job) -> None:
        """Send one message, and tell what came of it."""
        engine, failure = self._engine, None
        key, shown = job.args
        message = msgspec.convert(shown, Message)
        try:
            channel = await engine.look(notifications.find_channels, key)
        except OjsterError:
            await engine.acknowledge([Acknowledgement(job.id, b'{"dropped":true}', job.worker_id, job.attempt)])
            return
        try:
            await (self._mail(channel, message) if channel.method == "email" else self._call(channel, message, job))
        except _Failed as failed:
            failure = failed.failure
        except asyncio.CancelledError:
            await engine.release([Release(job.id, job.worker_id, job.attempt)])
            raise
        try:
            if failure is None:
                await engine.acknowledge([Acknowledgement(job.id, b'{"sent":true}', job.worker_id, job.attempt)])
                event = "notification.sent"
            else:
                (ended,) = await engine.fail([FailureReport(job.id, failure, job.worker_id, job.attempt)])
                is_over = isinstance(ended, Job) and ended.state == "discarded"
                event = "notification.dead" if is_over else "notification.failed"
            await engine.do(notifications.told, (event, key, {"attempt": job.attempt}))
        except OjsterError as error:
            log.warning("what came of the message %s cannot be noted; it is sent again: %s", job.id, error)

    async def _mail(self, channel: Channel, message: Message) -> None:
        if self._smtp is None:
            raise _Failed(Failure("NoMailServer", "This server was not told who takes e-mail: --smtp."))
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
            subscription = await engine.look(webhooks.find_subscriptions, subscription_id)
        except OjsterError:
            await engine.acknowledge([Acknowledgement(job.id, b'{"dropped":true}', job.worker_id, job.attempt)])
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
            await engine.release([Release(job.id, job.worker_id, job.attempt)])
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
            await self._conclude(job, subscription, result, failure)
        except OjsterError as error:
            log.warning("what came of the delivery %s cannot be noted; it is made again: %s", job.id, error)

    async def _conclude(
        self, job: Job, subscription: Subscription, result: dict[str, Any], failure: Failure | None
    ) -> None:
        engine = self._engine
        if failure is None:
            ack = Acknowledgement(job.id, msgspec.json.encode(result), job.worker_id, job.attempt)
            await engine.acknowledge([ack])
            event = "webhook.delivered"
        else:
            (ended,) = await engine.fail([FailureReport(job.id, failure, job.worker_id, job.attempt)])
            event = "webhook.dead" if isinstance(ended, Job) and ended.state == "discarded" else "webhook.failed"
        more = {"delivery_id": f"del_{job.id}", "event_type": job.meta["event_type"], "attempt": job.attempt}
        await engine.do(webhooks.told, (event, subscription.id, {"tenant": subscription.tenant} | more))
