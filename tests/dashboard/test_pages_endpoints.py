"""Push endpoints on the page of the workers: what they are, what troubles them, and who may change them."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import pytest

from ojster.core.access import Grant, Role
from ojster.core.durations import SECOND
from ojster.fleet.workers import Heartbeat
from ojster.jobs.scope import Caller
from ojster.push.endpoints import Trouble
from ojster.service import Service
from tests.browser import needs_browser
from tests.conftest import Bench
from tests.dashboard.conftest import BUILT, Watched
from tests.dashboard.test_pages import faults, is_loaded, open_page
from tests.dashboard.test_pages_workspaces import REFUSED, log_in
from tests.push.functions import put
from tests.serving import serving

if TYPE_CHECKING:
    from playwright.async_api import Locator, Page

pytestmark = [pytest.mark.anyio, pytest.mark.slow, needs_browser, BUILT]

URL = "http://127.0.0.1:1/jobs"


@pytest.fixture
async def server(service: Service) -> AsyncIterator[str]:
    """A server that also calls endpoints on this machine."""
    async with serving(service, trusting=True) as (_, port):
        yield f"http://127.0.0.1:{port}"


def table(page: Page) -> Locator:
    return page.get_by_role("table", name="Push endpoints")


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_an_endpoint_in_trouble_says_why_and_since_when(
    bench: Bench, server: str, page: Page, scheme: Any
) -> None:
    await put(bench.service, URL, "mail", queues=["mail"], job_types=["mail.send"], max_concurrency=4)
    await put(bench.service, URL, "rest")
    await put(bench.service, URL, "gone")
    await bench.push("mail.send", queue="mail")
    await bench.service.fleet.beat(Heartbeat("push_mail", queues=("mail",), active_jobs=("a", "b"), concurrency=4))
    await bench.service.push.note_trouble(Trouble("rest", "answered 429", wish=60 * SECOND))
    await bench.service.push.note_trouble(Trouble("gone", "answered 404", is_final=True))
    await page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
    await open_page(page, server, "workers")
    mail, rest, gone = (table(page).get_by_role("row").filter(has_text=name) for name in ("mail.send", "429", "404"))
    await mail.get_by_text("2 of 4").wait_for()
    assert await mail.get_by_role("link", name="1 job in the queues of mail").inner_text() == "1"
    assert re.search(r"Takes no jobs since .+: answered 429\. It gets one to try ", await rest.inner_text())
    assert "It gets none until you resume it." in await gone.inner_text()
    assert [await row.locator(".state").inner_text() for row in (mail, rest, gone)] == ["on", "suspended", "disabled"]
    assert await faults(page) == []
    await page.set_viewport_size({"width": 390, "height": 800})
    assert await page.evaluate("document.scrollingElement.scrollWidth") <= 390


async def test_an_endpoint_is_made_paused_resumed_and_deleted_on_the_page(
    bench: Bench, server: str, page: Page
) -> None:
    await open_page(page, server, "workers")
    await page.get_by_role("button", name="New endpoint").click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_label("Name").fill("mail")
    await dialog.get_by_label("Address").fill(URL)
    await dialog.get_by_label("Queues").fill("mail, slow")
    await dialog.get_by_label("Deliveries", exact=True).fill("5")
    await dialog.get_by_label("Time of a call", exact=True).fill("2")
    await dialog.get_by_label("Time of a call: unit").select_option("minutes")
    assert await faults(page) == []
    await dialog.get_by_role("button", name="Create endpoint").click()
    await page.get_by_text("Keep this secret").wait_for()
    await page.get_by_role("button", name="I have it").click()
    made = await bench.service.push.find("mail")
    assert (made.endpoint, made.queues, made.job_types) == (URL, ("mail", "slow"), ())
    rate = made.config.rate
    assert rate is not None
    assert (made.config.max_concurrency, made.config.timeout_ms, rate.limit) == (10, 120_000, 5)
    await page.get_by_role("button", name="Pause endpoint mail").click()
    await page.get_by_role("button", name="Resume endpoint mail").click()
    await page.get_by_role("button", name="Pause endpoint mail").wait_for()
    assert (await bench.service.push.find("mail")).state == "active"
    await page.get_by_role("button", name="Delete endpoint mail").click()
    await dialog.get_by_role("button", name="Delete endpoint").click()
    await page.get_by_text("No push endpoints").wait_for()
    assert await bench.service.push.all() == []


async def test_an_edited_endpoint_keeps_its_secret_and_what_the_form_leaves_alone(
    bench: Bench, server: str, page: Page
) -> None:
    await put(bench.service, URL, "mail", queues=["mail"], max_concurrency=4, timeout_ms=1_500)
    (before,) = await bench.service.push.stored()
    await open_page(page, server, "workers")
    await page.get_by_role("button", name="Edit endpoint mail").click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_label("Jobs at once").fill("7")
    await dialog.get_by_role("button", name="Change endpoint").click()
    await page.get_by_text("mail was changed.").wait_for()
    (after,) = await bench.service.push.stored()
    assert (after.concurrency, after.timeout, after.secret) == (7, before.timeout, before.secret)
    await page.get_by_role("button", name="Replace secret of mail").click()
    await dialog.get_by_role("button", name="Create secret").click()
    await page.get_by_text("Keep this secret").wait_for()


async def test_a_new_endpoint_takes_no_name_that_there_is(bench: Bench, server: str, page: Page) -> None:
    await put(bench.service, URL, "mail")
    await open_page(page, server, "workers")
    await page.get_by_role("button", name="New endpoint").click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_label("Name").fill("mail")
    await dialog.get_by_label("Address").fill("http://127.0.0.1:1/other")
    await dialog.get_by_role("button", name="Create endpoint").click()
    await page.get_by_text("There is an endpoint mail already.").wait_for()
    assert (await bench.service.push.find("mail")).endpoint == URL


@pytest.mark.parametrize(("role", "shown"), [(Role.OWNER, ["acmes"]), (Role.CONTRIBUTOR, [])])
async def test_owners_see_the_endpoints_of_their_workspace_and_others_none(
    bench: Bench, watched: Watched, role: Role, shown: list[str]
) -> None:
    watched.expected = REFUSED
    page = watched.page
    await put(bench.service, URL, "everybodys")
    await put(bench.service.as_(Caller("acme")), URL, "acmes")
    _, secret = await bench.service.tokens.create("ada", [Grant(role, "acme")])
    async with serving(bench.service, guarded=True) as (_, port):
        await log_in(page, f"http://127.0.0.1:{port}", secret)
        await page.get_by_role("link", name="Workers", exact=True).first.click()
        await page.get_by_role("heading", level=1, name="Workers").wait_for()
        await is_loaded(page)
        assert await page.get_by_role("table", name="Push endpoints").locator("b").all_inner_texts() == shown
        assert await page.get_by_role("button", name="New endpoint").count() == len(shown)
