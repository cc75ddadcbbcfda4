"""Races and malformed values: no job is lost, and other jobs continue."""

from __future__ import annotations

import asyncio
import random
import shutil
from collections.abc import Sequence

import msgspec
import pytest

from ojster.core.errors import BackendError, BackendUnavailable
from ojster.core.settings import ServiceSettings
from ojster.fleet.workers import Heartbeat
from ojster.jobs.claim import claim
from ojster.jobs.claim_policy import Claim
from ojster.jobs.filter_walk import JobFilter
from ojster.jobs.job_json import to_json
from ojster.jobs.new_job import read_job
from ojster.jobs.queries import Page
from ojster.schedules.cron import Cron, Registration, register
from ojster.service import Service
from ojster.storage.call import LongPoll
from ojster.storage.database import Database
from ojster.storage.open import open_database
from ojster.storage.transaction import Transaction
from tests.conftest import Bench, request, shown, until_parked
from tests.waiting import LONG_WAIT, PATIENCE

pytestmark = pytest.mark.anyio


async def test_a_job_that_arrives_when_the_time_is_up_is_handed_out_or_given_back(bench: Bench) -> None:
    """Run fetches that wait about as long as a push takes, and cancel some: a caller holds every active job."""
    chance = random.Random(1)
    held: set[str] = set()

    async def fetch_for_a_moment() -> None:
        for _ in range(40):
            waiting = asyncio.create_task(
                bench.service.jobs.fetch(Claim(("default",)), wait=chance.uniform(0.001, 0.004))
            )
            if chance.random() < 0.3:
                await asyncio.sleep(chance.uniform(0.0, 0.003))
                waiting.cancel()
            for job in (await asyncio.gather(waiting, return_exceptions=True))[0:1]:
                held.update(one.id for one in job) if isinstance(job, list) else None

    async def push_now_and_then() -> None:
        for _ in range(200):
            await bench.push()
            await asyncio.sleep(chance.uniform(0.0, 0.001))

    await asyncio.gather(push_now_and_then(), *(fetch_for_a_moment() for _ in range(10)))
    while jobs := await bench.fetch(count=100):  # released jobs are available again
        held.update(job.id for job in jobs)
    page = await bench.service.jobs.select(JobFilter(states=("active",)), Page(500))
    assert {job.id for job in page.jobs} == held
    assert len(held) == 200


async def test_a_job_given_back_has_lost_no_attempt(bench: Bench) -> None:
    await bench.push()
    given = await bench.fetch_one()
    bench.service.jobs.give_back([given])
    assert (await bench.fetch_one()).attempt == 1


