"""Results that are kept for a time of their own, and of a size that their job limits (ojs-results 6, 7)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from ojster.core.durations import HOUR
from ojster.core.errors import NotFound, OjsterError
from ojster.core.events import EventFilter
from ojster.core.refusals import ResultTooLarge
from ojster.core.settings import ServiceRetention, ServiceSettings
from ojster.jobs.messages import Acknowledgement
from ojster.schedules.retention import forget
from ojster.workflows.run.fork import Fork
from tests.conftest import Bench, Http, request, shown
from tests.workflows.bench import WorkflowBench, batch, chain, graph, group, job, ref

pytestmark = pytest.mark.anyio

JOBS = "/ojs/v1/jobs"


@pytest.fixture
def engine_settings() -> ServiceSettings:
    """Settings by which completed jobs are kept for an hour."""
    return ServiceSettings(retention=ServiceRetention(completed=HOUR))


async def prune(bench: Bench, after: float = 0.0) -> None:
    bench.clock.advance(after)
    await bench.run(forget, None)


async def completed(http: Http, bench: Bench, **members: Any) -> str:
    job = await http.push(type="a", **members)
    await bench.ack(await bench.fetch_one(), b'{"a": 1}')
    return str(job["id"])


async def test_a_result_says_when_it_was_stored_and_how_large_it_is(http: Http, bench: Bench) -> None:
    id = await completed(http, bench)
    job = (await http("GET", f"{JOBS}/{id}")).json()["job"]
    assert (job["result_stored_at"], job["result_size_bytes"]) == (job["completed_at"], 8)
    assert "result_expires_at" not in job
    answer = (await http("GET", f"{JOBS}/{id}/result")).json()
    assert (answer["result_stored_at"], answer["result_size_bytes"]) == (job["completed_at"], 8)


@pytest.mark.parametrize("place", ["top", "options"])
async def test_a_result_is_deleted_after_its_time_and_the_job_after_its_own(
    http: Http, bench: Bench, place: str
) -> None:
    id = await completed(http, bench, **({"result_ttl": 60} if place == "top" else {"options": {"result_ttl": 60}}))
    job = (await http("GET", f"{JOBS}/{id}")).json()["job"]
    assert (job["result_ttl"], job["result"]) == (60, {"a": 1})
    assert job["result_expires_at"] == "2027-01-15T08:01:00.000000Z"
    await prune(bench, 59)
    assert (await http("GET", f"{JOBS}/{id}/result")).json()["result"] == {"a": 1}
    await prune(bench, 1)
    gone = await http("GET", f"{JOBS}/{id}/result")
    assert (gone.status_code, gone.json()["error"]["code"]) == (410, "x_result_expired")
    found = (await http("GET", f"{JOBS}/{id}")).json()["job"]
    assert found["state"] == "completed"
    assert not {"result", "result_stored_at", "result_expires_at", "result_size_bytes"} & found.keys()
    results = (await http("POST", f"{JOBS}/results", {"ids": [id]})).json()["results"]
    assert results[id]["result"] is None
    await prune(bench, 3600)
    assert (await http("GET", f"{JOBS}/{id}")).status_code == 404


async def test_a_job_is_not_deleted_before_its_result(http: Http, bench: Bench) -> None:
    long, forever = [await completed(http, bench, result_ttl=ttl) for ttl in (7200, -1)]
    await prune(bench, 3601)
    assert (await http("GET", f"{JOBS}/{long}/result")).json()["result"] == {"a": 1}
    await prune(bench, 3600)
    assert (await http("GET", f"{JOBS}/{long}")).status_code == 404
    await prune(bench, 3600 * 24 * 365 * 50)
    assert (await http("GET", f"{JOBS}/{forever}/result")).json()["result"] == {"a": 1}


async def test_a_result_that_is_not_to_be_kept_is_not_stored(http: Http, bench: Bench) -> None:
    id = await completed(http, bench, result_ttl=0)
    assert (await http("GET", f"{JOBS}/{id}/result")).status_code == 410
    assert "result" not in shown(await bench.find(id))


async def test_a_job_that_is_deleted_earlier_takes_its_result_along(http: Http, bench: Bench) -> None:
    id = await completed(http, bench, result_ttl=60, expiration_delay="PT30S")
    assert shown(await bench.find(id))["result_expires_at"] == "2027-01-15T08:00:30.000000Z"
    later = await completed(http, bench, result_ttl=60, expiration_delay="PT3H")
    await prune(bench, 30)
    await prune(bench)
    assert (await http("GET", f"{JOBS}/{id}")).status_code == 404
    await prune(bench, 3600 * 2)
    assert (await http("GET", f"{JOBS}/{later}/result")).status_code == 410
    await prune(bench, 3600)
    assert (await http("GET", f"{JOBS}/{later}")).status_code == 404


@pytest.mark.parametrize("limits", [{}, {"result_ttl": 60}, {"result_size_limit": 100}, {"result_ttl": -1}], ids=str)
@pytest.mark.parametrize("end", ["completed", "discarded", "dead", "cancelled"])
async def test_a_job_with_limits_of_its_result_is_deleted_after_its_own_time_however_it_ends(
    bench: Bench, end: str, limits: dict[str, Any]
) -> None:
    exhaustion = "dead_letter" if end == "dead" else "discard"
    retry = {"max_attempts": 1, "on_exhaustion": exhaustion}
    new = request(retry=retry, **limits) | {"expiration_delay": msgspec.Raw(b'"PT1H"')}
    (pushed,) = await bench.service.jobs.enqueue([new])
    active = await bench.fetch_one()
    match end:
        case "completed":
            await bench.ack(active, b"1")
        case "cancelled":
            await bench.service.jobs.cancel(active.id)
        case _:
            await bench.fail(active)
    await prune(bench, 3_599)
    assert (await bench.find(active)).dead == (end == "dead")
    for after in (1, 0):  # the result first
        await prune(bench, after)
    with pytest.raises(NotFound):
        await bench.find(pushed.job)


async def test_the_result_of_a_step_is_kept_until_its_workflow_ends(flow: WorkflowBench) -> None:
    steps: list[dict[str, Any]] = [{"id": "a", "type": "a", "args": [], "options": {"result_ttl": 0}}]
    steps.append({"id": "b", "type": "b", "args": [{"$ref": "steps.a.result"}], "depends_on": ["a"]})
    await flow.create({"type": "graph", "steps": steps})
    (first,) = await flow.take()
    await flow.ack(first, b'"kept"')
    await prune(flow, 60)
    (second,) = await flow.take()
    assert second.args == ["kept"]
    await flow.ack(second)
    await prune(flow, 3600)
    assert (await flow.find(first)).result is None


async def test_the_result_of_a_step_is_kept_until_the_forks_of_its_workflow_end(flow: WorkflowBench) -> None:
    kept = job("a", id="a", result_ttl=60)
    await flow.create(chain(kept, {"type": "gate", "id": "go"}, job("b", ref("steps.a.result")), job("c")))
    (first,) = await flow.take()
    await flow.ack(first, b'"kept"')
    await flow.review("go", "approve")
    assert await flow.work() == ["b", "c"]
    flow.id = (await flow.service.workflows.fork(Fork(flow.id, "2"))).id
    assert await flow.work() == ["b", "c"]
    flow.id = (await flow.service.workflows.fork(Fork(flow.id, "go"))).id
    await prune(flow, 3600)
    await flow.review("go", "approve")
    (second,) = await flow.take()
    assert (second.args, msgspec.json.decode(second.parent_results or b"")[0]) == (["kept"], "kept")
    await flow.ack(second)
    assert await flow.work() == ["c"]
    await prune(flow, 3600)
    assert (await flow.find(first)).result is None


async def again(flow: WorkflowBench, how: str, step: str) -> None:
    """Retry a workflow or fork it from a step, after the time of all results that have one."""
    await prune(flow, 3600)
    if how == "retry":
        await flow.service.workflows.retry(flow.id)
    else:
        flow.id = (await flow.service.workflows.fork(Fork(flow.id, step))).id


@pytest.mark.parametrize(
    ("wire", "received"),
    [
        (chain(job("a", id="a", result_ttl=60), job("b")), ["kept"]),
        (graph(job("a", id="a", result_ttl=60), job("b", id="b", depends_on=["a"])), {"a": "kept"}),
        (batch(job("a", result_ttl=60), on_complete=job("b")), ["kept"]),
        (chain(group(job("a", result_ttl=60)), job("b")), [{"0": "kept"}]),
    ],
    ids=["chain", "graph", "batch", "group"],
)
async def test_a_retry_keeps_the_results_whose_time_ends_before_its_steps_begin(
    flow: WorkflowBench, wire: dict[str, Any], received: Any
) -> None:
    await flow.create(wire)
    await flow.work("b", results={"a": "kept"})
    await flow.service.workflows.retry(flow.id)
    await prune(flow, 3600)
    assert await flow.work() == ["b"]
    assert flow.given["b"] == received


AGAIN = pytest.mark.parametrize("how", ["retry", "fork"])


MAP = {"type": "map", "over": ref("steps.a.result"), "do": job("b", ref("item")), "id": "b"}


@pytest.mark.parametrize(
    ("how", "step"),
    [
        ("retry", job("b", ref("steps.a.result"), id="b")),
        ("fork", job("b", ref("steps.a.result"), id="b")),
        ("retry", job("b", ref("steps.a.result.from"), id="b")),
        ("fork", MAP),  # a retry has its elements
    ],
    ids=["retry", "fork", "retry, a part", "fork, elements"],
)
async def test_a_step_that_refers_to_a_deleted_result_fails_when_it_runs_again(
    flow: WorkflowBench, how: str, step: dict[str, Any]
) -> None:
    await flow.create(chain(job("a", id="a", result_ttl=60), step))
    await flow.work("b", results={"a": [1] if step["type"] == "map" else {"from": "a"}})
    assert await flow.state() == "failed"
    await again(flow, how, "b")
    assert await flow.work() == []
    error = msgspec.json.decode(msgspec.json.encode((await flow.step("b")).error))
    assert error["code"] == "x_result_expired"
    assert "The result of the step 'a', or a part of it, was deleted after its 'result_ttl'. Fork" in error["message"]


@AGAIN
@pytest.mark.parametrize("result", [None, b"null"])
async def test_a_result_that_was_null_by_itself_stays_usable(
    flow: WorkflowBench, how: str, result: bytes | None
) -> None:
    await flow.create(
        chain(job("a", id="a", result_ttl=60, expiration_delay="PT1M"), job("b", ref("steps.a.result"), id="b"))
    )
    (first,) = await flow.take()
    await flow.ack(first, result)
    assert await flow.work("b") == ["b"]
    await again(flow, how, "b")
    assert await flow.work() == ["b"]
    assert flow.arguments["b"] == [None]


@AGAIN
async def test_of_a_group_only_the_deleted_results_cannot_be_referred_to(flow: WorkflowBench, how: str) -> None:
    both = group(job("a", result_ttl=60), job("a")) | {"id": "both"}
    uses = [
        job(f"use{part.replace('.', '-')}", ref("steps.both.result" + part))
        for part in ("", ".0", ".0.from", ".1", ".1.from")
    ]
    await flow.create(chain(both, group(*uses) | {"id": "uses"}))
    await flow.work("use", "use-0", "use-0-from", "use-1", "use-1-from")
    await again(flow, how, "uses")
    assert sorted(await flow.work()) == ["use-1", "use-1-from"]
    assert flow.arguments["use-1-from"] == ["a"]


@AGAIN
async def test_a_condition_that_needs_a_deleted_result_says_so(flow: WorkflowBench, how: str) -> None:
    conditions = {"state": "steps.a.state == 'completed'", "result": "steps.a.result.from == 'a'"}
    steps = [job(name, if_=condition) for name, condition in conditions.items()]
    await flow.create(chain(job("a", id="a", result_ttl=60), group(*steps) | {"id": "b"}))
    await flow.work("state", "result")
    await again(flow, how, "b")
    assert await flow.work() == ["state"]
    error = msgspec.json.decode(msgspec.json.encode((await flow.step("b.1")).error))
    assert error["code"] == "condition_failed"
    assert "The result of the step 'a', or a part of it, was deleted after its 'result_ttl'" in error["message"]


async def test_a_result_larger_than_the_job_allows_is_refused_and_the_job_stays_active(
    http: Http, bench: Bench
) -> None:
    await http.push(type="a", result_size_limit=10)
    await http.push(type="b")
    limited, free = await bench.fetch(count=2)
    acks = [Acknowledgement(job.id, b'"123456789"', job.worker_id, job.attempt) for job in (limited, free)]
    refused, done = await bench.service.jobs.acknowledge(acks)
    assert isinstance(refused, ResultTooLarge)
    assert not isinstance(done, OjsterError)
    answer = await http("POST", f"{JOBS}/{limited.id}/ack", {"result": "123456789"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "RESULT_TOO_LARGE")
    shown = {"limit": 10, "max_bytes": 10, "actual_bytes": 11, "field": "result"}
    assert answer.json()["error"]["details"] == shown
    assert (await bench.find(limited)).state == "active"
    assert (await http("POST", f"{JOBS}/{limited.id}/ack", {"result": "12345678"})).status_code == 200


async def test_an_attempt_has_time_to_clean_up_after_its_timeout(bench: Bench) -> None:
    await bench.push(timeout=10, grace_period=5, retry={"max_attempts": 1}, visibility_timeout=3600)
    job = await bench.fetch_one(worker_id="w")
    await bench.run_due(14.9)
    assert (await bench.find(job)).state == "active"
    await bench.run_due(0.1)
    ended = await bench.find(job)
    assert (ended.state, ended.error_type) == ("discarded", "timeout")
    assert shown(ended)["error"]["limit_seconds"] == 10


async def test_an_attempt_without_a_sign_of_life_has_stalled(http: Http, bench: Bench) -> None:
    await bench.push(heartbeat_timeout=10, retry={"max_attempts": 1})
    job = await bench.fetch_one(worker_id="w", lease=3_600_000_000)
    for call in ("heartbeat", "progress"):
        await bench.run_due(9)
        if call == "heartbeat":
            beat = {"worker_id": "w", "active_jobs": [job.id], "visibility_timeout_ms": 3_600_000}
            await http("POST", "/ojs/v1/workers/heartbeat", beat)
        else:
            await http("PUT", f"{JOBS}/{job.id}/progress", {"progress": 0.5, "worker_id": "w"})
        assert (await bench.find(job)).state == "active"
    await bench.run_due(12)
    ended = await bench.find(job)
    assert (ended.state, ended.error_type, ended.outcome) == ("discarded", "stalled", "error")
    facts = {"timeout_kind": "stalled", "limit_seconds": 10, "elapsed_seconds": 12}
    assert shown(ended)["error"].items() >= {"code": "stalled", **facts}.items()
    (stalled,) = (await bench.service.events.select(EventFilter(types=("job.stalled",)))).events
    about = {"job_id": job.id, "job_type": job.type, "queue": job.queue, "attempt": 1}
    assert stalled["data"].items() >= {**about, **facts}.items()
