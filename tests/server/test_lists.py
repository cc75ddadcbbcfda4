"""Lists: what is left empty in a request is left out, and bounds of pages hold in the process as over HTTP."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from ojster.audit.entries import AuditQuery
from ojster.core.errors import InvalidRequest
from ojster.core.events import EventFilter
from ojster.jobs.queries import Page
from ojster.schedules.cron import Cron
from ojster.server.endpoints import routes_of
from ojster.server.route import NUMBERED_PAGE, PAGE, Route
from ojster.service import Service
from ojster.workflows.read.levels import LevelRequest
from ojster.workflows.read.selection import WorkflowFilter
from ojster.workflows.read.step_pages import StepFilter
from tests.conftest import Http

pytestmark = pytest.mark.anyio

LISTS = [
    route
    for route in routes_of()
    if route.method == "GET" and {"limit", *PAGE, *NUMBERED_PAGE} & {*route.query} and "{" not in route.path
]
"""Lists of all capabilities, without those of one thing, which must exist."""


@pytest.mark.parametrize("route", LISTS, ids=lambda route: route.path)
async def test_an_empty_parameter_of_a_list_is_left_out(http: Http, route: Route) -> None:
    without = (await http("GET", route.path)).status_code
    assert without == 200 or route.path.endswith("/files"), "there is no store of files"
    for name in route.query:
        answer = await http("GET", f"{route.path}?{name}=")
        assert answer.status_code == without, (name, answer.text)
    assert (await http("GET", f"{route.path}?unknown=")).status_code == 400


async def test_an_empty_parameter_of_the_steps_of_a_workflow_is_left_out(http: Http) -> None:
    body = {"type": "chain", "steps": [{"type": "a", "args": []}]}
    workflow = (await http("POST", "/ojs/v1/workflows", body)).json()["workflow"]["id"]
    for path in ("steps", "graph"):
        (route,) = [
            route for route in routes_of() if "/workflows/{" in route.path and route.path.endswith(f"}}/{path}")
        ]
        for name in route.query:
            answer = await http("GET", f"/ojs/v1/workflows/{workflow}/{path}?{name}=")
            assert answer.status_code == 200, (name, answer.text)


CHANGING = [
    ("POST", "/ojs/v1/workflows/{workflow}/cancel?active=", None),
    ("DELETE", "/ojs/v1/admin/workers/w?lost=", None),
    ("DELETE", "/ojs/v1/collections/c/items/i?job_id=", None),
    ("POST", "/ojs/v1/collections/c/items?job_id=", {"name": "j", "category": "x"}),
]


async def test_an_empty_parameter_of_a_call_that_changes_something_is_refused(http: Http) -> None:
    body = {"type": "chain", "steps": [{"type": "a", "args": []}]}
    workflow = (await http("POST", "/ojs/v1/workflows", body)).json()["workflow"]["id"]
    await http("POST", "/ojs/v1/collections", {"name": "c"})
    await http("POST", "/ojs/v1/collections/c/items", {"name": "i", "category": "x"})
    for method, path, sent in CHANGING:
        answer = await http(method, path.format(workflow=workflow), sent)
        assert 400 <= answer.status_code < 500, (path, answer.text)
    assert (await http("GET", f"/ojs/v1/workflows/{workflow}")).json()["workflow"]["state"] == "running"
    assert len((await http("GET", "/ojs/v1/collections/c/items")).json()["items"]) == 1


OUT_OF_BOUNDS: dict[str, Callable[[Service], Awaitable[Any]]] = {
    "workflows": lambda service: service.workflows.select(WorkflowFilter(limit=0)),
    "workflows before the first": lambda service: service.workflows.select(WorkflowFilter(offset=-1)),
    "steps": lambda service: service.workflows.steps(StepFilter("w", limit=0)),
    "levels": lambda service: service.workflows.level(LevelRequest("w", limit=0)),
    "audit log": lambda service: service.audit.select(AuditQuery(limit=0)),
    "jobs": lambda service: service.jobs.select(page=Page(0)),
    "events": lambda service: service.events.select(EventFilter(limit=0)),
    "files": lambda service: service.files.select(0),
    "runs of tasks": lambda service: service.tasks.runs(limit=0),
    "statistics of tasks": lambda service: service.tasks.statistics(limit=-1),
    "cron jobs": lambda service: service.schedules.page(None, 0, 0),
    "runs of a cron expression": lambda service: service.schedules.preview("@daily", count=0),
    "name of a cron job": lambda service: service.schedules.register(Cron(name="No Name", expression="@daily")),
}


@pytest.mark.parametrize("what", OUT_OF_BOUNDS)
async def test_bounds_hold_in_the_process_as_over_http(service: Service, what: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        await OUT_OF_BOUNDS[what](service)
    assert refusal.value.details["field"] in ("limit", "offset", "count", "name")
