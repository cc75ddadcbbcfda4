"""Fair scheduling: strategies, starvation prevention and pool limits."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ojster.core.durations import SECOND
from ojster.core.errors import NotFound
from ojster.core.wire import FairnessStrategy
from ojster.fleet.workers import Heartbeat
from ojster.jobs.claim_policy import Claim
from ojster.jobs.messages import Acknowledgement
from ojster.queues import pools
from ojster.queues.fairness import STRICT, FairnessState, Sharing
from ojster.queues.pool import Pool
from ojster.service import Service
from ojster.storage.open import open_database
from tests.conftest import Bench, Clock
from tests.waiting import LONG_WAIT, PATIENCE

pytestmark = pytest.mark.anyio

ROUND_ROBIN = Sharing("round-robin")


def weighted(**weights: int) -> Sharing:
    return Sharing("weighted", tuple(sorted(weights.items())))


async def push(bench: Bench, **numbers: int) -> None:
    for queue, number in numbers.items():
        for _ in range(number):
            await bench.push(queue=queue)


async def queues_of(bench: Bench, *queues: str, **more: Any) -> str:
    return "".join(job.queue for job in await bench.fetch(*queues, **more))


async def put(bench: Bench, name: str, *queues: str, sharing: Sharing = STRICT, **more: Any) -> None:
    await bench.service.scope.do(pools.put_pools, Pool(name, queues, sharing=sharing, **more))


async def join(bench: Bench, worker: str, pool: str | None = None, **more: Any) -> None:
    await bench.service.fleet.beat(Heartbeat(worker, pool=pool, **more))


# Strategies


async def test_without_a_strategy_the_first_queue_comes_first(bench: Bench) -> None:
    await push(bench, a=3, b=3)
    assert await queues_of(bench, "b", "a", count=4) == "bbba"


async def test_round_robin_serves_one_queue_after_the_other(bench: Bench) -> None:
    await push(bench, a=4, b=2, c=3)
    assert await queues_of(bench, "a", "b", "c", count=4, sharing=ROUND_ROBIN) == "abca"
    one_by_one = [await queues_of(bench, "a", "b", "c", sharing=ROUND_ROBIN) for _ in range(6)]
    assert one_by_one == ["b", "c", "a", "c", "a", ""]


async def test_weights_say_how_much_each_queue_gets(bench: Bench) -> None:
    await push(bench, a=60, b=60, c=60)
    sharing = weighted(a=3, b=2)  # c has the default weight, 1
    got = Counter([await queues_of(bench, "a", "b", "c", sharing=sharing) for _ in range(60)])
    assert got == {"a": 30, "b": 20, "c": 10}
    assert Counter(await queues_of(bench, "a", "b", "c", sharing=sharing, count=30)) == {"a": 15, "b": 10, "c": 5}


async def test_what_an_empty_queue_leaves_goes_to_the_others(bench: Bench) -> None:
    await push(bench, a=2, c=20)
    assert Counter(await queues_of(bench, "a", "b", "c", sharing=weighted(a=5, b=5), count=15)) == {"a": 2, "c": 13}


async def test_the_queue_with_the_most_jobs_comes_first(bench: Bench) -> None:
    await push(bench, a=2, b=5, c=1)
    assert await queues_of(bench, "a", "b", "c", sharing=Sharing("least-loaded"), count=4) == "bbba"


async def test_a_worker_that_is_full_gets_nothing_if_the_load_is_balanced(bench: Bench) -> None:
    await join(bench, "w", concurrency=2)
    await push(bench, a=5)
    balanced: dict[str, Any] = {"worker_id": "w", "sharing": Sharing("least-loaded")}
    assert await queues_of(bench, "a", count=4, **balanced) == "aa"
    assert await queues_of(bench, "a", count=4, **balanced) == ""
    assert await queues_of(bench, "a", count=4, sharing=Sharing("least-loaded"), worker_id="other") == "aaa"


async def test_jobs_that_must_wait_leave_their_turn_to_others(bench: Bench) -> None:
    for _ in range(5):
        await bench.push(queue="a", rate_limit={"key": "api", "concurrency": 1})
    await push(bench, b=5)
    await bench.service.queues.pause("c")
    await push(bench, c=5)
    assert Counter(await queues_of(bench, "a", "b", "c", sharing=ROUND_ROBIN, count=5)) == {"a": 1, "b": 4}


# Starvation


async def test_each_queue_is_sure_of_its_share(bench: Bench) -> None:
    await push(bench, a=60, b=60, c=60)
    sharing = Sharing("strict", least_share=0.1)
    got = "".join([await queues_of(bench, "a", "b", "c", sharing=sharing) for _ in range(60)])
    for start in range(50):
        assert set(got[start : start + 10]) == {"a", "b", "c"}
    assert got.count("a") > 40


async def test_a_queue_that_was_passed_over_for_too_long_is_served(bench: Bench, clock: Clock) -> None:
    await push(bench, a=10, b=3)
    sharing = Sharing("strict", rotation=30 * SECOND)
    assert await queues_of(bench, "a", "b", sharing=sharing, count=2) == "aa"
    clock.advance(31)
    assert await queues_of(bench, "a", "b", sharing=sharing, count=2) == "ba"
    assert await queues_of(bench, "a", "b", sharing=sharing, count=2) == "aa"
    assert (await bench.events()).count("scheduling.queue_starved") == 1


async def test_a_new_job_in_a_queue_that_was_empty_is_not_starved(bench: Bench, clock: Clock) -> None:
    sharing = Sharing("strict", rotation=30 * SECOND)
    await push(bench, a=5)
    assert await queues_of(bench, "a", "b", sharing=sharing) == "a"
    clock.advance(300)
    await push(bench, b=1)
    assert await queues_of(bench, "a", "b", sharing=sharing) == "a"


@given(
    st.lists(st.integers(1, 20), min_size=1, max_size=6),
    st.sampled_from(["strict", "round-robin", "weighted"]),
    st.just(0.0) | st.floats(0.01, 1),
    st.lists(st.integers(1, 30), min_size=1, max_size=12),
)
def test_shares_are_kept_however_many_are_asked_for_at_a_time(
    weights: list[int], strategy: FairnessStrategy, part: float, asked: list[int]
) -> None:
    queues = [f"q{number}" for number in range(len(weights))]
    least = part / len(queues)
    sharing = Sharing(strategy, tuple(zip(queues, weights, strict=True)), least)
    turns, given_out = FairnessState(), []
    for wanted in asked:
        plan = turns.plan(queues, wanted, sharing, {})
        assert len(plan) == wanted
        for queue in plan:
            turns.note(queue, sharing, 0)
        given_out += plan
    counts = Counter(given_out)
    if strategy != "strict" and not least:
        whole = sum(sharing.weight(queue) for queue in queues)
        for queue in queues:
            assert abs(counts[queue] - len(given_out) * sharing.weight(queue) / whole) <= len(queues)
    if least:
        span = int(1 / least) + 1
        for start in range(len(given_out) - span + 1):
            assert set(given_out[start : start + span]) == set(queues)


# Pools


async def test_pool_settings_override_the_queues_of_a_worker(bench: Bench) -> None:
    await put(bench, "p", "a", "b", sharing=ROUND_ROBIN)
    await join(bench, "w", "p")
    await push(bench, a=5, b=5, c=5)
    assert await queues_of(bench, "c", "b", "a", worker_id="w", count=4) == "abab"
    assert await queues_of(bench, "c", worker_id="w", count=4) == ""


async def test_a_pool_runs_no_more_jobs_than_it_may(bench: Bench) -> None:
    await put(bench, "p", "a", concurrency=3)
    for worker in ("v", "w"):
        await join(bench, worker, "p")
    await push(bench, a=10)
    first = await bench.fetch("a", count=2, worker_id="v")
    assert await queues_of(bench, "a", count=5, worker_id="w") == "a"
    assert await queues_of(bench, "a", count=5, worker_id="w") == ""
    assert await queues_of(bench, "a", count=5, worker_id="v") == ""
    assert (await bench.events()).count("scheduling.pool_overloaded") == 1
    await bench.ack(first[0])
    assert await queues_of(bench, "a", count=5, worker_id="w") == "a"
    assert await queues_of(bench, "a", count=5, worker_id="stranger") == "aaaaa"


async def test_who_waits_for_room_in_a_pool_is_woken(bench: Bench) -> None:
    await put(bench, "p", "a", "b", concurrency=1)
    for worker in ("v", "w"):
        await join(bench, worker, "p")
    await push(bench, a=1, b=1)
    (first,) = await bench.fetch("a", "b", worker_id="v")
    waiting = asyncio.create_task(bench.service.jobs.fetch(Claim(("a", "b"), 1, "w"), wait=LONG_WAIT))
    await bench.until_parked()
    assert not waiting.done()
    await bench.ack(first)
    (second,) = await asyncio.wait_for(waiting, PATIENCE)
    assert second.queue == "b"


async def test_the_queues_of_an_isolated_pool_serve_only_its_workers(bench: Bench) -> None:
    await put(bench, "gpu", "a", isolated=True)
    await put(bench, "other", "a", "b")
    await join(bench, "w", "gpu")
    await join(bench, "v", "nowhere")
    await push(bench, a=3, b=1)
    assert await queues_of(bench, "a", "b", worker_id="v", count=5) == "b"
    assert await queues_of(bench, "a", "b", count=5) == ""
    assert await queues_of(bench, "a", "b", worker_id="w") == "a"
    await bench.service.scope.do(pools.delete_pools, "gpu")
    assert await queues_of(bench, "a", "b", worker_id="v") == "a"


async def test_only_one_of_several_isolated_pools_does_not_shut_the_others_out(bench: Bench) -> None:
    await put(bench, "p", "a", isolated=True)
    await put(bench, "q", "a", isolated=True)
    await join(bench, "w", "q")
    await push(bench, a=1)
    assert await queues_of(bench, "a", worker_id="w") == "a"


async def test_a_pool_that_is_unknown_is_told(bench: Bench) -> None:
    with pytest.raises(NotFound, match="no pool"):
        await bench.service.scope.look(pools.find_pools, "p")
    with pytest.raises(NotFound, match="no pool"):
        await bench.service.scope.do(pools.delete_pools, "p")


async def test_the_bound_of_a_pool_holds_for_several_servers(shared_url: str, clock: Clock) -> None:
    databases = [open_database(shared_url) for _ in range(2)]
    try:
        engines = [Service(database) for database in databases]
        await engines[0].scope.do(pools.put_pools, Pool("p", ("a",), concurrency=3))
        for worker in range(4):
            await engines[worker % 2].fleet.beat(Heartbeat(f"w{worker}", pool="p"))
        await push(Bench(engines[0], clock), a=60)
        running, most, done = 0, 0, 0

        async def work(service: Service, worker: str) -> None:
            nonlocal running, most, done
            while done < 60:
                jobs = await service.jobs.fetch(Claim(("a",), 2, worker), wait=0.2)
                running += len(jobs)
                most = max(most, running)
                await asyncio.sleep(0.001)
                running -= len(jobs)  # before the server frees their places
                done += len(jobs)
                await service.jobs.acknowledge([Acknowledgement(job.id, None, worker, job.attempt) for job in jobs])

        await asyncio.wait_for(
            asyncio.gather(*[work(engines[number % 2], f"w{number}") for number in range(4)]), timeout=PATIENCE
        )
        assert 1 <= most <= 3
    finally:
        for database in databases:
            database.close()
