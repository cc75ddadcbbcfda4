"""Soak test of the memory of a server under a long, steady load (``python -m benchmarks.soak``)."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time

from benchmarks.servers import ojster

MAX_MEBIBYTES = 120
MAX_GROWTH = 0.1
"""Maximum memory growth after the first fifth of the rounds, as a share of the maximum within that fifth."""


def main() -> int:
    """Load a server and print its memory; return the exit status: 1 if the memory exceeds its limit or grows."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="Duration, in minutes (default 10)")
    parser.add_argument("--folder", help="Parent directory of the temporary database (default: the system's)")
    chosen = parser.parse_args()
    rounds = 20
    jobs, memory = 0.0, []
    with tempfile.TemporaryDirectory(dir=chosen.folder) as folder, ojster(f"sqlite:///{folder}/soak.db") as server:
        started = time.monotonic()
        for index in range(rounds):
            until = started + (index + 1) * chosen.minutes * 60 / rounds
            seconds = max(1.0, until - time.monotonic() - 1.5)  # each round has an uncounted warm-up of up to a second
            jobs += server.load("whole1", 64, seconds)["rate"] / 3 * seconds
            memory.append(server.megabytes)
            print(f"{time.monotonic() - started:6.0f} s {jobs:12,.0f} jobs {memory[-1]:8.1f} MiB", flush=True)
    early, late = max(memory[: rounds // 5]), max(memory[rounds // 5 :])
    print(f"{early:.1f} MiB in the first fifth, {late:.1f} MiB later: {late / early - 1:+.1%}")
    return int(late > MAX_MEBIBYTES or late > early * (1 + MAX_GROWTH))


if __name__ == "__main__":
    sys.exit(main())
