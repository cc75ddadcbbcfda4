"""Streams of workflows: flows and jobs append chunks, which readers follow.

Whoever appends locks the row of the stream until it commits. So chunks become visible in the order of their numbers,
and a reader that asks for those after a number misses none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec import UNSET, Raw

from ojster.core.errors import Conflict, InvalidRequest, OjsterError, PayloadTooLarge
from ojster.core.job import NODE_BITS, Job
from ojster.core.refusals import size_details
from ojster.jobs.leases import refusal_of_attempt
from ojster.jobs.queries import no_job
from ojster.storage.call import returns_refusal
from ojster.storage.transaction import ColumnType, Transaction
from ojster.workflows.flow import NewRecord
from ojster.workflows.stored_workflow import StoredWorkflow, get_workflow
from ojster.workflows.stream import (
    MAX_CHUNK_BYTES,
    MAX_CHUNKS,
    MAX_CHUNKS_AT_ONCE,
    MAX_STREAM_BYTES,
    MAX_STREAM_NAME,
    MAX_STREAMS,
    StreamAddress,
    StreamAppend,
    StreamChunk,
    StreamPage,
    key_of_chunk,
    key_of_stream,
)
from ojster.workflows.topics import wake_readers

_CHUNK: Final[dict[str, ColumnType]] = {
    "workflow": "bigint",
    "name": "text",
    "number": "bigint",
    "at": "bigint",
    "flow": "bigint",
    "asked_at": "bigint",
    "append_id": "text",
    "data": "bytea",
}


def append(tx: Transaction, items: Sequence[StreamAppend]) -> list[int | OjsterError]:
    """Append what jobs say to streams of their workflows; return the number of the last chunk, or a refusal."""
    jobs = tx.lock_jobs([item.job_id for item in items])
    results: dict[int, int | OjsterError] = {}
    for place in sorted(range(len(items)), key=lambda place: items[place].name):  # as flows do: so no deadlock
        item = items[place]
        try:
            with tx.savepoint():
                results[place] = _append_of_job(tx, jobs.get(item.job_id), item)
        except OjsterError as refusal:
            results[place] = refusal
    return [results[place] for place in range(len(items))]


def _append_of_job(tx: Transaction, job: Job | None, item: StreamAppend) -> int:
    if job is None:
        raise no_job(item.job_id)
    if refusal := refusal_of_attempt(job, item):
        raise refusal
    if job.workflow is None:
        raise InvalidRequest(f"The job {job.id} belongs to no workflow, so it has no streams.", field="job_id")
    if item.append_id is not None:
        made_before = tx.execute(
            "SELECT number FROM stream_chunks WHERE workflow = :workflow AND append_id = :id",
            {"workflow": job.workflow, "id": item.append_id},
        )
        for (number,) in made_before:
            return int(number) + len(item.values) - 1
    rows = [(None, None, None if place else item.append_id, value) for place, value in enumerate(item.values)]
    return _append(tx, job.workflow, item.name, rows)


_Row = tuple[int | None, int | None, str | None, bytes | None]
"""The flow, the time when it appended, the id of the append, and the value; ``None``: the end of the stream."""


def _append(tx: Transaction, workflow: int, name: str, rows: Sequence[_Row]) -> int:
    """Append chunks to a stream; return the number of the last one.

    Raises
    ------
    InvalidRequest
        The stream is closed, its name is too long, or the workflow has too many streams.
    PayloadTooLarge
        A chunk, or the stream, is too large.
    """
    if len(name) > MAX_STREAM_NAME:
        text = f"The name of a stream has at most {MAX_STREAM_NAME} characters, not {len(name)}."
        raise InvalidRequest(text, field="name")
    sizes = [len(data or b"") for *_, data in rows]
    if max(sizes, default=0) > MAX_CHUNK_BYTES:
        text = f"A chunk of the stream {name!r} takes {max(sizes)} bytes; at most {MAX_CHUNK_BYTES} are allowed."
        raise PayloadTooLarge(text, **size_details(MAX_CHUNK_BYTES, max(sizes), "data"))
    ends = [place for place, row in enumerate(rows) if row[-1] is None]
    # This locks the row: another append waits here, so that numbers become visible in their order.
    ((length, size, was_closed),) = tx.execute(
        """
        INSERT INTO streams (workflow, name, length, bytes, is_closed)
        VALUES (:workflow, :name, :count, :size, 0)
        ON CONFLICT (workflow, name) DO UPDATE
        SET length = streams.length + :count, bytes = streams.bytes + :size
        RETURNING length, bytes, is_closed
        """,
        {"workflow": workflow, "name": name, "count": len(rows), "size": sum(sizes)},
    )
    if was_closed or (ends and ends[0] < len(rows) - 1):
        raise InvalidRequest(f"The stream {name!r} is closed. Close a stream after the last append.", field="name")
    if length > MAX_CHUNKS or size > MAX_STREAM_BYTES:
        most = f"{MAX_CHUNKS} chunks and {MAX_STREAM_BYTES} bytes"
        text = f"The stream {name!r} has {length} chunks with {size} bytes; at most {most} are allowed."
        raise PayloadTooLarge(text, limit=MAX_STREAM_BYTES)
    if length == len(rows):
        _check_number(tx, workflow)
    first = length - len(rows) + 1
    tx.insert_rows(
        "stream_chunks",
        _CHUNK,
        [(workflow, name, first + place, tx.now, *row) for place, row in enumerate(rows)],
    )
    if ends:
        tx.execute(
            "UPDATE streams SET is_closed = 1 WHERE workflow = :workflow AND name = :name",
            {"workflow": workflow, "name": name},
        )
    ((id,),) = tx.execute("SELECT id FROM workflows WHERE seq = :seq", {"seq": workflow})
    wake_readers(tx, str(id))
    return int(length)


def _check_number(tx: Transaction, workflow: int) -> None:
    """Raise the refusal of a new stream if its workflow has too many."""
    ((count,),) = tx.execute("SELECT count(*) FROM streams WHERE workflow = :workflow", {"workflow": workflow})
    if count > MAX_STREAMS:
        raise InvalidRequest(f"A workflow has at most {MAX_STREAMS} streams.", field="name")


def append_of_flow(tx: Transaction, flow: int, records: Sequence[NewRecord]) -> None:
    """Append what the function of a flow says to its streams, which it numbers, so that a replay appends nothing.

    The caller holds the lock of the workflow.

    Raises
    ------
    Conflict
        Another worker has run the flow meanwhile.
    InvalidRequest, PayloadTooLarge
        A stream is closed, or too large.
    """
    for name in sorted({record.name for record in records}):
        chunks = [record for record in records if record.name == name]
        key = key_of_stream(name)
        known = tx.execute(
            "SELECT result FROM flow_records WHERE flow = :flow AND key = :key", {"flow": flow, "key": key}
        )
        count = int(known[0][0]) if known else 0
        for record in chunks:
            count += 1
            if record.key != key_of_chunk(name, count):
                text = f"The next append of the flow to the stream {name!r} is {count}. Another worker has run it."
                raise Conflict(text, key=record.key)
        values = [None if record.result is UNSET else bytes(record.result) for record in chunks]
        rows = [(flow, record.asked_at, None, value) for record, value in zip(chunks, values, strict=True)]
        _append(tx, flow >> NODE_BITS, name, rows)
        tx.execute(
            """
            INSERT INTO flow_records (flow, key, kind, name, asked_at, ended_at, result)
            VALUES (:flow, :key, 'stream', :name, :asked_at, :now, :count)
            ON CONFLICT (flow, key) DO UPDATE SET ended_at = excluded.ended_at, result = excluded.result
            """,
            {
                "flow": flow,
                "key": key,
                "name": name,
                "asked_at": chunks[0].asked_at,
                "now": tx.now,
                "count": b"%d" % count,
            },
        )


def reopen(tx: Transaction, flow: int, since: int) -> None:
    """Let a flow that is retried append again what its function appended from a moment of the flow on.

    Streams that it has closed since then go on. What readers have got stays.
    """
    of_flow = {"workflow": flow >> NODE_BITS, "flow": flow, "since": since}
    closed = tx.execute(
        """
        DELETE FROM stream_chunks
        WHERE workflow = :workflow AND flow = :flow AND asked_at >= :since AND data IS NULL
        RETURNING name
        """,
        of_flow,
    )
    tx.execute_many(
        "UPDATE streams SET is_closed = 0 WHERE workflow = ? AND name = ?",
        [(flow >> NODE_BITS, name) for (name,) in closed],
    )
    kept = tx.execute(
        """
        SELECT name, count(*)
        FROM stream_chunks
        WHERE workflow = :workflow AND flow = :flow AND asked_at < :since
        GROUP BY name
        """,
        of_flow,
    )
    tx.execute(
        "UPDATE flow_records SET result = :none WHERE flow = :flow AND kind = 'stream'", {"none": b"0", **of_flow}
    )
    tx.execute_many(
        "UPDATE flow_records SET result = ? WHERE flow = ? AND key = ?",
        [(b"%d" % count, flow, key_of_stream(name)) for name, count in kept],
    )


def keep_chunks(tx: Transaction, workflow: int, flows: Sequence[int]) -> None:
    """Let flows number their appends from 1 again: what they have appended stays, and no retry counts it.

    That is for flows that begin anew, and for those inside them, whose nodes get the numbers of deleted ones.
    """
    numbers = tx.integers(flows)
    # Only the streams that the flows have appended to: others may be long, and have nothing of these flows.
    tx.execute(
        f"""
        UPDATE stream_chunks
        SET flow = NULL
        WHERE workflow = ?
            AND name IN (SELECT name FROM flow_records WHERE flow {tx.among} AND kind = 'stream')
            AND flow {tx.among}
        """,
        (workflow, numbers, numbers),
    )


def find_chunks(tx: Transaction, addresses: Sequence[StreamAddress]) -> list[StreamPage | OjsterError]:
    """Return the chunks after each position; what many readers of one stream ask for is read once."""
    pages = {address: _page(tx, address) for address in dict.fromkeys(addresses)}
    return [pages[address] for address in addresses]


@returns_refusal
def _page(tx: Transaction, address: StreamAddress) -> StreamPage:
    workflow = get_workflow(tx, address.workflow_id, tenant=address.tenant)
    rows = tx.execute(
        """
        SELECT number, at, data
        FROM stream_chunks
        WHERE workflow = :workflow AND name = :name AND number > :after
        ORDER BY number
        LIMIT :most
        """,
        {"workflow": workflow.seq, "name": address.name, "after": address.after, "most": MAX_CHUNKS_AT_ONCE},
    )
    chunks = [StreamChunk(number, at, Raw(data)) for number, at, data in rows if data is not None]
    is_last = len(rows) < MAX_CHUNKS_AT_ONCE
    return StreamPage(chunks, len(chunks) < len(rows) or (is_last and _is_over(tx, workflow, address)))


def _is_over(tx: Transaction, workflow: StoredWorkflow, address: StreamAddress) -> bool:
    """Return whether nothing more comes: the workflow has finished, or the stream was closed before the position."""
    if workflow.finished_at is not None:
        return True
    return bool(
        tx.execute(
            "SELECT 1 FROM streams WHERE workflow = ? AND name = ? AND is_closed = 1 AND length <= ?",
            (workflow.seq, address.name, address.after),
        )
    )


def forget_streams(tx: Transaction, workflow: int, room: int) -> int:
    """Delete at most ``room`` chunks of the streams of a workflow, and at last the streams; return how many."""
    rows = tx.execute(
        "SELECT workflow, name, number FROM stream_chunks WHERE workflow = :seq LIMIT :room",
        {"seq": workflow, "room": max(room, 0)},
    )
    tx.execute_many("DELETE FROM stream_chunks WHERE workflow = ? AND name = ? AND number = ?", rows)
    if len(rows) < room:
        tx.execute("DELETE FROM streams WHERE workflow = :seq", {"seq": workflow})
    return len(rows)
