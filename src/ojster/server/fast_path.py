"""uvicorn's HTTP protocol, with a fast path for small requests.

ASGI costs a small request about as much as its actual work: dictionaries for the scope and the messages, an event, two
writes. A request to a known path, with a body of known and moderate size and no special features, is therefore passed
directly to its endpoint. All other requests take uvicorn's normal path, with one write per turn of the event loop.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Iterable, Mapping
from http import HTTPStatus
from typing import Any, Final, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from ojster.core.errors import InvalidRequest
from ojster.core.ids import new_id
from ojster.server.answer import Answer, Header
from ojster.server.endpoint import COMMON_HEADERS, Endpoint, refuse
from ojster.server.known_heads import KnownHead, KnownHeads

log = logging.getLogger(__name__)

MAX_DIRECT_BODY_BYTES: Final = 65_536
"""Maximum size of a body on the fast path, in bytes. Larger bodies stream through uvicorn."""

MAX_HEAD_BYTES: Final = 65_536
"""Maximum size of a request head (target and headers), in bytes."""

HEAD_SECONDS: Final = 10.0
"""Time in which a client must send the head of a request: after it connects, and after its first byte, in seconds."""

SLOWEST_BODY: Final = 500
"""Rate at which a client must send the body of a request, in bytes per second."""

MAX_CONNECTIONS: Final = 10_000
"""Default maximum number of connections."""

_ONCE: Final = frozenset(
    {b"authorization", b"content-length", b"content-type", b"host", b"origin", b"ojs-version", b"x-ojs-tenant"}
)
"""Headers that a request must not have twice: a proxy and this server could follow different ones."""

_UPGRADE: Final = re.compile(rb"(?<=[^\r\n])\r\nUpgrade:[^\r\n]*", re.IGNORECASE)

_BEGINS_HTTP: Final = re.compile(rb"[\r\n]*[A-Z]{1,20}(?: |$)")
"""Matches the beginning of what may become a request; anything else is refused at once."""


class _Trailers(list[Header]):
    """The headers of a request after its body: they are not kept, since no endpoint reads them."""

    def append(self, _: Header) -> None:
        """Drop a header."""


_WEBSOCKET: Final = (b"GET /ojs/v1/ws ", b"GET /ojs/v1/ws?")
"""The first bytes of requests that may open a WebSocket."""

_STATUS_LINES: Final = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus}


_starts: dict[tuple[int, bytes], tuple[object, bytes]] = {}
"""The first lines of answers that are JSON, by status and media type, with the server's own headers in them."""


def _start_of(answer: Answer, default_headers: list[Header]) -> bytes:
    """Return the lines of an answer that are alike in all answers of its status and media type."""
    key = answer.status, answer.content_type
    known = _starts.get(key)
    if known is None or known[0] is not default_headers:  # uvicorn makes others each second
        headers = (*default_headers, *COMMON_HEADERS, (b"content-type", answer.content_type))
        lines = b"".join([b"%b: %b\r\n" % header for header in headers])
        known = default_headers, _STATUS_LINES[answer.status] + lines
        if answer.is_json:  # the types of other answers are their users'
            _starts[key] = known
    return known[1]


