"""Measures one peer, in that peer's own environment: ``python driver.py with_celery``. Only the standard library.

A module ``with_…`` declares the jobs ``add`` (counts) and ``probe`` (notes its latency) and has

* ``enqueue(count)``: enqueues so many, one call a job; ``bulk(count)``, or ``None``: the same by what it has for that,
* ``probe_once(now)``: enqueues a probe; ``clear()``: empties the queue,
* ``WORKERS``: what its workers are started with, by name of the setting.
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
LONGEST = float(os.environ.get("PEERS_SECONDS", "8"))
"""For how long each figure is measured at most, in seconds; the rate is that of what was done until then."""

PROBES = 200


def main() -> None:
    """Measure a peer, and print its figures as JSON."""
    peer: Any = importlib.import_module(sys.argv[1])
    enqueue, bulk = [], []
    processed: dict[str, list[float]] = {name: [] for name in peer.WORKERS}
    for _ in range(ROUNDS):
        peer.clear()
        enqueue.append(rate(peer.enqueue, min(JOBS, getattr(peer, "MOST", JOBS))))
        if peer.bulk is not None:
            peer.clear()
            bulk.append(rate(peer.bulk, JOBS))
        for name, commands in peer.WORKERS.items():
            peer.clear()
            count = min(JOBS, getattr(peer, "MOST", JOBS))
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
    os._exit(0)  # some leave threads behind


def rate(work: Callable[[int], object], count: int) -> float:
    """How many a second ``work`` does."""
    started = time.perf_counter()
    work(count)
    return count / (time.perf_counter() - started)


def drain(commands: Sequence[Sequence[str]], count: int) -> float:
    """How many jobs a second these workers run, from the first one on."""
    counter.reset()
    workers = start(commands)
    began, first = 0.0, 0
    booted = time.perf_counter()
    try:
        while True:
            done, now = counter.total(), time.perf_counter()
            if done and not began:
                began, first = now, done
            if done >= count or (began and now - began > LONGEST) or (not began and now - booted > 30):
                return (done - first) / (now - began) if done > first else 0.0
            time.sleep(0.004)
    finally:
        stop(workers)


def probe(peer: Any, commands: Sequence[Sequence[str]]) -> list[float]:
    """How long jobs take to start when there is nothing else to do."""
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
    """Start workers, each in a process group of its own."""
    with (counter.FOLDER / "workers.log").open("ab") as log:
        return [
            subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True)
            for command in commands
        ]


def stop(workers: Sequence[subprocess.Popen[bytes]]) -> None:
    """End workers and all that they have started."""
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
