"""Comparison of two checkouts on one machine, in alternating rounds (``python benchmarks/duel.py OTHER``).

Each figure is measured in a new process, with the benchmarks of the checkout that it measures: enqueuing and processing
in one process, and workflows. The machine varies, so the medians stand beside the smallest and the largest figure.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).resolve().parent.parent

TRACE = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}


def measure(checkout: Path, store_name: str, chosen: list[str]) -> dict[str, float]:
    """Measure the figures of a checkout, which must be the only one that this process has imported."""
    sys.path[:0] = [str(checkout / "src"), str(checkout)]
    import uvloop

    import ojster
    from benchmarks import in_process, stores, workflows

    assert Path(ojster.__file__).is_relative_to(checkout), ojster.__file__
    folder = tempfile.TemporaryDirectory()
    store: Any = stores.SqliteStore(Path(folder.name)) if store_name == "sqlite" else stores.PostgresStore()
    job = workflows._job

    def app(work: Callable[[Any], Any]) -> float:
        return float(uvloop.run(in_process._with_app(store, work)))

    def service(work: Callable[[Any], Any]) -> Any:
        return uvloop.run(workflows._with_engine(store, work))

    def traced() -> float:
        workflows._job = partial(job, meta=TRACE)
        try:
            return float(service(workflows._plain))
        finally:
            workflows._job = job

    def whole(wires: list[dict[str, Any]]) -> float:
        return float(service(partial(workflows._whole, wires=wires)))

    figures: dict[str, Callable[[], float]] = {
        "bulk enqueue of 1,000": lambda: app(in_process._bulk),
        "single enqueue, 50 coroutines": lambda: app(in_process._single),
        "processed by one worker": lambda: app(in_process._process),
        "whole jobs in batches of 100": lambda: service(workflows._plain),
        "the same with a trace": traced,
        "a group of 20,000": lambda: service(partial(workflows._group, size=20_000))[1],
        "2,000 chains of 5": lambda: whole([workflows._chain(5) for _ in range(2_000)]),
        "a chain of 400": lambda: whole([workflows._chain(400)]),
        "a graph of 2,000 steps": lambda: whole([workflows._graph(2_000)]),
        "300 nested 8 deep": lambda: whole([workflows._nested(8) for _ in range(300)]),
    }
    try:
        return {name: work() for name, work in figures.items() if not chosen or any(one in name for one in chosen)}
    finally:
        store.close()
        folder.cleanup()


def main() -> None:
    """Compare two checkouts, or measure one."""
    parser = argparse.ArgumentParser(prog="python benchmarks/duel.py", description=__doc__)
    parser.add_argument("other", type=Path, help="The other checkout, for example a git worktree")
    parser.add_argument("--store", choices=["sqlite", "postgres"], default="sqlite")
    parser.add_argument("--rounds", type=int, default=5, help="Number of rounds (default 5)")
    parser.add_argument(
        "--only", action="append", default=[], metavar="WORD", help="Only figures with this in the name"
    )
    parser.add_argument(
        "--alone", action="store_true", help="Print the figures of OTHER as JSON; used by the comparison"
    )
    given = parser.parse_args()
    if given.alone:
        print(json.dumps(measure(given.other.resolve(), given.store, given.only)))
        return
    sides = (given.other.resolve(), HERE)
    found: dict[str, dict[Path, list[float]]] = defaultdict(lambda: defaultdict(list))
    for number in range(given.rounds):
        for side in sides if number % 2 == 0 else sides[::-1]:
            only = [part for word in given.only for part in ("--only", word)]
            command = [sys.executable, __file__, str(side), "--alone", "--store", given.store, *only]
            printed = subprocess.run(command, cwd=side, check=True, stdout=subprocess.PIPE, text=True).stdout
            for name, rate in json.loads(printed.splitlines()[-1]).items():
                found[name][side].append(rate)
    print(f"| {given.store}, a second | {sides[0].name} | here | |\n|---|--:|--:|--:|")
    for name, rates in found.items():
        shown = [f"{median(some):,.0f} ({min(some):,.0f}-{max(some):,.0f})" for some in (rates[side] for side in sides)]
        change = median(rates[sides[1]]) / median(rates[sides[0]]) - 1
        print(f"| {name} | {shown[0]} | {shown[1]} | {change:+.0%} |")


if __name__ == "__main__":
    main()
