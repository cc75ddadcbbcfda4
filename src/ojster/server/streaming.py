"""Sending of a streamed answer until it ends or the client disconnects."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine
from contextlib import AbstractContextManager
from typing import Any

from starlette.types import Send

from ojster.core.errors import OjsterError


async def send_stream(
    stream: AsyncGenerator[bytes, None],
    disconnect: Coroutine[Any, Any, None],
    send: Send,
    watch: AbstractContextManager[object],
) -> None:
    """Send a stream in chunks until it ends, the client disconnects, or the caller's token is no longer valid.

    Parameters
    ----------
    disconnect:
        Ends when the client disconnects.
    watch:
        Raises the refusal of the caller when its token is revoked or expires.
    """
    try:
        with watch:
            await _send_pieces(stream, disconnect, send)
    except OjsterError:  # the status is sent; the client finds out why when it reconnects
        await send({"type": "http.response.body", "body": b""})


async def _send_pieces(stream: AsyncGenerator[bytes, None], disconnect: Coroutine[Any, Any, None], send: Send) -> None:
    gone = asyncio.ensure_future(disconnect)
    piece: asyncio.Future[bytes] | None = None
    try:
        while True:
            piece = asyncio.ensure_future(anext(stream))
            await asyncio.wait((piece, gone), return_when=asyncio.FIRST_COMPLETED)
            if gone.done():
                break
            try:
                body = piece.result()
            except StopAsyncIteration:
                await send({"type": "http.response.body", "body": b""})
                break
            await send({"type": "http.response.body", "body": body, "more_body": True})
    finally:
        for task in (piece, gone):
            if task is not None:
                task.cancel()
        await asyncio.gather(*(task for task in (piece, gone) if task is not None), return_exceptions=True)
        await stream.aclose()
