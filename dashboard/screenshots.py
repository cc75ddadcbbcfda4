"""Make the pictures of the documentation from the data of ``ojster demo --stay``.

Needs Chromium: ``python dashboard/screenshots.py`` writes to ``docs/pictures``. With a folder, it writes there what a
phone shows in the dark.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx
from playwright.sync_api import Page, sync_playwright

from ojster.events import webhooks
from ojster.events.subscription import Subscription
from ojster.push.endpoints import Trouble
from ojster.push.wire import PushConfigBody, PushEndpointBody
from ojster.service import Service
from ojster.storage.open import open_database

PICTURES = Path(__file__).resolve().parent.parent / "docs" / "pictures"
SIZE: Any = {"width": 1280, "height": 800}
PHONE: Any = {"width": 390, "height": 844}
SECONDS = 60
"""Time for which the demo fills the server first, in seconds."""


def take(page: Page, server: str, path: str, picture: Path) -> None:
    """Open a page, or one of its tabs, wait until it is loaded, and save its picture."""
    path, _, tab = path.partition("#")
    page.goto(f"{server}/dashboard/{path}")
    page.get_by_role("heading", level=1).wait_for()
    if tab:
        page.get_by_role("tab", name=tab).click()
    page.wait_for_timeout(1_500)
    page.screenshot(path=picture)


async def add_receivers(database: Path) -> None:
    """Add a webhook and push endpoints, to which nothing is sent: no job is in their queues."""
    service = Service(open_database(f"sqlite:///{database}"))
    address, now = "https://203.0.113.7", service.database.clock()
    hook = Subscription("sub_1", f"{address}/hook", ("queue.paused", "worker.lost"), "whsec_of_the_picture", now)
    await service.scope.do(webhooks.subscribe, hook)
    for id, most in (("invoices", 20), ("images", 5), ("letters", 10)):
        body = PushEndpointBody(f"{address}/{id}", queues=(id,), config=PushConfigBody(max_concurrency=most))
        await service.push.put(id, body)
    await service.push.note_trouble(Trouble("images", "it answered 429", wish=600_000_000))
    await service.push.note_trouble(Trouble("letters", "it answered 404", is_final=True))
    await service.close()


def paths_of(server: str) -> dict[str, str]:
    """Return the path of each page by the name of its picture."""
    calls = httpx.Client(base_url=f"{server}/ojs/v1")
    workflow = calls.get("/workflows?waiting_for=gate").json()["workflows"][0]["id"]
    job = calls.get("/jobs?state=completed&type=email.send").json()["jobs"][0]["id"]
    lists = ("jobs", "workflows", "queues", "workers", "schedules", "errors", "events", "collections", "admin")
    ones = {"workflow": f"workflows/{workflow}", "job": f"jobs/{job}", "queue": "queues/default"}
    tabs = {
        "timeline": f"workflows/{workflow}#Timeline",
        "webhooks": "events#Webhooks",
        "audit": "admin?tab=audit",
    }
    return {"overview": ""} | {name: name for name in lists} | ones | tabs


def main(folder: Path, size: Any, schemes: tuple[Any, ...]) -> None:
    """Run the demo, and make each picture."""
    folder.mkdir(exist_ok=True)
    database = Path(tempfile.mkdtemp(prefix="ojster-pictures-")) / "jobs.db"
    command = [sys.executable, "-m", "ojster", "demo", "--stay", "--keep", str(database)]
    demo = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ | {"COLUMNS": "200"})
    try:
        assert demo.stdout is not None
        server = next(found[1] for line in demo.stdout if (found := re.search(r"(http://\S+)/dashboard/", line)))
        time.sleep(SECONDS)
        asyncio.run(add_receivers(database))
        paths = paths_of(server)
        with sync_playwright() as library:
            browser = library.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
            for scheme in schemes:
                page = browser.new_page(viewport=size, color_scheme=scheme)
                for name, path in paths.items():
                    take(page, server, path, folder / f"{name}-{scheme}.png")
                page.close()
            browser.close()
    finally:
        demo.send_signal(signal.SIGINT)
        demo.wait(30)
        shutil.rmtree(database.parent)


if __name__ == "__main__":
    if sys.argv[1:]:
        main(Path(sys.argv[1]), PHONE, ("dark",))
    else:
        main(PICTURES, SIZE, ("light", "dark"))
