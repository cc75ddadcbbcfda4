"""The dashboard in a real browser: its size, how soon it is usable, large workflows, and what open pages cost.

``python -m benchmarks.pages``. Needs Chromium, and the built dashboard (``make dashboard``).
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import httpx
import psutil
from playwright.sync_api import Browser, Locator, Page, sync_playwright

from benchmarks.figure import Figure
from benchmarks.servers import Server, ojster
from ojster.server import dashboard_page

STEPS: Final = 100_000
"""Number of steps of the large workflow."""

OPEN: Final = 50
"""Number of pages that are open at once."""

QUIET_SECONDS: Final = 20.0
"""Time for which the cost of open pages is measured, in seconds. A job is enqueued every five."""

MAX_SEARCH_MS: Final = 5_000
"""Budget of a search through all steps of the large workflow, in milliseconds: no index has their names."""

MAX_COMPARISON_MS: Final = 60_000
"""Budget of a comparison of two large workflows, in milliseconds: the page reads all steps, and says how many."""

FRAMES: Final = """async () => {
    const canvas = document.querySelector(".canvas"); const area = canvas.getBoundingClientRect();
    const point = (type, x) =>
        canvas.dispatchEvent(new PointerEvent(type, {clientX: x, clientY: area.top + 90, bubbles: true}));
    point("pointerdown", area.left + 400);
    const times = []; let last = performance.now();
    for (let step = 0; step < 120; step++) {
        point("pointermove", area.left + 400 - step * 4);
        await new Promise(requestAnimationFrame);
        const now = performance.now(); times.push(now - last); last = now;
    }
    point("pointerup", area.left); return times; }"""
"""Moves the picture of a workflow for 120 frames; returns how long each took, in milliseconds."""


def figures() -> Iterator[Figure]:
    """Measure, and yield each figure with its budget."""
    assets = Path(dashboard_page.__file__).parent.parent / "dashboard" / "assets" / "assets"
    size = sum(file.stat().st_size for file in assets.glob("*.br"))
    yield Figure("dashboard: first load, compressed", size / 1024, "KiB", most=250)
    with tempfile.TemporaryDirectory() as folder, ojster(f"sqlite:///{folder}/jobs.db") as server:
        workflow = _large(server)
        with sync_playwright() as library:
            browser = library.chromium.launch(
                executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"]
            )
            yield Figure("dashboard: overview usable, median", _usable(browser, server, "", ".tile"), "ms", most=1_000)
            path = f"workflows/{workflow}"
            yield Figure(
                f"dashboard: workflow of {STEPS:,} steps opened, median",
                _usable(browser, server, path, ".graph-node"),
                "ms",
                most=1_000,
            )
            yield Figure("dashboard: a frame while it is moved, median", _frame(browser, server, path), "ms", most=17)
            other = _large(server, waits=False)
            for name, taken in _views(browser, server, f"workflows/{other}").items():
                most = MAX_SEARCH_MS if name == "last one found" else 1_000
                yield Figure(f"dashboard: {name} of {STEPS:,} steps, median", taken, "ms", most=most)
            compared = _usable(browser, server, f"{path}/compare/{other}", "text=1 to 200 of", times=1)
            yield Figure(f"dashboard: two of {STEPS:,} steps compared", compared, "ms", most=MAX_COMPARISON_MS)
            yield Figure(f"dashboard: {OPEN} open pages, share of a core", 100 * _cost(browser, server), "%", most=5)
            browser.close()


def _large(server: Server, *, waits: bool = True) -> str:
    """Create a large workflow, and return its id; ``waits``: whether its rows wait for a step before them."""
    rows = [{"type": "row.import", "args": [number]} for number in range(STEPS - 2)]
    steps: list[dict[str, Any]] = [
        {"id": "list", "type": "list", "args": []},
        {"id": "rows", "type": "group", "jobs": rows} | ({"depends_on": ["list"]} if waits else {}),
        {"id": "sum", "type": "sum", "args": [], "depends_on": ["rows"]},
    ]
    body = {"type": "graph", "name": "Large", "steps": steps}
    answer = httpx.post(f"{_url(server)}/ojs/v1/workflows", json=body, timeout=120).raise_for_status()
    return str(answer.json()["workflow"]["id"])


def _url(server: Server) -> str:
    return f"http://127.0.0.1:{server.port}"


def _open(page: Page, server: Server, path: str, shown: str) -> float:
    started = time.perf_counter()
    page.goto(f"{_url(server)}/dashboard/{path}", wait_until="commit")
    page.locator(shown).first.wait_for()
    return (time.perf_counter() - started) * 1000


def _usable(browser: Browser, server: Server, path: str, shown: str, times: int = 5) -> float:
    """Return the median time until an element is there in a new browser profile, in milliseconds."""
    taken = []
    for _ in range(times):
        context = browser.new_context(viewport={"width": 1440, "height": 900})
        context.set_default_timeout(MAX_COMPARISON_MS)
        taken.append(_open(context.new_page(), server, path, shown))
        context.close()
    return statistics.median(taken)


def _views(browser: Browser, server: Server, path: str) -> dict[str, float]:
    """Return the time until each other view of a large workflow is there, in milliseconds."""
    times: dict[str, list[float]] = {}
    for _ in range(5):
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        _open(page, server, path, ".graph-node")
        tabs, steps = page.get_by_role("tab"), page.get_by_role("table", name="Steps").get_by_role("row")
        find, state = page.get_by_label("Name, path or type of steps"), page.get_by_label("State of steps")
        last = f"rows.{STEPS - 3}"
        acts: dict[str, tuple[Callable[[], object], Locator]] = {
            "timeline": (tabs.filter(has_text="Timeline").click, page.get_by_role("group", name="Timeline")),
            "first page": (tabs.filter(has_text="Steps").click, steps.nth(100)),
            "next page": (page.get_by_role("button", name="Steps after").click, steps.filter(has_text="rows.300")),
            "none failed": (partial(state.select_option, "failed"), page.get_by_text("No step matches")),
            "all again": (partial(state.select_option, "Any state"), steps.nth(100)),
            "last one found": (partial(_find, find, last), steps.filter(has_text=last)),
        }
        for name, (act, shown) in acts.items():
            started = time.perf_counter()
            act()
            shown.first.wait_for(state="attached")
            times.setdefault(name, []).append((time.perf_counter() - started) * 1000)
        page.close()
    return {name: statistics.median(taken) for name, taken in times.items()}


def _find(field: Locator, text: str) -> None:
    field.fill(text)
    field.press("Enter")


def _frame(browser: Browser, server: Server, path: str) -> float:
    page = browser.new_page(viewport={"width": 1440, "height": 900})
    _open(page, server, path, ".graph-node")
    page.locator(".graph-node").nth(1).click()
    page.get_by_text("row.import").first.wait_for()
    frames: list[float] = page.evaluate(FRAMES)
    page.close()
    return statistics.median(frames)


def _cost(browser: Browser, server: Server) -> float:
    """Return the share of a core that the server uses for open overviews while little happens."""
    # Each in a profile of its own: a browser makes six connections to a server, and shown pages keep one of them.
    contexts = [browser.new_context() for _ in range(OPEN)]
    for context in contexts:
        _open(context.new_page(), server, "", ".tile")
    time.sleep(3)
    process = psutil.Process(server.process.pid)
    before = sum(process.cpu_times()[:2])
    ends = time.monotonic() + QUIET_SECONDS
    while time.monotonic() < ends:
        httpx.post(f"{_url(server)}/ojs/v1/jobs", json={"type": "x", "args": []}).raise_for_status()
        time.sleep(5)
    used = sum(process.cpu_times()[:2]) - before
    for context in contexts:
        context.close()
    return used / QUIET_SECONDS


if __name__ == "__main__":
    for figure in figures():
        print(f"{figure.name:64} {figure.shown:>10}{'  MISSED' if figure.misses else ''}", flush=True)
