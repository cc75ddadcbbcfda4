"""Actions on many jobs and workflows: how far they are, and how they are stopped."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from ojster.fleet.workers import Heartbeat
from ojster.jobs import sweeps
from tests.browser import needs_browser
from tests.conftest import Bench
from tests.dashboard import data
from tests.dashboard.conftest import BUILT, Watched
from tests.dashboard.test_pages import faults, live, open_page

if TYPE_CHECKING:
    from playwright.async_api import Page, Route

pytestmark = [pytest.mark.anyio, pytest.mark.slow, needs_browser, BUILT]


async def test_a_long_action_shows_how_far_it_is_and_stops_between_two_parts(
    bench: Bench, server: str, page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweeps, "PART_ROWS", 20)
    for number in range(60):
        await bench.push("mail.send", number)
    parts, may_answer = 0, asyncio.Event()

    async def slow(route: Route) -> None:
        nonlocal parts
        parts += not (route.request.post_data_json or {}).get("dry_run")
        if parts == 2:
            await may_answer.wait()
        await route.continue_()

    await page.route("**/jobs/bulk/cancel", slow)
    await open_page(page, server, "jobs?type=mail.send")
    await page.get_by_role("button", name="Pick these 50").click()
    await page.get_by_role("button", name="Pick all 60 that match").click()
    await page.get_by_role("button", name="Cancel matching jobs").click()
    await page.get_by_role("dialog").get_by_role("button", name="Cancel 60 jobs").click()
    await page.get_by_text("Cancel 60 jobs: 20 of 60").wait_for()
    assert await faults(page) == []
    await page.get_by_role("button", name="Stop here").click()
    await page.get_by_role("button", name="Stopping…").wait_for()
    may_answer.set()
    await page.get_by_text("40 jobs cancelled. Stopped: the others stay as they are.").wait_for()
    assert await live(bench, "default") == {"available": 20, "cancelled": 40}


async def test_jobs_that_are_picked_after_all_that_match_are_the_only_ones_changed(
    bench: Bench, server: str, page: Page
) -> None:
    for number in range(60):
        await bench.push("mail.send", number)
    await open_page(page, server, "jobs?type=mail.send")
    pick_these = page.get_by_role("button", name="Pick these 50")
    pick_all = page.get_by_role("button", name="Pick all 60 that match")
    await pick_these.click()
    await pick_all.click()
    await pick_these.click()
    await page.get_by_text("50 jobs picked").wait_for()
    await pick_all.click()
    await page.get_by_role("button", name="Pick none").click()
    await pick_these.click()
    await page.get_by_role("button", name="Cancel 50 jobs").click()
    await page.get_by_role("dialog").get_by_role("button", name="Cancel 50 jobs").click()
    await page.get_by_text("50 jobs cancelled.").wait_for()
    assert await live(bench, "default") == {"available": 10, "cancelled": 50}


async def test_an_action_on_all_that_match_asks_nothing_if_none_can_be_changed(
    bench: Bench, server: str, page: Page
) -> None:
    for number in range(60):
        await bench.push("mail.send", number)
    await bench.push("mail.send", queue="runs")
    await bench.fetch("runs")
    await open_page(page, server, "jobs?type=mail.send")
    await page.get_by_role("button", name="Pick these 50").click()
    await page.get_by_role("button", name="Pick all 61 that match").click()
    await page.get_by_role("button", name="Retry matching jobs").click()
    await page.get_by_text("No job that matches can be retried, in its state.").wait_for()
    assert await page.get_by_role("dialog").count() == 0


async def test_all_that_match_and_run_are_asked_to_stop(bench: Bench, server: str, page: Page) -> None:
    for number in range(60):
        await bench.push("mail.send", number)
    running = await bench.fetch("default", count=60, worker_id="w1")
    await open_page(page, server, "jobs?state=active")
    await page.get_by_role("button", name="Pick these 50").click()
    await page.get_by_role("button", name="Pick all 60 that match").click()
    await page.get_by_role("button", name="Cancel matching jobs").click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_text("60 match and run: their workers are asked to stop them.").wait_for()
    await dialog.get_by_role("button", name="Cancel 60 jobs").click()
    await page.get_by_text("0 jobs cancelled. 60 that run are asked to stop.").wait_for()
    pulse = await bench.service.fleet.beat(Heartbeat("w1", tuple(job.id for job in running)))
    assert len(pulse.cancelled) == 60


async def test_picked_workflows_are_changed_as_many_as_the_button_says(bench: Bench, server: str, page: Page) -> None:
    steps = [{"type": "do", "args": []}]
    ids = [await data.create(bench, {"type": "chain", "name": "Import", "steps": steps}) for _ in range(55)]
    await bench.service.workflows.cancel(ids[-1])
    await open_page(page, server, "workflows")
    await page.get_by_role("button", name="Pick these 50").click()
    await page.get_by_role("button", name="Cancel 49 workflows").wait_for()
    await page.get_by_role("button", name="Pick all 55 that match").click()
    await page.get_by_role("button", name="Retry 1 workflow").wait_for()
    await page.get_by_role("button", name="Cancel 54 workflows").click()
    assert await faults(page) == []
    await page.get_by_role("dialog").get_by_role("button", name="Cancel 54 workflows").click()
    await page.get_by_text("54 workflows cancelled.").wait_for()
    assert {(await bench.service.workflows.show(id, steps=False)).state for id in ids} == {"cancelled"}
    await page.get_by_role("checkbox").first.check()
    await page.get_by_role("button", name="Retry 1 workflow").click()
    await page.get_by_role("dialog").get_by_role("button", name="Retry 1 workflow").click()
    await page.get_by_text("1 workflow retried.").wait_for()
    assert (await bench.service.workflows.show(ids[-1])).state == "running"


async def test_picked_workflows_stay_picked_if_the_server_refuses_the_caller_and_show_their_present_state(
    bench: Bench, server: str, page: Page, watched: Watched
) -> None:
    steps = [{"type": "do", "args": []}]
    ids = [await data.create(bench, {"type": "chain", "name": "Import", "steps": steps}) for _ in range(7)]
    calls = 0

    async def refuse(route: Route) -> None:
        nonlocal calls
        calls += 1
        await route.fulfill(status=403, json={"error": {"code": "forbidden", "message": "Not you."}})

    watched.expected = ("Failed to load resource",)
    await page.route("**/workflows/*/cancel", refuse)
    await open_page(page, server, "workflows")
    await page.get_by_role("button", name="Pick these 7").click()
    await page.get_by_role("button", name="Cancel 7 workflows").click()
    await page.get_by_role("dialog").get_by_role("button", name="Cancel 7 workflows").click()
    await page.get_by_text("0 workflows cancelled. 5 could not be: Not you. Stopped: the others stay").wait_for()
    assert calls == 5, "those after a refusal of the caller are not tried"
    await page.get_by_text("7 workflows picked").wait_for()
    await bench.service.workflows.cancel(ids[0])
    await page.get_by_role("button", name="Cancel 6 workflows").wait_for()
    await page.get_by_role("button", name="Retry 1 workflow").wait_for()
    await page.get_by_role("button", name="Completed").click()
    await page.get_by_text("7 workflows picked").wait_for(state="detached")
    await page.go_back()
    await page.get_by_role("button", name="Pick these 7").wait_for()
    assert not await page.get_by_text("picked").count()


async def test_an_error_whose_name_has_a_comma_selects_its_own_jobs_alone(
    bench: Bench, server: str, page: Page
) -> None:
    for error in ("Net", "Net,Disk"):
        await bench.push("load", retry={"max_attempts": 1})
        await bench.fail(await bench.fetch_one(), error, message="broken")
    await open_page(page, server, "errors")
    row = page.get_by_role("table", name="Errors").get_by_role("row").filter(has_text="Net,Disk")
    await row.get_by_role("button", name="Retry 1 job").click()
    await page.get_by_role("dialog").get_by_role("button", name="Retry 1 job").click()
    await page.get_by_text("1 job retried.").wait_for()
    assert await live(bench, "default") == {"available": 1, "discarded": 1}
