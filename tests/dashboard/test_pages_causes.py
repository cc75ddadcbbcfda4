"""What a failed workflow, a step, and a job say of their causes, and what people answered."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ojster.jobs.failure import Failure
from ojster.jobs.filter_walk import JobFilter
from ojster.jobs.messages import FailureReport
from tests.browser import needs_browser
from tests.conftest import Bench
from tests.dashboard import data
from tests.dashboard.conftest import BUILT, Watched
from tests.dashboard.test_pages import faults, open_page

if TYPE_CHECKING:
    from playwright.async_api import Page

pytestmark = [pytest.mark.anyio, pytest.mark.slow, needs_browser, BUILT]


async def test_a_failed_workflow_shows_why_first_and_opens_at_the_failed_step(
    bench: Bench, server: str, page: Page
) -> None:
    """Also one in a container that is folded, because it has many steps."""
    rows = [{"type": "row.import", "args": [number], "options": {"queue": "rows"}} for number in range(90)]
    group = {"id": "rows", "type": "group", "jobs": rows}
    steps = [group, data.step("report", "rows"), data.step("tell", "report")]
    id = await data.create(bench, {"type": "graph", "name": "Import", "steps": steps})
    for job in await bench.fetch("rows", count=90):
        if job.args != [77]:
            await bench.ack(job)
            continue
        failure = Failure("BadRow", "row 77 has no price", retryable=False, backtrace=("File shop.py, line 7",))
        await bench.service.jobs.fail([FailureReport(job.id, failure, job.worker_id, job.attempt)])
    await open_page(page, server, f"workflows/{id}")
    why = page.get_by_role("region", name="Why it failed")
    await why.get_by_text("row 77 has no price").wait_for()
    node = page.get_by_role("button", name="rows.77, failed")
    await node.wait_for()
    box, canvas = await node.bounding_box(), await page.locator(".canvas").bounding_box()
    assert box is not None
    assert canvas is not None
    assert canvas["x"] < box["x"] < canvas["x"] + canvas["width"]
    assert canvas["y"] < box["y"] < canvas["y"] + canvas["height"]
    assert await faults(page) == []
    await page.get_by_role("tab", name="Steps").click()
    await page.get_by_role("button", name="tell", exact=True).click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_text("A step before it did not succeed. rows").wait_for()
    assert await faults(page) == []
    await dialog.get_by_role("button", name="Close").click()
    await why.get_by_role("link", name="Job and backtrace").click()
    await page.get_by_text("File shop.py, line 7").wait_for()


async def test_a_form_takes_no_for_an_answer_marks_what_is_wrong_and_can_be_read_afterwards(
    bench: Bench, server: str, page: Page, watched: Watched
) -> None:
    watched.expected = ("Failed to load resource: the server responded with a status of 422",)
    form = {
        "title": "Pay?",
        "type": "object",
        "required": ["approved", "limit"],
        "properties": {
            "approved": {"type": "boolean", "title": "Approved"},
            "limit": {"type": "integer", "title": "Limit", "minimum": 1, "maximum": 500},
            "reason": {"type": "string", "title": "Reason", "not": {"const": "none"}},
        },
    }
    wait = {"id": "ask", "type": "ojster.wait", "args": [], "ojster_wait": {"form": form}}
    body = {"type": "chain", "name": "Expense 100", "steps": [data.step("check", manual=True), wait]}
    id = await data.create(bench, body)
    await open_page(page, server, f"workflows/{id}")
    await page.get_by_role("button", name="Approve step", exact=True).click()
    await page.get_by_role("dialog").get_by_label("Notes").fill("looks good")
    await page.get_by_role("dialog").get_by_role("button", name="Approve step").click()
    await bench.ack(await bench.fetch_one())
    await page.get_by_role("button", name="Answer step").click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_role("group", name="Approved").get_by_label("No").check()
    await dialog.get_by_label("Limit").fill("900")
    await dialog.get_by_label("Reason").fill("none")
    await dialog.get_by_role("button", name="Send answer").click()
    assert await dialog.get_by_label("Limit").get_attribute("aria-invalid") == "true"
    await dialog.get_by_text("500").wait_for()
    assert await faults(page) == []
    await dialog.get_by_label("Limit").fill("100")
    await dialog.get_by_role("button", name="Send answer").click()
    await dialog.locator("[aria-invalid=true]").and_(dialog.get_by_label("Reason")).wait_for()
    await dialog.get_by_label("Reason").fill("too late")
    await dialog.get_by_role("button", name="Send answer").click()
    await page.get_by_text("ask got the answer.").wait_for()
    await page.get_by_role("tab", name="Notes").click()
    await page.get_by_text("Somebody without a token approved the step 'check': looks good").wait_for()
    await page.get_by_text('answered the step \'ask\' with {"approved":false,"limit":100').wait_for()
    await page.get_by_role("tab", name="Steps").click()
    await page.get_by_role("button", name="check", exact=True).click()
    await dialog.get_by_text("approved it").wait_for()
    await dialog.get_by_text("looks good").wait_for()


async def test_a_job_tells_where_it_belongs_and_runs_again_with_other_arguments(
    bench: Bench, server: str, page: Page
) -> None:
    limit = {"key": "stripe", "concurrency": 2}
    await bench.push("pay", 1, rate_limit=limit)
    job = await bench.push("pay", {"card": "expired"}, rate_limit=limit, tags=["vip", "eu"], meta={"order": 7})
    await open_page(page, server, f"jobs/{job.id}")
    shown = await page.inner_text("main")
    for text in ("vip", "eu", "Place in its queue\nnumber 2", "Limit stripe", "0 of 2 at a time"):
        assert text in shown, text
    assert await faults(page) == []
    await page.get_by_role("button", name="Run with other arguments").click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_label("Arguments").fill('{"card": "new"}')
    await dialog.get_by_role("button", name="Enqueue job").click()
    await dialog.get_by_text("The arguments are no JSON list.").wait_for()
    assert await faults(page) == []
    await dialog.get_by_label("Arguments").fill('[{"card": "new"}]')
    await dialog.get_by_role("button", name="Enqueue job").click()
    await page.get_by_text("The job was enqueued.").wait_for()
    await page.get_by_text('"new"').first.wait_for()
    copies = (await bench.service.jobs.select(JobFilter(type="pay"))).jobs
    assert [copy.args for copy in copies] == [[{"card": "new"}], [{"card": "expired"}], [1]]
    assert (await bench.service.jobs.lineage(copies[0].id)).parent_id == job.id
    assert copies[0].id in bytes((await bench.service.notes.of_job(job.id))[0].note).decode()
    await page.get_by_role("link", name=job.id[-12:]).click()
    await page.get_by_text('"expired"').first.wait_for()


async def test_a_job_shows_the_quotas_of_its_tenant_and_a_copy_has_the_same_numbers(
    bench: Bench, server: str, page: Page
) -> None:
    await page.request.put(f"{server}/ojs/v1/admin/tenants/acme", data={"limits": {"max_queue_depth": 5}})
    body = '{"type": "pay", "args": [1.0, 12345678901234567], "meta": {"tenant_id": "acme"}}'
    pushed = await page.request.post(f"{server}/ojs/v1/jobs", data=body, headers={"Content-Type": "application/json"})
    await open_page(page, server, f"jobs/{(await pushed.json())['job']['id']}")
    await page.get_by_text("Quota of the tenant acme").wait_for()
    await page.get_by_text("1 of 5 that wait").wait_for()
    assert await faults(page) == []
    await page.get_by_role("button", name="Run a copy").click()
    await page.get_by_role("button", name="Enqueue copy").click()
    await page.get_by_text("A copy was enqueued.").wait_for()
    copies = (await bench.service.jobs.select(JobFilter(type="pay"))).jobs
    assert [str(copy.args) for copy in copies] == ["[1.0, 12345678901234567]"] * 2


async def test_a_new_job_of_a_type_with_a_schema_is_made_by_a_form(bench: Bench, server: str, page: Page) -> None:
    amount = {"type": "integer", "title": "Amount", "minimum": 1}
    schema = {"type": "array", "prefixItems": [{"type": "string", "title": "Card"}, amount], "minItems": 2}
    registered = {"type": "pay", "version": 1, "schema": schema}
    assert (await page.request.post(f"{server}/ojs/v1/schemas", data=registered)).ok
    await bench.push("pay", "visa", 5, queue="money")
    await open_page(page, server, "jobs")
    await page.get_by_role("button", name="New job").click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_label("Type").fill("pay")
    await dialog.get_by_role("button", name="Choose type").click()
    await dialog.get_by_label("Amount").fill("70")
    assert await dialog.get_by_label("Card").input_value() == "visa", "the last job of the type is the example"
    assert await faults(page) == []
    await dialog.get_by_role("button", name="Enqueue job").click()
    await page.get_by_text("The job was enqueued.").wait_for()
    (made, _) = (await bench.service.jobs.select(JobFilter(type="pay"))).jobs
    assert (made.args, made.queue) == (["visa", 70], "money")


async def test_steps_timeline_and_comparison_go_beyond_the_first_page(bench: Bench, server: str, page: Page) -> None:
    jobs = [{"type": "row.import", "args": [number], "options": {"queue": "rows"}} for number in range(1_203)]
    ids = [await data.create(bench, {"type": "group", "name": "Import", "jobs": jobs}) for _ in range(2)]
    while taken := await bench.fetch("rows", count=1_000):
        for job in taken:
            await (bench.fail(job, retryable=False) if job.args == [240] else bench.ack(job))
    await open_page(page, server, f"workflows/{ids[0]}")
    await page.get_by_role("tab", name="Steps").click()
    await page.get_by_role("button", name="199", exact=True).wait_for()
    await page.get_by_role("button", name="Steps after").click()
    await page.get_by_role("button", name="200", exact=True).wait_for()
    await page.get_by_label("State of steps").select_option("failed")
    await page.get_by_role("button", name="240", exact=True).wait_for()
    assert await page.get_by_role("table", name="Steps").get_by_role("row").count() == 2
    assert await faults(page) == []
    await page.get_by_role("tab", name="Timeline").click()
    await page.get_by_text("1 step in").wait_for()
    await page.get_by_label("State of steps").select_option("Any state")
    await page.get_by_label("Name, path or type of steps").fill("239")
    await page.get_by_role("button", name="Find steps").click()
    await page.get_by_text("239: completed").wait_for(state="attached")
    await page.reload()
    await page.get_by_text("239: completed").wait_for(state="attached")
    assert await page.get_by_label("Name, path or type of steps").input_value() == "239", "the address has the search"
    await page.get_by_role("tab", name="Steps").click()
    await page.get_by_role("button", name="239", exact=True).wait_for()
    await open_page(page, server, f"workflows/{ids[0]}/compare/{ids[1]}")
    await page.get_by_text("1 to 200 of 1,203 steps").wait_for()
    await page.get_by_role("button", name="Smaller differences").click()
    await page.get_by_text("201 to 400 of 1,203 steps").wait_for()