class _CorkedTransport:
    """A transport that collects the writes of one turn of the event loop and sends them together."""

    __slots__ = ("_loop", "_parts", "_transport")

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._parts: list[bytes] = []

    def write(self, data: bytes) -> None:
        if not self._parts:
            self._loop.call_soon(self._flush)
        self._parts.append(data)

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        parts, self._parts = self._parts, []
        if parts:
            self._transport.write(b"".join(parts))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class _Cycle:
    """A request answered without ASGI, with the attributes that uvicorn reads."""

    __slots__ = (
        "_body",
        "_gone",
        "_waiter",
        "disconnected",
        "keep_alive",
        "message_event",
        "response_complete",
        "task",
    )

    task: asyncio.Task[None]
    """The task that answers it."""

    def __init__(self) -> None:
        self.keep_alive = True
        self.disconnected = False
        self.response_complete = False
        self.message_event = self
        self._body: bytes | None = None
        self._gone = False
        self._waiter: asyncio.Future[None] | None = None

    def give(self, body: bytes) -> None:
        """Set the body that ``receive`` returns."""
        self._body = body

    async def receive(self) -> dict[str, Any]:
        """Return the whole body; on later calls, wait until the client disconnects."""
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        if not self._gone:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        return {"type": "http.disconnect"}

    def set(self) -> None:
        """Record that the connection is lost. uvicorn calls this."""
        self._gone = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class QuickHttpProtocol(HttpToolsProtocol):
    """uvicorn's HTTP/1.1 protocol on httptools, over a corked transport, with a fast path to an ``Application``."""

    _endpoint: Endpoint | None = None
    """The endpoint of the request being read, if it takes the fast path."""
    _head: list[Header]
    """The headers of the request being read, if it takes the fast path."""
    _parts: list[bytes]
    _query: bytes
    _is_reading = False
    """Whether a request has been received in part."""
    _held = b""
    """The first part of a request head that is not complete."""
    _last: InvalidRequest | None = None
    """What is wrong with the bytes after the last request, until that is answered."""
    _head_size = 0
    """Bytes received of the current request head; 0 if the head is complete."""
    _whole = b""
    """The bytes that were received together, if they may be one whole request."""
    _complaint: str | None = None
    """What is wrong with the current request head."""
    _received = 0
    """Bytes received since patience was last tried."""
    _beside_body = 0
    """Bytes received since the head, or since the last byte of the body: sizes of chunks, and trailers."""
    _patience: asyncio.TimerHandle | None = None
    """Ends the wait for the rest of a request."""
    _idle_since = 0.0
    """When the last request was answered, in seconds of the event loop's clock."""
    is_known = False
    """Whether a request has been answered without an error."""
    max_connections = MAX_CONNECTIONS

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin a connection."""
        super().connection_made(cast("asyncio.Transport", _CorkedTransport(transport, self.loop)))
        self._direct: Mapping[tuple[bytes, bytes], Endpoint] = getattr(self.app, "direct", {})
        self._heads = cast("KnownHeads", getattr(self.app, "known_heads", KnownHeads()))
        self._patience = self.loop.call_later(HEAD_SECONDS, self._lose_patience)
        if len(self.connections) > self.max_connections:
            make_room(self.connections, self)

    def connection_lost(self, exc: Exception | None) -> None:
        """End a connection."""
        self._stop_waiting()
        if self.timeout_keep_alive_task is not None:
            self.timeout_keep_alive_task.cancel()
        super().connection_lost(exc)

    @property
    def is_idle(self) -> bool:
        """Whether no request is being answered."""
        return self.cycle is None or self.cycle.response_complete

    def data_received(self, data: bytes) -> None:
        """Parse received bytes. Limit the head size and ignore upgrades to unsupported protocols."""
        if self._last is not None or self.transport.is_closing():
            return
        if not self._is_reading:
            if not self._held and self._is_known_request(data):
                return
            data = self._whole = self._held + data
            self._held = b""
            if b"\r\n\r\n" not in data and len(data) <= MAX_HEAD_BYTES and _BEGINS_HTTP.match(data):
                self._hold(data)
                return
            if len(data) > MAX_HEAD_BYTES and self.is_idle and data.find(b"\r\n\r\n", 0, MAX_HEAD_BYTES) < 0:
                self._refuse_head()
                return
        if not self._is_reading and b"pgrade:" in data[:MAX_HEAD_BYTES] and not self._may_upgrade(data):
            head, end, rest = data.partition(b"\r\n\r\n")
            data = _UPGRADE.sub(b"", head) + end + rest
            self._whole = b""
        self._beside_body += len(data)
        super().data_received(data)
        self._whole = b""
        self._received += len(data)
        if self._is_reading != (self._patience is not None):
            self._stop_waiting()
            if self._is_reading:
                self._received = 0
                self._patience = self.loop.call_later(HEAD_SECONDS, self._lose_patience)
        if self._is_reading:
            self._check_sizes(len(data))

    def _check_sizes(self, received: int) -> None:
        """Refuse a request whose head, or whatever is between the parts of its body, is too large."""
        if self._head_size:
            self._head_size += received
            if self._head_size > MAX_HEAD_BYTES:
                self._refuse_head()
        elif self._beside_body > MAX_HEAD_BYTES:
            if getattr(self.cycle, "response_started", False):
                self.transport.close()
            else:
                why = f"More than {MAX_HEAD_BYTES} bytes follow each other that are no body. Send fewer trailers."
                self._refuse(InvalidRequest(why), 431)

    def _refuse_head(self) -> None:
        self._refuse(InvalidRequest(f"The request head exceeds {MAX_HEAD_BYTES} bytes. Shorten it."), 431)

    def _is_known_request(self, data: bytes) -> bool:
        """Begin to answer a request whose head another had, byte by byte, and that came whole: it is not parsed again.

        Return whether it is one.
        """
        end = data.find(b"\r\n\r\n") + 4
        known = self._heads.get(data[:end])
        if known is None or len(data) != end + known.body_bytes or not self.is_idle:
            return False
        if self._patience is not None:
            self._stop_waiting()
        cycle = _Cycle()
        self.cycle = cast("Any", cycle)
        self._begin(known.endpoint, cycle, known.headers, known.query, data[end:])
        return True

    def _hold(self, received: bytes) -> None:
        """Hold back a part of a head until the rest of it comes, since an upgrade is looked for in the whole."""
        self._held = received
        if self._patience is None:
            self._patience = self.loop.call_later(HEAD_SECONDS, self._lose_patience)

    def handle_websocket_upgrade(self) -> None:
        """Leave the connection to the WebSocket protocol."""
        self._is_reading = False
        self._stop_waiting()
        super()._unset_keepalive_if_required()  # the timer of an earlier request would close what is idle no more
        super().handle_websocket_upgrade()
        protocol = self.transport.get_protocol()
        if not getattr(protocol, "handshake_initiated", True):  # it waits without end for a head that it can read
            self._refuse(InvalidRequest("This request cannot open a WebSocket. Send a GET without a body."), 400)

    def _stop_waiting(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

    def _lose_patience(self) -> None:
        """Close a connection whose client does not send the rest of a request."""
        self._patience = None
        if self.transport.is_closing():
            return
        if not (self._is_reading or self._held) or getattr(self.cycle, "response_started", False):
            self.transport.close()  # it has sent nothing, or has its answer already
        elif (
            self._head_size
            or self._held
            or (self._received < HEAD_SECONDS * SLOWEST_BODY and not self.flow.read_paused)
        ):
            what = "head" if self._head_size or self._held else "body"
            self._refuse(InvalidRequest(f"The request {what} came too slowly. Send it again, faster."), 408)
        else:
            self._received = 0
            self._patience = self.loop.call_later(HEAD_SECONDS, self._lose_patience)

    def _may_upgrade(self, received: bytes) -> bool:
        return self.ws_protocol_class is not None and received.startswith(_WEBSOCKET)

    def on_message_begin(self) -> None:
        """Begin a request."""
        self._is_reading = True
        self._head_size = 1
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Choose the fast path or uvicorn's path for a request."""
        self._check_single()
        if self.parser.should_upgrade() and not self._should_upgrade():  # the parser would drop all that follows
            self._complaint = "The server does not speak the protocol in 'Upgrade'. Leave the header out."
            raise ValueError(self._complaint)
        path, _, self._query = self.url.partition(b"?")
        endpoint = self._direct.get((self.parser.get_method(), path))
        if endpoint is None or not self._is_plain(endpoint):
            self._endpoint = None
            super().on_headers_complete()
        else:
            self._endpoint = endpoint
            self._head = self.headers
            self._parts = []
            self.cycle = cast("Any", _Cycle())
        self._head_size = self._beside_body = 0
        if not self.parser.should_upgrade():
            self.headers = _Trailers()

    def _check_single(self) -> None:
        single = [name for name, _ in self.headers if name in _ONCE]
        if len(single) != len(set(single)):
            twice = next(name for name in single if single.count(name) > 1).decode()
            self._complaint = f"The header {twice!r} occurs twice. Send it once."
            raise ValueError(self._complaint)  # the parser stops, and uvicorn calls ``send_400_response``

    def on_body(self, body: bytes) -> None:
        """Collect a chunk of the body."""
        self._beside_body = 0
        if self._endpoint is not None:
            self._parts.append(body)
        else:
            super().on_body(body)

    def on_message_complete(self) -> None:
        """Answer a complete request."""
        self._is_reading = False
        endpoint, self._endpoint = self._endpoint, None
        if endpoint is None:
            super().on_message_complete()
            return
        cycle = cast("_Cycle", self.cycle)
        cycle.keep_alive = cycle.keep_alive and self.parser.should_keep_alive()
        body = b"".join(self._parts)
        if self._whole and cycle.keep_alive:
            self._heads.remember(self._whole, body, KnownHead(endpoint, self._head, self._query, len(body)))
        self._begin(endpoint, cycle, self._head, self._query, body)

    def _begin(self, endpoint: Endpoint, cycle: _Cycle, headers: list[Header], query: bytes, body: bytes) -> None:
        cycle.give(body)
        cycle.task = self.loop.create_task(self._answer(endpoint, cycle, headers, query, body))
        self.tasks.add(cycle.task)

    def _is_plain(self, endpoint: Endpoint) -> bool:
        """Whether the current request can take the fast path."""
        if self.cycle is not None and not self.cycle.response_complete:
            return False  # pipelined behind another request
        if b"#" in self._query:
            return False
        if self.expect_100_continue or self.parser.should_upgrade() or self.parser.get_http_version() != "1.1":
            return False
        for name, value in self.headers:
            if name == b"content-length":
                return (
                    value.isdigit()
                    and len(value) < 10
                    and int(value) <= min(MAX_DIRECT_BODY_BYTES, endpoint.max_body_bytes)
                )
            if name == b"transfer-encoding":
                return False
        return True

    async def _answer(
        self, endpoint: Endpoint, cycle: _Cycle, headers: list[Header], query: bytes, body: bytes
    ) -> None:
        try:
            request = endpoint.request_of(headers, query, {}, cycle.receive)
            request.sent = body
            request.address = self.client[0] if self.client else ""
            answer = await endpoint.answer(request)
            if self.flow.write_paused:
                await self.flow.drain()
            self.is_known = self.is_known or answer.status < 400
            if not cycle.disconnected:
                self._write(answer, request.request_id, cycle.keep_alive)
        except Exception:
            log.exception("cannot answer a request")
            self.transport.close()
        finally:
            self.tasks.discard(cycle.task)
        cycle.response_complete = True
        self.on_response_complete()

    def _write(self, answer: Answer, request_id: str, keep_alive: bool) -> None:
        lines = [_start_of(answer, self.server_state.default_headers)]
        lines += [b"%b: %b\r\n" % header for header in answer.own_headers(request_id)]
        lines += (b"\r\n" if keep_alive else b"connection: close\r\n\r\n", answer.body)
        self.transport.write(b"".join(lines))
        if not keep_alive:
            self.transport.close()

    def send_400_response(self, msg: str) -> None:
        """Reject malformed HTTP with the usual error body, after the answers to the requests before it."""
        refusal = InvalidRequest(self._complaint or msg)
        is_in_a_body = self._is_reading and not self._head_size
        if is_in_a_body and getattr(self.cycle, "response_started", False):
            self.transport.close()  # the request has its answer already
        elif self.is_idle or is_in_a_body:
            self._refuse(refusal, 400)
        else:
            self._last = refusal
            self.flow.pause_reading()

    def _unset_keepalive_if_required(self) -> None:
        """Let the timer run, which looks when it ends whether the connection was idle: others cost each request one."""

    def timeout_keep_alive_handler(self) -> None:
        """Close the connection if it has been idle for long enough."""
        self.timeout_keep_alive_task = None
        if not self.is_idle or self._is_reading or self._held:
            return
        left = self._idle_since + self.timeout_keep_alive - self.loop.time()
        if left > 0:
            self.timeout_keep_alive_task = self.loop.call_later(left, self.timeout_keep_alive_handler)
        else:
            super().timeout_keep_alive_handler()

    def on_response_complete(self) -> None:
        """Go on with the next request, reject what followed the last one, or wait for a while."""
        self._idle_since = self.loop.time()
        if self._last is None and self.timeout_keep_alive_task is not None and not self.pipeline:
            self.server_state.total_requests += 1
            if self.flow.read_paused and not self.transport.is_closing():
                self.flow.resume_reading()
        elif self._last is None or self.pipeline:
            super().on_response_complete()
        elif not self.transport.is_closing():
            self._refuse(self._last, 400)

    def _refuse(self, error: InvalidRequest, status: int) -> None:
        request_id = new_id()
        answer = refuse(error, request_id)
        answer.status = status
        self._write(answer, request_id, keep_alive=False)


_LOG_SECONDS: Final = 10.0
"""Minimum time between two log entries about too many connections, in seconds."""

_last_logged = float("-inf")


def make_room(connections: Iterable[Any], newest: QuickHttpProtocol) -> None:
    """Close an idle connection whose client has not called with success yet; the newest one if there is no other.

    So callers with a token keep theirs while others open as many as they can.
    """
    global _last_logged
    if newest.loop.time() - _last_logged > _LOG_SECONDS:
        _last_logged = newest.loop.time()
        most = newest.max_connections
        log.warning("there are more than %d connections (--max-connections); idle ones are closed", most)
    for other in connections:
        is_candidate = isinstance(other, QuickHttpProtocol) and other is not newest
        if is_candidate and other.is_idle and not other.is_known and not other.transport.is_closing():
            other.transport.close()
            return
    newest.transport.close()
