"""Broadcasts: messages that reach all flows which wait for a name and a key.

A flow waits, and a broadcast is stored, under the lock of the topic: so either the flow finds the broadcast, or whoever
delivers it finds the flow. Delivery locks the workflows of the flows, which a flow that waits has locked before the
topic. It is therefore a transaction of its own, after the one that stores the broadcast; if that process dies, due work
delivers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final, NamedTuple

from ojster.core.durations import SECOND
from ojster.core.errors import Conflict, OjsterError
from ojster.core.job import NODE_BITS, Job
from ojster.jobs.extension import Due
from ojster.storage.call import for_each
from ojster.storage.transaction import Later, Transaction
from ojster.workflows.broadcast import MAX_BROADCASTS, MAX_LOOK_BACK, MAX_REACHED_AT_ONCE, Broadcast, topic_of
from ojster.workflows.flow import LISTENING, MAX_MESSAGES_AT_ONCE, NewRecord
from ojster.workflows.run.flow_wakeups import note_ends, wake_flows

DELIVERY_DELAY: Final = 5 * SECOND
"""Time after which another process delivers a broadcast whose sender may have died, in microseconds."""

WAITING: Final = """
    SELECT DISTINCT b.flow
    FROM broadcast_receivers AS b
    JOIN nodes AS n ON n.id = b.flow
    WHERE b.topic = :topic AND b.waits = 1 AND b.flow > :reached AND n.finished_at IS NULL
    ORDER BY b.flow
    LIMIT :most
"""
"""Selects the next flows that wait for a topic."""

# The last numbers of a flow's records cut the broadcasts of a topic into parts. Each part belongs to the record at its
# end, and is free if that number is negative: the record has put it back. The second of the three conditions on the
# number is for the index: it leaves out what lies below all that was put back.
NEXT: Final = """
    SELECT number, data
    FROM broadcasts
    WHERE topic = :topic
        AND number > :since
        AND number > coalesce(
            (
                SELECT max(b.taken)
                FROM broadcast_receivers AS b
                WHERE b.flow = :flow
                    AND b.topic = :topic
                    AND b.taken < coalesce(
                        (
                            SELECT min(-r.taken)
                            FROM broadcast_receivers AS r
                            WHERE r.flow = :flow AND r.topic = :topic AND r.taken < 0
                        ),
                        b.taken + 1
                    )
            ),
            0
        )
        AND (
            number > coalesce(
                (SELECT max(b.taken) FROM broadcast_receivers AS b WHERE b.flow = :flow AND b.topic = :topic), 0
            )
            OR EXISTS (
                SELECT 1
                FROM broadcast_receivers AS r
                WHERE r.flow = :flow
                    AND r.topic = :topic
                    AND -r.taken >= number
                    AND NOT EXISTS (
                        SELECT 1
                        FROM broadcast_receivers AS b
                        WHERE b.flow = :flow AND b.topic = :topic AND b.taken BETWEEN number AND -r.taken
                    )
            )
        )
    ORDER BY number
    LIMIT :most
