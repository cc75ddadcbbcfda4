"""What wakes a flow: the end of a step that it has asked for, a message, its cancellation, or its deadline.

Whoever wakes a flow has locked its workflow. A flow that is about to suspend looks, under the same lock, whether
something has ended that it has not seen; so nothing is missed.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from ojster.core.job import NODE_BITS, Job
from ojster.core.job_table import JOB_COLUMNS
from ojster.jobs.transitions import make_available
from ojster.storage.transaction import Transaction
from ojster.workflows.flow import CANCELLATION, GIVEN_UP, LISTENING
from ojster.workflows.node import Kind, Node, NodeState, body_of
from ojster.workflows.run.results import NodeOutcome, outcomes
from ojster.workflows.run.streams import reopen
from ojster.workflows.suspension import SuspensionKind
from ojster.workflows.topics import wake_followers

WOKEN: Final = "flows for which something has ended"
"""What is known in a transaction: flows that were woken in it, also if they were about to wait."""


def end_awaited(tx: Transaction, nodes: Collection[int]) -> None:
    """Record the ends of steps that flows have asked for, and wake the flows."""
    if not nodes:
        return
    rows = tx.execute(
        f"SELECT flow, key, node, asked_at FROM flow_records WHERE node {tx.among} AND ended_at IS NULL",
        (tx.integers(sorted(nodes)),),
    )
    if not rows:
        return
    ended = outcomes(tx, [node for _, _, node, _ in rows])
    note_ends(tx, [(flow, key, asked_at, *_outcome(ended[node])) for flow, key, node, asked_at in rows])
    wake_flows(tx, {flow for flow, *_ in rows})


def end_times(tx: Transaction, asked: Collection[tuple[int, int]]) -> dict[int, int]:
    """Return the time at which something ends for each flow, of flows and times when these asked for what ends.

    It is now; but if the clock was set back, after all that the flow has asked for. Retries and forks compare the two
    times to know what the flow had asked for before it saw the end.
    """
    times = {flow: tx.now for flow, _ in asked}
    if early := {flow for flow, asked_at in asked if asked_at >= tx.now}:
        rows = tx.execute(
            f"SELECT flow, max(asked_at) FROM flow_records WHERE flow {tx.among} GROUP BY flow",
            (tx.integers(sorted(early)),),
        )
        times |= {flow: max(tx.now, asked_at + 1) for flow, asked_at in rows}
    return times


def note_ends(tx: Transaction, ends: Sequence[tuple[int, str, int, bytes | None, bytes | None]]) -> None:
    """Record the ends of what flows wait for, with numbers: flow, key, when it was asked for, result and error of each.

    The caller holds the lock of the workflow, so that ends become visible in the order of their numbers. A worker that
    has seen one has seen all before it, and asks for later ones only.
    """
    ended_at = end_times(tx, [(flow, asked_at) for flow, _, asked_at, *_ in ends])
    tx.execute_many(
        """
        UPDATE flow_records
        SET ended_at = ?,
            result = ?,
            error = ?,
            number = 1 + coalesce(
                (SELECT max(e.number) FROM flow_records AS e WHERE e.flow = flow_records.flow AND e.number IS NOT NULL),
                0
            )
        WHERE flow = ? AND key = ?
        """,
        [(ended_at[flow], result, error, flow, key) for flow, key, _, result, error in ends],
    )


def _outcome(ended: NodeOutcome) -> tuple[bytes | None, bytes | None]:
    """Return the result of a step, or its error."""
    if ended.state == NodeState.COMPLETED:
        return ended.result or b"null", None
    return (b"null", None) if ended.state == NodeState.SKIPPED else (None, ended.shown())


def wake_flows(tx: Transaction, flows: Collection[int]) -> None:
    """Make the jobs of flows available that wait. Those that run see what has happened when they are about to wait.

    They look when the version of their workflow is another one than they know.
    """
    tx.known[WOKEN].update(dict.fromkeys(flows, ()))
    tx.execute(
        f"UPDATE workflows SET version = version + 1 WHERE seq {tx.among}",
        (tx.integers(sorted({flow >> NODE_BITS for flow in flows})),),
    )
    # A job that is suspended at the moment is still active for this statement: it looks for ends when it has waited for
    # the workflow. One that waits already may be locked by a heartbeat, which would wake nobody; so this waits for it.
    # Whoever holds it and wants the workflow, too, is a deadlock, after which one of the two runs again.
    rows = tx.execute(
        f"""
        SELECT {JOB_COLUMNS}
        FROM jobs
        WHERE node {tx.among} AND state = 'pending' AND suspension = 'flow'
        ORDER BY id{tx.for_update}
        """,
        (tx.integers(sorted(flows)),),
    )
    wake(tx, [Job(*row) for row in rows])


def wake(tx: Transaction, jobs: Sequence[Job]) -> None:
    """Make suspended jobs of flows available."""
    for job in jobs:
        job.suspension = SuspensionKind.RESUMED
        tx.emit("job.resumed", job)
    make_available(tx, jobs)


def note_changes(tx: Transaction, jobs: Sequence[Job]) -> None:
    """Notify the followers of the workflows of jobs of a change."""
    seqs = {job.workflow for job in jobs if job.workflow is not None}
    if seqs:
        rows = tx.execute(
            f"UPDATE workflows SET version = version + 1 WHERE seq {tx.among} RETURNING id",
            (tx.integers(sorted(seqs)),),
        )
        for (id,) in rows:
            wake_followers(tx, id)


def ask_to_cancel(tx: Transaction, flows: Collection[int]) -> set[int]:
    """Ask flows to end, so that they can clean up; return those whose functions have begun, which alone are asked."""
    if not flows:
        return set()
    among = (tx.integers(sorted(flows)),)
    if tx.for_update:  # another transaction may be starting one: wait for it, and let no other do so
        unstarted = f"node {tx.among} AND started_at IS NULL AND finished_at IS NULL"
        tx.execute(f"SELECT 1 FROM jobs WHERE {unstarted} ORDER BY id{tx.for_update}", among)
    rows = tx.execute(
        f"SELECT node FROM jobs WHERE node {tx.among} AND started_at IS NOT NULL AND finished_at IS NULL", among
    )
    begun = {node for (node,) in rows}
    tx.execute_many(
        """
        INSERT INTO flow_records (flow, key, kind, name, asked_at)
        VALUES (?, ?, 'cancel', '', ?)
        ON CONFLICT (flow, key) DO NOTHING
        """,
        [(flow, CANCELLATION, tx.now) for flow in begun],
    )
    new = tx.execute(
        f"SELECT flow FROM flow_records WHERE flow {tx.among} AND key = '{CANCELLATION}' AND ended_at IS NULL",
        (tx.integers(sorted(begun)),),
    )
    note_ends(tx, [(flow, CANCELLATION, tx.now, None, None) for (flow,) in new])
    if begun:
        wake_flows(tx, begun)
    return begun


def forget_last_failures(tx: Transaction, flows: Collection[int]) -> None:
    """Forget what made flows fail or end, so that they ask for it again.

    That is what failed after all else was asked for; and the cancellation, with what was given up and asked for because
    of it; and waits for broadcasts. A failure after which a flow went on, because it had caught it, stays.
    """
    for flow in flows:
        # Before the cancellation takes with it what the flow has asked for after a failure that it had caught.
        ((last,),) = tx.execute(_LAST_ASKED, {"flow": flow})
        forgotten = tx.execute(_FORGET_AFTER_CANCELLATION, {"flow": flow, "given_up": GIVEN_UP})
        forgotten += tx.execute(_FORGET_LAST_FAILURES, {"flow": flow, "given_up": GIVEN_UP, "last": last})
        if ends := [at for (at,) in forgotten if at is not None]:
            reopen(tx, flow, min(ends))
        tx.execute(_FORGET_OPEN_LISTENING, {"flow": flow})
        tx.execute(_PUT_MESSAGES_BACK, {"flow": flow})
        tx.execute(_PUT_BROADCASTS_BACK, {"flow": flow})


def stays_cancelled(tx: Transaction, node: Node) -> bool:
    """Return whether a node is a flow with a cancellation that a retry has not forgotten: it has cleaned up."""
    query = f"SELECT 1 FROM flow_records WHERE flow = ? AND key = '{CANCELLATION}'"
    return node.kind == Kind.FLOW and bool(tx.execute(query, (body_of(node),)))


_LAST_ASKED: Final = """
    SELECT coalesce(max(r.asked_at), 0)
    FROM flow_records AS r
    WHERE r.flow = :flow
        AND r.kind NOT IN ('published', 'answer', 'stream', 'position', 'sleep', 'cancel')
        AND NOT EXISTS (
            SELECT 1
            FROM flow_records AS c
            WHERE c.flow = :flow AND c.kind = 'cancel' AND r.asked_at >= coalesce(c.seen_at, c.ended_at)
        )
