"""The beginning of a workflow's id stands for the workflow, if no other id begins so."""

from __future__ import annotations

import pytest

from ojster.core.errors import Conflict, NotFound
from ojster.jobs.scope import Caller
from tests.conftest import Http
from tests.workflows.bench import WorkflowBench, chain, job

pytestmark = pytest.mark.anyio

FIRST = "019a0000-0000-7000-8000-00000000000a"
SECOND = "019a0000-0000-7000-8000-00000000000b"


async def make(flow: WorkflowBench, id: str, tenant: str | None = None) -> None:
    """Create a workflow with an id."""
    caller = flow.service if tenant is None else flow.service.as_(Caller(tenant))
    flow.service, own = caller, flow.service
    await flow.create(chain(job("a"), id=id))
    flow.service = own


async def test_a_workflow_is_found_by_the_beginning_of_its_id(flow: WorkflowBench) -> None:
    await make(flow, FIRST)
    for start in ("019a00", "019a0000-", FIRST[:-1], FIRST):
        assert (await flow.service.workflows.show(start)).id == FIRST
    await make(flow, SECOND)
    with pytest.raises(Conflict, match="Give more characters"):
        await flow.service.workflows.show("019a0000")


async def test_a_whole_id_goes_before_the_beginning_of_another(flow: WorkflowBench) -> None:
    await make(flow, FIRST)
    await make(flow, "019a00")
    assert (await flow.service.workflows.show("019a00")).id == "019a00"
    assert (await flow.service.workflows.show("019a000")).id == FIRST


@pytest.mark.parametrize("start", ["019a0", "019c00", "019A00", "019a00g", "%"])
async def test_what_is_the_beginning_of_no_id_is_not_found(flow: WorkflowBench, start: str) -> None:
    await make(flow, FIRST)
    with pytest.raises(NotFound):
        await flow.service.workflows.show(start)


async def test_a_tenant_finds_its_own_workflows_alone(flow: WorkflowBench) -> None:
    await make(flow, FIRST, "acme")
    await make(flow, SECOND, "other")
    assert (await flow.service.as_(Caller("acme")).workflows.show("019a0000")).id == FIRST
    with pytest.raises(NotFound):
        await flow.service.as_(Caller("third")).workflows.show("019a0000")


async def test_a_server_shows_a_workflow_by_the_beginning_of_its_id(flow: WorkflowBench, http: Http) -> None:
    await make(flow, FIRST)
    assert (await http("GET", "/ojs/v1/workflows/019a0000")).json()["workflow"]["id"] == FIRST
    await make(flow, SECOND)
    assert (await http("GET", "/ojs/v1/workflows/019a0000")).status_code == 409
