"""Push and claim: order, priorities, queues, rate limits, exclusive keys and parked fetches."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import msgspec
import pytest

from ojster.core.errors import Duplicate
from ojster.core.events import EventFilter
from ojster.core.ids import new_id
from ojster.core.json_objects import read_members
from ojster.fleet.requirements import read_provided
from ojster.jobs.claim_policy import Claim
from ojster.jobs.messages import Acknowledgement
from ojster.jobs.new_job import read_job
from ojster.queues.fairness import STRICT, Sharing
from tests.conftest import START, Bench, request, shown
from tests.waiting import LONG_WAIT, PATIENCE

pytestmark = pytest.mark.anyio


async def test_a_pushed_job_is_there_with_all_its_attributes(bench: Bench) -> None:
    job = await bench.push("email.send", "ada", queue="mail", priority=5, tags=["x"], meta={"k": 1})
    found = shown(await bench.find(job))
    assert found["type"] == "email.send"
    assert found["args"] == ["ada"]
    assert (found["state"], found["queue"], found["priority"], found["attempt"]) == ("available", "mail", 5, 0)
    assert (found["meta"], found["tags"], found["max_attempts"]) == ({"k": 1}, ["x"], 3)
    assert found["created_at"] == found["enqueued_at"]
    assert "started_at" not in found


async def test_a_job_in_the_future_is_scheduled(bench: Bench) -> None:
    job = await bench.push(scheduled_at="+PT60S")
    assert job.state == "scheduled"
    assert job.due_at == START + 60_000_000
    assert job.enqueued_at is None
    assert await bench.fetch() == []


async def test_a_job_in_the_past_is_available(bench: Bench) -> None:
    assert (await bench.push(scheduled_at="2020-01-01T00:00:00Z")).state == "available"


async def test_a_pending_job_waits_for_activation(bench: Bench) -> None:
    job = await bench.push(pending=True)
    assert job.state == "pending"
    assert await bench.fetch() == []
    steered = await bench.service.workflows.activate(job.id)
    assert (steered.before, steered.job.state) == ("pending", "available")
    assert (await bench.fetch_one()).id == job.id


async def test_equals_come_out_in_the_order_in_which_they_went_in(bench: Bench) -> None:
    ids = [(await bench.push()).id for _ in range(20)]
    assert [job.id for job in await bench.fetch(count=20)] == ids


async def test_the_highest_priority_comes_first(bench: Bench) -> None:
    for priority in (0, -100, 10, 100, 0):
        await bench.push(priority=priority)
    assert [job.priority for job in await bench.fetch(count=9)] == [100, 10, 0, 0, -100]


async def test_queues_are_served_from_left_to_right(bench: Bench) -> None:
    low = await bench.push(queue="low", priority=100)
    high = await bench.push(queue="high")
    assert [job.id for job in await bench.fetch("high", "low", count=2)] == [high.id, low.id]


async def test_a_queue_named_twice_gives_its_jobs_once(bench: Bench) -> None:
    await bench.push()
    assert len(await bench.fetch("default", "default", count=5)) == 1


async def test_a_claimed_job_is_active_and_not_claimed_again(bench: Bench) -> None:
    await bench.push()
    job = await bench.fetch_one(worker_id="w1")
    assert (job.state, job.attempt, job.started_at, job.worker_id) == ("active", 1, START, "w1")
    assert await bench.fetch() == []


async def test_concurrent_fetches_never_share_a_job(bench: Bench) -> None:
    for _ in range(50):
        await bench.push()
    fetched = await asyncio.gather(*(bench.fetch(count=3, worker_id=f"w{n}") for n in range(30)))
    ids = [job.id for jobs in fetched for job in jobs]
    assert len(ids) == len(set(ids)) == 50
    for worker, jobs in enumerate(fetched):
        assert {job.worker_id for job in jobs} <= {f"w{worker}"}


async def test_merged_fetches_are_served_in_the_order_in_which_they_came(bench: Bench) -> None:
    ids = [(await bench.push()).id for _ in range(6)]
    fetched = await asyncio.gather(*(bench.fetch(count=2) for _ in range(4)))
    assert [[job.id for job in jobs] for jobs in fetched] == [ids[:2], ids[2:4], ids[4:], []]


async def test_an_id_that_is_taken_is_refused(bench: Bench) -> None:
    id = new_id()
    await bench.push(id=id)
    with pytest.raises(Duplicate) as refusal:
        await bench.push(id=id)
    assert refusal.value.details["existing_job_id"] == id


async def test_of_two_pushes_with_one_id_at_once_one_gets_in(bench: Bench) -> None:
    id = new_id()
    results = await asyncio.gather(*(bench.push(id=id) for _ in range(5)), return_exceptions=True)
    assert sum(isinstance(result, Duplicate) for result in results) == 4


async def test_a_batch_gets_in_whole_or_not_at_all(bench: Bench) -> None:
    taken = await bench.push("first")
    batch = [request("a"), request("b", id=taken.id), request("c")]
    with pytest.raises(Duplicate) as refusal:
        await bench.service.jobs.enqueue(batch)
    assert refusal.value.details["index"] == 1
    assert [job.type for job in await bench.fetch(count=9)] == ["first"]


async def test_a_batch_with_one_id_twice_is_refused(bench: Bench) -> None:
    id = new_id()
    with pytest.raises(Duplicate):
        await bench.service.jobs.enqueue([request("a", id=id), request("b", id=id)])
    assert await bench.fetch() == []


async def test_a_refused_batch_does_not_harm_its_neighbours(bench: Bench) -> None:
    taken = await bench.push("first")
    results = await asyncio.gather(
        bench.service.jobs.enqueue([request("a")]),
        bench.service.jobs.enqueue([request("b", id=taken.id)]),
        bench.service.jobs.enqueue([request("c"), request("d")]),
        return_exceptions=True,
    )
    assert isinstance(results[1], Duplicate)
    assert [job.type for job in await bench.fetch(count=9)] == ["first", "a", "c", "d"]


async def test_an_expired_job_is_never_handed_out(bench: Bench) -> None:
    await bench.push(expires_at="+PT5S")
    bench.clock.advance(5)
    assert await bench.fetch() == []


async def test_a_paused_queue_takes_jobs_and_gives_none(bench: Bench) -> None:
    await bench.service.queues.pause("default")
    job = await bench.push()
    assert await bench.fetch() == []
    await bench.push(queue="other")
    assert len(await bench.fetch("default", "other", count=5)) == 1
    await bench.service.queues.resume("default")
    assert (await bench.fetch_one()).id == job.id


async def test_a_rate_limit_holds_for_the_whole_queue(bench: Bench) -> None:
    for _ in range(5):
        await bench.push(rate_limit={"max_per_second": 2})
    assert len(await bench.fetch(count=9)) == 2
    assert await bench.fetch(count=9) == []
    bench.clock.advance(0.9)
    assert await bench.fetch() == []
    bench.clock.advance(0.1)
    assert len(await bench.fetch(count=9)) == 2


async def test_a_fetch_that_waits_for_a_rate_limit_is_served_when_it_opens(bench: Bench) -> None:
    for _ in range(2):
        await bench.push(rate_limit={"max_per_second": 1})
    await bench.fetch()
    waiting = asyncio.create_task(bench.service.jobs.fetch(Claim(("default",)), wait=LONG_WAIT))
    await bench.until_parked()
    assert await bench.run_due() == bench.clock.now + 1_000_000, "the chores know when the gate opens"
    await bench.run_due(after=1)
    assert len(await asyncio.wait_for(waiting, PATIENCE)) == 1


async def test_jobs_with_the_same_exclusive_key_do_not_run_at_once(bench: Bench) -> None:
    service = bench.service
    jobs = []
    for _ in range(3):
        new = read_job(request(), bench.clock.now, largest=1_000_000)
        new.exclusive_key = "k"
        jobs += [pushed.job for pushed in await service.jobs.push([new])]
    other = await bench.push()
    first, second = await bench.fetch(count=9)
    assert [first.id, second.id] == [jobs[0].id, other.id]
    assert await bench.fetch(count=9) == []
    await bench.ack(first)
    assert [job.id for job in await bench.fetch(count=9)] == [jobs[1].id]


A: Final[dict[str, Any]] = {"options": {"queue": "a"}}
B: Final[dict[str, Any]] = {"options": {"queue": "b"}}


@pytest.mark.parametrize("sharing", [STRICT, Sharing("round-robin")], ids=lambda sharing: sharing.strategy)
@pytest.mark.parametrize(
    "places",
    [
        (A, B),
        (A | {"ext_ml_gpu_count": 1}, B),
        (A, {"options": {"queue": "b", "rate_limit": {"key": "k", "concurrency": 5}}}),
        (A | {"meta": {"tenant_id": "acme"}}, A | {"meta": {"tenant_id": "globex"}}),
        (A, B | {"meta": {"tenant_id": "acme"}}),
    ],
    ids=["queues", "requirements", "limits", "tenants", "both"],
)
async def test_jobs_with_the_same_exclusive_key_in_several_places_do_not_run_at_once(
    bench: Bench, places: tuple[dict[str, Any], ...], sharing: Sharing
) -> None:
    jobs = []
    for place in places:
        members = request() | {name: msgspec.Raw(msgspec.json.encode(value)) for name, value in place.items()}
        new = read_job(members, bench.clock.now, largest=1_000_000)
        new.exclusive_key = "k"
        jobs += [pushed.job for pushed in await bench.service.jobs.push([new])]
    other = await bench.push(queue="b")
    provided = read_provided({"gpu": {"type": "a100", "count": 8}})
    more: dict[str, Any] = {"count": 9, "worker_id": "w", "sharing": sharing, "provided": provided}
    taken = [*await bench.fetch("a", "b", **more), *await bench.fetch("a", "b", **more)]
    (first,) = [job for job in taken if job.id != other.id]
    assert other.id in {job.id for job in taken}, "it is found behind a job that was left out"
    await bench.ack(first)
    (second,) = await bench.fetch("a", "b", **more)
    assert {first.id, second.id} == {job.id for job in jobs}


async def test_a_waiting_fetch_is_served_as_soon_as_there_is_a_job(bench: Bench) -> None:
    waiting = asyncio.create_task(bench.service.jobs.fetch(Claim(("a", "b")), wait=LONG_WAIT))
    await asyncio.sleep(0)
    job = await bench.push(queue="b")
    assert [found.id for found in await asyncio.wait_for(waiting, PATIENCE)] == [job.id]


async def test_each_of_many_waiting_fetches_gets_a_job(bench: Bench) -> None:
    waiting = [asyncio.create_task(bench.service.jobs.fetch(Claim(("default",)), wait=LONG_WAIT)) for _ in range(20)]
    await bench.until_parked(20)
    await bench.service.jobs.enqueue([request() for _ in range(20)])
    found = await asyncio.wait_for(asyncio.gather(*waiting), PATIENCE)
    assert len({job.id for jobs in found for job in jobs}) == 20


async def test_a_long_poll_that_times_out_returns_no_jobs(bench: Bench) -> None:
    assert await bench.service.jobs.fetch(Claim(("default",)), wait=0.01) == []


async def test_a_cancelled_fetch_takes_no_job_with_it(bench: Bench) -> None:
    for _ in range(20):
        await bench.push()
        fetching = asyncio.create_task(bench.service.jobs.fetch(Claim(("default",), worker_id="w"), wait=LONG_WAIT))
        await asyncio.sleep(0)
        fetching.cancel()
        result = (await asyncio.gather(fetching, return_exceptions=True))[0]
        if isinstance(result, list):
            await bench.service.jobs.acknowledge([Acknowledgement(job.id) for job in result])
            continue
        (job,) = await bench.service.jobs.fetch(Claim(("default",)), wait=LONG_WAIT)
        assert job.attempt == 1
        await bench.ack(job)


async def test_draining_answers_parked_fetches(bench: Bench) -> None:
    waiting = asyncio.create_task(bench.service.jobs.fetch(Claim(("default",)), wait=LONG_WAIT))
    await bench.until_parked()
    bench.service.drain()
    assert await asyncio.wait_for(waiting, PATIENCE) == []


async def test_a_fetch_that_claims_when_draining_begins_does_not_wait(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = bench.service.database
    run_or_park = database.run_or_park

    def drain_before(*args: Any, **options: Any) -> Any:
        bench.service.drain()  # after the fetch has decided to wait
        return run_or_park(*args, **options)

    monkeypatch.setattr(database, "run_or_park", drain_before)
    assert await asyncio.wait_for(bench.service.jobs.fetch(Claim(("default",)), wait=LONG_WAIT), PATIENCE) == []


async def test_middleware_may_change_a_request_or_refuse_it(bench: Bench) -> None:
    from ojster.core.errors import InvalidRequest
    from ojster.jobs.middleware import EnqueueFunction, JobRequest

    async def stamp(job: JobRequest, enqueue: EnqueueFunction) -> JobRequest | None:
        job["meta"] = {"stamped": True, **job.get("meta", {})}
        return await enqueue(job)

    async def no_secrets(job: JobRequest, enqueue: EnqueueFunction) -> JobRequest | None:
        if job["type"] == "secret":
            raise InvalidRequest("secrets are not enqueued")
        return await enqueue(job)

    bench.service.middleware += [stamp, no_secrets]
    assert (await bench.push()).meta == {"stamped": True}
    with pytest.raises(InvalidRequest, match="secrets"):
        await bench.push("secret")
    with pytest.raises(InvalidRequest, match="'args' attribute cannot be read"):
        await bench.service.jobs.enqueue([{"type": msgspec.Raw(b'"t"'), "args": msgspec.Raw(b"[1e999]")}])


async def test_events_tell_what_happened(bench: Bench) -> None:
    await bench.push(queue="q")
    job = await bench.fetch_one("q")
    bench.clock.advance(1.5)
    await bench.ack(job)
    assert (await bench.events()) == ["job.enqueued", "job.started", "job.completed"]
    chosen = EventFilter(types=("job.completed",), queues=("q",))
    page = await bench.service.events.select(chosen)
    (event,) = page.events
    assert page.cursor == event["id"]
    after = EventFilter(after=int(event["id"].removeprefix("evt_")))
    assert (await bench.service.events.select(after)).events == []
    more = {"attempt": 1, "duration_ms": 1500, "from": "active", "to": "completed"}
    assert event["data"] == {"job_id": job.id, "job_type": "test.job", "queue": "q"} | more


async def test_fetches_of_overlapping_queues_that_are_merged_share_no_job(bench: Bench) -> None:
    for _ in range(3):
        await bench.push(queue="a")
    fetches = [bench.fetch(*queues) for queues in (("a", "b"), ("a",), ("b", "a"), ("b", "a", "c"))]
    jobs = [job.id for found in await asyncio.gather(*fetches) for job in found]
    assert len(jobs) == len(set(jobs)) == 3
    counts = (await bench.service.jobs.count())["a"]
    assert {state: n for state, n in counts.items() if n} == {"active": 3}


async def test_a_worker_of_many_queues_gets_jobs_of_all_kinds_in_the_order_of_its_queues(bench: Bench) -> None:
    names = [f"q{number}" for number in range(40)]
    await bench.push("plain", queue="q30")
    await bench.push("limited", queue="q7", rate_limit={"key": "k", "concurrency": 1})
    needing = b'{"type":"needing","args":[],"ext_ml_gpu_count":1,"options":{"queue":"q15"}}'
    await bench.service.jobs.enqueue([read_members(needing)])
    await bench.push("elsewhere", queue="other")
    able = read_provided({"gpu": {"type": "a100", "count": 8}})
    jobs = await bench.fetch(*names, count=10, worker_id="w", provided=able)
    assert [(job.type, job.queue) for job in jobs] == [("limited", "q7"), ("needing", "q15"), ("plain", "q30")]
    assert await bench.fetch(*names, count=10) == []
