"""What goes wrong while somebody looks: double clicks, wrong clocks, deleted jobs, refusals, and names that mislead."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import httpx
import pytest

from ojster.core.durations import SECOND
from tests.browser import needs_browser
from tests.conftest import Bench
from tests.dashboard import data
from tests.dashboard.conftest import BUILT, Watched
from tests.dashboard.test_pages import is_loaded, open_page

if TYPE_CHECKING:
    from playwright.async_api import Page

pytestmark = [pytest.mark.anyio, pytest.mark.slow, needs_browser, BUILT]

HASTY = "{ const wait = setInterval; window.setInterval = (act, ms) => wait(act, ms === 10_000 ? 100 : ms); }"
"""Lets what a page does every ten seconds come ten times a second."""

NOT_FOUND = "Failed to load resource: the server responded with a status of 404"


async def test_the_second_click_of_a_double_click_does_not_undo_the_first(
    bench: Bench, server: str, page: Page
) -> None:
    await bench.push(queue="mail")
    await open_page(page, server, "queues/mail")
    button = page.get_by_role("button", name="Pause queue")
    await button.hover()
    place = await button.bounding_box()
    assert place is not None
    x, y = place["x"] + 5, place["y"] + 5
    await page.mouse.click(x, y)
    await page.get_by_role("button", name="Resume queue").wait_for()
    await page.mouse.down(click_count=2)
    await page.mouse.up(click_count=2)
    await page.get_by_role("button", name="Undo").wait_for()
    await open_page(page, server, "queues/mail")
    await page.get_by_role("button", name="Resume queue").wait_for()
    assert await page.get_by_role("button", name="Pause queue").count() == 0


async def test_an_id_is_copied_where_the_browser_has_no_clipboard(bench: Bench, server: str, page: Page) -> None:
    """As on http at another address than this machine's."""
    job = await bench.push()
    await page.add_init_script(
        "Object.defineProperty(navigator, 'clipboard', {value: undefined});"
        "document.addEventListener('copy', () => window.copied = document.activeElement.value)"
    )
    await open_page(page, server, f"jobs/{job.id}")
    button = page.get_by_role("button", name="Copy the id")
    await button.click()
    await page.get_by_text("Copied", exact=True).wait_for()
    assert await page.evaluate("window.copied") == job.id
    assert await button.evaluate("one => one === document.activeElement")


@pytest.mark.parametrize("minutes", [30, -30])
async def test_a_browser_whose_clock_is_wrong_shows_ages_by_the_clock_of_the_server(
    bench: Bench, server: str, page: Page, minutes: int
) -> None:
    await bench.push("fresh")
    await page.clock.install(time=bench.clock.now / SECOND + 60 * minutes)
    await page.goto(f"{server}/dashboard/jobs?since=900")
    table = page.get_by_role("table", name="Jobs")
    await table.get_by_role("link", name="fresh").wait_for()
    assert re.search(r"\d min|\d h", await table.inner_text()) is None


async def test_a_job_that_is_not_there_has_a_page_that_says_so_and_one_that_was_deleted_is_no_longer_shown(
    bench: Bench, server: str, watched: Watched, page: Page
) -> None:
    watched.expected = (NOT_FOUND,)
    job = await bench.push("soon.gone", queue="quick")
    await bench.ack(await bench.fetch_one("quick"))
    await open_page(page, server, f"jobs/{job.id}", "soon.gone")
    async with httpx.AsyncClient(base_url=server) as elsewhere:
        await elsewhere.post("/ojs/v1/jobs/bulk/delete", json={"job_ids": [job.id]})
    await page.get_by_role("button", name="Delete job").click()
    watched.expected = (NOT_FOUND, "Failed to load resource: the server responded with a status of 422")
    await page.get_by_role("button", name="Delete this job").click()
    said = page.get_by_role("status").get_by_text(f"There is no job {job.id}.")
    await said.wait_for()
    await page.get_by_role("heading", level=1, name="Job", exact=True).wait_for()
    assert await page.title() == "Job · Ojster"
    assert await page.get_by_role("button", name="Delete job").count() == 0
    await page.get_by_role("button", name="Close the message").click()
    await said.wait_for(state="detached")


async def test_a_form_that_cannot_be_read_says_so_in_the_dialog_that_was_asked_for(
    bench: Bench, server: str, watched: Watched, page: Page
) -> None:
    watched.expected = ("Failed to load resource",)
    id = await data.expense(bench)
    await open_page(page, server, f"workflows/{id}")
    await page.route("**/ojs/v1/jobs/*", lambda route: route.abort())
    await page.get_by_role("button", name="Answer step").click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_role("alert").get_by_text("The server does not answer").wait_for()
    await dialog.get_by_role("button", name="Close form").click()
    await dialog.wait_for(state="detached")


async def test_pages_of_a_list_are_turned_by_keyboard_without_looking_for_the_button_again(
    bench: Bench, server: str, page: Page
) -> None:
    for number in range(120):
        await bench.push("one.of.many", number)
    await open_page(page, server, "jobs?type=one.of.many")
    await page.get_by_role("button", name="Older").focus()
    for _ in range(2):
        before = page.url
        await page.keyboard.press("Enter")
        await page.wait_for_function("before => location.href !== before", arg=before)
        await is_loaded(page)
    newer = page.get_by_role("button", name="Newer")
    assert await page.get_by_role("button", name="Older").is_disabled()
    assert await newer.evaluate("one => one === document.activeElement")


async def test_the_type_of_an_error_a_tag_and_a_message_turn_nothing_around_them(
    bench: Bench, server: str, page: Page
) -> None:
    await bench.push("plain.type", queue="bad", tags=["vip\u202e"], retry={"max_attempts": 1})
    job = await bench.fail(await bench.fetch_one("bad"), type="Wrong\u202e", message="it failed")
    for path in ("errors", f"jobs/{job.id}", "jobs?error_type=Wrong\u202e"):
        await open_page(page, server, path)
        await page.get_by_text("WrongU+202E").first.wait_for()
        raw = await page.evaluate("document.querySelector('main').innerText.includes('\\u202e')")
        assert not raw, path
    await open_page(page, server, f"jobs/{job.id}")
    await page.get_by_text("vipU+202E").wait_for()


async def test_alarms_count_jobs_that_no_worker_can_run_and_come_with_time_alone(
    bench: Bench, server: str, page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ojster.fleet.unrunnable.MAX_EXAMINED", 3)
    monkeypatch.setattr("ojster.insight.attention.MAX_AGE_SECONDS", -1.0)
    for _ in range(5):
        await bench.push(queue="lonely")
    await page.add_init_script(HASTY)
    await open_page(page, server)
    await page.get_by_text("No worker can run at least 3 jobs in the queue lonely").wait_for()
    for _ in range(4):  # more often than after the last change
        await page.wait_for_event("response", lambda answer: answer.url.endswith("/admin/attention"))
    bench.clock.advance(600)  # nothing else happens
    await page.get_by_text("The oldest of 5 jobs in the queue lonely waits too long.").wait_for()
    await bench.push(queue="another")
    alarm = page.get_by_role("listitem").filter(has_text="No worker is there. Jobs wait in 2 queues.")
    await alarm.get_by_role("link", name="Open workers").click()
    await page.get_by_role("table", name="Jobs that no worker can run").get_by_text("≥ 3").wait_for()
