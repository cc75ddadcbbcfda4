"""The pages of the dashboard, in a real browser: what they show, what they do, and who may see it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec
import pytest

from ojster.audit.entries import AuditQuery
from ojster.core.access import Grant, Role
from ojster.core.durations import SECOND
from ojster.fleet.workers import Heartbeat
from ojster.insight import facets
from ojster.jobs.messages import Release
from ojster.schedules.cron import Cron
from ojster.server.oidc import OidcClient, OidcSettings
from ojster.workflows.flow import NewRecord
from ojster.workflows.read.flow_info import MessageFilter
from tests.browser import needs_browser
from tests.conftest import Bench
from tests.dashboard import data
from tests.dashboard.conftest import BUILT, Watched
from tests.postgres import free_port
from tests.server import identity_provider
from tests.server.identity_provider import CLIENT_ID, CLIENT_SECRET
from tests.serving import serving

if TYPE_CHECKING:
    from playwright.async_api import Browser, Page

pytestmark = [pytest.mark.anyio, pytest.mark.slow, needs_browser, BUILT]

AXE = Path(__file__).parent.parent.parent / "dashboard" / "node_modules" / "axe-core" / "axe.min.js"

PAGES = {
    "": "Overview",
    "jobs": "Jobs",
    "jobs?state=completed": "Jobs",
    "jobs/{done}": "done",
    "workflows": "Workflows",
    "workflows/{release}": "Release 4.2",
    "workflows/{expense}": "Expense 99",
    "workflows/{import}": "Import",
    "workflows/{flow}": "Order 7",
    "errors": "Errors",
    "queues": "Queues",
    "queues/mail": "mail",
    "workers": "Workers",
    "schedules": "Schedules",
    "events": "Events",
    "collections": "Collections and files",
    "admin": "Settings",
    "nowhere": "No such page",
}


DRAWN = """
window.drawn = [];
const fill = CanvasRenderingContext2D.prototype.fillText;
CanvasRenderingContext2D.prototype.fillText = function (text, ...place) {
  window.drawn.push(text);
  return fill.call(this, text, ...place);
};
"""
"""Notes all words that a page draws into its charts."""


async def open_page(page: Page, server: str, path: str = "", title: str | None = None) -> None:
    await page.goto(f"{server}/dashboard/{path}")
    heading = page.get_by_role("heading", level=1)
    await heading.get_by_text(title or re.compile(".")).first.wait_for()
    await is_loaded(page)


async def is_loaded(page: Page) -> None:
    """Wait until nothing of a page is on its way any more."""
    while await page.locator("[aria-busy]").count():
        await page.locator("[aria-busy]").first.wait_for(state="detached")


async def live(bench: Bench, queue: str) -> dict[str, int]:
    """Return the numbers of jobs in a queue by state, without those that are 0."""
    counts = (await bench.service.jobs.count(queue)).get(queue, {})
    return {state: number for state, number in counts.items() if number}


async def faults(page: Page) -> list[str]:
    """Return what axe-core finds: rules of WCAG 2.2 AA that the page breaks."""
    await page.evaluate(AXE.read_text())
    found: Any = await page.evaluate(
        "axe.run({runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa']}).then(found => found.violations)"
    )
    return [f"{one['id']}: {[node['html'][:120] for node in one['nodes'][:3]]}" for one in found]


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_each_page_shows_itself_without_a_fault(
    bench: Bench, server: str, watched: Watched, page: Page, scheme: Any
) -> None:
    ids = await data.everything(bench)
    await page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
    for path, title in PAGES.items():
        await open_page(page, server, path.format(**ids), title)
        assert await faults(page) == [], f"{path} ({scheme})"
        watched.check()


async def test_each_page_fits_a_phone(bench: Bench, server: str, page: Page) -> None:
    ids = await data.everything(bench)
    await page.set_viewport_size({"width": 390, "height": 800})
    for path, title in PAGES.items():
        await open_page(page, server, path.format(**ids), title)
        width = await page.evaluate("document.scrollingElement.scrollWidth")
        assert width <= 390, path
    await page.get_by_role("button", name="Pages").click()
    await page.get_by_role("link", name="Queues").click()
    await page.get_by_role("heading", level=1, name="Queues").wait_for()


async def test_names_are_text_whatever_they_contain(bench: Bench, server: str, page: Page) -> None:
    await data.everything(bench)
    await open_page(page, server, "workflows")
    for name in data.HARD_NAMES:
        await page.get_by_text(name, exact=True).first.wait_for()
    assert await page.title() == "Workflows · Ojster"


async def test_a_job_appears_while_one_looks(bench: Bench, server: str, page: Page) -> None:
    await bench.push("first")
    await open_page(page, server, "jobs")
    await page.get_by_text("Live", exact=True).wait_for()
    await page.mouse.move(5, 5)
    await bench.push("second.arrives")
    await page.get_by_role("link", name="second.arrives").wait_for()
    await page.get_by_role("heading", name="Jobs").wait_for()


async def test_a_failing_deployment_is_seen_in_one_group_and_retried(bench: Bench, server: str, page: Page) -> None:
    await data.failing(bench, 5)
    await open_page(page, server, "errors")
    row = page.get_by_role("row").filter(has_text="MissingCustomer")
    assert await row.count() == 1
    assert "invoice … has no customer" in await row.inner_text()
    await row.get_by_role("button", name="Retry").click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_role("button", name="Retry 5 jobs", exact=True).click()
    await page.get_by_text("5 jobs retried.").wait_for()
    assert await live(bench, "bad") == {"available": 5}
    await page.get_by_text("Nothing has failed").wait_for()


async def test_a_group_of_errors_is_retried_or_deleted_as_many_as_the_button_says_and_no_other(
    bench: Bench, server: str, page: Page
) -> None:
    """Although others have the same type and error class, and only some failures are counted in the list."""
    messages = {"card {} was declined": 3, "card {} was lost": 2, "the bank is closed": 4}
    for message, number in messages.items():
        for count in range(number):
            await bench.push("pay", queue="pay", retry={"max_attempts": 1})
            await bench.fail(await bench.fetch_one("pay"), type="PaymentError", message=message.format(count))
    await open_page(page, server, "errors")
    await page.get_by_role("row").filter(has_text="was declined").get_by_role("button", name="Retry").click()
    dialog = page.get_by_role("dialog")
    go_on = dialog.get_by_role("button", name="Retry 3 jobs", exact=True)
    await go_on.wait_for()
    bench.clock.advance(1)
    await bench.push("pay", queue="pay", retry={"max_attempts": 1})
    await bench.fail(await bench.fetch_one("pay"), type="PaymentError", message="card 9 was declined")
    await go_on.click()
    await page.get_by_text("3 jobs retried.").wait_for()
    assert await live(bench, "pay") == {"available": 3, "discarded": 7}, "what failed after the question is another"
    await page.get_by_role("row").filter(has_text="was lost").get_by_role("button", name="Delete").click()
    await dialog.get_by_role("textbox").fill("delete")
    await dialog.get_by_role("button", name="Delete 2 jobs", exact=True).click()
    await page.get_by_text("2 jobs deleted.").wait_for()
    assert await live(bench, "pay") == {"available": 3, "discarded": 5}


async def test_all_jobs_that_match_are_retried_as_many_as_the_button_says(
    bench: Bench, server: str, page: Page
) -> None:
    """Of all jobs that match, only those that gave up can be: the list has others, too."""
    for number in range(52):
        await bench.push("mail.send", number, queue="mail", retry={"max_attempts": 1})
    for job in await bench.fetch("mail", count=3):
        await bench.fail(job)
    await open_page(page, server, "jobs?type=mail.send")
    await page.get_by_role("button", name="Pick these 50").click()
    await page.get_by_role("button", name="Pick all 52 that match").click()
    await page.get_by_role("button", name="Retry matching jobs").click()
    await page.get_by_role("dialog").get_by_role("button", name="Retry 3 jobs", exact=True).click()
    await page.get_by_text("3 jobs retried.").wait_for()
    assert await live(bench, "mail") == {"available": 52}


async def test_a_gate_is_approved_and_a_form_is_answered(bench: Bench, server: str, page: Page) -> None:
    release, expense = await data.release(bench), await data.expense(bench)
    await open_page(page, server, f"workflows/{release}")
    await page.get_by_role("button", name="Approve step", exact=True).click()
    await page.get_by_role("dialog").get_by_label("Notes").fill("looks good")
    await page.get_by_role("dialog").get_by_role("button", name="Approve step").click()
    await page.get_by_text("approve was approved.").wait_for()
    (job,) = await bench.fetch("steps")
    assert job.type == "do.approve"
    await open_page(page, server, f"workflows/{expense}")
    await page.get_by_role("button", name="Answer step").click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_role("group", name="Approved").get_by_label("Yes").check()
    await dialog.get_by_label("Limit").fill("250")
    await dialog.get_by_label("books").check()
    await dialog.get_by_role("button", name="Send answer").click()
    await page.get_by_text("ask got the answer.").wait_for()
    (job,) = await bench.fetch("steps")
    assert job.parent_results is not None
    assert b'"limit":250' in job.parent_results
    assert b'"approved":true' in job.parent_results


async def test_a_flow_shows_where_it_waits_and_gets_a_message_and_an_update(
    bench: Bench, server: str, page: Page
) -> None:
    flow = await data.flow(bench)
    await open_page(page, server, f"workflows/{flow}")
    await page.get_by_text("orders.py:14 in fulfil").wait_for()
    await page.get_by_text("The code of its function has changed since the run began").wait_for()
    for step in ("total local step, completed", "order.load 1, available", "approval message, waiting", "sleep waits"):
        await page.get_by_role("button", name=step).wait_for()
    await page.get_by_role("button", name="Send approval").click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_role("group", name="Ok").get_by_label("Yes").check()
    assert await faults(page) == []
    await dialog.get_by_role("button", name="Send message").click()
    await page.get_by_text("The message approval was sent.").wait_for()
    await page.get_by_role("button", name="approval message, completed").wait_for()
    await page.get_by_text("It is ready, and waits for a worker").wait_for()
    await page.get_by_role("button", name="Ask put").click()
    await dialog.get_by_label("Item").fill("tea")
    await dialog.get_by_role("button", name="Ask flow").click()
    while not (await bench.service.flows.messages(MessageFilter(flow, state="waiting"))).messages:
        await page.wait_for_timeout(20)
    answer = NewRecord("!answer/put", "answer", "!update/put", bench.clock.now, result=msgspec.Raw(b'"put in"'))
    await data.turn(bench, answer)
    await dialog.get_by_text('"put in"').wait_for()
    await dialog.get_by_role("button", name="Close").click()
    await page.get_by_role("tab", name="Messages and state").click()
    await page.get_by_role("row").filter(has_text="update, completed").wait_for()
    await page.get_by_role("row").filter(has_text="approval").wait_for()
    await page.get_by_role("group", name="what it has published").get_by_text("3").wait_for()
    assert await faults(page) == []
    await page.get_by_role("tab", name="Timeline").click()
    await page.get_by_text("total, local step").wait_for()
    assert await faults(page) == []
    update, message = (await bench.service.flows.messages(MessageFilter(flow))).messages
    assert (message.data, update.data) == (msgspec.Raw(b'{"ok":true}'), msgspec.Raw(b'["tea"]'))


async def test_a_flow_is_cancelled_shown_as_cancelling_and_terminated(bench: Bench, server: str, page: Page) -> None:
    flow = await data.flow(bench)
    await open_page(page, server, f"workflows/{flow}")
    await page.get_by_role("button", name="Cancel workflow").click()
    await page.get_by_role("button", name="Cancel this workflow").click()
    await page.get_by_text("cancelling", exact=True).wait_for()
    assert await faults(page) == []
    await page.get_by_role("button", name="Terminate workflow").click()
    await page.get_by_text("It ends without cleaning up").wait_for()
    await page.get_by_role("button", name="Terminate this workflow").click()
    await page.get_by_role("button", name="Retry failed steps").wait_for()
    info = await bench.service.workflows.show(flow)
    assert (info.state, info.finished) == ("cancelled", True)
    await page.get_by_role("button", name="Retry failed steps").click()
    await page.get_by_role("dialog").get_by_role("button", name="Retry failed steps").click()
    await page.get_by_text("It is ready, and waits for a worker").wait_for()
    assert (await bench.service.workflows.show(flow)).state == "running"


async def test_a_queue_is_paused_and_the_pause_undone(bench: Bench, server: str, page: Page) -> None:
    await bench.push(queue="mail")
    await open_page(page, server, "queues")
    await page.get_by_role("button", name="Pause queue mail").click()
    await page.get_by_text("The queue mail is paused.").wait_for()
    assert (await bench.service.queues.statistics("mail")).queue.paused_at is not None
    await page.get_by_role("button", name="Undo").click()
    await page.get_by_role("button", name="Pause queue mail").wait_for()
    assert (await bench.service.queues.statistics("mail")).queue.paused_at is None


async def test_a_queue_is_emptied_after_its_name_was_typed(bench: Bench, server: str, page: Page) -> None:
    for number in range(4):
        await bench.push("mail.send", number, queue="mail")
    running = await bench.fetch_one("mail")
    await open_page(page, server, "queues/mail")
    await page.get_by_role("button", name="Empty queue").click()
    go_on = page.get_by_role("dialog").get_by_role("button", name="Cancel jobs")
    assert await go_on.is_disabled()
    await page.get_by_role("dialog").get_by_role("textbox").fill("mail")
    await go_on.click()
    await page.get_by_text("3 jobs cancelled.").wait_for()
    assert await live(bench, "mail") == {"active": 1, "cancelled": 3}
    assert (await bench.find(running)).state == "active"


async def test_a_queue_that_is_full_is_seen_and_its_limit_changed(bench: Bench, server: str, page: Page) -> None:
    await bench.push(queue="mail")
    await open_page(page, server, "queues/mail")
    await page.get_by_label("Waiting jobs").fill("1")
    await page.get_by_role("button", name="Preview change").click()
    await page.get_by_role("dialog").get_by_role("button", name="Change settings").click()
    await page.get_by_text("The settings of mail were changed.").wait_for()
    pushed = await page.request.post(
        f"{server}/ojs/v1/jobs", data={"type": "x", "args": [], "options": {"queue": "mail"}}
    )
    assert pushed.status == 429


async def test_a_workspace_is_limited(bench: Bench, server: str, page: Page) -> None:
    for _ in range(3):
        await bench.push(meta={"tenant_id": "acme"})
        await bench.ack(await bench.fetch_one())
    await open_page(page, server, "admin")
    await page.get_by_role("tab", name="Workspaces").click()
    headings = await page.get_by_role("columnheader").all_inner_texts()
    row = await page.get_by_role("row").filter(has_text="acme").get_by_role("cell").all_inner_texts()
    assert dict(zip(headings, row, strict=True))["Done in 24 h"] == "3"
    await page.get_by_role("button", name="Change limit of acme").click()
    await page.get_by_role("dialog").get_by_role("textbox").fill("3")
    await page.get_by_role("dialog").get_by_role("button", name="Change limit").click()
    await page.get_by_text("0 of 3").wait_for()


async def test_a_token_is_made_shown_once_and_revoked(bench: Bench, server: str, page: Page) -> None:
    await open_page(page, server, "admin")
    await page.get_by_role("tab", name="Tokens").click()
    await page.get_by_role("button", name="New token").click()
    await page.get_by_label("Name").fill("ada")
    await page.get_by_role("button", name="Create token").click()
    await page.get_by_role("dialog").get_by_text(re.compile("^ojster_")).wait_for()
    await page.get_by_role("button", name="I have it").click()
    (token,) = await bench.service.tokens.all()
    assert token.name == "ada"
    await page.get_by_role("button", name="Revoke token ada").click()
    await page.get_by_role("button", name="Revoke token", exact=True).click()
    await page.get_by_text("ada was revoked.").wait_for()
    assert await bench.service.tokens.all() == []


async def test_picked_jobs_are_cancelled_after_a_question_and_not_without(
    bench: Bench, server: str, page: Page
) -> None:
    for number in range(3):
        await bench.push("mail.send", number)
    await open_page(page, server, "jobs?type=mail.send")
    await page.get_by_role("button", name="Pick these 3").click()
    await page.get_by_role("button", name="Cancel 3 jobs").click()
    await page.get_by_role("dialog").get_by_role("button", name="Keep it as it is").click()
    assert await live(bench, "default") == {"available": 3}
    await page.get_by_role("button", name="Cancel 3 jobs").click()
    await page.get_by_role("dialog").get_by_role("button", name="Cancel 3 jobs").click()
    await page.get_by_text("3 jobs cancelled.").wait_for()
    assert await live(bench, "default") == {"cancelled": 3}


async def test_all_that_match_are_deleted(bench: Bench, server: str, page: Page) -> None:
    for number in range(60):
        await bench.ack((await bench.push("a", number)) and await bench.fetch_one("default"))
    await bench.push("b")
    await open_page(page, server, "jobs?state=completed")
    await page.get_by_role("button", name="Pick these 50").click()
    await page.get_by_role("button", name="Pick all 60 that match").click()
    await page.get_by_role("button", name="Delete matching jobs").click()
    await page.get_by_role("dialog").get_by_role("button", name="Delete 60 jobs").click()
    await page.get_by_text("60 jobs deleted.").wait_for()
    assert await live(bench, "default") == {"available": 1}


async def test_a_worker_is_quieted_and_a_schedule_runs_now(bench: Bench, server: str, page: Page) -> None:
    await data.everything(bench)
    await open_page(page, server, "workers")
    await page.get_by_role("row").filter(has_text="host-1").get_by_role("button", name="Quiet").click()
    await page.get_by_text("The worker finishes its jobs and takes no others.").wait_for()
    (worker,) = await bench.service.fleet.all()
    assert worker.directive == "quiet"
    await open_page(page, server, "schedules")
    await page.get_by_role("button", name="Run now: schedule nightly").click()
    await page.get_by_role("button", name="Run schedule").click()
    await page.get_by_text("was enqueued").wait_for()
    page_of_jobs = await page.request.get(f"{server}/ojs/v1/jobs?type=report.build")
    assert (await page_of_jobs.json())["pagination"]["total"] == 1


async def test_the_last_runs_of_a_schedule_are_its_own(bench: Bench, server: str, page: Page) -> None:
    await data.everything(bench)
    for _ in range(3):
        await bench.push("report.build")
    await bench.service.schedules.trigger("nightly")
    await open_page(page, server, "schedules")
    await page.get_by_role("link", name="The last 1 job: available").click()
    await page.get_by_text("1 job matches").wait_for()


async def test_facets_that_are_lower_bounds_say_so_and_count_what_the_list_has(
    bench: Bench, server: str, page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(facets, "MAX_EXAMINED", 5)
    bench.clock.advance(-7_200)
    for _ in range(4):
        await bench.push("old")
    bench.clock.advance(7_200)
    for _ in range(3):
        await bench.push("new")
    await open_page(page, server, "jobs")
    types = page.get_by_role("region", name="Type").get_by_role("button")
    assert [text.split() for text in await types.all_inner_texts()] == [["new", "≥", "3"], ["old", "≥", "2"]]
    await page.get_by_label("Created within").select_option("Last 1 hour")
    await page.get_by_text("3 jobs match").wait_for()
    await page.get_by_text("≥").first.wait_for(state="detached")
    assert [text.split() for text in await types.all_inner_texts()] == [["new", "3"]]


async def test_the_next_runs_of_a_schedule_are_in_its_zone_and_in_the_viewers(
    bench: Bench, server: str, page: Page
) -> None:
    template = b'{"type":"report.build","args":[]}'
    await bench.service.schedules.register(
        Cron(name="nightly", expression="30 4 * * *", timezone="Asia/Tokyo", template=template)
    )
    made = await bench.service.schedules.trigger("nightly")
    await bench.ack(await bench.fetch_one())
    await open_page(page, server, "schedules")
    await page.get_by_role("button", name="Show runs of nightly").click()
    dialog = page.get_by_role("dialog", name="Runs of nightly")
    upcoming = dialog.get_by_role("table", name="Next runs")
    await upcoming.get_by_text("In Asia/Tokyo").wait_for()
    assert await upcoming.get_by_text("4:30 AM GMT+9").count() == 10
    assert await upcoming.get_by_text("7:30:00 PM").count() == 10
    last = dialog.get_by_role("table", name="Last runs")
    await last.get_by_text("completed").wait_for()
    assert await faults(page) == []
    await last.get_by_role("link").click()
    await page.wait_for_url(f"**/jobs/{made.id}")


async def test_the_missed_runs_of_a_schedule_are_shown_with_their_reasons(
    bench: Bench, server: str, page: Page
) -> None:
    template = b'{"type":"report.build","args":[]}'
    await bench.service.schedules.register(Cron(name="often", expression="@every 60s", template=template))
    await bench.run_due(after=60)
    for _ in range(2):
        await bench.run_due(after=60)
    await open_page(page, server, "schedules")
    await page.get_by_role("button", name="Show runs of often").click()
    missed = page.get_by_role("dialog", name="Runs of often").get_by_role("table", name="Missed runs")
    await missed.get_by_text("The run before it had not finished").wait_for()
    await missed.get_by_text("2 runs").wait_for()
    assert await faults(page) == []
    await missed.get_by_role("link").click()
    await page.get_by_role("heading", level=1, name="report.build").wait_for()


async def test_a_schedule_of_workflows_says_what_it_starts_and_leads_to_its_runs(
    bench: Bench, server: str, page: Page
) -> None:
    workflow = msgspec.json.encode({"type": "flow", "job": {"type": "order.fulfil", "args": [42]}})
    await bench.service.schedules.register(Cron(name="hourly", expression="@hourly", workflow=workflow))
    await open_page(page, server, "schedules")
    row = page.get_by_role("row").filter(has_text="hourly")
    await row.get_by_text("flow order.fulfil").wait_for()
    await row.get_by_role("button", name="Edit").click()
    text = page.get_by_label("Workflow, as JSON")
    await text.fill((await text.input_value()).replace("42", "43"))
    await page.get_by_role("button", name="Save schedule").click()
    await page.get_by_text("The schedule hourly was changed.").wait_for()
    changed = (await bench.service.schedules.find("hourly")).workflow
    assert changed == workflow.replace(b"42", b"43")
    await row.get_by_role("button", name="Run now").click()
    await page.get_by_role("button", name="Run schedule").click()
    await page.get_by_text("was started.").wait_for()
    await row.get_by_role("link", name="The last 1 workflow: running").click()
    await page.get_by_text("Schedule: hourly").wait_for()
    assert await page.get_by_role("row").count() == 2


async def test_a_schedule_of_a_workspace_is_meant_and_not_another_of_the_same_name(
    bench: Bench, server: str, page: Page
) -> None:
    for tenant, type in (("", "of.nobody"), ("acme", "of.acme")):
        body = {"name": "nightly", "expression": "0 3 * * *", "type": type, "args": []}
        headers = {"X-OJS-Tenant": tenant} if tenant else {}
        assert (await page.request.post(f"{server}/ojs/v1/crons", data=body, headers=headers)).ok
    await open_page(page, server, "schedules")
    await page.get_by_role("row").filter(has_text="of.acme").get_by_role("button", name="Run now").click()
    await page.get_by_role("button", name="Run schedule").click()
    await page.get_by_text("was enqueued").wait_for()
    (job,) = (await (await page.request.get(f"{server}/ojs/v1/jobs")).json())["jobs"]
    assert job["type"] == "of.acme"


async def test_a_new_schedule_shows_its_next_runs_before_it_is_made(
    bench: Bench, server: str, watched: Watched, page: Page
) -> None:
    watched.expected = ("Failed to load resource: the server responded with a status of 4",)
    await open_page(page, server, "schedules")
    await page.get_by_role("button", name="New schedule").click()
    await page.get_by_label("Cron expression").fill("61 * * * *")
    await page.get_by_text("61").nth(0).wait_for()
    await page.get_by_label("Cron expression").fill("30 4 * * *")
    await page.get_by_text(re.compile("4:30")).first.wait_for()
    await page.get_by_label("Name").fill("early")
    await page.get_by_label("Job type").fill("report.build")
    await page.get_by_role("button", name="Create schedule").click()
    await page.get_by_text("The schedule early was created.").wait_for()
    assert (await bench.service.schedules.find("early")).expression == "30 4 * * *"


async def test_a_new_schedule_takes_no_name_of_another_and_that_one_is_edited(
    bench: Bench, server: str, watched: Watched, page: Page
) -> None:
    watched.expected = ("Failed to load resource: the server responded with a status of 409",)
    template = (
        b'{"type":"report.build","args":[7,1.0,12345678901234567890],"meta":{"a":1e3},'
        b'"options":{"queue":"slow","timeout_ms":5000}}'
    )
    known = Cron(name="nightly", expression="0 3 * * *", description="For us", template=template)
    before = (await bench.service.schedules.register(known)).cron
    await open_page(page, server, "schedules")
    await page.get_by_role("button", name="New schedule").click()
    await page.get_by_label("Name").fill("nightly")
    await page.get_by_label("Job type").fill("other")
    await page.get_by_role("button", name="Create schedule").click()
    await page.get_by_text("There is a cron job 'nightly' already.").wait_for()
    assert await bench.service.schedules.find("nightly") == before
    await page.get_by_role("button", name="Close form").click()
    await page.get_by_role("button", name="Edit schedule nightly").click()
    await page.get_by_label("Cron expression").fill("30 4 * * *")
    await page.get_by_role("button", name="Save schedule").click()
    await page.get_by_text("The schedule nightly was changed.").wait_for()
    after = await bench.service.schedules.find("nightly")
    assert (after.expression, after.description) == ("30 4 * * *", "For us")
    assert after.template == before.template == template, "what is not edited stays, to the last digit"
    entries = [msgspec.json.decode(one.body) for one in await bench.service.audit.select(AuditQuery(object="nightly"))]
    assert [one["outcome"] for one in entries] == ["success", "failure"]


async def test_the_palette_finds_a_queue_by_keyboard(bench: Bench, server: str, page: Page) -> None:
    await bench.push(queue="mail")
    await open_page(page, server)
    await page.keyboard.press("Control+k")
    await page.get_by_role("combobox", name="Find a page").fill("mai")
    await page.get_by_role("option", name="mail queue").wait_for()
    await page.keyboard.press("Enter")
    await page.get_by_role("heading", level=1, name="mail").wait_for()
    job = await bench.push("find.me")
    await page.keyboard.press("Control+k")
    await page.get_by_role("combobox", name="Find a page").fill(job.id)
    await page.keyboard.press("Enter")
    await page.get_by_role("heading", level=1, name="find.me").wait_for()


async def test_the_palette_acts_says_that_nothing_is_there_and_remembers_what_was_opened(
    bench: Bench, server: str, page: Page
) -> None:
    await bench.push(queue="mail")
    await data.failing(bench, 1)
    template = msgspec.json.encode({"type": "report.build", "args": []})
    await bench.service.schedules.register(Cron(name="nightly", expression="0 3 * * *", template=template))
    await open_page(page, server)
    field = page.get_by_role("combobox", name="Find a page")
    await page.keyboard.press("Control+k")
    await field.fill("no such thing")
    await page.get_by_role("status").get_by_text("Nothing found for “no such thing”.").wait_for()
    assert await faults(page) == []
    await field.fill("mail pause")
    await page.get_by_role("option", name="Pause the queue mail").wait_for()
    await page.keyboard.press("Enter")
    await page.get_by_text("The queue mail is paused. Running jobs finish.").wait_for()
    await page.keyboard.press("Control+k")
    await field.fill("run the schedule")
    await page.get_by_role("option", name="Run the schedule nightly now").wait_for()
    await page.keyboard.press("Enter")
    await page.get_by_role("dialog").get_by_role("button", name="Run schedule").click()
    await page.get_by_text("was enqueued.").wait_for()
    await page.keyboard.press("Control+k")
    await field.fill("last failure")
    await page.get_by_role("option", name="Open the last failure").wait_for()
    await page.keyboard.press("Enter")
    await page.get_by_role("heading", level=1, name="invoice.import").wait_for()
    await page.keyboard.press("Control+k")
    await field.fill("bad")
    await page.get_by_role("option", name="bad", exact=False).first.wait_for()
    await page.keyboard.press("Enter")
    await page.get_by_role("heading", level=1, name="bad").wait_for()
    await page.keyboard.press("Control+k")
    await page.get_by_role("dialog").get_by_role("option").first.get_by_text("bad").wait_for()


async def test_a_container_unfolds_and_a_step_opens_by_keyboard(bench: Bench, server: str, page: Page) -> None:
    ids = await data.everything(bench)
    await open_page(page, server, f"workflows/{ids['import']}")
    await page.get_by_role("button", name=re.compile("^rows group.*unfold")).focus()
    await page.keyboard.press("Enter")
    await page.get_by_role("button", name=re.compile("^row.import rows.0")).wait_for()
    await page.get_by_role("button", name=re.compile("20 more")).wait_for(state="attached")
    await page.get_by_role("button", name=re.compile("^list do.list")).focus()
    await page.keyboard.press("Enter")
    await page.get_by_role("dialog").get_by_text("do.list").wait_for()
    await page.keyboard.press("Escape")
    await page.get_by_role("tab", name="Timeline").click()
    await page.get_by_role("img", name=re.compile("Timeline of")).wait_for()


async def test_a_step_took_as_long_as_it_ran_and_its_wait_in_the_queue_is_shown_apart(
    bench: Bench, server: str, page: Page
) -> None:
    """And so is the time that a worker took to stop it."""
    body = {"type": "chain", "name": "Slow", "steps": [data.step("build"), data.step("test")]}
    ids = [await data.create(bench, body) for _ in range(2)]
    bench.clock.advance(60)
    for job in await bench.fetch("default", count=2):
        bench.clock.advance(2)
        await bench.ack(job)
    tested, other = await bench.fetch("default", count=2)
    bench.clock.advance(3)
    await bench.service.jobs.cancel(tested.id)
    bench.clock.advance(5)
    await bench.service.jobs.release([Release(tested.id, tested.worker_id, tested.attempt)])
    await bench.ack(other)
    await open_page(page, server, f"workflows/{ids[0]}")
    await page.get_by_role("tab", name="Timeline").click()
    await page.get_by_text("build: completed, waited 1 min, ran 2.0 s").wait_for(state="attached")
    await page.get_by_text("ran 3.0 s, stopped for 5.0 s").wait_for(state="attached")
    await page.get_by_role("tab", name="Steps").click()
    row = page.get_by_role("row").filter(has_text="do.build")
    assert [cell.strip() for cell in (await row.inner_text()).split("\t")[-2:]] == ["1 min", "2.0 s"]
    await row.get_by_role("button", name="build").click()
    assert "Waited\n1 min\nRan\n2.0 s" in await page.get_by_role("dialog").inner_text()
    await open_page(page, server, f"workflows/{ids[0]}/compare/{ids[1]}")
    assert "1 min" in await page.get_by_role("row").filter(has_text="build").inner_text()
    await open_page(page, server, f"jobs/{tested.id}")
    assert "Ran\n3.0 s" in await page.inner_text("main")


async def test_the_picture_is_saved(bench: Bench, server: str, page: Page) -> None:
    release = await data.release(bench)
    await open_page(page, server, f"workflows/{release}")
    async with page.expect_download() as begun:
        await page.get_by_role("button", name="SVG").click()
    saved = Path(await (await begun.value).path()).read_text()
    assert saved.startswith("<svg")
    assert "do.deploy" in saved
    assert "var(" not in re.sub(r'style="[^"]*"', "", saved)
    async with page.expect_download() as begun:
        await page.get_by_role("button", name="PNG").click()
    assert Path(await (await begun.value).path()).read_bytes().startswith(b"\x89PNG")


async def test_what_a_type_a_worker_and_a_host_do_is_shown_over_time_and_new_code_is_marked(
    bench: Bench, server: str, page: Page
) -> None:
    for number, type in enumerate(("mail.send", "report.build")):
        beat = Heartbeat(f"worker-{number}", queues=("default",), hostname="host-1", code_version=f"v{number}")
        await bench.service.fleet.beat(beat)
        await bench.push(type)
        job = await bench.fetch_one(worker_id=beat.worker_id)
        bench.clock.advance(2)
        await bench.ack(job)
    await open_page(page, server, "jobs?type=mail.send")
    await page.get_by_role("link", name="Over time").click()
    await page.get_by_role("img", name="Jobs per minute in the last 1h: 1 completed, 0 failed attempts").wait_for()
    await page.get_by_role("img", name="How long attempts ran").wait_for()
    await page.get_by_label("Charts of").select_option("All jobs")
    await page.get_by_role("img", name="Jobs per minute in the last 1h: 2 completed").wait_for()
    assert page.url == f"{server}/dashboard/"
    await page.add_init_script(DRAWN)
    await open_page(page, server, "workers")
    await page.get_by_role("link", name="The worker worker-1 over time").click()
    await page.get_by_role("img", name="Jobs per minute in the last 1h: 1 completed").wait_for()
    await page.get_by_label("Charts of").select_option("host-1")
    await page.get_by_role("img", name="Jobs per minute in the last 1h: 2 completed").wait_for()
    assert page.url == f"{server}/dashboard/?host=host-1"
    await page.get_by_text("New code came 2 times").wait_for()
    await open_page(page, server, "queues/default")
    await page.get_by_text("New code came 2 times").wait_for()
    assert "v1" in await page.evaluate("window.drawn")
    assert await faults(page) == []


async def test_a_step_is_found_wherever_it_is_and_a_late_form_is_answered(
    bench: Bench, server: str, page: Page
) -> None:
    """Also beyond the first thousand steps, and in a container that is folded."""
    jobs: list[dict[str, Any]] = [{"type": "row.import", "args": []} for _ in range(1_100)]
    form = {"type": "object", "properties": {"limit": {"type": "integer", "title": "Limit"}}}
    jobs.append({"type": "mail.send", "args": [], "id": "tell-ada"})
    rows = {
        "type": "chain",
        "steps": [{"type": "file.read", "args": []}, {"type": "group", "id": "rows", "jobs": jobs}],
    }
    body = {"type": "group", "jobs": [rows, {"type": "wait", "id": "ask", "form": form}]}
    made = await page.request.post(f"{server}/ojs/v1/workflows", data=body)
    await open_page(page, server, f"workflows/{(await made.json())['workflow']['id']}")
    await page.get_by_placeholder("Find a step").fill("Ada")
    await page.keyboard.press("Enter")
    found = page.get_by_role("status", name="Steps that were found")
    await found.get_by_role("button", name="rows.tell-ada").click()
    await page.get_by_role("dialog").get_by_text("mail.send").first.wait_for()
    await page.keyboard.press("Escape")
    await page.get_by_placeholder("Find a step").fill("nothing like it")
    await page.keyboard.press("Enter")
    await page.get_by_text("No step has “nothing like it” in its name, path or type.").wait_for()
    await page.get_by_text("waits for an answer").wait_for()
    await page.get_by_role("button", name="Answer step").click()
    await page.get_by_label("Limit").fill("250")
    await page.get_by_role("button", name="Send answer").click()
    await page.get_by_text("waits for an answer").wait_for(state="detached")


async def test_a_webhook_is_made_turned_off_given_a_new_secret_and_deleted(bench: Bench, page: Page) -> None:
    async with serving(bench.service, trusting=True) as (_, port):
        await open_page(page, f"http://127.0.0.1:{port}", "events")
        await page.get_by_role("tab", name="Webhooks").click()
        await page.get_by_role("button", name="New webhook").click()
        await page.get_by_label("Address").fill("http://127.0.0.1:9/hook")
        await page.get_by_label("Events").fill("job.failed, workflow.*")
        await page.get_by_role("button", name="Create webhook").click()
        await page.get_by_text("It is shown only now.").wait_for()
        first = await page.get_by_role("dialog").locator("code").inner_text()
        await page.get_by_role("button", name="I have it").click()
        await page.get_by_role("row").filter(has_text="job.failed, workflow.*").wait_for()
        await page.get_by_role("button", name="Turn webhook off").click()
        await page.get_by_role("button", name="Undo").click()
        await page.get_by_role("button", name="Turn webhook off").wait_for()
        await page.get_by_role("button", name="Replace secret").click()
        await page.get_by_role("button", name="Create secret").click()
        await page.get_by_text("It is shown only now.").wait_for()
        assert await page.get_by_role("dialog").locator("code").inner_text() != first
        await page.get_by_role("button", name="I have it").click()
        await page.get_by_role("button", name="Delete webhook http://127.0.0.1:9/hook").click()
        await page.get_by_role("dialog").get_by_role("button", name="Delete webhook").click()
        await page.get_by_text("No webhooks").wait_for()


async def test_a_viewer_sees_all_and_can_change_nothing(bench: Bench, watched: Watched, page: Page) -> None:
    watched.expected = ("Failed to load resource: the server responded with a status of 401",)
    token, shown = await bench.service.tokens.create("ada", [Grant(Role.VIEWER)])
    await data.failing(bench)
    async with serving(bench.service, guarded=True) as (_, port):
        server = f"http://127.0.0.1:{port}"
        await page.goto(f"{server}/dashboard/errors")
        await page.get_by_label("Token").fill("ojster_wrong_token")
        await page.get_by_role("button", name="Log in").click()
        await page.get_by_text("The token is invalid").wait_for()
        await page.get_by_label("Token").fill(shown)
        await page.get_by_role("button", name="Log in").click()
        await page.get_by_role("row").filter(has_text="MissingCustomer").wait_for()
        assert await page.get_by_role("button", name="Retry").count() == 0
        assert await page.evaluate("document.cookie") == "", "no script reads the token"
        await page.get_by_role("link", name="Overview").click()
        await page.get_by_text("All is well").wait_for()
        flow = await data.flow(bench)
        await open_page(page, server, f"workflows/{flow}", "Order 7")
        await page.get_by_text("orders.py:14 in fulfil").wait_for()
        for action in ("Send approval", "Send a message", "Ask put", "Cancel", "Terminate", "Hold"):
            assert await page.get_by_role("button", name=action).count() == 0
        await bench.service.tokens.revoke(token.id)
        await page.get_by_role("link", name="Jobs", exact=True).click()
        await page.get_by_label("Token").wait_for()


async def test_a_token_that_expires_while_the_page_is_open_asks_for_another(
    bench: Bench, watched: Watched, page: Page
) -> None:
    watched.expected = ("Failed to load resource: the server responded with a status of 401",)
    ends = bench.clock.now + 60 * SECOND
    _, shown = await bench.service.tokens.create("ada", [Grant(Role.VIEWER)], expires_at=ends)
    async with serving(bench.service, guarded=True) as (_, port):
        await page.goto(f"http://127.0.0.1:{port}/dashboard/jobs")
        await page.get_by_label("Token").fill(shown)
        await page.get_by_role("button", name="Log in").click()
        await page.get_by_text("No jobs yet").wait_for()
        bench.clock.advance(61)
        await page.get_by_role("link", name="Errors").click()
        await page.get_by_label("Token").wait_for()
        assert page.url.endswith("/dashboard/errors"), "whoever logs in again is where they wanted to be"


async def test_somebody_logs_in_at_the_identity_provider_and_comes_back_to_the_page(
    bench: Bench, page: Page, watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched.expected = ("Failed to load resource: the server responded with a status of 401",)
    monkeypatch.setenv("AUTHLIB_INSECURE_TRANSPORT", "1")  # the provider is on this machine
    await data.failing(bench)
    port = free_port()
    server = f"http://127.0.0.1:{port}"
    with identity_provider.running() as provider:
        provider.redirect_url = f"{server}/ojs/v1/session/return"
        provider.users, provider.user = {"ada": {"groups": "viewer"}}, "ada"
        client = OidcClient(CLIENT_ID, server, CLIENT_SECRET)
        settings = OidcSettings(provider.url, CLIENT_ID, "groups", client=client)
        async with serving(bench.service, port=port, guarded=True, oidc=settings):
            await page.goto(f"{server}/dashboard/errors?error_type=MissingCustomer")
            await page.get_by_role("link", name=f"Log in with {urlsplit(provider.url).netloc}").click()
            await page.get_by_role("row").filter(has_text="MissingCustomer").wait_for()
            assert page.url == f"{server}/dashboard/errors?error_type=MissingCustomer"
            assert await page.evaluate("document.cookie") == "", "no script reads the token"
            await page.get_by_role("button", name="Log out").click()
            await page.get_by_label("Token").wait_for()
            assert await bench.service.tokens.all() == []


async def test_somebody_of_one_workspace_sees_that_alone(bench: Bench, page: Page, watched: Watched) -> None:
    watched.expected = ("Failed to load resource: the server responded with a status of 401",)
    _, shown = await bench.service.tokens.create("eve", [Grant(Role.CONTRIBUTOR, "acme")])
    await bench.push("of.acme", meta={"tenant_id": "acme"})
    await bench.push("of.others")
    async with serving(bench.service, guarded=True) as (_, port):
        await page.goto(f"http://127.0.0.1:{port}/dashboard/jobs")
        await page.get_by_label("Token").fill(shown)
        await page.get_by_role("button", name="Log in").click()
        await page.get_by_role("link", name="of.acme").wait_for()
        assert await page.get_by_text("of.others").count() == 0
        pages = (
            "Queues",
            "Workers",
            "Schedules",
            "Errors",
            "Events",
            "Workflows",
            "Collections",
            "Overview",
            "Settings",
        )
        for name in pages:
            await page.get_by_role("link", name=name, exact=True).click()
            await page.get_by_role("heading", level=1).wait_for()
            await is_loaded(page)
            assert await page.get_by_role("alert").count() == 0, name
        assert await page.get_by_role("tab").all_inner_texts() == ["Server"]


async def test_a_token_of_two_workspaces_shows_one_and_then_the_other(
    bench: Bench, page: Page, watched: Watched
) -> None:
    watched.expected = ("Failed to load resource: the server responded with a status of 401",)
    grants = [Grant(Role.VIEWER, "acme"), Grant(Role.CONTRIBUTOR, "beta")]
    _, shown = await bench.service.tokens.create("eve", grants)
    for tenant in ("acme", "beta"):
        await bench.push(f"of.{tenant}", meta={"tenant_id": tenant})
    async with serving(bench.service, guarded=True) as (_, port):
        await page.goto(f"http://127.0.0.1:{port}/dashboard/jobs")
        await page.get_by_label("Token").fill(shown)
        await page.get_by_role("button", name="Log in").click()
        await page.get_by_role("link", name="of.acme").wait_for()
        assert await page.get_by_role("link", name="of.beta").count() == 0
        await page.get_by_label("Workspace").select_option("beta")
        await page.get_by_role("link", name="of.beta").wait_for()
        assert await page.get_by_role("link", name="of.acme").count() == 0
        await page.get_by_text("Live", exact=True).wait_for()
        await bench.push("new.of.beta", meta={"tenant_id": "beta"})
        await page.get_by_role("link", name="new.of.beta").wait_for()
        await page.get_by_role("link", name="of.beta", exact=True).click()
        await page.get_by_role("button", name="Cancel").wait_for()


async def test_the_colours_are_those_that_were_chosen(server: str, page: Page, chromium: Browser) -> None:
    await open_page(page, server)
    light = await page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
    await page.get_by_role("button", name="Dark colours").click()
    assert await page.evaluate("getComputedStyle(document.documentElement).backgroundColor") != light
    await page.reload()
    await page.get_by_role("button", name="Light colours").wait_for()
