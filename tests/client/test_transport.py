"""The connections of a client to a real server."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import AsyncIterator

import pytest
from aiohttp import ClientConnectionError, ClientConnectionResetError, client_reqrep, web
from aiohttp.http import StreamWriter

from ojster.client import transport
from ojster.client.client import HttpClient
from ojster.client.transport import Transport
from ojster.core.errors import OjsterError
from tests.waiting import LONG_WAIT, PATIENCE

pytestmark = pytest.mark.anyio


class Server:
    """A server whose answers a test decides."""

    def __init__(self) -> None:
        self.requests: list[web.Request] = []
        self.let_go = asyncio.Event()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Answer, or wait for ``let_go`` if the query asks for it."""
        self.requests.append(request)
        if request.path == "/slow":
            slow = web.StreamResponse()
            await slow.prepare(request)
            for _ in range(10):
                await slow.write(b".")
                await asyncio.sleep(0.25)
            return slow
        if "wait_ms" in request.query:
            await self.let_go.wait()
        if request.path.endswith("/moved"):
            return web.Response(status=302, headers={"Location": "/ojs/v1/elsewhere"}, text="{}")
        answer = web.Response(text='{"queues": []}', content_type="application/json")
        answer.enable_compression()
        return answer


@pytest.fixture
async def server() -> AsyncIterator[tuple[Server, str]]:
    made = Server()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", made.answer)
    runner = web.AppRunner(app, shutdown_timeout=1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    yield made, f"http://127.0.0.1:{runner.addresses[0][1]}"
    made.let_go.set()
    await runner.cleanup()


async def test_long_polls_keep_no_other_request_waiting(
    server: tuple[Server, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "MAX_CONNECTIONS", 2)
    made, url = server
    client = HttpClient(url)
    polls = [asyncio.ensure_future(client._connection.request("GET", "/x?wait_ms=1", wait=LONG_WAIT)) for _ in range(3)]
    while len(made.requests) < 2:
        await asyncio.sleep(0)
    await asyncio.wait_for(client._connection.request("GET", "/queues"), PATIENCE)
    made.let_go.set()
    await asyncio.gather(*polls)
    await client.close()


async def test_compressed_answers_are_read(server: tuple[Server, str]) -> None:
    made, url = server
    connections = Transport(url, {"Accept-Encoding": "gzip"})
    assert (await connections.send("GET", "/ojs/v1/queues")).content == b'{"queues": []}'
    assert made.requests[0].headers["Accept-Encoding"] == "gzip"
    await connections.close()


async def test_paths_are_sent_as_they_are_encoded(server: tuple[Server, str]) -> None:
    made, url = server
    connections = Transport(url, {})
    await connections.send("GET", "/ojs/v1/queues/a%2Fb?c=d%20e%2B")
    assert made.requests[0].raw_path == "/ojs/v1/queues/a%2Fb?c=d%20e%2B"
    await connections.close()


async def test_an_answer_may_come_slowly_as_long_as_it_comes(server: tuple[Server, str]) -> None:
    _, url = server
    connections = Transport(url, {})
    assert (await connections.send("GET", "/slow", patience=2)).content == b"." * 10
    await connections.close()


async def test_a_redirection_is_no_answer(server: tuple[Server, str]) -> None:
    made, url = server
    client = HttpClient(url)
    with pytest.raises(OjsterError):
        await client._connection.request("GET", "/moved")
    assert [request.path for request in made.requests] == ["/ojs/v1/moved"], "nobody was sent elsewhere with a token"
    await client.close()


async def test_a_request_fails_if_its_connection_is_lost_before_the_end_of_its_body(
    server: tuple[Server, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task of aiohttp's whose error nobody takes would fail this test."""
    _, url = server

    async def body() -> AsyncIterator[bytes]:
        yield b"."

    class Lost(StreamWriter):
        async def write_eof(self, chunk: bytes = b"") -> None:
            raise ClientConnectionResetError("Cannot write to closing transport")

    monkeypatch.setattr(client_reqrep, "StreamWriter", Lost)
    connections = Transport(url, {})
    with pytest.raises(ClientConnectionError):
        await connections.send("PUT", "/", body())
    gc.collect()
    await connections.close()


async def test_a_client_that_is_not_closed_ends_without_a_word(
    server: tuple[Server, str], caplog: pytest.LogCaptureFixture, recwarn: pytest.WarningsRecorder
) -> None:
    _, url = server
    client = HttpClient(url)
    with caplog.at_level(logging.DEBUG, "asyncio"):
        await client._connection.request("GET", "/queues")
        del client
        gc.collect()
        await asyncio.sleep(0)
    assert not [record for record in caplog.records if "nclosed" in record.getMessage()]
    assert not [warning for warning in recwarn if "nclosed" in str(warning.message)]
