"""What a handler logs is on the page of its job while it runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ojster.jobs.job_logs import NewLine, NewLines
from tests.browser import needs_browser
from tests.conftest import Bench
from tests.dashboard.conftest import BUILT
from tests.dashboard.test_pages import faults, open_page

if TYPE_CHECKING:
    from playwright.async_api import Page

pytestmark = [pytest.mark.anyio, pytest.mark.slow, needs_browser, BUILT]


async def test_lines_appear_while_the_handler_runs(bench: Bench, server: str, page: Page) -> None:
    job = await bench.push("order.pay")
    await bench.fetch_one(worker_id="w")
    await open_page(page, server, f"jobs/{job.id}")
    await page.get_by_role("tab", name="Log").click()
    await page.get_by_text("No lines").wait_for()
    lines = [NewLine(bench.clock.now, "warning", "shop", "card <b>declined</b>\nTraceback")]
    await bench.service.jobs.add_to_log(NewLines(job.id, lines, "w", 1, dropped=1_200))
    await page.get_by_text("card <b>declined</b>").wait_for()
    await page.get_by_text("1,200 earlier lines are not kept.").wait_for()
    assert await faults(page) == []
    lines = [NewLine(bench.clock.now, "info", "shop", "tries again")]
    await bench.service.jobs.add_to_log(NewLines(job.id, lines, "w", 1))
    await page.get_by_text("tries again").wait_for()
    assert await page.get_by_text("card <b>declined</b>").count() == 1
