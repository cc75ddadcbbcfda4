"""Repeated kill -9 under load: no acknowledged push is lost, and every job is completed."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from tests.chaos.fleet import Fleet, Load, settle

pytestmark = [pytest.mark.anyio, pytest.mark.thorough, pytest.mark.timeout(240)]

SECONDS = 9.0
"""Duration of the killing, in seconds."""


ENOUGH = 500
"""Jobs that must be pushed while processes are killed."""


@pytest.fixture
def fleet(tmp_path: Path, shared_url: str) -> Iterator[Fleet]:
    made = Fleet(tmp_path, shared_url)
    yield made
    made.stop()


async def test_nothing_is_lost_however_often_processes_are_killed(fleet: Fleet) -> None:
    fleet.server("server")
    fleet.worker("worker", "server")
    fleet.worker("worker of the database", fleet.database)
    names = list(fleet.processes)
    if fleet.database.startswith("postgresql"):
        fleet.server("other server")
        names.append("other server")
    chance = random.Random(4)
    load = Load(fleet, list(fleet.ports))
    await asyncio.sleep(2)
    ends = time.monotonic() + SECONDS
    while time.monotonic() < ends or len(load.acknowledged) <= ENOUGH:  # a busy machine needs longer
        name = chance.choice(names)
        await asyncio.to_thread(fleet.kill, name)
        await asyncio.sleep(chance.random() * 0.3)
        fleet.revive(name)
        await asyncio.sleep(0.3 + chance.random() * 0.7)
    await load.stop()
    assert fleet.kills >= 6
    assert len(load.acknowledged) > ENOUGH
    await settle(fleet.database, load.acknowledged)
    fleet.stop()
    if fleet.database.startswith("sqlite"):
        file = apsw.Connection(fleet.database.removeprefix("sqlite:///"))
        assert file.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
