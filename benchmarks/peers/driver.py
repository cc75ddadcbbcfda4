"""One round of one peer, in its own virtual environment: ``python driver.py with_celery``. Standard library only.

A module ``with_…`` declares the jobs ``add`` (counts itself) and ``probe`` (records its latency) and has

* ``enqueue(count)``: enqueues ``count`` jobs, one call per job; may return the time it took, in seconds,
* ``bulk(count)``: enqueues ``count`` jobs with the bulk call of the peer, or ``None`` if it has none,
* ``probe_once(now)``: enqueues a probe; ``clear()``: empties the queue,
* ``WORKERS``: the settings of the workers by name, each a ``common.Workers``; the first one runs the probes.
"""

from __future__ import annotations

import importlib
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import counter
from common import Workers
from processes import processor_seconds

JOBS = int(os.environ.get("PEERS_JOBS", "20000"))
WARM_UP = float(os.environ.get("PEERS_WARM_UP", "1"))
"""Time between the first job of the last worker process and the beginning of the window, in seconds."""

SECONDS = float(os.environ.get("PEERS_SECONDS", "4"))
"""Length of the window in which jobs and processor time are counted, in seconds."""

BACKLOGS: dict[str, int] = json.loads(os.environ.get("PEERS_BACKLOGS", "{}"))
"""Sizes of the backlogs, by setting, that are enough by the figures of a round before."""

STORE_PROCESSES = [int(process) for process in os.environ.get("PEERS_STORE_PROCESSES", "").split()]
SETTLE: list[str] = json.loads(os.environ.get("PEERS_SETTLE", "[]"))
"""Command that brings the database to rest after jobs were enqueued; none if empty."""

MAX_ENQUEUE_SECONDS = 6
MAX_BACKLOG = 1_000_000
MAX_SHARE = 0.8
"""The window ends, at the latest, when this share of the backlog is done."""

PROBES = 200


