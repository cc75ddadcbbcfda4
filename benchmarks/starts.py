"""How long commands take to start, beside a Python that does nothing."""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.figure import Figure

ROUNDS = 9


def run(chosen: argparse.Namespace) -> Iterator[Figure]:
    """Measure ``ojster --help`` and ``import ojster``."""
    if chosen.only and chosen.only not in "starts import help":
        return
    ojster = str(Path(sys.executable).with_name("ojster"))
    commands = {
        "python -c pass": [sys.executable, "-c", "pass"],
        "ojster --help": [ojster, "--help"],
        "import ojster": [sys.executable, "-c", "import ojster"],
    }
    times: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(ROUNDS):
        for name, command in commands.items():
            started = time.perf_counter()
            subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
            times[name].append((time.perf_counter() - started) * 1000)
    nothing = sorted(times.pop("python -c pass"))[ROUNDS // 2]
    for name, found in times.items():
        yield Figure.median_of(f"start of {name}", found, "ms", floor=nothing, floor_name="python -c pass")
