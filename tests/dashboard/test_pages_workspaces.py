"""What those see who may not see or change all, and what operators change of workers and pools."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from ojster.core.access import Grant, Role
from ojster.fleet.workers import Heartbeat
from tests.browser import needs_browser
from tests.conftest import Bench
from tests.dashboard import data
from tests.dashboard.conftest import BUILT, Watched
from tests.dashboard.test_pages import faults, is_loaded, open_page
from tests.serving import serving

if TYPE_CHECKING:
    from playwright.async_api import Page

pytestmark = [pytest.mark.anyio, pytest.mark.slow, needs_browser, BUILT]

REFUSED = ("Failed to load resource: the server responded with a status of 401",)


async def log_in(page: Page, server: str, secret: str) -> None:
    await page.goto(f"{server}/dashboard/")
    await page.get_by_label("Token").fill(secret)
    await page.get_by_role("button", name="Log in").click()
    await page.get_by_role("heading", level=1, name="Overview").wait_for()


async def test_the_overview_of_a_workspace_says_what_failed_what_waits_and_where_jobs_are(
    bench: Bench, watched: Watched, page: Page
) -> None:
    watched.expected = REFUSED
    acme = {"tenant_id": "acme"}
    _, secret = await bench.service.tokens.create("ada", [Grant(Role.CONTRIBUTOR, "acme")])
    async with serving(bench.service, guarded=True) as (_, port):
        server = f"http://127.0.0.1:{port}"
        await log_in(page, server, secret)
        await page.get_by_text("All is well: no job gave up").wait_for()
        await page.get_by_text("No queue has had a job yet.").wait_for()
        await bench.push("other", queue="hidden", meta={"tenant_id": "beta"})
        await bench.push("pay", queue="money", meta=acme, retry={"max_attempts": 1, "on_exhaustion": "dead_letter"})
        await bench.fail(await bench.fetch_one("money"))
        approval = {"type": "gate", "id": "approve"}
        body = {"type": "chain", "name": "Release", "steps": [approval], "options": {"meta": acme}}
        headers = {"Authorization": f"Bearer {secret}"}
        made = await page.request.post(f"{server}/ojs/v1/workflows", data=body, headers=headers)
        assert made.ok, await made.text()
        await page.get_by_text("1 job of pay gave up").wait_for()
        await page.get_by_text("1 workflow waits for an approval.").wait_for()
        await page.get_by_role("link", name="Open jobs of money").wait_for()
        assert await page.get_by_text("hidden", exact=True).count() == 0
        assert await faults(page) == []
        await page.get_by_role("link", name="Open workflow Release").click()
        await page.get_by_role("heading", level=1, name="Release").wait_for()


async def test_the_settings_of_a_viewer_say_who_is_here_and_what_is_allowed(
    bench: Bench, watched: Watched, page: Page
) -> None:
    watched.expected = REFUSED
    _, secret = await bench.service.tokens.create("ada", [Grant(Role.VIEWER)])
    async with serving(bench.service, guarded=True) as (_, port):
        server = f"http://127.0.0.1:{port}"
        await log_in(page, server, secret)
        await page.get_by_role("link", name="Settings").click()
        await page.get_by_text("read jobs, workflows and queues").wait_for()
        shown = await page.inner_text("main")
        for text in ("Token\nada", "Workspaces\nall", "on sqlite", "Ask one for a token with the role owner"):
            assert text in shown, text
        assert await page.get_by_role("tab").all_inner_texts() == ["Server"]
        assert await faults(page) == []


@pytest.mark.parametrize("queues", [("bad", "mail"), ("bad*", "mail*")])
async def test_a_token_of_some_queues_sees_those_on_every_page_and_no_button_that_is_refused(
    bench: Bench, watched: Watched, page: Page, queues: tuple[str, ...]
) -> None:
    watched.expected = REFUSED
    _, secret = await bench.service.tokens.create("ada", [Grant(Role.CONTRIBUTOR)], queues=queues)
    await data.failing(bench)
    await bench.push("mail.send", queue="mail")
    await bench.push("secret", queue="hidden")
    workflow = await data.release(bench)
    async with serving(bench.service, guarded=True) as (_, port):
        server = f"http://127.0.0.1:{port}"
        await log_in(page, server, secret)
        pages = ("Overview", "Jobs", "Errors", "Queues", "Workers", "Events", "Collections", "Settings")
        assert [link.split("\n")[0].strip() for link in await page.locator("nav li").all_inner_texts()] == list(pages)
        for name in pages:
            await page.get_by_role("link", name=re.compile(f"^{name}")).first.click()
            await page.get_by_role("heading", level=1, name=name).wait_for()
            await is_loaded(page)
            assert await page.get_by_role("alert").count() == 0, name
            assert await page.get_by_text(re.compile("secret|hidden")).locator("visible=true").count() == 0, name
        await page.get_by_text("bad, mail").wait_for()
        await page.get_by_role("link", name="Jobs", exact=True).click()
        await page.get_by_text("5 jobs match").wait_for()
        await page.get_by_role("link", name=re.compile("^Errors")).click()
        await page.get_by_role("button", name="Retry 4 jobs").click()
        await page.get_by_role("dialog").get_by_role("button", name="Retry 4 jobs").click()
        await page.get_by_text("4 jobs retried.").wait_for()
        await open_page(page, server, f"workflows/{workflow}", "Release 4.2")
        for action in ("Cancel workflow", "Terminate workflow", "Hold workflow", "Approve step", "Fork workflow"):
            assert await page.get_by_role("button", name=action).count() == 0, action


@pytest.mark.parametrize("queues", [(), ("shop*",)])
async def test_a_producer_enqueues_jobs_and_meets_no_refusal(
    bench: Bench, watched: Watched, page: Page, queues: tuple[str, ...]
) -> None:
    watched.expected = REFUSED
    _, secret = await bench.service.tokens.create("shop", [Grant(Role.PRODUCER)], queues=queues)
    async with serving(bench.service, guarded=True) as (_, port):
        server = f"http://127.0.0.1:{port}"
        await page.goto(f"{server}/dashboard/jobs")
        await page.get_by_label("Token").fill(secret)
        await page.get_by_role("button", name="Log in").click()
        await page.get_by_role("heading", level=1, name="Enqueue jobs").wait_for()
        await page.get_by_text("ask an owner for a token with the role viewer").wait_for()
        pages = [link.strip() for link in await page.locator("nav li").all_inner_texts()]
        assert pages == ["Enqueue jobs", "Settings"]
        assert await faults(page) == []
        await page.get_by_role("button", name="New job").click()
        dialog = page.get_by_role("dialog")
        await dialog.get_by_label("Type").fill("mail.send")
        await dialog.get_by_role("button", name="Choose type").click()
        await dialog.get_by_label("Arguments, as a JSON list").fill("[1]")
        await dialog.get_by_label("Queue").fill("shop")
        await dialog.get_by_role("button", name="Enqueue job").click()
        await page.get_by_text("was enqueued.").wait_for()
        job = await bench.fetch_one("shop")
        assert job.type == "mail.send"
        await page.get_by_role("link", name="Settings").click()
        await page.get_by_text("enqueue jobs and start workflows").wait_for()
        await is_loaded(page)
        assert await page.get_by_role("alert").count() == 0


async def test_workers_of_one_host_stand_together(bench: Bench, server: str, page: Page) -> None:
    for number, host in enumerate(("one", "two", "one", "three")):
        beat = Heartbeat(f"w{number}", hostname=host, queues=("default",), concurrency=5)
        await bench.service.fleet.beat(beat)
    await open_page(page, server, "workers")
    await page.get_by_text("one: 2 workers, 0 of 10 places taken").wait_for()
    rows = await page.get_by_role("table", name="Workers").get_by_role("row").all_inner_texts()
    hosts = [row.split()[0] for row in rows[1:]]
    assert hosts.count("one:") == 1
    start = hosts.index("one:")
    assert (hosts[start + 1 : start + 3], len(hosts)) == (["one", "one"], 5)
    assert await faults(page) == []


async def test_a_pool_gets_another_size_and_keeps_the_rest(bench: Bench, server: str, page: Page) -> None:
    pool = {"queues": ["mail", "money"], "strategy": "weighted", "weights": {"mail": 3}, "concurrency": 4}
    assert (await page.request.put(f"{server}/ojs/v1/admin/pools/slow", data=pool)).ok
    before = await bench.service.pools.find("slow")
    await open_page(page, server, "queues")
    await page.get_by_role("button", name="Resize pool slow").click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_role("textbox").fill("none")
    await dialog.get_by_role("button", name="Resize pool").click()
    await page.get_by_text("none is no whole number above 0.").wait_for()
    await page.get_by_role("button", name="Resize pool slow").click()
    await dialog.get_by_role("textbox").fill("9")
    await dialog.get_by_role("button", name="Resize pool").click()
    await page.get_by_text("The pool slow runs at most 9 jobs at once.").wait_for()
    after = await bench.service.pools.find("slow")
    assert (after.concurrency, after.queues, after.strategy, after.weights) == (
        9,
        before.queues,
        before.strategy,
        before.weights,
    )
