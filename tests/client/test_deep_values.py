"""Deeply nested values: refused on every way in, and one that is stored keeps no other job from its handler."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import pytest

from ojster import App
from ojster.client.client import HttpClient
from ojster.core.errors import InvalidPayload, OjsterError
from ojster.core.json_objects import MAX_NESTING_DEPTH, MAX_VALUE_DEPTH
from ojster.core.values import to_json
from ojster.jobs.claim_policy import Claim
from ojster.jobs.messages import Acknowledgement
from ojster.jobs.queries import Page
from ojster.server.application import Application
from ojster.workflows.plan.reader import MAX_LEVELS
from tests.client.in_memory import InMemoryTransport, connect, to
from tests.conftest import Bench, Http, request
from tests.workflows.bench import WorkflowBench

pytestmark = pytest.mark.anyio

DEEPEST = MAX_VALUE_DEPTH


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth - 1):
        value = [value]
    return value


def in_object(depth: int) -> dict[str, Any]:
    return {"x": nested(depth - 1)}


def depth_of(value: Any) -> int:
    """Return how deeply an answer is nested; not recursively, because it may be deep."""
    deepest, level = 0, [value]
    while level := [inner for one in level for inner in _inside(one)]:
        deepest += 1
    return deepest


def _inside(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values()) or [None]
    return (value or [None]) if isinstance(value, list) else []


def job(**members: Any) -> dict[str, Any]:
    return {"type": "a", "args": []} | members


def chain(**members: Any) -> dict[str, Any]:
    return {"type": "chain", "steps": [job()]} | members


def enqueueing(inner: dict[str, Any]) -> dict[str, Any]:
    return {"on_success": [{"action": "enqueue", "job": inner}]}


Way = tuple[str, str, Callable[[int], Any]]

WAYS: list[Way] = [
    ("POST", "/jobs", lambda n: job(args=nested(n))),
    ("POST", "/jobs", lambda n: job(meta=in_object(n))),
    ("POST", "/jobs", lambda n: job(unknown=nested(n))),
    ("POST", "/jobs", lambda n: job(options={"unknown": nested(n - 1)})),
    ("POST", "/jobs", lambda n: job(options={"metadata": in_object(n)})),
    ("POST", "/jobs", lambda n: job(event_reactions=enqueueing(job(args=nested(n - 4))))),
    ("POST", "/jobs/batch", lambda n: {"jobs": [job(), job(args=nested(n))]}),
    ("POST", "/jobs/batch", lambda n: {"jobs": [job(args=[1]), job(args=[2]), job(args=nested(n))]}),
    ("PUT", "/job-types/a", lambda n: {"meta": in_object(n - 1)}),
    ("POST", "/cron", lambda n: {"name": "c", "expression": "@daily", "type": "a", "args": nested(n)}),
    ("POST", "/workflows", lambda n: chain(steps=[job(args=nested(n))])),
    ("POST", "/workflows", lambda n: chain(params=in_object(n))),
    ("POST", "/workflows", lambda n: chain(metadata=in_object(n))),
    ("POST", "/workflows", lambda n: chain(properties={"p": nested(n)})),
    ("POST", "/definitions", lambda n: chain(name="deep", steps=[job(args=nested(n))])),
    ("POST", "/workers/ack", lambda n: {"job_id": "JOB", "result": nested(n)}),
    ("POST", "/jobs/JOB/ack", lambda n: {"result": nested(n)}),
    ("POST", "/workers/nack", lambda n: {"job_id": "JOB", "error": {"message": "x", "details": in_object(n)}}),
    ("PUT", "/jobs/JOB/checkpoint", lambda n: {"state": nested(n)}),
    ("PUT", "/jobs/JOB/progress", lambda n: {"progress": 0.5, "data": in_object(n)}),
    ("PUT", "/jobs/JOB/progress", lambda n: {"progress": 0.5, "checkpoint": nested(n)}),
    ("POST", "/jobs/JOB/info", lambda n: {"note": nested(n)}),
    ("POST", "/collections/c/items", lambda n: {"name": "i", "data": nested(n)}),
]  # fmt: skip


@pytest.mark.parametrize("way", WAYS, ids=[f"{n} {method} {path}" for n, (method, path, _) in enumerate(WAYS)])
async def test_a_value_that_answers_cannot_carry_is_refused_on_every_way_in(http: Http, way: Way) -> None:
    method, path, body_of = way
    await http.push()
    await http("POST", "/ojs/v1/collections", {"name": "c"})
    (active,) = await http.fetch()
    for depth, accepted in ((DEEPEST + 1, False), (DEEPEST, True)):
        content = msgspec.json.encode(body_of(depth)).replace(b'"JOB"', f'"{active["id"]}"'.encode())
        answer = await http(method, "/ojs/v1" + path.replace("JOB", active["id"]), content)
        assert answer.is_success is accepted, (depth, answer.status_code, answer.text[:300])
        assert accepted or (answer.status_code == 400 and "nested deeper than" in answer.text)
        assert depth_of(answer.json()) <= MAX_NESTING_DEPTH
    for path in (f"/jobs/{active['id']}", "/jobs", "/cron", "/collections/c/items", "/workflows", "/definitions/deep"):
        assert depth_of((await http("GET", f"/ojs/v1{path}")).json()) <= MAX_NESTING_DEPTH


async def test_a_batch_in_parts_refuses_the_deep_job_alone(http: Http) -> None:
    body = {"mode": "partial", "jobs": [job(), job(args=nested(DEEPEST + 1)), job()]}
    answer = (await http("POST", "/ojs/v1/jobs/batch", body)).json()
    assert [outcome.get("error", {}).get("code") for outcome in answer["results"]] == [None, "invalid_payload", None]


async def test_a_database_refuses_what_a_server_refuses(bench: Bench) -> None:
    for deep in (request("t", nested(DEEPEST)), request("t", meta=in_object(DEEPEST + 1))):
        for before in ([], [request("t"), request("t")]):
            with pytest.raises(InvalidPayload, match="nested deeper than"):
                await bench.service.jobs.enqueue([*before, dict(deep)])
    assert await bench.fetch() == []
    await bench.push()
    active = await bench.fetch_one()
    (refused,) = await bench.service.jobs.acknowledge([Acknowledgement(active.id, to_json(nested(DEEPEST)) + b" ")])
    assert not isinstance(refused, OjsterError)


async def test_a_result_that_is_too_deep_is_refused_alone(bench: Bench) -> None:
    await bench.push()
    await bench.push()
    first, second = await bench.fetch(count=2)
    deep = msgspec.json.encode(nested(DEEPEST + 1))
    acks = [Acknowledgement(first.id, deep), Acknowledgement(second.id, b"1")]
    refused, done = await bench.service.jobs.acknowledge(acks)
    assert isinstance(refused, InvalidPayload)
    assert not isinstance(done, OjsterError)
    assert (await bench.find(first)).state == "active"


@pytest.mark.parametrize("depth", [DEEPEST + 1, 150, 5000])
def test_python_refuses_a_value_that_is_too_deep(depth: int) -> None:
    to_json(nested(DEEPEST))
    with pytest.raises(InvalidPayload, match=f"nested deeper than {DEEPEST} levels"):
        to_json(nested(depth))


async def test_references_do_not_make_arguments_deeper_than_allowed(flow: WorkflowBench) -> None:
    second = {"id": "b", "type": "b", "args": [[[{"$ref": "steps.a.result"}]]], "depends_on": ["a"]}
    await flow.create({"type": "graph", "steps": [{"id": "a", "type": "a", "args": []}, second]})
    await flow.work(results={"a": nested(DEEPEST - 2)})
    assert await flow.states() == {"a": "completed", "b": "failed"}
    assert b"nested deeper" in bytes((await flow.step("b")).error or b"")


async def test_lookups_do_not_make_arguments_deeper_than_allowed(http: Http, bench: Bench) -> None:
    await http("POST", "/ojs/v1/collections", {"name": "c"})
    item = {"name": "i", "data": nested(DEEPEST - 2)}
    assert (await http("POST", "/ojs/v1/collections/c/items", item)).is_success
    deep = await http.push(args=[[[{"$lookup": "c/i"}]]])
    plain = await http.push()
    assert [active["id"] for active in await http.fetch(count=5)] == [plain["id"]]
    assert b"nested deeper" in ((await bench.find(deep["id"])).errors or b"")


async def test_containers_with_deep_steps_fit_into_an_answer(http: Http) -> None:
    step: dict[str, Any] = job(args=nested(DEEPEST))
    for _ in range(MAX_LEVELS):
        step = {"type": "chain", "steps": [step]}
    too_deep = await http("POST", "/ojs/v1/workflows", step)
    assert (too_deep.status_code, depth_of(too_deep.json()) < 10) in ((201, False), (400, True))


async def stored(bench: Bench, change: Callable[[bytes], bytes]) -> str:
    """Store a job whose attributes today's checks would refuse, as an older version may have done."""
    new = await bench.service.jobs.prepare(request("deep"))
    new.envelope = change(new.envelope)
    (pushed,) = await bench.service.jobs.push([new])
    return pushed.job.id