def main() -> None:
    """Measure a peer and print its figures as JSON."""
    peer: Any = importlib.import_module(sys.argv[1])
    peer.clear()
    enqueued = rate(peer.enqueue, warm_up=500)
    bulk = None
    if peer.bulk is not None:
        peer.clear()
        bulk = rate(peer.bulk, warm_up=1000)
    processed = {}
    for name, workers in peer.WORKERS.items():
        processed[name] = steady(peer, workers, BACKLOGS.get(name, JOBS))
    peer.clear()
    latencies = probe(peer, next(iter(peer.WORKERS.values())))
    figures: dict[str, Any] = {"enqueue": enqueued, "bulk": bulk, "processed": processed}
    if len(latencies) >= PROBES // 2:
        figures["p50"] = latencies[len(latencies) // 2] * 1000
        figures["p99"] = latencies[int(len(latencies) * 0.99)] * 1000
    print(json.dumps(figures), flush=True)
    os._exit(0)  # some peers leave threads running


def rate(work: Callable[[int], float | None], warm_up: int) -> float:
    """Return the jobs per second of ``work(count)`` after ``work(warm_up)``; a slow peer enqueues fewer than others."""

    def measure(count: int) -> float:
        started = time.perf_counter()
        taken = work(count) or time.perf_counter() - started
        return count / taken

    expected = measure(warm_up) * MAX_ENQUEUE_SECONDS
    return measure(min(JOBS, max(1000, int(expected / 1000) * 1000)))


def steady(peer: Any, workers: Workers, backlog: int) -> dict[str, float] | None:
    """Return the figures of a window that is long enough, with a larger backlog if it must be; ``None`` if none is."""
    found = None
    for _ in range(4):
        found, needed = window(peer, workers, backlog)
        if needed <= backlog or backlog == MAX_BACKLOG:
            break
        backlog = min(needed, MAX_BACKLOG)
    return found


def window(peer: Any, workers: Workers, backlog: int) -> tuple[dict[str, float] | None, int]:
    """Enqueue a backlog, start the workers, and count the jobs and the processor time of a window in the middle.

    Returns the figures, and the size that the backlog should have had.
    """
    peer.clear()
    counter.reset()
    (peer.bulk or peer.enqueue)(backlog)
    if SETTLE:
        subprocess.run(SETTLE, check=True, stdout=subprocess.DEVNULL)
    running = start(workers.commands)
    pids = [process.pid for process in running]
    try:
        first = wait_until_all_run(workers.processes, backlog)
        if first is None:
            return None, 0
        time.sleep(WARM_UP)
        begun = Sample(pids)
        while time.perf_counter() - begun.time < SECONDS and counter.total() < backlog * MAX_SHARE:
            time.sleep(0.01)
        ended = Sample(pids)
        jobs, seconds = ended.jobs - begun.jobs, ended.time - begun.time
        if seconds < SECONDS * 0.6 or ended.jobs >= backlog:  # a rate that is too low only costs another attempt
            speed = max(begun.jobs / (begun.time - first), jobs / max(seconds, 0.1))
            needed = math.ceil(speed * (begun.time - first + SECONDS) / MAX_SHARE * 1.3 / 1000) * 1000
            return None, max(needed, backlog * 2)
        figures = {"rate": jobs / seconds, "jobs": jobs, "seconds": seconds, "backlog": backlog}
        figures["enough"] = min(backlog, math.ceil(ended.jobs * 2 / 1000) * 1000)
        if jobs:
            figures["workers_cpu"] = (ended.workers - begun.workers) / jobs * 1e6
            figures["store_cpu"] = (ended.store - begun.store) / jobs * 1e6
            figures["cpu"] = figures["workers_cpu"] + figures["store_cpu"]
        return figures, backlog
    finally:
        stop(running)


class Sample:
    """The jobs done and the processor time spent, by workers and by the database, until now."""

    def __init__(self, pids: Sequence[int]) -> None:
        self.workers = processor_seconds(pids)
        self.store = processor_seconds(STORE_PROCESSES)
        self.jobs = counter.total()
        self.time = time.perf_counter()


def wait_until_all_run(processes: int, backlog: int) -> float | None:
    """Wait until all worker processes have run jobs, or none is left; return when the first did, ``None`` if not."""
    first = None
    deadline = time.perf_counter() + 30
    while time.perf_counter() < deadline:
        if first is None and counter.total():
            first = time.perf_counter()
        if first and (counter.processes() >= processes or counter.total() >= backlog):
            return first
        time.sleep(0.01)
    return None


def probe(peer: Any, workers: Workers) -> list[float]:
    """Return the start latencies of single jobs on idle workers, in seconds, in ascending order."""
    counter.reset()
    running = start(workers.commands)
    try:
        peer.probe_once(time.time())
        deadline = time.time() + 20
        while not counter.latencies() and time.time() < deadline:
            time.sleep(0.05)
        time.sleep(1)
        counter.reset()
        for _ in range(PROBES):
            peer.probe_once(time.time())
            time.sleep(0.02)
        deadline = time.time() + 10
        while len(counter.latencies()) < PROBES and time.time() < deadline:
            time.sleep(0.05)
        return counter.latencies()
    finally:
        stop(running)


def start(commands: Sequence[Sequence[str]]) -> list[subprocess.Popen[bytes]]:
    """Start workers, each in its own session and process group."""
    with (counter.FOLDER / "workers.log").open("ab") as log:
        return [
            subprocess.Popen(
                command,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                env=os.environ | {"PEERS_SLOT": str(slot)},
            )
            for slot, command in enumerate(commands)
        ]


def stop(workers: Sequence[subprocess.Popen[bytes]]) -> None:
    """End workers and all processes in their groups: SIGTERM, then SIGKILL after up to 5 s."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        for worker in workers:
            try:
                os.killpg(worker.pid, number)
            except ProcessLookupError:
                continue
        deadline = time.time() + 5
        for worker in workers:
            try:
                worker.wait(max(0.1, deadline - time.time()))
            except subprocess.TimeoutExpired:
                continue


if __name__ == "__main__":
    main()
