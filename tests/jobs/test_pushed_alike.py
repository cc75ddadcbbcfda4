"""Jobs of one model are pushed as copies of the first, and nothing shows which way a job took."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from ojster.core.errors import OjsterError
from ojster.core.job_table import JOB_COLUMNS
from ojster.jobs.new_job import NewJob
from ojster.jobs.push import push
from ojster.queues.wire import QueueConfigBody
from ojster.storage.transaction import Transaction
from tests.conftest import Bench, request

pytestmark = pytest.mark.anyio

KINDS: list[dict[str, Any]] = [
    {},
    {"queue": "mail"},
    {"queue": "mail", "priority": 3, "timeout_ms": 5_000},
    {"queue": "strict"},
    {"delay_until": "+PT1H"},
    {"expires_at": "+PT5M"},
    {"unique": {"keys": ["args"], "on_conflict": "ignore"}},
    {"rate_limit": {"key": "api", "limit": 9, "period": "PT1M"}},
    {"rate_limit": {"max_per_second": 4}},
    {"rate_limit": {"max_per_second": 5}, "unique": {"keys": ["args"], "on_conflict": "ignore"}},
    {"rate_limit": {"max_per_second": 6, "key": "api", "limit": 9, "period": "PT1M"}},
    {"meta": {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}},
    {"meta": {"tenant_id": "acme"}},
]


def pushed(tx: Transaction, calls: Sequence[Sequence[Sequence[NewJob]]]) -> list[Any]:
    """Push groups of jobs; return the answers, all that the transaction says of them, and what is stored."""
    (groups,) = calls
    results = push(tx, groups)
    effects = tx.effects
    said = {
        "answers": [
            str(result)
            if isinstance(result, OjsterError)
            else [(replace(one.job, seq=0), one.existing) for one in result]
            for result in results
        ],
        "events": list(effects.events),
        "available": {name: sorted(ids) for name, ids in effects.available.items()},
        "counts": dict(effects.counts),
        "enqueued": {name: tally.enqueued for name, tally in effects.tallies.items()},
        "due": effects.due,
        "history": list(effects.history),
        "watched": list(effects.watched),
    }
    stored = tx.execute(f"SELECT {JOB_COLUMNS}, (SELECT p.stored FROM payloads AS p WHERE p.seq = jobs.seq) FROM jobs")
    columns = sorted((str(row[1]), *row[2:]) for row in stored)
    limits = sorted(tx.execute("SELECT key, queues, rate_limit, rate_period FROM rate_limits"))
    raise Undone(said | {"stored": columns, "limits": limits})


class Undone(Exception):
    """Carries what a transaction has done out of it, and rolls it back."""

    def __init__(self, done: dict[str, Any]) -> None:
        self.done = done


def done(tx: Transaction, calls: Sequence[Sequence[Sequence[NewJob]]]) -> list[Any]:
    """Return what a push does, and undo it."""
    try:
        with tx.savepoint():
            pushed(tx, calls)
    except Undone as undone:
        return [undone.done]
    raise AssertionError


@pytest.mark.parametrize("seed", range(8))
async def test_nothing_shows_whether_a_job_was_pushed_as_a_copy(bench: Bench, seed: int) -> None:
    await bench.service.queues.configure("strict", QueueConfigBody(allowed_job_types=["other"]))
    choice = random.Random(seed)
    kinds = choice.sample(KINDS, 3)
    requests = [
        request(choice.choice(("a.b", "a.b", "a.c")), number, **dict(kind))
        for number in range(60)
        for kind in choices(choice, kinds)
    ]
    read_alone = [await bench.service.jobs.prepare(dict(one)) for one in requests]
    jobs = await (await bench.service.jobs.preparation()).jobs(requests)
    assert sum(job.model is not None for job in jobs) > 0
    for made in (jobs, read_alone):
        for groups in (divided(choice, made), [(job,) for job in made]):
            ones = await bench.run(done, groups)
            others = await bench.run(done, [[replace(job, model=None) for job in group] for group in groups])
            assert ones == others


def choices(choice: random.Random, kinds: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [choice.choice(kinds)] * choice.choice((1, 1, 5))


def divided(choice: random.Random, jobs: Sequence[NewJob]) -> list[Sequence[NewJob]]:
    groups = []
    while jobs:
        size = choice.choice((1, 2, 20))
        groups.append(jobs[:size])
        jobs = jobs[size:]
    return groups


async def test_requests_that_come_alone_have_a_model_from_the_second_on(bench: Bench) -> None:
    made = [await bench.service.jobs.prepare(request("a.b", number, queue="mail")) for number in range(3)]
    assert made[0].model is None
    assert made[1].model is made[2].model is not None


async def test_a_copy_has_its_own_id_and_arguments(bench: Bench) -> None:
    pushed_jobs = await bench.service.jobs.enqueue([request("a.b", number, queue="mail") for number in range(3)])
    ids = [one.job.id for one in pushed_jobs]
    assert len(set(ids)) == 3
    found = [await bench.find(id) for id in ids]
    assert [job.args for job in found] == [[0], [1], [2]]
    assert [msgspec.json.decode(job.envelope)["id"] for job in found] == ids


async def test_the_last_of_many_jobs_sets_the_rate_of_their_queue(bench: Bench) -> None:
    slow, fast = {"max_per_second": 4}, {"max_per_second": 9}
    for of_other in ({"unique": {"keys": ["args"]}}, {"id": "0190b0b0-0000-7000-8000-000000000001"}):
        requests = [
            request("a.b", 1, rate_limit=slow),
            request("a.b", 2, rate_limit=slow),
            request("a.c", rate_limit=fast, **of_other),
            request("a.b", 3, rate_limit=slow),
        ]
        jobs = await (await bench.service.jobs.preparation()).jobs(requests)
        assert jobs[0].model is jobs[3].model is not None
        outcome = await bench.run(done, [(job,) for job in jobs])
        assert [rate for _, _, rate, _ in outcome["limits"]] == [4]
