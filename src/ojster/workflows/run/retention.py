"""Deletion of workflows past their retention."""

from __future__ import annotations

from collections import Counter
from typing import Any, Final, NamedTuple

from ojster.collections.contents import delete_items
from ojster.collections.items import key_of_kept_files, key_of_promises, key_of_workflow
from ojster.core.job import Job
from ojster.core.job_table import JOB_COLUMNS
from ojster.jobs.interventions import delete_jobs
from ojster.storage.transaction import Transaction
from ojster.tenancy.tenant import tenants_retention
from ojster.workflows.run.states import change_workflow
from ojster.workflows.run.streams import forget_streams
from ojster.workflows.stored_workflow import HIDDEN, WORKFLOW_COLUMNS, StoredWorkflow, delete_nodes

MAX_DUE_WORKFLOWS: Final = 100
"""Maximum number of due workflows processed in one transaction."""


def forget_workflows(tx: Transaction, room: int) -> Counter[str]:
    """Delete workflows past their retention with their jobs and nodes, at most about ``room`` rows.

    Return the numbers of deleted ``rows``, ``jobs`` and ``workflows``.
    """
    done: Counter[str] = Counter()
    for some in _deletable_workflows(tx):
        # A locked workflow is being deleted by another server, or retried. Deletion is in no hurry: it goes around,
        # instead of waiting with the rows locked that it has deleted so far.
        for row in tx.execute(
            f"""
            SELECT {WORKFLOW_COLUMNS}
            FROM workflows
            WHERE {some.condition}
            ORDER BY {some.order}
            LIMIT :limit{tx.skip_locked}
            """,
            some.parameters | {"limit": MAX_DUE_WORKFLOWS},
        ):
            workflow = StoredWorkflow(*row)
            # That statement did not see what others committed after it began, such as a fork of this workflow, although
            # it locked the row later. Whoever forks a workflow locks it, so nothing of the kind follows now.
            query = f"SELECT 1 FROM workflows WHERE seq = :seq AND {some.condition}"
            if not tx.execute(query, some.parameters | {"seq": workflow.seq}):
                continue
            done += _forget(tx, workflow, room - done["rows"])
            if done["rows"] >= room:
                return done
    return done


def count_deletable(tx: Transaction) -> Counter[str]:
    """Return the numbers of workflows, and of their jobs, that are past their retention."""
    counts: Counter[str] = Counter()
    for some in _deletable_workflows(tx):
        query = f"SELECT count(*), sum(jobs) FROM workflows WHERE {some.condition}"
        ((workflows, jobs),) = tx.execute(query, some.parameters)
        counts += Counter(workflows=workflows, jobs=int(jobs or 0))
    return counts


class _Deletable(NamedTuple):
    """Workflows that may be deleted: an SQL condition with its parameters, and the column by which to sort them."""

    condition: str
    parameters: dict[str, Any]
    order: str = "finished_at"


def _deletable_workflows(tx: Transaction) -> list[_Deletable]:
    """Return the workflows that may be deleted now.

    A workflow is kept until its next attempt, if any, has finished, while a collection contains its items, and while
    a fork of it exists, whose steps have results of its jobs.
    """
    now, usual = tx.now, tx.settings.retention
    # OFFSET makes PostgreSQL look for each workflow by an index, instead of joining all unfinished ones.
    free = """
        NOT EXISTS (
            SELECT 1
            FROM workflows AS n
            WHERE n.id = workflows.next_attempt AND n.finished_at IS NULL
            LIMIT 1 OFFSET 0
        )
        AND NOT EXISTS (
            SELECT 1
            FROM collection_items AS i
            WHERE i.workflow = workflows.seq AND i.removed_at IS NULL
            LIMIT 1 OFFSET 0
        )
        AND NOT EXISTS (
            SELECT 1
            FROM workflows AS f
            WHERE f.forked_from = workflows.id
            LIMIT 1 OFFSET 0
        )
    """
    deletable = [
        _Deletable("state = :state AND finished_at IS NOT NULL", {"state": HIDDEN}),
        _Deletable(f"kept_until <= :now AND {free}", {"now": now}, "kept_until"),
    ]
    own = tenants_retention(tx)
    marks = {f"tenant_{number}": tenant for number, tenant in enumerate(sorted(own))}
    others = f" AND tenant NOT IN (:{', :'.join(marks)})" if marks else ""
    for state, period in (
        ("completed", usual.completed),
        ("cancelled", usual.cancelled),
        ("retried", usual.cancelled),
        ("failed", usual.discarded),
        ("compensated", usual.discarded),
    ):
        finished = f"state = :state AND finished_at < :before AND kept_until IS NULL AND {free}"
        if period is not None:
            parameters = {"state": state, "before": now - period, **marks}
            deletable.append(_Deletable(f"{finished}{others}", parameters))
        for tenant, delay in own.items():
            if delay:
                parameters = {"state": state, "before": now - delay, "tenant": tenant}
                deletable.append(_Deletable(f"{finished} AND tenant = :tenant", parameters))
    return deletable


