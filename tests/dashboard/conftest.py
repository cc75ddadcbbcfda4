"""A real server with data of every kind, and a real browser that looks at it."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

from ojster.core.durations import SECOND
from ojster.server import dashboard_page
from ojster.service import Service
from tests.browser import browser
from tests.conftest import Clock
from tests.serving import serving
from tests.waiting import PATIENCE

if TYPE_CHECKING:
    from playwright.async_api import Browser, ConsoleMessage, Page, Request

BUILT = pytest.mark.skipif(not dashboard_page.is_built(), reason="the dashboard was not built (make dashboard)")


@pytest.fixture
def clock() -> Clock:
    """A clock that begins now, because the browser has its own."""
    made = Clock()
    made.now = int(time.time()) * SECOND
    return made


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/jobs.db"


@pytest.fixture
async def server(service: Service) -> AsyncIterator[str]:
    async with serving(service) as (_, port):
        yield f"http://127.0.0.1:{port}"


@pytest.fixture
async def chromium() -> AsyncIterator[Browser]:
    async with browser() as started:
        yield started


class Watched:
    """A page, and what went wrong in it."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.problems: list[str] = []
        self.expected: tuple[str, ...] = ()
        """Beginnings of messages that a test expects, such as those of refused requests."""
        page.on("console", self._hear)
        page.on("pageerror", lambda error: self.problems.append(str(error)))
        page.on("request", self._look)

    def _hear(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.problems.append(message.text)

    def _look(self, request: Request) -> None:
        place = urlsplit(request.url)
        if place.scheme in ("http", "https") and place.hostname != "127.0.0.1":
            self.problems.append(f"a request leaves the machine: {request.url}")

    def check(self) -> None:
        """Fail if anything went wrong that was not expected."""
        assert [one for one in self.problems if not one.startswith(self.expected or ("\0",))] == []


@pytest.fixture
async def watched(chromium: Browser) -> AsyncIterator[Watched]:
    made = Watched(await chromium.new_page(viewport={"width": 1440, "height": 900}))
    made.page.set_default_timeout(PATIENCE * 1_000)
    yield made
    made.check()


@pytest.fixture
def page(watched: Watched) -> Page:
    return watched.page
