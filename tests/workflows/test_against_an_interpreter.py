"""Random workflows, compared with the reference interpreter: end states, number of runs, and no leftover rows."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import AsyncIterator

import pytest

from ojster.service import Service
from ojster.storage.open import open_database
from ojster.workflows.run import creation, start_quota
from tests.amount import cases
from tests.conftest import Clock, empty
from tests.workflows.driver import Crowd, every_step, leftovers
from tests.workflows.interpreter import Maker

pytestmark = pytest.mark.anyio

CROWD = 100
SEED = int(os.environ.get("OJSTER_TEST_SEED", "1"))


@pytest.fixture
async def four_engines(postgres_url: str, clock: Clock, request: pytest.FixtureRequest) -> AsyncIterator[list[Service]]:
    """Four engines on one PostgreSQL database, with one connection each: four concurrent transactions."""
    isolation = getattr(request, "param", "read committed").replace(" ", "%20")
    url = f"{postgres_url}&connections=1&isolation={isolation}"
    engines = [Service(open_database(url, clock=clock)) for _ in range(4)]
    yield engines
    for service in engines:
        await service.close()


async def run_and_retry(engines: list[Service], clock: Clock, seed: int, count: int) -> None:
    """Run random workflows, and retry twice those that do not succeed."""
    rng = random.Random(seed)
    crowd = Crowd(engines, clock, rng)
    made = await crowd.create([Maker(rng).workflow() for _ in range(count)])
    for one in made:
        one.expected.run(one.script)
    await crowd.run()
    await crowd.check()
    for failing in (0.2, 0.0):
        again = [one for one in made if one.expected.state != "completed"]
        for one in again:
            one.script.failing = failing
            one.script.ends = {path: end for path, end in one.script.ends.items() if end == "ok"}
            one.script.approvals = {}
        await asyncio.gather(*[rng.choice(engines).workflows.retry(one.id) for one in again])
        for one in again:
            one.expected.run(one.script)
        await crowd.run()
        await crowd.check()
    left = await engines[0].database.read(leftovers, None)
    assert not left, left


async def on_a_file_in_memory(clock: Clock, crowds: range) -> None:
    for crowd in crowds:
        service = Service(open_database("sqlite:///:memory:", clock=clock))
        await run_and_retry([service], clock, SEED * 1_000_000 + crowd, CROWD)
        await service.close()


async def on_postgres(engines: list[Service], clock: Clock, url: str, crowds: range) -> None:
    for crowd in crowds:
        empty(url)
        await run_and_retry(engines, clock, SEED * 1_000_000 + 500_000 + crowd, CROWD)


@pytest.mark.slow
async def test_workflows_do_what_the_rules_say(clock: Clock) -> None:
    await on_a_file_in_memory(clock, range(1))


@pytest.mark.thorough
@pytest.mark.parametrize("four_engines", ["read committed", "serializable"], indirect=True)
async def test_workflows_do_what_the_rules_say_in_four_transactions_at_once(
    four_engines: list[Service], clock: Clock, postgres_url: str
) -> None:
    await on_postgres(four_engines, clock, postgres_url, range(1))


@pytest.mark.thorough
async def test_workflows_do_what_the_rules_say_if_they_are_created_and_started_in_steps(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(creation, "NODES_CREATED_AT_ONCE", 2)
    monkeypatch.setattr(start_quota, "MAX_STARTS_OF_WORKFLOW", 1)
    await on_a_file_in_memory(clock, range(8, 10))


@pytest.mark.thorough
async def test_workflows_do_what_the_rules_say_in_steps_of_four_transactions_at_once(
    four_engines: list[Service], clock: Clock, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(creation, "NODES_CREATED_AT_ONCE", 2)
    monkeypatch.setattr(start_quota, "MAX_STARTS_OF_WORKFLOW", 1)
    await on_postgres(four_engines, clock, postgres_url, range(8, 9))


@pytest.mark.thorough
@pytest.mark.soak
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("first", range(100, 200, 10))
async def test_thousands_of_workflows_do_what_the_rules_say(clock: Clock, first: int) -> None:
    await on_a_file_in_memory(clock, range(first, first + cases(10)))


@pytest.mark.thorough
@pytest.mark.soak
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("first", [100, 110])
@pytest.mark.parametrize("four_engines", ["read committed", "serializable"], indirect=True)
async def test_hundreds_of_workflows_do_what_the_rules_say_in_four_transactions_at_once(
    four_engines: list[Service], clock: Clock, postgres_url: str, first: int
) -> None:
    await on_postgres(four_engines, clock, postgres_url, range(first, first + cases(10)))


class _Always(dict[str, bool]):
    """Approves everything."""

    def setdefault(self, path: str, default: bool = False) -> bool:
        return True


@pytest.mark.parametrize("at_once", [500, 1])
async def test_cancelled_workflows_start_nothing_new_but_what_undoes_and_the_branch(
    service: Service, clock: Clock, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start_quota, "MAX_STARTS_OF_WORKFLOW", at_once)
    rng = random.Random(SEED)
    crowd = Crowd([service], clock, rng)
    made = await crowd.create([Maker(rng).workflow() for _ in range(25)], failing=0.1)
    for _ in range(3):
        await crowd._work(service, "w")
    for one in made:
        info = await service.workflows.show(one.id)
        if not info.finished:
            await service.workflows.cancel(one.id)
            one.cancelled = True
    await crowd.run()
    for one in made:
        info = await service.workflows.show(one.id)
        assert info.finished, one.wire
        if not one.cancelled:
            continue
        assert info.state == "cancelled"
        for path in one.started_after_cancel:
            assert "compensate" in path or path.startswith(("on_cancel", "on_error")), (one.wire, path)
        assert max(one.ran.values(), default=1) == 1
        assert info.on_cancel is None or info.on_cancel.state in ("completed", "failed", "skipped")
        assert all(step.state not in ("waiting", "pending", "active", "blocked") for step in every_step(info))
    assert any(one.started_after_cancel for one in made)
    again = [one for one in made if one.cancelled]
    assert len(again) > 5
    for one in again:
        one.script.ends, one.script.failing, one.cancelled = {}, 0.0, False
        one.script.approvals = _Always()
        await service.workflows.retry(one.id)
    await crowd.run()
    for one in again:
        info = await service.workflows.show(one.id)
        assert (info.state, info.finished) == ("completed", True), (one.wire, info)
    left = await service.database.read(leftovers, None)
    assert not left, left
