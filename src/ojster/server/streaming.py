"""Sending of a streamed answer until it ends or the client disconnects."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine
from contextlib import AbstractContextManager
from typing import Any

from starlette.types import Send

from ojster.core.errors import OjsterError


class StreamInterruptedError(Exception):
    """A file broke off. It is no error of a request, so that the connection breaks, too.

    An answer that ended as if nothing had happened would look like the whole file.
    """


async def send_stream(
    stream: AsyncGenerator[bytes, None],
    disconnect: Coroutine[Any, Any, None],
    send: Send,
    watch: AbstractContextManager[object],
    *,
    may_stop: bool,
) -> None:
    """Send a stream in chunks until it ends, the client disconnects, or the caller's token is no longer valid.

    Parameters
    ----------
    disconnect:
        Ends when the client disconnects.
    watch:
        Raises the refusal of the caller when its token is revoked or expires.
    may_stop:
        Whether a stream that an error stops ends in order. Otherwise, a part must not look like the whole.

    Raises
    ------
    StreamInterruptedError
        An error stopped a stream that may not stop.
    """
    try:
        with watch:
            await _send_pieces(stream, disconnect, send)
    except OjsterError as error:  # the status is sent; the client finds out why when it reconnects
        if not may_stop:
            raise StreamInterruptedError(error.message) from error
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
