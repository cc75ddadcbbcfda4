"""Forks on the pages of workflows: what runs again is shown before, the input can be changed, both name each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.browser import needs_browser
from tests.conftest import Bench
from tests.dashboard import data
from tests.dashboard.conftest import BUILT
from tests.dashboard.test_pages import faults, open_page

if TYPE_CHECKING:
    from playwright.async_api import Page

pytestmark = [pytest.mark.anyio, pytest.mark.slow, needs_browser, BUILT]


async def test_a_workflow_is_forked_from_a_step_with_other_arguments(bench: Bench, server: str, page: Page) -> None:
    steps = [{"type": f"do.{id}", "id": id, "args": [id, 1]} for id in ("load", "charge", "tell")]
    id = await data.create(bench, {"type": "chain", "name": "Order 7", "steps": steps})
    await open_page(page, server, f"workflows/{id}")
    await page.get_by_role("button", name="Cancel").wait_for()
    assert not await page.get_by_role("button", name="Fork workflow").count(), "it has not finished"
    for _ in steps:
        await bench.ack(await bench.fetch_one())
    await page.get_by_role("button", name="Fork workflow").wait_for()
    await page.get_by_role("tab", name="Steps").click()
    await page.get_by_role("table", name="Steps").get_by_role("button", name="charge").click()
    await page.get_by_role("button", name="Fork from this step").click()
    dialog = page.get_by_role("dialog", name="Fork Order 7 from charge")
    await dialog.get_by_text("2 steps run again, with their effects. 1 step keep").wait_for()
    assert await dialog.get_by_role("list", name="Steps that run again").inner_text() == "charge\ntell"
    assert await faults(page) == []
    await dialog.get_by_label("Input of the step").select_option("Other arguments")
    text = dialog.get_by_label("Arguments, as a JSON list")
    assert "charge" in await text.input_value(), "those that it had"
    await text.fill('{"no": "list"}')
    await dialog.get_by_role("button", name="Fork workflow").click()
    await dialog.get_by_role("alert").get_by_text("no JSON list").wait_for()
    await text.fill('["charge", 1234567890123456789]')
    await dialog.get_by_role("button", name="Fork workflow").dblclick()
    await page.get_by_text("The workflow runs again as a new one.").wait_for()
    await page.get_by_text("at charge").wait_for()
    assert len((await bench.service.workflows.show(id)).forks) == 1, "a double click forks once"
    job = await bench.fetch_one()
    assert (job.type, job.args) == ("do.charge", ["charge", 1234567890123456789]), "no browser rounds it"
    await page.get_by_role("list", name="Forks").get_by_role("link").click()
    await page.get_by_text("Forked as").wait_for()
    assert page.url.endswith(id)
    assert await faults(page) == []


async def test_a_flow_is_forked_from_what_it_asked_for_and_gets_a_result(bench: Bench, server: str, page: Page) -> None:
    id = await data.flow(bench)
    await open_page(page, server, f"workflows/{id}")
    await page.get_by_role("tab", name="Steps").click()
    await page.get_by_role("table", name="Steps").get_by_role("button", name="approval").click()
    await page.get_by_role("button", name="Fork from this step").click()
    dialog = page.get_by_role("dialog", name="Fork Order 7 from approval")
    await dialog.get_by_text("were asked for since").wait_for()
    await dialog.get_by_label("Input of the step").select_option("It does not run, and has this result")
    await dialog.get_by_label("Result, as JSON").fill('{"ok": true}')
    await dialog.get_by_role("button", name="Fork workflow").click()
    await page.get_by_text("at approval").wait_for()
    (fork,) = (await bench.service.workflows.show(id)).forks
    assert page.url.endswith(fork)
