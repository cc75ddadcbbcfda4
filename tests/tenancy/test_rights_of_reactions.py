"""Reactions act with the rights of the caller that declared them: each kind, on every way in."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Final, get_args

import httpx
import pytest

from ojster.collections.items import Where
from ojster.core.access import OPERATIONS, Grant, Role
from ojster.events.reaction_rules import NEEDS, Action, needs_of
from ojster.server.application import Application
from ojster.server.endpoints import routes_of
from tests.conftest import Bench, Http, shown

pytestmark = pytest.mark.anyio

BASE: Final = "/ojs/v1"

NEEDED: Final = {f"{route.method} {route.path.removeprefix(BASE)}": route.needs for route in routes_of()}

ENDPOINTS: Final = {
    "enqueue": "POST /jobs",
    "start-workflow": "POST /workflows",
    "collect": "POST /collections/{name}/items",
}
"""The endpoint that does the same, by the kind of the action."""

OWN_JOB: Final = {
    "notify",  # through a channel that an administrator has set up; recipients need administrator rights
    "record",
    "retry-with-delays",
    "skip-if-changed",
    "skip-if-unchanged",
}
"""Kinds of actions that change nothing but their own job."""

RELEASES: Final = Where("releases")

ACTIONS: Final[dict[str, dict[str, Any]]] = {
    "enqueue": {"action": "enqueue", "job": {"type": "b", "args": []}},
    "start-workflow": {"action": "start-workflow", "workflow": {"type": "chain", "steps": [{"type": "b", "args": []}]}},
    "collect": {"action": "collect", "collection": "releases", "name": "x"},
}


def job(action: dict[str, Any]) -> dict[str, Any]:
    return {"type": "a", "args": [], "event_reactions": {"on_success": [action]}}


def chain(*steps: dict[str, Any]) -> dict[str, Any]:
    return {"type": "chain", "steps": list(steps)}


class GuardedServer:
    """A server that requires tokens."""

    def __init__(self, http: Http, bench: Bench) -> None:
        self._http = http
        self.bench = bench

    async def say(self, role: Role, method: str, path: str, body: Any) -> httpx.Response:
        """Make a call with a token of a role."""
        _, shown = await self.bench.service.tokens.create(role.value, [Grant(role)])
        return await self._http(method, BASE + path, body, headers={"Authorization": f"Bearer {shown}"})


@pytest.fixture
async def door(bench: Bench) -> AsyncIterator[GuardedServer]:
    await bench.service.collections.create("releases")
    guarded = Application(bench.service, guarded=True)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=guarded), base_url="http://guarded") as client:
        yield GuardedServer(Http(client), bench)


def test_every_kind_of_action_is_one_that_needs_a_right_or_concerns_its_own_job() -> None:
    kinds = {kind.__struct_config__.tag for kind in get_args(Action)}
    assert kinds == NEEDS.keys() | OWN_JOB
    assert not NEEDS.keys() & OWN_JOB


@pytest.mark.parametrize("kind", sorted(NEEDS))
def test_an_action_needs_what_the_endpoint_needs_that_does_the_same(kind: str) -> None:
    assert set(needs_of(ACTIONS[kind])) == set(NEEDED[ENDPOINTS[kind]])


WAYS_IN: Final[dict[str, Any]] = {
    "a job": ("POST", "/jobs", job),
    "a batch": ("POST", "/jobs/batch", lambda action: {"jobs": [{"type": "b", "args": []}, job(action)]}),
    "a step": ("POST", "/workflows", lambda action: chain(job(action))),
    "a step inside": ("POST", "/workflows", lambda action: chain({"type": "group", "jobs": [job(action)]})),
    "a step of a map": ("POST", "/workflows", lambda action: chain({"type": "map", "over": [1], "do": job(action)})),
    "a clean-up": ("POST", "/workflows", lambda action: chain({"type": "b", "args": []}) | {"on_error": job(action)}),
    "a job of a reaction": ("POST", "/jobs", lambda action: job({"action": "enqueue", "job": job(action)})),
    "a workflow of a reaction": (
        "POST",
        "/jobs",
        lambda action: job({"action": "start-workflow", "workflow": chain(job(action))}),
    ),
    "a job type": ("PUT", "/job-types/a", lambda action: {"event_reactions": {"on_success": [action]}}),
    "a cron job": (
        "POST",
        "/cron",
        lambda action: {"name": "c", "expression": "0 0 * * *", "job_template": job(action)},
    ),
}
"""How a caller that may enqueue declares a reaction."""


@pytest.mark.parametrize("way", sorted(WAYS_IN))
@pytest.mark.parametrize("role", [Role.PRODUCER, Role.CODER, Role.CONTRIBUTOR, Role.OWNER])
async def test_a_caller_declares_the_reactions_that_it_may_carry_out_itself(
    door: GuardedServer, way: str, role: Role
) -> None:
    method, path, request_of = WAYS_IN[way]
    for kind, action in ACTIONS.items():
        answer = await door.say(role, method, path, request_of(action))
        is_allowed = bool(OPERATIONS[role].intersection(NEEDED[ENDPOINTS[kind]]))
        assert (answer.status_code in (200, 201, 202)) is is_allowed, f"{kind}: {answer.status_code} {answer.text}"
        if not is_allowed:
            assert answer.status_code == 403
            assert f"may not declare the reaction {kind!r}" in answer.text
    assert await door.bench.service.collections.items(RELEASES) == []


async def test_a_worker_appends_no_steps_that_enqueue_and_its_other_reports_are_accepted(door: GuardedServer) -> None:
    for kind, action in ACTIONS.items():
        await door.say(Role.PRODUCER, "POST", "/workflows", chain({"type": "a", "args": []}))
        await door.say(Role.PRODUCER, "POST", "/jobs", {"type": "a", "args": []})
        fetch = {"queues": ["default"], "worker_id": "w", "count": 2}
        jobs = (await door.say(Role.WORKER, "POST", "/workers/fetch", fetch)).json()["jobs"]
        acks: list[dict[str, Any]] = [{"job_id": fetched["id"], "worker_id": "w"} for fetched in jobs]
        acks[0]["append"] = [job(action)]
        answer = await door.say(Role.WORKER, "POST", "/workers/ack/batch", {"acks": acks})
        is_allowed = bool(OPERATIONS[Role.WORKER].intersection(NEEDED[ENDPOINTS[kind]]))
        states = [(await door.bench.service.jobs.find(fetched["id"])).state for fetched in jobs]
        assert states == ["completed" if is_allowed else "active", "completed"], f"{kind}: {answer.text}"
        await door.bench.fetch(count=9)  # what is left is out of the way


VALUES: Final = [
    job(ACTIONS["collect"]),
    {"subject": "Hi", "body": "Hello"},
    {"ojster_code": {"body": "def body(job): pass"}},
    {"action": "notify", "to": ["ada"]},
]
"""Values of a user that look like what only some callers may send."""

PLACES: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "arguments": ("/jobs", {"type": "a", "args": VALUES}),
    "metadata": ("/jobs", {"type": "a", "args": [], "meta": {"values": VALUES}}),
    "arguments of a step": ("/workflows", chain({"type": "a", "args": VALUES})),
    "elements of a map": ("/workflows", chain({"type": "map", "over": VALUES, "do": {"type": "a", "args": []}})),
    "arguments of what undoes a step": (
        "/workflows",
        {"type": "saga", "steps": [{"type": "a", "args": [], "compensate_type": "b", "compensate_args": VALUES}]},
    ),
    "arguments of a cron job": ("/cron", {"name": "c", "expression": "0 0 * * *", "type": "a", "args": VALUES}),
}


@pytest.mark.parametrize("place", PLACES)
async def test_values_of_a_user_are_neither_jobs_nor_reactions(door: GuardedServer, place: str) -> None:
    answer = await door.say(Role.PRODUCER, "POST", *PLACES[place])
    assert answer.status_code == 201, answer.text


async def test_new_arguments_of_a_fork_are_neither_jobs_nor_reactions(door: GuardedServer) -> None:
    made = await door.say(Role.PRODUCER, "POST", "/workflows", chain({"type": "a", "args": []}))
    path = f"/workflows/{made.json()['workflow']['id']}"
    await door.say(Role.OWNER, "POST", f"{path}/cancel", {})
    answer = await door.say(Role.CONTRIBUTOR, "POST", f"{path}/fork", {"from_step": "0", "args": VALUES})
    assert answer.status_code == 201, answer.text


async def test_a_producer_collects_into_the_collection_of_its_own_workflow(door: GuardedServer) -> None:
    own = {"action": "collect", "name": "x"}
    assert (await door.say(Role.PRODUCER, "POST", "/workflows", chain(job(own)))).status_code == 201


async def test_what_a_reaction_creates_belongs_to_the_creator_of_its_job(door: GuardedServer) -> None:
    made = [ACTIONS["enqueue"], ACTIONS["start-workflow"]]
    reacting = {"type": "a", "args": [], "event_reactions": {"on_creation": made}}
    await door.say(Role.PRODUCER, "POST", "/jobs", reacting)
    await door.say(Role.PRODUCER, "POST", "/workflows", chain(reacting))
    bench = door.bench
    jobs = [one for one in await bench.fetch(count=9) if one.type == "b"]
    plain = [shown(one) for one in jobs if one.workflow is None]
    assert [one["created_by"] for one in plain] == ["producer", "producer"]
    workflows = (await door.say(Role.OWNER, "GET", "/workflows", None)).json()["workflows"]
    assert [one["created_by"] for one in workflows] == ["producer"] * 3
