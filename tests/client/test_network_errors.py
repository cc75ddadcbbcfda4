"""Faults of the network: whatever breaks at whichever await, the client retries or says so, and no outcome is lost."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Iterator

import aiohttp
import httpx
import pytest
from aiohttp.client_reqrep import ConnectionKey

from ojster import App
from ojster.client.client import HttpClient
from ojster.core.errors import BackendError, BackendUnavailable
from ojster.core.shown_errors import error_of
from ojster.schedules.cron import Cron
from ojster.server.application import Application
from ojster.service import Service
from ojster.worker.worker import Worker
from tests.client.in_memory import FaultyTransport, answering, connect, to
from tests.conftest import request
from tests.waiting import PATIENCE

pytestmark = pytest.mark.anyio

KEY = ConnectionKey("test", 80, False, True, None, None, None)

FAULTS: list[BaseException] = [
    ConnectionResetError(104, "Connection reset by peer"),  # while TLS begins
    BrokenPipeError(32, "Broken pipe"),
    OSError(107, "Transport endpoint is not connected"),
    TimeoutError("timed out"),
    ssl.SSLError(1, "record layer failure"),
    aiohttp.ClientConnectorError(KEY, ConnectionRefusedError(111, "refused")),
    aiohttp.ClientConnectorDNSError(KEY, OSError(-2, "unknown")),
    aiohttp.ConnectionTimeoutError("timed out"),
    aiohttp.SocketTimeoutError("silence"),
    aiohttp.ClientOSError(32, "cut"),
    aiohttp.ClientConnectionResetError("cut"),
    aiohttp.ServerDisconnectedError(),
    aiohttp.ClientPayloadError("truncated"),
]

PLACES = ("before the request", "after the request")


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
    service: Service, client: HttpClient, fault: BaseException, place: str
) -> None:
    connect(client, FaultyTransport(to(Application(service)), fault, after=place == PLACES[1], only="/jobs"))
    (pushed,) = await client.jobs.enqueue([request("t", 1)])
    assert (await service.jobs.find(pushed.job.id)).args == [1]
    assert (await service.jobs.count())["default"]["available"] == 1, "it was made once"


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: type(fault).__name__)
async def test_a_fault_that_stays_is_an_unreachable_server(service: Service, fault: BaseException) -> None:
    client = HttpClient("http://test", patience=0)
    connect(client, FaultyTransport(to(Application(service)), fault, after=False, times=1000))
    with pytest.raises(BackendUnavailable, match="http://test cannot be reached"):
        await client.queues.all()
    await client.close()


async def test_what_a_server_says_of_an_outage_reaches_its_callers() -> None:
    reason = "The database cannot be used: permission denied for table jobs."
    outage = {"error": {"code": "backend_unavailable", "message": reason, "retryable": True, "request_id": "r"}}
    client = HttpClient("http://test", patience=0)
    connect(client, answering(lambda sent: httpx.Response(503, json=outage)))
    with pytest.raises(BackendUnavailable, match=f"http://test is unavailable .* {reason}"):
        await client.queues.all()
    await client.close()


@pytest.mark.parametrize(
    "content", [b"<html>", b"\xff", b"[]", b'{"message": "x"}', b'{"error": "x"}', b'{"error": {"code": 7}}']
)
async def test_an_error_of_another_program_is_told_from_one_of_a_server(content: bytes) -> None:
    client = HttpClient("http://test", patience=0)
    connect(client, answering(lambda sent: httpx.Response(502, content=content)))
    with pytest.raises(BackendError, match=r"/queues.* answered 502\. .* Is there an Ojster server at this URL"):
        await client.queues.all()
    connect(client, answering(lambda sent: httpx.Response(503, content=content)))
    with pytest.raises(BackendUnavailable, match=r"http://test is unavailable .* Retry later\."):
        await client.queues.all()
    await client.close()


def test_the_details_of_an_error_may_have_any_names() -> None:
    details = {"self": 1, "message": "more"}
    for code, status in (("not_found", 404), ("TENANT_LIMIT_EXCEEDED", 429), ("unknown", 502)):
        error = error_of({"code": code, "message": "why", "details": details}, status)
        assert (error.message, error.details) == ("why", details)


@pytest.fixture
def app(service: Service) -> Iterator[App]:
    made = App("http://test")
    yield made
    made.close()


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(
    "fault", [FAULTS[0], RuntimeError("nobody expects this")], ids=lambda fault: type(fault).__name__
)
async def test_no_outcome_is_lost_when_its_report_breaks(
    service: Service, app: App, fault: BaseException, place: str
) -> None:
    @app.job("t")
    async def handle(number: int) -> int:
        return number * 2

    (pushed,) = await service.jobs.enqueue([request("t", 21)])
    client = app.client()
    assert isinstance(client, HttpClient)
    faulty = FaultyTransport(
        to(Application(service)), fault, after=place == PLACES[1], times=1, only="/workers/ack/batch"
    )
    connect(client, faulty)
    await asyncio.wait_for(Worker(app).run(until_empty=True), PATIENCE)
    job = await service.jobs.find(pushed.job.id)
    assert (job.state, job.result, job.attempt, job.errors) == ("completed", b"42", 1, None)


async def test_what_must_not_be_done_twice_is_not_sent_again_if_it_may_have_arrived(
    service: Service, client: HttpClient
) -> None:
    cut = ConnectionResetError(104, "Connection reset by peer")
    connect(client, FaultyTransport(to(Application(service)), cut, after=True, times=2))
    await service.schedules.register(Cron(name="c", expression="@every 1h", template=b'{"type":"x","args":[]}'))
    (pushed,) = await service.jobs.enqueue([request("t", queue="other")])
    for call in (client.schedules.trigger("c"), client.notes.add_to_job(pushed.job.id, b'"n"')):
        with pytest.raises(BackendUnavailable, match="Check whether it was done"):
            await call
    assert (await service.jobs.count())["default"]["available"] == 1
    assert len(await service.notes.of_job(pushed.job.id)) == 1


async def test_what_cannot_have_arrived_is_sent_again(service: Service, client: HttpClient) -> None:
    refused = aiohttp.ClientConnectorError(KEY, ConnectionRefusedError(111, "refused"))
    connect(client, FaultyTransport(to(Application(service)), refused, after=False, times=2))
    await service.schedules.register(Cron(name="c", expression="@every 1h", template=b'{"type":"x","args":[]}'))
    assert (await client.schedules.trigger("c")).type == "x"
