"""Requests whose head the server has read before: they are answered as if it were read again."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Sequence
from typing import Any

import pytest

from ojster.core.settings import ServiceSettings
from ojster.server import known_heads
from ojster.server.application import Application
from ojster.server.endpoint import Endpoint
from ojster.server.known_heads import KnownHead, KnownHeads
from ojster.service import Service
from ojster.storage.open import open_database
from tests.amount import cases
from tests.serving import serving
from tests.waiting import LONG_WAIT

pytestmark = pytest.mark.anyio

PLAIN = (b"Host: x", b"Content-Type: application/json")


def request(path: bytes, body: bytes, *headers: bytes) -> bytes:
    head = [b"POST /ojs/v1/%b HTTP/1.1" % path, *PLAIN, *headers, b"Content-Length: %d" % len(body)]
    return b"\r\n".join(head) + b"\r\n\r\n" + body


REQUESTS = [
    *(request(b"jobs", b'{"type":"%b","args":[%d]}' % (type, n)) for type in (b"a", b"b") for n in range(3)),
    request(b"jobs", b'{"type":"a","args":[1}}'),
    request(b"jobs", b'{"type":"a","arg5":[1]}'),
    request(b"jobs", b'{"type":"a","args":[1]}', b"X-OJS-Tenant: acme"),
    request(b"jobs", b'{"type":"a","args":[1]}', b"Connection: close"),
    request(b"jobs", b'{"type":"a","args":[1]}', b"Idempotency-Key: k"),
    request(b"jobs", b'{"type":"a","args":[1]}', b"Host: y"),
    request(b"jobs?x=1", b'{"type":"a","args":[1]}'),
    request(b"workers/fetch", b'{"queues":["default"],"worker_id":"w"}'),
    request(b"workers/fetch", b'{"queues":["nothing"],"worker_id":"w"}'),
    request(b"nowhere", b"{}"),
    b"GET /ojs/v1/queues HTTP/1.1\r\nHost: x\r\n\r\n",
    b"\r\nGET /ojs/v1/queues HTTP/1.1\r\nHost: x\r\n\r\n",
]
"""Requests in one piece each. Some have a head in common, and others' bodies are refused."""

DIFFERENT = re.compile(
    rb"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f-]{21}|req_[^\"\r]*|date: [^\r]*|\d{4}-\d\d-\d\dT[\d:.]+Z|"
    rb"content-length: \d+"
)
"""What differs in answers to equal requests."""


async def answers(port: int, pieces: Sequence[bytes]) -> list[bytes]:
    """Return the answers to pieces that are sent one after the other, over a new connection where one was closed."""
    found, connection = [], None
    for piece in pieces:
        reader, writer = connection or await asyncio.open_connection("127.0.0.1", port)
        connection = reader, writer
        writer.write(piece)
        answer = b""
        for _ in range(max(1, piece.count(b"HTTP/1.1"))):
            async with asyncio.timeout(LONG_WAIT):
                head = await reader.readuntil(b"\r\n\r\n")
                size = re.search(rb"content-length: (\d+)", head)
                answer += head + await reader.readexactly(int(size[1]) if size else 0)
            if b"connection: close" in head:
                assert not await reader.read()
                writer.close()
                connection = None
                break
        found.append(DIFFERENT.sub(b"", answer))
    if connection is not None:
        connection[1].close()
    return found


@pytest.mark.parametrize("number", range(cases(20, 3)))
async def test_a_known_head_changes_no_answer(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    order = random.Random(number)
    pieces = [b"".join(order.choices(REQUESTS, k=order.choice((1, 1, 1, 2)))) for _ in range(40)]
    with_known = await answers_of_new_server(pieces)
    monkeypatch.setattr(KnownHeads, "remember", lambda *_: None)
    assert await answers_of_new_server(pieces) == with_known


async def answers_of_new_server(pieces: Sequence[bytes]) -> list[bytes]:
    service = Service(open_database("sqlite:///:memory:", ServiceSettings()))
    async with serving(service) as (_, port):
        found = await answers(port, pieces)
    await service.close()
    return found


async def test_a_head_is_read_once(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Application] = []
    begin = Application.__init__

    def begin_and_keep(self: Application, *args: Any, **more: Any) -> None:
        begin(self, *args, **more)
        made.append(self)

    monkeypatch.setattr(Application, "__init__", begin_and_keep)
    async with serving(service) as (_, port):
        await answers(port, [REQUESTS[0], REQUESTS[1], REQUESTS[3]])
    assert [known.body_bytes for known in made[0].known_heads.values()] == [len(b'{"type":"a","args":[0]}')]


@pytest.mark.parametrize(
    "header", [b"Authorization: Bearer x", b"Cookie: a=b", b"Idempotency-Key: k", b"X-Request-Id: 1", b"Origin: y"]
)
async def test_heads_with_secrets_or_with_what_is_never_alike_are_not_remembered(header: bytes) -> None:
    name, _, value = header.partition(b": ")
    known = KnownHeads()
    whole = request(b"jobs", b"{}", header)
    known.remember(whole, b"{}", KnownHead(endpoint(), [(name.lower(), value)], b"", 2))
    assert not known


async def test_few_and_short_heads_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_heads, "MOST_KNOWN_HEADS", 3)
    known = KnownHeads()
    for number in range(10):
        known.remember(request(b"%d" % number, b"{}"), b"{}", KnownHead(endpoint(), [], b"", 2))
        assert 0 < len(known) <= 3
    known.clear()
    known.remember(request(b"a" * 2_000, b"{}"), b"{}", KnownHead(endpoint(), [], b"", 2))
    assert not known


async def test_requests_that_come_together_are_not_remembered_as_one() -> None:
    known = KnownHeads()
    known.remember(REQUESTS[0] + REQUESTS[1], b'{"type":"a","args":[0]}', KnownHead(endpoint(), [], b"", 23))
    assert not known


def endpoint() -> Endpoint:
    return object.__new__(Endpoint)
