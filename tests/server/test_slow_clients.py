"""Clients that send slowly or not at all, and more connections than a server takes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from ojster.server import fast_path as protocol
from ojster.server.fast_path import QuickHttpProtocol
from ojster.service import Service
from tests.serving import serving
from tests.waiting import PATIENCE

pytestmark = pytest.mark.anyio

HEAD = b"POST /ojs/v1/jobs HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
JOB = b'{"type":"a","args":[]}'


@pytest.fixture
async def port(service: Service, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[int]:
    monkeypatch.setattr(protocol, "HEAD_SECONDS", 0.3)
    async with serving(service) as (_, number):
        yield number


class Client:
    """A connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def connected(cls, port: int, *pieces: bytes) -> Client:
        made = cls(*await asyncio.open_connection("127.0.0.1", port))
        for piece in pieces:
            made.writer.write(piece)
        return made

    async def rest(self) -> bytes:
        """Return what the server sends until it closes the connection."""
        try:
            async with asyncio.timeout(PATIENCE):
                return await self.reader.read()
        except ConnectionError:
            return b""
        finally:
            self.writer.close()

    async def call(self) -> bytes:
        """Make a request, and return its answer's head."""
        self.writer.write(HEAD % len(JOB) + JOB)
        async with asyncio.timeout(PATIENCE):
            head = await self.reader.readuntil(b"\r\n\r\n")
            size = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            await self.reader.readexactly(size)
        return head


@pytest.mark.parametrize(
    ("pieces", "answer"),
    [
        ((), b""),
        ((b"POST /ojs/v1/jobs HTTP/1.1\r\nHo",), b"408"),
        ((HEAD % 100, b'{"type"'), b"408"),
        ((HEAD % 500_000, b'{"type"'), b"408"),  # a body that streams through ASGI
        ((HEAD % len(JOB) + JOB, b"GET /ojs"), b"408"),
    ],
    ids=["nothing", "head", "body", "large body", "second head"],
)
async def test_a_client_that_does_not_go_on_is_disconnected(
    port: int, pieces: tuple[bytes, ...], answer: bytes
) -> None:
    received = await (await Client.connected(port, *pieces)).rest()
    assert received.count(answer) if answer else received == b""
    assert b"too slowly" in received or not answer


async def test_a_client_that_sends_drops_is_disconnected(port: int) -> None:
    client = await Client.connected(port, HEAD % 1_000)
    ended = asyncio.create_task(client.rest())
    while not ended.done():
        client.writer.write(b" ")
        await asyncio.sleep(0.02)
    rest = await ended
    assert not rest or b"408" in rest  # what is written after the server's last word may discard that word


async def test_a_slow_client_that_goes_on_is_served(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "SLOWEST_BODY", 10)
    client = await Client.connected(port, HEAD % (60 + len(JOB)))
    for _ in range(20):  # longer than the patience
        client.writer.write(b"   ")
        await asyncio.sleep(0.05)
    client.writer.write(JOB)
    assert b"201" in await client.reader.readuntil(b"\r\n\r\n")
    client.writer.close()


async def test_an_answered_connection_stays_open(port: int) -> None:
    client = await Client.connected(port)
    assert b"201" in await client.call()
    await asyncio.sleep(0.5)
    assert b"201" in await client.call()
    client.writer.close()


async def test_a_connection_is_closed_when_it_has_been_idle_for_long_enough(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[QuickHttpProtocol] = []
    begin = QuickHttpProtocol.connection_made

    def connection_made(self: QuickHttpProtocol, transport: asyncio.Transport) -> None:
        made.append(self)
        begin(self, transport)

    monkeypatch.setattr(QuickHttpProtocol, "connection_made", connection_made)
    async with serving(service) as (_, port):
        client = await Client.connected(port)
        await client.call()
        (connection,) = made
        connection.timeout_keep_alive_handler()  # too early
        assert b"201" in await client.call()
        connection._idle_since -= connection.timeout_keep_alive + 1
        connection.timeout_keep_alive_handler()
        assert await client.rest() == b""


async def test_no_timer_closes_a_connection_that_has_become_a_websocket(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    upgraded: list[QuickHttpProtocol] = []
    upgrade = QuickHttpProtocol.handle_websocket_upgrade

    def handle(self: QuickHttpProtocol) -> None:
        upgraded.append(self)
        upgrade(self)

    monkeypatch.setattr(QuickHttpProtocol, "handle_websocket_upgrade", handle)
    async with serving(service) as (_, port):
        client = await Client.connected(port)
        await client.call()
        asked = [b"GET /ojs/v1/ws HTTP/1.1", b"Host: localhost", b"Connection: Upgrade", b"Upgrade: websocket"]
        asked += [b"Sec-WebSocket-Version: 13", b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==", b"", b""]
        client.writer.write(b"\r\n".join(asked))
        async with asyncio.timeout(PATIENCE):
            assert b"101" in await client.reader.readline()
        assert [connection.timeout_keep_alive_task for connection in upgraded] == [None]
        client.writer.close()


async def test_idle_strangers_make_room_for_new_connections(
    service: Service, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(QuickHttpProtocol, "max_connections", 5)
    monkeypatch.setattr(protocol, "_last_logged", float("-inf"))
    async with serving(service) as (_, port):
        known = await Client.connected(port)
        assert b"201" in await known.call()
        strangers = [await Client.connected(port) for _ in range(20)]
        late = await Client.connected(port)
        assert b"201" in await late.call()
        assert b"201" in await known.call()
        async with asyncio.timeout(PATIENCE):
            while sum(stranger.reader.at_eof() for stranger in strangers) < 17:
                await asyncio.sleep(0.01)
        for client in (known, late, *strangers):
            client.writer.close()
    assert [record.message for record in caplog.records if "more than 5 connections" in record.message]


async def test_known_clients_keep_their_connections_when_there_is_no_room(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(QuickHttpProtocol, "max_connections", 3)
    async with serving(service) as (_, port):
        known = [await Client.connected(port) for _ in range(3)]
        for client in known:
            assert b"201" in await client.call()
        assert await (await Client.connected(port)).rest() == b""
        for client in known:
            assert b"201" in await client.call()
            client.writer.close()