"""
"""Selects the next broadcasts for a flow."""


@for_each
def store(tx: Transaction, broadcast: Broadcast) -> int | OjsterError:
    """Store a broadcast, which is to be delivered; return its number, or a refusal."""
    topic = broadcast.topic
    if (full := tx.refuse_growth()) is not None:  # like a push, it is new work from outside
        return full
    if refusal := _lock(tx, topic):
        return refusal
    if broadcast.idempotency_key is not None:
        for (number,) in tx.execute(
            "SELECT number FROM broadcasts WHERE topic = :topic AND idempotency_key = :key",
            {"topic": topic, "key": broadcast.idempotency_key},
        ):
            return int(number)
    ((count,),) = tx.execute("SELECT count(*) FROM broadcasts WHERE topic = :topic", {"topic": topic})
    if count >= MAX_BROADCASTS:
        days = MAX_LOOK_BACK // (24 * 3600 * SECOND)
        return Conflict(
            f"{count} broadcasts {broadcast.name!r} with the key {broadcast.key[:80]!r} were sent in the last {days} "
            f"days; the maximum is {MAX_BROADCASTS}. Use a key for each subject."
        )
    ((number,),) = tx.execute(
        """
        INSERT INTO broadcasts (topic, idempotency_key, sent_at, sent_by, reached, flows, data)
        VALUES (:topic, :key, :now, :by, 0, 0, :data)
        RETURNING number
        """,
        {
            "topic": topic,
            "key": broadcast.idempotency_key,
            "now": tx.now,
            "by": broadcast.by,
            "data": broadcast.data,
        },
    )
    tx.expect(tx.now + DELIVERY_DELAY)
    return int(number)


def _lock(tx: Transaction, topic: str) -> OjsterError | None:
    """Lock a topic until the transaction ends; return the refusal if another one has it."""
    # Without it, a flow that begins to wait and a broadcast that is stored would not see each other.
    if tx.lock_keys({f"broadcast:{topic}"}):
        return Later("Another transaction sends a broadcast to this name and key, or begins to wait. Retry later.")
    return None


def listen(tx: Transaction, job: Job, records: Sequence[NewRecord]) -> None:
    """Note which broadcasts the records of a flow wait for.

    A flow that has waited for a topic before misses nothing that was sent since then.

    Raises
    ------
    Later
        Another transaction has the topic.
    """
    for record in sorted(records, key=lambda record: record.correlation_key or ""):
        topic = topic_of(job.tenant, record.name, record.correlation_key or "")
        if refusal := _lock(tx, topic):
            raise refusal
        ((before,),) = tx.execute(
            "SELECT min(since) FROM broadcast_receivers WHERE flow = :flow AND topic = :topic",
            {"flow": job.node, "topic": topic},
        )
        since = _last_before(tx, topic, record.asked_at - min(record.look_back, MAX_LOOK_BACK))
        tx.execute(
            """
            INSERT INTO broadcast_receivers (flow, key, topic, since, waits)
            VALUES (:flow, :key, :topic, :since, 1)
            ON CONFLICT (flow, key) DO UPDATE
            SET taken = CASE WHEN broadcast_receivers.topic = excluded.topic THEN -abs(broadcast_receivers.taken) END,
                topic = excluded.topic,
                since = excluded.since,
                waits = 1
            """,
            {
                "flow": job.node,
                "key": record.key,
                "topic": topic,
                "since": since if before is None else min(before, since),
            },
        )


def _last_before(tx: Transaction, topic: str, moment: int) -> int:
    """Return the number of the last broadcast that was sent before a moment; 0: there is none.

    A flow that waits gets all with larger numbers, whatever time they are sent at by a clock that was set back.
    """
    rows = tx.execute(
        """
        SELECT number
        FROM broadcasts
        WHERE topic = :topic AND sent_at < :moment
        ORDER BY number DESC
        LIMIT 1
        """,
        {"topic": topic, "moment": moment},
    )
    return int(rows[0][0]) if rows else 0


def give_broadcasts(tx: Transaction, flow: int) -> bool:
    """Give kept broadcasts to the records of a flow that wait for them; return whether there were any."""
    waiting = tx.execute(
        f"""
        SELECT r.key, r.kind, r.asked_at, b.topic, b.since
        FROM flow_records AS r
        JOIN broadcast_receivers AS b ON b.flow = r.flow AND b.key = r.key
        WHERE r.flow = :flow AND r.kind IN {LISTENING} AND r.ended_at IS NULL AND b.waits = 1
        ORDER BY r.asked_at, length(r.key), r.key
        """,
        {"flow": flow},
    )
    has_some = [_give(tx, flow, *row) for row in waiting]
    return any(has_some)


def _give(tx: Transaction, flow: int, key: str, kind: str, asked_at: int, topic: str, since: int) -> bool:
    broadcasts = tx.execute(
        NEXT,
        {"topic": topic, "since": since, "flow": flow, "most": 1 if kind == "listen" else MAX_MESSAGES_AT_ONCE},
    )
    if not broadcasts:
        return False
    if kind != "listen":  # what lies between belongs to other records, also when this one puts back what it has
        ends = tx.execute(
            "SELECT min(taken) FROM broadcast_receivers WHERE flow = :flow AND topic = :topic AND taken > :number",
            {"flow": flow, "topic": topic, "number": broadcasts[0][0]},
        )
        broadcasts = [row for row in broadcasts if ends[0][0] is None or row[0] < ends[0][0]]
    data = broadcasts[0][1] if kind == "listen" else b"[" + b",".join(bytes(data) for _, data in broadcasts) + b"]"
    tx.execute(
        """
        UPDATE broadcast_receivers
        SET taken = NULL
        WHERE flow = :flow AND topic = :topic AND taken BETWEEN :last AND :first
        """,
        {"flow": flow, "topic": topic, "first": -broadcasts[0][0], "last": -broadcasts[-1][0]},
    )
    tx.execute(
        "UPDATE broadcast_receivers SET waits = 0, taken = :number WHERE flow = :flow AND key = :key",
        {"number": broadcasts[-1][0], "flow": flow, "key": key},
    )
    note_ends(tx, [(flow, key, asked_at, data, None)])
    return True


def put_back(tx: Transaction, flow: int, keys: Sequence[str]) -> None:
    """Let a flow receive again what records have received, or wait for, that it has given up."""
    tx.execute_many(
        "UPDATE broadcast_receivers SET waits = 0, taken = -abs(taken) WHERE flow = ? AND key = ?",
        [(flow, key) for key in keys],
    )


class Delivery(NamedTuple):
    """How far a broadcast has come: how many flows have got it, and whether there may be more."""

    flows: int
    has_more: bool


@for_each
def deliver(tx: Transaction, number: int) -> Delivery:
    """Give a broadcast to the next flows that wait for it, in the order of their numbers."""
    # Two that deliver at the same time would count each flow twice.
    rows = tx.execute(
        f"SELECT topic, reached, flows FROM broadcasts WHERE number = :number{tx.for_update}",
        {"number": number},
    )
    if not rows or rows[0][1] is None:
        return Delivery(rows[0][2] if rows else 0, has_more=False)
    ((topic, reached, count),) = rows
    waiting = tx.execute(WAITING, {"topic": topic, "reached": reached, "most": MAX_REACHED_AT_ONCE})
    flows = [flow for (flow,) in waiting]
    if flows:
        # Who suspends one of the flows has the lock of its workflow, so that it either sees the broadcast or is woken.
        tx.execute(
            f"SELECT seq FROM workflows WHERE seq {tx.among} ORDER BY seq{tx.for_update}",
            (tx.integers(sorted({flow >> NODE_BITS for flow in flows})),),
        )
    receivers = [flow for flow in flows if give_broadcasts(tx, flow)]
    if receivers:
        wake_flows(tx, receivers)
    has_more = len(flows) == MAX_REACHED_AT_ONCE
    tx.execute(
        "UPDATE broadcasts SET reached = :reached, flows = :flows WHERE number = :number",
        {"reached": flows[-1] if has_more else None, "flows": count + len(receivers), "number": number},
    )
    return Delivery(count + len(receivers), has_more)


def deliver_overdue(tx: Transaction) -> Due:
    """Deliver the next part of the broadcast that has waited longest, if its sender may have died."""
    rows = tx.execute("SELECT number, sent_at FROM broadcasts WHERE reached IS NOT NULL ORDER BY number LIMIT 2")
    for number, sent_at in rows[:1]:
        if sent_at + DELIVERY_DELAY > tx.now:
            return Due(sent_at + DELIVERY_DELAY)
        (delivery,) = deliver(tx, [number])
        if delivery.has_more or len(rows) > 1:
            return Due(tx.now, has_more=True)
    return Due(None)


def forget_broadcasts(tx: Transaction, room: int) -> Counter[str]:
    """Delete broadcasts that no flow can look back to, at most ``room``; return how many ``rows``."""
    rows = tx.execute(
        """
        SELECT number
        FROM broadcasts
        WHERE sent_at < :before
        ORDER BY sent_at
        LIMIT :room
        """,
        {"before": tx.now - MAX_LOOK_BACK, "room": max(room, 0)},
    )
    tx.execute_many("DELETE FROM broadcasts WHERE number = ?", rows)
    return Counter(rows=len(rows))
