"""Many windows of one browser."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.browser import needs_browser
from tests.conftest import Bench
from tests.dashboard.conftest import BUILT
from tests.dashboard.test_pages import open_page

if TYPE_CHECKING:
    from playwright.async_api import Browser

pytestmark = [pytest.mark.anyio, pytest.mark.slow, needs_browser, BUILT]


async def test_eight_windows_share_one_connection_and_each_is_live(
    bench: Bench, server: str, chromium: Browser
) -> None:
    """A browser opens six connections to a server at most."""
    context = await chromium.new_context()
    windows = [await context.new_page() for _ in range(8)]
    for window in windows:
        await window.add_init_script("Object.defineProperty(document, 'hidden', {get: () => false})")
        await open_page(window, server, "jobs")
        await window.get_by_text("Live", exact=True).wait_for()
    await bench.push("for.all")
    for window in windows:
        await window.get_by_role("link", name="for.all").wait_for()
    await windows[0].close()
    await bench.push("for.others")
    for window in windows[1:]:
        await window.get_by_role("link", name="for.others").wait_for()
    await context.close()
