"""Streams and waiting requests end when their token is revoked or expires."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import connect

from ojster.core.access import Grant, Role
from ojster.core.durations import MINUTE
from ojster.server import authentication
from ojster.server.endpoints import job_export
from ojster.service import Service
from tests.conftest import Bench
from tests.serving import serving
from tests.waiting import PATIENCE

pytestmark = pytest.mark.anyio

GRANTS = [Grant(Role.WORKER), Grant(Role.VIEWER)]


@pytest.fixture
async def url(shared_url: str) -> str:
    return shared_url


@pytest.fixture
async def port(service: Service, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[int]:
    monkeypatch.setattr(authentication, "RECHECK_SECONDS", 0.05)
    async with serving(service, guarded=True) as (_, number):
        yield number


class Caller:
    """A caller with a token that is made for it."""

    def __init__(self, bench: Bench, port: int) -> None:
        self.bench, self.port = bench, port

    async def begin(self) -> None:
        now = self.bench.clock.now
        token, self.shown = await self.bench.service.tokens.create("caller", GRANTS, expires_at=now + MINUTE)
        self.id = token.id

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.shown}"}

    async def shut_out(self, how: str) -> None:
        if how == "revoked":
            await self.bench.service.tokens.revoke(self.id)
        else:
            self.bench.clock.advance(61)


@pytest.fixture
async def caller(bench: Bench, port: int) -> Caller:
    made = Caller(bench, port)
    await made.begin()
    return made


WAYS = pytest.mark.parametrize("how", ["revoked", "expired"])


@WAYS
async def test_an_event_stream_ends(caller: Caller, how: str) -> None:
    async with (
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{caller.port}", timeout=PATIENCE) as client,
        client.stream("GET", "/ojs/v1/events/stream", headers=caller.headers) as response,
    ):
        assert response.status_code == 200
        lines = response.aiter_lines()
        assert (await anext(lines)).startswith("retry")
        await asyncio.sleep(0.2)  # it was checked several times, and goes on
        await caller.bench.push()
        while "job.state_changed" not in await anext(lines):
            pass
        await caller.shut_out(how)
        rest = await asyncio.wait_for(asyncio.ensure_future(drain(lines)), PATIENCE)
        assert "job.state_changed" not in rest


@WAYS
async def test_an_export_that_is_cut_off_does_not_look_whole(
    caller: Caller, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def pages(*_: Any) -> AsyncGenerator[list[dict[str, Any]], None]:
        yield [{"id": "1"}]
        await asyncio.Event().wait()

    monkeypatch.setattr(job_export, "_pages", pages)
    async with (
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{caller.port}", timeout=PATIENCE) as client,
        client.stream("GET", "/ojs/v1/job-export?format=csv", headers=caller.headers) as response,
    ):
        assert response.status_code == 200
        pieces = response.aiter_text()
        assert "1," in await anext(pieces)
        await caller.shut_out(how)
        with pytest.raises(httpx.RemoteProtocolError):
            await anext(pieces)


async def drain(lines: AsyncIterator[str]) -> str:
    return "".join([line async for line in lines])


@WAYS
async def test_a_websocket_is_closed(caller: Caller, how: str) -> None:
    async with connect(f"ws://127.0.0.1:{caller.port}/ojs/v1/ws", additional_headers=caller.headers) as socket:
        await socket.send('{"action": "subscribe", "channel": "all"}')
        await asyncio.wait_for(socket.recv(), PATIENCE)
        await caller.shut_out(how)
        await asyncio.wait_for(socket.wait_closed(), PATIENCE)
        assert socket.close_code == 1008


@WAYS
async def test_a_fetch_that_waits_gets_no_job(caller: Caller, how: str) -> None:
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{caller.port}", timeout=PATIENCE) as client:
        body = {"queues": ["default"], "worker_id": "w", "wait_ms": 60_000}
        waiting = asyncio.ensure_future(client.post("/ojs/v1/workers/fetch", json=body, headers=caller.headers))
        await asyncio.sleep(0.2)
        assert not waiting.done()
        await caller.shut_out(how)
        answer = await asyncio.wait_for(waiting, PATIENCE)
        assert answer.status_code == 401, answer.text
        job = await caller.bench.push()
        assert (await caller.bench.fetch_one()).id == job.id
