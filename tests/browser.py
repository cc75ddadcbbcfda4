"""A real browser for tests: Chromium as the system has installed it, without a way out of this machine."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.async_api import Browser

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

QUIET = (
    "--no-sandbox",  # tests may run as root
    "--disable-gpu",
    "--disable-quic",
    "--disable-sync",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
    # The server has to refuse what other browsers, and older ones, let through.
    "--disable-features=LocalNetworkAccessChecks,LocalNetworkAccessChecksWebSockets",
)

needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed (apt-get install chromium)")


@asynccontextmanager
async def browser(*names: str) -> AsyncIterator[Browser]:
    """Start Chromium; ``names`` lead to this machine, and all other names nowhere."""
    from playwright.async_api import async_playwright

    rules = ", ".join(
        [*(f"MAP {name} 127.0.0.1" for name in names), "MAP * ~NOTFOUND", "EXCLUDE localhost", "EXCLUDE 127.0.0.1"]
    )
    async with async_playwright() as library:
        started = await library.chromium.launch(
            executable_path=CHROMIUM, args=[*QUIET, f"--host-resolver-rules={rules}"]
        )
        yield started
        await started.close()
