"""Numbers that agree, wherever they are shown, and the server's own work."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ojster.events import webhooks
from ojster.events.subscription import Subscription
from ojster.fleet.workers import Heartbeat
from ojster.insight.receivers import DeliveryOutcome
from tests.browser import needs_browser
from tests.conftest import Bench
from tests.dashboard import data
from tests.dashboard.conftest import BUILT
from tests.dashboard.test_pages import faults, open_page

if TYPE_CHECKING:
    from playwright.async_api import Page

pytestmark = [pytest.mark.anyio, pytest.mark.slow, needs_browser, BUILT]


async def test_tiles_badges_lists_and_groups_have_one_number_without_deliveries_and_a_webhook_is_one_alarm(
    bench: Bench, server: str, page: Page
) -> None:
    hook = Subscription("sub_1", "http://127.0.0.1:1/hook", ("job.enqueued",), "secret", bench.clock.now)
    await bench.service.scope.do(webhooks.subscribe, hook)
    await data.failing(bench, 3)
    for job in await bench.fetch(webhooks.QUEUE, count=2):
        await bench.fail(job, code="DEAD_LETTER", message="the address answered 500")
    outcome = DeliveryOutcome(hook.id, hook.url, f"{hook.url} answered 500.")
    await bench.service.scope.do(webhooks.record_outcomes, ("webhook.dead", outcome, {}))
    await open_page(page, server)
    await page.get_by_role("link", name="3 discarded").wait_for()
    await page.get_by_role("link", name="Errors 3 jobs gave up").wait_for()
    alarms = [await one.inner_text() for one in await page.locator(".findings li").all()]
    told = [text for text in alarms if "hook" in text]
    assert len(told) == 1, alarms
    assert "accepts no deliveries: answered 500. 1 delivery waits for it." in told[0]
    assert not [text for text in alarms if "ojster." in text], "that its jobs failed is no other alarm"
    assert [text for text in alarms if "queue bad" in text] == [text for text in alarms if "dead letters" in text]
    await page.get_by_role("link", name="Open webhooks").click()
    await page.get_by_text("answered 500. 1 delivery waits").wait_for()
    assert await faults(page) == []
    await open_page(page, server, "errors")
    await page.get_by_text("3 jobs gave up, 0 wait for another attempt.").wait_for()
    await open_page(page, server, "jobs?state=discarded")
    await page.get_by_text("3 jobs match").wait_for()
    facet = page.get_by_role("region", name="State").get_by_role("button", name="discarded")
    assert (await facet.inner_text()).split() == ["discarded", "3"]
    await page.get_by_label("Deliveries, too").check()
    await page.get_by_text("5 jobs match").wait_for()
    assert (await facet.inner_text()).split() == ["discarded", "5"]
    await open_page(page, server, "queues")
    assert await page.get_by_role("link", name="ojster.webhooks").count() == 0


async def test_a_dead_worker_stays_for_a_day_with_the_jobs_that_it_held(bench: Bench, server: str, page: Page) -> None:
    held = [await bench.push("report.build", queue="reports") for _ in range(2)]
    await bench.service.fleet.beat(Heartbeat("worker-9", queues=("reports",), hostname="host-9"))
    await bench.fetch("reports", count=2, worker_id="worker-9")
    await bench.service.fleet.leave("worker-9", lost=True)
    bench.clock.advance(1)
    await bench.ack(await bench.fetch_one("reports"))
    await open_page(page, server, "workers")
    lost = page.get_by_role("region", name="Lost in the last day")
    await lost.get_by_text("held 2 jobs").wait_for()
    assert "host-9 was lost" in await lost.inner_text()
    assert [await state.inner_text() for state in await lost.locator(".state").all()] == ["completed", "available"]
    assert await faults(page) == []
    await lost.get_by_role("link", name="report.build").last.click()
    await page.get_by_text(held[1].id).first.wait_for()
