"""The clock of processes on a SQLite file: it does not jump when the machine's clock is set."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ojster.jobs.claim_policy import Claim
from ojster.schedules.due_work import run_due
from ojster.service import Service
from ojster.storage.open import open_database
from ojster.storage.sqlite.clock import SteadyClock
from ojster.storage.sqlite.database import SqliteDatabase
from tests.conftest import request

SECOND = 1_000_000
HOUR = 3600 * SECOND
START = 1_800_000_000 * SECOND


class Machine:
    """A machine whose clock can be set, and the time since it was started."""

    def __init__(self) -> None:
        self.since_boot = 1_000 * SECOND
        self.wall = START

    def passes(self, seconds: float) -> None:
        self.since_boot += round(seconds * SECOND)
        self.wall += round(seconds * SECOND)

    def clock(self, path: Path | None = None) -> SteadyClock:
        return SteadyClock(path, lambda: self.wall, lambda: self.since_boot)


@pytest.fixture
def machine() -> Machine:
    return Machine()


def test_it_is_the_machine_s_clock_while_nobody_sets_that(machine: Machine) -> None:
    clock = machine.clock()
    for _ in range(10):
        machine.passes(100)
        assert clock() == machine.wall


@pytest.mark.parametrize(("jump", "said"), [(HOUR, "set forward by 3600.0 s"), (-HOUR, "set back by 3600.0 s")])
def test_it_follows_a_jump_by_a_tenth(machine: Machine, jump: int, said: str, caplog: pytest.LogCaptureFixture) -> None:
    clock = machine.clock()
    machine.passes(1)
    machine.wall += jump
    with caplog.at_level(logging.WARNING, "ojster"):
        before = clock()
    assert said in caplog.text
    assert before == START + SECOND
    machine.passes(1)
    assert abs(clock() - before - SECOND) <= SECOND // 10
    machine.passes(10)
    assert clock() - before == 11 * SECOND + (11 if jump > 0 else -11) * SECOND // 10
    machine.passes(36_000)
    assert clock() == machine.wall
    assert clock.behind == 0


def test_a_drift_is_followed_without_a_word(machine: Machine, caplog: pytest.LogCaptureFixture) -> None:
    clock = machine.clock()
    for _ in range(1000):
        machine.passes(1)
        machine.wall += 500  # 0.5 ms a second, the most that NTP steers
        assert 0 <= machine.wall - clock() <= 1000
    assert caplog.text == ""


@given(st.lists(st.tuples(st.floats(0, 5000), st.integers(-2 * HOUR, 2 * HOUR) | st.integers(-SECOND, SECOND))))
def test_it_never_goes_back_and_its_seconds_are_about_seconds(steps: list[tuple[float, int]]) -> None:
    machine = Machine()
    clock = machine.clock()
    before, then = clock(), machine.since_boot
    for passed, jump in steps:
        machine.passes(passed)
        machine.wall += jump
        now = clock()
        lasted = machine.since_boot - then
        assert 0.9 * lasted - 2 <= now - before <= 1.1 * lasted + 2
        before, then = now, machine.since_boot


def test_all_processes_on_a_file_follow_in_the_same_way(machine: Machine, tmp_path: Path) -> None:
    path = tmp_path / "shared"
    first, second = machine.clock(path), machine.clock(path)
    machine.passes(1)
    machine.wall += HOUR
    first()
    machine.passes(600)
    assert second() == first(), "what the first has noticed is true for the second, ten minutes later"
    third = machine.clock(path)
    assert third() == first()
    assert third.behind == pytest.approx(3540, abs=1)
    for clock in (first, second):
        clock.close()
    machine.passes(1)
    fourth = machine.clock(path)
    assert fourth() == third()
    third.close()
    fourth.close()
    assert not path.exists()


def test_who_starts_alone_starts_with_the_machine_s_clock(machine: Machine, tmp_path: Path) -> None:
    path = tmp_path / "shared"
    killed = machine.clock(path)
    assert killed._file is not None
    machine.wall += HOUR
    machine.passes(1)
    killed()
    stored = path.read_bytes()
    killed.close()
    path.write_bytes(stored)  # as a killed process leaves it
    alone = machine.clock(path)
    assert alone() == machine.wall
    alone.close()


@pytest.mark.anyio
async def test_a_lease_outlives_a_jump_of_the_clock(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ojster.storage.sqlite.database.SteadyClock", machine.clock)
    database = open_database(f"sqlite:///{tmp_path / 'jobs.db'}")
    assert isinstance(database, SqliteDatabase)
    service = Service(database)
    try:
        await service.jobs.enqueue([request(), request(delay_until="+PT60S")])
        (held,) = await service.jobs.fetch(Claim(("default",), 5, "w", 30 * SECOND))
        machine.passes(1)
        machine.wall += HOUR
        await database.run(run_due, None)
        assert (await service.jobs.find(held.id)).state == "active"
        assert await service.jobs.fetch(Claim(("default",), 5, "w")) == []
        machine.passes(60)
        await database.run(run_due, None)
        assert len(await service.jobs.fetch(Claim(("default",), 5, "w"))) == 2, "the lease has ended, the delay as well"
    finally:
        database.close()
