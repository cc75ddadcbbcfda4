"""Acknowledgements that ask for further jobs: one request, and one transaction, for a worker that goes on."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from ojster.core.errors import OjsterError
from ojster.core.job import Job
from ojster.core.json_objects import read_members
from ojster.jobs.claim_policy import Claim
from ojster.jobs.messages import Acknowledgement
from ojster.jobs.scope import Caller
from tests.conftest import Bench, Http

pytestmark = pytest.mark.anyio

WANTED = {"queues": ["default"], "worker_id": "w"}


async def first(http: Http, **more: Any) -> dict[str, Any]:
    (job,) = (await http("POST", "/ojs/v1/workers/fetch", WANTED | more)).json()["jobs"]
    return dict(job)


async def test_a_worker_gets_its_next_job_with_the_answer_to_the_last(http: Http) -> None:
    for _ in range(3):
        await http.push()
    one = await first(http)
    answer = await http("POST", "/ojs/v1/workers/ack", {"job_id": one["id"], "worker_id": "w", "fetch": WANTED})
    (two,) = answer.json()["jobs"]
    assert (answer.json()["acknowledged"], answer.json()["id"]) == (True, one["id"])
    assert (two["state"], two["attempt"], two["id"] != one["id"]) == ("active", 1, True)
    answer = await http("POST", f"/ojs/v1/jobs/{two['id']}/ack", {"fetch": WANTED | {"count": 5}})
    assert len(answer.json()["jobs"]) == 1
    three = answer.json()["jobs"][0]
    answer = await http("POST", "/ojs/v1/workers/ack", {"job_id": three["id"], "fetch": WANTED})
    assert answer.json()["jobs"] == []
    assert "jobs" not in (await http("POST", "/ojs/v1/workers/ack/batch", {"acks": []})).json()


async def test_the_next_step_of_a_chain_comes_with_the_answer(http: Http) -> None:
    steps = [{"type": "step", "args": [number]} for number in range(5)]
    await http("POST", "/ojs/v1/workflows", {"type": "chain", "steps": steps})
    job = await first(http)
    seen = [job["args"][0]]
    while jobs := (await http("POST", "/ojs/v1/workers/ack", {"job_id": job["id"], "fetch": WANTED})).json()["jobs"]:
        (job,) = jobs
        seen.append(job["args"][0])
    assert seen == [0, 1, 2, 3, 4]


async def test_a_batch_of_acknowledgements_asks_for_as_many(http: Http) -> None:
    for _ in range(6):
        await http.push()
    some = (await http("POST", "/ojs/v1/workers/fetch", WANTED | {"count": 3})).json()["jobs"]
    acks = [{"job_id": job["id"]} for job in some] + [{"job_id": some[0]["id"]}]
    answer = (await http("POST", "/ojs/v1/workers/ack/batch", {"acks": acks, "fetch": WANTED | {"count": 3}})).json()
    assert ["error" in one for one in answer["results"]] == [False, False, False, True]
    assert len(answer["jobs"]) == 3


async def test_a_slot_that_an_acknowledgement_frees_is_used_by_its_fetch(http: Http) -> None:
    limited = {"options": {"rate_limit": {"key": "k", "concurrency": 1}}}
    for _ in range(2):
        await http.push(**limited)
    one = await first(http)
    assert (await http("POST", "/ojs/v1/workers/fetch", WANTED)).json()["jobs"] == []
    answer = await http("POST", "/ojs/v1/workers/ack", {"job_id": one["id"], "fetch": WANTED})
    assert len(answer.json()["jobs"]) == 1


async def test_a_refused_acknowledgement_keeps_no_job(http: Http, bench: Bench) -> None:
    await http.push()
    one = await first(http)
    await http("POST", "/ojs/v1/workers/ack", {"job_id": one["id"]})
    waiting = await http.push()
    refused = await http("POST", "/ojs/v1/workers/ack", {"job_id": one["id"], "fetch": WANTED})
    assert refused.status_code == 409
    again = await first(http)
    assert (again["id"], again["attempt"]) == (waiting["id"], 1)


async def test_a_fetch_that_is_refused_does_not_undo_the_acknowledgement(http: Http, bench: Bench) -> None:
    await http.push()
    one = await first(http)
    wrong = await http("POST", "/ojs/v1/workers/ack", {"job_id": one["id"], "fetch": {"queues": ["ojster.x"]}})
    assert wrong.status_code == 403
    assert (await bench.find(one["id"])).state == "active"
    patient = await http("POST", "/ojs/v1/workers/ack", {"job_id": one["id"], "fetch": WANTED | {"wait_ms": 5}})
    assert (patient.status_code, patient.json()["error"]["details"]["field"]) == (400, "fetch.wait_ms")
    assert (await http("POST", "/ojs/v1/workers/ack", {"job_id": one["id"]})).status_code == 200


async def test_the_manifest_says_that_it_can(http: Http) -> None:
    details = (await http("GET", "/ojs/manifest")).json()["capability_details"]
    assert details["acknowledgement"] == {"fetch": True}


async def test_a_caller_of_a_tenant_gets_its_next_step_as_well(bench: Bench) -> None:
    """What a caller may do is looked up first, so that both parts still come together."""
    mine = bench.service.as_(Caller("acme"))
    steps = [{"type": "step", "args": [number]} for number in range(4)]
    await mine.workflows.create(read_members(msgspec.json.encode({"type": "chain", "steps": steps})))
    claim = Claim(("default",), 1, "w")
    (job,) = await mine.jobs.fetch(claim)
    seen = [job.args[0]]
    while True:
        item = Acknowledgement(job.id, None, "w", job.attempt)
        (outcome,), jobs = await mine.jobs.acknowledge_and_fetch([item], claim)
        assert isinstance(outcome, Job)
        if not jobs:
            break
        assert isinstance(jobs, list)
        (job,) = jobs
        seen.append(job.args[0])
    assert seen == [0, 1, 2, 3]


@pytest.mark.parametrize("size", [1, 150, 700])
async def test_both_are_one_transaction_however_many_are_acknowledged(bench: Bench, size: int) -> None:
    """The threads of a database share much work; the fetch must not go to another one, which does not see the ends."""
    steps = [{"type": "a", "args": []}, {"type": "b", "args": []}]
    chain = read_members(msgspec.json.encode({"type": "chain", "steps": steps}))
    await asyncio.gather(*(bench.service.workflows.create(chain) for _ in range(size)))
    claim = Claim(("default",), 1_000, "w")
    jobs = await bench.service.jobs.fetch(claim)
    assert [job.type for job in jobs] == ["a"] * size
    others = [bench.push("c") for _ in range(50)]
    acks = [Acknowledgement(job.id, None, "w", job.attempt) for job in jobs]
    going_on = asyncio.create_task(bench.service.jobs.acknowledge_and_fetch(acks, claim))
    await asyncio.gather(*others)
    outcomes, found = await going_on
    assert not any(isinstance(outcome, OjsterError) for outcome in outcomes)
    assert isinstance(found, list)
    assert [job.type for job in found].count("b") == size
