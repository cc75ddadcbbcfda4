"""Measure task queues (``python -m benchmarks.peers``), print tables, and write them beside this file.

Each peer is installed into ``.peers`` at the first run: those in Python into virtual environments of their own, in the
newest versions; those in Go, Node and Rust with ``go``, ``npm`` and ``cargo``, if they are on the path. Peers on Redis
need ``redis-server``; PostgreSQL comes with the development dependencies. The rounds alternate: the first round of all
peers, then the second one of all, so a slow minute of the machine meets all of them. Results: ``peers.md`` and
``peers.json`` of the queues, ``workflows.md`` and ``workflows.json`` of the workflows, ``flows.md`` and ``flows.json``
of durable functions.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psycopg
from rich.console import Console
from tests.postgres import PostgresServer

from benchmarks.peers.catalog import FLOW_PEERS, PEERS, ROOT, WORKFLOW_PEERS, Peer
from benchmarks.peers.installing import CannotInstall, Installed, install
from benchmarks.peers.servers import Missing, postgres, store_of
from benchmarks.peers.table import FLOWS, QUEUES, WORKFLOWS, Kind, Round, Row, report

HERE = Path(__file__).parent


DRIVERS = {QUEUES.file: "driver.py", WORKFLOWS.file: "workflow_driver.py", FLOWS.file: "flow_driver.py"}


class Failed(Exception):
    """A round failed; the text says why."""


def main() -> int:
    """Measure the chosen peers; return the exit status."""
    chosen = _arguments()
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 220)
    folder = ROOT / ".peers"
    folder.mkdir(exist_ok=True)
    for kind, peers in ((QUEUES, PEERS), (WORKFLOWS, WORKFLOW_PEERS), (FLOWS, FLOW_PEERS)):
        if chosen.part in (None, kind.file):
            wanted = [peer for peer in peers if not chosen.only or chosen.only.lower() in peer.label.lower()]
            measure_all(console, kind, wanted, folder, chosen)
    return 0


def measure_all(console: Console, kind: Kind, peers: Sequence[Peer], folder: Path, chosen: Any) -> None:
    """Install the peers, measure them in alternating rounds, and report."""
    installed = _install_all(console, peers, folder)
    rounds: dict[str, list[Round]] = {label: [] for label in installed}
    with postgres() as server:
        for number in range(1, chosen.rounds + 1):
            for peer in peers:
                if peer.label not in installed:
                    continue
                try:
                    figures = measure(kind, peer, installed[peer.label], server, folder, chosen, rounds[peer.label])
                except (Failed, Missing, psycopg.Error) as error:
                    console.print(f"{peer.label}: left out, {error}")
                    del installed[peer.label]
                    continue
                rounds[peer.label].append(figures)
                console.print(f"round {number}, {peer.label}: {_brief(figures)}", style="bright_black")
    rows = [Row(peer, installed[peer.label].versions, rounds[peer.label]) for peer in peers if peer.label in installed]
    if rows:
        names = ("rounds", "jobs", "seconds", "warm_up")
        report(console, kind, rows, {name: getattr(chosen, name) for name in names})


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__)
    parser.add_argument("--only", metavar="WORD", help="Measure only peers with WORD in their name or store")
    parser.add_argument("--part", choices=tuple(DRIVERS), help="Measure this part alone (default all)")
    parser.add_argument("--jobs", type=int, help="Number of jobs to enqueue, and in the first backlog (default 20000)")
    parser.add_argument("--rounds", type=int, help="Number of rounds; the median is reported (default 3)")
    parser.add_argument("--seconds", type=float, help="Length of the window, in seconds (default 4)")
    parser.add_argument("--warm-up", type=float, help="Time before the window, in seconds (default 1)")
    parser.add_argument(
        "--quick", action="store_true", help="2000 jobs, 1 round, 1 s after 0.3 s, if not said otherwise"
    )
    chosen = parser.parse_args()
    usual = {"jobs": 2000, "rounds": 1, "seconds": 1.0, "warm_up": 0.3} if chosen.quick else {}
    usual = {"jobs": 20_000, "rounds": 3, "seconds": 4.0, "warm_up": 1.0} | usual
    for name, value in usual.items():
        if getattr(chosen, name) is None:
            setattr(chosen, name, value)
    return chosen


def _install_all(console: Console, peers: Sequence[Peer], folder: Path) -> dict[str, Installed]:
    installed = {}
    for peer in peers:
        try:
            installed[peer.label] = install(peer, folder)
        except CannotInstall as error:
            console.print(f"{peer.label}: left out, {error}")
    return installed


def measure(
    kind: Kind,
    peer: Peer,
    installed: Installed,
    server: PostgresServer,
    folder: Path,
    chosen: Any,
    before: Sequence[Round],
) -> Round:
    """Run one round of a peer and return its figures; the rounds before say how large its backlogs must be."""
    work = folder / "work"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    backlogs: dict[str, int] = {}
    for one in before if kind is QUEUES else ():
        backlogs |= {name: window["enough"] for name, window in one["processed"].items() if window}
    with store_of(peer, installed.program, server, work) as store:
        environment = os.environ | peer.variables | store
        environment |= {
            "PYTHONPATH": str(HERE),
            "PEERS_PROGRAM": json.dumps(installed.program),
            "PEERS_FOLDER": str(work),
            "PEERS_JOBS": str(chosen.jobs),
            "PEERS_CHAINS": str(min(1000, chosen.jobs // 5)),
            "PEERS_SECONDS": str(chosen.seconds),
            "PEERS_WARM_UP": str(chosen.warm_up),
            "PEERS_BACKLOGS": json.dumps(backlogs),
        }
        command = [str(installed.python), DRIVERS[kind.file], peer.module]
        done = subprocess.run(command, cwd=HERE, env=environment, capture_output=True, text=True, check=False)
    if done.returncode or not done.stdout.strip():
        log = work / "workers.log"
        said = log.read_text(errors="replace").strip()[-300:] if log.exists() else ""
        raise Failed(f"the driver failed: {done.stderr.strip()[-600:]} {said}")
    figures: Round = json.loads(done.stdout.strip().splitlines()[-1])
    return figures


def _brief(figures: Round) -> str:
    """Return the main figures of each setting, in one line."""
    found = ((name, window) for name, window in figures.get("processed", figures).items() if window)
    names = (
        *(("rate", "/s"), ("cpu", " µs"), ("chains", " steps/s"), ("fan_out", " wide steps/s")),
        *(("flows", " steps/s"), ("step_ms", " ms")),
    )
    texts = (
        f"{name} " + ", ".join(f"{window[one]:,.0f}{unit}" for one, unit in names if window.get(one))
        for name, window in found
    )
    return "; ".join(texts) or "nothing ran"


if __name__ == "__main__":
    sys.exit(main())
