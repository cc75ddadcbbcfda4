"""Calls about jobs give the same results in the same process and over HTTP, down to the last parameter."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from ojster.client.interface import Client
from ojster.core.durations import SECOND
from ojster.core.errors import Conflict, Duplicate, InvalidRequest, NotFound, OjsterError
from ojster.core.ids import new_id
from ojster.core.job import Job
from ojster.core.json_objects import Members
from ojster.jobs.bulk import Action
from ojster.jobs.checkpoints import NewCheckpoint
from ojster.jobs.claim_policy import Claim
from ojster.jobs.failure import Failure
from ojster.jobs.filter_walk import JobFilter
from ojster.jobs.messages import Acknowledgement, FailureReport, Progress, Release
from ojster.jobs.queries import Page
from ojster.jobs.signatures import MAX_SIGNATURE_BYTES, MAX_SIGNATURES, Signature
from ojster.queues.fairness import Sharing
from ojster.service import Service
from tests.client.test_clients import client
from tests.conftest import START, Bench, request
from tests.waiting import PATIENCE

__all__ = ["client"]

pytestmark = pytest.mark.anyio


def members(**given: Any) -> Members:
    return {name: msgspec.Raw(msgspec.json.encode(value)) for name, value in given.items()}


async def held(client: Client, **options: Any) -> Job:
    await client.jobs.enqueue([request(**options)])
    (job,) = await client.jobs.fetch(Claim((options.get("queue", "default"),), worker_id="w"))
    return job


def done(results: Any) -> Job:
    (job,) = results
    assert isinstance(job, Job), job
    return job


async def test_dead_letters_are_selected_without_other_jobs(client: Client, bench: Bench) -> None:
    ids = []
    for queue in ("default", "q"):
        await client.jobs.enqueue([request("t", queue=queue)])
        await client.jobs.enqueue(
            [request("d", queue=queue, retry={"max_attempts": 1, "on_exhaustion": "dead_letter"})]
        )
        for _ in range(2):
            (job,) = await client.jobs.fetch(Claim((queue,), worker_id="w"))
            await client.jobs.fail([FailureReport(job.id, Failure("E", "no"), "w", 1)])
            ids.append(job.id)
    page = await client.jobs.select(JobFilter(dead=True))
    assert ([job.id for job in page.jobs], page.total) == ([ids[3], ids[1]], 2)
    assert [job.id for job in (await client.jobs.select(JobFilter(dead=True, queue="q"))).jobs] == [ids[3]]
    assert (await client.jobs.select(JobFilter(queue="q"))).total == 2
    for dead, wanted in ((True, 2), (None, 4)):
        assert (await client.jobs.select(JobFilter(dead=dead, error_type="E"))).total == wanted
        assert (await client.jobs.select(JobFilter(dead=dead, error_type="Other*"))).total == 0
    if not isinstance(client, Service):
        with pytest.raises(InvalidRequest, match="by these alone: created_after, created_before"):
            await client.jobs.select(JobFilter(priority=3))
    first = await client.jobs.select(JobFilter(dead=True), Page(1))
    assert ([job.id for job in first.jobs], first.total) == ([ids[3]], 2)
    assert first.next_before is not None
    rest = await client.jobs.select(JobFilter(dead=True), Page(1, before=first.next_before))
    assert ([job.id for job in rest.jobs], rest.next_before) == ([ids[1]], None)


async def test_jobs_are_selected_by_each_condition(client: Client) -> None:
    await client.jobs.enqueue([request("a.x"), request("a.y", queue="q"), request("b", pending=True)])

    async def types(chosen: JobFilter, page: Page | None = None) -> list[str]:
        return [job.type for job in (await client.jobs.select(chosen, page or Page())).jobs]

    assert await types(JobFilter()) == ["b", "a.y", "a.x"]
    assert await types(JobFilter(states=("pending",))) == ["b"]
    assert await types(JobFilter(states=("pending", "available"), type="a.*")) == ["a.y", "a.x"]
    assert await types(JobFilter(queue="q")) == ["a.y"]
    assert await types(JobFilter(), Page(1, 1)) == ["a.y"]


async def test_a_fetch_says_which_jobs_and_for_how_long(client: Client, bench: Bench) -> None:
    await client.jobs.enqueue([request(f"t{n % 2}", queue="q") for n in range(4)])
    jobs = await client.jobs.fetch(Claim(("q",), 5, "w", 7 * SECOND, types=("t1",)))
    assert [(job.type, job.worker_id) for job in jobs] == [("t1", "w")] * 2
    assert (await bench.find(jobs[0])).due_at == START + 7 * SECOND
    assert len(await client.jobs.fetch(Claim(("q",), 1))) == 1


async def test_a_fetch_shares_queues_by_weight(client: Client) -> None:
    await client.jobs.enqueue([request(queue=queue) for queue in ("a", "b") for _ in range(8)])
    sharing = Sharing("weighted", (("a", 0.5), ("b", 1.5)))
    jobs = await client.jobs.fetch(Claim(("a", "b"), 8, "w", sharing=sharing))
    assert [job.queue for job in jobs].count("b") == 6
    plain = await client.jobs.fetch(Claim(("a", "b"), 6, "w", sharing=Sharing()))
    assert [job.queue for job in plain] == ["a"] * 6


async def test_a_job_is_released_at_once_later_or_to_wait(client: Client, bench: Bench) -> None:
    job = await held(client)
    assert done(await client.jobs.release([Release(job.id, "w", job.attempt)])).state == "available"
    (job,) = await client.jobs.fetch(Claim(("default",), worker_id="w"))
    released = done(await client.jobs.release([Release(job.id, "w", job.attempt, delay=2 * SECOND)]))
    assert released.state == "scheduled"
    assert (await bench.find(job)).due_at == START + 2 * SECOND
    for order, due_at in (
        (Release("", "w", 1, then="wait", deadline=START + 3 * SECOND), START + 3 * SECOND),
        (Release("", "w", 1, then="wait", wait=4 * SECOND), START + 4 * SECOND),
        (Release("", "w", 1, then="wait"), None),
    ):
        job = await held(client)
        waiting = done(await client.jobs.release([msgspec.structs.replace(order, job_id=job.id)]))
        assert waiting.state == "pending"
        assert (await bench.find(job)).due_at == due_at


async def test_a_report_names_its_attempt_and_its_worker(client: Client) -> None:
    job = await held(client)
    for worker, attempt in (("x", 1), ("w", 2)):
        for results in (
            await client.jobs.acknowledge([Acknowledgement(job.id, None, worker, attempt)]),
            await client.jobs.fail([FailureReport(job.id, Failure("E", "no"), worker, attempt)]),
            await client.jobs.release([Release(job.id, worker, attempt)]),
        ):
            assert isinstance(results[0], Conflict), (worker, attempt)
        with pytest.raises(Conflict):
            await client.jobs.report(Progress(job.id, 0.5, worker_id=worker, attempt=attempt))
        with pytest.raises(Conflict):
            await client.jobs.save_checkpoint(NewCheckpoint(job.id, b"1", worker, attempt))
    assert done(await client.jobs.acknowledge([Acknowledgement(job.id, b"null", "w", 1)])).state == "completed"
    assert (await client.jobs.find(job.id)).result == b"null"


async def test_a_failure_is_reported_with_all_that_is_known(client: Client, bench: Bench) -> None:
    job = await held(client)
    failure = Failure("E", "no", "C", True, {"k": 1}, ("frame",))
    assert done(await client.jobs.fail([FailureReport(job.id, failure, "w", 1)])).state == "retryable"
    (error,) = msgspec.json.decode((await bench.find(job)).errors or b"[]")
    assert (error["type"], error["message"], error["code"]) == ("E", "no", "C")
    assert (error["details"], error["backtrace"]) == ({"k": 1}, ["frame"])


async def test_progress_may_be_a_share_a_message_and_data(client: Client, bench: Bench) -> None:
    job = await held(client)
    await client.jobs.report(Progress(job.id, 0.5, "half", "w", 1, b'{"page":7}'))
    kept = msgspec.json.decode((await bench.find(job)).progress or b"{}")
    assert (kept["progress"], kept["message"], kept["data"]) == (0.5, "half", {"page": 7})
    await client.jobs.save_checkpoint(NewCheckpoint(job.id, b'{"at":3}', "w", 1))
    assert (await bench.service.jobs.find_checkpoint(job.id)).state == b'{"at":3}'


async def test_a_wait_ends_with_the_job_or_its_time(client: Client) -> None:
    job = await held(client)
    assert (await client.jobs.wait_for(job.id, 0.01)).state == "active"
    await client.jobs.acknowledge([Acknowledgement(job.id, None, "w", 1)])
    assert (await client.jobs.wait_for(job.id, PATIENCE)).state == "completed"
    with pytest.raises(NotFound):
        await client.jobs.wait_for("nowhere", 0.01)


async def test_a_job_has_the_id_that_it_was_given(client: Client) -> None:
    id = new_id()
    (pushed,) = await client.jobs.enqueue([request(id=id)])
    assert (pushed.job.id, pushed.existing) == (id, False)


async def test_a_taken_key_is_a_duplicate_for_one_job_and_for_many(client: Client) -> None:
    unique = {"keys": ["type"]}
    (first,) = await client.jobs.enqueue([request("u", unique=unique)])
    for requests in ([request("u", unique=unique)], [request("a"), request("u", unique=unique)]):
        with pytest.raises(Duplicate) as refused:
            await client.jobs.enqueue(requests)
        assert refused.value.details["existing_job_id"] == first.job.id


async def test_a_cancellation_and_a_priority_say_what_was_before(client: Client) -> None:
    job = (await client.jobs.enqueue([request(priority=5)]))[0].job
    assert (await client.jobs.adjust_priority(job.id, -2)).priority == 3
    changed = await client.jobs.cancel(job.id)
    assert (changed.before, changed.job.state, changed.job.id) == ("available", "cancelled", job.id)


async def test_a_sweep_tells_of_each_job(client: Client, bench: Bench) -> None:
    one, two = (await held(client, queue="q")), (await client.jobs.enqueue([request("b", queue="q")]))[0].job
    chosen = JobFilter(states=("active", "available"), queue="q", created_before=START + SECOND)
    found = await client.bulk.sweep(Action.CANCEL, chosen)
    assert (found.matched, found.succeeded, found.failed) == (2, 1, 1)
    assert [(id, refusal is None) for id, refusal in found.items] == [(one.id, False), (two.id, True)]
    assert isinstance(found.items[0][1], OjsterError)
    assert (await client.bulk.sweep(Action.CANCEL, JobFilter(created_before=START))).matched == 0
    with pytest.raises(OjsterError, match="cannot be cancelled"):
        await client.bulk.sweep(Action.CANCEL, JobFilter(states=("completed",)))


async def test_defaults_of_job_types_are_put_found_listed_and_deleted(client: Client) -> None:
    put = await client.job_types.put("b", members(options={"queue": "mail"}))
    assert (put.type, put.body, put.updated_at) == ("b", b'{"options":{"queue":"mail"}}', START)
    assert await client.job_types.find("b") == put
    await client.job_types.put("a", members(meta={"k": 1}))
    assert [one.type for one in await client.job_types.all()] == ["a", "b"]
    await client.job_types.delete("b")
    for call in (client.job_types.find("b"), client.job_types.delete("b")):
        with pytest.raises(NotFound):
            await call


async def test_signatures_are_announced_replaced_and_listed(client: Client) -> None:
    one, two = {"type": "array", "minItems": 1}, {"type": "array"}
    assert await client.job_types.announce([Signature("b", one), Signature("a", two, is_flow=True)]) == 2
    assert await client.job_types.signatures() == [Signature("a", two, True, START), Signature("b", one, False, START)]
    assert await client.job_types.announce([Signature("b", two)]) == 1
    assert await client.job_types.signatures("b") == [Signature("b", two, False, START)]
    assert await client.job_types.signatures("other") == []


async def test_signatures_that_are_too_large_or_too_many_are_refused(client: Client) -> None:
    refused = [
        [Signature("a", {"title": "x" * MAX_SIGNATURE_BYTES})],
        [Signature(f"t{number}", {}) for number in range(MAX_SIGNATURES + 1)],
        [Signature("No Type", {})],
    ]
    for announced in refused:
        with pytest.raises(InvalidRequest):
            await client.job_types.announce(announced)
    assert await client.job_types.signatures() == []


async def test_a_worker_with_many_handlers_announces_all_at_once(client: Client) -> None:
    schema = {"title": "x" * (MAX_SIGNATURE_BYTES - 20)}
    announced = [Signature(f"a{number}", schema) for number in range(MAX_SIGNATURES)]
    assert await client.job_types.announce(announced) == MAX_SIGNATURES


async def test_the_oldest_of_too_many_signatures_are_deleted(client: Client, bench: Bench) -> None:
    await client.job_types.announce([Signature(f"old{number}", {}) for number in range(MAX_SIGNATURES)])
    bench.clock.advance(1)
    await client.job_types.announce([Signature("new", {})])
    known = [signature.type for signature in await client.job_types.signatures()]
    assert (len(known), "new" in known) == (MAX_SIGNATURES, True)


async def test_schemas_are_registered_found_listed_and_deleted(client: Client) -> None:
    first = await client.schemas.register("a.b", 1, b'{"type":"array"}', mode="strict")
    assert (first.type, first.name, first.mode, first.body) == ("a.b", "1", "strict", b'{"type":"array"}')
    second = await client.schemas.register("a.b", "2.1", b"{}", uri="urn:own:name")
    assert await client.schemas.find("a.b", "1.0") == first
    assert await client.schemas.find_by_uri("urn:own:name") == second
    assert await client.schemas.find_by_uri(first.uri) == first
    assert await client.schemas.versions("a.b") == await client.schemas.all() == [second, first]
    assert (await client.schemas.delete_by_uri("urn:own:name")).version == "2.1"
    assert (await client.schemas.delete("a.b", "1")).uri == first.uri
    for call in (client.schemas.find("a.b", "1"), client.schemas.versions("a.b"), client.schemas.delete("a.b", "1")):
        with pytest.raises(NotFound):
            await call


async def test_all_job_types_are_more_than_a_page(client: Client, service: Service) -> None:
    for number in range(201):
        await service.job_types.put(f"t{number}", members(meta={"k": 1}))
    assert len({one.type for one in await client.job_types.all()}) == 201


async def test_the_history_of_a_job_is_read_whole(client: Client) -> None:
    job = await held(client)
    await client.jobs.acknowledge([Acknowledgement(job.id, None, "w", 1)])
    created, *_, completed, moved = await client.jobs.history(job.id)
    assert (created.type, created.at, created.actor, created.is_estimated) == (
        "job.created", START, {"type": "client"}, False,
    )  # fmt: skip
    assert (completed.type, completed.actor) == ("job.attempt_completed", {"type": "worker", "id": "w"})
    assert moved.data == {"from": "active", "to": "completed"}
