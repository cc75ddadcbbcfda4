"""What operators read and take with them: the audit log, queues by trouble, and files of lists."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ojster.audit.entries import AuditEvent
from tests.browser import needs_browser
from tests.conftest import Bench
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
