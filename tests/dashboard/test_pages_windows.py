"""Many windows of one browser."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.browser import needs_browser
from tests.conftest import Bench
from tests.dashboard.conftest import BUILT
from tests.dashboard.test_pages import open_page

if TYPE_CHECKING:
    from playwright.async_api import Browser, Request, Response

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


async def test_open_pages_share_answers_and_miss_nothing_and_each_sees_its_own_change_at_once(
    bench: Bench, server: str, chromium: Browser
) -> None:
    await bench.push("first", queue="mail")
    contexts = [await chromium.new_context() for _ in range(4)]
    pages = [await context.new_page() for context in contexts]
    shared: list[str] = []
    for page in pages:
        page.on("response", lambda answer: note_age(answer, shared))
        await page.add_init_script("Object.defineProperty(document, 'hidden', {get: () => false})")
        await open_page(page, server, "jobs")
        await page.get_by_text("Live", exact=True).wait_for()
    for number in range(5):
        await bench.push(f"job.n{number}", queue="mail")
        for page in pages:
            await page.get_by_role("link", name=f"job.n{number}").wait_for()
    assert shared
    page = pages[0]
    await open_page(page, server, "queues")
    await page.get_by_role("link", name="mail", exact=True).wait_for()
    reads: list[str | None] = []
    page.on("request", lambda request: note_read(request, reads))
    await page.get_by_role("button", name="Pause queue mail").click()
    await page.get_by_role("button", name="Resume queue mail").wait_for()
    after = reads[reads.index(CHANGE) + 1 :]
    assert after
    assert after[0] is None, "it accepts no answer from before its change"
    for context in contexts:
        await context.close()


CHANGE = "the change"


def note_age(answer: Response, shared: list[str]) -> None:
    """Note the address of an answer that another page had got before."""
    if "age" in answer.headers:
        shared.append(answer.url)


def note_read(request: Request, reads: list[str | None]) -> None:
    """Note what a page says of the age of the queues that it asks for, and when it makes its change."""
    if request.method == "POST" and request.url.endswith("/pause"):
        reads.append(CHANGE)
    if request.method == "GET" and "/admin/queues" in request.url:
        reads.append(request.headers.get("cache-control"))
