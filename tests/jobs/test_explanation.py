"""Why a job waits, as each capability says it."""

from __future__ import annotations

from typing import Any

import pytest

from ojster.core.errors import NotFound
from ojster.core.job import Job
from ojster.jobs.messages import Release
from ojster.jobs.scope import Caller
from ojster.tenancy import tenants
from ojster.tenancy.tenants import TenantChange
from tests.conftest import Bench, Http
from tests.workflows.bench import WorkflowBench, chain, job

pytestmark = pytest.mark.anyio

WORKER = {"worker_id": "w", "queues": ["default"], "state": "running"}


async def codes(bench: Bench, job: Any) -> list[str]:
    return [reason.code for reason in (await bench.service.jobs.explain(job.id)).reasons]


async def present(http: Http, **more: Any) -> None:
    """Let a worker be there that takes jobs of the default queue."""
    answer = await http("POST", "/ojs/v1/workers/heartbeat", WORKER | more)
    assert answer.status_code == 200, answer.text


async def test_the_state_of_a_job_may_be_the_reason(bench: Bench) -> None:
    later = await bench.push(delay_until="+PT10S")
    assert await codes(bench, later) == ["scheduled"]
    job = await bench.push(retry={"max_attempts": 2, "initial_interval": "PT1S", "jitter": False})
    held = await bench.fetch_one(worker_id="w")
    (active,) = (await bench.service.jobs.explain(job.id)).reasons
    assert (active.code, "'w'" in active.message, "attempt 1 of 2" in active.message) == ("active", True, True)
    await bench.fail(held)
    (retry,) = (await bench.service.jobs.explain(job.id)).reasons
    assert (retry.code, retry.until) == ("retry", "2027-01-15T08:00:01.000000Z")
    await bench.run_due(2)
    again = await bench.fetch_one(worker_id="w")
    await bench.service.jobs.release([Release(again.id, "w", again.attempt, then="wait")])
    assert await codes(bench, job) == ["suspended"]
    await bench.service.jobs.cancel(job.id)
    assert await codes(bench, job) == ["finished"]


async def test_a_suspended_step_leads_to_its_workflow(flow: WorkflowBench) -> None:
    await flow.create(chain(job("a"), job("b")))
    (step,) = await flow.take()
    await flow.service.jobs.release([Release(step.id, step.worker_id, step.attempt, then="wait")])
    (why,) = (await flow.service.jobs.explain(step.id)).reasons
    assert (why.code, "the status of its workflow says" in why.message) == ("suspended", True)


async def test_a_job_waits_for_a_worker_and_for_its_turn(bench: Bench, http: Http) -> None:
    first, second = await bench.push(priority=5), await bench.push()
    (why, _) = (await bench.service.jobs.explain(first.id)).reasons
    assert (why.code, why.message) == ("no_worker", "No worker can run it: no worker takes jobs of this queue.")
    await present(http)
    assert await codes(bench, first) == ["next"]
    (turn,) = (await bench.service.jobs.explain(second.id)).reasons
    assert (turn.code, turn.message) == ("turn", "1 job of its queue is before it.")


async def test_pauses_maintenance_and_limits_hold_jobs_back(bench: Bench, http: Http) -> None:
    await present(http)
    job = await bench.push(rate_limit={"key": "api", "concurrency": 1})
    other = await bench.push(rate_limit={"key": "api", "concurrency": 1})
    await bench.fetch_one()
    (limit, _) = (await bench.service.jobs.explain(other.id)).reasons
    assert (limit.code, "'api'" in limit.message, "at once" in limit.message) == ("limit", True, True)
    assert await codes(bench, job) == ["active"]
    await http("POST", "/ojs/v1/queues/default/pause")
    await http("POST", "/ojs/v1/admin/maintenance", {"enabled": True})
    found = await codes(bench, other)
    assert found[-3:] == ["paused", "limit", "turn"]


