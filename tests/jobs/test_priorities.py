"""Priority adjustment of waiting jobs."""

from __future__ import annotations

import httpx
import pytest

from ojster.core.access import Grant, Role
from ojster.core.errors import Conflict, InvalidRequest, NotFound
from ojster.core.ids import new_id
from ojster.jobs.scope import Caller
from ojster.server.application import Application
from tests.conftest import Bench, Http

pytestmark = pytest.mark.anyio


async def test_s78_the_highest_sum_of_base_and_adjustment_goes_first_then_the_oldest(bench: Bench) -> None:
    old = await bench.push(priority=0)
    base = await bench.push(priority=10)
    both = await bench.push(priority=10)
    raised = await bench.push(priority=0)
    await bench.service.jobs.adjust_priority(both.id, 1)
    await bench.service.jobs.adjust_priority(raised.id, 10)
    jobs = await bench.fetch(count=10)
    assert [job.id for job in jobs] == [both.id, base.id, raised.id, old.id]


async def test_an_adjustment_takes_the_place_of_the_last_one(bench: Bench) -> None:
    job = await bench.push(priority=5)
    assert (await bench.service.jobs.adjust_priority(job.id, 7)).priority == 12
    assert (await bench.service.jobs.adjust_priority(job.id, -3)).priority == 2
    assert (await bench.service.jobs.adjust_priority(job.id, 0)).priority == 5
    assert (await bench.events()).count("job.adjusted") == 3


async def test_a_priority_stays_in_its_bounds(bench: Bench) -> None:
    job = await bench.push(priority=95)
    with pytest.raises(InvalidRequest, match="would be 101"):
        await bench.service.jobs.adjust_priority(job.id, 6)
    assert (await bench.find(job)).priority == 95


async def test_what_is_finished_or_not_there_is_not_adjusted(bench: Bench) -> None:
    job = await bench.push()
    await bench.service.jobs.cancel(job.id)
    with pytest.raises(Conflict):
        await bench.service.jobs.adjust_priority(job.id, 1)
    with pytest.raises(NotFound):
        await bench.service.jobs.adjust_priority(new_id(), 1)
    with pytest.raises(NotFound):
        await bench.service.as_(Caller("beta")).jobs.adjust_priority(job.id, 1)


async def test_s107_only_who_administers_raises_a_priority(bench: Bench) -> None:
    job = await bench.push()
    guarded = Application(bench.service, guarded=True)
    transport = httpx.ASGITransport(app=guarded)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        for role, body, status in (
            (Role.CONTRIBUTOR, {"priority_adjustment": -5}, 200),
            (Role.CONTRIBUTOR, {"priority_adjustment": 5}, 403),
            (Role.VIEWER, {"priority_adjustment": -5}, 403),
            (Role.OWNER, {"priority_adjustment": 5}, 200),
            (Role.CONTRIBUTOR, {"priority": 6}, 403),
            (Role.CONTRIBUTOR, {"priority": -6}, 200),
            (Role.OWNER, {"priority": 101}, 400),
            (Role.OWNER, {}, 400),
            (Role.OWNER, {"priority": 5, "priority_adjustment": 5}, 400),
            (Role.OWNER, {"priority": 5}, 200),
            (Role.OWNER, {"priority_adjustment": 5, "queue": "x"}, 400),
        ):
            _, token = await bench.service.tokens.create("a", [Grant(role)])
            headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
            response = await client.patch(f"/ojs/v1/jobs/{job.id}", json=body, headers=headers)
            assert response.status_code == status, response.text
    assert (await bench.find(job)).priority == 5
    await guarded.deliverer.stop()


async def test_a_waiting_job_gets_a_given_priority(http: Http, bench: Bench) -> None:
    first, second = await bench.push(priority=3), await bench.push(priority=3)
    answer = await http("PATCH", f"/ojs/v1/jobs/{second.id}", {"priority": 9})
    assert answer.json() | {"id": second.id, "priority": 9, "previous_priority": 3} == answer.json()
    assert answer.json()["job"]["priority"] == 9
    job = await bench.fetch_one()
    assert job.id == second.id
    refused = await http("PATCH", f"/ojs/v1/jobs/{second.id}", {"priority": 1})
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "conflict")
    assert (await bench.find(first)).priority == 3
