"""Answers that come before a step, or a job, waits for them: they are kept, one for each, until it does.

Whoever keeps one, and whoever suspends the step, has the lock of its workflow, so that none is missed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from ojster.core.job import Job
from ojster.jobs.failure import Failure
from ojster.storage.transaction import Transaction
from ojster.workflows.suspension import SuspensionKind


class Resumption(msgspec.Struct, frozen=True):
    """A request to resume a suspended job, or to release a pending one.

    It may come while the job still runs, before it waits: whoever has been asked can be quicker than the worker.

    Parameters
    ----------
    data:
        Data that the job waits for, as JSON.
    failure:
        Reason why the data will not come. The attempt fails with it.
    by:
        Name of the caller's token, if it is known.
    """

    job_id: str
    data: bytes | None = None
    failure: Failure | None = None
    by: str | None = None


def keep_early_answer(tx: Transaction, item: Resumption, *, node: int | None, seq: int | None = None) -> bool:
    """Keep an answer for a step, or for a job that is none; return whether it had none before."""
    column, value = ("seq", seq) if node is None else ("node", node)
    rows = tx.execute(
        f"""
        INSERT INTO early_answers ({column}, answer)
        VALUES (:value, :answer)
        ON CONFLICT ({column}) DO NOTHING
        RETURNING {column}
        """,
        {"value": value, "answer": _encode(item)},
    )
    return len(rows) > 0


def take_early_answer(tx: Transaction, job: Job) -> Resumption | None:
    """Return the answer that is kept for a job, which has it then, or ``None``."""
    column, value = ("seq", job.seq) if job.node is None else ("node", job.node)
    for (answer,) in tx.execute(
        f"DELETE FROM early_answers WHERE {column} = :value RETURNING answer", {"value": value}
    ):
        return _DECODER.decode(answer)
    return None


def forget_early_answers(tx: Transaction, nodes: Sequence[int]) -> None:
    """Delete answers that steps have not waited for when they ran."""
    if nodes:
        tx.execute(f"DELETE FROM early_answers WHERE node {tx.among}", (tx.integers(nodes),))


def hasten_answered_waits(tx: Transaction, waits: Sequence[Job]) -> None:
    """Let wait steps that start now end at once if their answer has come before: they are due."""
    by_node = {job.node: job for job in waits if job.suspension == SuspensionKind.COMPLETE}
    query = f"SELECT node FROM early_answers WHERE node {tx.among}"
    for (node,) in tx.execute(query, (tx.integers([node for node in by_node if node is not None]),)):
        by_node[node].due_at = tx.now


_encode: Final = msgspec.json.Encoder().encode
_DECODER: Final = msgspec.json.Decoder(Resumption)
