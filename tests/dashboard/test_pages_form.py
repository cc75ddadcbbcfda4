"""How pages look: in each language and zone, on a phone, with values that are hard to show."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec
import pytest

from ojster.core.durations import MINUTE, SECOND
from tests.browser import needs_browser
from tests.conftest import Bench
from tests.dashboard import data
from tests.dashboard.conftest import BUILT
from tests.dashboard.test_pages import DRAWN, faults, open_page

if TYPE_CHECKING:
    from playwright.async_api import Browser, Locator, Page

pytestmark = [pytest.mark.anyio, pytest.mark.slow, needs_browser, BUILT]

NEW_YEAR = 1_798_759_800 * SECOND
"""23:30 in UTC on the last day of 2026; the next year in Tokyo."""

LANGUAGES = {
    "en-US": ("Jan 1, 2027, 8:30:00\u202fAM", "Dec 31, 2026, 11:30:00\u202fPM", "3 min 20 s"),
    "de-DE": ("01.01.2027, 08:30:00", "31.12.2026, 23:30:00", "3 Min. 20 Sek."),
    "ar-EG": (  # the digits of Arabic: they look like others
        "٠١\u200f/٠١\u200f/٢٠٢٧، ٨:٣٠:٠٠ ص",  # noqa: RUF001
        "٣١\u200f/١٢\u200f/٢٠٢٦، ١١:٣٠:٠٠ م",  # noqa: RUF001
        "٣ د ٢٠ ث",
    ),
    "ja-JP": ("2027/01/01 8:30:00", "2026/12/31 23:30:00", "3 分 20 秒"),
}


@pytest.mark.parametrize("language", LANGUAGES)
async def test_times_numbers_and_durations_are_in_the_language_of_the_browser_and_the_chosen_zone(
    bench: Bench, server: str, chromium: Browser, language: str
) -> None:
    local, utc, took = LANGUAGES[language]
    bench.clock.now = NEW_YEAR
    job = await bench.push("report.build")
    claimed = await bench.fetch_one()
    bench.clock.advance(200)
    await bench.ack(claimed)
    page = await chromium.new_page(locale=language, timezone_id="Asia/Tokyo", viewport={"width": 1000, "height": 900})
    await open_page(page, server, f"jobs/{job.id}")
    await page.get_by_role("tab", name="History").click()
    log = page.locator(".log")
    await log.get_by_text(local, exact=True).first.wait_for()
    assert took in await page.inner_text("main")
    places = [
        [await part.bounding_box() for part in await row.locator(":scope > span").all()]
        for row in await log.locator("li").all()
    ]
    assert all(time and what and time["x"] + time["width"] < what["x"] for time, what in places), "apart"
    assert len({what["x"] for _, what in places if what}) == 1, "aligned"
    assert await page.get_by_text("Times: Asia/Tokyo").count() == 1
    await page.get_by_role("group", name="Time zone").get_by_role("button", name="UTC").click()
    await log.get_by_text(utc, exact=True).first.wait_for()
    await page.reload()
    await log.or_(page.get_by_role("tab", name="History")).first.wait_for()
    await page.get_by_text("Times: UTC").wait_for()
    assert await faults(page) == []
    await page.close()


async def test_charts_speak_of_time_in_units_that_people_use(bench: Bench, server: str, chromium: Browser) -> None:
    bench.clock.now -= 10 * MINUTE
    for seconds in (200, 300):
        await bench.push("report.build")
        job = await bench.fetch_one()
        bench.clock.advance(seconds)
        await bench.ack(job)
    page = await chromium.new_page(locale="de-DE", timezone_id="Europe/Berlin")
    await page.add_init_script(DRAWN)
    await open_page(page, server)
    chart = page.get_by_role("region", name="Run time")
    await chart.locator("canvas").wait_for()
    drawn = await page.evaluate("window.drawn")
    assert any(re.fullmatch(r"\d+ Min\.( \d+ Sek\.)?", text) for text in drawn), drawn
    assert not [text for text in drawn if re.search(r"\d{4,}|\d[KMT]\s?ms|\d\s?[AaPp][Mm]", text)], drawn
    await open_page(page, server, "admin")
    assert not re.search(r"\bPT?\d", await page.inner_text("main"))
    await page.close()


ACTIONS = {
    "jobs": 'button[aria-label^="Pick"], input[aria-label^="Pick the job"]',
    "errors": ".actions button",
    "queues": ".actions button",
    "workers": ".actions button",
    "schedules": ".actions button",
}
"""What can be done on lists, by page."""


async def test_on_a_phone_what_can_be_done_is_in_sight_and_a_job_is_in_the_first_screen(
    bench: Bench, server: str, page: Page
) -> None:
    await data.everything(bench)
    await page.set_viewport_size({"width": 390, "height": 800})
    for path, actions in ACTIONS.items():
        await open_page(page, server, path)
        await page.locator(actions).first.wait_for()
        for action in await page.locator(actions).all():
            box = await action.bounding_box()
            assert box is not None
            assert box["x"] >= 0, path
            assert box["x"] + box["width"] <= 390, f"{path}: {await action.inner_text()}"
        assert await faults(page) == [], path
    await open_page(page, server, "jobs")
    first = await page.get_by_role("row").nth(1).bounding_box()
    assert first is not None
    assert first["y"] + first["height"] < 800
    assert await page.get_by_role("complementary", name="Facets").count() == 0
    await page.get_by_text("Filters with counts").click()
    await page.get_by_role("region", name="State").get_by_role("button", name="discarded").click()
    await page.get_by_text("4 jobs match").wait_for()
    assert await faults(page) == []


async def test_a_graph_opens_readable_at_what_runs_shows_all_and_has_a_map(
    bench: Bench, server: str, page: Page
) -> None:
    names = [f"step{number}" for number in range(60)]
    steps = [
        data.step(name, *([names[place - 1]] if place else []), options={"queue": "long"})
        for place, name in enumerate(names)
    ]
    id = await data.create(bench, {"type": "graph", "name": "Long", "steps": steps})
    for _ in range(30):
        await bench.ack(await bench.fetch_one("long"))
    await bench.fetch_one("long")
    await open_page(page, server, f"workflows/{id}")
    canvas = page.locator(".canvas")
    running = canvas.get_by_role("button", name="step30 do.step30, active")
    assert await is_inside(running, canvas)
    assert await smallest_text(page) >= 11
    assert await faults(page) == []
    await page.get_by_role("button", name="Show all").click()
    for name in ("step0", "step59"):
        assert await is_inside(canvas.get_by_role("button", name=f"{name} do.{name},"), canvas), name
    assert await smallest_text(page) >= 11
    map = page.get_by_role("img", name="Map of the whole graph")
    await page.get_by_role("button", name="Larger").click(click_count=8)
    await map.click(position={"x": 178, "y": 8})
    last = canvas.get_by_role("button", name="step59 do.step59,")
    await last.wait_for()
    assert await is_inside(last, canvas)
    assert await smallest_text(page) >= 11


OVERFLOWS = """
[...document.querySelectorAll(%s)].filter((text) => {
  const { x, width } = text.getBBox();
  return x + width > %s || !text.textContent.isWellFormed();
}).map((text) => text.textContent)
"""
"""Texts of a picture that are wider than the room for them, or end within a character."""


async def test_names_of_steps_are_cut_to_the_room_that_they_have(bench: Bench, server: str, page: Page) -> None:
    narrow, wide, odd = "i" * 28, "W" * 36, "\U0001f680" * 36
    steps = [{"id": id, "type": "do", "args": []} for id in (narrow, wide, odd)]
    inner = {"type": "group", "jobs": [{"type": "row", "args": []}], "id": wide + "X"}
    id = await data.create(bench, {"type": "graph", "name": "Names", "steps": [*steps, inner]})
    for _ in range(4):
        await bench.ack(await bench.fetch_one())
    await open_page(page, server, f"workflows/{id}")
    await page.locator(".graph-node").nth(4).wait_for()
    graph = OVERFLOWS % ("'.graph-node text'", "text.parentNode.querySelector('.box').width.baseVal.value")
    assert await page.evaluate(graph) == []
    assert await page.locator(".graph-node text", has_text=narrow).count() == 1
    await page.get_by_role("tab", name="Timeline").click()
    await page.get_by_role("img", name=re.compile("Timeline of")).wait_for()
    assert await page.evaluate(OVERFLOWS % ("'.gantt title + text'", "240")) == []
    assert await page.locator(".gantt text", has_text=narrow).count() == 1


async def is_inside(part: Locator, whole: Locator) -> bool:
    """Whether all of a part is in the window that its whole is."""
    inner, outer = await part.bounding_box(), await whole.bounding_box()
    assert inner is not None
    assert outer is not None
    return (
        outer["x"] <= inner["x"]
        and outer["y"] <= inner["y"]
        and inner["x"] + inner["width"] <= outer["x"] + outer["width"]
        and inner["y"] + inner["height"] <= outer["y"] + outer["height"]
    )


async def smallest_text(page: Page) -> float:
    """Return the size of the smallest text of a graph, in pixels of the screen."""
    sizes: list[float] = await page.evaluate(
        "[...document.querySelectorAll('.canvas svg text')]"
        ".map((text) => parseFloat(getComputedStyle(text).fontSize) * text.getScreenCTM().a)"
    )
    return round(min(sizes, default=99), 2)


async def test_arguments_are_isolated_and_readable_whatever_they_contain(bench: Bench, server: str, page: Page) -> None:
    turned, hidden, long = "safe\u202egpj.exe", "a\u200bb\x00\x1b[31mc\u2066", "word \u202e" * 125_000
    job = await bench.push("mail.send", {"file": turned, "key\u200f": hidden, "after": "ابجد 123", "long": long})
    await open_page(page, server, f"jobs/{job.id}")
    arguments = page.get_by_role("group", name="the arguments")
    await arguments.get_by_text("gpj.exe").wait_for()
    shown = await arguments.inner_text()
    for text in ("safeU+202Egpj.exe", "aU+200Bb", "U+0000", "U+001B[31mc", "U+2066", "keyU+200F: ", "ابجد 123"):
        assert text in shown
    assert not re.search("[\u200b\u200f\u202a-\u202e\u2066-\u2069\x00\x1b]", shown)
    assert await arguments.locator("bdi").count() >= 4
    assert len(shown) < 20_000
    await arguments.get_by_role("button", name="Show 50,000 more of 750,000 characters").click()
    await arguments.get_by_role("button", name="Show 50,000 more of 750,000 characters").wait_for()
    assert 50_000 < len(await arguments.inner_text()) < 150_000
    width = await page.evaluate("document.scrollingElement.scrollWidth - innerWidth")
    assert width <= 0
    assert await faults(page) == []


async def test_texts_of_errors_notes_and_names_are_isolated_and_short_in_lists_and_workflows(
    bench: Bench, server: str, page: Page
) -> None:
    odd = "left \u202etfel\x00 " + "long " * 20_000
    step = {"type": "pay", "id": "pay", "args": [], "options": {"queue": "steps"}}
    id = await data.create(bench, {"type": "chain", "name": "Order \u202e7", "steps": [step]})
    await bench.fail(await bench.fetch_one("steps"), retryable=False, message=odd)
    await bench.service.notes.add_to_workflow(id, msgspec.json.encode(odd[:15_000]))
    for path in ("workflows", "errors", "jobs?state=discarded", f"workflows/{id}", "its notes"):
        if path == "its notes":
            await page.get_by_role("tab", name="Notes").click()
            await page.get_by_role("button", name="Show all").wait_for()
        else:
            await open_page(page, server, path)
        await page.get_by_text("U+202E").first.wait_for()
        shown = await page.inner_text("main")
        assert not re.search("[\u202a-\u202e\x00]", shown), path
        assert len(shown) < 10_000, path
        assert await page.evaluate("document.scrollingElement.scrollWidth - innerWidth") <= 0, path
    assert await faults(page) == []


async def test_a_phone_shows_the_state_of_a_job_beside_its_long_error(bench: Bench, server: str, page: Page) -> None:
    await bench.push("import", retry={"max_attempts": 1})
    await bench.fail(await bench.fetch_one(), type="Lost", message="no such file " * 20)
    await page.set_viewport_size({"width": 390, "height": 800})
    await open_page(page, server, "jobs")
    box = await page.get_by_role("row").locator(".state").bounding_box()
    assert box is not None
    assert box["x"] + box["width"] <= 390


CUT = """
[...document.querySelectorAll("body *")].filter((one) => {
  const { left, right, height } = one.getBoundingClientRect();
  const isBar = (at) => ["auto", "scroll"].includes(getComputedStyle(at).overflowX);
  const scrolls = (at) => at && (isBar(at) || scrolls(at.parentElement));
  const isElsewhere = one.closest("svg, canvas, .nav, .hidden, .skip, .clip, .facets .name") || scrolls(one);
  const card = one.closest(".card")?.getBoundingClientRect();
  return height && !isElsewhere && (left < 0 || right > innerWidth + 1 || right > (card?.right ?? innerWidth) + 1);
}).map((one) => `${one.tagName} ${one.textContent.slice(0, 40)}`)
"""
"""What stands beyond the edge of the window or of its card, where nobody can scroll to it."""


@pytest.mark.parametrize("width", [390, 1280])
async def test_a_word_without_an_end_and_a_row_of_choices_stay_within_their_page(
    bench: Bench, server: str, page: Page, width: int
) -> None:
    name = "n" * 120
    await bench.push(f"t{name}", queue=f"q{name}")
    await bench.push("lost", queue="bad", retry={"max_attempts": 1})
    await bench.fail(await bench.fetch_one("bad"), type=f"E{name}", message="m" * 300, backtrace=("l" * 300,))
    step = {"type": "pay", "id": f"s{name}", "args": [], "options": {"queue": "steps"}}
    workflow = await data.create(bench, {"type": "chain", "name": f"w{name}", "steps": [step]})
    await bench.fail(await bench.fetch_one("steps"), retryable=False, type=f"E{name}", message="m" * 300)
    calls = f"{server}/ojs/v1/jobs?queue="
    ids = [(await (await page.request.get(calls + queue)).json())["jobs"][0]["id"] for queue in (f"q{name}", "bad")]
    await page.set_viewport_size({"width": width, "height": 800})
    ones = (f"queues/q{name}", f"workflows/{workflow}", *(f"jobs/{id}" for id in ids))
    for path in ("", "jobs", "workflows", "errors", "queues", "events", *ones):
        await open_page(page, server, path)
        assert await page.evaluate(CUT) == [], path
