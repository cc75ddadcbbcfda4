"""What the pages say when the server is not heard: frozen, out of reach, or behind a proxy that keeps the stream."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

from ojster.server.endpoints import streams as stream_routes
from tests.browser import needs_browser
from tests.conftest import Bench
from tests.dashboard.conftest import BUILT, Watched
from tests.dashboard.test_pages import open_page
from tests.postgres import free_port
from tests.waiting import answers, until

if TYPE_CHECKING:
    from playwright.async_api import Page

pytestmark = [pytest.mark.anyio, pytest.mark.slow, needs_browser, BUILT]


async def is_live(page: Page) -> None:
    await page.get_by_text("Live", exact=True).wait_for()
    assert await page.locator("main.stale").count() == 0


async def is_stale(page: Page) -> None:
    await page.get_by_text("No answer since").wait_for()
    await page.locator("main.stale").wait_for()


@pytest.fixture
def process(url: str) -> Iterator[tuple[int, str]]:
    """A server in a process of its own: its id and its address."""
    port = free_port()
    environment = os.environ | {"OJSTER_DATABASE_URL": url}
    command = [sys.executable, "-m", "ojster", "serve", "--port", str(port)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            until(lambda: answers(f"http://127.0.0.1:{port}/ojs/v1/health"))
            yield server.pid, f"http://127.0.0.1:{port}"
        finally:
            os.kill(server.pid, signal.SIGCONT)
            server.kill()


async def test_a_server_that_freezes_is_noticed_what_is_old_turns_grey_and_it_is_found_again(
    process: tuple[int, str], page: Page
) -> None:
    pid, server = process
    await page.clock.install()
    await open_page(page, server, "jobs")
    await is_live(page)
    os.kill(pid, signal.SIGSTOP)
    await page.clock.run_for(5_000)
    await is_live(page)
    await page.clock.run_for(8_000)
    await is_stale(page)
    await page.get_by_role("link", name="Queues").click()
    await page.clock.run_for(16_000)
    await page.get_by_text("The server has not answered within 15 s. The page tries again by itself.").first.wait_for()
    os.kill(pid, signal.SIGCONT)
    await page.clock.run_for(6_000)
    await is_live(page)
    await page.get_by_text("No queues yet").wait_for()


ALONE = "delete window.SharedWorker"
"""Gives a page a stream of its own: a test does not see the requests of a shared worker."""


async def test_a_heartbeat_that_stays_away_is_noticed_and_what_was_missed_is_read(
    bench: Bench, server: str, page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And then the server does not even answer."""
    monkeypatch.setattr(stream_routes, "PATIENCE", 3_600.0)
    await page.add_init_script(ALONE)
    await page.clock.install()
    await open_page(page, server, "jobs")
    await is_live(page)
    await page.clock.run_for(5_000)
    await is_live(page)
    await page.route("**/events/changes", lambda route: None)
    await page.route("**/ping", lambda route: None)
    await page.clock.run_for(6_000)
    await is_stale(page)
    await page.clock.run_for(30_000)
    await is_stale(page)
    await page.unroute("**/events/changes")
    await bench.push("while.silent")
    await page.clock.run_for(30_000)
    await is_live(page)
    await page.get_by_role("link", name="while.silent").wait_for()


async def test_a_computer_that_has_slept_connects_again_at_once(bench: Bench, server: str, page: Page) -> None:
    """Its old connection may be dead without a word."""
    connections: list[str | None] = []
    page.on(
        "request",
        lambda request: (
            connections.append(request.headers.get("last-event-id")) if "events/changes" in request.url else None
        ),
    )
    await page.add_init_script(ALONE)
    await page.clock.install()
    await open_page(page, server, "jobs")
    await is_live(page)
    await bench.push("before")
    await page.get_by_role("link", name="before").wait_for()
    await page.clock.fast_forward("08:00:00")
    while len(connections) < 2:
        await page.wait_for_timeout(20)
    await is_live(page)
    assert connections[0] is None
    assert connections[1] is not None, "it goes on where it was"


@asynccontextmanager
async def swallowing(server: str) -> AsyncIterator[str]:
    """Run a proxy that passes everything on but the body of streams; yield its address."""
    host, port = urlsplit(server).hostname, urlsplit(server).port

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, asked: asyncio.Event | None) -> None:
        while piece := await reader.read(65_536):
            if asked is None or not asked.is_set():
                writer.write(piece)
            elif b"\r\n\r\n" in piece:
                writer.write(piece[: piece.index(b"\r\n\r\n") + 4])

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        to_reader, to_writer = await asyncio.open_connection(host, port)
        is_stream = asyncio.Event()
        answering = asyncio.create_task(pass_on(to_reader, writer, is_stream))
        try:
            while piece := await reader.read(65_536):
                if b"/events/changes" in piece:
                    is_stream.set()
                to_writer.write(piece)
        except ConnectionError:
            pass
        finally:
            answering.cancel()
            await asyncio.gather(answering, return_exceptions=True)
            to_writer.close()
            writer.close()

    proxy = await asyncio.start_server(serve, "127.0.0.1", 0)
    yield f"http://127.0.0.1:{proxy.sockets[0].getsockname()[1]}"
    proxy.close()


async def test_behind_a_proxy_that_keeps_the_stream_the_page_asks_every_few_seconds(
    bench: Bench, server: str, page: Page
) -> None:
    async with swallowing(server) as proxy:
        await page.clock.install()
        await open_page(page, proxy, "jobs")
        await page.get_by_text("Connecting…").wait_for()
        await page.clock.run_for(11_000)
        await page.get_by_text("Every 5 s").wait_for()
        await bench.push("seen.late")
        await page.clock.run_for(6_000)
        await page.get_by_role("link", name="seen.late").wait_for()
        assert await page.locator("main.stale").count() == 0
        await page.close()


async def test_what_a_proxy_could_not_pass_on_is_asked_for_again_and_an_action_without_an_answer_ends(
    bench: Bench, server: str, page: Page, watched: Watched
) -> None:
    job = await bench.push("slow.one")
    await page.clock.install()
    watched.expected = ("Failed to load resource: the server responded with a status of 502",)
    await page.route(f"**/ojs/v1/jobs/{job.id}", lambda route: route.fulfill(status=502))
    await page.goto(f"{server}/dashboard/jobs/{job.id}")
    await page.get_by_text("The server answered 502.").wait_for()
    await page.unroute(f"**/ojs/v1/jobs/{job.id}")
    await page.clock.run_for(6_000)
    await page.get_by_role("heading", name="slow.one").wait_for()
    await page.route("**/jobs/bulk/cancel", lambda route: None)
    await page.get_by_role("button", name="Cancel job").click()
    await page.get_by_role("button", name="Cancel this job").click()
    await page.clock.run_for(61_000)
    await page.get_by_text("The server has not answered within 60 s. It may have done it all the same").wait_for()


def test_the_limits_of_pages_are_longer_than_what_a_server_that_works_needs() -> None:
    """A heartbeat comes in time, even if something has happened just before it."""
    assert stream_routes.CHANGES_EVERY + 2 * stream_routes.PATIENCE < 10
