"""What operators read and take with them: the audit log, queues by trouble, and files of lists."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ojster.audit.entries import AuditEvent
from ojster.queues.answer_wire import QueueConfigurationBody
from tests.browser import needs_browser
from tests.conftest import Bench
from tests.dashboard import data
from tests.dashboard.conftest import BUILT
from tests.dashboard.test_pages import faults, is_loaded, open_page

if TYPE_CHECKING:
    from playwright.async_api import Page

pytestmark = [pytest.mark.anyio, pytest.mark.slow, needs_browser, BUILT]


async def saved(page: Page, button: str) -> str:
    """Press a button, and return the content of the file that the browser saves."""
    async with page.expect_download() as begun:
        await page.get_by_role("button", name=button).click()
    return Path(await (await begun.value).path()).read_text()


def rows_of(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(text.splitlines()))


def done(operation: str, summary: str, **more: Any) -> AuditEvent:
    detail: Any = {"summary": summary}
    return AuditEvent(**{"event": "access.used", "principal": "ada", "operation": operation, "detail": detail, **more})


async def test_the_audit_log_is_read_in_words_and_narrowed_to_who_what_and_when(
    bench: Bench, server: str, page: Page
) -> None:
    bench.clock.advance(-7_200)
    await bench.service.audit.record(done("pause_queue", "paused the queue mail", object="mail"))
    bench.clock.advance(7_200)
    retried = "retried 45 jobs of payments.charge that failed with 'card expired'"
    await bench.service.audit.record(done("retry_bulk", retried))
    await bench.service.audit.record(done("delete_queue", "deleted the queue =old", principal="bob", object="=old"))
    await bench.service.audit.record(
        done("delete_queue", "deleted the queue mail", object="mail", outcome="failure", refusal="conflict")
    )
    await open_page(page, server, "admin")
    await page.get_by_role("tab", name="Audit log").click()
    table = page.get_by_role("table", name="Audit log")
    await table.get_by_text(retried).wait_for()
    assert await table.get_by_role("row").count() == 5
    assert await table.get_by_role("row").filter(has_text="refused: conflict").count() == 1
    assert await faults(page) == []
    await table.get_by_role("button", name="bob").click()
    await table.get_by_text(retried).wait_for(state="detached")
    await table.get_by_text("deleted the queue =old").wait_for()  # the table is away while it is read
    assert await table.get_by_role("row").count() == 2
    (row,) = rows_of(await saved(page, "Export the audit log as CSV"))
    assert (row["principal"], row["object"], row["summary"]) == ("bob", "'=old", "deleted the queue =old")
    await page.get_by_role("button", name="Remove all filters").click()
    await page.get_by_label("On what").fill("mail")
    await page.keyboard.press("Enter")
    await table.get_by_text(retried).wait_for(state="detached")
    await page.get_by_label("When").select_option("Last hour")
    await table.get_by_text("paused the queue mail").wait_for(state="detached")
    await page.reload()
    await table.get_by_text("deleted the queue mail").wait_for()
    await is_loaded(page)
    assert await table.get_by_role("row").count() == 2, "the address has the filters"
    (entry,) = json.loads(await saved(page, "Export the audit log as JSON"))
    assert (entry["operation"], entry["refusal"]) == ("delete_queue", "conflict")
    await page.get_by_label("What", exact=True).fill("pause_*")
    await page.keyboard.press("Enter")
    await page.get_by_text("No such entries").wait_for()


async def test_the_queue_in_trouble_comes_first_and_its_limits_are_controls_that_say_what_they_mean(
    bench: Bench, server: str, page: Page
) -> None:
    bench.clock.advance(-600)
    for number in range(4):
        await bench.push(queue="late", args=[number])
    bench.clock.advance(600)
    await bench.fetch("late", count=2)
    await bench.push(queue="early")
    await open_page(page, server, "queues")
    queues = page.get_by_role("table", name="Queues")
    waits = queues.get_by_role("cell", name="10 min")  # the oldest job that waits, and those that have started
    await waits.nth(1).wait_for()
    assert [await row.get_by_role("link").inner_text() for row in (await queues.get_by_role("row").all())[1:]] == [
        "late",
        "early",
    ]
    early = await queues.get_by_role("row").nth(2).get_by_role("cell").all_inner_texts()
    assert early[8:11] == ["\N{EN DASH}"] * 3, "nothing is known of how long its jobs wait until they start"
    assert await faults(page) == []
    await page.get_by_role("group", name="Order").get_by_role("button", name="By name").click()
    await queues.get_by_role("row").nth(1).get_by_role("link", name="early").wait_for()

    await open_page(page, server, "queues/late")
    await page.get_by_text("2 run now").wait_for()
    assert await page.get_by_role("button", name="Preview change").is_disabled()
    await page.get_by_label("Jobs at once").fill("1")
    starts = page.get_by_label("Starts", exact=True)
    await starts.fill("90")
    await page.get_by_label("Waiting jobs").fill("1")
    await page.get_by_label("When it is full").select_option("discard the oldest job")
    assert await faults(page) == []
    await page.get_by_role("button", name="Preview change").click()
    dialog = page.get_by_role("dialog")
    words = await dialog.inner_text()
    for said in (
        "5 settings would change",
        "90 in 1 min",
        "2 jobs run now. They go on, and none starts until fewer than 1 run.",
        "2 jobs wait now: the next push discards up to 2 of them, the oldest.",
    ):
        assert said in words
    assert await faults(page) == []
    limits = (await bench.service.queues.configuration("late")).configuration
    assert limits.concurrency is None, "nothing was changed"
    await dialog.get_by_role("button", name="Change settings").click()
    await page.get_by_text("2 of 1 run now").wait_for()
    await page.get_by_text("2 of 1 wait now").wait_for()
    limits = (await bench.service.queues.configuration("late")).configuration
    assert limits.backpressure is not None
    assert (limits.concurrency, limits.backpressure.strategy) == (1, "drop_oldest")
    await page.get_by_role("button", name="Undo").click()
    await page.get_by_text("2 of 1 run now").wait_for(state="detached")
    assert (await bench.service.queues.configuration("late")).configuration == QueueConfigurationBody()
    await page.get_by_label("Jobs at once").fill("many")
    await page.get_by_role("button", name="Preview change").click()
    await page.get_by_text("Jobs at once: many is no whole number.").wait_for()

    for number in range(99):
        await bench.push(queue=f"more-{number}")
    await open_page(page, server, "queues")
    await page.get_by_text("1 to 100 of 101 queues").wait_for()
    await page.get_by_role("button", name="Next").click()
    await page.get_by_text("101 to 101 of 101 queues").wait_for()
    await queues.get_by_role("link", name="more-98").wait_for()


async def test_a_change_of_settings_leaves_what_another_operator_has_changed_meanwhile(
    bench: Bench, server: str, page: Page
) -> None:
    config = f"{server}/ojs/v1/admin/queues/mail/config"
    kept = {"completed": "PT0S", "cancelled": "PT0.5S"}
    await bench.push(queue="mail")
    await page.request.put(config, data={"retention": kept, "backpressure": {"max_depth": 9}})
    await open_page(page, server, "queues/mail")
    await page.get_by_text("Retention and job types").click()
    assert await page.get_by_label("Keeps completed jobs", exact=True).input_value() == "0"
    await page.get_by_label("Keeps cancelled jobs", exact=True).fill("0.25")
    theirs = {"completed": "PT1H"}, {"max_depth": 7, "strategy": "block"}
    await page.request.put(config, data={"concurrency": 3, "retention": theirs[0], "backpressure": theirs[1]})
    waiting = page.get_by_label("Waiting jobs")
    await waiting.fill("0")
    await page.get_by_role("button", name="Preview change").click()
    await page.get_by_text("Waiting jobs: 0 is no bound.").wait_for()
    await waiting.fill("8")
    await page.get_by_text("1 of 7 wait now").wait_for()
    await page.get_by_role("button", name="Preview change").click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_text("2 settings would change").wait_for()
    await dialog.get_by_role("button", name="Change settings").click()
    await page.get_by_text("1 of 8 wait now").wait_for()
    limits = (await bench.service.queues.configuration("mail")).configuration
    assert limits.backpressure
    assert (limits.concurrency, limits.backpressure.strategy) == (3, "block")
    assert limits.retention
    assert (limits.retention.completed, limits.retention.cancelled) == ("PT1H", "PT0.25S")
    await page.get_by_role("button", name="Undo").click()
    await page.get_by_text("1 of 7 wait now").wait_for()


async def test_the_limits_of_a_key_are_replaced_for_a_while(bench: Bench, server: str, page: Page) -> None:
    for _ in range(3):
        await bench.push(rate_limit={"key": "stripe", "concurrency": 2})
    await bench.fetch(count=3)
    await open_page(page, server, "queues")
    limits = page.get_by_role("table", name="Rate limits")
    await limits.get_by_text("2 of 2").wait_for()
    await limits.get_by_role("button", name="Replace limits of stripe").click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_label("Jobs at once").fill("1")
    await dialog.get_by_text("2 run now: none starts until fewer than 1 do").wait_for()
    assert await faults(page) == []
    await dialog.get_by_role("button", name="Replace limits").click()
    await limits.get_by_text("2 of 1").wait_for()
    replaced = (await bench.service.rate_limits.find("stripe")).override
    assert replaced
    assert replaced.expires_at
    await limits.get_by_role("button", name="Remove override of stripe").click()
    await limits.get_by_text("2 of 2").wait_for()


async def test_lists_histories_and_the_numbers_of_charts_are_saved(bench: Bench, server: str, page: Page) -> None:
    for number in range(60):
        await bench.push("mail.send", f"=cmd|{number}", queue="mail")
    await bench.push("other")
    await bench.ack(await bench.fetch_one("mail"))
    await open_page(page, server, "jobs?type=mail.send")
    jobs = rows_of(await saved(page, "Export these jobs as CSV"))
    assert (len(jobs), {job["type"] for job in jobs}) == (60, {"mail.send"}), "more than the page shows"
    await is_loaded(page)
    assert len(json.loads(await saved(page, "Export these jobs as JSON"))) == 60
    release = await data.release(bench)
    await open_page(page, server, "workflows")
    assert [row["id"] for row in rows_of(await saved(page, "Export these workflows as CSV"))] == [release]
    await open_page(page, server, f"workflows/{release}")
    await page.get_by_role("tab", name="Steps").click()
    steps = rows_of(await saved(page, "Export the history as CSV"))
    assert [(step["path"], step["state"]) for step in steps][:1] == [("build", "completed")]
    history = json.loads(await saved(page, "Export the history as JSON"))
    assert (history["workflow"]["id"], len(history["steps"])) == (release, len(steps))
    assert await faults(page) == []
    await open_page(page, server, "queues/mail")
    async with page.expect_download() as begun:
        await page.get_by_role("button", name="Export the numbers of Jobs per minute").click()
    minutes = rows_of(Path(await (await begun.value).path()).read_text())
    assert len(minutes) == 60
    assert sum(float(minute["completed"]) for minute in minutes) == 1
    assert minutes[0]["time"].endswith(":00.000Z")
