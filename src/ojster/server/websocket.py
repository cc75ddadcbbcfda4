"""Live events over WebSocket.

Spec: ojs-realtime 3
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final, Literal

import msgspec
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from ojster.core.access import Operation
from ojster.core.errors import InvalidRequest, NotFound, OjsterError
from ojster.core.parsing import refuse_misspelt
from ojster.core.timestamps import format_timestamp
from ojster.jobs.names import check_queue_name
from ojster.server.audit_trail import shown_object
from ojster.server.endpoint import COMMON_HEADERS, record_refusal, refuse
from ojster.server.event_streams import (
    ALL,
    FollowedChannel,
    StreamEvent,
    canonical_channel,
    check_types_of_channel,
    gap,
    id_to_number,
    number_to_id,
)
from ojster.server.request import HttpRequest, Services
from ojster.service import Service

log = logging.getLogger(__name__)

SUBPROTOCOL: Final = "ojs.v1"
MAX_CHANNELS: Final = 100
"""Maximum number of channels per connection."""

GOING_AWAY: Final = 1001
POLICY_VIOLATION: Final = 1008
TRY_LATER: Final = 1013

OPERATION: Final = "follow_by_socket"
"""Name of the connection in the audit log."""

MAX_REASON_BYTES: Final = 120
"""Maximum length of the reason in a frame that closes a connection, of 123 that are possible."""

_IDLE_SECONDS: Final = 60.0

encode: Final = msgspec.json.Encoder().encode


class _Command(msgspec.Struct):
    action: Literal["subscribe", "unsubscribe", "resume"]
    channel: str | None = None
    event_types: list[str] | None = None
    last_event_id: str | None = None


_read_order: Final = msgspec.json.Decoder(_Command).decode
_read_members: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


async def serve_websocket(
    socket: WebSocket, service: Service, services: Services, check: Callable[[Sequence[tuple[bytes, bytes]]], None]
) -> None:
    """Serve a WebSocket connection until the client disconnects or the server stops.

    Parameters
    ----------
    check:
        Raises ``Forbidden`` for the headers of a browser that may not connect.
    """
    request = HttpRequest(service, 0, socket.headers.raw, b"", {}, socket.receive, services)
    request.address = socket.client.host if socket.client else ""
    try:
        check(request.headers)
        watch = await _admit(request)
        services.feed.check(request.caller_address())
        with services.feed.admit(request.caller_address()), watch:
            await _Connection(socket, request).serve()
    except WebSocketDisconnect:
        return
    except OjsterError as error:
        await _refuse(socket, request, error)


async def _admit(request: HttpRequest) -> AbstractContextManager[object]:
    """Limit a request to what its caller may see; return a context that ends when the caller's token is revoked."""
    authenticator = request.services.authenticator
    if authenticator is None:
        request.confine(is_for_tenants=True)
        return nullcontext()
    try:
        request.service, access = await authenticator.admit(request.credentials())
        access.need(Operation.INSPECT)
    except OjsterError as error:
        await record_refusal(request, error, OPERATION, "", {})
        raise
    return authenticator.watch(request.credentials())


async def _refuse(socket: WebSocket, request: HttpRequest, error: OjsterError) -> None:
    """Answer as to any other request if the client is not connected, or close the connection with the reason."""
    shown = request.shown(error)
    is_new = socket.application_state is WebSocketState.CONNECTING
    if not is_new or "websocket.http.response" not in socket.scope.get("extensions", {}):
        reason = shown.message.encode()[:MAX_REASON_BYTES].decode(errors="ignore")
        await socket.close(POLICY_VIOLATION if error.status < 429 else TRY_LATER, reason)
        return
    answer = refuse(shown, request.request_id)
    headers = [*COMMON_HEADERS, *answer.all_headers(request.request_id)]
    await socket.send({"type": "websocket.http.response.start", "status": answer.status, "headers": headers})
    await socket.send({"type": "websocket.http.response.body", "body": answer.body})


