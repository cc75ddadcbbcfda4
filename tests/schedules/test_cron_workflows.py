"""Cron jobs that start workflows: each kind of workflow under each overlap policy, their refusals, and their runs."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from ojster import App, Flow, Orchestrator
from ojster import chain as chain_of
from ojster.client.client import HttpClient
from ojster.core.access import Access, Operation
from ojster.core.errors import (
    Conflict,
    Duplicate,
    Forbidden,
    InvalidRequest,
    InvalidWorkflow,
    NotFound,
    OjsterError,
    PayloadTooLarge,
)
from ojster.core.events import EventFilter
from ojster.core.json_objects import read_members
from ojster.core.refusals import SchemaViolation
from ojster.jobs.code import CODE_TYPE
from ojster.jobs.messages import Release
from ojster.jobs.scope import Caller
from ojster.schedules.cron import Cron
from ojster.schedules.cron_expression import OVERLAP_POLICIES, OverlapPolicy
from ojster.service import Service
from ojster.workflows.read.info import WorkflowInfo
from ojster.workflows.read.selection import WorkflowFilter
from ojster.workflows.run.starting import MAX_NODES_STARTED
from tests.client.in_memory import InMemoryTransport, connect
from tests.conftest import Http
from tests.workflows.bench import WorkflowBench, batch, chain, graph, group, job

pytestmark = pytest.mark.anyio

NAME = "nightly"

KINDS: dict[str, dict[str, Any]] = {
    "chain": chain(job("a"), job("b")),
    "group": group(job("a"), job("b")),
    "batch": batch(job("a"), on_complete=job("b")),
    "saga": {"type": "saga", "steps": [job("a", compensate=job("undo")), job("b")]},
    "graph": graph(job("a", id="x"), job("b", depends_on=["x"])),
    "map": {"type": "map", "over": [1, 2], "do": job("a")},
    "flow": {"type": "flow", "job": job("f")},
    "flow with parameters": {"type": "flow", "job": job("f", {"$ref": "params.day"}), "params": {"day": 1}},
    "nested flow": chain(job("a"), {"type": "flow", "job": job("f")}),
    "definition": {"definition": "stored", "params": {"day": 1}, "target": "/db"},
    "step of a definition": chain({"definition": "stored", "params": {"day": 1}}, job("c")),
}


def cron(workflow: dict[str, Any], expression: str = "@every 60s", name: str = NAME, **more: Any) -> Cron:
    return Cron(name=name, expression=expression, workflow=msgspec.json.encode(workflow), **more)


async def define(service: Service, name: str = "stored", **more: Any) -> None:
    members = chain(job("a", {"$ref": "params.day"}), job("b"), **more)
    await service.definitions.create(name, read_members(msgspec.json.encode(members)))


async def register(flow: WorkflowBench, workflow: dict[str, Any], **more: Any) -> None:
    await define(flow.service)
    await flow.service.schedules.register(cron(workflow, **more))


async def runs(flow: WorkflowBench, name: str = NAME) -> list[WorkflowInfo]:
    """The workflows that a cron job has started, the oldest first."""
    page = await flow.service.workflows.select(WorkflowFilter(cron_name=name))
    return page.workflows[::-1]


async def reasons(flow: WorkflowBench) -> list[str]:
    page = await flow.service.events.select(EventFilter(types=("cron.skipped",)))
    return [event["data"]["reason"] for event in page.events]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("policy", OVERLAP_POLICIES)
async def test_an_earlier_workflow_counts_until_it_has_finished(
    flow: WorkflowBench, kind: str, policy: OverlapPolicy
) -> None:
    """Each kind of workflow under each policy: what the second occurrence does while the first workflow runs."""
    workflow = dict(KINDS[kind])
    if policy == "enqueue":
        workflow.pop("target", None)
    await register(flow, workflow, overlap_policy=policy)
    await flow.run_due(after=60)
    (first,) = await runs(flow)
    assert (first.state, first.finished) == ("running", False)
    begun = await flow.fetch_one()
    stopping = "cancelled" if first.type in ("chain", "group", "batch") and first.kind is None else "cancelling"
    await flow.run_due(after=60)
    states = [run.state for run in await runs(flow)]
    if policy == "skip":
        assert (states, await reasons(flow)) == (["running"], ["overlap_skip"])
    elif "target" in workflow:
        expected = stopping if policy == "cancel_previous" else "running"
        assert (states, await reasons(flow)) == ([expected], ["duplicate"]), "its job keeps the target while it runs"
    else:
        second = {"allow": "running", "enqueue": "pending", "cancel_previous": "running"}[policy]
        assert states == [stopping if policy == "cancel_previous" else "running", second]
    if policy == "cancel_previous":
        await flow.confirm(begun)
    else:
        await flow.ack(begun)
    await flow.work()
    await flow.run_due()
    await flow.work()
    assert {run.state for run in await runs(flow)} <= {"completed", "cancelled"}
    assert all(run.finished for run in await runs(flow))
    before = len(states)
    await flow.run_due(after=60)
    assert len(await runs(flow)) == before + 1, "nothing is unfinished any more"


async def test_workflows_in_turn_start_when_the_one_before_has_finished(flow: WorkflowBench) -> None:
    await register(flow, chain(job("a"), job("b")), overlap_policy="enqueue")
    for _ in range(3):
        await flow.run_due(after=60)
    for finished in range(3):
        assert [run.state for run in await runs(flow)] == ["completed"] * finished + ["running"] + ["pending"] * (
            2 - finished
        )
        assert await flow.work() == ["a", "b"]
        await flow.run_due()
    assert [run.state for run in await runs(flow)] == ["completed"] * 3


@pytest.mark.parametrize("starts", ["job", "workflow"])
async def test_that_more_than_two_runs_wait_is_logged_once(
    flow: WorkflowBench, starts: str, caplog: pytest.LogCaptureFixture
) -> None:
    if starts == "job":
        template = msgspec.json.encode(job("a"))
        await flow.service.schedules.register(
            Cron(name=NAME, expression="@every 60s", template=template, overlap_policy="enqueue")
        )
    else:
        await register(flow, chain(job("a")), overlap_policy="enqueue")
    await flow.run_due(after=60)
    await flow.fetch()
    for waiting in range(1, 6):
        await flow.run_due(after=60)
        assert caplog.text.count(f"3 runs of the cron job {NAME} wait for their turn") == (waiting >= 3)


async def test_a_workflow_whose_turn_never_comes_expires_or_is_cancelled(flow: WorkflowBench) -> None:
    await register(flow, chain(job("a"), expires_at="+PT30S"), overlap_policy="enqueue")
    await flow.run_due(after=60)
    (begun,) = await flow.fetch()
    await flow.run_due(after=60)
    await flow.run_due(after=31)
    assert [run.state for run in await runs(flow)] == ["running", "cancelled"]
    await flow.run_due(after=29)
    waiting = (await runs(flow))[-1]
    assert (await flow.service.workflows.cancel(waiting.id)).finished
    await flow.ack(begun)
    assert [run.state for run in await runs(flow)] == ["completed", "cancelled", "cancelled"]


async def test_a_missed_wakeup_delays_a_turn_but_does_not_lose_it(flow: WorkflowBench) -> None:
    """The end of the earlier workflow may be in a transaction that cannot see the later one."""
    await register(flow, chain(job("a")), overlap_policy="enqueue")
    await flow.run_due(after=60)
    await flow.run_due(after=60)
    await flow.run_due(after=10)
    await flow.run_due(after=10)
    assert [run.state for run in await runs(flow)] == ["running", "pending"]
    await flow.work()
    await flow.run_due(after=10)
    assert [run.state for run in await runs(flow)] == ["completed", "running"]


async def test_cancelling_the_previous_workflow_lets_it_clean_up_once(flow: WorkflowBench) -> None:
    """What undoes a saga is neither cut short nor begun again by the next occurrences."""
    await register(
        flow,
        {"type": "saga", "steps": [job("a", compensate=job("undo")), job("b")]},
        overlap_policy="cancel_previous",
    )
    await flow.run_due(after=60)
    await flow.ack(await flow.fetch_one())
    await flow.run_due(after=60)
    jobs = await flow.fetch(count=5)
    assert sorted(one.type for one in jobs) == ["a", "undo"]
    await flow.run_due(after=60)
    (undo,) = [one for one in jobs if one.type == "undo"]
    assert (await flow.find(undo)).state == "active"
    await flow.ack(undo)
    first = (await runs(flow))[0]
    assert (first.state, first.finished) == ("cancelled", True)


async def test_a_run_is_started_once_and_says_which_occurrence_it_is(flow: WorkflowBench) -> None:
    await register(flow, KINDS["chain"] | {"name": "report", "metadata": {"own": 1}}, overlap_policy="allow")
    await flow.run_due(after=600.5)
    await flow.run_due()
    (run,) = await runs(flow)
    page = await flow.service.events.select(EventFilter(types=("cron.triggered",)))
    (fact,) = [event["data"] for event in page.events]
    assert (fact["workflow_id"], fact["workflow_type"], fact["workflow_name"]) == (run.id, "chain", "report")
    assert "job_id" not in fact
    assert run.metadata["own"] == 1
    assert (run.metadata["cron_name"], run.metadata["cron_triggered_at"]) == (NAME, fact["scheduled_at"])
    stored = await flow.service.schedules.find(NAME)
    assert (stored.run_count, stored.last_run_at, stored.starts) == (1, flow.clock.now, "chain report")


async def test_a_workflow_runs_now_on_demand_whatever_runs_already(flow: WorkflowBench) -> None:
    await register(flow, KINDS["flow"], enabled=False)
    first = await flow.service.schedules.trigger(NAME)
    second = await flow.service.schedules.trigger(NAME)
    assert isinstance(first, WorkflowInfo)
    assert [run.id for run in await runs(flow)] == [first.id, second.id]
    assert (await flow.service.schedules.find(NAME)).run_count == 2


async def test_a_trigger_that_is_refused_counts_no_run(flow: WorkflowBench) -> None:
    await register(flow, KINDS["definition"])
    await flow.service.schedules.trigger(NAME)
    with pytest.raises(Duplicate):
        await flow.service.schedules.trigger(NAME)
    assert (await flow.service.schedules.find(NAME)).run_count == 1


async def test_a_definition_is_started_in_its_latest_version_and_skipped_without_one(flow: WorkflowBench) -> None:
    await register(flow, {"definition": "stored", "params": {"day": 3}}, overlap_policy="allow")
    newer = chain(job("newer", {"$ref": "params.day"}), metadata={"team": "x"})
    await flow.service.definitions.update("stored", read_members(msgspec.json.encode(newer)))
    await flow.run_due(after=60)
    started = await flow.fetch_one()
    assert (started.type, started.args) == ("newer", [3])
    (run,) = await runs(flow)
    assert (run.definition, run.definition_version, run.metadata["team"]) == ("stored", 2, "x")
    from ojster.workflows.definitions import DefinitionDeletion

    await flow.service.definitions.delete(DefinitionDeletion("stored", force=True))
    await flow.run_due(after=60)
    assert await reasons(flow) == ["not_found"]
    assert (await flow.service.schedules.find(NAME)).run_count == 1


BAD: dict[str, tuple[dict[str, Any], type[OjsterError], str]] = {
    "no type": ({}, InvalidWorkflow, "$.workflow.type"),
    "a step without a type": (chain(job("a"), {"args": []}), InvalidWorkflow, "$.workflow.steps[1]"),
    "an unknown member": (chain(job("a"), colour="red"), InvalidWorkflow, "$.workflow.colour"),
    "an id": (chain(job("a"), id="same"), InvalidRequest, "workflow.id"),
    "an unknown definition": ({"definition": "none"}, NotFound, ""),
    "a definition with steps": ({"definition": "strict", "steps": []}, InvalidRequest, "workflow.steps"),
    "parameters of another type": ({"definition": "strict", "params": {}}, SchemaViolation, "workflow.params"),
    "an unknown orchestrator": ({"orchestrator": "none"}, InvalidRequest, "workflow.orchestrator"),
}


@pytest.mark.parametrize("what", BAD)
async def test_a_workflow_is_checked_when_the_cron_job_is_created(flow: WorkflowBench, what: str) -> None:
    workflow, error, place = BAD[what]
    await define(flow.service, "strict", params_schema={"required": ["day"]})
    with pytest.raises(error) as refusal:
        await flow.service.schedules.register(cron(workflow))
    details = refusal.value.details
    places = [problem["path"] for problem in details.get("validation_errors", ())] or [details.get("field", "")]
    assert places[0].startswith(place)
    if error is InvalidWorkflow:
        assert f"invalid at {places[0]}" in refusal.value.message
    assert await flow.service.schedules.all() == []


async def test_a_workflow_with_a_target_cannot_wait_for_its_turn(flow: WorkflowBench) -> None:
    """It would have to hold the target while it waits, and the one before holds it."""
    with pytest.raises(InvalidRequest, match="cannot wait for the run before it") as refusal:
        await register(flow, KINDS["definition"], overlap_policy="enqueue")
    assert refusal.value.details["field"] == "overlap_policy"


async def test_what_a_token_may_not_enqueue_it_may_not_schedule_inside_a_workflow(flow: WorkflowBench) -> None:
    access = Access(who="ada", operations=frozenset({Operation.ENQUEUE}))
    narrow = flow.service.as_(Caller(access=access))
    code = chain(job("a"), group(job(CODE_TYPE)))
    with pytest.raises(Forbidden, match="code"):
        await narrow.schedules.register(cron(code))
    limited = flow.service.as_(Caller(access=msgspec.structs.replace(access, queues=("mail",))))
    with pytest.raises(Forbidden):
        await limited.schedules.register(cron(KINDS["chain"]))
    await narrow.schedules.register(cron(KINDS["chain"]))


async def test_each_tenant_has_its_own_runs_definitions_and_turns(flow: WorkflowBench) -> None:
    acme = flow.service.as_(Caller("acme"))
    await define(acme)
    with pytest.raises(NotFound):
        await flow.service.schedules.register(cron({"definition": "stored"}))
    for service, workflow in ((acme, {"definition": "stored", "params": {"day": 1}}), (flow.service, KINDS["chain"])):
        await service.schedules.register(cron(workflow, overlap_policy="enqueue"))
    await flow.run_due(after=60)
    (theirs,) = (await acme.workflows.select(WorkflowFilter(cron_name=NAME))).workflows
    (own,) = await runs(flow)
    assert (theirs.state, own.state, theirs.definition, own.definition) == ("running", "running", "stored", None)
    assert theirs.metadata["cron_name"] == NAME
    assert await acme.schedules.trigger(NAME) is not None
    assert len(await runs(flow)) == 1


async def test_a_cron_job_may_change_from_jobs_to_workflows_while_a_job_runs(flow: WorkflowBench) -> None:
    template = msgspec.json.encode({"type": "a", "args": []})
    await flow.service.schedules.register(Cron(name=NAME, expression="@every 60s", template=template))
    await flow.run_due(after=60)
    changed = await flow.service.schedules.register(cron(KINDS["chain"]))
    assert (changed.is_new, changed.is_changed, changed.cron.template) == (False, True, b"{}")
    await flow.run_due(after=60)
    assert (await runs(flow), await reasons(flow)) == ([], ["overlap_skip"])
    await flow.work()
    await flow.run_due(after=60)
    assert len(await runs(flow)) == 1
    with pytest.raises(InvalidRequest, match="Leave one of them out"):
        cron(KINDS["chain"], template=template)


async def test_a_workflow_that_is_retried_as_a_new_one_remains_the_run_of_its_cron_job(flow: WorkflowBench) -> None:
    from ojster.jobs.messages import Release

    await register(flow, {"definition": "stored", "params": {"day": 1}})
    await flow.run_due(after=60)
    begun = await flow.fetch_one()
    await flow.service.jobs.release([Release(begun.id, begun.worker_id, begun.attempt, then="retry")])
    await flow.run_due(after=60)
    assert [run.attempt for run in await runs(flow)] == [1, 2]
    assert await reasons(flow) == ["overlap_skip"]


async def test_finished_runs_are_deleted_as_other_workflows_are(flow: WorkflowBench) -> None:
    await register(flow, chain(job("a"), expiration_delay="PT60S"), overlap_policy="allow")
    await flow.run_due(after=60)
    await flow.work()
    flow.clock.advance(61)
    await flow.service.maintenance.prune()
    assert await runs(flow) == []
    assert (await flow.service.schedules.find(NAME)).run_count == 1


async def test_large_workflows_leave_the_other_cron_jobs_to_the_next_transaction(flow: WorkflowBench) -> None:
    large = group(*(job("a") for _ in range(600)))
    for number in range(4):
        await flow.service.schedules.register(cron(large, name=f"large-{number}"))
    await flow.run_due(after=60)
    started = sum([len(await runs(flow, f"large-{number}")) for number in range(4)])
    assert started == 2
    await flow.run_due()
    assert [len(await runs(flow, f"large-{number}")) for number in range(4)] == [1, 1, 1, 1]


async def test_a_workflow_for_one_transaction_is_bounded(flow: WorkflowBench) -> None:
    """The group and the workflow around it count as well."""
    most = group(*(job("a") for _ in range(MAX_NODES_STARTED - 2)))
    await flow.service.schedules.register(cron(most))
    with pytest.raises(PayloadTooLarge, match="at most 1000"):
        await flow.service.schedules.register(cron(group(*most["jobs"], job("a")), name="larger"))


async def test_a_definition_that_became_too_large_is_not_started(flow: WorkflowBench) -> None:
    await register(flow, {"definition": "stored", "params": {"day": 1}}, overlap_policy="allow")
    for step in range(2):
        jobs = [job("a") for _ in range(MAX_NODES_STARTED - 2 + step)]
        body = msgspec.json.encode(group(*jobs))
        await flow.service.definitions.update("stored", read_members(body))
        await flow.run_due(after=60)
    assert (len(await runs(flow)), await reasons(flow)) == (1, ["payload_too_large"])


# Over HTTP


async def test_a_cron_job_over_http_shows_its_workflow_and_what_it_starts(http: Http) -> None:
    body = {"name": "n", "expression": "@daily", "workflow": KINDS["flow"] | {"name": "it"}}
    made = await http("POST", "/ojs/v1/cron", body)
    assert made.status_code == 201, made.text
    shown = made.json()["cron"]
    assert (shown["workflow"], shown["starts"]) == (body["workflow"], "flow f")
    assert not {"type", "args", "job_template"} & shown.keys()
    again = await http("POST", "/ojs/v1/crons", body)
    assert (again.status_code, again.json()["is_changed"]) == (200, False)
    started = await http("POST", "/ojs/v1/cron/n/trigger")
    assert started.status_code == 201
    assert "job" not in started.json()
    listed = (await http("GET", "/ojs/v1/workflows?cron_name=n")).json()["workflows"]
    assert [run["id"] for run in listed] == [started.json()["workflow"]["id"]]
    assert (await http("GET", "/ojs/v1/workflows?cron_name=other")).json()["workflows"] == []
    for change in ({"enabled": False}, {"enabled": True}):
        switched = await http("PATCH", "/ojs/v1/cron/n", change)
        assert switched.json()["cron"]["workflow"] == body["workflow"]
    assert (await http("DELETE", "/ojs/v1/cron/n")).json()["cron"]["starts"] == "flow f"


@pytest.mark.parametrize(
    ("members", "field"),
    [
        ({"workflow": KINDS["chain"], "type": "t"}, "type"),
        ({"workflow": KINDS["chain"], "job_template": {"type": "t"}}, "job_template"),
        ({"workflow": KINDS["chain"], "options": {"queue": "q"}}, "options"),
        ({"workflow": None}, "type"),
        ({"workflow": {"definition": "none", "steps": []}}, "workflow.steps"),
    ],
)
async def test_a_cron_job_has_exactly_one_thing_to_start(http: Http, members: dict[str, Any], field: str) -> None:
    refused = await http("POST", "/ojs/v1/cron", {"name": "n", "expression": "@daily"} | members)
    assert refused.status_code == 400, refused.text
    assert refused.json()["error"]["details"]["field"] == field


# In Python


async def test_an_application_declares_cron_jobs_of_all_that_it_can_start(
    flow: WorkflowBench, service: Service
) -> None:
    app = App("sqlite:///:memory:")
    app.work_on(service, "sqlite:///:memory:")

    @app.cron("@daily", 7, name="decorated")
    @app.flow("fulfil_order")
    async def fulfil(flow: Flow, order: int) -> None: ...

    @app.job("send")
    def send(to: str) -> None: ...

    @app.orchestrator("builder")
    class Builder(Orchestrator):
        async def populate(self) -> None: ...

    await app.adefine("stored", send.s("ada"))
    app.cron("@daily", fulfil.s(42))
    app.cron("@daily", chain_of(send.s("a"), send.s("b"), name="letters"), overlap_policy="allow", timeout=60)
    app.cron("@daily", send.s("one"), name="one-step", params={"x": 1})
    app.cron("@daily", Builder)
    stored = app.cron("@daily", definition="stored", name="by-name", target="/db")
    assert (stored.name, stored.starts) == ("by-name", "definition stored")
    for declared in app.crons:
        await app.client().schedules.register(declared)
    expected = {
        "decorated": ("flow fulfil_order", "flow"),
        "fulfil-order": ("flow fulfil_order", "flow"),
        "letters": ("chain letters", "chain"),
        "one-step": ("chain", "chain"),
        "builder": ("orchestrator builder", "graph"),
        "by-name": ("definition stored", "chain"),
    }
    assert {cron.name: cron.starts for cron in app.crons} == {name: shown for name, (shown, _) in expected.items()}
    await flow.run_due(after=24 * 3600)
    for name, (_, type) in expected.items():
        (run,) = await runs(flow, name)
        assert (run.kind or run.type, run.state) == (type, "running"), name


def test_a_cron_job_in_python_starts_one_thing_whose_name_and_options_are_known() -> None:
    app = App("sqlite:///:memory:")
    send = app.job("send")(lambda to: None)
    step = send.s("ada")
    of_workflows: Any = {"timeout": 5}
    for wrong, why in (
        (lambda: app.cron("@daily", step), "has no name"),
        (lambda: app.cron("@daily", step, step, name="n"), "one workflow or one definition, not 2"),
        (lambda: app.cron("@daily", step, definition="d"), "beside a definition"),
        (lambda: app.cron("@daily", step, name="n", target="/db"), "Only workflows of a definition"),
        (lambda: app.cron("@daily", definition="d", timeout=5), "The definition sets it"),
        (lambda: app.cron("@daily", "ada", **of_workflows)(send), "'timeout' is an option of workflows"),
    ):
        with pytest.raises(TypeError, match=why):
            wrong()
    assert app.crons == []


async def test_a_client_registers_and_triggers_workflows_as_the_service_does(service: Service, http: Http) -> None:
    client = HttpClient("http://test")
    connect(client, InMemoryTransport(http.client))
    registered = await client.schedules.register(cron(KINDS["chain"]))
    assert registered.cron == await service.schedules.find(NAME)
    started = await client.schedules.trigger(NAME)
    assert isinstance(started, WorkflowInfo)
    page = await client.workflows.select(WorkflowFilter(cron_name=NAME))
    assert [run.id for run in page.workflows] == [started.id]


async def test_a_run_that_takes_turns_is_retried_when_no_other_runs(flow: WorkflowBench) -> None:
    await register(flow, chain(job("a")), overlap_policy="enqueue")
    await flow.run_due(after=60)
    (failing,) = await flow.fetch()
    await flow.give_up(failing)
    await flow.run_due(after=60)
    (running,) = await flow.fetch()
    first, second = await runs(flow)
    with pytest.raises(Conflict, match="takes turns"):
        await flow.service.workflows.retry(first.id)
    await flow.ack(running)
    await flow.service.workflows.retry(first.id)
    assert [(run.state) for run in await runs(flow)] == ["running", "completed"]
    assert second.state == "running"


async def test_the_next_attempt_of_a_run_is_ahead_of_those_that_have_not_begun(flow: WorkflowBench) -> None:
    retry = {"max_attempts": 3, "initial_interval": "PT30S", "max_interval": "PT30S", "jitter": False}
    await define(flow.service, "again", retry=retry)
    await flow.service.schedules.register(cron({"definition": "again", "params": {"day": 1}}, overlap_policy="enqueue"))
    await flow.run_due(after=60)
    (first,) = await flow.fetch()
    await flow.run_due(after=60)
    await flow.service.jobs.release([Release(first.id, first.worker_id, first.attempt, then="retry")])
    await flow.run_all_due()
    for _ in range(2):
        assert len(await flow.fetch(count=10)) <= 1
        flow.clock.advance(40)
        await flow.run_all_due()
    assert sum(run.state == "running" for run in await runs(flow)) == 1


@pytest.mark.parametrize("absent", ["definition", "orchestrator", "timeout", "name"])
async def test_a_member_without_a_value_is_none_when_the_workflow_is_due(flow: WorkflowBench, absent: str) -> None:
    await register(flow, chain(job("a")) | {absent: None})
    await flow.run_due(after=60)
    assert [run.state for run in await runs(flow)] == ["running"]
    assert await reasons(flow) == []


async def test_flows_of_cron_jobs_are_called_as_flows_that_are_started() -> None:
    app = App("sqlite:///:memory:")

    @app.cron("@hourly")
    @app.flow("order.fulfil")
    async def fulfil(flow: Flow) -> None: ...

    (declared,) = app.crons
    assert msgspec.json.decode(declared.workflow or b"")["name"] == "order.fulfil"
    await app.aclose()
