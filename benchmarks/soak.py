"""``python -m benchmarks.soak``: does the server's memory stay where it is under a long, steady load?"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time

from benchmarks.servers import ojster

MOST_MEBIBYTES = 120
MOST_GROWTH = 0.1
"""How much more memory than after the first fifth of the time is growth."""


def main() -> int:
    """Load a server with whole jobs and print its memory; return the exit status: 1 if it is too much or grows."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="for how long (default 10)")
    parser.add_argument("--folder", help="where the database is made (default: a temporary folder)")
    chosen = parser.parse_args()
    rounds = 20
    jobs, memory = 0.0, []
    with tempfile.TemporaryDirectory(dir=chosen.folder) as folder, ojster(f"sqlite:///{folder}/soak.db") as server:
        started = time.monotonic()
        for index in range(rounds):
            until = started + (index + 1) * chosen.minutes * 60 / rounds
            seconds = max(1.0, until - time.monotonic() - 1.5)  # a round starts with a second that is not counted
            jobs += server.load("whole1", 64, seconds)["rate"] / 3 * seconds
            memory.append(server.megabytes)
            print(f"{time.monotonic() - started:6.0f} s {jobs:12,.0f} jobs {memory[-1]:8.1f} MiB", flush=True)
    early, late = max(memory[: rounds // 5]), max(memory[rounds // 5 :])
    print(f"{early:.1f} MiB at first, {late:.1f} MiB later: {late / early - 1:+.1%}")
    return int(late > MOST_MEBIBYTES or late > early * (1 + MOST_GROWTH))


if __name__ == "__main__":
    sys.exit(main())
