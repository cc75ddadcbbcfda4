"""One round of workflows of one peer: ``python workflow_driver.py with_celery``. Standard library only.

Beside what the other driver needs, a module ``with_…`` has

* ``start_chains(count, length)``: starts ``count`` chains, one call per chain, of steps that count themselves,
* ``start_fan_out(width)``: starts a workflow of ``width`` steps at the same time and a final one,
* ``MAX_CHAINS`` (optional): the maximum number of chains at once.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import counter
from common import Workers
from driver import SETTLE, start, stop

CHAINS = int(os.environ.get("PEERS_CHAINS", "1000"))
LENGTH = 5
WIDTH = 1000
LONG = 200
MAX_SECONDS = 120.0


def main() -> None:
    """Measure a peer with each setting of its workers and print its figures as JSON."""
    peer: Any = importlib.import_module(sys.argv[1])
    print(json.dumps({name: measure(peer, workers) for name, workers in peer.WORKERS.items()}), flush=True)
    os._exit(0)  # some peers leave threads running


def measure(peer: Any, workers: Workers) -> dict[str, float | None]:
    """Return the steps per second of chains and of a fan-out, and the time of a step of a long chain."""
    peer.clear()
    counter.reset()
    if SETTLE:
        subprocess.run(SETTLE, check=True, stdout=subprocess.DEVNULL)
    chains = min(CHAINS, getattr(peer, "MAX_CHAINS", CHAINS))
    running = start(workers.commands)
    try:
        warm_up(peer, workers.processes)
        many = run(lambda: peer.start_chains(chains, LENGTH), chains * LENGTH)
        wide = run(lambda: peer.start_fan_out(WIDTH), WIDTH + 1)
        long = run(lambda: peer.start_chains(1, LONG), LONG)
    finally:
        stop(running)
    return {
        "chains": many and chains * LENGTH / many,
        "fan_out": wide and (WIDTH + 1) / wide,
        "step_ms": long and long / LONG * 1000,
    }


def warm_up(peer: Any, processes: int) -> None:
    """Run short chains until all worker processes have run steps."""
    deadline = time.perf_counter() + 30
    expected = 0
    while time.perf_counter() < deadline and (counter.processes() < processes or counter.total() < expected):
        if counter.total() >= expected:
            peer.start_chains(20, LENGTH)
            expected += 20 * LENGTH
        time.sleep(0.1)


def run(begin: Callable[[], object], steps: int) -> float | None:
    """Return the seconds from the beginning until all steps have run; ``None`` if that takes too long."""
    time.sleep(0.5)
    before = counter.total()
    started = time.perf_counter()
    begin()
    while counter.total() - before < steps:
        if time.perf_counter() - started > MAX_SECONDS:
            return None
        time.sleep(0.002)
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
