"""Connections under test: bytes for the HTTP protocol, whole and in pieces, and messages for a WebSocket."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import random
from collections.abc import Iterator
from functools import cache
from typing import Any, Final, cast

import httptools
import uvicorn
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocketDisconnect, WebSocketState
from uvicorn.server import ServerState

from ojster.capabilities import all_extensions
from ojster.jobs.extension import install
from ojster.server.answer import Answer, encode
from ojster.server.delivery.webhook import WebhookSender
from ojster.server.endpoint import Endpoint
from ojster.server.event_streams import Feed
from ojster.server.fast_path import QuickHttpProtocol
from ojster.server.metrics import Metrics
from ojster.server.paths import with_encoded_slashes
from ojster.server.request import HttpRequest, Services
from ojster.server.route import Route
from ojster.server.websocket import _Connection
from ojster.service import Service
from ojster.storage.open import open_database
from tests.fuzz.targets import RuleBroken, need, text_of

MAX_TURNS: Final = 2_000
"""Maximum number of turns of the event loop in which a connection may answer what it has received."""

LARGEST_BODY: Final = 100_000


@cache
def _loop() -> asyncio.AbstractEventLoop:
    return asyncio.new_event_loop()


# HTTP


class _Transport(asyncio.Transport):
    """A transport that collects what is written."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 2)})
        self.written = b""
        self._closing = False
        self._protocol: Any = None

    def write(self, data: Any) -> None:
        if not self._closing:
            self.written += bytes(data)

    def close(self) -> None:
        self._closing = True

    def abort(self) -> None:
        self._closing = True

    def is_closing(self) -> bool:
        return self._closing

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def get_protocol(self) -> Any:
        return self._protocol

    def set_protocol(self, protocol: Any) -> None:
        self._protocol = protocol


async def _echo(request: HttpRequest) -> Answer:
    """Answer with a hash of the request's body."""
    body = await request.body(may_be_missing=True)
    return Answer(encode({"size": len(body), "body": hashlib.sha256(body).hexdigest()[:8]}))


class _App:
    """An application all of whose endpoints answer alike."""

    def __init__(self) -> None:
        services = Services(WebhookSender(), cast("Feed", None))
        route = Route("POST", "/", _echo, "Tests", is_public=True)
        self._endpoint = Endpoint(route, _echo, cast("Service", None), Metrics(()), LARGEST_BODY, services)
        paths = ((b"POST", b"/ojs/v1/jobs"), (b"GET", b"/health"), (b"GET", b"/ready"))
        self.direct = dict.fromkeys(paths, self._endpoint)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._endpoint(with_encoded_slashes(scope), receive, send)
        elif scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1000})


@cache
def _config() -> uvicorn.Config:
    config = uvicorn.Config(
        cast("Any", _App()), http=QuickHttpProtocol, ws="websockets-sansio", lifespan="off", log_config=None
    )
    config.load()
    return config


def feed_connection(data: bytes) -> None:
    """Send bytes to the HTTP protocol at once and in pieces: the answers must be valid HTTP, and the same."""
    whole = _loop().run_until_complete(_answers_to([data]))
    rng = random.Random(data)
    for _ in range(2):
        pieces = list(_cut(data, rng))
        cut = _loop().run_until_complete(_answers_to(pieces))
        same = _decided(whole, data) == _decided(cut, data)
        need(same, f"the same answers however it is cut: {whole} and {cut} for {[len(one) for one in pieces]}")


def _decided(answers: list[tuple[int, bytes]], data: bytes) -> list[tuple[int, bytes]]:
    """Return the answers without the refusal of a head that is not complete, which may come when time is up."""
    return answers[:-1] if answers and answers[-1][0] == 400 and not data.endswith(b"\r\n\r\n") else answers


def _cut(data: bytes, rng: random.Random) -> Iterator[bytes]:
    """Yield pieces of some bytes: some of one byte, some long ones."""
    place = 0
    while place < len(data):
        size = rng.choice((1, 1, 3, 10, 50, len(data)))
        yield data[place : place + size]
        place += size


async def _answers_to(pieces: list[bytes]) -> list[tuple[int, bytes]]:
    """Return the status and the body of each answer to some bytes, without interim answers."""
    errors: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: errors.append(context))
    transport, state = _Transport(), ServerState()
    protocol: Any = QuickHttpProtocol(config=_config(), server_state=state, app_state={}, _loop=loop)
    transport.set_protocol(protocol)
    protocol.connection_made(transport)
    for piece in pieces:
        if transport.is_closing():
            break
        transport.get_protocol().data_received(piece)
        await asyncio.sleep(0)
    await _settle(state)
    transport.get_protocol().connection_lost(None)
    await _settle(state)
    for task in list(state.tasks):  # they wait for the rest of a body
        task.cancel()
    await asyncio.sleep(0)
    for context in errors:
        if (error := context.get("exception")) is not None:
            raise error
    return _parsed(transport.written)


async def _settle(state: ServerState) -> None:
    for _ in range(MAX_TURNS):
        await asyncio.sleep(0)
        if not state.tasks:
            break
    await asyncio.sleep(0)


class _Answers:
    """The answers on a connection, as the parser finds them."""

    def __init__(self) -> None:
        self.found: list[tuple[int, bytes]] = []
        self.parser: Any = httptools.HttpResponseParser(self)
        self._body = b""

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        status = self.parser.get_status_code()
        if status >= 200:
            self.found.append((status, self._body if status == 200 else b""))
        self._body = b""


def _parsed(written: bytes) -> list[tuple[int, bytes]]:
    answers = _Answers()
    with contextlib.suppress(httptools.HttpParserUpgrade):
        try:
            answers.parser.feed_data(written)
        except httptools.HttpParserError as error:
            raise RuleBroken(f"answers are valid HTTP: {error} in {written[:300]!r}") from None
    return answers.found


# WebSocket


@cache
def _service() -> Service:
    database = open_database("sqlite:///:memory:")
    install(database.memory, all_extensions())
    database.records_events = True
    return Service(database)


class _Socket:
    """A WebSocket whose client sends some messages and disconnects."""

    def __init__(self, messages: list[bytes]) -> None:
        self.scope = {"subprotocols": ["ojs.v1"]}
        self.application_state = WebSocketState.CONNECTED
        self.sent: list[str] = []
        self._messages = messages[::-1]

    async def accept(self, subprotocol: str | None) -> None: ...

    async def receive(self) -> dict[str, Any]:
        if not self._messages:
            return {"type": "websocket.disconnect"}
        message = self._messages.pop()
        try:
            return {"type": "websocket.receive", "text": message.decode()}
        except UnicodeDecodeError:
            return {"type": "websocket.receive", "bytes": message}

    async def send_text(self, text: str) -> None:
        self.sent.append(text)

    async def close(self, code: int = 1000, reason: str = "") -> None: ...


def feed_socket(data: bytes) -> None:
    """Send messages to a WebSocket, a line each: every one of them is answered."""
    messages = data.split(b"\n")[:20]
    socket = _Socket(messages)
    _loop().run_until_complete(_serve(socket))
    need(len(socket.sent) >= len(messages), f"an answer to each message: {socket.sent} for {text_of(data)!r:.200}")


async def _serve(socket: _Socket) -> None:
    service = _service()
    request = HttpRequest(
        service, 0, [], b"", {}, cast("Any", socket).receive, Services(WebhookSender(), Feed(service))
    )
    with contextlib.suppress(WebSocketDisconnect):
        await _Connection(cast("Any", socket), request).serve()
