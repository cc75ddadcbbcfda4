"""How do bytes get in and out of the server? uvicorn's protocol, with one write for each turn of the event loop.

uvicorn writes the head and the body of a response one after the other; each write is a system call, which is a good
part of what a small request costs.
"""

from __future__ import annotations

import asyncio
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from ojster.model.errors import InvalidRequest
from ojster.model.ids import new_id
from ojster.model.job import SPEC_VERSION
from ojster.server.exchange import refuse


class _Corked:
    """A transport that collects what is written during one turn of the event loop, and writes it at once."""

    __slots__ = ("_loop", "_parts", "_transport")

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._parts: list[bytes] = []

    def write(self, data: bytes) -> None:
        if not self._parts:
            self._loop.call_soon(self._flush)
        self._parts.append(data)

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        parts, self._parts = self._parts, []
        if parts:
            self._transport.write(b"".join(parts))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class CorkedHttpProtocol(HttpToolsProtocol):
    """uvicorn's HTTP/1.1 protocol on httptools, over a corked transport."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin a connection."""
        super().connection_made(cast("asyncio.Transport", _Corked(transport, self.loop)))

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no HTTP, in the words of every other refusal."""
        request_id = new_id()
        answer = refuse(InvalidRequest(msg), request_id)
        head = (
            f"HTTP/1.1 400 Bad Request\r\ncontent-type: {answer.content_type.decode()}\r\n"
            f"ojs-version: {SPEC_VERSION}\r\n"
            f"x-request-id: {request_id}\r\ncontent-length: {len(answer.body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + answer.body)
        self.transport.close()
