"""A request that asks for an unknown protocol is answered with its body, however the network cuts it."""

from __future__ import annotations

import asyncio

import pytest

from ojster.service import Service
from tests.server.test_connections import BODY, LENGTH, answers_of, push_of, serving
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
