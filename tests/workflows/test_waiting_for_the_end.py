"""Whoever waits for the end of a workflow is woken by its end, not by each of its steps."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from ojster.storage.transaction import Transaction
from ojster.workflows.read import views
from ojster.workflows.read.info import WorkflowInfo
from tests.waiting import LONG_WAIT
from tests.workflows.bench import WorkflowBench

pytestmark = pytest.mark.anyio

CHAIN = {"type": "chain", "steps": [{"type": f"s{number}", "args": []} for number in range(10)]}


@pytest.mark.needs("notifications")
async def test_the_steps_wake_nobody_who_waits_for_the_end(
    flow: WorkflowBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = 0
    show = views.show_workflows

    def counted(tx: Transaction, requests: Sequence[views.WorkflowRequest]) -> list[WorkflowInfo | None]:
        nonlocal reads
        reads += 1
        return show(tx, requests)

    monkeypatch.setattr(views, "show_workflows", counted)
    await flow.create(CHAIN)
    reads = 0
    waiting = asyncio.create_task(flow.service.workflows.show(flow.id, wait=LONG_WAIT, steps=False))
    while not reads:
        await asyncio.sleep(0)
    await flow.work()
    assert (await waiting).state == "completed"
    assert reads <= 3, "once before the wait, once after it, and once if the news of its creation come late"


async def test_a_change_wakes_whoever_waits_for_the_next_version(flow: WorkflowBench) -> None:
    info = await flow.create(CHAIN)
    waiting = asyncio.create_task(
        flow.service.workflows.show(flow.id, wait=LONG_WAIT, version=info.version, steps=False)
    )
    await flow.take()
    assert (await waiting).version > info.version


async def test_a_cancelled_workflow_wakes_whoever_waits_for_its_end(flow: WorkflowBench) -> None:
    await flow.create(CHAIN)
    waiting = asyncio.create_task(flow.service.workflows.show(flow.id, wait=LONG_WAIT, steps=False))
    await asyncio.sleep(0)
    await flow.service.workflows.cancel(flow.id)
    assert (await waiting).state == "cancelled"
