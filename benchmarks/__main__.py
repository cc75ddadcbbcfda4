"""Run all benchmarks (``python -m benchmarks``), print a table and write ``benchmarks/results.json``."""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks import (
    backlog,
    bombs,
    bulk,
    failover,
    files,
    floors,
    flows,
    in_process,
    migration,
    over_http,
    processes,
    starts,
    streams,
    workflows,
)
from benchmarks.figure import Figure
from benchmarks.stores import PostgresStore, SqliteStore, Store
from ojster.core.version import __version__

RESULTS = Path(__file__).with_name("results.json")


def main() -> None:
    """Run the chosen benchmarks. A figure that misses its goal is shown in red, and is no failure."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--only", metavar="WORD", help="Run only groups with WORD in a keyword (always runs floors)")
    parser.add_argument(
        "--backlog",
        type=int,
        default=1_000_000,
        help="Waiting jobs, and as many finished ones, in the backlog benchmark (default 1000000; 0 skips it)",
    )
    parser.add_argument("--seconds", type=float, default=3.0, help="Duration of each HTTP load, in seconds (default 3)")
    parser.add_argument("--store", choices=["sqlite", "postgres"], help="Measure only this database (default: both)")
    parser.add_argument("--folder", help="Parent directory of the temporary databases (default: the current directory)")
    chosen = parser.parse_args()
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 190)
    started = time.monotonic()
    folder = Path(chosen.folder or ".").resolve() / f".benchmark-{os.getpid()}"
    folder.mkdir()
    figures: list[Figure] = []
    try:
        _measure_all(console, folder, chosen, figures)
    finally:  # also what was measured before a failure, or Ctrl+C
        shutil.rmtree(folder, ignore_errors=True)
        show(console, figures)
        _write(console, figures, time.monotonic() - started)


def _measure_all(console: Console, folder: Path, chosen: argparse.Namespace, figures: list[Figure]) -> None:
    """Add all figures, one after the other, and print each."""
    stores: list[Store] = []
    try:
        if chosen.store != "postgres":
            stores.append(SqliteStore(folder))
        if chosen.store != "sqlite":
            stores.append(PostgresStore())
        for figure in _measure(stores, folder, chosen):
            figures.append(figure)
            console.print(f"{figure.name:74} {figure.shown:>16}", style="bright_black")
    finally:
        for store in stores:
            store.close()


def _write(console: Console, figures: list[Figure], seconds: float) -> None:
    machine = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, {platform.system()}"
    console.print(f"{machine}; total {seconds:.0f} s")
    RESULTS.write_text(
        json.dumps(
            {
                "version": __version__,
                "machine": machine,
                "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
                "figures": [figure.to_json() for figure in figures],
            },
            indent=2,
        )
        + "\n"
    )
    console.print(f"JSON results: {RESULTS}")


def _measure(stores: list[Store], folder: Path, chosen: argparse.Namespace) -> Iterator[Figure]:
    yield from floors.run(stores, folder, chosen)
    yield from starts.run(chosen)
    for store in stores:
        yield from in_process.run(store, chosen)
        yield from over_http.run(store, folder, chosen)
        yield from workflows.run(store, chosen)
        yield from flows.run(store, chosen)
        yield from bulk.run(store, chosen)
        yield from bombs.run(store, chosen)
        yield from streams.run(store, chosen)
        yield from processes.run(store, chosen)
        yield from backlog.run(store, chosen)
        if isinstance(store, PostgresStore):
            yield from migration.run(store, chosen)
            yield from failover.run(chosen)
    yield from files.run(folder, chosen)


def show(console: Console, figures: list[Figure]) -> None:
    """Print the table."""
    table = Table(title="Ojster compared with its floors", title_justify="left", header_style="bold")
    for column in ("figure", "measured", "from - to", "floor", "share of floor"):
        table.add_column(column, justify="left" if column == "figure" else "right", no_wrap=True)
    for figure in figures:
        style = "red" if figure.misses else ""
        table.add_row(
            figure.name, figure.shown, figure.shown_spread, figure.shown_floor, figure.shown_share, style=style
        )
    console.print(table)


if __name__ == "__main__":
    main()
