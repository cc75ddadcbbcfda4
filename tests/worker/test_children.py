"""Child processes: none outlives its pool, however its job ended."""

from __future__ import annotations

import asyncio
from pathlib import Path

import psutil
import pytest

from ojster.worker.children import ChildCrashed, ChildLimits, ChildPool
from tests.worker import handlers

pytestmark = pytest.mark.anyio


def children() -> set[int]:
    return {child.pid for child in psutil.Process().children() if "ojster.worker.child" in " ".join(child.cmdline())}


async def test_a_pool_that_is_closed_right_after_a_job_was_given_up_waits_for_its_process() -> None:
    before = children()
    pool = ChildPool()
    running = asyncio.create_task(pool.run(handlers.app.handlers["process.slow"], []))
    while not children() - before:
        await asyncio.sleep(0.001)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await pool.close()
    assert children() == before


async def pids_of(pool: ChildPool, *sizes: int) -> list[int]:
    found = [await pool.run(handlers.app.handlers["process.pid"], [size]) for size in sizes]
    await pool.close()
    return found


async def test_a_child_is_replaced_after_so_many_jobs() -> None:
    first, second, third = await pids_of(ChildPool(ChildLimits(max_jobs=2)), 0, 0, 0)
    assert first == second != third


async def test_a_child_is_replaced_when_it_has_become_too_large() -> None:
    first, second, third = await pids_of(ChildPool(ChildLimits(max_memory=300 << 20)), 0, 400, 0)
    assert first == second != third
    same, again = await pids_of(ChildPool(), 400, 0)
    assert same == again


async def test_a_start_that_is_given_up_leaves_no_process_behind() -> None:
    before = children()
    for turns in range(12):
        pool = ChildPool()
        running = asyncio.create_task(pool.run(handlers.app.handlers["process"], [1]))
        for _ in range(turns):
            await asyncio.sleep(0)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await pool.close()
    assert children() == before


async def test_a_child_that_could_not_be_set_up_is_not_used_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handlers.app, "child_setup", f"{handlers.__name__}:set_up")
    monkeypatch.setenv("TEST_SET_UP", str(tmp_path / "ready"))
    pool = ChildPool()
    for _ in range(2):
        with pytest.raises(ChildCrashed) as refused:
            await pool.run(handlers.app.handlers["process.pid"], [])
        assert refused.value.class_names[0].endswith("NotYet")
    (tmp_path / "ready").touch()
    first, second = [await pool.run(handlers.app.handlers["process.pid"], []) for _ in range(2)]
    await pool.close()
    assert first == second
