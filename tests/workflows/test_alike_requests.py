"""Workflows that differ in arguments and parameters alone are copies of one plan, and nothing shows which are."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from ojster.core.errors import OjsterError
from ojster.core.json_objects import read_members
from ojster.workflows.plan import models
from ojster.workflows.plan.models import RecentWorkflows
from ojster.workflows.plan.request import read_workflow
from ojster.workflows.plan.values import NewWorkflow
from tests.workflows.bench import WorkflowBench, chain, graph, group, job, ref

pytestmark = pytest.mark.anyio

NOW = 1_800_000_000_000_000
LARGEST = 3_000

Wire = dict[str, Any]

ALIKE: dict[str, Callable[[Any], Wire]] = {
    "a chain": lambda own: chain(job("a", own), job("b"), job("a", [own, own])),
    "a group with options": lambda own: group(job("a", own), job("b")) | {"options": {"queue": "mail", "priority": 3}},
    "containers in containers": lambda own: chain(job("a"), group(job("b", own), chain(job("c"), job("d", own)))),
    "callbacks before jobs": lambda own: {
        "type": "batch",
        "callbacks": {"on_failure": job("f", own), "on_complete": job("e", "e")},
        "jobs": [job("a", own), job("b")],
    },
    "a graph": lambda own: graph(
        job("a", own, id="one"), job("b", id="two"), job("c", own, id="three", depends_on=["two", "one"])
    ),
    "references": lambda own: graph(job("a", own, id="one"), job("b", ref("steps.one.result"), 7, id="two")),
    "parameters": lambda own: chain(job("a", ref("params.x"))) | {"params": {"x": own}},
    "metadata and times": lambda own: (
        chain(job("a", own), job("b"))
        | {"metadata": {"team": "ops", "tenant_id": "acme"}, "timeout": 60, "name": "nightly"}
    ),
    "traced": lambda own: (
        chain(job("a", own)) | {"metadata": {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}}
    ),
    "steps with metadata": lambda own: chain(job("a", own, meta={"n": [1]}, options={"timeout_ms": 5_000}), job("b")),
    "a saga": lambda own: chain(job("a", own), job("b")) | {"type": "saga"},
    "an id as clients make them": lambda own: (
        chain(job("a", own), job("b")) | {"id": f"01890a5d-ac96-774b-bcce-b302099a{own if own in range(10) else 0:04d}"}
    ),
    "failures allowed": lambda own: chain(job("a", own, allow_failure=True), job("b", own, when="finished")),
}
"""Requests of which there are models."""

OTHERS: dict[str, Callable[[Any], Wire]] = {
    "an id": lambda own: chain(job("a", own)) | {"id": f"mine-{own}"},
    "unique jobs": lambda own: chain(job("a", own, options={"unique": {"keys": ["args"]}})),
    "relative times": lambda own: chain(job("a", own, options={"delay_until": "+PT1H"})),
    "references and relative times": lambda own: (
        chain(job("a", ref("params.x"), options={"delay_until": "+PT1H"})) | {"params": {"x": own}}
    ),
    "unknown members": lambda own: chain(job("a", own, colour="red")),
    "unknown members of a container": lambda own: chain(group(job("a", own)) | {"args": [own]}),
    "a compensation": lambda own: chain(job("a", own, compensate=job("b", own))),
    "a map": lambda own: {"type": "map", "over": [own], "do": job("a", ref("item"))},
    "a gate": lambda own: chain(job("a", own), {"type": "gate"}, job("b", own)),
    "a marked string": lambda own: chain(job("a", {"$x": own})),
    "a name with a line separator": lambda own: chain(job("a", own)) | {"name": "x\u2028"},
}


def read_raw(recent: RecentWorkflows | None, body: bytes, now: int = NOW) -> NewWorkflow:
    read = read_workflow if recent is None else recent.read
    return read(read_members(body), now, largest=LARGEST, otherwise="other")


def said(new: NewWorkflow) -> Any:
    """Return all that a planned workflow says, without ids that were generated, and the jobs that are made later."""
    plan = new.plan
    later_nodes = set()
    for node in plan.nodes:
        if node.waiting or node.parent in later_nodes:
            later_nodes.add(node.id)
    jobs = {}
    for number, planned in plan.jobs.items():
        if number in later_nodes:
            continue
        envelope = msgspec.json.decode(planned.envelope)
        assert envelope["id"] == planned.id
        version = planned.version and bytes(planned.version)
        members = {"envelope": in_order(envelope), "model": None, "version": version}
        jobs[number] = msgspec.structs.asdict(planned) | members
        assert envelope["workflow_id"] == new.id
    of_workflow = {
        name: getattr(new, name) for name in NewWorkflow.__struct_fields__ if name not in ("plan", "unknown")
    }
    specs = [in_order(msgspec.json.decode(spec.to_json())) for spec in plan.specs]
    later = plan.job_count, {waiting.tenant for waiting in plan.later_jobs}, new.warnings
    whole = (of_workflow, plan.nodes, specs, plan.edges, plan.promised, jobs, plan.promises)
    return _ID.sub("…", repr(whole)), later[0], later[2]


def in_order(value: Any) -> str:
    """Return a value as JSON that does not depend on the order of members."""
    return json.dumps(value, sort_keys=True)


_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}")

OWN: list[Any] = [1, "x", None, [], {"a": [{"b": 1}]}, "ü", "1]", 2.50, {"steps": [{"args": []}]}]


@pytest.mark.parametrize("what", [*ALIKE, *OTHERS])
def test_a_copy_says_what_a_plan_of_the_request_says(what: str) -> None:
    recent = RecentWorkflows()
    for number, own in enumerate(OWN * 2):
        body = msgspec.json.encode((ALIKE | OTHERS)[what](own))
        ways = []
        for way in (recent, None):
            try:
                ways.append(said(read_raw(way, body, NOW + number)))
            except OjsterError as error:
                ways.append((type(error), error.message, error.details))
        assert ways[0] == ways[1]


@pytest.mark.parametrize("what", ALIKE)
def test_alike_requests_are_planned_twice(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    planned = 0

    def count(*given: Any, **named: Any) -> NewWorkflow:
        nonlocal planned
        planned += 1
        return read_workflow(*given, **named)

    monkeypatch.setattr(models, "read_workflow", count)
    recent = RecentWorkflows()
    for own in OWN:
        read_raw(recent, msgspec.json.encode(ALIKE[what](own)))
    assert planned == 2


def test_a_copy_has_ids_of_its_own() -> None:
    recent = RecentWorkflows()
    made = [read_raw(recent, msgspec.json.encode(ALIKE["a chain"](own))) for own in OWN]
    assert len({new.id for new in made}) == len(OWN)
    assert len({planned.id for new in made for planned in new.plan.jobs.values() if new is not made[0]}) >= len(OWN) - 1


@pytest.mark.parametrize(
    "body",
    [
        b'{"type":"chain","steps":[{"type":"a","args":0}]}',
        b'{"type":"chain","steps":[{"type":"a","args":null}]}',
        b'{"type":"chain","steps":[{"type":"a"}]}',
        b'{"type":"chain","steps":[{"type":"a","args":[1],"args":[2]}]}',
        b'{"type":"chain","steps":[{"type":"a","args":[1],"colour":1}]}',
        b'{"type":"chain","steps":[{"type":"a","args":[' + b"[" * 70 + b"]" * 70 + b"]}]}",
        b'{"type":"chain","steps":[{"type":"a","args":["' + b"x" * LARGEST + b'"]}]}',
        b'{"type":"chain","steps":[{"type":"a","args":[{"$ref":"steps.b.result"}]}]}',
        b'{"type":"chain","steps":[{"type":"a","args":[{"\\u0024ref":"steps.b.result"}]}]}',
        b'{"type":"chain","steps":[{"type":"a","args":[1]}],"params":[]}',
        b'{"type":"chain","steps":[{"type":"a","args":[1]}],"params":{"a":1,"a":2}}',
        b'{"type":"chain","steps":[{"type":"a","args":[1]}],"params":{"a":' + b"[" * 66 + b"]" * 66 + b"}}",
        b'{"type":"chain","steps":[{"type":"a","args":[1]}],"id":"a/b"}',
        b'{"type":"chain","steps":[ {"type":"a", "args":[1]}]}',
        b'{"type":"chain","steps":[{"type":"a","args":[1]}],"args":[1]}',
        b'{"type":"chain","steps":[{"type":"a","args":[1]}],"jobs":[{"type":"a","args":[1]}]}',
    ],
)
def test_a_request_is_refused_as_if_there_were_no_model(body: bytes) -> None:
    recent = RecentWorkflows()
    for _ in range(3):
        read_raw(recent, b'{"type":"chain","steps":[{"type":"a","args":[1]}]}')
    for _ in range(3):
        ways = []
        for way in (recent, None):
            try:
                ways.append(said(read_raw(way, body)))
            except OjsterError as error:
                ways.append((type(error), error.message, error.details))
        assert ways[0] == ways[1]


def test_workflows_of_tenants_have_models_of_their_own() -> None:
    recent = RecentWorkflows()
    body = msgspec.json.encode(chain(job("a", 1)))
    for tenant in ("acme", "other") * 3:
        new = recent.read(read_members(body), NOW, largest=LARGEST, tenant=tenant)
        (planned,) = new.plan.jobs.values()
        assert (new.tenant, planned.tenant) == (tenant, tenant)


async def test_copies_run_to_their_end_with_their_own_arguments(flow: WorkflowBench) -> None:
    seen: dict[str, list[Any]] = {}
    for own in OWN:
        await flow.create(chain(job("a", own), group(job("b", own), job("c")), job("d", own)))
        assert await flow.work() == ["a", "b", "c", "d"]
        assert await flow.state() == "completed"
        for type, args in flow.arguments.items():
            seen.setdefault(type, []).append(args)
    assert seen == {
        "a": [[own] for own in OWN],
        "b": [[own] for own in OWN],
        "c": [[]] * len(OWN),
        "d": [[own] for own in OWN],
    }
