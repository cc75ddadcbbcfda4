"""Measurement of one peer in its own virtual environment: ``python driver.py with_celery``. Standard library only.

A module ``with_…`` declares the jobs ``add`` (counts itself) and ``probe`` (records its latency) and has

* ``enqueue(count)``: enqueues ``count`` jobs, one call per job,
* ``bulk(count)``: enqueues ``count`` jobs with the bulk call of the peer, or ``None`` if it has none,
* ``probe_once(now)``: enqueues a probe; ``clear()``: empties the queue,
* ``WORKERS``: the commands that start the workers, by name of the setting,
* ``MAX_ROUND_JOBS`` (optional): the maximum number of jobs in a round.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import counter

JOBS = int(os.environ.get("PEERS_JOBS", "20000"))
ROUNDS = int(os.environ.get("PEERS_ROUNDS", "3"))
MAX_SECONDS = float(os.environ.get("PEERS_SECONDS", "8"))
"""Maximum time to measure how fast workers run jobs, in seconds; the rate covers the jobs run until then."""

PROBES = 200


def main() -> None:
    """Measure a peer and print its figures as JSON."""
    peer: Any = importlib.import_module(sys.argv[1])
    enqueue, bulk = [], []
    processed: dict[str, list[float]] = {name: [] for name in peer.WORKERS}
    for _ in range(ROUNDS):
        peer.clear()
        enqueue.append(rate(peer.enqueue, min(JOBS, getattr(peer, "MAX_ROUND_JOBS", JOBS))))
        if peer.bulk is not None:
            peer.clear()
            bulk.append(rate(peer.bulk, JOBS))
        for name, commands in peer.WORKERS.items():
            peer.clear()
            count = min(JOBS, getattr(peer, "MAX_ROUND_JOBS", JOBS))
            (peer.bulk or peer.enqueue)(count)
            processed[name].append(drain(commands, count))
    peer.clear()
    best = max(processed, key=lambda name: statistics.median(processed[name]))
    latencies = probe(peer, next(iter(peer.WORKERS.values())))
    print(
        json.dumps(
            {
                "enqueue": statistics.median(enqueue),
                "bulk": statistics.median(bulk) if bulk else None,
                "processed": statistics.median(processed[best]),
                "setting": best,
                "all": processed,
                "p50": latencies[len(latencies) // 2] * 1000 if latencies else None,
                "p99": latencies[int(len(latencies) * 0.99)] * 1000 if latencies else None,
            }
        ),
        flush=True,
    )
    os._exit(0)  # some peers leave threads running


def rate(work: Callable[[int], object], count: int) -> float:
    """Return the operations per second of ``work(count)``."""
    started = time.perf_counter()
    work(count)
    return count / (time.perf_counter() - started)


def drain(commands: Sequence[Sequence[str]], count: int) -> float:
    """Return the jobs per second that the workers run, counted from the first job seen; 0 if none runs in 30 s."""
    counter.reset()
    workers = start(commands)
    began, first = 0.0, 0
    booted = time.perf_counter()
    try:
        while True:
            done, now = counter.total(), time.perf_counter()
            if done and not began:
                began, first = now, done
            if done >= count or (began and now - began > MAX_SECONDS) or (not began and now - booted > 30):
                return (done - first) / (now - began) if done > first else 0.0
            time.sleep(0.004)
    finally:
        stop(workers)


def probe(peer: Any, commands: Sequence[Sequence[str]]) -> list[float]:
    """Return the start latencies of single jobs on idle workers, in seconds, in ascending order."""
    counter.reset()
    workers = start(commands)
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
        stop(workers)


def start(commands: Sequence[Sequence[str]]) -> list[subprocess.Popen[bytes]]:
    """Start workers, each in its own session and process group."""
    with (counter.FOLDER / "workers.log").open("ab") as log:
        return [
            subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True)
            for command in commands
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
