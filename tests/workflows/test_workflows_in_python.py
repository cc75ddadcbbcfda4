"""Workflows in Python: builders, runs and drawings. Each test runs in process and over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Literal
from xml.etree import ElementTree

import pytest

from ojster import (
    INDEX,
    App,
    Conflict,
    Graph,
    InvalidRequest,
    InvalidWorkflow,
    JobContext,
    Run,
    Worker,
    WorkflowCancelled,
    WorkflowFailed,
    WorkflowInfo,
    batch,
    chain,
    current_job,
    each,
    element,
    error_of,
    gate,
    group,
    param,
    result_of,
    saga,
)
from ojster.server.application import Application
from ojster.service import Service
from ojster.storage.open import open_database
from tests.serving import listening
from tests.waiting import PATIENCE

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["file", "http"])
async def url(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[str]:
    """URL of the jobs: a SQLite file or a server."""
    database = f"sqlite:///{tmp_path}/jobs.db"
    if request.param == "file":
        yield database
        return
    service = Service(open_database(database))
    async with listening(Application(service)) as address:
        yield address
        service.drain()


cleaned = asyncio.Event()
"""Set by a cancelled task that has cleaned up."""


@pytest.fixture
async def app(url: str) -> AsyncIterator[App]:
    app = App(url)

    @app.job("add")
    async def add(a: int, b: int) -> int:
        return a + b

    @app.job("total")
    async def total() -> Any:
        return current_job().parent_results

    @app.job("fail", retry=1)
    async def fail(message: str = "no") -> None:
        raise ValueError(message)

    @app.job("give.up")
    async def give_up(context: JobContext) -> None:
        run = await app.afind_workflow(context.workflow_id or "")
        try:
            await run.acancel(stop_active=True)
            await asyncio.sleep(30)
        finally:
            cleaned.set()

    @app.job("spread")
    async def spread(context: JobContext, count: int) -> str | None:
        for number in range(count):
            context.append(add.s(number, number))
        return context.workflow_id

    @app.job("spread.badly", retry=1)
    async def spread_badly(context: JobContext) -> None:
        context.append(add.s(1, 1).set(id="1.x"))

    worker = Worker(app)
    working = asyncio.create_task(worker.run())
    yield app
    worker.stop(grace=1)
    await working
    await app.aclose()


def s(app: App, type: str, *args: Any) -> Any:
    return app.handlers[type].s(*args)


async def test_a_chain_passes_results_on(app: App) -> None:
    run = await app.astart(chain(s(app, "add", 1, 2), s(app, "add", result_of(0), 10)), name="sum")
    assert isinstance(run, Run)
    assert await run.aresult(PATIENCE) == 13
    assert (run.state, run.info.name) == ("completed", "sum")


async def test_operators_draw_the_same_as_functions(app: App) -> None:
    a, b, c, d = (s(app, "add", number, 0) for number in range(4))
    assert (a | (b & c) | d).wire == chain(a, group(b, c), d).wire
    assert ((a & b) & c).wire == group(a, b, c).wire
    assert (a | (b | c)).wire == chain(a, b, c).wire


async def test_a_handler_sees_what_came_before(app: App) -> None:
    run = await app.astart(chain(s(app, "add", 1, 1), group(s(app, "add", 2, 2), s(app, "add", 3, 3)), s(app, "total")))
    assert await run.aresult(PATIENCE) == {"0": 2, "1": {"0": 4, "1": 6}}


async def test_the_result_of_a_group_is_a_list(app: App) -> None:
    run = await app.astart(group([s(app, "add", number, 1) for number in range(3)]))
    assert await run.aresult(PATIENCE) == [1, 2, 3]


async def test_a_batch_calls_back(app: App) -> None:
    wf = batch(s(app, "add", 1, 1), s(app, "fail"), on_complete=s(app, "total"), on_success=s(app, "fail"))
    run = await app.astart(wf)
    await run.aresult(PATIENCE)
    assert run.info.callbacks["on_complete"].state == "completed"
    assert run.info.callbacks["on_success"].state == "skipped"


async def test_a_graph_is_written_as_it_is_drawn(app: App) -> None:
    graph = Graph("nightly")
    one = graph.add("one", s(app, "add", param("start"), 1))
    two = graph.add("two", s(app, "add", result_of(one), 1), after=one)
    three = graph.add("three", s(app, "add", result_of(one), 100), after=[one])
    graph.add("sum", s(app, "add", result_of(two), result_of(three)), after=[two, three])
    run = await app.astart(graph, params={"start": 0})
    assert await run.aresult(PATIENCE) == {"sum": 103}


async def test_steps_are_added_to_a_graph_in_one_expression(app: App) -> None:
    graph = Graph("sums").add("one", s(app, "add", 1, 1)).add("two", s(app, "add", result_of("one"), 1), after="one")
    run = await app.astart(graph, name="now")
    assert await run.aresult(PATIENCE) == {"two": 3}
    assert (run.info.type, run.info.name) == ("graph", "now")
    run = await app.astart(chain(s(app, "add", 1, 1), graph) | s(app, "add", 2, 2))
    assert await run.aresult(PATIENCE) == 4
    await app.adefine("sums", graph)
    assert await (await app.astart("sums")).aresult(PATIENCE) == {"two": 3}


async def test_what_is_set_on_a_step_of_a_graph_holds_in_the_graph(app: App) -> None:
    graph = Graph()
    step = graph.add("one", s(app, "add", 1, 1))
    assert step.set(display_name="One") is step
    assert graph.wire["steps"][0]["display_name"] == "One"
    assert graph.wire["steps"][0]["id"] == "one"


async def test_a_map_goes_through_a_list(app: App) -> None:
    run = await app.astart(each(param("numbers"), s(app, "add", element(), INDEX)), params={"numbers": [10, 20]})
    assert await run.aresult(PATIENCE) == [10, 21]


async def test_a_saga_is_undone(app: App) -> None:
    undo = s(app, "add", result_of("first"), 0)
    run = await app.astart(saga(s(app, "add", 1, 1).set(id="first", compensate=undo), s(app, "fail", "too bad")))
    with pytest.raises(WorkflowFailed, match="is compensated") as failed:
        await run.aresult(PATIENCE)
    assert failed.value.error is not None
    assert failed.value.error.errors[0]["message"] == "too bad"
    assert run.info.compensations[0].state == "completed"


async def test_a_gate_waits_for_somebody(app: App) -> None:
    run = await app.astart(chain(gate("release", display_name="Release?"), s(app, "add", 1, 1)))
    with pytest.raises(TimeoutError):
        await run.aresult(0.2)
    await run.anote("release", "let me see")
    await run.aapprove("release", "go", author="ada")
    assert await run.aresult(PATIENCE) == 2
    with pytest.raises(Conflict):
        await run.areject("release")


async def test_a_job_grows_its_workflow(app: App) -> None:
    run = await app.astart(chain(s(app, "spread", 3)))
    assert await run.aresult(PATIENCE) == 4
    assert [step.type for step in run.info.children] == ["spread", "add", "add", "add"]


async def test_a_job_that_adds_nonsense_fails_and_says_why(app: App) -> None:
    run = await app.astart(chain(s(app, "spread.badly")))
    with pytest.raises(WorkflowFailed) as failed:
        await run.aresult(PATIENCE)
    assert failed.value.error is not None
    assert "not only digits" in failed.value.error.errors[0]["message"]


async def test_a_failed_workflow_is_retried_from_where_it_failed(app: App) -> None:
    run = await app.astart(
        chain(s(app, "add", 1, 1), s(app, "fail")), on_error=s(app, "add", 5, error_of(1)["attempt"])
    )
    with pytest.raises(WorkflowFailed):
        await run.aresult(PATIENCE)
    assert run.info.on_error is not None
    assert run.info.on_error.state == "completed"
    await run.aretry()
    with pytest.raises(WorkflowFailed):
        await run.aresult(PATIENCE)
    assert run.info.retries == 1


async def test_a_branch_is_a_step_or_a_list_of_steps(app: App) -> None:
    run = await app.astart(chain(s(app, "fail")), on_error=[s(app, "add", 1, 1), s(app, "add", 2, 2)], on_cancel=[])
    with pytest.raises(WorkflowFailed):
        await run.aresult(PATIENCE)
    assert run.info.on_error is not None
    assert (run.info.on_error.state, len(run.info.on_error.children)) == ("completed", 2)
    assert run.info.on_cancel is None


async def test_a_workflow_is_cancelled_held_and_found_again(app: App) -> None:
    run = await app.astart(chain(gate("g"), s(app, "add", 1, 1)), delay=0)
    await run.ahold()
    assert (await run.arefresh()).held
    await run.arelease()
    await run.acancel_step("g")
    with pytest.raises(WorkflowCancelled):
        await run.aresult(PATIENCE)
    found = await app.afind_workflow(run.id)
    assert (found.state, found.id) == ("cancelled", run.id)
    other = await app.astart(chain(gate()))
    await other.acancel()
    assert other.state == "cancelled"


async def test_a_batch_that_is_taken_care_of_has_the_results_of_its_jobs(app: App) -> None:
    caught = batch(s(app, "add", 1, 1), s(app, "fail"), on_failure=s(app, "add", 0, 0))
    run = await app.astart(caught)
    two, failed = await run.aresult(PATIENCE)
    assert (two, failed["state"], failed["error"]["message"]) == (2, "failed", "no")
    assert run.info.error is None, "a workflow that has completed has no error"
    after = await app.astart(chain(caught, s(app, "total")))
    assert (await after.aresult(PATIENCE))["0"]["0"] == 2


async def test_it_is_told_why_a_workflow_ended_without_a_failed_job(app: App) -> None:
    run = await app.astart(chain(gate("g"), s(app, "add", 1, 1)))
    await run.areject("g", "no way", author="ada")
    with pytest.raises(WorkflowCancelled, match="It was rejected by ada"):
        await run.aresult(PATIENCE)
    assert run.info.error is not None
    assert run.info.error.code == "rejected"
    run = await app.astart(chain(s(app, "add", 1, 1), each(result_of(0), s(app, "add", element(), 1))))
    with pytest.raises(WorkflowFailed, match="The step '1' failed") as caught:
        await run.aresult(PATIENCE)
    assert caught.value.error is not None
    assert "array" in caught.value.error.errors[0]["message"]
    run = await app.astart(batch(s(app, "add", 1, 1), on_complete=s(app, "fail")))
    with pytest.raises(WorkflowFailed, match="The step 'on_complete' failed"):
        await run.aresult(PATIENCE)


async def test_a_fallback_can_be_told_what_failed(app: App) -> None:
    step = s(app, "fail", "broken").set(id="x", fallback=s(app, "add", error_of("x")["attempt"], 1))
    run = await app.astart(chain(step))
    assert await run.aresult(PATIENCE) == 2


async def test_a_gate_with_a_fallback_is_approved_by_its_id(app: App) -> None:
    run = await app.astart(chain(gate("g").set(fallback=s(app, "add", 1, 1)), s(app, "add", 2, 2)))
    await run.aapprove("g")
    assert await run.aresult(PATIENCE) == 4


async def test_what_was_cancelled_before_it_started_is_shown_as_cancelled(app: App) -> None:
    run = await app.astart(chain(s(app, "add", 1, 1), s(app, "add", 2, 2)), delay=100)
    await run.acancel()
    assert {step.state for step in (await run.arefresh()).walk()} == {"cancelled"}


async def test_a_single_step_can_be_started(app: App) -> None:
    assert await (await app.astart(s(app, "add", 1, 2))).aresult(PATIENCE) == 3


async def test_containers_can_have_options_that_their_jobs_inherit(app: App) -> None:
    run = await app.astart(chain(group(s(app, "add", 1, 1)).set(options={"priority": 7}), gate()))
    (job,) = [step for step in run.info.walk() if step.job_id]
    assert (await app.afind(job.job_id)).job.priority == 7  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"job\.using"):
        s(app, "add", 1, 1).set(options={"priority": 7})
    await run.acancel()


async def test_what_cannot_be_meant_is_refused_in_words(app: App) -> None:
    with pytest.raises(TypeError, match=r"is not a step. Create a step of a job with job\.s"):
        chain(s(app, "add", 1, 1), app.handlers["add"])  # type: ignore[call-overload]
    with pytest.raises(TypeError, match=r"steps\.a\.result is unknown until its step starts"):
        f"{result_of('a')}"
    with pytest.raises(LookupError, match="does not run in a job"):
        current_job()
    with pytest.raises(InvalidRequest, match="must be positive"):
        await app.astart(chain(gate()), timeout=-1)


async def test_watching_a_run_ends_with_its_final_state(app: App) -> None:
    run = await app.astart(chain(s(app, "add", 1, 1), s(app, "add", 2, 2)))
    seen = [info.state async for info in run.awatch()]
    assert seen[-1] == "completed"


async def test_plain_code_does_the_same(app: App) -> None:
    def plain() -> tuple[Any, list[str]]:
        run = app.start(chain(s(app, "add", 1, 1), gate("g"), s(app, "add", result_of(0), 1)))
        run.approve("g")
        states = [info.state for info in run.watch()]
        assert app.find_workflow(run.id).refresh().state == "completed"
        return run.result(PATIENCE), states

    result, states = await asyncio.to_thread(plain)
    assert (result, states[-1]) == (3, "completed")


async def test_a_broken_workflow_is_refused_where_it_is_started(app: App) -> None:
    graph = Graph()
    graph.add("a", s(app, "add", 1, 1), after="b")
    with pytest.raises(InvalidWorkflow, match="There is no step 'b' here"):
        await app.astart(graph)
    with pytest.raises(ValueError, match="Only a step with an id"):
        result_of(s(app, "add", 1, 1))
    with pytest.raises(TypeError):
        s(app, "add", 1)


def everything(app: App) -> Any:
    graph = Graph("g")
    one = graph.add("one", s(app, "add", 1, 1))
    graph.add("two", s(app, "add", 1, 1).set(fallback=s(app, "add", 2, 2)), after=one)
    return chain(
        s(app, "add", 1, 1).set(display_name='a "quoted" <name> & more'),
        batch(s(app, "add", 1, 1), on_complete=s(app, "total")),
        saga(s(app, "add", 1, 1).set(compensate=s(app, "add", 0, 0))),
        graph,
        each([1, 2], s(app, "add", element(), 1)),
        gate("end"),
        name="all",
    )


@pytest.mark.parametrize("format", ["mermaid", "svg"])
async def test_a_drawing_has_no_control_characters_of_names(app: App, format: Literal["mermaid", "svg"]) -> None:
    drawn = chain(gate("end").set(display_name="a\x1b[31m\nb\u202ec"), name="all").draw(format)
    assert "a\ufffd[31m\ufffdb\ufffdc" in drawn
    assert all(character.isprintable() or character == "\n" for character in drawn)


async def test_a_workflow_is_drawn_before_and_after_it_runs(app: App) -> None:
    wf = everything(app)
    before = wf.draw()
    assert before.startswith("flowchart LR\n")
    assert ":::waiting" in before
    assert "#34;quoted#34; #60;name#62;" in before
    run = await app.astart(wf)
    while all(child.state != "blocked" for child in (await run.arefresh()).children):
        await asyncio.sleep(0.02)
    after = run.draw()
    assert ":::completed" in after
    assert "-. on_complete .->" in after
    assert "-. fallback .->" in after
    await run.aapprove("end")
    await run.aresult(PATIENCE)


async def test_the_drawing_is_a_document_without_the_network(app: App) -> None:
    for drawing in (everything(app).draw("svg"), chain(s(app, "add", 1, 1)).draw("svg")):
        root = ElementTree.fromstring(drawing)
        width = float(root.attrib["width"])
        boxes = [box for box in root.iter("{http://www.w3.org/2000/svg}rect") if "x" in box.attrib]
        assert boxes
        assert all(0 <= float(box.attrib["x"]) <= width - float(box.attrib["width"]) for box in boxes)
        assert "http" not in drawing.replace("http://www.w3.org/2000/svg", "")
    with pytest.raises(ValueError, match="not 'png'"):
        chain(s(app, "add", 1, 1)).draw("png")  # type: ignore[arg-type]


def test_what_is_shown_can_be_read_again() -> None:
    info = WorkflowInfo(id="x", type="chain", state="running", metadata={"a": 1})
    assert WorkflowInfo.from_json(info.to_json()) == info


async def test_a_task_may_cancel_its_own_workflow(app: App) -> None:
    cleaned.clear()
    run = await app.astart(chain(s(app, "give.up"), s(app, "add", 1, 2)), on_cancel=s(app, "add", 3, 4))
    with pytest.raises(WorkflowCancelled):
        await run.aresult(PATIENCE)
    assert cleaned.is_set()
    steps = {step.path: step.state for step in (await run.arefresh()).walk()}
    assert (steps["0"], steps["1"], steps["on_cancel"]) == ("cancelled", "cancelled", "completed")
