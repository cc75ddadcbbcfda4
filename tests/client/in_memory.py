"""The transport of a client to an application in the same process, which can break."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import httpx

from ojster.client.client import HttpClient
from ojster.client.transport import Response
from ojster.server.application import Application


class InMemoryTransport:
    """A transport to an application.

    Parameters
    ----------
    client:
        An HTTP client of the application.
    """

    def __init__(self, client: httpx.AsyncClient) -> None:
        self.client = client
        self.sent: list[str] = []
        """Method and path of each request."""

    async def send(
        self,
        method: str,
        path: str,
        content: bytes | AsyncIterator[bytes] | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        patience: float = 30.0,
    ) -> Response:
        """Make a request. See ``ojster.client.transport.Transport.send``."""
        self.sent.append(f"{method} {path}")
        response = await self.client.request(method, path, content=content, headers=headers)
        return Response(response.status_code, response.content)

    async def close(self) -> None:
        """Do nothing: whoever made the client closes it."""


class FaultyTransport(InMemoryTransport):
    """A transport that breaks before or after a request, for ``times`` requests whose path ends in ``only``."""

    def __init__(
        self, client: httpx.AsyncClient, fault: BaseException, *, after: bool, times: int = 2, only: str = ""
    ) -> None:
        super().__init__(client)
        self.fault, self.after, self.times, self.only = fault, after, times, only

    async def send(self, method: str, path: str, *given: Any, **more: Any) -> Response:
        """Make a request, unless it is to break before."""
        breaks = self.times > 0 and path.endswith(self.only)
        self.times -= breaks
        if breaks and not self.after:
            raise self._once()
        response = await super().send(method, path, *given, **more)
        if breaks:
            raise self._once()
        return response

    def _once(self) -> BaseException:
        """Return the fault without the frames of the tests that have raised it before: it would keep their servers."""
        return self.fault.with_traceback(None)


def to(app: Application) -> httpx.AsyncClient:
    """Return an HTTP client of an application."""
    headers = {"Content-Type": "application/json"}
    return httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://test", headers=headers)


def answering(answer: Callable[[httpx.Request], httpx.Response]) -> InMemoryTransport:
    """Return a transport to a server that a function stands for."""
    return InMemoryTransport(httpx.AsyncClient(transport=httpx.MockTransport(answer), base_url="http://test"))


def connect(client: HttpClient, transport: InMemoryTransport) -> InMemoryTransport:
    """Let a client use a transport."""
    client._connection.transport = transport  # type: ignore[assignment]
    return transport