async def test_a_tenant_may_run_no_more(bench: Bench, http: Http) -> None:
    await present(http)
    await bench.service.scope.do(tenants.put_tenants, TenantChange("acme", {"max_concurrency": 1}))
    await bench.push(meta={"tenant_id": "acme"})
    waits = await bench.push(meta={"tenant_id": "acme"})
    await bench.fetch_one()
    (why, _) = (await bench.service.jobs.explain(waits.id)).reasons
    assert (why.code, why.message) == ("tenant", "As many jobs of the tenant 'acme' run as may run at once: 1.")


async def test_only_who_may_see_a_job_is_told(bench: Bench, http: Http) -> None:
    job = await bench.push(meta={"tenant_id": "acme"})
    for view, id in ((bench.service.as_(Caller("beta")), job.id), (bench.service, "none")):
        with pytest.raises(NotFound):
            await view.jobs.explain(id)
    answer = await http("GET", f"/ojs/v1/jobs/{job.id}/explanation")
    assert (answer.status_code, answer.json()["state"]) == (200, "available")


async def test_the_place_in_the_queue_is_a_number(bench: Bench) -> None:
    low, first = await bench.push(), await bench.push(priority=5)
    last = await bench.push()

    async def position(job: Job) -> int | None:
        return (await bench.service.jobs.explain(job.id)).position

    assert [await position(job) for job in (first, low, last)] == [1, 2, 3]
    await bench.ack(await bench.fetch_one())
    assert [await position(job) for job in (first, low, last)] == [None, 1, 2]


async def test_the_limits_of_a_job_and_of_its_queue_are_shown_with_their_use(bench: Bench, http: Http) -> None:
    rate = {"limit": 3, "period": "PT60S"}
    await http("PUT", "/ojs/v1/admin/queues/default/config", {"concurrency": 4})
    limit = {"key": "stripe", "concurrency": 2, "rate": rate}
    jobs = [await bench.push("pay", rate_limit=limit) for _ in range(3)]
    await bench.fetch_one()
    answer = (await http("GET", f"/ojs/v1/jobs/{jobs[-1].id}/explanation")).json()
    assert answer["position"] == 2
    assert answer["limits"] == [
        {"kind": "concurrency", "limit": 2, "used": 1, "key": "stripe"},
        {"kind": "rate", "limit": 3, "used": 1, "key": "stripe", "period": "PT1M"},
        {"kind": "concurrency", "limit": 4, "used": 1},
    ]
    await bench.service.jobs.cancel(jobs[-1].id)
    assert (await bench.service.jobs.explain(jobs[-1].id)).limits == [], "one that is finished is under none"


async def test_the_quotas_of_the_tenant_of_a_job_are_shown_with_their_use(bench: Bench, http: Http) -> None:
    quotas = {
        "max_concurrency": 4,
        "max_queue_depth": 9,
        "max_scheduled": 3,
        "max_enqueue_rate": {"limit": 50, "period": "PT1M"},
    }
    await http("PUT", "/ojs/v1/admin/tenants/acme", {"limits": quotas})
    acme = {"X-OJS-Tenant": "acme"}
    for options in ({}, {}, {"scheduled_at": "+PT1H"}):
        body = {"type": "pay", "args": [], "options": options}
        job = (await http("POST", "/ojs/v1/jobs", body, headers=acme)).json()["job"]
    await bench.fetch_one()
    shown = (await http("GET", f"/ojs/v1/jobs/{job['id']}/explanation", headers=acme)).json()["limits"]
    assert shown == [
        {"kind": "concurrency", "limit": 4, "used": 1, "tenant": "acme"},
        {"kind": "depth", "limit": 9, "used": 2, "tenant": "acme"},
        {"kind": "scheduled", "limit": 3, "used": 1, "tenant": "acme"},
        {"kind": "pushes", "limit": 50, "used": 3, "period": "PT1M", "tenant": "acme"},
    ]
    other = await bench.push()
    assert (await bench.service.jobs.explain(other.id)).limits == [], "it belongs to no tenant"
