"""Make the pictures of the documentation from the data of ``ojster demo --stay``.

Needs Chromium: ``python dashboard/screenshots.py`` writes to ``docs/pictures``.
"""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
from playwright.sync_api import Page, sync_playwright

PICTURES = Path(__file__).resolve().parent.parent / "docs" / "pictures"
SIZE: Any = {"width": 1280, "height": 800}
SECONDS = 75
"""Time for which the demo fills the server first, in seconds."""


def take(page: Page, server: str, path: str, name: str) -> None:
    """Open a page, wait until it is loaded, and save its picture."""
    page.goto(f"{server}/dashboard/{path}")
    page.get_by_role("heading", level=1).wait_for()
    page.wait_for_timeout(1_500)
    page.screenshot(path=PICTURES / f"{name}.png")


def paths_of(server: str) -> dict[str, str]:
    """Return the path of each page by the name of its picture."""
    calls = httpx.Client(base_url=f"{server}/ojs/v1")
    workflow = calls.get("/workflows?waiting_for=gate").json()["workflows"][0]["id"]
    job = calls.get("/jobs?state=completed&type=email.send").json()["jobs"][0]["id"]
    lists = ("jobs", "workflows", "queues", "workers", "schedules", "errors", "events", "collections", "admin")
    ones = {"workflow": f"workflows/{workflow}", "job": f"jobs/{job}", "queue": "queues/default"}
    return {"overview": ""} | {name: name for name in lists} | ones


def main() -> None:
    """Run the demo, and make each picture in light and dark."""
    PICTURES.mkdir(exist_ok=True)
    demo = subprocess.Popen(
        [sys.executable, "-m", "ojster", "demo", "--stay"], stdout=subprocess.PIPE, text=True, env={"COLUMNS": "200"}
    )
    try:
        assert demo.stdout is not None
        server = next(found[1] for line in demo.stdout if (found := re.search(r"(http://\S+)/dashboard/", line)))
        time.sleep(SECONDS)
        paths = paths_of(server)
        with sync_playwright() as library:
            browser = library.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
            for scheme in ("light", "dark"):
                page = browser.new_page(viewport=SIZE, color_scheme=scheme)
                for name, path in paths.items():
                    take(page, server, path, f"{name}-{scheme}")
                page.close()
            browser.close()
    finally:
        demo.send_signal(signal.SIGINT)
        demo.wait(30)


if __name__ == "__main__":
    main()
