"""Queues are created with their configuration, take only the job types that they allow, and are deleted.

Spec: ojs-queue-config 5, 6.5, 9
"""

from __future__ import annotations

from typing import Any

import httpx
import msgspec
import pytest

from ojster.core.refusals import JobTypeNotAllowed
from tests.conftest import Bench, Http
from tests.workflows.bench import WorkflowBench, chain, job

pytestmark = pytest.mark.anyio

QUEUES = "/ojs/v1/queues"


async def create(http: Http, **config: Any) -> httpx.Response:
    return await http("POST", QUEUES, {"name": "payments", "config": config})


async def test_a_queue_is_created_with_its_configuration(http: Http) -> None:
    config = {"max_size": 2, "overflow_policy": "drop_oldest", "concurrency": 20, "retention": {"completed": "P3D"}}
    answer = await create(http, **config, allowed_job_types=["payment.*"])
    assert answer.status_code == 201
    assert answer.headers["location"] == f"{QUEUES}/payments"
    made = answer.json()
    assert (made["name"], made["state"]) == ("payments", "active")
    assert made["config"]["allowed_job_types"] == ["payment.*"]
    assert made["config"]["concurrency"] == 20
    assert made["config"]["backpressure"]["max_depth"] == 2
    assert made["config"]["backpressure"]["strategy"] == "drop_oldest"
    shown = (await http("GET", f"{QUEUES}/payments/config")).json()
    assert shown["configuration"] == made["config"]
    assert [queue["name"] for queue in (await http("GET", QUEUES)).json()["queues"]] == ["payments"]


async def test_a_queue_that_exists_is_not_created_again(http: Http) -> None:
    assert (await create(http)).status_code == 201
    again = await create(http, concurrency=1)
    assert again.status_code == 409
    assert "PUT /queues/payments/config" in again.json()["error"]["message"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": "No spaces"},
        {"name": "q", "config": {"allowed_job_types": ["*.x"]}},
        {"name": "q", "config": {"allowed_job_types": "payment.*"}},
        {"name": "q", "config": {"producers": ["billing"]}},
        {"name": "q", "config": {"retention": {"completed": "soon"}}},
        {},
    ],
)
async def test_what_cannot_be_set_creates_no_queue(http: Http, wrong: dict[str, Any]) -> None:
    assert (await http("POST", QUEUES, wrong)).status_code == 400
    assert (await http("GET", QUEUES)).json()["queues"] == []


async def test_a_queue_takes_only_the_job_types_that_it_allows(http: Http, bench: Bench) -> None:
    await create(http, allowed_job_types=["payment.*", "audit"])
    for type, status in {"payment.charge": 201, "audit": 201, "audit.log": 422, "email.send": 422}.items():
        answer = await http("POST", "/ojs/v1/jobs", {"type": type, "args": [], "queue": "payments"})
        assert answer.status_code == status, type
        if status == 422:
            error = answer.json()["error"]
            assert (error["code"], error["details"]["queue"]) == ("job_type_not_allowed", "payments")
            assert "payment.*" in error["message"]
    await bench.push("email.send")
    with pytest.raises(JobTypeNotAllowed):
        await bench.push("email.send", queue="payments")
    await http("PUT", f"{QUEUES}/payments/config", {"allowed_job_types": ["*"]})
    await bench.push("email.send", queue="payments")


async def test_a_step_whose_type_is_not_allowed_fails(http: Http, flow: WorkflowBench) -> None:
    await create(http, allowed_job_types=["payment.*"])
    await flow.create(chain(job("email.send", options={"queue": "payments"})) | {"on_error": job("tidy")})
    assert await flow.work() == ["tidy"]
    info = await flow.look()
    assert info.error is not None
    assert info.error.errors is not None
    assert "job_type_not_allowed" in msgspec.json.encode(info.error).decode()


async def test_an_empty_queue_is_deleted_with_its_configuration(http: Http, bench: Bench) -> None:
    await create(http, concurrency=1, allowed_job_types=["a"])
    taken = await bench.push("a", queue="payments")
    assert (await http("DELETE", f"{QUEUES}/payments")).status_code == 409
    await bench.ack(await bench.fetch_one("payments"))
    answer = await http("DELETE", f"{QUEUES}/payments", {"strategy": "reject"})
    assert (answer.status_code, answer.json()["state"]) == (200, "deleted")
    assert (await http("GET", f"{QUEUES}/payments")).status_code == 404
    assert (await http("DELETE", f"{QUEUES}/payments")).status_code == 404
    assert (await bench.find(taken)).state == "completed"
    for _ in range(2):
        await bench.push("b", queue="payments")
    assert len(await bench.fetch("payments", count=5)) == 2, "it is a new queue, without limits"