async def client_of(bench: Bench) -> HttpClient:
    client = HttpClient("http://test")
    connect(client, InMemoryTransport(to(Application(bench.service))))
    return client


def with_args(depth: int) -> Callable[[bytes], bytes]:
    return lambda envelope: envelope.replace(b'"args":[]', b'"args":' + msgspec.json.encode(nested(depth)))


async def test_a_deep_job_of_an_older_version_is_fetched_and_listed_with_its_neighbours(bench: Bench) -> None:
    deep = await stored(bench, with_args(150))
    others = [(await bench.push("t", number)).id for number in range(6)]
    client = await client_of(bench)
    assert {one.id for one in (await client.jobs.select(page=Page(20))).jobs} == {deep, *others}
    jobs = await client.jobs.fetch(Claim(("default",), 20, "w"))
    assert [one.id for one in jobs] == [deep, *others]
    await client.close()


@pytest.mark.parametrize("way", ["fetch", "with an acknowledgement"])
async def test_a_job_that_a_client_cannot_read_is_set_aside_and_the_others_are_handed_out(
    bench: Bench, way: str, caplog: pytest.LogCaptureFixture
) -> None:
    unreadable = await stored(bench, lambda envelope: envelope[:-1] + b',"ext_ml_timeout_seconds":"soon"}')
    others = [(await bench.push("t", number, priority=-number)).id for number in range(6)]
    client = await client_of(bench)
    claim = Claim(("default",), 20, "w")
    if way == "fetch":
        jobs = await client.jobs.fetch(claim)
    else:
        await bench.push("u", priority=100)
        acknowledgement = Acknowledgement((await bench.fetch_one(worker_id="w")).id, b"1", "w")
        _, found = await client.jobs.acknowledge_and_fetch([acknowledgement], claim)
        assert not isinstance(found, OjsterError)
        jobs = found
    assert [one.id for one in jobs] == others
    assert unreadable in caplog.text
    failed = await bench.find(unreadable)
    assert (failed.state, failed.error_type) == ("retryable", "UnreadableJob")
    await client.close()


@pytest.mark.parametrize("to_server", [False, True], ids=["database", "server"])
async def test_an_application_refuses_deep_arguments_before_it_sends_them(bench: Bench, to_server: bool) -> None:
    app = App("http://127.0.0.1:1" if to_server else "sqlite:///:memory:")

    @app.job("a")
    def handler(value: Any, more: Mapping[str, Any] | None = None) -> None:
        """Do nothing."""

    with pytest.raises(InvalidPayload, match="nested deeper"):
        handler.enqueue(nested(150))
    await app.aclose()
