"""The official admin page of Open Job Spec in Chromium, with an Ojster server behind it.

The page is the folder ``dist-app`` that ``npx vite build`` makes. The browser gets its files from there, and everything
else from the server. A page counts as working if it shows no error, writes none, and no request of it is refused.
"""

from __future__ import annotations

import mimetypes
import shutil
from pathlib import Path

import httpx
from playwright.sync_api import Page, Route, sync_playwright

PAGES = {
    "": "Dashboard",
    "queues": "cli-waiting",
    "jobs": "cli.work",
    "workers": "cli-worker",
    "dead-letter": "cli.work",
    "crons": "nightly",
    "workflows": "flow",
    "workflows/builder": "Workflow",
    "rate-limits": "Rate",
    "events": "cli-waiting2",
    "unique-jobs": "Unique",
    "scheduled": "Scheduled",
    "audit-log": "Audit",
    "webhooks": "127.0.0.1:9",
    "tenants": "Tenants",
    "pools": "Pools",
    "schemas": "cli.schema",
    "mirror": "Mirror",
    "attestation": "Attest",
    "settings": "Settings",
}
"""Pages with what they must show."""

KNOWN = {
    "unique-jobs": "no specification has /unique-jobs",
    "settings": "no specification has /middleware; the rest of the page is there",
}
"""Pages that are known not to work, with the reason."""

CONFINED = ["--no-sandbox", "--disable-gpu", "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"]
"""Options of the browser: no name leads out of this machine."""

PLACE = "/ojs/admin"
PATIENCE = 5_000
"""Maximum time in which a page shows what it must, in milliseconds."""


def try_pages(source: Path, url: str) -> dict[str, str]:
    """Open each page, with what ``cli.prepare`` has made and more; return ``ok`` or what is wrong by page."""
    with httpx.Client(base_url=f"{url}/ojs/v1", timeout=30) as http:
        http.post("/cron", json={"name": "nightly", "cron": "@daily", "type": "cli.work", "args": []})
        schema = {"uri": "urn:interop:admin:v1", "type": "cli.schema", "version": 1, "schema": {"type": "array"}}
        http.post("/schemas", json=schema).raise_for_status()
    with sync_playwright() as playwright:
        found = shutil.which("chromium") or shutil.which("google-chrome")
        chromium = playwright.chromium.launch(executable_path=found, args=CONFINED)
        try:
            return {place or "(first)": _open(chromium.new_page(), source, url, place) for place in PAGES}
        finally:
            chromium.close()


def _open(page: Page, source: Path, url: str, place: str) -> str:
    problems: list[str] = []

    def serve(route: Route) -> None:
        name = route.request.url.partition(f"{PLACE}/")[2].partition("?")[0]
        file = source / name[name.find("assets/") :] if "assets/" in name else source / "index.html"
        route.fulfill(body=file.read_bytes(), content_type=mimetypes.guess_type(file.name)[0])

    page.route(f"**{PLACE}/**", serve)
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on(
        "response", lambda answer: problems.append(f"{answer.status} {answer.url}") if answer.status >= 400 else None
    )
    page.goto(f"{url}{PLACE}/{place}")
    try:
        page.get_by_text(PAGES[place]).first.wait_for(timeout=PATIENCE)
        page.wait_for_load_state("networkidle", timeout=PATIENCE)
    except Exception as error:
        problems.append(str(error).splitlines()[0] + " " + " ".join(page.inner_text("body").split())[-200:])
    if page.get_by_text("Something went wrong").count():
        problems.append(page.inner_text("body")[-200:])
    page.close()
    return problems[0] if problems else "ok"
