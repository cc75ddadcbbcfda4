"""HTTP requests to one server, made with aiohttp."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Final, NamedTuple
from urllib.request import getproxies, proxy_bypass

import aiohttp
import certifi
from aiohttp.abc import AbstractStreamWriter
from yarl import URL

from ojster.core.errors import BackendUnavailable, InvalidRequest

UNIX: Final = "unix://"
"""Beginning of the URL of a server that listens at a path: ``unix:///run/ojster.sock``."""

AUTHORITY_VARIABLE: Final = "OJSTER_TLS_CA"
CERTIFICATE_VARIABLE: Final = "OJSTER_TLS_CERT"
KEY_VARIABLE: Final = "OJSTER_TLS_KEY"
"""Environment variables with files in PEM format: authorities of servers beside those of the system, and the client's
own certificate and key."""

NETWORK_ERRORS: Final = (aiohttp.ClientError, OSError)
"""Errors of a connection, timeouts among them."""

CANNOT_CONNECT: Final = (aiohttp.ClientConnectorError, ConnectionRefusedError)
"""Errors of a connection that was never made, so that nothing has arrived."""

CERTIFICATE_ERRORS: Final = (aiohttp.ClientConnectorCertificateError,)
"""Errors of a server whose certificate is not of a known authority."""

MAX_CONNECTIONS: Final = 100
"""Maximum number of connections to the server for short requests, and for long ones; further requests wait for one."""

SHORT_SECONDS: Final = 30.0
"""Maximum wait for an answer, in seconds, up to which a request is short. Long ones, such as long polls and transfers,
have connections of their own, so that an enqueue never waits for them."""

LARGE_BYTES: Final = 1_048_576
"""Size of a body, in bytes, from which on aiohttp wants it in pieces, so that the event loop can do other things."""

IDLE_SECONDS: Final = 15.0
"""Time after which an unused connection is closed, in seconds: before servers and proxies close it."""

SLOWEST_BYTES: Final = 50_000
"""Number of bytes a second that a server takes at least, or the request is given up."""

CONNECT_SECONDS: Final = 5.0
"""Maximum time for connecting, in seconds."""


class Streamed(aiohttp.AsyncIterablePayload):
    """A body that is sent as it comes."""

    async def write_with_length(self, writer: AbstractStreamWriter, content_length: int | None) -> None:
        """Write the body and its end.

        aiohttp writes the end, too, but there an error of the connection goes to nobody: it ends a task that no one
        awaits. Here it fails the request, as an error in the middle does.
        """
        await super().write_with_length(writer, content_length)
        await writer.write_eof()


class Response(NamedTuple):
    """The answer to a request."""

    status: int
    content: bytes

    @property
    def is_success(self) -> bool:
        """Whether the request has succeeded."""
        return 200 <= self.status < 300


