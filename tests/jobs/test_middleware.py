"""Enqueue middleware: it changes jobs, drops them, and has an order.

Spec: ojs-middleware
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from ojster import App, JobDropped, Worker
from ojster.client.client import HttpClient
from ojster.jobs.middleware import EnqueueFunction, JobRequest, MiddlewareChain, in_use
from ojster.service import Service
from tests.conftest import Bench, Http, request
from tests.serving import serving

pytestmark = pytest.mark.anyio


@pytest.fixture
async def server(service: Service) -> AsyncIterator[str]:
    async with serving(service) as (_, port):
        yield f"http://127.0.0.1:{port}"


async def drop_drafts(job: JobRequest, enqueue: EnqueueFunction) -> JobRequest | None:
    return None if job["type"] == "draft" else await enqueue(job)


async def stamp(job: JobRequest, enqueue: EnqueueFunction) -> JobRequest | None:
    job["meta"] = {**job.get("meta", {}), "stamped": True}
    return await enqueue(job)


async def test_a_job_that_middleware_drops_is_not_enqueued(http: Http, bench: Bench) -> None:
    bench.service.middleware.append(drop_drafts)
    with pytest.raises(JobDropped, match='"draft"'):
        await bench.push("draft")
    answer = await http("POST", "/ojs/v1/jobs", {"type": "draft", "args": []})
    assert (answer.status_code, answer.json()) == (200, {"dropped": True})
    jobs: list[dict[str, Any]] = [{"type": type, "args": []} for type in ("draft", "letter")]
    bulk = (await http("POST", "/ojs/v1/jobs/bulk", {"jobs": jobs})).json()
    assert [item["status"] for item in bulk["items"]] == ["failed", "created"]
    assert bulk["items"][0]["error"]["code"] == "x_job_dropped"
    assert (await http("POST", "/ojs/v1/jobs/batch", {"jobs": jobs})).status_code == 422
    assert [job.type for job in (await bench.service.jobs.select()).jobs] == ["letter"]


async def test_no_layer_inside_one_that_drops_a_job_sees_it(bench: Bench) -> None:
    seen = []

    async def note(job: JobRequest, enqueue: EnqueueFunction) -> JobRequest | None:
        seen.append(job["type"])
        return await enqueue(job)

    bench.service.middleware += [drop_drafts, note]
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


async def _layer(*_: Any) -> Any: ...


async def _other(*_: Any) -> Any: ...


CHANGES: dict[str, Callable[[MiddlewareChain[Any]], object]] = {
    "append": lambda chain: chain.append(_other),
    "prepend": lambda chain: chain.prepend(_other),
    "insert": lambda chain: chain.insert(0, _other),
    "insert_before": lambda chain: chain.insert_before(_layer, _other),
    "insert_after": lambda chain: chain.insert_after(_layer, _other),
    "extend": lambda chain: chain.extend([_other]),
    "+=": lambda chain: chain.__iadd__([_other]),
    "remove": lambda chain: chain.remove(_layer),
    "pop": lambda chain: chain.pop(),
    "del": lambda chain: chain.__delitem__(0),
    "del [:]": lambda chain: chain.__delitem__(slice(None)),
    "clear": lambda chain: chain.clear(),
    "*=": lambda chain: chain.__imul__(2),
    "sort": lambda chain: chain.sort(key=id),
    "reverse": lambda chain: chain.reverse(),
    "[0] =": lambda chain: chain.__setitem__(0, _other),
    "[:] =": lambda chain: chain.__setitem__(slice(None), [_other]),
}
"""Every way to change a chain that begins with ``_layer``."""


def test_every_way_to_change_a_list_is_tried() -> None:
    assert len(CHANGES) == 17
    changing = {name for name in vars(list) if callable(getattr(list, name))} - set(dir(tuple))
    assert changing - {"copy", "__reversed__"} <= set(vars(MiddlewareChain))


@pytest.mark.parametrize("change", CHANGES)
def test_no_change_of_a_chain_has_an_effect_while_jobs_use_it(change: str) -> None:
    chain: MiddlewareChain[Any] = MiddlewareChain([_layer])
    with in_use(chain):
        with in_use(chain):
            pass
        with pytest.raises(RuntimeError, match=r"cannot change now .*Change it before a worker"):
            CHANGES[change](chain)
        assert chain == [_layer]
    CHANGES[change](chain)
    assert chain != [_layer] or change in ("sort", "reverse")


async def test_enqueue_middleware_cannot_change_while_a_job_passes_through_it(bench: Bench) -> None:
    middleware = bench.service.middleware
    refused = []

    async def change(job: JobRequest, enqueue: EnqueueFunction) -> JobRequest | None:
        with pytest.raises(RuntimeError, match="drop_drafts"):
            middleware.append(drop_drafts)
        refused.append(job["type"])
        return await enqueue(job)

    middleware.append(change)
    await bench.push("draft")
    middleware.append(drop_drafts)
    with pytest.raises(JobDropped):
        await bench.push("draft")
    assert refused == ["draft", "draft"]


async def test_no_middleware_of_an_application_changes_while_a_worker_runs() -> None:
    chains: list[MiddlewareChain[Any]] = []
    tried = []
    async with App("sqlite:///:memory:") as app:
        chains += [app.enqueue_middleware, app.execution_middleware, app.thread_middleware]

        @app.on_startup
        def configure() -> None:
            app.execution_middleware.append(configured)

        async def configured(context: Any, call: Any) -> Any:
            tried.append("configured")
            return await call()

        def try_to_change() -> None:
            for chain in chains:
                with pytest.raises(RuntimeError, match=r"app\.on_startup"):
                    chain.append(_layer)
            tried.append("changed")

        app.job("plain")(try_to_change)

        @app.job("coroutine")
        async def coroutine() -> None:
            try_to_change()

        for handler in app.handlers.values():
            await handler.aenqueue()
        await Worker(app).run(until_empty=True)
        for chain in chains:
            chain.append(_layer)  # the worker has ended
    assert sorted(tried) == ["changed", "changed", "configured", "configured"]


async def test_it_runs_in_an_application_whose_jobs_are_on_a_server(server: str, service: Service) -> None:
    app = App(server)

    @app.job("letter")
    def letter(to: str) -> None: ...

    @app.job("draft")
    def draft() -> None: ...

    app.enqueue_middleware += [stamp, drop_drafts]
    try:
        job = await letter.aenqueue("Ada")
        assert (await service.jobs.find(job.id)).meta == {"stamped": True}
        with pytest.raises(JobDropped):
            await draft.aenqueue()
    finally:
        await app.aclose()


async def test_a_client_is_told_that_the_server_s_middleware_has_dropped_its_job(server: str, service: Service) -> None:
    service.middleware.append(drop_drafts)
    client = HttpClient(server)
    try:
        with pytest.raises(JobDropped):
            await client.jobs.enqueue([request("draft")])
        with pytest.raises(JobDropped):
            await client.jobs.enqueue([request("draft"), request("letter")])
    finally:
        await client.close()
