"""One round of durable functions of one peer: ``python flow_driver.py with_dbos``. Standard library only.

Beside what the other drivers need, a module ``with_…`` has ``start_flows(count, length)``, which starts ``count`` flows
of local steps that count themselves, one call per flow.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from typing import Any

import counter
from common import Workers
from driver import SETTLE, STORE_PROCESSES, start, stop
from processes import processor_seconds
from workflow_driver import run, warm_up

FLOWS = int(os.environ.get("PEERS_FLOWS", "500"))
LENGTH = 5
LONG = 500


def main() -> None:
    """Measure a peer with each setting of its workers and print its figures as JSON."""
    peer: Any = importlib.import_module(sys.argv[1])
    peer.start_chains = peer.start_flows  # what warms up
    print(json.dumps({name: measure(peer, workers) for name, workers in peer.WORKERS.items()}), flush=True)
    os._exit(0)  # some peers leave threads running


def measure(peer: Any, workers: Workers) -> dict[str, float | None]:
    """Return the steps per second of many flows, their processor time, and the time of a step of a long flow."""
    peer.clear()
    counter.reset()
    if SETTLE:
        subprocess.run(SETTLE, check=True, stdout=subprocess.DEVNULL)
    running = start(workers.commands)
    pids = [process.pid for process in running]
    try:
        warm_up(peer, workers.processes)
        before = processor_seconds(pids) + processor_seconds(STORE_PROCESSES)
        many = run(lambda: peer.start_flows(FLOWS, LENGTH), FLOWS * LENGTH)
        spent = processor_seconds(pids) + processor_seconds(STORE_PROCESSES) - before
        long = run(lambda: peer.start_flows(1, LONG), LONG)
    finally:
        stop(running)
    return {
        "flows": many and FLOWS * LENGTH / many,
        "cpu": many and spent / FLOWS * 1e6,
        "step_ms": long and long / LONG * 1000,
    }


if __name__ == "__main__":
    main()
