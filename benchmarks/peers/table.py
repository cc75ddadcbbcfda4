"""The tables of all peers: on the terminal, as Markdown, and with all figures as JSON."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from benchmarks.peers.catalog import KEPT, Peer

HERE = Path(__file__).parent

Round = dict[str, Any]
"""The figures of one round of a peer, as the driver prints them."""

LEFT = ("", "kept in", "with")
"""Columns with text."""

NOTES = """\
Medians of {rounds} rounds, with the lowest and the highest in brackets. Jobs are no-ops.

* *Enqueued*: one call per job, 50 concurrent callers in one process (one caller for Huey, Celery and RQ, whose blocking
  clients are no faster with more); *in bulk*: 1,000 jobs per call.
* *Processed*: in {seconds:g} s in the middle of a backlog, after all worker processes had run for {warm_up:g} s; the
  best setting of those tried.
* *CPU per job*: user and system time of the workers and the database in the same {seconds:g} s.
* *Start*: from the enqueue call to the job, on idle workers.
* *Each commit*: synced before the call returns. *Each second*: `appendonly yes`, `appendfsync everysec`.

{day}, {machine}. {versions}.
"""

WORKFLOW_NOTES = """\
Medians of {rounds} rounds, with the lowest and the highest in brackets, from the first call until the last step has
run, on workers that have run workflows before; the best setting of those tried. Steps are no-ops.

* *Chains of 5*: steps of 1,000 chains (200 with Celery, DBOS and Temporal), one call per chain.
* *Fan-out*: 1,000 steps at the same time and a final one.
* *Step of a chain*: time of one step of a single chain of 200.
* *Temporal* is its development server, with its limits of tasks a second raised: with its defaults, a step of a chain
  takes 95 ms. What local activities have done is recorded several steps at a time, so a crash repeats them.

{day}, {machine}. {versions}.
"""


FLOW_NOTES = """\
Medians of {rounds} rounds, with the lowest and the highest in brackets, from the first call until the last step has
run, on workers that have run flows before. Steps are no-ops, whose results are recorded before the next one begins.

* *Flows of 5 steps*: steps of 500 flows, one call per flow.
* *CPU per flow*: user and system time of the workers and the database meanwhile.
* *Step of a long flow*: time of one step of a single flow of 500.
* *Temporal* records what local activities have done several steps at a time, so a crash repeats them.

{day}, {machine}. {versions}.
"""


class Row(NamedTuple):
    """One peer, the versions of its packages, and its rounds."""

    peer: Peer
    versions: Sequence[str]
    rounds: Sequence[Round]


class Kind(NamedTuple):
    """What is measured: the name of the files, the title, the notes, and the columns."""

    file: str
    title: str
    notes: str
    heads: Sequence[str]

    def cells(self, row: Row) -> list[str]:
        """Return the texts of a row, without the first two."""
        cells = {QUEUES.file: _queue_cells, WORKFLOWS.file: _workflow_cells, FLOWS.file: _flow_cells}
        return cells[self.file](row.rounds)


QUEUES = Kind(
    "peers",
    "A no-op job through each task queue",
    NOTES,
    ("", "kept in", "enqueued", "in bulk", "processed", "with", "CPU per job", "start p50", "start p99"),
)
WORKFLOWS = Kind(
    "workflows",
    "Workflows of no-op steps",
    WORKFLOW_NOTES,
    ("", "kept in", "chains of 5", "fan-out of 1,000", "step of a chain", "with"),
)


FLOWS = Kind(
    "flows",
    "Durable functions of local steps",
    FLOW_NOTES,
    ("", "kept in", "flows of 5 steps", "CPU per flow", "step of a long flow", "with"),
)


def _queue_cells(rounds: Sequence[Round]) -> list[str]:
    settings = [one["processed"] for one in rounds]
    best = _best(settings, "rate")
    cpu = _known(settings, best, "cpu")
    return [
        _spread(one["enqueue"] for one in rounds),
        _spread(one["bulk"] for one in rounds),
        _spread(_known(settings, best, "rate")),
        best,
        f"{median(cpu):,.0f} µs" if cpu else "-",
        _ms(one.get("p50") for one in rounds),
        _ms(one.get("p99") for one in rounds),
    ]


def _workflow_cells(rounds: Sequence[Round]) -> list[str]:
    best = _best(rounds, "chains")
    chains, fan_out = _known(rounds, best, "chains"), _known(rounds, best, "fan_out")
    return [_spread(chains), _spread(fan_out), _ms(_known(rounds, best, "step_ms")), best]


def _flow_cells(rounds: Sequence[Round]) -> list[str]:
    best = _best(rounds, "flows")
    flows, cpu = _known(rounds, best, "flows"), _known(rounds, best, "cpu")
    return [_spread(flows), f"{median(cpu):,.0f} µs" if cpu else "-", _ms(_known(rounds, best, "step_ms")), best]


def _best(rounds: Sequence[Round], figure: str) -> str:
    """Return the setting with the highest median of a figure."""
    found = {setting: _known(rounds, setting, figure) for setting in rounds[0]}
    best = max(found, key=lambda setting: median(found[setting] or [0]))
    return best if found[best] else "-"


def _known(rounds: Sequence[Round], setting: str, figure: str) -> list[float]:
    """Return a figure of a setting in all rounds that have it."""
    values = ((one.get(setting) or {}).get(figure) for one in rounds)
    return [value for value in values if value is not None]


def report(console: Console, kind: Kind, rows: Sequence[Row], conditions: Mapping[str, Any]) -> None:
    """Print a table and write it to its two files."""
    table = Table(title=kind.title, title_justify="left", header_style="bold")
    for head in kind.heads:
        table.add_column(head, justify="left" if head in LEFT else "right", no_wrap=True)
    rules = ("---" if head in LEFT else "--:" for head in kind.heads)
    lines = ["| " + " | ".join(kind.heads) + " |", "|" + "|".join(rules) + "|"]
    for row in rows:
        cells = [row.peer.name, KEPT[row.peer.store], *kind.cells(row)]
        table.add_row(*cells)
        lines.append("| " + " | ".join(cells) + " |")
    console.print(table)
    facts = {
        **conditions,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
        "day": time.strftime("%Y-%m-%d", time.gmtime()),
    }
    versions = ", ".join(sorted({version for row in rows for version in row.versions}, key=str.lower))
    lines += ["", kind.notes.format(versions=versions, **facts)]
    (HERE / f"{kind.file}.md").write_text("\n".join(lines))
    facts["peers"] = [
        {
            "name": row.peer.name,
            "store": row.peer.store,
            "kept": KEPT[row.peer.store],
            "versions": row.versions,
            "rounds": row.rounds,
        }
        for row in rows
    ]
    (HERE / f"{kind.file}.json").write_text(json.dumps(facts, indent=1) + "\n")


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