"""
"""When a flow asked for something last, before it was cancelled."""

# A flow that has cleaned up with jobs or steps keeps its cancellation: what they have undone is not done again.
_FORGET_AFTER_CANCELLATION: Final = """
    DELETE FROM flow_records
    WHERE flow = :flow
        AND kind NOT IN ('answer', 'stream')
        AND EXISTS (
            SELECT 1
            FROM flow_records AS c
            WHERE c.flow = :flow
                AND c.kind = 'cancel'
                AND NOT EXISTS (
                    SELECT 1
                    FROM flow_records AS u
                    WHERE u.flow = :flow
                        AND u.kind IN ('run', 'step')
                        AND u.asked_at >= coalesce(c.seen_at, c.ended_at)
                )
                AND (
                    flow_records.kind = 'cancel'
                    OR flow_records.asked_at > coalesce(c.seen_at, c.ended_at)
                    OR (flow_records.error = :given_up AND flow_records.ended_at >= c.ended_at)
                )
        )
    RETURNING coalesce(seen_at, ended_at)
"""

# What was given up counts as well: the function gave it up because of the failure, or gives it up again.
_FORGET_LAST_FAILURES: Final = """
    DELETE FROM flow_records
    WHERE flow = :flow
        AND kind <> 'answer'
        AND error IS NOT NULL
        AND NOT EXISTS (SELECT 1 FROM flow_records AS c WHERE c.flow = :flow AND c.kind = 'cancel')
        AND (error = :given_up OR ended_at > :last)
    RETURNING coalesce(seen_at, ended_at)
