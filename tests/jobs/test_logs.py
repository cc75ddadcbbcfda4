"""The log of a job: bounded lines of its attempts, which live as long as the job or their own retention."""

from __future__ import annotations

import pytest

from ojster.core.durations import DAY
from ojster.core.errors import Conflict, NotFound
from ojster.core.ids import new_id
from ojster.core.settings import ServiceRetention, ServiceSettings
from ojster.jobs.bulk import Action
from ojster.jobs.filter_walk import JobFilter
from ojster.jobs.job_logs import MAX_LINE_CHARACTERS, MAX_LOG_BYTES, MAX_LOG_LINES, NewLine, NewLines
from ojster.schedules.retention import count_forgettable, forget
from tests.conftest import Bench, Http

pytestmark = pytest.mark.anyio


def lines(*texts: str, at: int = 0) -> list[NewLine]:
    return [NewLine(at, "info", "shop", text) for text in texts]


async def texts(bench: Bench, job_id: str, after: int = 0) -> list[str]:
    return [line.message for line in (await bench.service.jobs.log(job_id, after)).lines]


async def test_lines_are_read_in_order_and_after_a_number(bench: Bench) -> None:
    await bench.push()
    job = await bench.fetch_one(worker_id="w")
    assert await bench.service.jobs.add_to_log(NewLines(job.id, lines("a", "b"), "w", 1)) == 2
    assert await bench.service.jobs.add_to_log(NewLines(job.id, lines("c"), "w", 1)) == 3
    assert await texts(bench, job.id) == ["a", "b", "c"]
    assert await texts(bench, job.id, after=2) == ["c"]
    await bench.fail(job)
    await bench.run_due(after=10)
    again = await bench.fetch_one(worker_id="w")
    await bench.service.jobs.add_to_log(NewLines(job.id, lines("d"), "w", again.attempt))
    log = await bench.service.jobs.log(job.id)
    assert [(line.number, line.attempt) for line in log.lines] == [(1, 1), (2, 1), (3, 1), (4, 2)]
    assert not log.is_complete
    await bench.ack(again)
    assert (await bench.service.jobs.log(job.id)).is_complete


async def test_only_the_last_attempt_adds_lines_also_when_it_has_ended(bench: Bench) -> None:
    await bench.push()
    job = await bench.fetch_one(worker_id="w")
    for worker_id, attempt in (("other", 1), ("w", 2)):
        with pytest.raises(Conflict, match="another one cannot add"):
            await bench.service.jobs.add_to_log(NewLines(job.id, lines("x"), worker_id, attempt))
    await bench.service.jobs.cancel(job.id)
    await bench.service.jobs.add_to_log(NewLines(job.id, lines("stopping"), "w", 1))
    assert await texts(bench, job.id) == ["stopping"]
    with pytest.raises(NotFound):
        await bench.service.jobs.add_to_log(NewLines(new_id(), lines("x")))


async def test_a_job_keeps_its_newest_lines_and_says_how_many_are_gone(bench: Bench) -> None:
    job = await bench.push()
    await bench.service.jobs.add_to_log(NewLines(job.id, lines("first")))
    await bench.service.jobs.add_to_log(NewLines(job.id, lines(*"x" * MAX_LOG_LINES), dropped=5))
    log = await bench.service.jobs.log(job.id)
    assert len(log.lines) == MAX_LOG_LINES
    assert log.dropped == 6
    large = "y" * (2 * MAX_LINE_CHARACTERS)
    await bench.service.jobs.add_to_log(NewLines(job.id, lines(*[large] * 100)))
    kept = (await bench.service.jobs.log(job.id)).lines
    assert {len(line.message) for line in kept} == {MAX_LINE_CHARACTERS}
    assert len(kept) == -(-MAX_LOG_BYTES // (MAX_LINE_CHARACTERS + len("shop")))


async def test_every_text_can_be_kept(bench: Bench) -> None:
    job = await bench.push()
    await bench.service.jobs.add_to_log(NewLines(job.id, lines("a\0b", "\ud800", "\U0001f600\u202e", "")))
    assert await texts(bench, job.id) == ["a\ufffdb", "?", "\U0001f600\u202e", ""]


async def test_lines_are_deleted_with_their_job(bench: Bench) -> None:
    job = await bench.push()
    await bench.service.jobs.add_to_log(NewLines(job.id, lines("a")))
    await bench.service.jobs.cancel(job.id)
    await bench.service.bulk.sweep(Action.DELETE, JobFilter(states=("cancelled",)))
    assert await bench.run(lambda tx, _: [tx.execute("SELECT count(*) FROM job_logs")[0][0]], None) == 0


@pytest.mark.parametrize("engine_settings", [ServiceSettings(retention=ServiceRetention(discarded=None, logs=DAY))])
async def test_lines_of_finished_jobs_have_a_retention_of_their_own(bench: Bench) -> None:
    ended, waiting = await bench.push(retry={"max_attempts": 1}), await bench.push()
    for job in (ended, waiting):
        await bench.service.jobs.add_to_log(NewLines(job.id, lines("old", at=bench.clock.now)))
    await bench.fail(await bench.fetch_one())
    bench.clock.advance(2 * DAY / 1e6)
    await bench.service.jobs.add_to_log(NewLines(ended.id, lines("new", at=bench.clock.now)))
    assert (await bench.run(count_forgettable, None))["log_lines"] == 1
    assert (await bench.run(forget, None))["log_lines"] == 1
    assert await texts(bench, ended.id) == ["new"]
    assert await texts(bench, waiting.id) == ["old"]


async def test_logs_over_http(http: Http) -> None:
    job = await http.push()
    line = {"at": "2026-03-15T09:30:00Z", "level": "error", "logger": "shop", "message": "no"}
    added = await http("POST", f"/ojs/v1/jobs/{job['id']}/logs", {"lines": [line, line]})
    assert added.json() == {"last": 2}
    answer = (await http("GET", f"/ojs/v1/jobs/{job['id']}/logs?after=1")).json()
    assert answer["lines"] == [line | {"number": 2, "attempt": 0, "at": "2026-03-15T09:30:00.000000Z"}]
    assert (answer["dropped"], answer["is_complete"]) == (0, False)
    for wrong in ({"at": "yesterday"}, {"level": "loud"}):
        refused = await http("POST", f"/ojs/v1/jobs/{job['id']}/logs", {"lines": [line | wrong]})
        assert refused.status_code == 400
    assert (await http("GET", f"/ojs/v1/jobs/{new_id()}/logs")).status_code == 404
