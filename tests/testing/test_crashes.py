"""``crash_everywhere``: runs a flow whose worker dies at each place, and says where it does something else."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from ojster import App, Flow, FlowRun, WorkflowCancelled, WorkflowFailed
from ojster.testing import JobTester, crash_everywhere

done: list[str] = []


@pytest.fixture
def app() -> Iterator[App]:
    done.clear()
    app = App("sqlite:///:memory:")

    @app.job("note")
    def note(what: str) -> str:
        done.append(what)
        return what.upper()

    app.note = note  # type: ignore[attr-defined]
    yield app
    app.close()


def begin(run: FlowRun[Any], jobs: JobTester) -> None:
    done.clear()


def test_a_flow_of_every_kind_of_await_bears_each_death(app: App) -> None:
    note: Any = app.note  # type: ignore[attr-defined]
    counted: list[int] = []

    @app.flow("inner")
    async def inner(flow: Flow, word: str) -> str:
        return str(await flow.run(note, word)) + str(await flow.step("length", len, word))

    @app.flow("outer")
    async def outer(flow: Flow, word: str) -> list[Any]:
        counted.append(1)
        both = await asyncio.gather(flow.run(inner, word), flow.run(note, f"{word}!"))
        message = await flow.receive("go", str)
        try:
            await flow.receive("never", timeout=timedelta(days=3))
        except TimeoutError:
            message += " late"
        async with flow.compensation() as undo:
            await undo.run(note, "charge", undo=note)
        await flow.sleep(timedelta(days=30))
        return [*both, message, await flow.step("drawn", str, flow.uuid()), flow.now.isoformat()]

    def script(run: FlowRun[Any], jobs: JobTester) -> None:
        begin(run, jobs)
        run.send("go", "went")

    result = crash_everywhere(outer, "a", script=script, effects=lambda: sorted(done))
    assert result[:3] == ["A1", "A!", "went late"]
    assert len(counted) > 30


def test_a_step_whose_effect_comes_twice_is_shown_with_the_place_of_the_death(app: App) -> None:
    @app.flow("order")
    async def order(flow: Flow) -> None:
        await flow.step("pay", done.append, "pay")

    with pytest.raises(AssertionError) as failed:
        crash_everywhere(order, script=begin, effects=lambda: {"payments": done})
    assert str(failed.value).startswith(
        "order does something else if its worker dies before it records step 'pay':\n"
        "  the effect 'payments': ['pay']; with the crash ['pay', 'pay']"
    )


def test_a_function_that_takes_another_way_when_it_runs_again_is_shown(app: App) -> None:
    note: Any = app.note  # type: ignore[attr-defined]
    runs: list[str] = []

    def script(run: FlowRun[Any], jobs: JobTester) -> None:
        runs.clear()

    @app.flow("order")
    async def order(flow: Flow) -> str:
        runs.append("")
        await flow.step("first", len, "")
        if len(runs) % 2 == 0:  # the wait makes it run a second time; a crash a third
            return "even"
        await flow.run(note, "odd")
        return "odd"

    with pytest.raises(AssertionError) as failed:
        crash_everywhere(order, script=script)
    assert "order does something else if its worker dies before it records step 'first'" in str(failed.value)
    assert "the number of jobs note: 1; with the crash there is none" in str(failed.value)


def test_a_flow_that_fails_must_fail_everywhere_alike(app: App) -> None:
    note: Any = app.note  # type: ignore[attr-defined]

    @app.flow("order")
    async def order(flow: Flow) -> None:
        async with flow.compensation() as undo:
            await undo.run(note, "charge", undo=note)
            raise LookupError("out of stock")

    with pytest.raises(WorkflowFailed, match="out of stock"):
        crash_everywhere(order, script=begin, effects=lambda: done)
    assert done == ["charge", "charge"]


def test_a_cancelled_flow_cleans_up_wherever_its_worker_dies(app: App) -> None:
    note: Any = app.note  # type: ignore[attr-defined]

    @app.flow("order")
    async def order(flow: Flow) -> None:
        try:
            await flow.receive("never")
        finally:
            await flow.run(note, "last")

    def script(run: FlowRun[Any], jobs: JobTester) -> None:
        begin(run, jobs)
        jobs.drain()
        run.cancel()

    with pytest.raises(WorkflowCancelled):
        crash_everywhere(order, script=script, effects=lambda: done)
    assert done == ["last"]


def test_a_flow_that_waits_for_ever_is_no_flow_to_be_compared(app: App) -> None:
    @app.flow("order")
    async def order(flow: Flow) -> None:
        await flow.receive("never")

    with pytest.raises(AssertionError, match="is running and does not end"):
        crash_everywhere(order)


def test_a_tester_finishes_a_workflow_and_time_jumps(app: App) -> None:
    @app.flow("order")
    async def order(flow: Flow) -> str:
        began = flow.now
        await flow.sleep(timedelta(days=400))
        return str(flow.now - began)

    with JobTester(app) as jobs:
        run = order.start()
        jobs.finish(run)
        assert run.result().startswith("400 days")


def test_the_application_is_as_before(app: App) -> None:
    @app.flow("order")
    async def order(flow: Flow) -> int:
        return await flow.step("length", len, "abc")

    before = list(app.execution_middleware)
    assert crash_everywhere(order) == 3
    with JobTester(app) as jobs:
        assert crash_everywhere(order) == 3
        run = order.start()
        jobs.drain()
        assert run.result() == 3
    assert list(app.execution_middleware) == before


def test_a_script_makes_updates_and_gets_their_answers(app: App) -> None:
    note: Any = app.note  # type: ignore[attr-defined]
    answers: list[Any] = []

    @app.flow("basket")
    async def basket(flow: Flow) -> list[str]:
        flow.state = []
        await flow.receive("paid", timeout=timedelta(days=3))
        return list(flow.state)

    @basket.update
    async def put(flow: Flow, item: str) -> int:
        flow.state.append(await flow.run(note, item))
        return len(flow.state)

    def script(run: FlowRun[Any], jobs: JobTester) -> None:
        begin(run, jobs)
        answers.append([run.update(put, "tea"), run.update(put, "jam")])
        run.send("paid")

    assert crash_everywhere(basket, script=script, effects=lambda: sorted(done)) == ["TEA", "JAM"]
    assert len(answers) > 2
    assert all(answer == [1, 2] for answer in answers)
