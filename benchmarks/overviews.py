"""What open overviews of the dashboard cost a server where something happens all the time.

``python -m benchmarks.overviews``. Callers over HTTP do what the page does: they follow the stream of changes, and
after each change read again what the overview shows. There is no browser, which would take the processor
from the server.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Final

import aiohttp

from benchmarks.figure import Figure
from benchmarks.servers import Server, ojster

OPEN: Final = 20
"""Number of overviews that are open at once."""

JOBS: Final = 50_000
"""Number of jobs that there are."""

SECONDS: Final = 15.0
"""Time for which the processor time of the server is measured, in seconds."""

PAUSE: Final = 0.1
"""Time between two jobs that are enqueued meanwhile, in seconds."""

READS: Final = (
    "job-facets",
    "jobs?state=discarded&limit=1",
    "admin/attention",
    "admin/stats/history?period=1m&since={since}",
    "admin/queues?per_page=100",
)
"""What the page reads again after a change."""


def figures() -> Iterator[Figure]:
    """Measure, and yield each figure with its budget."""
    with tempfile.TemporaryDirectory() as folder, ojster(f"sqlite:///{folder}/jobs.db") as server:
        alone, watched, fresh = asyncio.run(_measure(server))
    yield Figure("jobs are enqueued, nobody looks, share of a core", 100 * alone, "%")
    yield Figure(f"beyond that: {OPEN} open overviews", 100 * (watched - alone), "%", most=10)
    yield Figure(
        f"beyond that: {OPEN} open overviews that accept no answer of a second ago", 100 * (fresh - alone), "%"
    )


async def _measure(server: Server) -> tuple[float, float, float]:
    """Return the share of a core while jobs are enqueued: alone, with open overviews, and with those of no patience."""
    async with aiohttp.ClientSession(f"http://127.0.0.1:{server.port}/ojs/v1/", connector=_unlimited()) as session:
        for _ in range(JOBS // 1000):
            jobs = [{"type": f"type{number % 20}", "args": [], "queue": f"q{number % 10}"} for number in range(1000)]
            (await session.post("jobs/batch", json={"jobs": jobs})).raise_for_status()
        pushing = asyncio.create_task(_push(session))
        shares = [await _share(server)]
        for headers in ({"Cache-Control": "max-age=1"}, {}):
            pages = [asyncio.create_task(_page(session, headers)) for _ in range(OPEN)]
            await asyncio.sleep(3)
            shares.append(await _share(server))
            await _end(pages)
        await _end([pushing])
        return shares[0], shares[1], shares[2]


def _unlimited() -> aiohttp.TCPConnector:
    return aiohttp.TCPConnector(limit=0)


async def _share(server: Server) -> float:
    before, started = server.processor_seconds, time.monotonic()
    await asyncio.sleep(SECONDS)
    return (server.processor_seconds - before) / (time.monotonic() - started)


async def _push(session: aiohttp.ClientSession) -> None:
    while True:
        (await session.post("jobs", json={"type": "x", "args": []})).raise_for_status()
        await asyncio.sleep(PAUSE)


async def _page(session: aiohttp.ClientSession, headers: dict[str, str]) -> None:
    """Do what one open overview does."""
    async with session.get("events/changes") as stream:
        async for line in stream.content:
            if line.startswith(b"data:"):
                since = datetime.now(UTC).replace(second=0, microsecond=0) - timedelta(hours=1)
                moment = since.strftime("%Y-%m-%dT%H:%M:%SZ")
                await asyncio.gather(*(_read(session, path.format(since=moment), headers) for path in READS))


async def _read(session: aiohttp.ClientSession, path: str, headers: dict[str, str]) -> None:
    async with session.get(path, headers=headers) as answer:
        answer.raise_for_status()
        await answer.read()


async def _end(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    for done in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(done, Exception):
            raise done


if __name__ == "__main__":
    for figure in figures():
        print(f"{figure.name:72} {figure.shown:>10}{'  MISSED' if figure.misses else ''}", flush=True)
