"""What a failed workflow, a step, and a job say of their causes, and what people answered."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ojster.jobs.failure import Failure
from ojster.jobs.messages import FailureReport
from tests.browser import needs_browser
from tests.conftest import Bench
from tests.dashboard import data
from tests.dashboard.conftest import BUILT
from tests.dashboard.test_pages import faults, open_page

if TYPE_CHECKING:
    from playwright.async_api import Page

pytestmark = [pytest.mark.anyio, pytest.mark.slow, needs_browser, BUILT]


async def test_a_failed_workflow_shows_why_first_and_opens_at_the_failed_step(
    bench: Bench, server: str, page: Page
) -> None:
    """Also one in a container that is folded, because it has many steps."""
    rows = [{"type": "row.import", "args": [number], "options": {"queue": "rows"}} for number in range(90)]
    group = {"id": "rows", "type": "group", "jobs": rows}
    steps = [group, data.step("report", "rows"), data.step("tell", "report")]
    id = await data.create(bench, {"type": "graph", "name": "Import", "steps": steps})
    for job in await bench.fetch("rows", count=90):
        if job.args != [77]:
            await bench.ack(job)
            continue
        failure = Failure("BadRow", "row 77 has no price", retryable=False, backtrace=("File shop.py, line 7",))
        await bench.service.jobs.fail([FailureReport(job.id, failure, job.worker_id, job.attempt)])
    await open_page(page, server, f"workflows/{id}")
    why = page.get_by_role("region", name="Why it failed")
    await why.get_by_text("row 77 has no price").wait_for()
    node = page.get_by_role("button", name="rows.77, failed")
    await node.wait_for()
    box, canvas = await node.bounding_box(), await page.locator(".canvas").bounding_box()
    assert box is not None
    assert canvas is not None
    assert canvas["x"] < box["x"] < canvas["x"] + canvas["width"]
    assert canvas["y"] < box["y"] < canvas["y"] + canvas["height"]
    assert await faults(page) == []
    await page.get_by_role("tab", name="Steps").click()
    await page.get_by_role("button", name="tell", exact=True).click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_text("A step before it did not succeed. rows").wait_for()
    assert await faults(page) == []
    await dialog.get_by_role("button", name="Close").click()
    await why.get_by_role("link", name="Job and backtrace").click()
    await page.get_by_text("File shop.py, line 7").wait_for()
