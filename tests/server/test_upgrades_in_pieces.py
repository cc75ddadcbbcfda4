"""Requests that ask for another protocol: each is answered with its body, or refused, however the network cuts it."""

from __future__ import annotations

import asyncio

import pytest

from ojster.service import Service
from tests.server.test_connections import BODY, LENGTH, answers_of, push_of
from tests.serving import serving
from tests.waiting import PATIENCE

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("cut", [1, 30, 80, 110, 130])
async def test_a_request_with_an_upgrade_keeps_its_body_when_it_arrives_in_pieces(service: Service, cut: int) -> None:
    whole = push_of(BODY, LENGTH, b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c", b"HTTP2-Settings: AAMAAA")
    async with serving(service) as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(whole[:cut])
        await asyncio.sleep(0.05)
        writer.write(whole[cut:])
        async with asyncio.timeout(PATIENCE):
            ((status, _, content),) = await answers_of(reader, 1)
        assert status == 201, content
        writer.close()
        await writer.wait_closed()


async def test_garbage_behind_a_request_is_refused_after_its_answer(service: Service) -> None:
    async with serving(service) as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(push_of(BODY, LENGTH) + b"\x00garbage\r\n\r\n")
        async with asyncio.timeout(PATIENCE):
            answers = await answers_of(reader, 2)
        assert [status for status, _, _ in answers] == [201, 400]
        writer.close()
        await writer.wait_closed()


WEBSOCKET = (b"Connection: Upgrade", b"Upgrade: websocket")


@pytest.mark.parametrize(
    "request_bytes",
    [
        push_of(BODY, LENGTH, b"Upgrade: h2c", *WEBSOCKET),
        b"\r\n".join([b"GET /ojs/v1/ws HTTP/1.1", b"Host: x", *WEBSOCKET, b"Content-Length: 1", b"", b"x"]),
        b"\r\n".join([b"GET /ojs/v1/ws HTTP/1.1", b"Host: x", *WEBSOCKET, *[b"a: b"] * 200, b"", b""]),
    ],
    ids=["another path", "a body", "many headers"],
)
async def test_a_request_that_cannot_open_a_websocket_is_answered(service: Service, request_bytes: bytes) -> None:
    async with serving(service) as (server, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request_bytes)
        async with asyncio.timeout(PATIENCE):
            ((status, _, content),) = await answers_of(reader, 1)
            assert status in (201, 400), content
            writer.close()
            await writer.wait_closed()
            while server.server_state.connections:
                await asyncio.sleep(0.01)


async def test_an_upgrade_behind_another_request_is_refused_after_its_answer(service: Service) -> None:
    async with serving(service) as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(push_of(BODY, LENGTH) + push_of(BODY, LENGTH, b"Connection: Upgrade", b"Upgrade: h2c"))
        async with asyncio.timeout(PATIENCE):
            answers = await answers_of(reader, 2)
            assert await reader.read() == b""
        assert [status for status, _, _ in answers] == [201, 400]
        assert b"Upgrade" in answers[1][2]
        writer.close()
        await writer.wait_closed()
