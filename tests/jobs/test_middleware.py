"""Enqueue middleware: it changes jobs, drops them, and has an order.

Spec: ojs-middleware
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from ojster import App, JobDropped
from ojster.client.client import HttpClient
from ojster.jobs.middleware import Enqueue, JobRequest, MiddlewareChain
from ojster.service import Service
from tests.conftest import Bench, Http, request
from tests.server.test_connections import serving

pytestmark = pytest.mark.anyio


@pytest.fixture
async def server(engine: Service) -> AsyncIterator[str]:
    async with serving(engine) as (_, port):
        yield f"http://127.0.0.1:{port}"


async def drop_drafts(job: JobRequest, enqueue: Enqueue) -> JobRequest | None:
    return None if job["type"] == "draft" else await enqueue(job)


async def stamp(job: JobRequest, enqueue: Enqueue) -> JobRequest | None:
    job["meta"] = {**job.get("meta", {}), "stamped": True}
    return await enqueue(job)


async def test_a_job_that_middleware_drops_is_not_enqueued(http: Http, bench: Bench) -> None:
    bench.engine.middleware.append(drop_drafts)
    with pytest.raises(JobDropped, match='"draft"'):
        await bench.push("draft")
    answer = await http("POST", "/ojs/v1/jobs", {"type": "draft", "args": []})
    assert (answer.status_code, answer.json()) == (200, {"dropped": True})
    jobs: list[dict[str, Any]] = [{"type": type, "args": []} for type in ("draft", "letter")]
    bulk = (await http("POST", "/ojs/v1/jobs/bulk", {"jobs": jobs})).json()
    assert [item["status"] for item in bulk["items"]] == ["failed", "created"]
    assert bulk["items"][0]["error"]["code"] == "x_job_dropped"
    assert (await http("POST", "/ojs/v1/jobs/batch", {"jobs": jobs})).status_code == 422
    assert [job.type for job in (await bench.engine.jobs.select()).jobs] == ["letter"]


async def test_no_layer_inside_one_that_drops_a_job_sees_it(bench: Bench) -> None:
    seen = []

    async def note(job: JobRequest, enqueue: Enqueue) -> JobRequest | None:
        seen.append(job["type"])
        return await enqueue(job)

    bench.engine.middleware += [drop_drafts, note]
    with pytest.raises(JobDropped):
        await bench.push("draft")
    await bench.push("letter")
    assert seen == ["letter"]


def test_a_layer_goes_to_the_place_that_it_needs() -> None:
    chain = MiddlewareChain(["auth", "log"])
    chain.prepend("trace")
    chain.insert_before("log", "time")
    chain.insert_after("log", "check")
    chain.append("last")
    assert chain == ["trace", "auth", "time", "log", "check", "last"]
    for insert in (chain.insert_before, chain.insert_after):
        with pytest.raises(ValueError, match="nowhere"):
            insert("nowhere", "x")
    assert len(chain) == 6


async def test_it_runs_in_an_application_whose_jobs_are_on_a_server(server: str, engine: Service) -> None:
    app = App(server)

    @app.job("letter")
    def letter(to: str) -> None: ...

    @app.job("draft")
    def draft() -> None: ...

    app.enqueue_middleware += [stamp, drop_drafts]
    try:
        job = await letter.aenqueue("Ada")
        assert (await engine.jobs.find(job.id)).meta == {"stamped": True}
        with pytest.raises(JobDropped):
            await draft.aenqueue()
    finally:
        await app.aclose()


async def test_a_client_is_told_that_the_server_s_middleware_has_dropped_its_job(server: str, engine: Service) -> None:
    engine.middleware.append(drop_drafts)
    client = HttpClient(server)
    try:
        with pytest.raises(JobDropped):
            await client.jobs.enqueue([request("draft")])
        with pytest.raises(JobDropped):
            await client.jobs.enqueue([request("draft"), request("letter")])
    finally:
        await client.close()
