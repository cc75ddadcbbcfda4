"""Attacks by web pages, in a real browser, on a server without tokens on the same machine."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ojster.server.browser_guard import LOOPBACK_HOSTS, BrowserGuard
from ojster.service import Service
from tests.browser import browser, needs_browser
from tests.conftest import Bench
from tests.serving import serving

if TYPE_CHECKING:
    from playwright.async_api import Page, Route

pytestmark = [pytest.mark.anyio, pytest.mark.thorough, needs_browser]

ATTACKS = {
    "a plain post": """fetch(`${server}/ojs/v1/jobs`, {method: "POST", mode: "no-cors", body: JSON.stringify(job)})""",
    "a post of JSON": """fetch(`${server}/ojs/v1/jobs`, {
        method: "POST", headers: {"content-type": "application/json"}, body: JSON.stringify(job)})""",
    "a beacon": """Promise.resolve(navigator.sendBeacon(`${server}/ojs/v1/jobs`, JSON.stringify(job)))""",
    "a read": """fetch(`${server}/ojs/v1/jobs`).then(answer => answer.text())""",
    "a script": """new Promise((done, failed) => { const tag = document.createElement("script");
        tag.src = `${server}/ojs/v1/jobs`; tag.onload = () => done("read"); tag.onerror = failed;
        document.body.append(tag) })""",
    "an event stream": """new Promise((done, failed) => {
        const events = new EventSource(`${server}/ojs/v1/events/stream`);
        events.onopen = () => done("read");
        events.onerror = failed })""",
    "a WebSocket": """new Promise((done, failed) => {
        const socket = new WebSocket(`${server}/ojs/v1/ws`.replace("http", "ws"));
        socket.onopen = () => done("read");
        socket.onerror = failed })""",
    "a deletion": """fetch(`${server}/ojs/v1/dead-letter`, {method: "DELETE", body: '{"confirm": true}'})""",
}
"""Expressions by what they try; each is a promise that a page waits for."""

UNREADABLE = ("a plain post", "a beacon")
"""Attacks whose page cannot tell whether they were refused."""


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/jobs.db"


@pytest.fixture
async def port(service: Service) -> AsyncIterator[int]:
    async with serving(service, guard=BrowserGuard(LOOPBACK_HOSTS)) as (_, number):
        yield number


@pytest.fixture
async def page() -> AsyncIterator[Page]:
    async with browser("evil.example", "rebound.example") as started:
        yield await started.new_page()


async def open_page(page: Page, url: str) -> None:
    """Open a page of the attacker's own at a URL."""

    async def answer(route: Route) -> None:
        await route.fulfill(body="<title>evil</title><body></body>", content_type="text/html")

    await page.route(url, answer)
    await page.goto(url)


async def attack(page: Page, server: str, expression: str) -> Any:
    """Run an attack in a page; return what the page learns, or ``refused``."""
    code = f"""async ([server, job]) => {{
        try {{ const found = await {expression}; return found?.status ? `status ${{found.status}}` : `${{found}}` }}
        catch {{ return "refused" }} }}"""
    return await page.evaluate(code, [server, {"type": "t", "args": []}])


async def test_a_page_of_another_origin_reaches_nothing(bench: Bench, port: int, page: Page) -> None:
    await open_page(page, "http://evil.example/")
    for what, expression in ATTACKS.items():
        learnt = await attack(page, f"http://127.0.0.1:{port}", expression)
        assert what in UNREADABLE or learnt == "refused", what
    assert await bench.service.jobs.count() == {}


async def test_a_page_whose_name_is_rebound_to_this_machine_reaches_nothing(
    bench: Bench, port: int, page: Page
) -> None:
    here = f"http://rebound.example:{port}"
    await open_page(page, f"{here}/attack")
    for what, expression in ATTACKS.items():
        learnt = await attack(page, here, expression)
        refused = learnt in ("refused", "status 403") or "is not called 'rebound.example" in learnt
        assert what in UNREADABLE or refused, what
    assert await bench.service.jobs.count() == {}


async def test_a_form_that_is_sent_to_the_server_creates_no_job(bench: Bench, port: int, page: Page) -> None:
    await open_page(page, "http://evil.example/")
    await page.set_content(
        f'<form method="post" enctype="text/plain" action="http://127.0.0.1:{port}/ojs/v1/jobs">'
        """<input name='{"type":"t","args":[],"meta":{"a":"' value='"}}'></form>"""
    )
    async with page.expect_navigation():
        await page.evaluate("document.forms[0].submit()")
    assert "may not call this server" in await page.content()
    assert await bench.service.jobs.count() == {}


async def test_the_servers_own_page_may_call_it(bench: Bench, port: int, page: Page) -> None:
    here = f"http://localhost:{port}"
    await open_page(page, f"{here}/own")
    for what in ("a post of JSON", "a read", "an event stream", "a WebSocket"):
        assert await attack(page, here, ATTACKS[what]) != "refused", what
    assert await bench.service.jobs.count() == {"default": {"available": 1}}
