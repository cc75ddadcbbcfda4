"""PostgreSQL: processes tell each other of ends of jobs while one of them waits for some, and only then."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable

import psycopg
import pytest

from ojster.jobs.claim_policy import Claim
from ojster.jobs.messages import Acknowledgement
from ojster.service import Service
from ojster.storage.open import open_database
from ojster.storage.postgres import notifier
from ojster.storage.postgres.database import PostgresDatabase
from ojster.storage.postgres.notifier import PostgresNotifier
from tests.conftest import request
from tests.waiting import LONG_WAIT, PATIENCE

pytestmark = pytest.mark.anyio


@pytest.fixture
async def services(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Service, Service]]:
    """Two processes that have heard of each other, and would not look for each other's changes."""
    monkeypatch.setattr(notifier, "DISCOVERY_SECONDS", 0.0)
    monkeypatch.setattr(notifier, "HEARTBEAT", 1_000.0)
    here, there = [Service(open_database(postgres_url)) for _ in range(2)]
    await _until(lambda: _notifier(here).has_peers and _notifier(there).has_peers)
    yield here, there
    for service in (here, there):
        await service.close()


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """All that any process has heard."""
    messages: list[str] = []
    hear = PostgresNotifier._hear

    def noting(self: PostgresNotifier, message: str) -> None:
        messages.append(message)
        hear(self, message)

    monkeypatch.setattr(PostgresNotifier, "_hear", noting)
    return messages


async def test_nobody_is_told_of_an_end_that_nobody_waits_for(
    heard: list[str], services: tuple[Service, Service]
) -> None:
    here, there = services
    (pushed,) = await here.jobs.enqueue([request()])
    await _complete(there)
    await there.jobs.enqueue([request(queue="later")])
    await _until(lambda: any("news:later" in message for message in heard))
    assert not any("job:" in message or "finished" in message for message in heard)
    assert (await here.jobs.wait_for(pushed.job.id, 0)).state == "completed"


async def test_an_end_is_told_to_those_who_wait_for_it(services: tuple[Service, Service]) -> None:
    here, there = services
    for _ in range(3):  # only the first of them announces it
        (pushed,) = await here.jobs.enqueue([request()])
        waiting = asyncio.create_task(here.jobs.wait_for(pushed.job.id, LONG_WAIT))
        await _until(lambda: _notifier(there).tells_ends)
        await _complete(there)
        assert (await asyncio.wait_for(waiting, PATIENCE)).state == "completed"


async def test_an_end_is_not_missed_that_came_before_the_other_process_heard_of_the_waiter(
    services: tuple[Service, Service], monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = services
    (pushed,) = await here.jobs.enqueue([request()])
    held: list[str] = []
    hear, deaf = PostgresNotifier._hear, _notifier(there)
    monkeypatch.setattr(
        PostgresNotifier, "_hear", lambda self, message: held.append(message) if self is deaf else hear(self, message)
    )
    waiting = asyncio.create_task(here.jobs.wait_for(pushed.job.id, LONG_WAIT))
    await _until(lambda: any("waits" in message for message in held))
    await _complete(there)
    assert not deaf.tells_ends
    for message in held:
        hear(deaf, message)
    assert (await asyncio.wait_for(waiting, PATIENCE)).state == "completed"


async def test_an_end_is_not_missed_that_a_process_has_not_told_which_stops(services: tuple[Service, Service]) -> None:
    here, there = services
    (pushed,) = await here.jobs.enqueue([request()])
    await _complete(there)
    with here.database.wakeups.waiter("finished") as waiter:
        await there.close()
        assert await waiter.wait(PATIENCE)
    assert (await here.jobs.wait_for(pushed.job.id, 0)).state == "completed"


async def test_a_new_connection_announces_waits_anew(
    services: tuple[Service, Service], monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = services
    _notifier(here).announce_wait()
    await _until(lambda: _notifier(there).tells_ends)
    (pushed,) = await here.jobs.enqueue([request()])
    lost = _notifier(here)
    gap = lost._on_gap

    def fail(_: psycopg.Connection) -> None:
        monkeypatch.setattr(lost, "_on_gap", gap)
        raise psycopg.OperationalError

    monkeypatch.setattr(lost, "_on_gap", fail)
    lost.check()
    await _until(lambda: lost._announced_at == float("-inf"))
    _notifier(there)._heard_waits_at = float("-inf")  # what was announced was lost
    waiting = asyncio.create_task(here.jobs.wait_for(pushed.job.id, LONG_WAIT))
    await _until(lambda: _notifier(there).tells_ends)
    await _complete(there)
    assert (await asyncio.wait_for(waiting, PATIENCE)).state == "completed"


async def test_a_closed_process_writes_into_no_file_of_others(services: tuple[Service, Service]) -> None:
    here, _ = services
    closed = _notifier(here)
    await here.close()
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    closed.announce_wait()
    closed.check()
    with pytest.raises(BlockingIOError):
        os.read(reader, 1)
    os.close(reader)
    os.close(writer)


async def test_a_process_that_comes_later_learns_that_another_waits(
    services: tuple[Service, Service], postgres_url: str
) -> None:
    here, _ = services
    (pushed,) = await here.jobs.enqueue([request()])
    waiting = asyncio.create_task(here.jobs.wait_for(pushed.job.id, LONG_WAIT))
    late = Service(open_database(postgres_url))
    await _until(lambda: _notifier(late).tells_ends)
    await _complete(late)
    assert (await asyncio.wait_for(waiting, PATIENCE)).state == "completed"
    await late.close()


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0.01)


def _notifier(service: Service) -> PostgresNotifier:
    assert isinstance(service.database, PostgresDatabase)
    return service.database._notifier


async def _complete(service: Service) -> None:
    (job,) = await service.jobs.fetch(Claim(("default",)))
    await service.jobs.acknowledge([Acknowledgement(job.id, None, job.worker_id, job.attempt)])