def _forget(tx: Transaction, workflow: StoredWorkflow, room: int) -> Counter[str]:
    """Delete a workflow in parts: its jobs, nodes, shared values and streams, and itself; at most ``room`` rows.

    Jobs of earlier rounds of a flow are deleted with it, but those that somebody has retried, and that run.

    The first call hides the workflow. Return the numbers of deleted ``rows``, ``jobs`` and ``workflows``.
    """
    low, high = workflow.numbers
    if workflow.state != HIDDEN:
        change_workflow(workflow, HIDDEN)
        tx.execute("UPDATE workflows SET state = :state WHERE seq = :seq", {"state": HIDDEN, "seq": workflow.seq})
    jobs = tx.execute(
        "SELECT seq, queue, tenant, state FROM jobs WHERE node BETWEEN :low AND :high LIMIT :room",
        {"low": low, "high": high, "room": room},
    )
    # Somebody may retry one now: it is either deleted, or seen as unfinished.
    jobs += tx.execute(
        f"""
        SELECT seq, queue, tenant, state
        FROM jobs
        WHERE seq {tx.among_rows("SELECT seq FROM former_steps WHERE workflow = :workflow")}
            AND finished_at IS NOT NULL
        LIMIT :room{tx.for_update}
        """,
        {"workflow": workflow.seq, "room": room - len(jobs)},
    )
    delete_jobs(tx, [(seq, queue, tenant, state) for seq, queue, tenant, state in jobs])
    left = room - len(jobs)
    nodes = tx.execute(
        "SELECT id FROM nodes WHERE id BETWEEN :low AND :high ORDER BY id DESC LIMIT :left",
        {"low": low, "high": high, "left": left},
    )
    delete_nodes(tx, [id for (id,) in nodes])
    left -= len(nodes)
    if left > 0:
        _complete_former_steps(tx, workflow)
    values = _forget_values(tx, workflow, left)
    left -= values
    chunks = forget_streams(tx, workflow.seq, left)
    left -= chunks
    if left > 0:
        for table in ("workflow_properties", "notes", "former_steps"):
            tx.execute(f"DELETE FROM {table} WHERE workflow = :seq", {"seq": workflow.seq})
        keys = (key_of_workflow, key_of_promises, key_of_kept_files)
        delete_items(tx, [key_of(workflow.seq) for key_of in keys])
        tx.execute("DELETE FROM workflows WHERE seq = :seq", {"seq": workflow.seq})
    rows = len(jobs) + len(nodes) + values + chunks + (left > 0)
    return Counter(rows=rows, jobs=len(jobs), workflows=int(left > 0))


def _complete_former_steps(tx: Transaction, workflow: StoredWorkflow) -> None:
    """Store the values that jobs of earlier rounds share with the workflow, which they outlive, with these jobs."""
    former = tx.among_rows("SELECT seq FROM former_steps WHERE workflow = :workflow")
    # Somebody may change one now: what is read is stored again.
    query = f"SELECT {JOB_COLUMNS} FROM jobs WHERE seq {former}{tx.for_update}"
    jobs = [Job(*row) for row in tx.execute(query, {"workflow": workflow.seq})]
    tx.load_envelopes(jobs)
    tx.store_envelopes(jobs)


def _forget_values(tx: Transaction, workflow: StoredWorkflow, room: int) -> int:
    """Delete at most ``room`` values that the jobs of a workflow shared; return how many."""
    rows = tx.execute(
        "SELECT digest FROM shared_values WHERE workflow = :seq LIMIT :room",
        {"seq": workflow.seq, "room": max(room, 0)},
    )
    tx.execute_many("DELETE FROM shared_values WHERE digest = ?", rows)
    return len(rows)
