"""What an installation can do: the measurements of ``ojster bench``, each bounded in time and number of jobs."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final

import msgspec

from ojster.api.app import App
from ojster.cli.trial_store import TrialStore
from ojster.handlers.context import JobContext
from ojster.worker.worker import Worker
from ojster.workflows.declaration import chain

RUN: Final = "run by one worker process"
"""Name of the reading from which a day is estimated."""

CALLERS: Final = 50
"""Number of concurrent callers that enqueue single jobs."""

BULK: Final = 1_000
"""Number of jobs in one bulk call."""

CONCURRENCY: Final = 500
"""Number of jobs that the worker runs at the same time."""

PROBES: Final = 200
"""Number of jobs whose start is timed while nothing else happens."""

CHAIN: Final = 100
"""Number of steps of the chain that is timed."""


class Reading(msgspec.Struct, frozen=True):
    """A measured figure.

    Parameters
    ----------
    name:
        What was measured.
    value, unit:
        The figure: a rate in ``/s``, or a time in ``ms``.
    core:
        The share of a core that this process used meanwhile, from 0 to about 1; ``None`` for times.
    processor_us:
        Processor time of this process for each job, in microseconds; ``None`` for times.
    """

    name: str
    value: float
    unit: str
    core: float | None = None
    processor_us: float | None = None


class Bounds(msgspec.Struct, frozen=True):
    """How much is done: each measurement ends after so many seconds, or so many jobs."""

    seconds: float = 3.0
    jobs: int = 20_000


class _Meter:
    """The time and the processor time since it was made."""

    def __init__(self) -> None:
        self._began, self._used = time.perf_counter(), time.process_time()

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self._began

    def rate(self, name: str, number: int) -> Reading:
        """Return the rate of so many jobs."""
        seconds, used = self.seconds, time.process_time() - self._used
        return Reading(name, number / seconds, "/s", used / seconds, used / number * 1e6)


class Trial:
    """Measures a store.

    Parameters
    ----------
    store:
        An empty store.
    bounds:
        How much is done.
    """

    def __init__(self, store: TrialStore, bounds: Bounds) -> None:
        self._store = store
        self._bounds = bounds
        self._app = App(store.url, migrate=True, eager=False)
        self._started: asyncio.Queue[float] = asyncio.Queue()
        self._enqueued = 0
        self._waiting = 0
        self.bytes_per_job = 0.0
        """What a finished job without a result takes on the disk, in bytes; known after the measurements."""

        @self._app.job("bench.nothing")
        async def nothing(number: int) -> None: ...

        @self._app.job("bench.probe")
        async def probe(context: JobContext) -> None:
            self._started.put_nowait(time.perf_counter())

        self._nothing, self._probe = nothing, probe

    async def readings(self) -> AsyncIterator[Reading]:
        """Measure one thing after the other."""
        try:
            for reading in await self._alone():
                yield reading
            yield await self._from_many_callers()
            await self._work_off()
            yield await self._in_bulk()
            yield await self._processed()
            for measure in (self._starts, self._chain):
                for reading in await measure():
                    yield reading
            yield await self._short_chains()
        finally:
            await self._app.aclose()

    async def _alone(self) -> list[Reading]:
        """Enqueue one job after the other: each waits for its own commit."""
        times: list[float] = []
        meter = _Meter()
        while len(times) < self._bounds.jobs // 20 and meter.seconds < self._bounds.seconds / 2:
            began = time.perf_counter()
            await self._nothing.aenqueue(1)
            times.append((time.perf_counter() - began) * 1000)
        self._enqueued += len(times)
        return _spread("one enqueue, alone", times)

    async def _from_many_callers(self) -> Reading:
        done, meter = 0, _Meter()

        async def call() -> None:
            nonlocal done
            while done < self._bounds.jobs and meter.seconds < self._bounds.seconds:
                done += 1
                await self._nothing.aenqueue(done)

        await asyncio.gather(*(call() for _ in range(CALLERS)))
        self._enqueued += done
        return meter.rate(f"enqueued one by one by {CALLERS} callers", done)

    async def _in_bulk(self) -> Reading:
        done, meter = 0, _Meter()
        while done < self._bounds.jobs and meter.seconds < self._bounds.seconds:
            await self._nothing.aenqueue_many([(number,) for number in range(BULK)])
            done += BULK
        self._waiting = done
        self._enqueued += done
        return meter.rate(f"enqueued in calls of {BULK}", done)

    async def _processed(self) -> Reading:
        meter = _Meter()
        await self._work_off()
        reading = meter.rate(RUN, self._waiting)
        self.bytes_per_job = self._store.size() / self._enqueued
        return reading

    async def _work_off(self) -> None:
        await Worker(self._app, concurrency=CONCURRENCY).run(until_empty=True)

    async def _with_worker(self, measure: Callable[[], Awaitable[list[Reading]]]) -> list[Reading]:
        worker = Worker(self._app)
        working = asyncio.create_task(worker.run())
        try:
            await self._probe.aenqueue()
            await self._started.get()
            return await measure()
        finally:
            worker.stop()
            await working

    async def _starts(self) -> list[Reading]:
        async def measure() -> list[Reading]:
            times: list[float] = []
            meter = _Meter()
            while len(times) < PROBES and meter.seconds < self._bounds.seconds:
                began = time.perf_counter()
                await self._probe.aenqueue()
                times.append((await self._started.get() - began) * 1000)
                await asyncio.sleep(0.002)  # until the worker waits again
            return _spread("from enqueue to start, idle", times)

        return await self._with_worker(measure)

    async def _chain(self) -> list[Reading]:
        async def measure() -> list[Reading]:
            meter = _Meter()
            run = await self._app.astart(chain(*(self._nothing.s(number) for number in range(CHAIN))))
            await run.aresult(60)
            return [Reading(f"a step of a chain of {CHAIN}", meter.seconds / CHAIN * 1000, "ms")]

        return await self._with_worker(measure)

    async def _short_chains(self) -> Reading:
        number = max(self._bounds.jobs // 50, 1)
        meter = _Meter()
        left, started = iter(range(number)), 0

        async def start() -> None:
            for _ in left:
                if meter.seconds > self._bounds.seconds:
                    return
                nonlocal started
                started += 1
                await self._app.astart(chain(*(self._nothing.s(step) for step in range(5))))

        await asyncio.gather(*(start() for _ in range(CALLERS)))
        await self._work_off()
        return meter.rate("steps in chains of 5, started and run", started * 5)


def _spread(name: str, times: list[float]) -> list[Reading]:
    ordered = sorted(times)
    return [
        Reading(f"{name}, median", statistics.median(ordered), "ms"),
        Reading(f"{name}, slowest of 100", ordered[int(len(ordered) * 0.99)], "ms"),
    ]
