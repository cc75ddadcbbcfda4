"""What goes wrong while somebody looks: double clicks, wrong clocks, deleted jobs, refusals, and names that mislead."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.browser import needs_browser
from tests.conftest import Bench
from tests.dashboard.conftest import BUILT
from tests.dashboard.test_pages import open_page

if TYPE_CHECKING:
    from playwright.async_api import Page

pytestmark = [pytest.mark.anyio, pytest.mark.slow, needs_browser, BUILT]


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
