"""kill -9 of the server during a thousand workflows: all of them complete after it restarts."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ojster.api.app import App
from ojster.client.client import HttpClient
from ojster.core.errors import OjsterError
from ojster.core.json_objects import read_members
from ojster.workflows.read.info import StepInfo, WorkflowInfo
from ojster.workflows.read.selection import WorkflowFilter
from tests.chaos.fleet import OPTIONS, Fleet

pytestmark = [pytest.mark.anyio, pytest.mark.thorough, pytest.mark.timeout(240)]

COUNT = 1000
TIMEOUT_SECONDS = 120.0


@pytest.fixture
def fleet(tmp_path: Path, shared_url: str) -> Iterator[Fleet]:
    made = Fleet(tmp_path, shared_url)
    yield made
    made.stop()


def work(number: int, **more: Any) -> dict[str, Any]:
    return {"type": "work", "args": [number]} | more


def wire(number: int) -> dict[str, Any]:
    match number % 4:
        case 0:
            made: dict[str, Any] = {"type": "chain", "steps": [work(1), work(2), work(3)]}
        case 1:
            made = {"type": "batch", "jobs": [work(1), work(2)], "callbacks": {"on_complete": work(3)}}
        case 2:
            diamond = [("a", []), ("b", ["a"]), ("c", ["a"]), ("d", ["b", "c"])]
            made = {"type": "graph", "steps": [work(1, id=id, depends_on=before) for id, before in diamond]}
        case _:
            inner = {"type": "map", "over": [1, 2], "do": work(1)}
            made = {"type": "saga", "steps": [work(1, compensate=work(-1)), inner, work(2)]}
    return made | {"options": msgspec.Raw(OPTIONS.to_wire()), "name": f"w{number}"}


def jobs_of(info: WorkflowInfo | StepInfo) -> list[StepInfo]:
    found: list[StepInfo] = []
    for step in info.children:
        found += jobs_of(step) if step.children else [step]
    return found


async def test_a_thousand_workflows_end_although_the_server_is_killed(fleet: Fleet) -> None:
    app = App(fleet.database, migrate=True)
    await app.client().workflows.select(WorkflowFilter())
    fleet.server("server")
    fleet.worker("one", "server")
    fleet.worker("two", "server")
    client = HttpClient(fleet.url_of("server"), patience=30)
    creating = [asyncio.create_task(_create(client, numbers)) for numbers in (range(0, COUNT, 2), range(1, COUNT, 2))]
    for pause in (2.0, 1.0, 1.5):
        await asyncio.sleep(pause)
        await asyncio.to_thread(fleet.kill, "server")
        await asyncio.sleep(0.2)
        fleet.revive("server")
    ids = [id for created in await asyncio.gather(*creating) for id in created]
    assert len(ids) == COUNT
    deadline = time.monotonic() + TIMEOUT_SECONDS
    unfinished = set(ids)
    while unfinished and time.monotonic() < deadline:
        await asyncio.sleep(0.5)
        page = await app.client().workflows.select(WorkflowFilter(states=("running",), limit=200))
        unfinished = {info.id for info in page.workflows}
    assert not unfinished, fleet.logs()
    states: Counter[str] = Counter()
    for id in ids:
        info = await app.client().workflows.show(id)
        states[info.state] += 1
        assert {step.state for step in jobs_of(info)} <= {"completed", "skipped"}, info
    assert states == {"completed": COUNT}
    await client.close()
    await app.aclose()
    assert fleet.kills == 3


async def _create(client: HttpClient, numbers: range) -> list[str]:
    ids = []
    for number in numbers:
        for attempt in range(3):
            try:
                info = await client.workflows.create(read_members(msgspec.json.encode(wire(number))))
                break
            except OjsterError:
                if attempt == 2:
                    raise
        ids.append(info.id)
    return ids
