"""Requests to endpoints of users: signed, to checked addresses, and bounded in time and size whatever an endpoint does.

Spec: ojs-webhooks 5.3, 8
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import socket
import ssl
import threading
import time
from collections.abc import Iterable
from functools import cached_property
from typing import Any, Final
from urllib.parse import urljoin, urlsplit

import httpx
import msgspec

from ojster.core.errors import InvalidRequest
from ojster.core.signatures import SIGNATURE_HEADER, TIMESTAMP_HEADER, sign

log = logging.getLogger(__name__)

CONNECT_TIMEOUT: Final = 10.0
"""Maximum time that a connection to one address takes, in seconds."""

KEEP_ALIVE_SECONDS: Final = 2.0
"""Time for which an idle connection is kept: shorter than servers do, which would close it under the next request."""

MAX_REDIRECTS: Final = 3
MAX_HOSTS: Final = 200
"""Maximum number of hosts to which connections are kept open."""

DNS_TIMEOUT_SECONDS: Final = 5.0
"""DNS lookup timeout, in seconds."""

_TRANSLATED: Final = tuple(
    ipaddress.ip_network(network)
    for network in ("64:ff9b::/96", "64:ff9b:1::/48", "2002::/16", "2001::/32", "::ffff:0:0/96", "::/96", "fec0::/10")
)
"""Networks whose addresses stand for IPv4 addresses, which may be private ones; and site-local addresses."""

_SPECIAL: Final = tuple(
    ipaddress.ip_network(network) for network in ("192.0.0.0/24", "192.88.99.0/24", "3fff::/20", "5f00::/16")
)
"""Special-purpose networks that some versions of Python count as public. Clouds have metadata servers in the first."""


class Refused(Exception):
    """The endpoint must not, or cannot, be called."""


class Unreachable(ConnectionError):
    """There was no connection to the endpoint: no part of the request has arrived."""


class Received(msgspec.Struct, frozen=True):
    """What an endpoint has answered; names in ``headers`` are in lower case.

    ``is_cut``: whether the body was longer than the limit, and its rest was not read.
    """

    status: int
    seconds: float
    body: bytes
    headers: dict[str, str]
    is_cut: bool = False


class Sender:
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

    async def check(self, url: str, field: str = "url") -> None:
        """Reject a URL that can never be called (see ``_addresses``). A host that does not resolve now is accepted.

        ``field``: the member of the request that has it.

        Raises
        ------
        InvalidRequest
            The URL is malformed or not allowed.
        """
        host = ""
        try:
            parts = self._parts(url)
            host = parts.hostname or ""
            if not self.trusting:
                await self._addresses(host, parts.port or 443)
        except Refused as refusal:
            raise InvalidRequest(f"The URL cannot be used: {refusal}.", field=field) from None
        except OSError:
            log.info("cannot resolve %s, the host of an endpoint; accepting it anyway", host)

    async def post(
        self, url: str, headers: dict[str, str], body: bytes, keys: Iterable[str], *, seconds: float, largest: int
    ) -> Received:
        """Sign a request and send it, following redirects.

        Parameters
        ----------
        keys:
            The secrets to sign it with.
        seconds:
            Timeout of the whole call, with its redirects.
        largest:
            Number of bytes of the answer that are read at most.

        Raises
        ------
        Refused
            The endpoint must not be called, or it redirects too often.
        Unreachable
            There was no connection to it.
        httpx.HTTPError, OSError
            It did not answer, or not in time; it may have received the request.
        """
        timestamp = str(int(time.time()))
        signed = headers | {TIMESTAMP_HEADER: timestamp, SIGNATURE_HEADER: sign(keys, timestamp, body)}
        started = time.perf_counter()
        async with asyncio.timeout(seconds):
            for _ in range(MAX_REDIRECTS + 1):
                try:
                    status, answered, content = await self._post(url, signed, body, seconds, largest)
                    target = urljoin(url, answered.get("location", ""))
                except ValueError:  # the client looks at the address, too
                    raise Refused("it redirects to an invalid URL") from None
                if not (300 <= status < 400 and "location" in answered):
                    taken = time.perf_counter() - started
                    return Received(status, taken, content[:largest], answered, len(content) > largest)
                url = target
        raise Refused(f"it redirects more than {MAX_REDIRECTS} times")

    async def _post(
        self, url: str, headers: dict[str, str], body: bytes, seconds: float, largest: int
    ) -> tuple[int, dict[str, str], bytes]:
        """Send a request to the first reachable address of a host; return the status, the headers and the body.

        It calls only addresses that were checked: a second DNS lookup could return others.
        """
        parts = self._parts(url)
        host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
        named = headers | {"Host": parts.netloc, "Accept-Encoding": "identity"}
        client = await self._client(f"{parts.scheme}://{host}:{port}")
        timeout = httpx.Timeout(seconds, connect=min(seconds, CONNECT_TIMEOUT))
        failure: Exception | None = None
        try:
            addresses = await self._addresses(host, port)
        except (OSError, TimeoutError) as error:
            raise Unreachable(f"the host {host} cannot be resolved: {str(error) or 'no answer'}") from None
        for address in addresses:
            shown = f"[{address}]" if ":" in address else address
            target = parts._replace(netloc=f"{shown}:{port}").geturl()
            try:
                async with client.stream(
                    "POST", target, headers=named, content=body, timeout=timeout, extensions={"sni_hostname": host}
                ) as response:
                    return response.status_code, dict(response.headers), await _beginning_of(response, largest)
            except (httpx.ConnectError, httpx.ConnectTimeout) as error:
                failure = error
        raise Unreachable(str(failure or f"the host {host} has no address") or type(failure).__name__)

    async def _client(self, origin: str) -> httpx.AsyncClient:
        """Return the client for a host, whose connections no other host uses."""
        client = self._clients.pop(origin, None)
        if client is None:
            limits = httpx.Limits(keepalive_expiry=KEEP_ALIVE_SECONDS)  # who calls bounds the number of connections
            client = httpx.AsyncClient(limits=limits, follow_redirects=False, trust_env=False, verify=self._tls)
            if len(self._clients) >= MAX_HOSTS:
                oldest = next(iter(self._clients))
                await self._clients.pop(oldest).aclose()
        self._clients[origin] = client
        return client

    def _parts(self, url: str) -> Any:
        try:
            parts = urlsplit(url)
            port = parts.port
            _ = httpx.URL(url).host  # the client refuses more than ``urlsplit``: control characters, and long URLs
        except (ValueError, httpx.InvalidURL):
            raise Refused("it is not a valid URL") from None
        allowed = ("https", "http") if self.trusting else ("https",)
        if parts.scheme not in allowed or not parts.hostname or port == 0:
            must = f"it must begin with {' or '.join(f'{scheme}://' for scheme in allowed)} and name a host"
            trust = "; 'ojster serve --trust-webhooks' allows http://, too"
            raise Refused(must + (trust if parts.scheme == "http" and not self.trusting else ""))
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


async def _beginning_of(response: httpx.Response, largest: int) -> bytes:
    """Return the beginning of a response as it was sent, longer than ``largest`` if it is: nothing is decompressed."""
    content = b""
    async for piece in response.aiter_raw():
        content += piece
        if len(content) > largest:
            break
    return content


def is_public(address: str) -> bool:
    """Return whether an address is one of the public Internet, and stands for no other address."""
    ip = ipaddress.ip_address(address)
    if ip.is_multicast or not ip.is_global:
        return False
    return not any(ip in network for network in (*_SPECIAL, *_TRANSLATED))


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
