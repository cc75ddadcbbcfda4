"""Forms that the signatures of handlers make: for a new job, and for a flow that starts."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING, Literal

import pytest

from ojster import App, Flow
from ojster.handlers.signature_schema import signatures_of
from ojster.jobs.filter_walk import JobFilter
from tests.browser import needs_browser
from tests.conftest import Bench
from tests.dashboard.conftest import BUILT
from tests.dashboard.test_pages import faults, open_page

if TYPE_CHECKING:
    from playwright.async_api import Page

pytestmark = [pytest.mark.anyio, pytest.mark.slow, needs_browser, BUILT]

app = App("sqlite:///:memory:")


@dataclass
class Address:
    street: str
    city: str = "Vienna"


@app.job("parcel.send")
def send(
    to: Address, day: date, copies: int = 2, note: str | None = None, *, mode: Literal["fast", "slow"]
) -> None: ...


@app.flow("order.fulfil")
async def fulfil(flow: Flow, order: int, express: bool = False) -> None: ...


async def test_a_new_job_is_made_by_a_form_from_the_signature_of_its_handler(
    bench: Bench, server: str, page: Page
) -> None:
    await bench.service.job_types.announce(signatures_of(list(app.handlers.values())))
    await open_page(page, server, "jobs")
    await page.get_by_role("button", name="New job").click()
    dialog = page.get_by_role("dialog")
    await dialog.locator("datalist option").first.wait_for(state="attached")
    assert await dialog.locator("datalist option").evaluate_all("all => all.map(one => one.value)") == [
        "parcel.send",
        "report.build",
    ]
    await dialog.get_by_label("Type").fill("parcel.send")
    await dialog.get_by_role("button", name="Choose type").click()
    await dialog.get_by_label("street").fill("Ring 1")
    await dialog.get_by_label("day").fill("2026-01-31")
    assert await dialog.get_by_label("copies").input_value() == "2", "the default of the parameter"
    await dialog.get_by_role("button", name="Enqueue job").click()
    assert not (await bench.service.jobs.select(JobFilter(type="parcel.send"))).jobs, "the named argument is missing"
    await dialog.get_by_label("slow").check()
    assert await faults(page) == []
    await dialog.get_by_role("button", name="Enqueue job").click()
    await page.get_by_text("The job was enqueued.").wait_for()
    (job,) = (await bench.service.jobs.select(JobFilter(type="parcel.send"))).jobs
    assert job.args == [{"street": "Ring 1"}, "2026-01-31", 2, None, {"mode": "slow"}]
    send.types.convert(job.args)


@dataclass
class Options:
    retries: int = 3


@app.job("report.build")
def build(options: Options, limit: float = float("inf"), *, dry: bool = False) -> None: ...


async def test_a_form_sends_what_the_handler_takes_for_arguments_that_are_left_empty(
    bench: Bench, server: str, page: Page
) -> None:
    await bench.service.job_types.announce(signatures_of(list(app.handlers.values())))
    await open_page(page, server, "jobs")
    await page.get_by_role("button", name="New job").click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_label("Type").fill("report.build")
    await dialog.get_by_role("button", name="Choose type").click()
    yes = dialog.get_by_role("group", name="dry").get_by_label("Yes")
    await yes.check()
    await dialog.get_by_role("button", name="Enqueue job").click()
    await dialog.get_by_text("limit has no value here").wait_for()
    await dialog.get_by_label("limit").fill("5")
    await dialog.get_by_role("button", name="Enqueue job").click()
    await page.get_by_text("The job was enqueued.").wait_for()
    (job,) = (await bench.service.jobs.select(JobFilter(type="report.build"))).jobs
    assert job.args == [{}, 5, {"dry": True}]
    build.types.convert(job.args)


async def test_a_flow_is_started_by_a_form_from_the_signature_of_its_function(
    bench: Bench, server: str, page: Page
) -> None:
    await bench.service.job_types.announce(signatures_of(list(app.handlers.values())))
    await open_page(page, server, "workflows")
    await page.get_by_role("button", name="Start a workflow").click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_label("Definition or flow").select_option("order.fulfil (flow)")
    await dialog.get_by_label("order").last.fill("7")
    await dialog.get_by_role("group", name="express").get_by_label("Yes").check()
    assert await faults(page) == []
    await dialog.get_by_role("button", name="Start flow").click()
    await page.get_by_text("The workflow was started.").wait_for()
    job = await bench.fetch_one()
    assert (job.type, job.args, job.node is not None) == ("order.fulfil", [7, True], True)
