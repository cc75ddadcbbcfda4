"""Faults of the network: whatever breaks at whichever await, the client retries or says so, and no outcome is lost."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Iterator

import anyio
import httpx
import pytest

from ojster import App
from ojster.client.client import HttpClient
from ojster.core.errors import BackendUnavailable
from ojster.server.application import Application
from ojster.service import Service
from ojster.worker.worker import Worker
from tests.conftest import request

pytestmark = pytest.mark.anyio

FAULTS = [
    ConnectionResetError(104, "Connection reset by peer"),  # while TLS begins
    BrokenPipeError(32, "Broken pipe"),
    OSError(107, "Transport endpoint is not connected"),
    TimeoutError("timed out"),
    ssl.SSLError(1, "record layer failure"),
    anyio.BrokenResourceError(),
    anyio.ClosedResourceError(),
    anyio.EndOfStream(),
    httpx.ConnectError("refused"),
    httpx.ConnectTimeout("timed out"),
    httpx.PoolTimeout("no connection"),
    httpx.WriteError("cut"),
    httpx.ReadError("cut"),
    httpx.ReadTimeout("silence"),
    httpx.RemoteProtocolError("Server disconnected without sending a response."),
    httpx.LocalProtocolError("state"),
    httpx.DecodingError("truncated"),
]

PLACES = ("connecting", "after the request", "in the body")


class FaultyTransport(httpx.AsyncBaseTransport):
    """A transport to an application that breaks at one place, for the next ``times`` requests that match."""

    def __init__(self, app: Application, fault: BaseException, place: str, *, times: int = 2, only: str = "") -> None:
        self.inner = httpx.ASGITransport(app=app)
        self.fault, self.place, self.times, self.only = fault, place, times, only

    async def handle_async_request(self, sent: httpx.Request) -> httpx.Response:
        breaks = self.times > 0 and sent.url.path.endswith(self.only)
        self.times -= breaks
        if breaks and self.place == "connecting":
            raise self.fault
        response = await self.inner.handle_async_request(sent)
        if breaks and self.place == "after the request":
            raise self.fault
        if breaks:
            return httpx.Response(response.status_code, headers=response.headers, stream=Broken(self.fault))
        return response


class Broken(httpx.AsyncByteStream):
    """A body that breaks after its first bytes."""

    def __init__(self, fault: BaseException) -> None:
        self.fault = fault

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield b"{"
        raise self.fault


async def connect(client: HttpClient, transport: httpx.AsyncBaseTransport) -> None:
    """Let a client use a transport."""
    await client._connection.http.aclose()
    client._connection.http = httpx.AsyncClient(transport=transport, base_url="http://test")


@pytest.fixture
async def client() -> AsyncIterator[HttpClient]:
    made = HttpClient("http://test")
    yield made
    await made.close()


@pytest.mark.parametrize(
    ("fault", "place"),
    [(fault, PLACES[number % len(PLACES)]) for number, fault in enumerate(FAULTS)],
    ids=lambda one: one if isinstance(one, str) else type(one).__name__,
)
async def test_a_call_is_retried_after_every_fault(
    engine: Service, client: HttpClient, fault: BaseException, place: str
) -> None:
    await connect(client, FaultyTransport(Application(engine), fault, place, only="/jobs"))
    (pushed,) = await client.jobs.enqueue([request("t", 1)])
    assert (await engine.jobs.find(pushed.job.id)).args == [1]
    assert (await engine.jobs.count())["default"]["available"] == 1, "it was made once"


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: type(fault).__name__)
async def test_a_fault_that_stays_is_an_unreachable_server(engine: Service, fault: BaseException) -> None:
    client = HttpClient("http://test", patience=0)
    await connect(client, FaultyTransport(Application(engine), fault, "connecting", times=1000))
    with pytest.raises(BackendUnavailable, match="http://test cannot be reached"):
        await client.queues.all()
    await client.close()


@pytest.fixture
def app(engine: Service) -> Iterator[App]:
    made = App("http://test")
    yield made
    made.close()


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(
    "fault", [FAULTS[0], RuntimeError("nobody expects this")], ids=lambda fault: type(fault).__name__
)
async def test_no_outcome_is_lost_when_its_report_breaks(
    engine: Service, app: App, fault: BaseException, place: str
) -> None:
    @app.job("t")
    async def handle(number: int) -> int:
        return number * 2

    (pushed,) = await engine.jobs.enqueue([request("t", 21)])
    client = app.client()
    assert isinstance(client, HttpClient)
    await connect(client, FaultyTransport(Application(engine), fault, place, times=1, only="/workers/ack/batch"))
    await asyncio.wait_for(Worker(app).run(until_empty=True), 20)
    job = await engine.jobs.find(pushed.job.id)
    assert (job.state, job.result, job.attempt, job.errors) == ("completed", b"42", 1, None)
