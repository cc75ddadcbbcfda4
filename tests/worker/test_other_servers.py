"""Workers on servers that have the calls of the specification alone, and on what is no server of Open Job Spec."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import httpx
import msgspec
import pytest
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from ojster import App, Snooze, Worker
from ojster.client import other_servers
from ojster.client.client import HttpClient
from ojster.client.jobs import RemoteJobs
from ojster.client.transport import Response
from ojster.core.errors import InvalidRequest, OjsterError
from ojster.jobs.claim_policy import Claim
from ojster.jobs.failure import Failure
from ojster.jobs.messages import Acknowledgement, FailureReport, Release
from ojster.server.application import Application
from ojster.worker import backoff
from ojster.worker.execution import Ending
from ojster.worker.reporting import Reporter
from tests.client.in_memory import InMemoryTransport, connect
from tests.conftest import Bench
from tests.waiting import PATIENCE

pytestmark = pytest.mark.anyio

SPECIFIED = r"POST /ojs/v1/workers/(fetch|ack|nack|heartbeat)|(GET|DELETE) /ojs/v1/jobs/[^/]+|POST /ojs/v1/jobs"
"""The calls of the specification that a worker and its handlers make."""


class OtherServer:
    """Ojster without what it adds to the specification, and with another manifest; ``name`` ``None``: with none."""

    def __init__(self, bench: Bench, name: str | None, allowed: str = SPECIFIED) -> None:
        self._app = Application(bench.service)
        self._name = name
        self._allowed = re.compile(allowed)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        answer = JSONResponse({"error": {"code": "not_found", "message": "no such path"}}, 404)
        if scope["path"] == "/ojs/manifest" and self._name is not None:
            await JSONResponse({"implementation": {"name": self._name}})(scope, receive, send)
        elif self._allowed.fullmatch(f"{scope['method']} {scope['path']}"):
            await self._app(scope, receive, send)
        else:
            await answer(scope, receive, send)


def reach(client: HttpClient, server: OtherServer) -> InMemoryTransport:
    """Let a client use a server; return the transport, which knows what was sent."""
    headers = {"Content-Type": "application/json"}
    through = httpx.AsyncClient(transport=httpx.ASGITransport(app=server), base_url="http://test", headers=headers)
    return connect(client, InMemoryTransport(through))


@pytest.fixture
def app() -> App:
    made = App("http://other.test")
    snoozed: list[int] = []

    @made.job("double")
    def double(number: int) -> int:
        return 2 * number

    @made.job("fail", retry=1)
    def fail() -> None:
        raise ValueError("no")

    @made.job("later")
    def later() -> str:
        if not snoozed:
            snoozed.append(1)
            raise Snooze(0)
        return "done"

    return made


async def test_a_worker_reports_one_by_one_to_a_server_of_others(
    app: App, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(other_servers, "POLL_SECONDS", 0.01)
    transport = reach(app.client(), OtherServer(bench, "ojs-backend-other"))  # type: ignore[arg-type]
    jobs = [await bench.push("double", number) for number in range(20)]
    failing, later = await bench.push("fail", retry={"max_attempts": 1}), await bench.push("later")
    worker = Worker(app, queues=["default"], concurrency=4, children=None)
    running = asyncio.create_task(worker.run())
    for job in (*jobs, failing, later):
        await asyncio.wait_for(bench.service.jobs.wait_for(job.id, PATIENCE), PATIENCE)
    worker.stop()
    await asyncio.wait_for(running, PATIENCE)
    assert [(await bench.find(job)).result for job in jobs] == [b"%d" % (2 * number) for number in range(20)]
    assert (await bench.find(later)).result == b'"done"'
    failed = await bench.find(failing)
    assert (failed.state, b'"ValueError"' in (failed.errors or b"")) == ("discarded", True)
    tried = [call.replace("/ojs/v1", "") for call in transport.sent]
    assert not [call for call in tried if "/batch" in call or "release" in call]
    assert (tried.count("POST /workers/ack"), tried.count("POST /workers/nack")) == (21, 2)
    await app.aclose()


@pytest.mark.parametrize("name", [None, "else"])
async def test_a_worker_begins_nothing_where_it_could_report_nothing(app: App, bench: Bench, name: str | None) -> None:
    job = await bench.push("double", 1)
    transport = reach(app.client(), OtherServer(bench, name, "POST /ojs/v1/workers/fetch"))  # type: ignore[arg-type]
    with pytest.raises(OjsterError, match=r"no manifest|no such path"):
        await asyncio.wait_for(Worker(app, children=None).run(), PATIENCE)
    assert "POST /ojs/v1/workers/fetch" not in transport.sent
    assert (await bench.find(job)).state == "available"
    await app.aclose()


async def test_a_server_of_ojster_is_known_without_its_manifest(bench: Bench) -> None:
    for name in ("ojster", None):
        client = HttpClient("http://other.test")
        reach(client, OtherServer(bench, name, ".*"))
        assert await other_servers.adapt(client) is None
        assert type(client.jobs) is RemoteJobs


async def test_what_only_ojster_has_is_refused_or_fails_the_job(bench: Bench) -> None:
    client = HttpClient("http://other.test")
    reach(client, OtherServer(bench, "else"))
    assert await other_servers.adapt(client) == "else"
    made = [await bench.push() for _ in range(4)]
    claim = Claim(("default",), 4, "w", 30_000_000)
    held = await client.jobs.fetch(claim)
    assert [job.id for job in held] == [job.id for job in made]
    step = msgspec.json.encode({"type": "a", "args": []})
    appended, plain = await client.jobs.acknowledge(
        [Acknowledgement(held[0].id, append=(step,)), Acknowledgement(held[1].id, b"7")]
    )
    assert isinstance(appended, InvalidRequest)
    assert not isinstance(plain, OjsterError)
    await client.jobs.release([Release(held[2].id, then="wait"), Release(held[3].id)])
    states = [(await bench.find(job)).state for job in held]
    assert states == ["active", "completed", "discarded", "available"]
    (again,) = await client.jobs.fail([FailureReport(held[1].id, Failure("E", "late"))])
    assert isinstance(again, OjsterError), "a report that is refused is a value, as from Ojster"
    outcomes, jobs = await client.jobs.acknowledge_and_fetch([Acknowledgement(held[0].id)], claim)
    assert not isinstance(outcomes[0], OjsterError)
    assert isinstance(jobs, list)
    assert [job.id for job in jobs] == [held[3].id]


async def test_only_reports_that_a_server_of_others_did_not_answer_are_sent_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backoff, "FIRST_PAUSE_SECONDS", 0.0)
    client = HttpClient("http://other.test")
    transport = reach(client, OtherServer(bench, "else"))
    await other_servers.adapt(client)
    jobs = [await bench.push() for _ in range(4)]
    await client.jobs.fetch(Claim(("default",), 4, "w"))
    tried: list[str] = []
    send = transport.send

    async def badly(method: str, path: str, content: bytes | None = None, **more: Any) -> Any:
        body = json.loads(content or b"{}")
        if path.endswith(("/ack", "/nack")):
            assert not {"worker_id", "attempt"} & body.keys(), "the specification allows no such members"
            tried.append(body["job_id"])
            if body["job_id"] == jobs[1].id and tried.count(jobs[1].id) < 3:
                return Response(500, b'{"error": {"code": "backend_error", "message": "no"}}')
        return await send(method, path, content, **more)

    transport.send = badly  # type: ignore[assignment, method-assign]
    ends: list[Ending] = [Acknowledgement(job.id, b"1", "w", 1) for job in jobs[:3]]
    await Reporter("w", 30.0).send(client, [*ends, FailureReport(jobs[3].id, Failure("E", "no"), "w", 1)])
    assert sorted(tried) == sorted([*(job.id for job in jobs), jobs[1].id, jobs[1].id])
    assert [(await bench.find(job)).state for job in jobs] == ["completed"] * 3 + ["retryable"]


async def test_jobs_that_come_after_the_worker_has_given_up_waiting_are_handed_back(bench: Bench) -> None:
    client = HttpClient("http://other.test")
    transport = reach(client, OtherServer(bench, "else"))
    await other_servers.adapt(client)
    job = await bench.push()
    arrived, goes_on = asyncio.Event(), asyncio.Event()
    send = transport.send

    async def slowly(method: str, path: str, *given: Any, **more: Any) -> Any:
        response = await send(method, path, *given, **more)
        if path.endswith("/fetch"):
            arrived.set()
            await goes_on.wait()
        return response

    transport.send = slowly  # type: ignore[method-assign]
    waiting = asyncio.create_task(client.jobs.fetch(Claim(("default",), 1, "w")))
    await arrived.wait()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert (await bench.find(job)).state == "active"
    goes_on.set()
    while "POST /ojs/v1/workers/nack" not in transport.sent:
        await asyncio.sleep(0)
    while (await bench.find(job)).state == "active":
        await asyncio.sleep(0)
