"""Finding jobs on the page: conditions with several values, orders, views, parts of ids, and the address of it all."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlsplit

import msgspec
import pytest

from ojster.core.json_objects import read_members
from ojster.jobs import pages
from ojster.schedules.cron import Cron
from tests.browser import needs_browser
from tests.conftest import Bench
from tests.dashboard.conftest import BUILT
from tests.dashboard.test_pages import faults, open_page

if TYPE_CHECKING:
    from playwright.async_api import Page

pytestmark = [pytest.mark.anyio, pytest.mark.slow, needs_browser, BUILT]


def asked(page: Page) -> dict[str, str]:
    return {name: values[0] for name, values in parse_qs(urlsplit(page.url).query).items()}


async def shown(page: Page) -> list[str]:
    return [text.split("\n")[0] for text in await page.locator("td.grow a").all_inner_texts()]


async def test_jobs_are_found_by_what_people_know_of_them(bench: Bench, server: str, page: Page) -> None:
    for number in range(3):
        await bench.push(f"pay.{'abc'[number]}", {"order_id": 40 + number}, tags=["vip", "a,b"], priority=number)
    await bench.push("mail", retry={"max_attempts": 1}, queue="mail")
    await bench.fail(await bench.fetch_one("mail"), "SmtpError", message="Card expired, again")
    await open_page(page, server, "jobs")
    find = page.get_by_role("search").locator("input").first
    by = page.get_by_label("Find by")
    for way, text, expected, name in (
        ("Text of the error", "card EXPIRED,", ["mail"], "error_text"),
        ("Member of arguments", "args.order_id=41", ["pay.b"], "where"),
        ("Tag", "a,b", ["pay.c", "pay.b", "pay.a"], "tag"),
        ("Type or id", "pay.a", ["pay.a"], "type"),
    ):
        await by.select_option(way)
        await find.fill(text)
        await find.press("Enter")
        await page.wait_for_url(re.compile(f"[?&]{name}="))
        await page.get_by_text(f"{len(expected)} job{'s' * (len(expected) != 1)} match").wait_for()
        assert await shown(page) == expected, way
        await page.reload()
        await page.get_by_text(f"{len(expected)} job{'s' * (len(expected) != 1)} match").wait_for()
        assert await shown(page) == expected, way
        await page.locator(".chip").first.click()
        await page.get_by_text("4 jobs match").wait_for()
    types = page.get_by_role("region", name="Type")
    await types.get_by_role("button", name="pay.a").click()
    await page.get_by_text("1 job matches").wait_for()
    await types.get_by_role("button", name="pay.c").click()
    await page.get_by_text("2 jobs match").wait_for()
    assert await types.get_by_role("button", pressed=True).count() == 2
    await page.get_by_label("Order").select_option("Highest priority first")
    await page.wait_for_url(re.compile("sort=priority"))
    await page.get_by_text("2 jobs match").wait_for()
    assert asked(page) == {"type": "pay.a,pay.c", "sort": "priority"}
    await page.get_by_text("Views").click()
    await page.get_by_label("Name of the view").fill("payments")
    await page.get_by_role("button", name="Save this view").click()
    await open_page(page, server, "jobs")
    await page.get_by_text("Views").click()
    await page.get_by_role("link", name="payments").click()
    await page.get_by_text("2 jobs match").wait_for()
    assert asked(page) == {"type": "pay.a,pay.c", "sort": "priority"}
    await page.get_by_role("button", name="Pick these 2").click()
    await page.get_by_role("button", name="Cancel 2 jobs").click()
    await page.get_by_role("dialog").get_by_role("button", name="Cancel 2 jobs").click()
    await page.get_by_text("2 jobs cancelled.").wait_for()
    assert await faults(page) == []


async def test_a_type_that_could_be_a_part_of_an_id_is_found_as_a_type(bench: Bench, server: str, page: Page) -> None:
    for type in ("facade", "facade", "other"):
        await bench.push(type)
    await open_page(page, server, "jobs?internal=true")
    await page.get_by_role("button", name="Pick these 3").click()
    await page.get_by_role("checkbox", name="Pick the job").first.uncheck()
    await page.get_by_text("2 jobs picked").wait_for()
    assert not await page.get_by_role("button", name="Pick all").count(), "deliveries alone are no condition"
    await page.evaluate("localStorage.setItem('ojster-views', '{}')")
    await page.reload()
    await page.get_by_role("region", name="Type").get_by_role("button", name="facade").wait_for()
    await page.get_by_placeholder("Type or job id").fill("facade")
    await page.keyboard.press("Enter")
    await page.get_by_text("2 jobs match").wait_for()
    assert asked(page) == {"internal": "true", "type": "facade"}
    await page.keyboard.press("Control+k")
    await page.get_by_role("combobox", name="Find a page").fill("facade")
    found = page.get_by_role("listbox", name="Found").get_by_role("option")
    await found.filter(has_text="type").wait_for()
    assert await found.all_inner_texts() == ["facade\ntype"]


async def test_the_end_of_an_id_is_found_in_the_list_and_in_the_palette(bench: Bench, server: str, page: Page) -> None:
    job, _ = await bench.push("wanted"), await bench.push("other")
    end = job.id[-12:]
    await open_page(page, server, "jobs")
    await page.get_by_placeholder("Type or job id").fill(end)
    await page.keyboard.press("Enter")
    await page.get_by_text("1 job matches").wait_for()
    assert await shown(page) == ["wanted"]
    await page.keyboard.press("Control+k")
    await page.get_by_role("combobox", name="Find a page").fill(f"…{end}")
    await page.get_by_role("option", name="wanted").wait_for()
    await page.keyboard.press("Enter")
    await page.wait_for_url(f"**/jobs/{job.id}")


async def test_a_list_that_searched_a_part_says_so_and_its_pages_are_in_the_address(
    bench: Bench, server: str, page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "MAX_SEARCHED", 60)
    for number in range(70):
        await bench.push("old" if number < 10 else "new", tags=["x"])
    await open_page(page, server, "jobs?tag=x")
    await page.get_by_text("60 jobs match: searched the newest 60 of this list").wait_for()
    await page.get_by_role("button", name="Older").click()
    await page.wait_for_url(re.compile("page="))
    await page.get_by_role("link", name="old").first.wait_for()
    address = page.url
    await page.reload()
    await page.get_by_role("link", name="old").first.wait_for()
    assert page.url == address
    await page.get_by_role("button", name="Newer").click()
    await page.go_back()
    await page.wait_for_url(address)


async def test_a_list_of_workflows_says_why_they_failed(bench: Bench, server: str, page: Page) -> None:
    step = {"type": "pay", "id": "charge", "args": [], "options": {"retry": {"max_attempts": 1}}}
    body = msgspec.json.encode({"type": "chain", "steps": [step]})
    await bench.service.workflows.create(read_members(body))
    await bench.fail(await bench.fetch_one(), "CardError", message="card expired")
    await open_page(page, server, "workflows?state=failed")
    await page.get_by_text("The step 'charge' failed: CardError: card expired").wait_for()


async def test_all_schedules_are_found_however_many_there_are(bench: Bench, server: str, page: Page) -> None:
    for number in range(101):
        await bench.service.schedules.register(
            Cron(name=f"c{number:03}", expression="0 6 * * *", template=b'{"type":"a","args":[]}')
        )
    await open_page(page, server, "schedules")
    rows = page.get_by_role("table", name="Schedules").locator("tbody tr")
    await page.get_by_text("c099").wait_for()
    assert await rows.count() == 100
    await page.get_by_role("button", name="Next").click()
    await page.get_by_text("c100").wait_for()
    assert await rows.count() == 1
    await page.reload()
    await page.get_by_text("c100").wait_for()
    await page.get_by_role("button", name="Previous").click()
    await page.get_by_text("c099").wait_for()
    assert await faults(page) == []
