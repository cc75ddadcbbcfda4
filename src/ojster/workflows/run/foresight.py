"""What the completion of steps must know of their workflows, read in one message with the locks on their jobs.

It saves a round trip for each step. ``LoadedGraph.lock_around`` reads the same rows when they were not foreseen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Final

import msgspec

from ojster.core.job import Job
from ojster.core.states import JobState
from ojster.jobs.extension import Foresight
from ojster.storage.effects import PerTransaction
from ojster.storage.transaction import Row, Transaction
from ojster.workflows.run.graph import queries_around


class _Foreseen(msgspec.Struct):
    """The rows around nodes, as ``queries_around`` reads them."""

    nodes: Set[int] = frozenset()
    rows: Sequence[list[Row]] = ()


_FORESEEN: Final = PerTransaction[_Foreseen](_Foreseen)


def foresee(tx: Transaction, nodes: Sequence[int]) -> Foresight:
    """Return the queries for what surrounds the nodes of jobs, and what keeps their rows."""

    def keep(rows: Sequence[list[Row]]) -> None:
        _FORESEEN.put(tx, _Foreseen(frozenset(nodes), rows))

    return Foresight(queries_around(tx, nodes), keep)


def foreseen(tx: Transaction, ended: Mapping[int, Job]) -> Sequence[list[Row]] | None:
    """Return what was read around the nodes of ended jobs, once; ``None``: it must be read.

    The rows are as they were before the jobs were looked at. So they count only if all of these jobs have completed,
    and nothing else was done: a job that is refused, fails, or was stopped before may have changed nodes.
    """
    known = _FORESEEN(tx)
    if not known.nodes:
        return None
    _FORESEEN.put(tx, _Foreseen())
    if known.nodes != ended.keys() or any(job.state != JobState.COMPLETED for job in ended.values()):
        return None
    return known.rows