"""

# A flow that has ended gets no broadcasts. When its function asks again, it receives what was sent meanwhile. It asks
# under the lock of the topic, which the retry does not have.
_FORGET_OPEN_LISTENING: Final = f"""
    DELETE FROM flow_records
    WHERE flow = :flow AND kind IN {LISTENING} AND ended_at IS NULL
"""

_PUT_MESSAGES_BACK: Final = """
    UPDATE flow_messages
    SET taken_by = NULL
    WHERE flow = :flow
        AND taken_by <> '!restarted'
        AND answered_at IS NULL
        AND taken_by NOT IN (SELECT key FROM flow_records WHERE flow = :flow)
"""

_PUT_BROADCASTS_BACK: Final = """
    UPDATE broadcast_receivers
    SET waits = 0, taken = -abs(taken)
    WHERE flow = :flow
        AND key NOT LIKE '!restarted%'
        AND key NOT IN (SELECT key FROM flow_records WHERE flow = :flow)
"""


def forget_records(tx: Transaction, flows: Collection[int]) -> None:
    """Forget everything that flows have asked for, and that they were cancelled; what they receive comes again."""
    if flows:
        among = (tx.integers(sorted(flows)),)
        for flow in flows:
            reopen(tx, flow, 0)
        tx.execute(f"DELETE FROM flow_records WHERE flow {tx.among}", among)
        received = f"flow {tx.among} AND taken_by <> '!restarted'"
        tx.execute(f"UPDATE flow_messages SET taken_by = NULL WHERE {received}", among)
        listened = f"flow {tx.among} AND key NOT LIKE '!restarted%'"
        tx.execute(f"UPDATE broadcast_receivers SET waits = 0, taken = NULL WHERE {listened}", among)
