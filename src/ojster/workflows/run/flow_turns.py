"""What workers say of the flows that they run: records, and that a flow waits; and messages to flows.

An outcome of a local step is one insert, under the lock of the job alone. Whatever concerns the graph is done under the
lock of the workflow, which all take that end something for a flow.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw

from ojster.core.access import Access
from ojster.core.errors import Conflict, InvalidRequest, OjsterError, PayloadTooLarge
from ojster.core.job import Job
from ojster.jobs.leases import refusal_of_attempt
from ojster.jobs.queries import no_job
from ojster.jobs.transitions import cancel_job
from ojster.storage.transaction import Transaction
from ojster.workflows.flow import (
    CANCELLATION,
    GIVEN_UP,
    LISTENING,
    RECEIVING,
    TOLD,
    FlowRecord,
    FlowRecords,
    NewRecord,
    Turn,
)
from ojster.workflows.node import Kind, NodeState
from ojster.workflows.run.advance import Advance, advance
from ojster.workflows.run.broadcasts import give_broadcasts, listen, put_back
from ojster.workflows.run.cancellation import abort, cancel_left
from ojster.workflows.run.flow_messages import (
    insert_new_records,
    insert_records,
    known_already,
    receive,
    stored,
    tell,
)
from ojster.workflows.run.flow_wakeups import end_awaited
from ojster.workflows.run.graph import Graph
from ojster.workflows.run.growth import grow
from ojster.workflows.run.streams import append_of_flow
from ojster.workflows.run.suspensions import suspend_job
from ojster.workflows.suspension import SuspensionKind

_OF_THE_GRAPH: Final = frozenset(("run", *RECEIVING, *TOLD))
"""Kinds of records that are recorded under the lock of the workflow."""

_encode: Final = msgspec.json.Encoder().encode

_OF_OTHERS: Final = "('run', 'receive', 'receive_many', 'listen', 'listen_many', 'cancel')"
"""Kinds of records that others end."""

_COLUMNS: Final = "key, kind, name, asked_at, input, ended_at, place, seen_at, result, error"


def find_records(tx: Transaction, ids: Sequence[str]) -> list[FlowRecords | OjsterError]:
    """Return all records of the flow that each of these jobs runs."""
    jobs = tx.find_jobs(ids)
    seqs = (tx.integers({job.workflow for job in jobs.values() if job.workflow is not None}),)
    # The versions first: what ends meanwhile has another one.
    rows = tx.execute(f"SELECT seq, id, version FROM workflows WHERE seq {tx.among}", seqs)
    workflows = {seq: (id, version) for seq, id, version in rows}
    records: dict[int, list[FlowRecord]] = {}
    flows = (tx.integers({job.node for job in jobs.values() if job.node is not None}),)
    for flow, *row in tx.execute(f"SELECT flow, {_COLUMNS} FROM flow_records WHERE flow {tx.among}", flows):
        records.setdefault(flow, []).append(_record(row))
    results: list[FlowRecords | OjsterError] = []
    for id in ids:
        job = jobs.get(id)
        if job is None or job.node is None or job.workflow is None:
            results.append(no_job(id) if job is None else _no_flow(job))
        else:
            results.append(FlowRecords(*workflows[job.workflow], tx.now, records.get(job.node, []), flow=job.node))
    return results


def _record(row: Sequence[Any]) -> FlowRecord:
    *values, result, error = row
    record: Any = FlowRecord
    made: FlowRecord = record(*values, UNSET if result is None else Raw(result), UNSET if error is None else Raw(error))
    return made


def _records(tx: Transaction, job: Job, records: list[FlowRecord], *, suspended: bool = False) -> FlowRecords:
    workflow_id, version = _workflow_of(tx, job)
    return FlowRecords(workflow_id, version, tx.now, records, suspended)


def _workflow_of(tx: Transaction, job: Job) -> tuple[str, int]:
    """Return the id and the version of the workflow of a job."""
    ((id, version),) = tx.execute("SELECT id, version FROM workflows WHERE seq = :seq", {"seq": job.workflow})
    return str(id), version


def _no_flow(job: Job) -> OjsterError:
    return InvalidRequest(f"The job {job.id} runs no flow. Only the job of a flow has records.", field="job_id")


def take_turns(tx: Transaction, turns: Sequence[Turn]) -> list[FlowRecords | OjsterError]:
    """Record what flows have done; suspend those that wait. Return what has ended for each, or its refusal."""
    jobs = tx.lock_jobs([turn.job_id for turn in turns])
    results: list[FlowRecords | OjsterError | None] = [
        refusal_of_attempt(jobs.get(turn.job_id), turn) for turn in turns
    ]
    local: dict[str, int] = {}
    others: list[int] = []
    for place, turn in enumerate(turns):
        if results[place] is None:
            is_local = turn.records and not _concerns_graph(turn) and jobs[turn.job_id].node is not None
            if not is_local or local.setdefault(turn.job_id, place) != place:
                others.append(place)
    steps = [(jobs[id], turns[place]) for id, place in local.items()]
    for place, result in zip(local.values(), _record_steps(tx, steps), strict=True):
        results[place] = result
    if others:
        for place, result in zip(others, _take_others(tx, jobs, [turns[place] for place in others]), strict=True):
            results[place] = result
    return [result for result in results if result is not None]


def _record_steps(tx: Transaction, steps: Sequence[tuple[Job, Turn]]) -> list[FlowRecords | OjsterError]:
    """Insert outcomes of local steps, those of all flows in one statement; return what each flow gets."""
    if not steps:
        return []
    records = [(job.node or 0, record, None) for job, turn in steps for record in turn.records]
    inserted = insert_new_records(tx, records)
    new = Counter(flow for flow, _, _ in inserted)
    cancelled = {flow for flow, _, is_cancelled in inserted if is_cancelled}
    _note_seen(tx, [(job, turn) for job, turn in steps if new[job.node or 0] == len(turn.records)])
    results: list[FlowRecords | OjsterError] = []
    for job, turn in steps:
        flow = job.node or 0
        if new[flow] == len(turn.records):
            # A step goes on by its own result; it asks for what else has ended when it has nothing to do.
            ends = _cancellation(tx, flow) if flow in cancelled else []
            results.append(FlowRecords("", turn.version, tx.now, ends))
            continue
        own = {key for place, key, _ in inserted if place == flow}
        tx.execute_many("DELETE FROM flow_records WHERE flow = ? AND key = ?", [(flow, key) for key in own])
        results.append(known_already(next((r.key for r in turn.records if r.key not in own), turn.records[0].key)))
    return results


def _take_others(tx: Transaction, jobs: dict[str, Job], turns: Sequence[Turn]) -> list[FlowRecords | OjsterError]:
    """Record what flows have done that concerns the graph, or asks what has ended."""
    graph = Graph(tx)
    if seqs := {seq for turn in turns if _concerns_graph(turn) and (seq := jobs[turn.job_id].workflow) is not None}:
        graph.lock(seqs)
    results: list[FlowRecords | OjsterError] = []
    for turn in turns:
        job = jobs[turn.job_id]
        if refusal := refusal_of_attempt(job, turn):  # an earlier turn in the list has ended it
            results.append(refusal)
            continue
        try:
            with tx.savepoint():
                results.append(_take(tx, job, turn))
        except OjsterError as refused:
            results.append(refused)
        if turn.cancelled:  # may have ended jobs that follow in the list
            jobs |= tx.lock_jobs([later.job_id for later in turns[len(results) :]])
    advance(tx)
    cancel_left(tx)
    return results


def _concerns_graph(turn: Turn) -> bool:
    return bool(turn.suspends or turn.was_cancelled or turn.cancelled) or any(
        record.kind in _OF_THE_GRAPH for record in turn.records
    )


def _take(tx: Transaction, job: Job, turn: Turn) -> FlowRecords:
    if job.node is None:
        raise _no_flow(job)
    if not _concerns_graph(turn):
        insert_records(tx, job.node, [(record, None) for record in turn.records])
        _note_seen(tx, [(job, turn)])
        return _news(tx, job, turn)
    rows = tx.execute("SELECT kind FROM nodes WHERE id = (SELECT parent FROM nodes WHERE id = :id)", {"id": job.node})
    if not rows or rows[0][0] != Kind.FLOW:
        raise _no_flow(job)
    has_news = turn.suspends and _has_new_ends(tx, job, turn)
    _note_seen(tx, [(job, turn)])
    _cancel_awaited(tx, job, turn.cancelled)
    append_of_flow(tx, job.node, [record for record in turn.records if record.kind == "chunk"])
    tell(tx, job, [record for record in turn.records if record.kind in ("published", "answer")])
    has_news |= _ask(tx, job, [record for record in turn.records if record.kind not in TOLD], turn.access)
    has_news |= receive(tx, job.node)
    if turn.cancelled or any(record.kind in LISTENING for record in turn.records):
        has_news |= give_broadcasts(tx, job.node)
    if turn.was_cancelled:
        cancel_job(tx, job, by_itself=True)
        return _records(tx, job, [], suspended=True)
    is_over = turn.wakes_at is not None and turn.wakes_at <= tx.now
    if turn.suspends and not has_news and not is_over:
        if job.losses:  # it has come further since its worker died, and may live for months
            job.losses = 0
            tx.execute("UPDATE jobs SET losses = 0 WHERE seq = :seq", {"seq": job.seq})
        suspend_job(tx, job, SuspensionKind.FLOW, turn.wakes_at)
        return _records(tx, job, [], suspended=True)
    return _records(tx, job, _ends(tx, job))


def _news(tx: Transaction, job: Job, turn: Turn) -> FlowRecords:
    """Return what has ended, if something has happened in the workflow since the worker read it."""
    workflow_id, version = _workflow_of(tx, job)
    records = [] if version == turn.version else _ends(tx, job)
    return FlowRecords(workflow_id, version, tx.now, records)


def _cancellation(tx: Transaction, flow: int) -> list[FlowRecord]:
    """Return the record that a flow is to be cancelled, if it is."""
    rows = tx.execute(
        f"SELECT {_COLUMNS} FROM flow_records WHERE flow = :flow AND key = :key", {"flow": flow, "key": CANCELLATION}
    )
    return [_record(row) for row in rows]


def _ends(tx: Transaction, job: Job) -> list[FlowRecord]:
    """Return the records of a flow that others have ended."""
    rows = tx.execute(
        f"SELECT {_COLUMNS} FROM flow_records WHERE flow = :flow AND kind IN {_OF_OTHERS} AND ended_at IS NOT NULL",
        {"flow": job.node},
    )
    return [_record(row) for row in rows]


def _note_seen(tx: Transaction, turns: Sequence[tuple[Job, Turn]]) -> None:
    """Keep the order in which flows have seen ends: they take the same branches when they run again."""
    tx.execute_many(
        "UPDATE flow_records SET place = ?, seen_at = ? WHERE flow = ? AND key = ?",
        [(seen.place, seen.at, job.node, seen.key) for job, turn in turns for seen in turn.seen],
    )


def _ask(tx: Transaction, job: Job, records: Sequence[NewRecord], access: Access | None) -> bool:
    """Insert records; add the steps of runs to the flow. Return whether one of them has ended at once."""
    assert job.node is not None
    runs = [record for record in records if record.kind == "run"]
    insert_records(tx, job.node, [(record, None) for record in records if record.kind != "run"])
    listen(tx, job, [record for record in records if record.kind in LISTENING])
    try:
        with tx.savepoint():
            return _add(tx, job, runs, access)
    except (InvalidRequest, PayloadTooLarge) as refusal:
        if len(runs) == 1:  # the function gets the refusal, and may go on
            error = Raw(_encode({"state": "failed", "error": {"type": refusal.code, **refusal.to_wire()}}))
            refused = msgspec.structs.replace(runs[0], ended_at=tx.now, error=error)
            insert_records(tx, job.node, [(refused, None)])
            return True
    ended = [_ask(tx, job, [run], access) for run in runs]
    return any(ended)


def _add(tx: Transaction, job: Job, runs: Sequence[NewRecord], access: Access | None) -> bool:
    """Add the steps of runs to a flow, with their records; return whether one of them has ended at once."""
    if any(record.step is UNSET for record in runs):
        raise InvalidRequest("A record of the kind 'run' needs a 'step'.", field="records")
    nodes = grow(tx, job, [stored(record.step) or b"" for record in runs], access) if runs else []
    if runs and not nodes:
        raise Conflict(f"The flow of the job {job.id} was stopped. It can add no steps.", job_id=job.id)
    insert_records(tx, job.node or 0, list(zip(runs, [node.id for node in nodes], strict=True)))
    ended = [node.id for node in nodes if node.has_ended]  # at once: such as an empty map, or a refused job
    end_awaited(tx, ended)
    return bool(ended)


def _cancel_awaited(tx: Transaction, job: Job, keys: Sequence[str]) -> None:
    """Cancel the steps that a flow no longer waits for; put back messages that it has not seen."""
    if not keys:
        return
    assert job.node is not None
    places = ", ".join("?" * len(keys))
    rows = tx.execute(
        f"SELECT key, kind, node FROM flow_records WHERE flow = ? AND key IN ({places})", (job.node, *keys)
    )
    received = [key for key, kind, _ in rows if kind in ("receive", "receive_many")]
    for key in received:
        tx.execute("UPDATE flow_messages SET taken_by = NULL WHERE flow = ? AND taken_by = ?", (job.node, key))
    if listening := [key for key, kind, _ in rows if kind in LISTENING]:
        put_back(tx, job.node, listening)
    tx.execute(
        f"""
        UPDATE flow_records
        SET ended_at = ?, result = NULL, error = ?
        WHERE flow = ? AND key IN ({places})
        """,
        (tx.now, GIVEN_UP, job.node, *keys),
    )
    nodes = [node for _, _, node in rows if node is not None]
    if nodes:
        graph = Graph(tx)
        graph.lock([job.workflow or 0])
        graph.load(nodes)
        run = Advance(graph)
        for node in nodes:
            if not graph.nodes[node].has_ended:
                abort(
                    run,
                    graph.workflow_of(graph.nodes[node]),
                    graph.nodes[node],
                    NodeState.CANCELLED,
                    {"code": "cancelled", "message": "The flow no longer waits for this step."},
                    active_too=True,
                )
        run.go()


def _has_new_ends(tx: Transaction, job: Job, turn: Turn) -> bool:
    """Return whether runs or messages have ended that the worker does not know."""
    ((version,),) = tx.execute("SELECT version FROM workflows WHERE seq = :seq", {"seq": job.workflow})
    if version == turn.version:  # nothing has happened in the workflow: the records, which may be many, are not counted
        return False
    ((count,),) = tx.execute(
        f"SELECT count(*) FROM flow_records WHERE flow = :flow AND kind IN {_OF_OTHERS} AND ended_at IS NOT NULL",
        {"flow": job.node},
    )
    return bool(count > turn.ended)
