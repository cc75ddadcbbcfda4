"""Defaults of job types: what jobs have unless their request says otherwise, whoever enqueues them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ojster import App, Retry, Worker
from ojster.client.client import HttpClient
from ojster.core.access import Grant, Role
from ojster.worker.registration import register
from tests.client.in_memory import InMemoryTransport, connect
from tests.conftest import Bench, Http
from tests.tenancy.test_access import GuardedServer, door  # noqa: F401

pytestmark = pytest.mark.anyio

PATH = "/ojs/v1/job-types/email.send"
DEFAULTS = {
    "options": {"queue": "mail", "priority": 7, "retry": {"max_attempts": 8}, "timeout_ms": 60_000},
    "meta": {"team": "mail", "kind": "news"},
    "event_reactions": {"on_success": [{"action": "enqueue", "job": {"type": "mail.count", "args": []}}]},
}


async def push(http: Http, **members: Any) -> dict[str, Any]:
    return await http.push(**{"type": "email.send", **members})


@pytest.fixture
async def mail(http: Http) -> Http:
    """A server that knows defaults for ``email.send``."""
    assert (await http("PUT", PATH, DEFAULTS)).status_code == 200
    return http


async def test_a_job_has_the_defaults_of_its_type(mail: Http, bench: Bench) -> None:
    for type in ("email.send", "email.send@2"):
        job = await push(mail, type=type)
        assert (job["queue"], job["priority"], job["max_attempts"], job["timeout_ms"]) == ("mail", 7, 8, 60_000)
        assert job["meta"] == {"team": "mail", "kind": "news"}
    assert (await push(mail, type="email.sent"))["queue"] == "default"
    first = await bench.fetch_one("mail")
    await bench.ack(first)
    assert (await bench.fetch_one()).type == "email.sent"
    assert (await bench.fetch_one()).type == "mail.count"


async def test_what_a_request_says_wins(mail: Http) -> None:
    job = await push(
        mail,
        meta={"kind": "bill"},
        queue="other",
        timeout=5,
        options={"priority": 0, "max_attempts": 2},
        event_reactions={},
    )
    assert (job["queue"], job["priority"], job["max_attempts"]) == ("other", 0, 2)
    assert (job["timeout"], job["meta"]) == (5, {"team": "mail", "kind": "bill"})
    assert "timeout_ms" not in job
    assert job["event_reactions"] == {}


async def test_every_way_to_create_a_job_uses_them(mail: Http, bench: Bench) -> None:
    step = {"type": "email.send", "args": []}
    await mail("POST", "/ojs/v1/jobs/batch", {"jobs": [step]})
    await mail("POST", "/ojs/v1/workflows", {"type": "group", "jobs": [step, step | {"args": [1]}]})
    each = {"type": "map", "over": [1, 2], "do": {"type": "email.send", "args": [{"$ref": "item"}]}}
    await mail("POST", "/ojs/v1/workflows", {"type": "chain", "steps": [each]})
    reacting = {"on_creation": [{"action": "enqueue", "job": step}]}
    await mail.push(event_reactions=reacting)
    chained = {"on_creation": [{"action": "start-workflow", "workflow": {"type": "chain", "steps": [step]}}]}
    await mail.push(event_reactions=chained)
    cron = {"name": "hourly", "expression": "0 * * * *", "job_template": step}
    assert (await mail("POST", "/ojs/v1/cron", cron)).status_code == 201
    await bench.run_due(3600)
    jobs = await bench.fetch("mail", count=100)
    assert len(jobs) == 8
    assert {(job.type, job.priority, job.max_attempts) for job in jobs} == {("email.send", 7, 8)}


async def test_steps_that_a_task_appends_have_them(mail: Http) -> None:
    await mail("POST", "/ojs/v1/workflows", {"type": "chain", "steps": [{"type": "first", "args": []}]})
    (first,) = await mail.fetch()
    done = {"job_id": first["id"], "append": [{"type": "email.send", "args": []}]}
    assert (await mail("POST", "/ojs/v1/workers/ack", done)).status_code == 200
    (appended,) = await mail.fetch("mail")
    assert appended["max_attempts"] == 8


async def test_defaults_are_listed_shown_changed_and_deleted(mail: Http) -> None:
    (one,) = (await mail("GET", "/ojs/v1/job-types")).json()["job_types"]
    assert (one["type"], one["defaults"]) == ("email.send", DEFAULTS)
    assert (await mail("GET", PATH)).json()["job_type"] == one
    await mail("PUT", PATH, {"options": {"queue": "post"}})
    assert (await push(mail))["queue"] == "post"
    assert (await mail("DELETE", PATH)).status_code == 200
    assert (await push(mail))["queue"] == "default"
    for method in ("GET", "DELETE"):
        assert (await mail(method, PATH)).status_code == 404


@pytest.mark.parametrize(
    ("members", "field"),
    [
        ({"args": [1]}, "args"),
        ({"id": "019539a4-b68c-7def-8000-1a2b3c4d5e6f"}, "id"),
        ({"options": {"scheduled_at": "2030-01-01T00:00:00Z"}}, "options.scheduled_at"),
        ({"options": {"priority": "high"}}, None),
        ({"meta": {"tenant_id": "acme"}}, "meta.tenant_id"),
        ({"options": {"queue": "ojster.webhooks"}}, None),
        ({"event_reactions": {"on_success": [{"action": "fly"}]}}, None),
        ({"event_reactions": {"on_success": [{"action": "notify", "channel": "nowhere"}]}}, None),
        ({"meta": {"long": "x" * 70_000}}, None),
    ],
)
async def test_defaults_that_no_job_may_have_are_refused(http: Http, members: Any, field: str | None) -> None:
    refused = await http("PUT", PATH, members)
    assert refused.status_code in (400, 403, 413, 422), refused.text
    assert field is None or refused.json()["error"]["details"]["field"] == field
    assert (await http("GET", "/ojs/v1/job-types")).json()["job_types"] == []


@pytest.mark.parametrize(
    ("policy", "missing"),
    [
        ({"keys": ["type", "args"], "args_keys": ["user"]}, "args has no key 'user'"),
        ({"keys": ["type", "meta"], "meta_keys": ["user"]}, "meta has no key 'user'"),
    ],
)
async def test_a_default_policy_may_name_keys_that_only_jobs_have(
    http: Http, policy: dict[str, Any], missing: str
) -> None:
    assert (await http("PUT", PATH, {"options": {"unique": policy}})).status_code == 200
    job = {"type": "email.send", "args": [{"user": 1}], "meta": {"user": 1}}
    answers = [await http("POST", "/ojs/v1/jobs", job) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [201, 409]
    refused = await http("POST", "/ojs/v1/jobs", {"type": "email.send", "args": []})
    assert (refused.status_code, missing in refused.text) == (400, True)


async def test_the_defaults_of_a_workspace_are_its_own(http: Http) -> None:
    acme = {"X-OJS-Tenant": "acme"}
    await http("PUT", PATH, {"options": {"queue": "all"}})
    await http("PUT", PATH, {"options": {"queue": "acme"}}, headers=acme)
    assert (await http("GET", PATH, headers=acme)).json()["job_type"]["defaults"] == {"options": {"queue": "acme"}}
    job = {"type": "email.send", "args": []}
    queues = [
        (await http("POST", "/ojs/v1/jobs", job | more, headers=headers)).json()["job"]["queue"]
        for more, headers in (
            ({}, acme),
            ({"meta": {"tenant_id": "acme"}}, {}),
            ({}, {"X-OJS-Tenant": "beta"}),
            ({}, {}),
        )
    ]
    assert queues == ["acme", "acme", "all", "all"]


async def test_a_token_for_certain_queues_gets_the_reactions_that_an_owner_has_set(
    door: GuardedServer,  # noqa: F811
) -> None:
    owner, limited = await door.token(Grant(Role.OWNER)), await door.token(Grant(Role.OWNER), queues=("mail",))
    assert (await door.http("PUT", PATH, DEFAULTS, headers=owner)).status_code == 200
    assert (await door.http("PUT", PATH, DEFAULTS, headers=limited)).status_code == 403
    job = {"type": "email.send", "args": []}
    assert (await door.http("POST", "/ojs/v1/jobs", job, headers=limited)).status_code == 201
    own = job | {"event_reactions": DEFAULTS["event_reactions"]}
    assert (await door.http("POST", "/ojs/v1/jobs", own, headers=limited)).status_code == 403


async def test_a_worker_that_may_not_register_defaults_works_without(
    door: GuardedServer,  # noqa: F811
    caplog: pytest.LogCaptureFixture,
) -> None:
    client = HttpClient("http://test")
    connect(client, InMemoryTransport(door.http.client))
    door.http.client.headers.update(await door.token(Grant(Role.WORKER)))
    app = App("sqlite:///:memory:")
    app.job("one", queue="a")(print)
    app.job("two", queue="b")(print)
    with caplog.at_level("INFO", "ojster.worker.registration"):
        await register(client, app)
    assert await door.bench.service.job_types.all() == []
    (record,) = caplog.records
    assert (record.levelname, "others enqueue" in record.message) == ("INFO", True)
    await app.aclose()


async def test_a_worker_registers_what_its_application_declares(http: Http, url: str) -> None:
    app = App(url)

    @app.job("email.send", queue="mail", retry=Retry(max_attempts=8), version="2", meta={"team": "mail"})
    def send(to: str) -> None: ...

    @app.job("plain")
    def plain() -> None: ...

    app._service = None
    worker = Worker(app, queues=["mail"])
    running = asyncio.create_task(worker.run())
    while not (known := (await http("GET", "/ojs/v1/job-types")).json()["job_types"]):
        await asyncio.sleep(0.01)
    worker.stop()
    await running
    await app.aclose()
    assert [one["type"] for one in known] == ["email.send"]
    job = await push(http, args=["ada@example.com"])
    assert (job["queue"], job["max_attempts"], job["meta"], job.get("version")) == ("mail", 8, {"team": "mail"}, None)
