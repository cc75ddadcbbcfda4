"""Calls to webhook endpoints: signed, to checked addresses, and bounded in time and size whatever an endpoint does.

Spec: ojs-webhooks 5.3, 7, 8
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import ipaddress
import logging
import socket
import ssl
import threading
import time
from functools import cached_property
from typing import Any, Final
from urllib.parse import urljoin, urlsplit

import httpx
import msgspec

from ojster.core.durations import SECOND
from ojster.core.errors import InvalidRequest
from ojster.core.version import __version__
from ojster.events.subscription import Subscription
from ojster.server.delivery.cloud_event import encode_event

log = logging.getLogger(__name__)

TIMEOUT: Final = 30.0
"""Timeout of a whole call to an endpoint, with its redirects, in seconds. Spec: ojs-webhooks 7.3"""

MAX_REDIRECTS: Final = 3
MAX_RESPONSE_BYTES: Final = 65_536
"""Number of bytes of a response that are read at most."""

MAX_RESPONSE_CHARACTERS: Final = 1_000
"""Maximum length of a stored response body, in characters."""

MAX_HOSTS: Final = 200
"""Maximum number of hosts to which connections are kept open."""

DNS_TIMEOUT_SECONDS: Final = 5.0
"""DNS lookup timeout, in seconds."""

_TRANSLATED: Final = tuple(
    ipaddress.ip_network(network)
    for network in ("64:ff9b::/96", "64:ff9b:1::/48", "2002::/16", "2001::/32", "::ffff:0:0/96", "::/96", "fec0::/10")
)
"""Networks whose addresses stand for IPv4 addresses, which may be private ones; and site-local addresses."""


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
        self._clients: dict[str, httpx.AsyncClient] = {}
        """Clients by scheme and host, the latest last. Connections are shared by the calls to one host name alone:
        another host at the same address may not see what a certificate of the first protects."""

    @cached_property
    def _tls(self) -> ssl.SSLContext:
        # Made at the first call: a server without webhooks starts without reading the certificates.
        return httpx.create_ssl_context(trust_env=False)

    async def close(self) -> None:
        """Close the connections."""
        for client in self._clients.values():
            await client.aclose()
        self._clients.clear()

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
        content, body = encode_event(event, subscription.cloudevents)
        timestamp = str(int(time.time()))
        headers = content | {
            "User-Agent": f"OJS-Webhook/1.0 (ojster/{__version__})",
            "X-OJS-Event-Type": event["type"],
            "X-OJS-Delivery-ID": delivery_id,
            "X-OJS-Subscription-ID": subscription.id,
            "X-OJS-Timestamp": timestamp,
            "X-OJS-Signature": sign(subscription, timestamp, body),
        }
        started = time.perf_counter()
        url = subscription.url
        async with asyncio.timeout(TIMEOUT):
            for _ in range(MAX_REDIRECTS + 1):
                status, location, text = await self._post(url, headers, body)
                if not (300 <= status < 400 and location):
                    return EndpointResponse(status, time.perf_counter() - started, text)
                url = urljoin(url, location)
        raise Refused(f"it redirects more than {MAX_REDIRECTS} times")

    async def _post(self, url: str, headers: dict[str, str], body: bytes) -> tuple[int, str | None, str]:
        """Send a request to the first reachable address of a host; return the status, the redirect and the text.

        It calls only addresses that were checked: a second DNS lookup could return others.
        """
        parts = self._parts(url)
        host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
        named = headers | {"Host": parts.netloc, "Accept-Encoding": "identity"}
        client = await self._client(f"{parts.scheme}://{host}:{port}")
        failure: httpx.ConnectError | None = None
        for address in await self._addresses(host, port):
            shown = f"[{address}]" if ":" in address else address
            target = parts._replace(netloc=f"{shown}:{port}").geturl()
            try:
                async with client.stream(
                    "POST", target, headers=named, content=body, extensions={"sni_hostname": host}
                ) as response:
                    return response.status_code, response.headers.get("location"), await _beginning_of(response)
            except httpx.ConnectError as error:
                failure = error
        raise failure or httpx.ConnectError(f"the host {host} has no address")

    async def _client(self, origin: str) -> httpx.AsyncClient:
        """Return the client for a host, whose connections no other host uses."""
        client = self._clients.pop(origin, None)
        if client is None:
            client = httpx.AsyncClient(timeout=TIMEOUT, follow_redirects=False, trust_env=False, verify=self._tls)
            if len(self._clients) >= MAX_HOSTS:
                oldest = next(iter(self._clients))
                await self._clients.pop(oldest).aclose()
        self._clients[origin] = client
        return client

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
            entries = await _look_up(host, port)
        addresses = [str(entry[4][0]).partition("%")[0] for entry in entries]
        for address in addresses:
            if not self.trusting and not is_public(address):
                raise Refused(f"{host} is not a public host")
        return addresses


async def _beginning_of(response: httpx.Response) -> str:
    """Return the first characters of a response as they were sent: nothing is decompressed."""
    content = b""
    async for piece in response.aiter_raw():
        content += piece
        if len(content) >= MAX_RESPONSE_BYTES:
            break
    return content[:MAX_RESPONSE_BYTES].decode("utf-8", "replace")[:MAX_RESPONSE_CHARACTERS]


def is_public(address: str) -> bool:
    """Return whether an address is one of the public Internet, and stands for no other address."""
    ip = ipaddress.ip_address(address)
    if ip.is_multicast or not ip.is_global:
        return False
    return ip.version == 4 or not any(ip in network for network in _TRANSLATED)


async def _look_up(host: str, port: int) -> list[Any]:
    """Run ``getaddrinfo`` in a daemon thread, so that neither cancellation nor a closing event loop waits for it."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[list[Any]] = loop.create_future()

    def look() -> None:
        entries: list[Any] = []
        error: OSError | None = None
        try:
            entries = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except OSError as refused:
            error = refused
        except UnicodeError:
            error = socket.gaierror(f"{host[:60]!r} is not a valid host name")
        with contextlib.suppress(RuntimeError):  # the loop may be closed
            loop.call_soon_threadsafe(tell, entries, error)

    def tell(entries: list[Any], error: OSError | None) -> None:
        if answer.done():
            return
        if error is None:
            answer.set_result(entries)
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
