"""Every query parameter of every endpoint changes the answer or is refused, or another test shows what it does."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

import pytest

from ojster.server.endpoints import routes_of
from ojster.server.route import BASE
from tests.options.requests import DEAD, FLOW, KNOWN, LATER
from tests.options.scenes import ACTIVE, FETCH, JOB, OTHER, Call, Outcome, Scene, ShownBy, With, outcome, push, workflow

pytestmark = pytest.mark.anyio

QUERIES: Final = {
    f"{route.method} {route.path.removeprefix(BASE)}": frozenset(route.query) for route in routes_of() if route.query
}

PAGES: Final = frozenset({"limit", "cursor", "offset", "page", "per_page"})
"""Parameters of pages: the walk tries them on one list, and malformed ones on each."""

TWO: Final[tuple[Call, ...]] = (push(), push(id=OTHER, type="b"))
MORE_DEAD: Final[tuple[Call, ...]] = (
    push(id=OTHER, type="b", options={"priority": 5, "retry": {"max_attempts": 1, "on_exhaustion": "dead_letter"}}),
    FETCH,
    ("POST", "/workers/nack", {"job_id": OTHER, "error": {"code": "x", "message": "m"}}),
)
CRON: Final[Call] = ("POST", "/cron", {"name": "c", "expression": "0 0 * * *", "type": "a", "enabled": False})
ITEMS: Final[tuple[Call, ...]] = (
    *ACTIVE,
    ("POST", f"/jobs/{JOB}/items", {"name": "note-1", "category": "note", "data": {"x": "abc"}}),
)
INTERNAL: Final = {
    "internal": ShownBy(
        "insight/test_receivers.py",
        "test_every_list_and_count_has_the_servers_own_jobs_when_they_are_asked_for",
    ),
}
JOBS: Final = INTERNAL | {
    "state": "active",
    "queue": "other",
    "type": "a",
    "error_type": "E",
    "cron_name": "c",
    "since": LATER,
    "until": "2020-01-01T00:00:00Z",
}
FOUND: Final = JOBS | {
    "error_text": "E",
    "worker": "w",
    "workflow": "w1",
    "tag": "x",
    "where": "args.a=1",
    "id": OTHER,
}
DEAD_LETTERS: Final = INTERNAL | {
    "queue": "other",
    "type": "b",
    "error_type": "E",
    "since": LATER,
    "until": "2020-01-01T00:00:00Z",
    "discarded_after": LATER,
    "discarded_before": "2020-01-01T00:00:00Z",
}
WORKFLOWS: Final = {
    "state": "failed",
    "type": "group",
    "name": "n",
    "definition": "d",
    "target": "t",
    "cron_name": "c",
    "waiting_for": "gate",
    "held": "true",
    "params": '{"p":1}',
    "metadata": '{"p":1}',
    "id": "w2",
    "created_after": LATER,
    "created_before": "2020-01-01T00:00:00Z",
    "finished_after": LATER,
    "finished_before": "2020-01-01T00:00:00Z",
}
LOOKUP: Final = {
    "name": "other",
    "name_startswith": "x",
    "name_endswith": "x",
    "name_contains": "x",
    "category": "other",
    "data": '{"x":"y"}',
    "data_startswith": '{"x":"y"}',
    "data_endswith": '{"x":"y"}',
    "data_contains": '{"x":"y"}',
    "history": With("true", before=(("DELETE", f"/jobs/{JOB}/items/note-1"),)),
}


def scene(path: str, members: dict[str, Any], *before: Call, method: str = "GET") -> Scene:
    return Scene((method, path, {}), members, before)


NUMBERED: Final[dict[str, Any]] = {"limit": "1", "offset": "1", "page": "2", "per_page": "1"}
WHOLE: Final[dict[str, Any]] = NUMBERED | {"cursor": "1"}
HOURLY: Final = {"expression": "0 0 * * *"}
STARTED: Final[Call] = ("POST", "/workflows", {"definition": "known"})

SCENES: Final[dict[str, Scene]] = {
    "GET /jobs": scene("/jobs", FOUND | WHOLE | {"sort": "oldest"}, *TWO),
    "GET /job-facets": scene("/job-facets", FOUND, *TWO),
    "GET /admin/jobs": scene(
        "/admin/jobs", JOBS | WHOLE | {"sort": "priority", "order": "asc"}, push(priority=5), TWO[1]
    ),
    "GET /admin/dead-letter": scene("/admin/dead-letter", JOBS | {"sort": "size", "order": "asc"}, *DEAD, *MORE_DEAD),
    "PUT /files": scene(
        "/files",
        {
            "filename": "f",
            "sha256": "x",
            "job_id": OTHER,
            "worker_id": With("another", {"job_id": JOB}),
            "attempt": "first",
        },
        *ACTIVE,
        method="PUT",
    ),
    "GET /dead-letter": scene("/dead-letter", DEAD_LETTERS, *DEAD),
    "GET /failures": scene("/failures", INTERNAL | {"queue": "other", "type": "b", "error_type": "E"}, *DEAD),
    "GET /workflows": scene("/workflows", WORKFLOWS, workflow()),
    "GET /workflows/{id}/steps": scene(
        "/workflows/w1/steps",
        {"state": "failed", "held": "true", "search": "x"},
        workflow(),
    ),
    "GET /workflows/{id}": scene("/workflows/w1", {"steps": "false", "wait_ms": "long", "version": "new"}, workflow()),
    "GET /workflows/{id}/streams/{name}": scene(
        "/workflows/w1/streams/lines", {"wait_ms": "long", "after": "the first"}, *FLOW
    ),
    "GET /definitions": scene("/definitions", {"name": "other", "metadata": '{"a":1}'}, KNOWN),
    "GET /cron": scene("/cron", {"enabled": "true"}, CRON),
    "GET /crons": scene("/crons", {"enabled": "true"}, CRON),
    "GET /cron-preview": scene(
        "/cron-preview",
        {
            "expression": "0 1 * * *",
            "timezone": With("Asia/Tokyo", {"expression": "0 0 * * *"}),
            "count": With("2", {"expression": "0 0 * * *"}),
        },
    ),
    "GET /signatures": scene(
        "/signatures", {"type": "other"}, ("PUT", "/signatures", {"signatures": [{"type": "a", "schema": {}}]})
    ),
    "GET /jobs/{job}/items": scene(f"/jobs/{JOB}/items", LOOKUP, *ITEMS),
    "GET /events": scene(
        "/events",
        {
            "types": "x.y",
            "type": "x.y",
            "queues": "other",
            "job_types": "b",
            "after": "evt_99999999999999",
            "recent": "maybe",
            "limit": "1",
        },
        *ACTIVE,
    ),
    "GET /webhooks/deliveries": scene("/webhooks/deliveries", {"state": "unknown"}),
    "GET /admin/audit": scene(
        "/admin/audit",
        dict.fromkeys(("principal", "event", "operation", "object", "outcome"), "x")
        | {"tenant": "acme", "since": LATER, "until": "2020-01-01T00:00:00Z", "cursor": "1", "limit": "1"},
        ("POST", "/queues", {"name": "q1"}),
        ("POST", "/queues", {"name": "q2"}),
    ),
    "DELETE /definitions/{name}": scene(
        "/definitions/known",
        {"force": With("true", before=(STARTED,))},
        KNOWN,
        method="DELETE",
    ),
    "DELETE /workflows/{id}": scene("/workflows/w1", {"active": "cancel"}, workflow(), FETCH, method="DELETE"),
    "POST /workflows/{id}/cancel": scene(
        "/workflows/w1/cancel", {"active": "cancel"}, workflow(), FETCH, method="POST"
    ),
}

ELSEWHERE: Final[dict[str, str]] = {
    "GET /jobs/{id}": "server/test_endpoints.py",
    "GET /jobs/{id}/logs": "jobs/test_logs.py",
    "GET /jobs/{id}/result": "jobs/test_results_over_http.py",
    "GET /admin/tenants/{id}/jobs": "tenancy/test_tenants_over_http.py",
    "GET /session/login": "server/test_oidc_login.py",
    "GET /admin/audit/export": "audit/test_audit_log.py",
    "GET /job-export": "server/test_exports.py",
    "GET /workflow-export": "server/test_exports.py",
    "GET /workflows/{id}/export": "server/test_exports.py",
    "GET /admin/audit/verify": "audit/test_audit_log.py",
    "DELETE /workers/{id}": "jobs/test_answers.py",
    "GET /admin/stats/history": "insight/test_admin.py",
    "GET /admin/queues": "queues/test_trouble.py",
    "GET /queues": "insight/test_receivers.py",
    "GET /jobs/{id}/flow": "flows/test_kept_flows.py",
    "GET /tasks/runs": "insight/test_task_history.py",
    "GET /tasks/statistics": "insight/test_task_history.py",
    "GET /workflows/statistics": "workflows/test_node_workflow_over_http.py",
    "GET /workflows/{id}/fork-preview": "workflows/test_forked_workflows.py",
    "GET /workflows/{id}/graph": "workflows/test_levels.py",
    "GET /workflows/{id}/published": "flows/test_updates.py",
    "GET /workflows/{id}/updates/{number}": "server/test_endpoints.py",
    "DELETE /collections/{name}": "collections/test_settings_of_collections.py",
    "GET /collections/{name}/items": "collections/test_collections.py",
    "POST /collections/{name}/items": "collections/test_collections.py",
    "GET /collections/{name}/items/{item}": "collections/test_collections.py",
    "DELETE /collections/{name}/items/{item}": "collections/test_collections.py",
    "GET /workflows/{id}/items": "collections/test_collections.py",
    "POST /workflows/{id}/items": "tenancy/test_queue_tokens.py",
    "DELETE /workflows/{id}/items/{item}": "tenancy/test_queue_tokens.py",
    "GET /files/{id}": "files/test_over_http.py",
    "GET /files": "files/test_over_http.py",
    "GET /jobs/{id}/events": "events/test_streams.py",
    "GET /queues/{name}/events": "events/test_streams.py",
    "GET /workflows/{id}/streams/{name}/events": "flows/test_streams.py",
    "GET /workflows/{id}/flow": "flows/test_flow_views.py",
    "GET /workflows/{id}/messages": "flows/test_flow_views.py",
    "GET /events/changes": "events/test_changes.py",
    "GET /events/stream": "events/test_streams.py",
}
"""Endpoints whose parameters a file below ``tests`` uses."""


def test_each_parameter_of_each_endpoint_is_tried_or_another_test_uses_it() -> None:
    for name, parameters in QUERIES.items():
        if name in ELSEWHERE:
            source = (Path(__file__).parent.parent / ELSEWHERE[name]).read_text()
            assert {parameter for parameter in parameters - PAGES if parameter not in source} == set()
        else:
            tried = SCENES[name].members.keys() if name in SCENES else set()
            assert parameters - PAGES == tried - PAGES, name
    assert (SCENES.keys() | ELSEWHERE.keys()) <= QUERIES.keys()


PARAMETERS: Final = [
    f"{call}?{name}"
    for call, played in SCENES.items()
    for name, value in played.members.items()
    if not isinstance(value, ShownBy)
]


@pytest.mark.parametrize("name", PARAMETERS)
async def test_a_parameter_changes_the_answer_or_is_refused(name: str) -> None:
    call, _, parameter = name.partition("?")
    played = SCENES[call]
    value = played.members[parameter]
    more = value if isinstance(value, With) else With(value)
    plain, tried = (
        await asked(played, more.others, more),
        await asked(played, {**more.others, parameter: more.value}, more),
    )
    assert tried.status < 500
    assert (tried.status, tried.message, tried.seen) != (plain.status, plain.message, plain.seen), "it does nothing"


async def asked(played: Scene, query: Mapping[str, Any], more: With) -> Outcome:
    method, path, _ = played.call
    return await outcome(played._replace(call=(method, f"{path}?{urlencode(query)}", {})), None, more)


FLAGS: Final = {
    "/jobs/x/result": "wait",
    "/workflows/x": "steps",
    "/collections/x/items": "history",
    "/events": "recent",
    "/cron": "enabled",
}


@pytest.mark.parametrize("path", FLAGS)
async def test_a_flag_is_true_or_false_and_nothing_else(path: str) -> None:
    refused = await asked(scene(path, {}), {FLAGS[path]: "yes"}, With(None))
    assert (refused.status, "must be 'true' or 'false'" in refused.message) == (400, True)


@pytest.mark.parametrize("name", [name for name, parameters in QUERIES.items() if "limit" in parameters])
async def test_a_malformed_page_is_refused_by_each_list(name: str) -> None:
    method, path = name.split()
    path = re.sub(r"{\w+}", "x", path)
    assert (await asked(scene(path, {}, method=method), {"limit": "many"}, With(None))).status == 400


@pytest.mark.parametrize(
    ("path", "parameter"),
    [
        ("/job-facets", "since"),
        ("/job-facets", "until"),
        ("/admin/stats/history", "since"),
        ("/events", "limit"),
        ("/files", "before"),
    ],
)
async def test_the_refusal_of_a_malformed_parameter_names_it(path: str, parameter: str) -> None:
    refused = await asked(scene(path, {}), {parameter: "x"}, With(None))
    assert (refused.status, f"'{parameter}'" in refused.message) == (400, True), refused.message
