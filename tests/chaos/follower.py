"""A reader of the event stream that disconnects now and then, resumes, and notices each event that is missing."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator, Sequence

import aiohttp
import msgspec

LONGEST_VISIT = 6.0
"""Maximum time until the reader disconnects, in seconds."""


class Follower:
    """Follows all transitions of jobs, at one server after the other, each time after the last event that it has.

    Within what is not interrupted by a ``system.gap``, each transition of a job must begin with the state in which the
    one before it ended, and the numbers of events must grow.
    """

    def __init__(self, servers: Sequence[str]) -> None:
        self.numbers: list[int] = []
        self.completed: set[str] = set()
        self.gaps: list[tuple[float, str | None]] = []
        """When a gap was told, and after which event."""
        self.began = asyncio.Event()
        self.resumed = 0
        self.wrong: list[str] = []
        self._servers = servers
        self._states: dict[str, str] = {}
        self._last: str | None = None
        self._task = asyncio.create_task(self._follow())

    async def stop(self) -> None:
        """Stop reading."""
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    async def _follow(self) -> None:
        async with aiohttp.ClientSession() as session:
            visit = 0
            while True:
                server = self._servers[visit % len(self._servers)]
                visit += 1
                with contextlib.suppress(aiohttp.ClientError, OSError, TimeoutError):
                    async with asyncio.timeout(LONGEST_VISIT * random.random()):
                        async for event, id, data in self._visit(session, server):
                            self._hear(event, id, data)
                await asyncio.sleep(0.05)

    async def _visit(self, session: aiohttp.ClientSession, server: str) -> AsyncIterator[tuple[str, str, bytes]]:
        headers = {"Last-Event-ID": self._last} if self._last else {}
        url = f"{server}/ojs/v1/events/stream?event_types=job.state_changed"
        async with session.get(url, headers=headers, timeout=aiohttp.ClientTimeout(total=None)) as response:
            if response.status != 200:
                return
            self.resumed += self._last is not None
            self.began.set()
            said: dict[str, bytes] = {}
            async for line in response.content:
                if line == b"\n":
                    if "data" in said:
                        yield said.get("event", b"").decode(), said.get("id", b"").decode(), said["data"]
                    said = {}
                    continue
                name, _, value = line.rstrip(b"\n").partition(b": ")
                said[name.decode()] = value

    def _hear(self, event: str, id: str, data: bytes) -> None:
        if event == "system.gap":
            if not self.gaps or self.gaps[-1][1] != self._last:  # who resumes before an event has come is told again
                self.gaps.append((time.monotonic(), self._last))
            self._states.clear()
        if not id:
            return
        number = int(id.removeprefix("evt_"))
        if self.numbers and number <= self.numbers[-1]:
            self.wrong.append(f"the stream told {id} after evt_{self.numbers[-1]}")
        self.numbers.append(number)
        self._last = id
        told = msgspec.json.decode(data)
        if event != "job.state_changed":
            return
        job, before, after = told["job_id"], told["from"], told["to"]
        known = self._states.get(job)
        if known is None and before is not None and not self.gaps:
            self.wrong.append(f"the stream told that {job} is {after}, and not of its push")
        if known is not None and before != known:
            self.wrong.append(f"the stream told that {job} is {after} and was {before}, but it was {known} ({id})")
        self._states[job] = after
        if after == "completed":
            self.completed.add(job)