class _Connection:
    """One client and the channels that it follows."""

    def __init__(self, socket: WebSocket, request: HttpRequest) -> None:
        self._socket = socket
        self._request = request
        self._service = request.service
        self._channels: dict[str, FollowedChannel] = {}
        self._sending = asyncio.Lock()
        self._following: asyncio.Task[None] | None = None
        self._after = 0
        """Number of the last event of all channels that the client may have been told."""

    async def serve(self) -> None:
        """Process the commands of the client and send it events."""
        offered = self._socket.scope.get("subprotocols", [])
        self._after = await self._service.events.last()
        await self._socket.accept(SUBPROTOCOL if SUBPROTOCOL in offered else None)
        self._following = asyncio.create_task(self._follow(self._after))
        try:
            while True:
                message = await self._socket.receive()
                if message["type"] == "websocket.disconnect":
                    return
                await self._execute_command(
                    message.get("text") or (message.get("bytes") or b"").decode(errors="replace")
                )
        finally:
            await self._stop()

    async def _execute_command(self, text: str) -> None:
        try:
            order = _read_order(text)
            order.channel = None if order.channel is None else canonical_channel(order.channel)
        except (msgspec.DecodeError, RecursionError) as error:
            await self._send_error("invalid_request", f"The message is malformed: {error}.")
            return
        try:
            refuse_misspelt(_read_members(text), _Command)
            if order.action == "resume":
                await self._resume(order.last_event_id or "")
            elif order.channel is None:
                await self._send_error("invalid_request", "'channel' is missing. Use job:ID, queue:NAME or all.")
            elif order.action == "unsubscribe":
                async with self._sending:
                    self._channels.pop(order.channel, None)
                    await self._write({"type": "unsubscribed", "channel": order.channel})
            else:
                await self._subscribe(order.channel, order.event_types)
        except OjsterError as error:
            await record_refusal(self._request, error, OPERATION, shown_object([order.channel or ""]), {})
            await self._send_error(error.code, self._request.shown(error).message, order.channel)

    async def _subscribe(self, name: str, types: list[str] | None) -> None:
        if len(self._channels) >= MAX_CHANNELS and name not in self._channels:
            raise InvalidRequest(f"A connection can follow at most {MAX_CHANNELS} channels. Unsubscribe from one.")
        await self._check(name)
        check_types_of_channel(types or (), name)
        async with self._sending:
            self._channels[name] = FollowedChannel(name, frozenset(types or ()), self._service.scope.tenant)
            # With the place, so that a client that loses the connection before its first event misses none.
            answer: dict[str, Any] = {"type": "subscribed", "channel": name, "last_event_id": number_to_id(self._after)}
            await self._write(answer if types is None else answer | {"event_types": types})

    async def _check(self, name: str) -> None:
        kind, _, rest = name.partition(":")
        if kind == "job" and rest:
            await self._service.jobs.find(rest)
        elif kind == "queue" and rest:
            await self._service.queues.statistics(check_queue_name(rest))
        elif name == ALL:
            self._service.scope.check_queue(None)
        else:
            raise NotFound(f"There is no channel {name[:80]!r}. Use job:ID, queue:NAME or all.")

    async def _resume(self, last_id: str) -> None:
        """Send again the events since an event, on the channels that are followed now."""
        number, present = id_to_number(last_id), await self._service.events.last()
        if number is None or number > present:
            await self._send_error("unknown_event_id", "Event ID not found in buffer. Perform a full state sync.")
            return
        await self._stop()
        self._after = number
        await self._send({"type": "resumed", "last_event_id": last_id, "channels": list(self._channels)})
        self._following = asyncio.create_task(self._follow(number))

    async def _follow(self, after: int) -> None:
        try:
            await self._tell_events(after)
        except WebSocketDisconnect:
            return
        except Exception as error:  # whatever it is, or the client would wait forever for events
            if not isinstance(error, OjsterError):
                log.exception("cannot tell a WebSocket client its events (request %s)", self._request.request_id)
            await self._socket.close(TRY_LATER, "The events cannot be read. Connect again, and resume.")

    async def _tell_events(self, after: int) -> None:
        async for piece in self._request.services.feed.follow(after, _IDLE_SECONDS):
            if not piece.is_whole:
                async with self._sending:
                    for channel in self._channels.values():
                        await self._tell(channel, gap(channel.name, piece.events[0][1][1] if piece.events else None))
            for number, event in piece.events:
                async with self._sending:  # a channel that begins meanwhile begins after this event
                    for channel in self._channels.values():
                        if (told := channel.tell(number, event)) is not None:
                            await self._tell(channel, told)
                    self._after = number
        await self._send({"type": "event", "event": "server.shutdown", "data": {"grace_period_ms": 5_000}})
        await self._socket.close(GOING_AWAY)

    async def _tell(self, channel: FollowedChannel, told: StreamEvent) -> None:
        message: dict[str, Any] = {"type": "event", "channel": channel.name, "event": told.name, "data": told.data}
        if told.id is not None:
            message |= {"id": told.id, "timestamp": format_timestamp(told.at)}
        await self._write(message)

    async def _send_error(self, code: str, message: str, channel: str | None = None) -> None:
        shown = {"type": "error", "code": code, "message": message}
        await self._send(shown if channel is None else shown | {"channel": channel})

    async def _send(self, message: dict[str, Any]) -> None:
        async with self._sending:
            await self._write(message)

    async def _write(self, message: dict[str, Any]) -> None:
        if self._socket.application_state is WebSocketState.CONNECTED:  # the server may stop in the middle of a command
            await self._socket.send_text(encode(message).decode())

    async def _stop(self) -> None:
        task, self._following = self._following, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
