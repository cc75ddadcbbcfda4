"""Many requests that are known to be alike become copies while they are inserted: as if each had been read."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from ojster.core.errors import InvalidPayload, OjsterError, PayloadTooLarge, QueueFull
from ojster.jobs.job_json import to_json
from ojster.jobs.models import FEWEST_COPIES, AlikeRequests, Copies
from ojster.jobs.new_job import NewJob
from ojster.jobs.push import MADE_AT_ONCE, push
from ojster.queues.wire import QueueConfigBody
from ojster.storage.transaction import Transaction, TryAgain
from tests.conftest import Bench, request
from tests.jobs.test_pushed_alike import done

pytestmark = pytest.mark.anyio

MANY = 2 * MADE_AT_ONCE + 3

KINDS: list[dict[str, Any]] = [
    {},
    {"queue": "mail", "priority": 3, "timeout_ms": 5_000},
    {"delay_until": "+PT1H"},
    {"expires_at": "+PT5M"},
    {"meta": {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}},
    {"meta": {"tenant_id": "acme"}},
]

READ: list[dict[str, Any]] = [
    {"unique": {"keys": ["args"], "on_conflict": "ignore"}},
    {"rate_limit": {"key": "api", "limit": 9, "period": "PT1M"}},
]
"""Options with which more depends on the arguments than the envelope, so that each request is read."""


def alike(count: int, *args: Any, **options: Any) -> AlikeRequests:
    """Return that many requests with a number of their own as the first argument."""
    common = request("a.b", **options)
    del common["args"]
    return AlikeRequests(common, [msgspec.json.encode([number, *args]) for number in range(count)])


async def made(bench: Bench, requests: Sequence[Any]) -> list[NewJob]:
    return await (await bench.service.jobs.preparation()).jobs(requests)


def numbered(outcome: dict[str, Any]) -> str:
    """Return what a push has done, with the number of a job instead of its id."""
    text = repr(outcome)
    for number, (id, *_) in enumerate(outcome["stored"]):
        text = text.replace(id, f"job {number}")
    return text


@pytest.mark.parametrize("options", [*KINDS, *READ], ids=str)
async def test_nothing_shows_whether_jobs_were_made_while_they_were_inserted(
    bench: Bench, options: dict[str, Any]
) -> None:
    requests = alike(FEWEST_COPIES, "x" * 200, **options)
    copies = await made(bench, requests)
    assert isinstance(copies, Copies) == (options in KINDS)
    read = await made(bench, list(requests))
    assert not isinstance(read, Copies)
    one, other = [numbered(await bench.run(done, [group])) for group in (copies, read)]
    assert one == other
    assert one.count("job 7'") > 1


async def test_jobs_are_claimed_in_the_order_of_their_requests(bench: Bench) -> None:
    pushed = await bench.service.jobs.enqueue(alike(MANY))
    claimed = await bench.fetch(count=MANY)
    assert [job.args for job in claimed] == [[number] for number in range(MANY)]
    assert [job.id for job in claimed] == [outcome.job.id for outcome in pushed]
    assert [msgspec.json.decode(to_json(job))["id"] for job in claimed] == [job.id for job in claimed]


async def test_others_push_in_the_same_transaction(bench: Bench) -> None:
    jobs = bench.service.jobs
    calls = [alike(FEWEST_COPIES), [request("a.c", 1)], alike(FEWEST_COPIES, queue="mail"), [request("a.b", 1)]]
    answers = await asyncio.gather(*[jobs.enqueue(call) for call in calls])
    ids = {outcome.job.id for answer in answers for outcome in answer}
    assert len(ids) == 2 * FEWEST_COPIES + 2
    assert ids == {job.id for job in await bench.fetch("default", "mail", count=len(ids))}


@pytest.mark.parametrize(
    ("wrong", "refusal"),
    [("x" * 2_000_000, PayloadTooLarge), (None, InvalidPayload)],
    ids=["too large", "too deep"],
)
async def test_one_job_that_is_not_allowed_keeps_all_of_them_out(
    bench: Bench, wrong: str | None, refusal: type[OjsterError]
) -> None:
    requests = alike(FEWEST_COPIES)
    args = b"[" * 90 + b"]" * 90 if wrong is None else msgspec.json.encode([wrong])
    with pytest.raises(refusal) as of_alike:
        await bench.service.jobs.enqueue(AlikeRequests({"type": msgspec.Raw(b'"a.b"')}, [*requests.args, args]))
    with pytest.raises(refusal) as of_one:
        await bench.service.jobs.enqueue([{"type": msgspec.Raw(b'"a.b"'), "args": msgspec.Raw(args)}] * 2)
    assert str(of_alike.value) == str(of_one.value)
    assert await bench.fetch(count=1) == []


async def test_a_queue_that_is_too_full_keeps_all_of_them_out(bench: Bench) -> None:
    await bench.service.queues.configure("default", QueueConfigBody(max_size=FEWEST_COPIES))
    with pytest.raises(QueueFull):
        await bench.service.jobs.enqueue(alike(FEWEST_COPIES + 1))
    assert await bench.fetch(count=1) == []
    assert len(await bench.service.jobs.enqueue(alike(FEWEST_COPIES))) == FEWEST_COPIES


async def test_a_queue_that_does_not_take_their_type_keeps_all_of_them_out(bench: Bench) -> None:
    await bench.service.queues.configure("default", QueueConfigBody(allowed_job_types=["other"]))
    with pytest.raises(OjsterError, match=r"a\.b"):
        await bench.service.jobs.enqueue(alike(FEWEST_COPIES))
    assert await bench.fetch(count=1) == []


async def test_a_transaction_that_runs_again_inserts_them_once(bench: Bench) -> None:
    runs = []

    def push_at_the_second_try(tx: Transaction, groups: Sequence[Any]) -> list[Any]:
        results = push(tx, groups)
        runs.append(results)
        if len(runs) == 1:
            raise TryAgain("another transaction was first")
        return results

    (pushed,) = await bench.service.database.run_many(push_at_the_second_try, [await made(bench, alike(MANY))], MANY)
    assert len(runs) == 2
    assert [job.id for job in await bench.fetch(count=2 * MANY)] == [outcome.job.id for outcome in pushed]
