"""Deployments: when workers with new code came."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest

from ojster import App
from ojster.core.durations import DAY, MINUTE
from ojster.fleet import worker_starts
from ojster.fleet.workers import Heartbeat
from ojster.handlers.code_version import code_version_of
from ojster.schedules.retention import forget
from tests.conftest import Bench, Http

pytestmark = pytest.mark.anyio


async def start(bench: Bench, worker: str, code: str | None, *queues: str) -> None:
    bench.clock.advance(60)
    await bench.service.fleet.beat(Heartbeat(worker, queues=queues or ("default",), code_version=code))


async def marks(bench: Bench, **more: Any) -> list[tuple[str, tuple[str, ...]]]:
    history = await bench.service.insight.history("1d", since=bench.clock.now - DAY, **more)
    return [(one.code_version, tuple(one.queues)) for one in history.deployments]


async def test_new_code_is_marked_once_also_while_old_and_new_workers_start_in_turns(bench: Bench) -> None:
    await start(bench, "a1", "old")
    await start(bench, "a2", "old")
    await start(bench, "quiet", None)
    assert await marks(bench) == [("old", ("default",))]
    await start(bench, "b1", "new")
    await start(bench, "a3", "old")
    await start(bench, "b2", "new")
    assert await marks(bench) == [("old", ("default",)), ("new", ("default",))], "old code still runs"
    await start(bench, "c1", "other", "mail", "default")
    await start(bench, "c2", "other", "default", "mail")
    assert (await marks(bench))[2:] == [("other", ("default", "mail"))], "workers of other queues run other code"
    await start(bench, "c2", "changed", "default", "mail")
    assert len(await marks(bench)) == 3, "a worker is started once"


async def test_applications_with_one_worker_each_on_the_same_queue_are_not_new_code_to_each_other(bench: Bench) -> None:
    for _ in range(3):
        for code in ("mine", "theirs"):
            await start(bench, code, code)
            await bench.service.fleet.leave(code)
    assert [code for code, _ in await marks(bench)] == ["mine", "theirs"]


async def test_a_worker_that_starts_again_with_the_same_code_is_no_deployment(bench: Bench, http: Http) -> None:
    for _ in range(2):
        await start(bench, "w", "same")
        await bench.service.fleet.leave("w")
    assert len(await marks(bench)) == 1
    answer = await http("GET", "/ojs/v1/admin/stats/history?queue=default")
    assert [one["code_version"] for one in answer.json()["deployments"]] == ["same"]
    assert (await marks(bench, until=bench.clock.now - 10 * MINUTE)) == []
    bench.clock.advance(worker_starts.KEPT_US / 1e6)
    await bench.run(forget, None)
    assert await bench.run(count, None) == 0


def count(tx: Any, items: Any) -> list[int]:
    return [tx.execute("SELECT count(*) FROM worker_starts")[0][0] for _ in items]


async def test_the_version_of_code_follows_the_files_of_handlers_wherever_they_are(tmp_path: Path) -> None:
    def version(folder: str, source: str) -> str | None:
        file = tmp_path / folder / "jobs.py"
        file.parent.mkdir(exist_ok=True)
        file.write_text(source)
        names: dict[str, Any] = {}
        exec(compile(source, str(file), "exec"), names)
        return code_version_of([names["run"]])

    first = version("one", "def run(): return 1")
    assert first == version("two", "def run(): return 1")
    assert first != version("one", "def run(): return 2")
    assert code_version_of([functools.partial(print), eval("lambda: 1")]) is None
    app = App()

    @app.job("a.b")
    async def handler() -> None:
        """Do nothing."""

    assert app.code_version == code_version_of(
        [test_the_version_of_code_follows_the_files_of_handlers_wherever_they_are]
    )