@pytest.mark.parametrize("number", [3, 450])
async def test_waiting_jobs_are_discarded_with_their_queue(http: Http, bench: Bench, number: int) -> None:
    for place in range(number):
        when = {"scheduled_at": "+PT60S"} if place % 3 == 1 else {}
        await bench.push("a", queue="payments", **when)
    other = await bench.push("a")
    answer = await http("DELETE", f"{QUEUES}/payments", {"strategy": "discard"})
    assert answer.json()["jobs_affected"] == number
    counts = await bench.service.jobs.count()
    assert "payments" not in counts or not counts["payments"].get("available")
    assert (await bench.find(other)).state == "available"


async def test_discarded_jobs_say_why(http: Http, bench: Bench) -> None:
    job = await bench.push("a", queue="payments")
    await http("DELETE", f"{QUEUES}/payments", {"strategy": "discard"})
    shown = (await http("GET", f"/ojs/v1/jobs/{job.id}")).json()["job"]
    assert (shown["state"], shown["error"]["type"]) == ("discarded", "queue_deleted")


async def test_waiting_jobs_are_moved_to_another_queue(http: Http, bench: Bench) -> None:
    urgent = await bench.push("a", queue="payments", priority=5)
    later = await bench.push("b", queue="payments", scheduled_at="+PT60S")
    answer = await http("DELETE", f"{QUEUES}/payments", {"strategy": "move", "target_queue": "billing"})
    assert answer.json() == {
        "queue": "payments",
        "strategy": "move",
        "jobs_affected": 2,
        "state": "deleted",
        "target_queue": "billing",
    }
    assert (await bench.fetch_one("billing")).id == urgent.id
    await bench.run_due(60)
    assert (await bench.fetch_one("billing")).id == later.id
    stats = await bench.service.queues.statistics("billing")
    assert stats.counts["active"] == 2


async def test_no_job_is_moved_to_a_queue_that_does_not_take_its_type(http: Http, bench: Bench) -> None:
    waiting = [await bench.push(type, queue="payments") for type in ("mail.send", "pay")]
    await http("PUT", f"{QUEUES}/billing/config", {"allowed_job_types": ["mail.*"]})
    order = {"strategy": "move", "target_queue": "billing"}
    refused = await http("DELETE", f"{QUEUES}/payments", order)
    assert (refused.status_code, "does not take jobs of type 'pay'" in refused.text) == (422, True), refused.text
    assert {(await bench.find(job)).queue for job in waiting} == {"payments"}
    await http("PUT", f"{QUEUES}/billing/config", {"allowed_job_types": ["mail.*", "pay"]})
    assert (await http("DELETE", f"{QUEUES}/payments", order)).json()["jobs_affected"] == 2


async def test_maintenance_does_not_bring_a_deleted_queue_back(bench: Bench) -> None:
    """Its finished jobs stay until their retention ends, and are still counted."""
    await bench.push(queue="payments")
    await bench.ack(await bench.fetch_one("payments"))
    await bench.service.queues.delete("payments")
    await bench.run_due()
    assert await bench.service.queues.all() == []
    await bench.push(queue="payments")
    assert [queue.name for queue in await bench.service.queues.all()] == ["payments"]


async def test_a_queue_with_active_jobs_is_not_deleted(http: Http, bench: Bench) -> None:
    await bench.push("a", queue="payments")
    await bench.fetch_one("payments")
    waiting = await bench.push("b", queue="payments")
    for order in ({"strategy": "move", "target_queue": "billing"}, {"strategy": "discard"}):
        answer = await http("DELETE", f"{QUEUES}/payments", order)
        assert answer.status_code == 409
        assert "1 active" in answer.json()["error"]["message"]
    assert (await bench.find(waiting)).queue == "billing", "what waited was moved all the same"


async def test_steps_in_a_discarded_queue_fail_their_workflow(http: Http, flow: WorkflowBench) -> None:
    await flow.create(chain(job("a", options={"queue": "payments"})) | {"on_error": job("tidy")})
    await http("DELETE", f"{QUEUES}/payments", {"strategy": "discard"})
    assert await flow.work() == ["tidy"]
    assert await flow.state() == "failed"


@pytest.mark.parametrize(
    "wrong",
    [
        {"strategy": "move"},
        {"strategy": "move", "target_queue": "payments"},
        {"strategy": "move", "target_queue": "No"},
        {"strategy": "discard", "target_queue": "billing"},
        {"strategy": "burn"},
    ],
)
async def test_an_order_that_contradicts_itself_deletes_nothing(http: Http, wrong: dict[str, Any]) -> None:
    await create(http)
    assert (await http("DELETE", f"{QUEUES}/payments", wrong)).status_code == 400
    assert (await http("GET", f"{QUEUES}/payments")).status_code == 200
