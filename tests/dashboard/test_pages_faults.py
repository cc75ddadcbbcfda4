"""Every tab and dialog, in light and dark: axe-core finds no rule of WCAG 2.2 AA that one breaks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from ojster.core.access import Grant, Role
from ojster.events import webhooks
from ojster.events.subscription import Subscription
from tests.browser import needs_browser
from tests.conftest import Bench
from tests.dashboard import data
from tests.dashboard.conftest import BUILT, Watched
from tests.dashboard.test_pages import PAGES, faults, is_loaded, open_page

if TYPE_CHECKING:
    from playwright.async_api import Page

pytestmark = [pytest.mark.anyio, pytest.mark.slow, needs_browser, BUILT]

DIALOGS = [
    ("jobs", "", "New job"),
    ("jobs", "", "Find"),
    ("jobs/{done}", "", "Run with other arguments"),
    ("workflows", "", "Start a workflow"),
    ("workflows/{release}", "", "Cancel"),
    ("workflows/{release}", "", "approve"),
    ("workflows/{expense}", "", "Answer"),
    ("workflows/{flow}", "", "Send approval"),
    ("errors", "", "Delete"),
    ("queues/mail", "", "Empty"),
    ("schedules", "", "New schedule"),
    ("schedules", "", "Show runs of nightly"),
    ("schedules", "", "Edit schedule nightly"),
    ("events", "Webhooks", "New webhook"),
    ("admin", "Workspaces", "Change limit of acme"),
    ("admin", "Tokens", "New token"),
    ("admin", "Tokens", "Revoke token reader"),
]
"""Pages, tabs, and buttons that open dialogs there."""

SCHEMES = pytest.mark.parametrize("scheme", ["light", "dark"])


@SCHEMES
async def test_each_tab_shows_itself_without_a_fault(
    bench: Bench, server: str, watched: Watched, page: Page, scheme: Any
) -> None:
    watched.expected = ("Failed to load resource: the server responded with a status of 404",)  # there is no checkpoint
    ids = await filled(bench)
    await page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
    found: dict[str, list[str]] = {}
    seen = 0
    for path, title in PAGES.items():
        await open_page(page, server, path.format(**ids), title)
        names = [await tab.inner_text() for tab in await page.get_by_role("tab").all()]
        for name in names:
            await page.get_by_role("tab", name=name, exact=True).click()
            await is_loaded(page)
            found[f"{path}: {name}"] = await faults(page)
            seen += 1
    assert {place: some for place, some in found.items() if some} == {}
    assert seen > 30


@SCHEMES
async def test_each_dialog_shows_itself_without_a_fault(bench: Bench, server: str, page: Page, scheme: Any) -> None:
    ids = await filled(bench)
    await page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
    found: dict[str, list[str]] = {}
    for path, tab, button in DIALOGS:
        await open_page(page, server, path.format(**ids))
        if tab:
            await page.get_by_role("tab", name=tab).click()
        await page.get_by_role("button", name=button).first.click()
        await page.locator("dialog[open]").wait_for()
        await is_loaded(page)
        found[f"{path}: {button}"] = await faults(page)
    assert {place: some for place, some in found.items() if some} == {}


async def filled(bench: Bench) -> dict[str, str]:
    """Fill a server with everything that tabs show; return ids by name."""
    ids = await data.everything(bench)
    hook = Subscription("sub_1", "http://127.0.0.1:1/hook", ("job.enqueued",), "secret", bench.clock.now)
    await bench.service.scope.do(webhooks.subscribe, hook)
    await bench.push(queue="mail", meta={"tenant_id": "acme"})
    await bench.service.tokens.create("reader", [Grant(Role.VIEWER)])
    return ids
