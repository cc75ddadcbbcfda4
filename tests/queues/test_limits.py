"""Rate and concurrency limits: they hold, they do not block other jobs, and no key starves.

Spec: ojs-rate-limiting
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec
import psycopg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ojster.core.durations import DAY, SECOND
from ojster.core.job import Job
from ojster.core.rate_limit import Limits, Rate
from ojster.core.timestamps import format_timestamp
from ojster.jobs.claim_policy import Claim
from ojster.jobs.interventions import DeadLetterRetry, retry_dead
from ojster.jobs.messages import Acknowledgement
from ojster.queues import claim_policies, gates, limits
from ojster.queues.limits import KEPT_UNUSED, Limit, Override, key_of_queue
from ojster.schedules.retention import count_forgettable, forget
from ojster.service import Service
from ojster.storage.open import open_database
from ojster.storage.postgres.url import parse_postgres_url
from ojster.storage.transaction import Transaction
from tests.conftest import Bench, Clock, request
from tests.waiting import LONG_WAIT, PATIENCE

pytestmark = pytest.mark.anyio

RATE = {"limit": 2, "period": "PT10S"}


async def push(bench: Bench, key: str = "api", queue: str = "default", **limit: Any) -> Job:
    return await bench.push(queue=queue, rate_limit={"key": key} | limit)


async def override(bench: Bench, key: str, limit: Limits | None, until: int | None = None) -> None:
    await bench.service.scope.do(limits.override, Override(key, limit, until))


async def limit_queue(bench: Bench, queue: str, limit: Limits) -> None:
    def set_it(tx: Any, items: Any) -> list[None]:
        for name, allowed in items:
            limits.limit_queue(tx, name, **msgspec.structs.asdict(allowed))
        return [None for _ in items]

    await bench.run(set_it, (queue, limit))


async def test_no_more_jobs_with_a_key_run_than_are_allowed(bench: Bench) -> None:
    for _ in range(5):
        await push(bench, concurrency=2)
    first, second = await bench.fetch(count=10)
    assert await bench.fetch() == []
    await bench.ack(first)
    (third,) = await bench.fetch(count=10)
    await bench.fail(second)
    assert len(await bench.fetch(count=10)) == 1
    await bench.service.jobs.cancel(third.id)
    assert len(await bench.fetch(count=10)) == 1


async def test_a_lost_worker_gives_its_place_back(bench: Bench) -> None:
    for _ in range(2):
        await push(bench, concurrency=1)
    lost = await bench.fetch_one(lease=SECOND)
    await bench.run_due(after=5)
    (again,) = await bench.fetch(count=10)
    assert (again.id, again.attempt) == (lost.id, 2)
    assert await bench.fetch() == []


async def test_limited_jobs_do_not_block_other_jobs(bench: Bench) -> None:
    for _ in range(50):
        await push(bench, concurrency=1)
    free = await bench.push()
    other = await push(bench, "other", concurrency=1)
    assert (await bench.fetch_one()).limit_key == "api"
    assert {job.id for job in await bench.fetch(count=10)} == {free.id, other.id}


async def test_priorities_hold_among_jobs_with_and_without_limits(bench: Bench) -> None:
    low = await bench.push(priority=-5)
    high = await bench.push(priority=5, rate_limit={"key": "a", "concurrency": 9})
    middle = await bench.push(priority=0, rate_limit={"key": "b", "concurrency": 9})
    urgent = await bench.push(priority=9)
    later = await bench.push(priority=5, rate_limit={"key": "a", "concurrency": 9})
    assert [(await bench.fetch_one()).id for _ in range(5)] == [urgent.id, high.id, later.id, middle.id, low.id]


async def test_so_many_start_in_a_window(bench: Bench) -> None:
    for _ in range(5):
        await push(bench, rate=RATE)
    assert len(await bench.fetch(count=10)) == 2
    bench.clock.advance(9.9)
    assert await bench.fetch(count=10) == []
    bench.clock.advance(0.1)
    assert len(await bench.fetch(count=10)) == 2


async def test_a_throttle_spreads_the_starts(bench: Bench) -> None:
    for _ in range(4):
        await push(bench, throttle={"limit": 10, "period": "PT1S"}, rate={"limit": 3, "period": "PT1M"})
    starts = 0
    for _ in range(20):
        jobs = await bench.fetch(count=10)
        assert len(jobs) <= 1
        starts += len(jobs)
        bench.clock.advance(0.05)
    assert starts == 3  # the maximum that the rate allows


async def test_a_fetch_that_waits_is_served_when_there_is_room(bench: Bench) -> None:
    for queue in ("a", "a", "b"):
        await push(bench, queue=queue, concurrency=1)
    running = await bench.fetch_one("a")
    waiting = asyncio.create_task(bench.service.jobs.fetch(Claim(("b",)), wait=LONG_WAIT))
    await bench.until_parked()
    assert not waiting.done()
    await bench.ack(running)
    assert [job.queue for job in await waiting] == ["b"]


async def test_a_fetch_that_waits_is_served_when_the_window_is_over(bench: Bench) -> None:
    for _ in range(3):
        await push(bench, rate=RATE)
    await bench.fetch(count=3)
    waiting = asyncio.create_task(bench.service.jobs.fetch(Claim(("default",)), wait=LONG_WAIT))
    await bench.until_parked()
    assert await bench.run_due() == bench.clock.now + 10 * SECOND
    assert not waiting.done()
    await bench.run_due(after=10)
    assert len(await waiting) == 1


async def test_on_limit_drops_or_reschedules_a_job(bench: Bench) -> None:
    for on_limit, state in (("drop", "discarded"), ("reschedule", "scheduled")):
        _, second = [await push(bench, on_limit, rate=RATE | {"limit": 1}, on_limit=on_limit) for _ in range(2)]
        assert len(await bench.fetch()) == 1
        assert await bench.fetch() == []
        assert (await bench.find(second)).state == state
        if on_limit == "drop":
            error = (await bench.find(second)).error
            assert error is not None
            assert error["type"] == error["code"] == "rate_limit_dropped"
            assert "the limit 'drop' had no room" in error["message"]
    await bench.run_due(after=10)
    assert (await bench.fetch_one()).id == second.id
    assert "rate_limit.dropped" in await bench.events()


@pytest.mark.parametrize("is_relative", [False, True])
async def test_a_handler_can_ask_for_a_pause(bench: Bench, *, is_relative: bool) -> None:
    for _ in range(2):
        await push(bench, concurrency=5)
    job = await bench.fetch_one()
    until = "+PT60S" if is_relative else format_timestamp(bench.clock.now + 60 * SECOND)
    await bench.fail(job, "RateLimitExceeded", rate_limit_until=until)
    await bench.run_due(after=30)
    assert await bench.fetch() == []
    await bench.run_due(after=31)
    assert len(await bench.fetch(count=5)) == 2
    assert "rate_limit.dynamic_adjusted" in await bench.events()


async def test_an_operator_can_change_a_limit_for_a_time(bench: Bench) -> None:
    for _ in range(6):
        await push(bench, concurrency=2)
    await override(bench, "api", Limits(concurrency=0), until=bench.clock.now + 60 * SECOND)
    assert await bench.fetch(count=9) == []
    waiting = asyncio.create_task(bench.service.jobs.fetch(Claim(("default",), 9), wait=LONG_WAIT))
    await bench.until_parked()
    await bench.run_due(after=61)
    assert len(await waiting) == 2
    await override(bench, "api", Limits(concurrency=5))
    assert len(await bench.fetch(count=9)) == 3
    await override(bench, "api", None)
    assert await bench.fetch(count=9) == []


async def test_the_newest_job_sets_the_limit_of_its_key(bench: Bench) -> None:
    await push(bench, concurrency=1)
    await push(bench, concurrency=2)
    assert len(await bench.fetch(count=9)) == 2


async def test_a_queue_can_be_limited_as_a_whole(bench: Bench) -> None:
    await limit_queue(bench, "default", Limits(concurrency=2, rate=Rate(3, 60 * SECOND)))
    for number in range(6):
        await (push(bench, concurrency=9) if number % 2 else bench.push())
    first, second = await bench.fetch(count=9)
    waiting = asyncio.create_task(bench.service.jobs.fetch(Claim(("default",), 9), wait=LONG_WAIT))
    await bench.until_parked()
    assert not waiting.done()
    await bench.fail(first)
    assert len(await waiting) == 1
    await bench.ack(second)
    assert await bench.fetch(count=9) == []
    bench.clock.advance(60)
    assert len(await bench.fetch(count=9)) == 1
    await limit_queue(bench, "default", Limits())
    assert len(await bench.fetch(count=9)) == 2


async def test_a_limit_that_is_reached_is_told_once_and_so_is_its_end(bench: Bench) -> None:
    for _ in range(3):
        await push(bench, concurrency=1)
    job = await bench.fetch_one()
    for _ in range(3):
        assert await bench.fetch() == []
    await bench.ack(job)
    await bench.fetch_one()
    assert Counter(event for event in await bench.events() if event.startswith("rate_limit")) == {
        "rate_limit.exceeded": 1,
        "rate_limit.released": 1,
    }


async def test_one_fetch_over_several_queues_keeps_to_the_limit(bench: Bench) -> None:
    for queue in ("a", "b", "c"):
        await push(bench, queue=queue, concurrency=2)
    assert len(await bench.fetch("a", "b", "c", count=9)) == 2


async def test_no_job_is_handed_out_twice_where_a_claim_begins_among_the_keys(bench: Bench) -> None:
    for key in "abc":
        await push(bench, key, concurrency=5)
    await bench.fetch_one()
    await push(bench, "d", concurrency=5)  # after the position at which the last claim ended
    rest = await bench.fetch(count=9)
    assert len({job.id for job in rest}) == len(rest) == 3


async def test_a_limit_set_while_jobs_run_counts_them_and_their_ends(bench: Bench) -> None:
    for _ in range(3):
        await bench.push()
    running = await bench.fetch(count=2)
    await limit_queue(bench, "default", Limits(concurrency=1))
    waiting = asyncio.create_task(bench.service.jobs.fetch(Claim(("default",)), wait=LONG_WAIT))
    await bench.until_parked()
    for job in running:
        assert not waiting.done()
        await bench.ack(job)
    assert len(await waiting) == 1


async def test_a_job_cannot_undo_what_an_operator_has_set(bench: Bench) -> None:
    await limit_queue(bench, "default", Limits(concurrency=1))
    for _ in range(2):
        await bench.push(rate_limit={"max_per_second": 100})
    assert len(await bench.fetch(count=9)) == 1


async def test_a_job_that_names_only_a_key_changes_nothing(bench: Bench) -> None:
    await push(bench, concurrency=1)
    await push(bench)
    assert len(await bench.fetch(count=9)) == 1


async def test_a_pause_is_for_those_who_share_a_key_and_ends(bench: Bench) -> None:
    await limit_queue(bench, "default", Limits(concurrency=5))
    await bench.push()
    await bench.fail(await bench.fetch_one(), "RateLimitExceeded", rate_limit_until="9999-01-01T00:00:00Z")
    await bench.push()
    assert len(await bench.fetch()) == 1, "nobody has named the queue"
    for _ in range(2):
        await push(bench, concurrency=5)
    await bench.fail(await bench.fetch_one(), "RateLimitExceeded", rate_limit_until="9999-01-01T00:00:00Z")
    assert await bench.fetch() == []
    await bench.run_due(after=25 * 3600)
    assert await bench.fetch() != []


@pytest.mark.parametrize("prefix", ["", "tenant:"])
async def test_nobody_starves_among_many_keys(bench: Bench, monkeypatch: pytest.MonkeyPatch, prefix: str) -> None:
    monkeypatch.setattr(claim_policies, "FIRST_KEYS", 5)
    monkeypatch.setattr(claim_policies, "MOST_KEYS", 7)
    monkeypatch.setattr(claim_policies, "MAX_WINDOWS", 2)
    keys = [f"{prefix}{first}{second}" for first in "aBc1" for second in "wxyz"]
    await bench.service.jobs.enqueue([request(rate_limit={"key": key, "concurrency": 1}) for key in keys * 2])
    started: Counter[str | None] = Counter()
    for _ in range(2000):
        started.update(job.limit_key for job in await bench.fetch(count=2))
        if len(started) == len(keys):
            break
    assert started == dict.fromkeys(keys, 1)


@pytest.mark.parametrize("limit", [{"concurrency": 1}, {"limit": 1, "period": "PT1H"}])
async def test_keys_whose_jobs_wait_cost_no_further_claim_a_gate(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, limit: dict[str, Any]
) -> None:
    keys = [f"key{number}" for number in range(30)]
    await bench.service.jobs.enqueue([request(rate_limit={"key": key} | limit) for key in keys * 2])
    while await bench.fetch(count=100):
        pass
    made: list[str] = []

    class Counted(gates.Gate):
        def __init__(self, tx: Any, limit: Limit, active: int) -> None:
            made.append(limit.key)
            super().__init__(tx, limit, active)

    monkeypatch.setattr(claim_policies, "Gate", Counted)
    assert await bench.fetch() == []
    assert made == []
    await push(bench, "new", **limit)
    assert [job.limit_key for job in await bench.fetch()] == ["new"]
    assert made == ["new"]


EMPTY: dict[str, Any] = {
    **dict.fromkeys(("concurrency", "rate_limit", "rate_period", "throttle_limit", "throttle_period"), None),
    **dict.fromkeys(("override", "override_until", "exceeded"), None),
    **dict.fromkeys(("window_started_at", "window_used", "next_start_at", "blocked_until"), 0),
    "on_limit": "wait",
}
"""The columns of a limit that limits nothing."""


async def test_exactly_the_keys_are_passed_over_whose_gates_are_closed_and_have_been_told(bench: Bench) -> None:
    now = bench.clock.now
    rate = {"rate_limit": 2, "rate_period": 5, "window_used": 2}
    throttle = {"throttle_limit": 1, "throttle_period": 9}
    choices: list[list[dict[str, Any]]] = [
        [{"exceeded": None}, {"exceeded": "rate"}],
        [{"on_limit": "wait"}, {"on_limit": "drop"}],
        [{}, {"override": b'{"concurrency":9}'}, {"override": b"{}", "override_until": now}],
        [{}, {"blocked_until": now}, {"blocked_until": now + 1}],
        [
            {},
            rate | {"window_started_at": now - 5},
            rate | {"window_started_at": now - 4},
            rate | {"window_started_at": now - 4, "window_used": 1},
        ],
        [{"next_start_at": now + 1}, throttle | {"next_start_at": now}, throttle | {"next_start_at": now + 1}],
        [{}, {"concurrency": 1}, {"concurrency": 2}],
    ]
    cases = [EMPTY | dict(item for part in parts for item in part.items()) for parts in itertools.product(*choices)]
    keys = {f"key{number}": case for number, case in enumerate(cases)}
    for limit in ({"concurrency": 1}, {}):  # of each key, one job runs and one waits
        await bench.service.jobs.enqueue([request(rate_limit={"key": key} | limit) for key in keys])
        while limit and await bench.fetch(count=1_000):
            pass

    def compare(tx: Transaction, requests: Sequence[None]) -> list[tuple[set[str], set[str]]]:
        changes = ", ".join(f"{name} = ?" for name in EMPTY)
        rows = [(*[case[name] for name in EMPTY], key) for key, case in keys.items()]
        tx.execute_many(f"UPDATE rate_limits SET {changes} WHERE key = ?", rows)
        look = gates.look_at_keys(tx, "default", "", "", 10_000)
        passed_over = keys.keys() - {head.limit.key for head in look.heads}
        closed = set()
        for key in keys:
            limit = limits.find_limit(tx, key)
            assert limit is not None
            gate = gates.Gate(tx, limit, limits.count_active(tx, key))
            if gate.strategy and limit.exceeded and limit.on_limit == "wait" and not limit.overridden(tx.now):
                closed.add(key)
        assert (look.last, look.is_end) == (max(keys), True)
        return [(passed_over, closed)]

    passed_over, closed = await bench.run(compare, None)
    assert passed_over == closed
    assert len(closed) > 100


async def test_an_open_transaction_of_a_caller_stops_no_claims(postgres_url: str, clock: Clock) -> None:
    parsed = parse_postgres_url(postgres_url)
    bench = Bench(Service(open_database(postgres_url, clock=clock)), clock)
    await push(bench, concurrency=1)
    free = await bench.push()
    with psycopg.connect(parsed.conninfo) as connection:
        connection.execute(f"SELECT * FROM {parsed.schema}.rate_limits FOR UPDATE")
        async with asyncio.timeout(PATIENCE):
            assert [job.id for job in await bench.fetch(count=9)] == [free.id]
    assert len(await bench.fetch(count=9)) == 1
    await bench.service.close()


async def test_limits_hold_whoever_claims_at_the_same_time(url: str, clock: Clock) -> None:
    engines = [Service(open_database(url, clock=clock))]
    if ":memory:" not in url:
        engines += [Service(open_database(url, clock=clock)) for _ in range(2)]
    bench = Bench(engines[0], clock)
    await limit_queue(bench, "narrow", Limits(concurrency=4))
    jobs = [request(queue="narrow") for _ in range(40)]
    jobs += [request(queue="keyed", rate_limit={"key": f"k{n % 2}", "concurrency": 2}) for n in range(60)]
    await engines[0].jobs.enqueue(jobs)
    limits = {"k0": 2, "k1": 2, key_of_queue("narrow"): 4}
    active: Counter[str | None] = Counter()
    most: Counter[str | None] = Counter()
    done = 0

    async def work(service: Service, name: str) -> None:
        nonlocal done
        queues = ("narrow", "keyed") if name.endswith("0") else ("keyed", "narrow")
        held: list[Job] = []
        while done < 100:
            claimed = await service.jobs.fetch(Claim(queues, 1 + done % 3, worker_id=name))
            held += claimed
            active.update(job.limit_key for job in claimed)
            for key, number in active.items():
                most[key] = max(most[key], number)
            if most != limits:  # nobody completes a job before the limits are reached
                continue
            for job in held:
                active[job.limit_key] -= 1  # before the server sees it as completed
                await service.jobs.acknowledge([Acknowledgement(job.id, None, name, job.attempt)])
                done += 1
            held.clear()

    async with asyncio.timeout(PATIENCE):
        await asyncio.gather(*[work(service, f"w{n}") for n, service in enumerate(engines * 3)])
    assert done == 100
    assert most == limits, "limits are reached, and not exceeded"
    for service in engines:
        await service.close()


Step = st.tuples(st.sampled_from(["push", "fetch", "ack", "fail", "wait"]), st.integers(0, 3))


@settings(max_examples=25)
@given(steps=st.lists(Step, max_size=40))
async def test_limits_hold_whatever_happens(shared_url: str, steps: list[tuple[str, int]]) -> None:
    from tests.conftest import empty

    if shared_url.startswith("sqlite"):
        shared_url = "sqlite:///:memory:"
    else:
        empty(shared_url)
    clock = Clock()
    bench = Bench(Service(open_database(shared_url, clock=clock)), clock)
    allowed: dict[str, dict[str, Any]] = {
        "a": {"concurrency": 1},
        "b": {"rate": {"limit": 2, "period": "PT10S"}},
        "c": {"concurrency": 2, "throttle": {"limit": 1, "period": "PT5S"}},
        "d": {"concurrency": 3, "rate": {"limit": 4, "period": "PT10S"}},
    }
    running: list[Job] = []
    starts: dict[str | None, list[int]] = {key: [] for key in allowed}
    pushed = ended = 0
    goes_on = itertools.takewhile(lambda _: ended < pushed, [("ack", 0), ("wait", 3), ("fetch", 3)] * 60)
    for step, number in itertools.chain(steps, goes_on):
        key = "abcd"[number]
        match step:
            case "push":
                await push(bench, key, **allowed[key])
                pushed += 1
            case "fetch":
                jobs = await bench.fetch(count=number + 1, lease=3600 * SECOND)
                for job in jobs:
                    starts[job.limit_key].append(clock.now)
                running += jobs
            case "ack" if running:
                await bench.ack(running.pop(0))
                ended += 1
            case "fail" if running:
                ended += (await bench.fail(running.pop(0))).state == "discarded"
            case "wait":
                await bench.run_due(after=number * 3)
        active = Counter(job.limit_key for job in running)
        assert active["a"] <= 1
        assert active["c"] <= 2
        assert active["d"] <= 3
    assert all(later - earlier >= 5 * SECOND for earlier, later in zip(starts["c"], starts["c"][1:], strict=False))
    for key, most in (("b", 2), ("d", 4)):
        opened, used = -(10**18), 0
        for at in starts[key]:
            if at - opened >= 10 * SECOND:
                opened, used = at, 0
            used += 1
            assert used <= most
    counts = (await bench.service.jobs.count()).get("default", {})
    assert counts.get("completed", 0) + counts.get("discarded", 0) == ended == pushed, "nobody starved"
    await bench.service.close()


@pytest.mark.parametrize("how", ["moved with its queue", "retried in another queue"])
async def test_a_fetch_is_woken_for_a_job_with_a_key_that_has_changed_its_queue(bench: Bench, how: str) -> None:
    key = {"key": "k", "concurrency": 1}
    dies = {"max_attempts": 1, "on_exhaustion": "dead_letter"}
    job = await bench.push(queue="x", rate_limit=key, retry=dies)
    if how == "retried in another queue":
        await bench.fail(await bench.fetch_one("x"))
    await bench.push(queue="z", rate_limit=key)
    running = await bench.fetch_one("z")
    if how == "retried in another queue":
        await bench.run(retry_dead, DeadLetterRetry(job.id, queue="y"))
    else:
        assert await bench.service.queues.delete("x", "move", "y") == 1
    waiting = asyncio.create_task(bench.service.jobs.fetch(Claim(("y",)), wait=LONG_WAIT))
    while not bench.service.database._writer._parked.topics():
        await asyncio.sleep(0)
    began = asyncio.get_running_loop().time()
    await bench.ack(running)
    assert [one.id for one in await waiting] == [job.id]
    assert asyncio.get_running_loop().time() - began < 8  # else nothing has woken it


async def test_the_limits_of_a_key_are_forgotten_when_no_job_has_had_it_for_long(bench: Bench) -> None:
    async def known() -> set[str]:
        def keys(tx: Transaction, items: Sequence[None]) -> list[set[str]]:
            return [{key for (key,) in tx.execute("SELECT key FROM rate_limits")} for _ in items]

        return await bench.run(keys, None)

    for key in ("once", "again", "waits", "set"):
        await push(bench, key, concurrency=1)
    await limit_queue(bench, "other", Limits(concurrency=1))
    await override(bench, "set", Limits(concurrency=2))
    await override(bench, "set for a day", Limits(concurrency=2), until=bench.clock.now + DAY)
    for job in await bench.fetch(count=9):
        if job.limit_key != "waits":
            await bench.ack(job)
    bench.clock.advance(KEPT_UNUSED / 2 / SECOND)
    await push(bench, "again")
    await bench.ack(await bench.fetch_one())
    bench.clock.advance(KEPT_UNUSED / 2 / SECOND)
    assert len(await known()) == 6
    bench.clock.advance(1)
    assert [(await bench.run(call, None))["rate_limits"] for call in (count_forgettable, forget, forget)] == [2, 2, 0]
    assert await known() == {"again", "waits", "set", "/queue/other"}
    await push(bench, "again")
    (job,) = [job for job in await bench.fetch(count=9) if job.limit_key == "again"]
    await push(bench, "again")
    assert "again" not in [job.limit_key for job in await bench.fetch(count=9)], "its limits are known"
    assert job.limit_key == "again"