class Transport:
    """The connections to a server, for one event loop.

    Parameters
    ----------
    url:
        The server.
    headers:
        Headers of every request.
    """

    def __init__(self, url: str, headers: Mapping[str, str]) -> None:
        self._path = url.removeprefix(UNIX) if url.startswith(UNIX) else None
        base = URL(url if self._path is None else "http://localhost")
        if base.user is not None and "Authorization" in headers:
            base = base.with_user(None)  # the token is what counts
        self._base = str(base).rstrip("/")
        self._proxy = None if self._path is not None else _proxy_of(base)
        self._headers = headers
        self._closed = False
        self._tls = _tls() if url.startswith("https://") else True
        self._sessions: dict[bool, aiohttp.ClientSession] = {}
        """The connections for long requests, and those for short ones."""

    def _session(self, *, is_long: bool) -> aiohttp.ClientSession:
        if self._closed:
            raise BackendUnavailable("The client is closed.")
        session = self._sessions.get(is_long)
        if session is None or session.closed:
            limits = {"limit": MAX_CONNECTIONS, "keepalive_timeout": IDLE_SECONDS}
            connector: aiohttp.BaseConnector
            if self._path is None:
                connector = aiohttp.TCPConnector(ssl=self._tls, **limits)  # type: ignore[arg-type]
            else:
                connector = aiohttp.UnixConnector(self._path, **limits)  # type: ignore[arg-type]
            session = self._sessions[is_long] = aiohttp.ClientSession(
                connector=connector, headers=self._headers, cookie_jar=aiohttp.DummyCookieJar()
            )
        return session

    async def send(
        self,
        method: str,
        path: str,
        content: bytes | AsyncIterator[bytes] | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        patience: float = SHORT_SECONDS,
    ) -> Response:
        """Make a request, and return its answer.

        Parameters
        ----------
        path:
            Path and query, with their special characters encoded.
        patience:
            Maximum wait for the next bytes of the answer, in seconds.
        """
        size = len(content) if isinstance(content, bytes) else 0
        most = 2 * patience + size / SLOWEST_BYTES
        async with asyncio.timeout(most) as limit:  # aiohttp has no limit on the time that sending takes

            async def pieces(source: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
                async for piece in source:
                    yield piece
                    limit.reschedule(asyncio.get_running_loop().time() + most)

            sent = content if content is None or isinstance(content, bytes) else pieces(content)
            async with self.open(method, path, sent, headers=headers, patience=patience) as response:
                limit.reschedule(None)  # the answer has begun: from now on, each of its pieces has a limit
                return Response(response.status, await response.read())

    @asynccontextmanager
    async def open(
        self,
        method: str,
        path: str,
        content: bytes | io.BytesIO | AsyncIterator[bytes] | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        patience: float = SHORT_SECONDS,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Make a request, and yield its answer, whose body is still to be read. See ``send``."""
        if isinstance(content, bytes) and len(content) > LARGE_BYTES:
            content = io.BytesIO(content)
        sent = Streamed(content) if isinstance(content, AsyncIterator) else content
        async with self._session(is_long=patience > SHORT_SECONDS).request(
            method,
            URL(self._base + path, encoded=True),
            data=sent,
            headers=headers,
            allow_redirects=False,
            proxy=self._proxy,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS, sock_read=patience),
        ) as response:
            yield response

    async def close(self) -> None:
        """Close the connections; further requests are refused."""
        self._closed = True
        for session in self._sessions.values():
            await session.close()

    def __del__(self) -> None:
        """Drop the connections of a client that was not closed, without a word: the process may end at any time."""
        for session in getattr(self, "_sessions", {}).values():
            if not session.closed and (connector := session.connector) is not None:
                session.detach()
                closing = connector.close().__await__()
                with contextlib.suppress(Exception):  # the event loop may be closed
                    next(closing)  # this closes them; nobody waits until it is confirmed


def _proxy_of(url: URL) -> URL | None:
    """Return the proxy that the environment names for a server, in ``HTTP_PROXY`` and the like.

    Raises
    ------
    InvalidRequest
        It is no HTTP proxy.
    """
    proxies = getproxies()
    named = proxies.get(url.scheme) or proxies.get("all")
    if not named or proxy_bypass(url.host or ""):
        return None
    proxy = URL(named if "://" in named else f"http://{named}")
    if proxy.scheme not in ("http", "https"):
        raise InvalidRequest(f"The proxy {proxy.with_user(None)} of the environment is no HTTP proxy. Set NO_PROXY.")
    return proxy


def _tls() -> ssl.SSLContext:
    """Return what a client needs to check servers, and to show its own certificate.

    Raises
    ------
    InvalidRequest
        A file that the environment names cannot be used.
    """
    authority, certificate = os.environ.get(AUTHORITY_VARIABLE), os.environ.get(CERTIFICATE_VARIABLE)
    context = ssl.create_default_context()
    context.load_verify_locations(certifi.where())  # for systems that have no authorities
    try:
        if authority:
            context.load_verify_locations(authority)
        if certificate:
            context.load_cert_chain(certificate, os.environ.get(KEY_VARIABLE))
    except (OSError, ssl.SSLError) as error:
        names = f"{AUTHORITY_VARIABLE}, {CERTIFICATE_VARIABLE}, {KEY_VARIABLE}"
        raise InvalidRequest(f"A file in {names} cannot be used: {error}.") from None
    return context
