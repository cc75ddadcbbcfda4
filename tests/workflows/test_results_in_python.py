"""Results of groups and maps are lists in Python, alone and inside of other steps; other results stay as they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date
from typing import Any

import pytest

from ojster import (
    App,
    Flow,
    Orchestrator,
    Run,
    Step,
    Worker,
    batch,
    chain,
    current_job,
    definition,
    each,
    element,
    group,
    result_of,
    saga,
)
from ojster.api.constructs import Graph
from ojster.handlers.workflow_requests import (
    OPTIONS_OF_DEFINITIONS,
    OPTIONS_OF_NAMES,
    OPTIONS_OF_STEPS,
    DefinitionOptions,
    StartOptions,
)
from ojster.server.endpoints import workflows as endpoints
from ojster.service import Service
from ojster.testing import JobTester
from tests.serving import serving
from tests.waiting import PATIENCE

app = App()


@app.job("echo", retry=1)
def echo(value: Any) -> Any:
    if value == "bad":
        raise ValueError(value)
    return value


@app.job("add")
def add(numbers: list[int], by: dict[str, int] | None = None) -> int:
    return sum(numbers) + sum((by or {}).values())


@app.job("plain")
def plain(value) -> Any:  # type: ignore[no-untyped-def]
    return [value, current_job().parent_results]


@app.flow("running")
async def running(flow: Flow, step: dict[str, Any]) -> Any:
    return await flow.run(Step(step))


@app.flow("counting")
async def counting(flow: Flow) -> dict[str, int]:
    await flow.run(group(echo.s(1), echo.s(2)))
    return {"0": 1, "1": 2}


@app.job("born")
def born() -> date:
    return date(1815, 12, 10)


def numbers() -> Step:
    return group(echo.s(1), echo.s(2))


def graph() -> Step:
    made = Graph()
    made.add("both", numbers())
    made.add("one", echo.s({"0": "a"}))
    return made


def mapped(do: Any) -> Step:
    return each([5, 6], do)


def undoable(container: Step) -> Step:
    """Return a container with a compensation inside: its first step is undone."""
    wire = dict(container.wire)
    noun = "jobs" if "jobs" in wire else "steps"
    wire[noun] = [wire[noun][0] | {"compensate": echo.s(0).wire}, *wire[noun][1:]]
    return Step(wire)


CASES: list[tuple[str, Step, Any]] = [
    ("group", numbers(), [1, 2]),
    ("map", mapped(echo.s(element())), [5, 6]),
    ("batch", batch(echo.s(1), echo.s(2), on_complete=echo.s(3)), [1, 2]),
    ("group at the end of a chain", chain(echo.s(0), numbers()), [1, 2]),
    ("group in a group", group(echo.s(0), numbers()), [0, [1, 2]]),
    ("chains in a group", group(chain(echo.s(0), numbers()), echo.s(3)), [[1, 2], 3]),
    ("map of groups", mapped(group(echo.s(element()), echo.s(0))), [[5, 0], [6, 0]]),
    ("map of chains", mapped(chain(echo.s(0), group(echo.s(element())))), [[5], [6]]),
    ("map in a chain", chain(echo.s(0), mapped(echo.s(element()))), [5, 6]),
    ("group in a graph", graph(), {"both": [1, 2], "one": {"0": "a"}}),
    ("saga", saga(echo.s(0), numbers()), [1, 2]),
    ("object of a job", chain(echo.s({"0": 1, "1": 2})), {"0": 1, "1": 2}),
    ("objects in a group", group(echo.s({"0": 1}), echo.s({})), [{"0": 1}, {}]),
    ("empty map", chain(each([], echo.s(element()))), []),
    ("group that can be undone", chain(undoable(numbers())), [1, 2]),
    ("map of groups that can be undone", mapped(undoable(group(echo.s(element()), echo.s(0)))), [[5, 0], [6, 0]]),
    ("batch that can be undone", chain(undoable(batch(numbers(), on_complete=echo.s(3)))), [[1, 2]]),
    ("graph that can be undone", chain(undoable(graph())), {"both": [1, 2], "one": {"0": "a"}}),
    (
        "group that failed in part",
        group(numbers().set(allow_failure=True), echo.s("bad").set(allow_failure=True)),
        None,
    ),
    ("group for an annotated list", chain(numbers().set(id="n"), add.s(result_of("n"))), 3),
    ("group for a dictionary", chain(numbers().set(id="n"), add.s([1], result_of("n"))), 4),
    (
        "group without an annotation",
        chain(numbers().set(id="n"), plain.s(result_of("n"))),
        [{"0": 1, "1": 2}, {"0": {"0": 1, "1": 2}}],
    ),
]


def steps_of_a_graph() -> Step:
    return Graph("two").add("a", echo.s("a")).add("b", echo.s("b"), after="a")


@app.job("append")
def append() -> None:
    current_job().append(steps_of_a_graph())


@app.orchestrator("laying")
class Laying(Orchestrator):
    def populate(self) -> None:
        self.ensure("graph", steps_of_a_graph())


IN_PLACES: list[tuple[str, Callable[[Step], Step | Callable[[], Run]]]] = [
    ("callback", lambda graph: batch(echo.s(1), on_success=graph)),
    ("map", lambda graph: each([1], graph)),
    ("fallback", lambda graph: chain(echo.s("bad").set(fallback=graph))),
    ("compensation", lambda graph: saga(echo.s(1).set(compensate=graph), echo.s("bad"))),
    ("branch", lambda graph: lambda: app.start(chain(echo.s("bad")), on_error=graph)),
    ("branch of several", lambda graph: lambda: app.start(chain(echo.s("bad")), on_error=[graph, echo.s(1)])),
    ("appended", lambda graph: chain(append.s())),
    ("added by an orchestrator", lambda graph: lambda: app.start(Laying)),
]
"""What a step of a graph stands for the graph in."""


@pytest.fixture
def jobs() -> Iterator[JobTester]:
    with JobTester(app) as tester:
        yield tester


@pytest.mark.parametrize(("step", "expected"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_a_workflow_and_a_flow_that_runs_it_have_the_same_result(jobs: JobTester, step: Step, expected: Any) -> None:
    run, inside = app.start(step), running.start(step.whole.wire)
    jobs.drain(check=False)
    if expected is None:
        first, failed = run.result()
        assert (first, failed["state"]) == ([1, 2], "failed")
        assert inside.result()[0] == [1, 2]
        return
    assert run.result() == expected
    assert inside.result() == expected


@pytest.mark.parametrize("place", [place[1] for place in IN_PLACES], ids=[place[0] for place in IN_PLACES])
def test_a_step_that_was_added_to_a_graph_stands_for_it_everywhere(
    jobs: JobTester, place: Callable[[Step], Step | Callable[[], Run]]
) -> None:
    made = place(steps_of_a_graph())
    run = app.start(made) if isinstance(made, Step) else made()
    jobs.drain(check=False)
    states = {step.path.rpartition(".")[2]: step.state for step in run.refresh().walk()}
    assert (states.get("a"), states.get("b")) == ("completed", "completed")


def test_a_cron_job_of_a_graph_is_called_as_the_graph() -> None:
    local = App("sqlite:///:memory:")
    assert [cron.name for cron in (local.cron("@daily", steps_of_a_graph()),)] == ["two"]


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        (numbers().set(fallback=echo.s({"0": 1})), [1, 2]),
        (group(echo.s("bad")).set(fallback=echo.s({"0": 1})), {"0": 1}),
        (echo.s("bad").set(fallback=numbers()), [1, 2]),
        (echo.s("bad").set(fallback=group(numbers().set(fallback=echo.s(7)))), [[1, 2]]),
    ],
    ids=["a group", "a job", "a group that takes its place", "inside of what takes its place"],
)
def test_the_result_of_a_step_with_a_fallback_is_that_of_the_part_that_completed(
    jobs: JobTester, step: Step, expected: Any
) -> None:
    run = app.start(chain(step))
    jobs.drain(check=False)
    assert run.result() == expected


def test_the_result_of_a_flow_is_what_its_function_returns_whatever_it_has_run(jobs: JobTester) -> None:
    run = counting.start()
    jobs.drain()
    assert run.result() == app.find_workflow(run.id).result() == {"0": 1, "1": 2}


@pytest.mark.anyio
async def test_the_result_of_a_workflow_that_a_server_shows_without_its_steps_has_lists(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoints, "MOST_SHOWN_STEPS", 1)
    async with serving(service) as (_, port):
        monkeypatch.setattr(app, "url", f"http://127.0.0.1:{port}")
        started = [(await app.astart(step), expected) for _, step, expected in CASES if expected is not None]
        dates = await app.astart(chain(echo.s(0), group(born.s(), born.s())))
        await Worker(app).run(until_empty=True)
        for run, expected in started:
            assert await run.aresult(PATIENCE) == expected, run.info
            assert run.info.steps_omitted
        assert await dates.aresult(PATIENCE) == [date(1815, 12, 10)] * 2
        await app.aclose()


def test_the_result_of_a_definition_is_of_the_type_that_its_step_says(jobs: JobTester) -> None:
    app.define("birth", chain(born.s()))
    run = app.start(definition("birth", returns=date))
    both = app.start(group(definition("birth", returns=date), definition("birth")))
    other: Run[Any] = app.start(definition("birth", returns=int))
    jobs.drain()
    assert run.result() == date(1815, 12, 10)
    assert both.result() == [date(1815, 12, 10), "1815-12-10"]
    assert other.result() == "1815-12-10", "what does not fit stays JSON"


def test_an_argument_that_is_wrong_stays_wrong(jobs: JobTester) -> None:
    run = app.start(chain(echo.s({"1": 2}).set(id="n"), add.s(result_of("n"))))
    jobs.drain(check=False)
    assert run.refresh().state == "failed"


def test_the_types_of_options_name_all_that_calls_have() -> None:
    assert set(StartOptions.__annotations__) == {*OPTIONS_OF_STEPS, *OPTIONS_OF_NAMES}
    assert set(DefinitionOptions.__annotations__) == {*OPTIONS_OF_DEFINITIONS}


@dataclass
class Price:
    cents: int
    since: date


@pytest.mark.anyio
async def test_results_are_what_the_handlers_of_the_steps_return(url: str) -> None:
    app = App(url)

    @app.job("price", retry=1)
    def price(cents: int) -> Price:
        return Price(cents, date(2026, 1, cents))

    @app.flow("prices")
    async def prices(flow: Flow) -> list[Price]:
        return [await flow.run(chain(count.s(0), price.s(1))), *await flow.run(group(price.s(2), price.s(3)))]

    @app.job("count")
    def count(number: int) -> int:
        return number

    error = {"type": "ValueError", "message": "day is out of range for month"}
    failed = {"state": "failed", "error": error}
    one, two = Price(1, date(2026, 1, 1)), Price(2, date(2026, 1, 2))
    expected: dict[str, tuple[Step, Any]] = {
        "a job": (price.s(1), one),
        "a chain": (chain(count.s(1), price.s(1)), one),
        "a chain with |": (count.s(1) | price.s(1) | price.s(2), two),
        "a chain in a chain": (chain(count.s(1), chain(count.s(2), price.s(2))), two),
        "a group": (group(price.s(1), count.s(7)), [one, 7]),
        "a group with &": (price.s(1) & count.s(7) & price.s(2), [one, 7, two]),
        "a group in a chain": (chain(count.s(1), group(price.s(1), price.s(2))), [one, two]),
        "a map": (each([1, 2], price.s(element())), [one, two]),
        "a batch": (batch(price.s(1), on_complete=count.s(1)), [one]),
        "a saga": (saga(count.s(1), price.s(2)), two),
        "a changed step": (price.s(1).set(id="first").set(display_name="First"), one),
        "a flow": (prices.s(), [one, two, Price(3, date(2026, 1, 3))]),
        "a batch with a failure": (batch(price.s(0), price.s(1), on_complete=count.s(1)), [failed, one]),
        "one with a fallback": (price.s(1).set(fallback=count.s(1)), {"cents": 1, "since": "2026-01-01"}),
    }
    runs = {what: await app.astart(workflow) for what, (workflow, _) in expected.items()}
    await Worker(app).run(until_empty=True)
    results = {what: await run.aresult() for what, run in runs.items()}
    failure: Any = results["a batch with a failure"]
    failure[0]["error"] = {name: failure[0]["error"][name] for name in error}
    assert results == {what: result for what, (_, result) in expected.items()}
    assert await (await app.afind_workflow(runs["a job"].id)).aresult() == {"cents": 1, "since": "2026-01-01"}
    await app.aclose()
