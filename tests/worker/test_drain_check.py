"""A worker that runs until nothing is left also runs the steps that large workflows have not started yet."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ojster import App, group
from ojster.core.errors import BackendUnavailable
from ojster.worker.drain_check import DRAIN_CHECK_SECONDS, DrainCheck
from ojster.worker.worker import Worker
from ojster.workflows.run.start_quota import MAX_STARTS_OF_WORKFLOW
from tests.waiting import PATIENCE

pytestmark = pytest.mark.anyio

SIZE = 3 * MAX_STARTS_OF_WORKFLOW
"""Number of steps that start in several transactions."""


async def test_all_steps_of_a_large_group_run(shared_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    app = App(shared_url)

    @app.job("step")
    async def step(number: int) -> int:
        return number

    workflow = await app.astart(group(*[step.s(number) for number in range(SIZE)]))
    maintenance = app.service().maintenance
    monkeypatch.setattr(maintenance, "start", lambda **_: None)  # it would be as quick as the worker, or not
    await Worker(app, concurrency=500).run(until_empty=True)
    assert (await workflow.arefresh()).state == "completed"
    assert len(await workflow.aresult(PATIENCE)) == SIZE
    await app.aclose()


async def test_all_cron_jobs_are_registered_before_a_worker_without_jobs_ends(shared_url: str) -> None:
    app = App(shared_url)
    names = {f"nightly-{number}" for number in range(50)}
    for name in names:

        @app.cron("0 5 * * *")
        @app.job(name)
        async def nightly() -> None: ...

    await Worker(app).run(until_empty=True)
    assert {cron.name for cron in await app.client().schedules.all()} >= names
    await app.aclose()


class Maintenance:
    def __init__(self, *answers: bool | Exception) -> None:
        self._answers = list(answers)

    async def go_on(self) -> bool:
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def drain_check(maintenance: Any) -> DrainCheck:
    registered = asyncio.get_running_loop().create_future()
    registered.set_result(None)
    check = DrainCheck(None, registered)  # type: ignore[arg-type]
    check._maintenance = maintenance
    return check


async def test_the_last_fetch_from_a_server_waits() -> None:
    check = drain_check(None)
    assert (check.wait, await check.is_over(), check.wait) == (0.0, False, DRAIN_CHECK_SECONDS)
    check.note_jobs()
    assert (check.wait, await check.is_over(), await check.is_over()) == (0.0, False, True)


async def test_a_worker_beside_the_database_looks_again_as_long_as_steps_were_left() -> None:
    check = drain_check(Maintenance(True, True, False))
    assert [await check.is_over() for _ in range(4)] == [False, False, False, True]
    assert check.wait == 0.0


async def test_what_is_wrong_with_the_database_is_left_to_the_next_fetch() -> None:
    check = drain_check(Maintenance(BackendUnavailable("gone")))
    assert [await check.is_over(), await check.is_over()] == [False, True]
