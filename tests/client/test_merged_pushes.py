"""Enqueues that a client makes at the same time share requests, and each has its own outcome."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from ojster.client.client import HttpClient
from ojster.client.merged_pushes import MAX_MERGED, MAX_SENDERS, MergedPushes
from ojster.client.transport import Response
from ojster.core.errors import BackendError, BackendUnavailable, Duplicate, InvalidRequest, OjsterError
from ojster.core.job import Job
from ojster.server.application import Application
from ojster.service import Service
from tests.client.in_memory import FaultyTransport, InMemoryTransport, connect, to
from tests.conftest import Clock, request
from tests.waiting import PATIENCE

pytestmark = pytest.mark.anyio


@pytest.fixture
async def client(service: Service) -> AsyncIterator[HttpClient]:
    made = HttpClient("http://test")
    connect(made, InMemoryTransport(to(Application(service))))
    yield made
    await made.close()


def sent_by(client: HttpClient) -> list[str]:
    """Return what a client has sent."""
    transport = client._connection.transport
    assert isinstance(transport, InMemoryTransport)
    return transport.sent


async def push(client: HttpClient, type: str, *args: object, **options: object) -> Job | OjsterError:
    try:
        (pushed,) = await client.jobs.enqueue([request(type, *args, **options)])
    except OjsterError as error:
        return error
    return pushed.job


async def test_enqueues_of_the_same_time_share_requests(client: HttpClient, service: Service) -> None:
    jobs = await asyncio.gather(*(push(client, "t", number) for number in range(2 * MAX_MERGED)))
    assert [job.args for job in jobs if isinstance(job, Job)] == [[number] for number in range(2 * MAX_MERGED)]
    assert len(sent_by(client)) <= 4
    assert (await service.jobs.count())["default"]["available"] == 2 * MAX_MERGED


async def test_one_enqueue_alone_is_a_request_for_one_job(client: HttpClient) -> None:
    await push(client, "t")
    assert sent_by(client) == ["POST /ojs/v1/jobs"]


async def test_each_caller_gets_its_own_refusal(client: HttpClient, service: Service) -> None:
    unique = {"unique": {"keys": ["type"], "on_conflict": "reject"}}
    alone = await push(client, "Wrong Type")
    await push(client, "once", **unique)
    outcomes = await asyncio.gather(
        push(client, "t", 1), push(client, "Wrong Type"), push(client, "once", **unique), push(client, "t", 2)
    )
    assert [type(one) for one in outcomes] == [Job, InvalidRequest, Duplicate, Job]
    assert isinstance(alone, InvalidRequest)
    assert str(outcomes[1]) == str(alone), "it reads as if the job had been sent alone"
    assert (await service.jobs.count())["default"]["available"] == 3


async def test_callers_that_are_all_refused_get_their_refusals(client: HttpClient) -> None:
    outcomes = await asyncio.gather(*(push(client, "Wrong Type", number) for number in range(5)))
    assert {type(one) for one in outcomes} == {InvalidRequest}


async def test_a_unique_job_that_exists_is_known_as_such(client: HttpClient) -> None:
    options = {"unique": {"keys": ["type"], "on_conflict": "ignore"}}
    first, *others = await asyncio.gather(
        *(client.jobs.enqueue([request("once", number, **options)]) for number in range(4))
    )
    assert {pushed.job.id for (pushed,) in others} == {first[0].job.id}
    assert [pushed.existing for (pushed,) in (first, *others)] == [False, True, True, True]


async def test_jobs_whose_answer_is_lost_are_made_once(client: HttpClient, service: Service) -> None:
    connect(client, FaultyTransport(to(Application(service)), aiohttp.ServerDisconnectedError(), after=True))
    jobs = await asyncio.gather(*(push(client, "t", number) for number in range(7)))
    assert [job.args for job in jobs if isinstance(job, Job)] == [[number] for number in range(7)]
    assert (await service.jobs.count())["default"]["available"] == 7


async def test_all_callers_learn_that_the_server_is_unreachable(service: Service) -> None:
    client = HttpClient("http://test", patience=0)
    connect(client, FaultyTransport(to(Application(service)), OSError("gone"), after=False, times=100))
    outcomes = await asyncio.gather(*(push(client, "t", number) for number in range(7)))
    assert {type(one) for one in outcomes} == {BackendUnavailable}


async def test_a_caller_that_is_cancelled_takes_its_job_back(client: HttpClient, service: Service) -> None:
    callers = [asyncio.ensure_future(push(client, "t", number)) for number in range(3)]
    await asyncio.sleep(0)  # they wait now
    callers[1].cancel()
    await asyncio.gather(*callers, return_exceptions=True)
    assert (await service.jobs.count())["default"]["available"] == 2


async def test_a_caller_that_enqueues_again_at_once_never_waits_for_others(client: HttpClient) -> None:
    gate = asyncio.Event()
    transport = client._connection.transport
    real = transport.send

    async def send(*args: Any, **more: Any) -> Response:
        answer = await real(*args, **more)
        await gate.wait()  # so that all requests end in the same turn of the loop
        return answer

    transport.send = send  # type: ignore[method-assign]
    callers = []
    for number in range(MAX_SENDERS):
        callers.append(asyncio.ensure_future(push(client, "t", number)))
        await asyncio.sleep(0.01)
    again = asyncio.ensure_future(_after(callers[0], client))
    gate.set()
    await asyncio.wait_for(asyncio.gather(*callers, again), PATIENCE)


async def _after(first: asyncio.Future[Any], client: HttpClient) -> None:
    await first
    await push(client, "t", "again")


async def test_callers_of_a_sender_that_fails_are_told(client: HttpClient, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: MergedPushes, members: object, *more: object) -> None:
        raise RuntimeError("nobody expects this")

    monkeypatch.setattr(MergedPushes, "_send_together", broken)
    outcomes = await asyncio.wait_for(asyncio.gather(*(push(client, "t", number) for number in range(3))), PATIENCE)
    assert {type(one) for one in outcomes} <= {BackendError, Job}
    assert BackendError in {type(one) for one in outcomes}


async def test_a_closed_client_refuses_calls() -> None:
    client = HttpClient("http://127.0.0.1:9")
    await client.close()
    with pytest.raises(BackendUnavailable, match="closed"):
        await client.queues.all()


async def test_the_server_can_complete_and_refuse_jobs_as_if_they_were_sent_alone(
    client: HttpClient, service: Service, clock: Clock
) -> None:
    jobs = await asyncio.gather(*(push(client, "t", number, scheduled_at="+PT5S") for number in range(3)))
    assert {job.state for job in jobs if isinstance(job, Job)} == {"scheduled"}
