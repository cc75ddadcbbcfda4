"""The table of all peers: on the terminal, in ``peers.md``, and with all figures in ``peers.json``."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.peers.catalog import KEPT, Peer

HERE = Path(__file__).parent

Round = dict[str, Any]
"""The figures of one round of a peer, as the driver prints them."""

HEADS = ("", "kept in", "enqueued", "in bulk", "processed", "with", "CPU per job", "start p50", "start p99")
LEFT = ("", "kept in", "with")

NOTES = """\
Medians of {rounds} rounds, with the lowest and the highest in brackets. Jobs are no-ops.

* *Enqueued*: one call per job, 50 concurrent callers in one process; *in bulk*: 1,000 jobs per call.
* *Processed*: in {seconds:g} s in the middle of a backlog, after all worker processes had run for {warm_up:g} s; the
  best setting of those tried.
* *CPU per job*: user and system time of the workers and the database in the same {seconds:g} s.
* *Start*: from the enqueue call to the job, on idle workers.
* *Each commit*: synced before the call returns. *Each second*: `appendonly yes`, `appendfsync everysec`.

{day}, {machine}. {versions}.
"""


class Row:
    """One peer and its rounds."""

    def __init__(self, peer: Peer, versions: Sequence[str], rounds: Sequence[Round]) -> None:
        self.peer = peer
        self.versions = versions
        self.rounds = rounds

    @property
    def best(self) -> str | None:
        """The setting with the highest median rate."""
        found = {name: _median(self.windows(name, "rate")) or 0.0 for name in self.rounds[0]["processed"]}
        best = max(found, key=lambda name: found[name])
        return best if found[best] else None

    def windows(self, setting: str, figure: str) -> list[float]:
        """Return a figure of the windows with a setting, by round."""
        windows = [one["processed"][setting] for one in self.rounds if one["processed"].get(setting)]
        return [window[figure] for window in windows if figure in window]

    def cells(self) -> list[str]:
        """Return the texts of the row."""
        best = self.best
        rates = self.windows(best, "rate") if best else []
        cpu = _median(self.windows(best, "cpu")) if best else None
        return [
            self.peer.name,
            KEPT[self.peer.store],
            _spread(one["enqueue"] for one in self.rounds),
            _spread(one["bulk"] for one in self.rounds),
            _spread(rates),
            best or "-",
            "-" if cpu is None else f"{cpu:,.0f} µs",
            _ms(one.get("p50") for one in self.rounds),
            _ms(one.get("p99") for one in self.rounds),
        ]

    def json(self) -> dict[str, Any]:
        """Return all figures."""
        return {
            "name": self.peer.name,
            "store": self.peer.store,
            "kept": KEPT[self.peer.store],
            "versions": self.versions,
            "setting": self.best,
            "rounds": self.rounds,
        }


def report(console: Console, rows: Sequence[Row], **conditions: Any) -> None:
    """Print the table and write it to ``peers.md`` and ``peers.json``."""
    table = Table(title="A no-op job through each task queue", title_justify="left", header_style="bold")
    for head in HEADS:
        table.add_column(head, justify="left" if head in LEFT else "right", no_wrap=True)
    lines = ["| " + " | ".join(HEADS) + " |", "|" + "|".join("---" if head in LEFT else "--:" for head in HEADS) + "|"]
    for row in rows:
        cells = row.cells()
        table.add_row(*cells)
        lines.append("| " + " | ".join(cells) + " |")
    console.print(table)
    conditions["machine"] = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    conditions["day"] = time.strftime("%Y-%m-%d", time.gmtime())
    versions = ", ".join(sorted({version for row in rows for version in row.versions}, key=str.lower))
    lines += ["", NOTES.format(versions=versions, **conditions)]
    (HERE / "peers.md").write_text("\n".join(lines))
    found = {**conditions, "peers": [row.json() for row in rows]}
    (HERE / "peers.json").write_text(json.dumps(found, indent=1) + "\n")


def _median(values: Sequence[float]) -> float | None:
    return median(values) if values else None


def _spread(values: Iterable[float | None]) -> str:
    """Return the median with the lowest and the highest value: ``1,200/s (1,100-1,300)``."""
    known = [value for value in values if value is not None]
    if not known:
        return "-"
    middle = f"{median(known):,.0f}/s"
    return middle if len(known) == 1 else f"{middle} ({min(known):,.0f}-{max(known):,.0f})"


def _ms(values: Iterable[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{median(known):.1f} ms" if known else "-"
