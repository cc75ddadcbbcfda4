"""Plain jobs complete in one statement, and nothing shows which way their reports took."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from ojster.core.errors import OjsterError
from ojster.core.job import Job
from ojster.core.plain_end import plain_seq
from ojster.jobs import completion
from ojster.jobs.messages import Acknowledgement, Progress
from ojster.storage.transaction import Transaction
from tests.conftest import Bench

pytestmark = pytest.mark.anyio

LARGE = b'"' + b"x" * 2_000_000 + b'"'


def acknowledged(tx: Transaction, calls: Sequence[list[Acknowledgement]]) -> list[tuple[Any, dict[str, Any]]]:
    """Acknowledge jobs; return the answers, and everything that the transaction says of them."""
    (acks,) = calls
    answers = completion.acknowledge(tx, acks)
    effects = tx.effects
    said = {
        "finished": list(effects.finished),
        "opened": set(effects.opened),
        "events": [(event[0], event[2], event[5]) for event in effects.events],
        "history": list(effects.history),
        "counts": {key: number for key, number in effects.counts.items() if number},
        "attempts": list(effects.attempts),
    }
    return [(answers, said)]


async def outcomes(bench: Bench, queue: str, *, plainly: bool) -> list[Any]:
    """Report jobs of all kinds in one way; return what is answered, told and stored, without names of one run."""
    for number in range(5):
        await bench.push("plain", number, queue=queue)
    await bench.push("unique", queue=queue, unique={"keys": ["type", "queue"], "period": "PT1H"})
    await bench.push("limited", queue=queue, rate_limit={"key": queue, "limit": 9, "period": "PT1M"})
    await bench.push("reporting", queue=queue)
    await bench.push("cancelled", queue=queue)
    await bench.push("kept", queue=queue, result_ttl=0)
    jobs = {(job.type, index): job for index, job in enumerate(await bench.fetch(queue, count=20, worker_id="w"))}
    assert len(jobs) == 10
    bench.clock.advance(1)

    def ack(job: Job, result: bytes | None = b"1", **other: Any) -> Acknowledgement:
        report = Acknowledgement(job.id, result, "w", job.attempt, started_at=job.started_at, seq=plain_seq(job))
        return (
            msgspec.structs.replace(report, **other) if plainly else msgspec.structs.replace(report, **other, seq=None)
        )

    some = {job.id: job for job in jobs.values()}
    by_type = {job.type: job for job in jobs.values()}
    one, two, three, four, five, *_ = [job for job in jobs.values() if job.type == "plain"]
    await bench.service.jobs.report(Progress(by_type["reporting"].id, 0.5, worker_id="w", attempt=1))
    await bench.service.jobs.cancel(by_type["cancelled"].id)
    calls = [
        [ack(one), ack(two, None), ack(three, b'{"n":1}')],
        [ack(four, LARGE), ack(one, b"2"), ack(one)],
        [ack(four, worker_id="other"), ack(by_type["reporting"]), ack(five, attempt=2)],
        [ack(four, started_at=1), ack(five, LARGE), ack(five, attempt=2), ack(by_type["cancelled"]), ack(one)],
        [ack(by_type["limited"]), ack(by_type["unique"]), ack(four)],
        [ack(by_type["kept"]), ack(five), ack(four, job_id="none")],
    ]
    seen: list[Any] = []
    for call in calls:
        answers, said = (await bench.service.database.run_many(acknowledged, [call]))[0]
        seen.append(([answer if isinstance(answer, OjsterError) else answer.id for answer in answers], said))
    seen.append([await bench.find(job) for job in some.values()])
    return [named(part, queue, some) for part in seen]


def named(part: Any, queue: str, jobs: dict[str, Job]) -> str:
    """Return a text without the names and numbers of one run."""
    text = repr(part)
    for place, job in enumerate(jobs.values()):
        for word, other in (
            (job.id, f"job-{place}"),
            (job.unique_key, "key"),
            (f"seq={job.seq},", ""),
            (f"({job.seq},", "("),
        ):
            text = text.replace(word, other) if word else text
    return text.replace(queue, "queue")


async def test_a_report_does_the_same_in_either_way(bench: Bench) -> None:
    began = bench.clock.now
    plainly = await outcomes(bench, "queue-one", plainly=True)
    bench.clock.now = began
    carefully = await outcomes(bench, "queue-two", plainly=False)
    for one, other in zip(plainly, carefully, strict=True):
        assert one == other


@pytest.mark.parametrize("alike", [True, False])
async def test_many_results_are_stored_whether_they_are_alike_or_not(bench: Bench, alike: bool) -> None:
    for number in range(20):
        await bench.push("plain", number)
    jobs = await bench.fetch(count=20, worker_id="w")
    results = [None if number == 3 else b"%d" % (0 if alike else number) for number in range(20)]
    reports = [
        Acknowledgement(job.id, result, "w", job.attempt, started_at=job.started_at, seq=plain_seq(job))
        for job, result in zip(jobs, results, strict=True)
    ]
    assert [job.id for job in await bench.service.jobs.acknowledge(reports) if isinstance(job, Job)] == [
        job.id for job in jobs
    ]
    stored = [await bench.find(job) for job in jobs]
    assert [(job.state, job.result) for job in stored] == [("completed", result) for result in results]


async def test_only_plain_jobs_have_a_number_to_complete_by(bench: Bench) -> None:
    await bench.push()
    await bench.push("kept", result_ttl=60)
    plain, kept = await bench.fetch(count=2)
    assert (plain_seq(plain), plain_seq(kept)) == (plain.seq, None)
    assert plain_seq(msgspec.structs.replace(plain, seq=0)) is None  # it comes from a server
    assert plain_seq(msgspec.structs.replace(plain, node=7)) is None
