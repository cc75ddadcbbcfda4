"""Who did it: names of tokens on jobs and workflows, in events and histories, and who may cancel what."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import msgspec
import pytest

from ojster.core.access import Grant, Operation, Role
from ojster.core.json_objects import read_members
from ojster.server.application import Application
from ojster.server.endpoints import routes_of
from ojster.server.route import BASE
from tests.conftest import Bench, Http

pytestmark = pytest.mark.anyio

JOBS = "/ojs/v1/jobs"
WORKFLOWS = "/ojs/v1/workflows"
CRON = "/ojs/v1/cron"


class Office:
    """A guarded server, and people with tokens."""

    def __init__(self, http: Http, bench: Bench) -> None:
        self._http = http
        self.bench = bench
        self._tokens: dict[str, str] = {}

    async def employ(self, name: str, role: Role) -> None:
        _, self._tokens[name] = await self.bench.service.tokens.create(name, [Grant(role)])

    async def say(self, who: str, method: str, path: str, body: Any = None, **more: Any) -> httpx.Response:
        headers = {"Authorization": f"Bearer {self._tokens[who]}"}
        return await self._http(method, path, body, headers=headers, **more)

    async def push(self, who: str, **more: Any) -> str:
        response = await self.say(who, "POST", JOBS, {"type": "a", "args": [], **more})
        return str(response.json()["job"]["id"])

    async def begin(self, who: str) -> str:
        body = {"type": "chain", "steps": [{"type": "a", "args": []}, {"type": "b", "args": []}]}
        response = await self.say(who, "POST", WORKFLOWS, body)
        return str(response.json()["workflow"]["id"])

    def limit(self) -> None:
        """Let contributors cancel only what they have created."""
        database = self.bench.service.database
        database.settings = msgspec.structs.replace(database.settings, contributors_cancel="own")


@pytest.fixture
async def office(bench: Bench) -> AsyncIterator[Office]:
    guarded = Application(bench.service, guarded=True)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=guarded), base_url="http://guarded") as client:
        made = Office(Http(client), bench)
        await made.employ("ann", Role.CONTRIBUTOR)
        await made.employ("ben", Role.CONTRIBUTOR)
        await made.employ("boss", Role.OWNER)
        yield made


async def test_a_job_says_who_created_it_and_its_history_who_cancelled_it(office: Office) -> None:
    job = await office.push("ann", created_by="somebody else")
    shown = (await office.say("boss", "GET", f"{JOBS}/{job}")).json()["job"]
    assert shown["created_by"] == "ann"
    await office.say("ben", "DELETE", f"{JOBS}/{job}")
    history = (await office.say("boss", "GET", f"{JOBS}/{job}/history")).json()["events"]
    actors = {event["event_type"]: event["actor"] for event in history}
    assert actors["job.created"] == {"type": "client", "id": "ann"}
    assert actors["job.cancelled"] == {"type": "client", "id": "ben"}
    events = (await office.say("boss", "GET", "/ojs/v1/events?types=job.cancelled")).json()["events"]
    assert [event["data"]["cancelled_by"] for event in events] == ["ben"]


async def test_a_dead_letter_that_is_changed_keeps_its_creator(office: Office) -> None:
    job = await office.push("ann", options={"retry": {"max_attempts": 1, "on_exhaustion": "dead_letter"}})
    await office.bench.fail(await office.bench.fetch_one())
    await office.say("boss", "POST", f"/ojs/v1/dead-letter/{job}/retry", {"override": {"args": [2]}})
    shown = (await office.say("boss", "GET", f"{JOBS}/{job}")).json()["job"]
    assert (shown["args"], shown["created_by"]) == ([2], "ann")


async def test_without_a_token_nobody_is_named(office: Office) -> None:
    members = read_members(b'{"type": "a", "args": [], "created_by": "me"}')
    (pushed,) = await office.bench.service.jobs.enqueue([members])
    assert "created_by" not in (await office.say("boss", "GET", f"{JOBS}/{pushed.job.id}")).json()["job"]


async def test_a_workflow_says_who_created_and_who_cancelled_it(office: Office) -> None:
    workflow = await office.begin("ann")
    await office.say("ben", "DELETE", f"{WORKFLOWS}/{workflow}")
    shown = (await office.say("boss", "GET", f"{WORKFLOWS}/{workflow}")).json()["workflow"]
    assert (shown["created_by"], shown["cancelled_by"]) == ("ann", "ben")
    events = (await office.say("boss", "GET", "/ojs/v1/events?types=workflow.cancelled")).json()["events"]
    assert [event["data"]["cancelled_by"] for event in events] == ["ben"]


async def test_contributors_may_cancel_everything_unless_the_server_says_otherwise(office: Office) -> None:
    jobs = [await office.push("ann") for _ in range(3)]
    assert (await office.say("ben", "DELETE", f"{JOBS}/{jobs[0]}")).status_code == 200
    office.limit()
    refused = await office.say("ben", "DELETE", f"{JOBS}/{jobs[1]}")
    assert refused.status_code == 403
    assert (
        "was created by 'ann'; 'ben' may cancel or hold only its own. Ask an owner."
        in refused.json()["error"]["message"]
    )
    assert (await office.say("ann", "DELETE", f"{JOBS}/{jobs[1]}")).status_code == 200
    assert (await office.say("boss", "DELETE", f"{JOBS}/{jobs[2]}")).status_code == 200


async def test_several_jobs_are_checked_one_by_one(office: Office) -> None:
    office.limit()
    mine, other = await office.push("ann"), await office.push("ben")
    nobody = (await office.bench.push("a")).id
    answer = await office.say(
        "ann", "POST", f"{JOBS}/batch/cancel", {"job_ids": [mine, other, nobody], "mode": "partial"}
    )
    states = [(await office.bench.service.jobs.find(id)).state for id in (mine, other, nobody)]
    assert states == ["cancelled", "available", "available"], answer.text
    swept = await office.say("ann", "POST", f"{JOBS}/batch/cancel", {"filter": {"queue": "default"}})
    assert swept.status_code == 403
    assert (await office.bench.service.jobs.find(other)).state == "available"


async def test_steps_belong_to_whoever_created_the_workflow(office: Office) -> None:
    office.limit()
    workflow = await office.begin("ann")
    step = await office.bench.fetch_one()
    for path in (f"{JOBS}/{step.id}", f"{WORKFLOWS}/{workflow}"):
        assert (await office.say("ben", "DELETE", path)).status_code == 403
    assert (await office.say("ben", "POST", f"{WORKFLOWS}/{workflow}/steps/1/cancel")).status_code == 403
    assert (await office.say("ben", "POST", f"{WORKFLOWS}/{workflow}/cancel")).status_code == 403
    assert (await office.say("ann", "POST", f"{WORKFLOWS}/{workflow}/steps/1/cancel")).status_code == 200
    assert (await office.say("ann", "DELETE", f"{WORKFLOWS}/{workflow}")).status_code in (200, 409)


STOPS: dict[str, dict[str, Any] | None] = {
    "DELETE /jobs/{id}": None,
    "POST /jobs/{id}/cancel": {},
    "POST /jobs/{id}/activate": {"error": "no"},
    "POST /jobs/batch/cancel": {"job_ids": ["{id}"]},
    "POST /jobs/bulk/cancel": {"filter": {"queue": "default"}, "confirm": True},
    "DELETE /workflows/{workflow}": None,
    "POST /workflows/{workflow}/cancel": {},
    "POST /workflows/{workflow}/terminate": {},
    "POST /workflows/{workflow}/hold": {},
    "POST /workflows/cancel": {"filter": {"type": "chain"}},
    "POST /workflows/hold": {"filter": {"type": "chain"}},
    "POST /workflows/pin": {"filter": {"type": "flow"}, "flow": "a", "version": "2.0"},
    "POST /workflows/{workflow}/resume": {"error": "no"},
    "POST /workflows/{workflow}/steps/0/cancel": {},
    "POST /workflows/{workflow}/steps/0/dependencies": {"depends_on": ["x"]},
}
"""Calls that stop a job or a workflow, with the bodies with which they do."""

GO_ON = {
    "PATCH /jobs/{id}",
    "POST /jobs/batch/retry",
    "POST /jobs/bulk/retry",
    "POST /dead-letter/{id}/retry",
    "POST /dead-letter/retry",
    "POST /workflows/fork",
    "POST /workflows/{workflow}/fork",
    "POST /workflows/retry",
    "POST /workflows/release",
    "POST /workflows/{workflow}/retry",
    "POST /workflows/{workflow}/release",
    "POST /workflows/{workflow}/steps/0/retry",
}
"""Calls for contributors that stop nothing."""


def test_every_call_for_contributors_stops_something_or_does_not() -> None:
    contributors = {
        f"{route.method} {route.path.removeprefix(BASE)}".replace("/workflows/{id}", "/workflows/{workflow}").replace(
            "{step}", "0"
        )
        for route in routes_of()
        if route.needs == (Operation.CANCEL,)
    }
    assert STOPS.keys() | GO_ON == contributors


@pytest.mark.parametrize("call", sorted(STOPS))
async def test_who_cancels_only_its_own_stops_nothing_of_others_in_another_way(office: Office, call: str) -> None:
    office.limit()
    body = {"type": "chain", "steps": [{"type": "wait"}]}
    workflow = (await office.say("ann", "POST", WORKFLOWS, body)).json()["workflow"]["id"]
    (step,) = (await office.say("ann", "GET", JOBS + "?type=ojster.wait")).json()["jobs"]
    method, path = call.format(id=step["id"], workflow=workflow).split()
    raw = msgspec.json.encode(STOPS[call]).decode().replace("{id}", step["id"])
    answer = await office.say("ben", method, f"/ojs/v1{path}", msgspec.json.decode(raw))
    states = [(await office.bench.service.jobs.find(step["id"])).state]
    shown = (await office.say("ann", "GET", f"{WORKFLOWS}/{workflow}")).json()["workflow"]
    assert (states, shown["state"], shown.get("held")) == (["pending"], "running", None), answer.text
    assert answer.status_code in (403, 422), answer.text
    if "batch" not in call:
        assert answer.status_code == 403, answer.text
    if "filter" not in (STOPS[call] or {}):  # a filter may select what others have created
        allowed = await office.say("ann", method, f"/ojs/v1{path}", msgspec.json.decode(raw))
        assert allowed.status_code != 403, allowed.text


async def test_who_cancels_only_its_own_answers_what_others_wait_for(office: Office) -> None:
    office.limit()
    body = {"type": "chain", "steps": [{"type": "wait"}]}
    workflow = (await office.say("ann", "POST", WORKFLOWS, body)).json()["workflow"]["id"]
    answer = await office.say("ben", "POST", f"{WORKFLOWS}/{workflow}/resume", {"result": 1})
    assert answer.json()["workflow"]["state"] == "completed"


CRONS: dict[str, dict[str, Any]] = {
    "job": {"job_template": {"type": "a", "args": []}},
    "workflow": {"workflow": {"type": "chain", "steps": [{"type": "a", "args": []}]}},
}


@pytest.mark.parametrize("kind", CRONS)
async def test_who_cancels_only_its_own_changes_no_cron_job_of_others(office: Office, kind: str) -> None:
    async def register(who: str, **more: Any) -> int:
        body = {"name": "c", "expression": "@every 60s"} | CRONS[kind] | more
        return (await office.say(who, "POST", CRON, body)).status_code

    office.limit()
    assert await register("boss") == 201
    assert await register("ann") == 200, "an application registers its cron jobs at each start"
    assert await register("ann", overlap_policy="cancel_previous") == 403
    assert await register("ann", description="mine") == 403
    await office.bench.run_due(after=60)
    assert (await office.say("boss", "DELETE", f"{CRON}/c")).status_code == 200
    assert await register("ann", overlap_policy="cancel_previous") == 403, "a run of the owner's has not finished"
    assert await register("ann") == 201
    assert await register("ann", overlap_policy="cancel_previous") == 403
    assert await register("ben", overlap_policy="cancel_previous") == 403
    await office.bench.ack(await office.bench.fetch_one())
    assert await register("ann", overlap_policy="cancel_previous") == 200


@pytest.mark.parametrize("kind", CRONS)
async def test_the_runs_of_a_cron_job_say_who_created_them(office: Office, kind: str) -> None:
    body = {"name": "c", "expression": "@every 60s", "overlap_policy": "allow"} | CRONS[kind]
    await office.say("ann", "POST", CRON, body)
    await office.say("ben", "POST", CRON, body | {"description": "changed"})
    assert (await office.say("ben", "GET", f"{CRON}/c")).json()["cron"]["created_by"] == "ann"
    await office.bench.run_due(after=60)
    await office.say("ben", "POST", f"{CRON}/c/trigger", {})
    listed = (await office.say("ann", "GET", f"/ojs/v1/{kind}s")).json()[f"{kind}s"]
    shown = [(await office.say("ann", "GET", f"/ojs/v1/{kind}s/{run['id']}")).json() for run in listed]
    assert sorted(run.get(kind, run)["created_by"] for run in shown) == ["ann", "ben"]
