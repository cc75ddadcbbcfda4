"""Bulk operations on the workflows that match a filter, over HTTP."""

from __future__ import annotations

import pytest

from ojster.audit.entries import AuditQuery
from ojster.client.client import HttpClient
from ojster.core.errors import Conflict
from ojster.workflows.bulk import WorkflowAction
from ojster.workflows.read.selection import WorkflowConditions
from tests.client.in_memory import InMemoryTransport, connect
from tests.conftest import Http
from tests.workflows.bench import WorkflowBench, chain, job

pytestmark = pytest.mark.anyio

BASE = "/ojs/v1/workflows"


async def prepare(flow: WorkflowBench, action: WorkflowAction) -> list[str]:
    """Create two workflows named ``n`` that the action changes, and one of another name."""
    step = {"type": "flow", "job": job("a", version="1.0")} if action is WorkflowAction.PIN else chain(job("a"))
    ids = [(await flow.create(step | {"name": name})).id for name in ("n", "n", "other")]
    if action in (WorkflowAction.RETRY, WorkflowAction.FORK, WorkflowAction.DELETE):
        await flow.work("a")
    for id in ids if action is WorkflowAction.RELEASE else ():
        await flow.service.workflows.hold(id)
    return ids


def what_of(action: WorkflowAction) -> dict[str, str]:
    """Return what a request has beside its filter."""
    return {"flow": "a", "version": "2.0", "from_version": "1.0"} if action is WorkflowAction.PIN else {}


@pytest.mark.parametrize("action", WorkflowAction)
async def test_a_dry_run_shows_a_sample_and_only_a_change_is_in_the_audit_log(
    http: Http, flow: WorkflowBench, action: WorkflowAction
) -> None:
    ids = await prepare(flow, action)
    body = {"filter": {"name": "n"}} | what_of(action)
    foreseen = await http("POST", f"{BASE}/{action}", body | {"dry_run": True})
    items = [{"workflow_id": id} for id in ids[:2]]
    expected = {"action": action, "matched": 2, "succeeded": 2, "failed": 0, "items": items}
    shown = foreseen.json()
    assert (foreseen.status_code, shown.pop("dry_run"), bool(shown.pop("as_of")), shown) == (200, True, True, expected)
    assert await flow.service.audit.select(AuditQuery()) == [], "it has changed nothing"
    done = await http("POST", f"{BASE}/{action}", body)
    assert (done.status_code, done.json()) == (200, expected)
    (entry,) = await flow.service.audit.select(AuditQuery())
    assert f'"{action}_workflows"'.encode() in entry.body


@pytest.mark.parametrize("action", WorkflowAction)
async def test_the_client_gets_what_the_service_returns(
    http: Http, flow: WorkflowBench, action: WorkflowAction
) -> None:
    ids = await prepare(flow, action)
    client = HttpClient("http://test")
    connect(client, InMemoryTransport(http.client))
    call, local = getattr(client.workflow_bulk, action), getattr(flow.service.workflow_bulk, action)
    chosen = WorkflowConditions(name="n", params={}, created_after=1)
    what = what_of(action)
    remote, here = await call(chosen, dry_run=True, **what), await local(chosen, dry_run=True, **what)
    assert vars(remote) == vars(here)
    assert [id for id, _ in (await call(chosen, **what)).items] == ids[:2]
    assert (await call(chosen, **what)).succeeded == 0


async def test_the_client_gets_the_reasons(http: Http, flow: WorkflowBench) -> None:
    await flow.create(chain(job("a")))
    await flow.take()
    await flow.service.workflows.cancel(flow.id)
    client = HttpClient("http://test")
    connect(client, InMemoryTransport(http.client))
    swept = await client.workflow_bulk.retry(WorkflowConditions(states=("cancelled",)))
    ((id, refusal),) = swept.items
    assert id == flow.id
    assert isinstance(refusal, Conflict)
    assert "still has active jobs" in refusal.message


async def test_a_request_with_the_same_key_gets_the_first_answer(http: Http, flow: WorkflowBench) -> None:
    await prepare(flow, WorkflowAction.RETRY)
    body = {"filter": {"name": "n"}, "idempotency_key": "k"}
    first = await http("POST", f"{BASE}/retry", body)
    await flow.work("a")
    assert (await http("POST", f"{BASE}/retry", body)).json() == first.json()
    assert await flow.work() == [], "nothing runs again"
    assert (await http("POST", f"{BASE}/retry", body | {"idempotency_key": "l"})).json()["succeeded"] == 2


@pytest.mark.parametrize(
    ("action", "body", "field"),
    [
        ("cancel", {}, "filter"),
        ("cancel", {"filter": {}}, "filter"),
        ("cancel", {"filter": {"nam": "n"}}, "nam"),
        ("cancel", {"filter": {"state": "completed"}}, "state"),
        ("retry", {"filter": {"name": "n"}, "stop_activ": True}, None),
        ("hold", {"filter": {"held": True}}, "held"),
    ],
)
async def test_a_wrong_request_is_refused(http: Http, action: str, body: dict[str, object], field: str | None) -> None:
    answer = await http("POST", f"{BASE}/{action}", body)
    if field is None:
        return
    assert answer.status_code == 400
    assert field in answer.text


async def test_lists_select_by_several_states_age_and_whether_they_are_held(http: Http, flow: WorkflowBench) -> None:
    first = (await flow.create(chain(job("a")))).id
    await flow.work()
    flow.clock.advance(10)
    second = (await flow.create(chain(job("a")))).id
    await flow.service.workflows.hold(second)
    between = (await flow.look()).created_at

    async def listed(**query: str) -> list[str]:
        answer = await http("GET", BASE, params=query)
        assert answer.status_code == 200, answer.text
        return [workflow["id"] for workflow in answer.json()["workflows"]]

    assert await listed(state="completed,running") == [second, first]
    assert await listed(held="true") == [second]
    assert await listed(held="false") == [first]
    assert await listed(created_before=between) == [first]
    assert await listed(finished_before=between) == [first]
    for wrong in ({"held": "yes"}, {"state": "completed,gone"}, {"created_after": "soon"}):
        assert (await http("GET", BASE, params=wrong)).status_code == 400
