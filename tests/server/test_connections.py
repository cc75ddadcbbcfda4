"""A real server on a socket: clients that disconnect, and bytes that are not HTTP."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import pytest

from ojster.jobs.claim_policy import Claim
from ojster.server.fast_path import MAX_HEAD_BYTES
from ojster.service import Service
from tests.conftest import request
from tests.serving import serving
from tests.waiting import LONG_WAIT, PATIENCE

pytestmark = pytest.mark.anyio


@pytest.fixture
async def port(service: Service) -> AsyncIterator[int]:
    async with serving(service) as (_, number):
        yield number


def fetch_of(queue: str) -> bytes:
    body = json.dumps({"queues": [queue], "wait_ms": 60_000}).encode()
    return b"POST /ojs/v1/workers/fetch HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)


async def test_a_caller_that_hung_up_is_given_no_job(service: Service, port: int) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(fetch_of("default"))
    await asyncio.sleep(0.05)
    writer.close()
    await writer.wait_closed()
    await service.jobs.enqueue([request()])
    assert len(await service.jobs.fetch(Claim(("default",)), wait=LONG_WAIT)) == 1


async def test_a_caller_that_hangs_up_while_a_job_arrives_loses_it_to_the_next(service: Service, port: int) -> None:
    """Push and disconnect at the same time: in either order, the job is not lost."""
    for number in range(30):
        queue = f"q{number}"
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(fetch_of(queue))
        await asyncio.sleep(0.01)
        pushing = asyncio.ensure_future(service.jobs.enqueue([request(queue=queue)]))
        writer.close()
        await asyncio.gather(pushing, writer.wait_closed())
        (job,) = await service.jobs.fetch(Claim((queue,)), wait=LONG_WAIT)
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


def push_of(body: bytes, *headers: bytes, version: bytes = b"1.1") -> bytes:
    lines = [b"POST /ojs/v1/jobs HTTP/" + version, b"Host: x", *headers]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


async def answers_of(reader: asyncio.StreamReader, count: int) -> list[tuple[int, dict[str, str], bytes]]:
    """Read `count` responses, each with a ``Content-Length`` header."""
    found = []
    for _ in range(count):
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:] if line)}
        found.append((int(head[0].split()[1]), headers, await reader.readexactly(int(headers["content-length"]))))
    return found


BODY = b'{"type":"a","args":[]}'
LENGTH = b"Content-Length: %d" % len(BODY)


@pytest.mark.parametrize(
    "headers",
    [
        [LENGTH],
        [b"Expect: 100-continue", LENGTH],
        [b"Transfer-Encoding: chunked"],
        [LENGTH, b"Connection: close"],
        [LENGTH, b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c", b"HTTP2-Settings: AAMAAABkAAQAAP__"],
    ],
)
async def test_every_way_of_asking_is_answered_alike(port: int, headers: list[bytes]) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    chunked = any(b"chunked" in header for header in headers)
    body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY) if chunked else BODY
    writer.write(push_of(body, *headers))
    if any(b"100-continue" in header for header in headers):
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100")
    ((status, answered, content),) = await answers_of(reader, 1)
    assert (status, json.loads(content)["job"]["type"]) == (201, "a")
    assert answered["content-type"] == "application/openjobspec+json"
    assert answered["ojs-version"] == "1.0"
    assert {"date", "x-request-id", "location"} <= answered.keys()
    if b"Connection: close" in headers:
        assert answered["connection"] == "close"
        assert await reader.read() == b""
    writer.close()
    await writer.wait_closed()


async def test_requests_that_are_sent_together_are_answered_in_their_order(port: int, service: Service) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    bodies = [b'{"type":"t%d","args":[]}' % number for number in range(20)]
    writer.write(b"".join(push_of(body, b"Content-Length: %d" % len(body)) for body in bodies))
    answers = await answers_of(reader, 20)
    assert [json.loads(content)["job"]["type"] for _, _, content in answers] == [f"t{n}" for n in range(20)]
    writer.close()
    await writer.wait_closed()


async def test_a_request_may_come_byte_by_byte(port: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for _ in range(2):
        for byte in push_of(BODY, LENGTH, b"X-Request-Id: mine"):
            writer.write(bytes([byte]))
            await asyncio.sleep(0)
        ((status, headers, _),) = await answers_of(reader, 1)
        assert (status, headers["x-request-id"]) == (201, "mine")
    writer.close()
    await writer.wait_closed()


async def test_a_query_reaches_the_endpoint(port: int, service: Service) -> None:
    await service.jobs.enqueue([request(queue="q"), request(queue="other")])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /ojs/v1/jobs?queue=q HTTP/1.1\r\nHost: x\r\n\r\n")
    ((status, _, content),) = await answers_of(reader, 1)
    assert (status, len(json.loads(content)["jobs"])) == (200, 1)
    writer.close()
    await writer.wait_closed()


async def test_a_large_head_is_refused_also_when_it_comes_at_once(port: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /ojs/v1/health HTTP/1.1\r\nHost: x\r\nA: " + b"a" * MAX_HEAD_BYTES + b"\r\n\r\n")
    async with asyncio.timeout(PATIENCE):
        ((status, _, _),) = await answers_of(reader, 1)
    assert status == 431
    writer.close()


async def test_a_head_without_end_is_refused(port: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /ojs/v1/health HTTP/1.1\r\nHost: x\r\n")
    for _ in range(70):
        writer.write(b"x-filler: " + b"y" * 1000 + b"\r\n")
    ((status, _, content),) = await answers_of(reader, 1)
    assert status == 431
    assert "65536 bytes" in json.loads(content)["error"]["message"]
    writer.close()


@pytest.mark.parametrize("trailers", [b"A: b\r\n" * 20_000, b"A: " + b"b" * 100_000], ids=["many", "long"])
async def test_trailers_without_end_are_refused(port: int, trailers: bytes) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(push_of(b"", b"Transfer-Encoding: chunked", b"Expect: 100-continue"))
    async with asyncio.timeout(PATIENCE):
        assert b"100 Continue" in await reader.readuntil(b"\r\n\r\n")
        writer.write((b"0\r\n" + trailers)[: MAX_HEAD_BYTES + 1])
        ((status, _, content),) = await answers_of(reader, 1)
    assert status == 431
    assert b"trailers" in content
    writer.close()


async def test_a_body_may_come_in_small_chunks_with_trailers(port: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    args = b'{"type":"a","args":["' + b"x" * 30_000 + b'"]}'
    chunks = b"".join(b"1;extension=%d\r\n%c\r\n" % (place, byte) for place, byte in enumerate(args))
    writer.write(push_of(chunks + b"0\r\nA: b\r\n\r\n", b"Transfer-Encoding: chunked"))
    async with asyncio.timeout(PATIENCE):
        ((status, _, content),) = await answers_of(reader, 1)
    assert status == 201, content
    writer.close()
    await writer.wait_closed()


async def test_an_encoded_slash_makes_another_path(port: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for path, status in ((b"/ojs/v1/jobs", 200), (b"/ojs%2Fv1/jobs", 404), (b"/ojs/v1%2fadmin/tokens", 404)):
        writer.write(b"GET %b HTTP/1.1\r\nHost: x\r\n\r\n" % path)
        async with asyncio.timeout(PATIENCE):
            ((answered, _, content),) = await answers_of(reader, 1)
        assert answered == status, content
    writer.close()
    await writer.wait_closed()


async def test_a_request_that_is_half_sent_when_the_server_stops_is_answered(service: Service) -> None:
    async with serving(service) as (server, number):
        reader, writer = await asyncio.open_connection("127.0.0.1", number)
        sent = push_of(BODY, LENGTH)
        writer.write(sent[:-5])
        await asyncio.sleep(0.1)
        server.should_exit = True
        await asyncio.sleep(0.3)
        writer.write(sent[-5:])
        ((status, headers, _),) = await answers_of(reader, 1)
        assert (status, headers["connection"]) == (201, "close")
        writer.close()