async def test_maintenance_skips_a_job_that_it_cannot_read(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    poison = await bench.push()
    good = await bench.push()
    await bench.fetch(count=2, lease=1_000_000)

    def spoil(tx: Transaction, ids: Sequence[str]) -> list[None]:
        for id in ids:
            tx.execute(
                "UPDATE payloads SET stored = :bad WHERE seq = (SELECT seq FROM jobs WHERE id = :id)",
                {"bad": b'{"retry": 7}', "id": id},
            )
        return [None for _ in ids]

    await bench.run(spoil, poison.id)
    await bench.run_due(after=2)
    assert (await bench.find(good)).state == "available"
    assert "retrying in 60 seconds" in caplog.text
    next_due = await bench.run_due()
    assert next_due is not None
    assert next_due > bench.clock.now


@pytest.mark.parametrize("number", ["1e400", "-1e400", "123456789012345678901234567890", "1E-5", "-0.0"])
async def test_numbers_that_python_cannot_hold_go_through_unchanged(bench: Bench, number: str) -> None:
    members = request()
    members["args"] = msgspec.Raw(f"[{number}]".encode())
    (pushed,) = await bench.service.jobs.enqueue([members])
    await bench.fail(await bench.fetch_one())
    found = await bench.find(pushed.job)
    assert found.state == "retryable"
    assert f'"args":[{number}]'.encode() in to_json(found)


async def test_a_cron_job_that_cannot_fire_does_not_keep_the_others_from_it(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    for name, template in (("bad", b'{"type": "NOT A TYPE", "args": []}'), ("good", b'{"type": "tick", "args": []}')):
        await bench.run(register, Registration(Cron(name=name, expression="@every 60s", template=template)))
    await bench.run_due(after=61)
    assert (await bench.fetch_one()).type == "tick"
    assert "the cron job bad did not fire" in caplog.text
    assert "cron.skipped" in (await bench.events())


async def test_a_failing_transaction_keeps_parked_fetches(bench: Bench) -> None:
    waiting = [asyncio.create_task(bench.service.jobs.fetch(Claim(("default",)), wait=LONG_WAIT)) for _ in range(3)]
    await bench.until_parked(3)

    def break_after_a_push(tx: Transaction, requests: Sequence[None]) -> list[None]:
        tx.effects.opened.add("default")
        raise RuntimeError("something is broken")

    with pytest.raises(BackendError):
        await bench.run(break_after_a_push, None)
    await bench.service.jobs.enqueue([request() for _ in range(3)])
    assert [len(jobs) for jobs in await asyncio.gather(*waiting)] == [1, 1, 1]


async def test_patient_calls_beside_a_failing_one_are_kept(bench: Bench) -> None:
    def break_down(tx: Transaction, requests: Sequence[None]) -> list[None]:
        raise RuntimeError("something is broken")

    broken = asyncio.ensure_future(bench.run(break_down, None))
    waiting = asyncio.create_task(bench.service.jobs.fetch(Claim(("default",)), wait=LONG_WAIT))
    with pytest.raises(BackendError):
        await broken
    await bench.push()
    assert len(await waiting) == 1


async def test_a_change_that_was_committed_is_reported_as_such(
    bench: Bench, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(effects: object) -> None:
        raise OSError("the bell is gone")

    monkeypatch.setattr(bench.service.database, "publish", refuse)
    job = await bench.push()
    assert (await bench.find(job)).state == "available"
    assert "the bell is gone" in caplog.text


async def test_processes_whose_sockets_are_gone_still_work(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("gone")
    database = open_database(f"sqlite:///{folder}/jobs.db", ServiceSettings())
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
    service = Service(database)
    await service.jobs.enqueue([request()])
    assert len(await service.jobs.fetch(Claim(("default",)))) == 1
    await service.close()


async def test_what_a_leaving_worker_holds_goes_back_without_counting(bench: Bench) -> None:
    await bench.push(max_attempts=1)
    held = await bench.fetch_one(worker_id="w1")
    await bench.service.fleet.beat(Heartbeat("w1", (held.id,)))
    await bench.service.fleet.leave("w1")
    again = await bench.fetch_one(worker_id="w2")
    assert (again.id, again.attempt) == (held.id, 1)


async def test_an_exclusive_key_does_not_hide_the_jobs_behind_it(bench: Bench) -> None:
    for key in ("a", "a", "a", "b"):
        new = read_job(request(), bench.clock.now, largest=1_000_000)
        new.exclusive_key = key
        await bench.service.jobs.push([new])
    taken = await bench.fetch(count=2)
    assert [job.exclusive_key for job in taken] == ["a", "b"]


async def test_words_that_are_no_unicode_can_be_the_message_of_a_failure(bench: Bench) -> None:
    await bench.push()
    failed = await bench.fail(await bench.fetch_one(), type="Name\udcffError")
    assert shown(failed)["error"]["type"] == r"Name\udcffError"


async def test_closing_answers_all_parked_calls(database: Database) -> None:
    waits = LongPoll({"default": ("default",)}, lambda jobs: not jobs, lambda jobs: None)
    calls = [database.run_or_park(claim, Claim(("default",)), waits) for _ in range(5)]
    await until_parked(database, 5)
    late = [database.run_or_park(claim, Claim(("default",)), waits) for _ in range(5)]
    database.close()
    answers = await asyncio.wait_for(asyncio.gather(*calls, *late, return_exceptions=True), PATIENCE)
    assert answers[:5] == [[[]]] * 5
    assert all(answer == [[]] or isinstance(answer, BackendUnavailable) for answer in answers[5:])
