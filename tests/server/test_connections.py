"""A real server on a socket: callers that hang up, and bytes that are no HTTP."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import pytest
import uvicorn

from ojster.engine.claim import Claim
from ojster.engine.engine import Engine
from ojster.server.app import Application
from ojster.server.protocol import CorkedHttpProtocol
from tests.conftest import request

pytestmark = pytest.mark.anyio


@pytest.fixture
async def port(engine: Engine) -> AsyncIterator[int]:
    config = uvicorn.Config(Application(engine), port=0, log_level="error", http=CorkedHttpProtocol, lifespan="off")
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.005)
    yield server.servers[0].sockets[0].getsockname()[1]
    engine.drain()
    server.should_exit = True
    await serving


def fetch_of(queue: str) -> bytes:
    body = json.dumps({"queues": [queue], "wait_ms": 20_000}).encode()
    return b"POST /ojs/v1/workers/fetch HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)


async def test_a_caller_that_hung_up_is_given_no_job(engine: Engine, port: int) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(fetch_of("default"))
    await asyncio.sleep(0.05)
    writer.close()
    await writer.wait_closed()
    await engine.enqueue([request()])
    assert len(await engine.fetch(Claim(("default",)), wait=5)) == 1


async def test_a_caller_that_hangs_up_while_a_job_arrives_loses_it_to_the_next(engine: Engine, port: int) -> None:
    """The push and the end of the connection are under way at once: whoever comes first, the job is not lost."""
    for number in range(30):
        queue = f"q{number}"
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(fetch_of(queue))
        await asyncio.sleep(0.01)
        pushing = asyncio.ensure_future(engine.enqueue([request(queue=queue)]))
        writer.close()
        await asyncio.gather(pushing, writer.wait_closed())
        (job,) = await engine.fetch(Claim((queue,)), wait=5)
        assert job.attempt == 1


async def test_what_is_no_http_is_refused_like_everything_else(port: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"HELLO\r\n\r\n")
    head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400")
    assert b"ojs-version: 1.0" in head
    assert json.loads(body)["error"]["code"] == "invalid_request"
    writer.close()
    await writer.wait_closed()
