"""Every member of a step has an effect on each kind of step at each place, is refused, or brings a warning."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

import msgspec
import pytest

from ojster.core.errors import OjsterError
from ojster.core.json_objects import read_members
from ojster.jobs.options_wire import AT_TOP
from ojster.service import Service
from ojster.workflows.plan.request import MEMBERS
from ojster.workflows.plan.rules import NODE_MEMBERS, OF_STEPS
from ojster.workflows.plan.values import NewWorkflow
from tests.jobs.test_every_member import OPTIONS
from tests.options.scenes import BASE, server, step
from tests.options.test_options_of_jobs import ATTRIBUTES

pytestmark = pytest.mark.anyio

Step = dict[str, Any]

B: Final = step("b")
FIRST: Final = step("first", id="first")

OF_NODES: Final[dict[str, Any]] = {
    "id": "zz",
    "name": "nn",
    "depends_on": ["first"],
    "when": "finished",
    "if": "true",
    "allow_failure": True,
    "manual": True,
    "display_name": "Display",
    "step": "Stage",
    "group": "Group",
    "visible": False,
    "fallback": B,
    "compensate": B,
    "compensate_type": "b",
    "compensate_args": [5],
    "compensate_when": "started",
    "priority_adjustment": 3,
    "provides": ["item"],
}
"""Members of all kinds of steps."""

OF_KINDS: Final[dict[str, Any]] = {
    "as": "x",
    "body": "def body(job):\n    return 1\n",
    "callbacks": {"on_failure": B},
    "delay": "PT5S",
    "do": B,
    "failure_policy": "skip",
    "form": {"type": "object"},
    "job_type": "q",
    "jobs": [B],
    "modules": ["math"],
    "options": {"queue": "other"},
    "over": [1, 2],
    "remind": ["PT5S"],
    "steps": [B],
    "type": "other",
    "until": "2030-01-01T00:00:00Z",
    "definition": "known",
    "definition_version": 2,
    "params": {"p": 1},
    "params_schema": {"type": "object"},
    "on_error": B,
    "on_cancel": B,
    "on_lost_worker": "cancel",
}
"""Members of some kinds of steps, of definitions, and of whole workflows."""

OF_JOBS: Final[dict[str, Any]] = {
    **{name: OPTIONS[name] for name in AT_TOP if name != "pending"},
    **{name: value for name, value in ATTRIBUTES.items() if name not in ("x_custom", "schema")},
    "args": [7],
}

VALUES: Final = OF_JOBS | OF_NODES | OF_KINDS

KINDS: Final[dict[str, Step]] = {
    "job": step(),
    "code": {"body": "def body(job):\n    return 2\n"},
    "gate": {"type": "gate"},
    "wait": {"type": "wait", "delay": "PT1H"},
    "chain": {"type": "chain", "steps": [step()]},
    "graph": {"type": "graph", "steps": [step()]},
    "group": {"type": "group", "jobs": [step()]},
    "batch": {"type": "batch", "jobs": [step()], "callbacks": {"on_success": step("c")}},
    "saga": {"type": "saga", "steps": [step()]},
    "map": {"type": "map", "over": [7], "do": step()},
    "flow": {"type": "flow", "job": step()},
    "definition": {"definition": "known", "definition_version": 1},
}

PLACES: Final[dict[str, Callable[[Step], Step]]] = {
    "in a chain": lambda tried: {"type": "chain", "steps": [FIRST, tried]},
    "in a graph": lambda tried: {"type": "graph", "steps": [FIRST, tried]},
    "in a saga": lambda tried: {"type": "saga", "steps": [FIRST, tried]},
    "in a batch": lambda tried: {"type": "batch", "jobs": [tried], "callbacks": {"on_success": FIRST}},
    "as a callback": lambda tried: {"type": "batch", "jobs": [FIRST], "callbacks": {"on_success": tried}},
    "as a fallback": lambda tried: {"type": "chain", "steps": [FIRST | {"fallback": tried}]},
    "with a fallback": lambda tried: {"type": "chain", "steps": [tried | {"fallback": FIRST}]},
    "as a compensation": lambda tried: {"type": "saga", "steps": [FIRST | {"compensate": tried}]},
    "with a compensation": lambda tried: {"type": "saga", "steps": [FIRST, tried | {"compensate": B}]},
    "after an error": lambda tried: {"type": "chain", "steps": [FIRST], "on_error": tried},
    "for each element": lambda tried: {"type": "map", "over": [1, 2], "do": tried},
}

SAME: Final = {("gate", "manual"), ("wait", "meta"), ("wait", "args")}
"""Kinds, and members that say what holds anyhow, or that are kept for people."""

NAMED_BY_THEIR_PLACE: Final = {
    "as a callback",
    "as a fallback",
    "as a compensation",
    "after an error",
    "for each element",
}
"""Places that give a step its name: its ``id`` says for people what it is."""

_ID: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}")

KNOWN: Final = OF_JOBS.keys() | {"type", "options", "event_reactions", "ojster_wait", "ojster_code", "workflow_step"}
"""Members of requests for jobs that say something to the server."""


def effect_of(new: NewWorkflow) -> str:
    """Return all that a plan says, without members that jobs only keep."""
    plan = new.plan
    jobs = {
        number: msgspec.structs.asdict(job) | {"envelope": _known(job.envelope)} for number, job in plan.jobs.items()
    }
    specs = [msgspec.json.decode(spec.to_json()) for spec in plan.specs]
    for spec in specs:
        if "request" in spec:
            spec["request"] = {name: value for name, value in spec["request"].items() if name in KNOWN}
        if "template" in spec:
            spec["template"] = {
                name: value for name, value in spec["template"].items() if name in KNOWN or name in VALUES
            }
    return _ID.sub("…", repr((plan.nodes, specs, plan.edges, jobs, plan.later_jobs, plan.promises)))


def _known(envelope: bytes) -> dict[str, Any]:
    members: dict[str, Any] = msgspec.json.decode(envelope)
    return {name: value for name, value in members.items() if name in KNOWN}


async def planned(service: Service, workflow: Step) -> tuple[str, str]:
    """Return the effect of a workflow, and what its caller is told; no effect, and why, if it is refused."""
    try:
        new = await service.workflows.prepare(read_members(msgspec.json.encode(workflow)))
    except OjsterError as refusal:
        return "", refusal.message
    return effect_of(new), " ".join(new.warnings)


@pytest.fixture
async def service() -> AsyncIterator[Service]:
    """A service that knows two versions of the definition ``known``."""
    async with server() as (http, bench):
        for number in (1, 2):
            body = {"name": "known", "type": "chain", "steps": [step("a", args=[number])]}
            made = await http("POST" if number == 1 else "PUT", f"{BASE}/definitions" + "/known" * (number - 1), body)
            assert made.status_code < 300, made.text
        yield bench.service


def test_each_member_is_tried() -> None:
    assert OF_NODES.keys() == NODE_MEMBERS
    assert VALUES.keys() >= OF_STEPS
    assert MEMBERS - VALUES.keys() == {"metadata", "properties", "specversion"}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("kind", KINDS)
async def test_a_member_of_a_step_has_an_effect_or_is_refused_or_brings_a_warning(
    service: Service, kind: str, place: str
) -> None:
    own, around = KINDS[kind], PLACES[place]
    plain, said = await planned(service, around(own))
    assert plain, said
    idle = []
    for name, value in VALUES.items():
        has_it = own.get(name) == value or (name in ("fallback", "compensate") and name in str(around({})))
        is_named = name == "id" and place in NAMED_BY_THEIR_PLACE
        if has_it or is_named or (kind, name) in SAME:
            continue
        effect, told = await planned(service, around(own | {name: value}))
        if (effect, told) == (plain, said):
            idle.append(name)
    assert idle == [], "they are accepted, and do nothing"


@pytest.mark.parametrize("kind", KINDS)
async def test_null_counts_as_absent_in_each_step(service: Service, kind: str) -> None:
    own = KINDS[kind]
    for place in ("in a chain", "as a fallback"):
        around = PLACES[place]
        _, expected = await planned(service, around(own))
        for name in VALUES.keys() - own.keys():
            effect, told = await planned(service, around(own | {name: None}))
            assert (bool(effect), told) == (True, expected), f"{name} {place}"


@pytest.mark.parametrize(
    ("kind", "others"),
    [
        ("wait", {"requires": {}}),
        ("wait", {"priority_adjustment": 0}),
        ("gate", {"requires": {}}),
        ("gate", {"priority_adjustment": 0}),
        ("job", {"compensate_args": []}),
        ("job", {"compensate": B, "compensate_args": []}),
    ],
)
async def test_the_default_of_a_member_is_not_refused(service: Service, kind: str, others: Step) -> None:
    effect, told = await planned(service, PLACES["in a saga"](KINDS[kind] | others))
    assert effect, told


@pytest.mark.parametrize(
    ("member", "value", "advice"),
    [
        ("on_error", step("b"), "Give the step a 'fallback', or steps after it 'when', instead."),
        ("on_lost_worker", "cancel", "Set it for the workflow that has the step, and leave it out of the definition."),
        ("timeout", 5, "Set it for the workflow that has the step, and leave it out of the definition."),
    ],
)
async def test_a_definition_that_cannot_be_a_step_says_what_to_do(member: str, value: Any, advice: str) -> None:
    async with server() as (http, bench):
        body = {"name": "whole", "type": "chain", "steps": [step()], member: value}
        assert (await http("POST", f"{BASE}/definitions", body)).status_code == 201
        _, told = await planned(bench.service, {"type": "chain", "steps": [{"definition": "whole"}]})
    assert advice in told
