"""A backup that is taken while flows wait, sleep and run, and is restored elsewhere: all of them end there."""

from __future__ import annotations

import asyncio
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pytest

from ojster import App, Flow
from ojster.cli.archive import back_up, restore
from ojster.core.job import Job
from ojster.jobs.claim_policy import Claim
from ojster.service import Service
from ojster.storage.open import open_database
from ojster.storage.postgres.url import parse_postgres_url
from ojster.workflows.flow import FlowMessage
from tests.client.test_enqueue_in_transaction import parts
from tests.conftest import Clock
from tests.flows.driver import FlowBench
from tests.postgres import PostgresServer

pytestmark = pytest.mark.anyio


@pytest.fixture
def copied_url(shared_url: str, tmp_path: Path) -> Iterator[Any]:
    """What copies the database as it is now, and returns the URL of the copy."""
    url = shared_url
    if not url.startswith("postgresql"):

        def copy() -> str:
            back_up(Path(url.removeprefix("sqlite:///")), tmp_path / "backup.tar", None)
            restore(tmp_path / "backup.tar", tmp_path / "again.db", None)
            return f"sqlite:///{tmp_path}/again.db"

        yield copy
        return
    programs = PostgresServer.programs()
    server = [f"--{name}={value}" for name, value in parts().items() if name not in ("dbname", "user")]
    server += [f"--username={parts()['user']}"]

    def copy_postgres() -> str:
        schema = parse_postgres_url(url).schema
        dumped = [str(programs / "pg_dump"), *server, f"--schema={schema}", parts()["dbname"]]
        script = subprocess.run(dumped, capture_output=True, check=True).stdout
        run("CREATE DATABASE again")
        subprocess.run(
            [str(programs / "psql"), *server, "--quiet", "again"], input=script, check=True, capture_output=True
        )
        return url.replace(f"/{parts()['dbname']}?", "/again?", 1)

    def run(sql: str) -> None:
        with psycopg.connect(**parts(), autocommit=True) as connection:  # type: ignore[arg-type]  # all are strings
            connection.execute(sql)

    run("DROP DATABASE IF EXISTS again")
    yield copy_postgres
    run("DROP DATABASE IF EXISTS again WITH (FORCE)")


class Journeys(FlowBench):
    """Flows with steps, jobs, a message and a sleep."""

    async def send_to(self, id: str) -> None:
        await self.service.flows.send(FlowMessage(id, "go", msgspec.json.encode("gone")))

    async def take_one(self, worker: str) -> Job:
        (job,) = await self.service.jobs.fetch(Claim(("default",), 1, worker))
        return job

    async def finish_all(self, ids: list[str]) -> list[Any]:
        results = []
        for self.id in ids:
            info = await self.finish(300.0)
            assert isinstance(info.result, msgspec.Raw), info.error
            results.append(msgspec.json.decode(info.result))
        return results


@pytest.mark.thorough
async def test_flows_in_flight_end_after_a_restore(shared_url: str, clock: Clock, copied_url: Any) -> None:
    app, done = App(shared_url), Counter[str]()
    service = Service(open_database(shared_url, clock=clock))

    def note(what: str) -> str:
        done[what] += 1
        return what

    @app.job("work")
    async def work(what: str) -> str:
        return note(what)

    @app.flow("journey")
    async def journey(flow: Flow, number: int) -> list[str]:
        first = await flow.step("first", note, f"{number} first")
        second = await flow.run(work, f"{number} second")
        message = await flow.receive("go", str)
        await flow.sleep(600)
        return [first, second, message, await flow.run(work, f"{number} last")]

    bench = Journeys(service, clock, app)
    waits, sleeps, told = [(await bench.start(journey.s(number))).id for number in range(3)]
    await bench.send_to(told)  # before it waits
    await bench.work()
    await bench.send_to(sleeps)
    await bench.work()
    has_job = (await bench.start(journey.s(3))).id
    await bench.run_job(await bench.take_one("w1"))
    await bench.take_one("w9")  # a worker runs its job
    runs = (await bench.start(journey.s(4))).id
    await bench.take_one("w9")  # a worker runs its function
    ids = [waits, sleeps, told, has_job, runs]
    before = done.copy()
    copy = await asyncio.to_thread(copied_url)

    for id in (waits, has_job, runs):
        await bench.send_to(id)
    expected = [[f"{number} first", f"{number} second", "gone", f"{number} last"] for number in range(5)]
    assert await bench.finish_all(ids) == expected
    later = done - before
    assert not later & before, "what is recorded is not done again"

    restored = Service(open_database(copy, clock=clock))
    again = Journeys(restored, clock, app)
    done.clear()
    for id in (waits, has_job, runs):  # messages that came after the backup are not in it
        await again.send_to(id)
    assert await again.finish_all(ids) == expected
    assert done == later, "what ended after the backup is done again, and nothing else"
    await restored.close()
    await service.close()
    await app.aclose()
