"""A worker that runs until nothing is left also runs the steps that large workflows have not started yet."""

from __future__ import annotations

from typing import Any

import pytest

from ojster import App, group
from ojster.core.errors import BackendUnavailable
from ojster.worker.last_look import LAST_LOOK_SECONDS, LastLook
from ojster.worker.worker import Worker
from ojster.workflows.starting import MAX_STARTS_OF_WORKFLOW

pytestmark = pytest.mark.anyio

SIZE = 3 * MAX_STARTS_OF_WORKFLOW
"""Number of steps that start in several transactions."""


async def test_all_steps_of_a_large_group_run(shared_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    app = App(shared_url)

    @app.job("step")
    async def step(number: int) -> int:
        return number

    workflow = await app.astart(group(*[step.s(number) for number in range(SIZE)]))
    maintenance = app.engine().maintenance
    monkeypatch.setattr(maintenance, "start", lambda **_: None)  # it would be as quick as the worker, or not
    await Worker(app, concurrency=500).run(until_empty=True)
    assert (await workflow.refresh()).state == "completed"
    assert len(await workflow.result(5)) == SIZE
    await app.aclose()


class Maintenance:
    def __init__(self, *answers: bool | Exception) -> None:
        self._answers = list(answers)

    async def go_on(self) -> bool:
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def last_look(maintenance: Any) -> LastLook:
    look = LastLook(None)  # type: ignore[arg-type]
    look._maintenance = maintenance
    return look


async def test_the_last_fetch_from_a_server_waits() -> None:
    look = last_look(None)
    assert (look.wait, await look.is_over(), look.wait) == (0.0, False, LAST_LOOK_SECONDS)
    look.found()
    assert (look.wait, await look.is_over(), await look.is_over()) == (0.0, False, True)


async def test_a_worker_beside_the_database_looks_again_as_long_as_steps_were_left() -> None:
    look = last_look(Maintenance(True, True, False))
    assert [await look.is_over() for _ in range(4)] == [False, False, False, True]
    assert look.wait == 0.0


async def test_what_is_wrong_with_the_database_is_left_to_the_next_fetch() -> None:
    look = last_look(Maintenance(BackendUnavailable("gone")))
    assert [await look.is_over(), await look.is_over()] == [False, True]
