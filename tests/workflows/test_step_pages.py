"""Steps of workflows in pages, and workflows that are shown without their steps because there are too many."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from ojster.core.durations import SECOND
from ojster.core.errors import NotFound
from ojster.core.timestamps import parse_timestamp
from ojster.jobs.messages import Acknowledgement
from ojster.jobs.scope import Caller
from ojster.workflows.read import step_pages
from ojster.workflows.read.levels import LevelRequest, show_levels
from ojster.workflows.read.step_pages import StepFilter
from tests.conftest import START, Bench, Http
from tests.dashboard import data
from tests.workflows.bench import WorkflowBench, graph, job
from tests.workflows.driver import every_step

pytestmark = pytest.mark.anyio

NESTED = {
    "type": "chain",
    "steps": [
        {"type": "a", "args": []},
        {"type": "group", "id": "both", "jobs": [{"type": "b", "args": []}, {"type": "c", "args": [], "id": "see"}]},
        {"type": "saga", "steps": [{"type": "d", "args": [], "compensate": {"type": "undo", "args": []}}]},
        {"type": "map", "over": [1, 2], "do": {"type": "e", "args": []}},
    ],
    "on_error": {"type": "tell", "args": []},
}


async def test_each_step_is_listed_once_with_the_path_and_state_that_the_whole_view_has(flow: WorkflowBench) -> None:
    await flow.create(NESTED)
    (first,) = await flow.take()
    await flow.ack(first)
    await flow.take()
    found, after = [], 0
    while True:
        page = await flow.service.workflows.steps(StepFilter(flow.id, after=after, limit=2))
        found += page.steps
        assert len(page.steps) <= 2
        if page.next_after is None:
            break
        after = page.next_after
    whole = {step.path: step for step in every_step(await flow.look())}
    listed = {step.path: step for step in found}
    assert len(listed) == len(found)
    assert whole.keys() <= listed.keys(), "and the containers around compensations, which have no view"
    for path, step in whole.items():
        row = listed[path]
        shown = {"active": "pending"}.get(row.state, row.state) if row.job_state == "available" else row.state
        assert (row.type, shown) == (step.type, step.state), path
        times = (row.enqueued_at, row.started_at, row.completed_at)
        assert times == (step.enqueued_at, step.started_at, step.completed_at), path
        assert (row.enqueued_at or row.started_at) is None or step.state != "waiting", path


async def test_the_times_of_a_step_tell_its_wait_in_the_queue_from_its_run(flow: WorkflowBench) -> None:
    """In each view of it, for each way in which its job can go on, and for what has no job."""
    form = {"type": "wait", "id": "ask", "form": {"type": "object"}}
    retry = {"max_attempts": 2, "initial_interval": "PT10S", "jitter": False}
    steps = [
        job("a", id="a", options={"retry": retry}),
        job("b", id="b"),
        job("go", id="go", manual=True, depends_on=["a"]),
        form,
    ]
    await flow.create(graph(*steps))

    async def times(path: str) -> tuple[int | None, ...]:
        """The seconds since the beginning at which a step was enqueued, started and ended."""
        rows = {step.path: step for step in (await flow.service.workflows.steps(StepFilter(flow.id))).steps}
        level = await flow.service.scope.look(show_levels, LevelRequest(flow.id))
        assert level is not None
        levels = {one.path: one for one in level.steps}
        status = await flow.service.workflows.status(flow.id)
        views: list[Any] = [rows[path], levels[path], await flow.step(path)]
        views += [one for one in (*status.current, *status.results.get("steps", ())) if one.path == path]
        shown = []
        for one in views:
            ended = getattr(one, "finished_at", None) or getattr(one, "completed_at", None)
            told = (one.enqueued_at, one.started_at, ended)
            shown.append(tuple(at and (parse_timestamp(at) - START) // SECOND for at in told))
        assert len(set(shown)) == 1, shown
        return shown[0]

    flow.clock.advance(5)
    assert (await times("a"), await times("ask"), await times("go")) == ((0, None, None), (None, 0, None), (None,) * 3)
    a = await flow.fetch_one()
    flow.clock.advance(2)
    assert await times("a") == (0, 5, None)
    await flow.fail(a)
    assert await times("a") == (0, 5, None), "the attempt that has failed"
    await flow.run_due(10)
    assert await times("a") == (17, None, None), "the next one waits in the queue"
    flow.clock.advance(3)
    first, second = await flow.fetch("default", count=2)
    flow.clock.advance(4)
    await flow.ack(first if first.type == "a" else second)
    assert await times("a") == (17, 20, 24)
    assert await times("b") == (0, 20, None)
    await flow.service.workflows.cancel(flow.id)
    assert (await times("ask"))[:2] == (None, 0)


async def test_steps_are_found_by_their_state(flow: WorkflowBench) -> None:
    await flow.create({"type": "group", "jobs": [{"type": one, "args": []} for one in "abc"]})
    await flow.work("b")
    (failed,) = (await flow.service.workflows.steps(StepFilter(flow.id, "failed"))).steps
    assert (failed.path, failed.type, failed.kind) == ("1", "b", "job")
    assert isinstance(failed.error, msgspec.Raw)
    assert msgspec.json.decode(failed.error)["message"] == "it went wrong"
    assert [step.type for step in (await flow.service.workflows.steps(StepFilter(flow.id, "completed"))).steps] == [
        "a",
        "c",
    ]


async def test_a_workflow_of_another_tenant_has_no_steps(flow: WorkflowBench) -> None:
    await flow.create({"type": "chain", "steps": [{"type": "a", "args": []}], "metadata": {"tenant_id": "one"}})
    assert (await flow.service.as_(Caller("one")).workflows.steps(StepFilter(flow.id))).steps
    for id in (flow.id, "no-id"):
        with pytest.raises(NotFound):
            await flow.service.as_(Caller("two")).workflows.steps(StepFilter(id))


async def test_a_large_workflow_is_answered_without_its_steps_but_with_its_end(http: Http, bench: Bench) -> None:
    body = {"type": "group", "jobs": [{"type": "a", "args": []}] * 1_001}
    shown = (await http("POST", "/ojs/v1/workflows", body)).json()["workflow"]
    assert (shown["steps_omitted"], "jobs" in shown) == (True, False)
    path = f"/ojs/v1/workflows/{shown['id']}"
    first = (await http("GET", f"{path}/steps?limit=1000")).json()
    second = (await http("GET", f"{path}/steps?limit=1000&cursor={first['next_cursor']}")).json()
    paths = [step["path"] for step in first["steps"] + second["steps"]]
    assert (paths, second["next_cursor"]) == ([str(number) for number in range(1_001)], None)
    assert (await http("GET", f"{path}/steps?state=nonsense")).status_code == 400
    while jobs := await bench.fetch(count=500):
        await bench.fail(jobs[0], retryable=False)
        await bench.service.jobs.acknowledge([Acknowledgement(job.id, b"1") for job in jobs[1:]])
        await bench.run_all_due()
    ended = (await http("GET", path)).json()["workflow"]
    assert (ended["state"], ended["error"]["code"]) == ("failed", "step_failed")
    few = (await http("GET", f"{path}/steps?state=failed")).json()["steps"]
    assert len(few) == ended["metadata"]["failed_count"]


async def found(flow: WorkflowBench, search: str, **more: object) -> list[str]:
    page = await flow.service.workflows.steps(StepFilter(flow.id, search=search, **more))  # type: ignore[arg-type]
    assert page.next_after is None
    return [step.path for step in page.steps]


@pytest.mark.parametrize("has_begun", [False, True])
async def test_steps_are_found_by_their_name_and_type(flow: WorkflowBench, has_begun: bool) -> None:
    jobs = [
        {"type": "mail.send", "args": [], "id": "Tell-Ada"},
        {"type": "mail.send", "args": ["tell"]},
        {"type": "report.build", "args": [], "id": "100%_sure"},
        {"type": "report.read", "args": [], "id": "Écoute"},
    ]
    await flow.create({"type": "chain", "steps": [{"type": "group", "id": "Both", "jobs": jobs}]})
    if has_begun:
        await flow.take()
    assert await found(flow, "mail") == ["Both.Tell-Ada", "Both.1"]
    assert await found(flow, "tell") == ["Both.Tell-Ada"], "arguments do not count"
    assert await found(flow, "BOTH") == ["Both"], "what is in a container does not count"
    assert await found(flow, "both.tell-ada") == ["Both.Tell-Ada"]
    assert await found(flow, "%") == ["Both.100%_sure"]
    assert await found(flow, "Écou") == ["Both.Écoute"]
    assert await found(flow, "0%_s") == ["Both.100%_sure"]
    assert await found(flow, "a%d") == await found(flow, "7") == await found(flow, "²") == []
    assert await found(flow, "mail", state="completed") == []


async def test_a_search_goes_on_where_it_ended(flow: WorkflowBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_pages, "MAX_EXAMINED", 8)
    types = ["wanted" if number in (3, 4, 29) else "other" for number in range(30)]
    await flow.create({"type": "chain", "steps": [{"type": type, "args": []} for type in types]})
    for limit in (1, 2, 50):
        paths: list[str] = []
        after: int | None = 0
        while after is not None:
            page = await flow.service.workflows.steps(StepFilter(flow.id, after=after, limit=limit, search="wanted"))
            assert len(page.steps) <= limit
            paths += [step.path for step in page.steps]
            after = page.next_after
        assert paths == ["3", "4", "29"]


async def test_steps_that_wait_for_an_answer_are_found(flow: WorkflowBench, http: Http) -> None:
    wait = {"type": "wait", "form": {"type": "object"}}
    await flow.create(
        {"type": "group", "jobs": [{"type": "a", "args": []}, wait | {"id": "ask"}, wait | {"id": "too"}]}
    )
    await flow.take()
    listed = (await http("GET", f"/ojs/v1/workflows/{flow.id}/steps?held=true")).json()
    assert [step["path"] for step in listed["steps"]] == ["ask", "too"]
    searched = (await http("GET", f"/ojs/v1/workflows/{flow.id}/steps?held=true&search=too")).json()
    assert [step["path"] for step in searched["steps"]] == ["too"]
    assert (await http("GET", f"/ojs/v1/workflows/{flow.id}/steps?search={'x' * 201}")).status_code == 400


async def test_every_path_that_a_list_prints_finds_its_step(flow: WorkflowBench) -> None:
    """Also those of steps without names, in containers of any kind, before they begin and afterwards."""
    await flow.create(NESTED)
    for _ in range(2):
        listed = (await flow.service.workflows.steps(StepFilter(flow.id))).steps
        for step in listed:
            assert step.path in await found(flow, step.path.upper() if step.path else step.type), step.path
        await flow.work()
    assert await found(flow, "both.0") == ["both.0"] or await found(flow, "both.0") == ["1.0"]


async def test_steps_are_found_by_the_name_that_people_see(flow: WorkflowBench) -> None:
    await flow.create({"type": "chain", "steps": [{"type": "a", "args": [], "name": "Pay the bill"}]})
    assert await found(flow, "the bill") == ["0"]


async def test_what_a_flow_has_asked_for_is_found_by_every_name_that_a_picture_prints(flow: WorkflowBench) -> None:
    """Local steps, messages and sleeps, which are no steps of the graph, and the jobs among them once."""
    id = await data.flow(flow)
    level = await flow.service.workflows.level(LevelRequest(id))
    for step in level.steps:
        page = await flow.service.workflows.steps(StepFilter(id, search=step.display_name or step.type))
        assert len([row for row in page.steps if (row.path, row.kind) == (step.path, step.kind)]) == 1, step.path
    waiting = await flow.service.workflows.steps(StepFilter(id, search="a", state="waiting"))
    assert "approval" in [row.path for row in waiting.steps]
    assert "total" not in [row.path for row in waiting.steps]
