"""What workers say of the flows that they run: records, and that a flow waits; and messages to flows.

An outcome of a local step is one insert, under the lock of the job alone. Whatever concerns the graph is done under the
lock of the workflow, which all take that end something for a flow.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw

from ojster.core.errors import Conflict, InvalidRequest, OjsterError, PayloadTooLarge
from ojster.core.job import Job
from ojster.core.states import JobState
from ojster.jobs.extension import hooks
from ojster.jobs.leases import refusal_of_attempt
from ojster.jobs.queries import no_job
from ojster.jobs.scope import merged
from ojster.jobs.transitions import cancel_job, write_losses
from ojster.storage.transaction import Query, Row, RunningAttempt, Transaction
from ojster.workflows.flow import (
    GIVEN_UP,
    LISTENING,
    POSITION,
    RECEIVING,
    TOLD,
    FlowReading,
    FlowRecord,
    FlowRecords,
    NewRecord,
    Seen,
    Turn,
)
from ojster.workflows.node import Kind, NodeState, body_number
from ojster.workflows.run.advance import Advance, advance
from ojster.workflows.run.broadcasts import give_broadcasts, listen, put_back
from ojster.workflows.run.cancellation import abort, cancel_left
from ojster.workflows.run.flow_files import with_file
from ojster.workflows.run.flow_messages import (
    insert_new_records,
    insert_records,
    insert_records_of_attempts,
    known_already,
    receive_all,
    stored,
    tell,
)
from ojster.workflows.run.flow_positions import keep_positions
from ojster.workflows.run.flow_restarts import restart, waiting_keys
from ojster.workflows.run.flow_wakeups import WOKEN, end_awaited, end_times, note_ends
from ojster.workflows.run.graph import LoadedGraph, locking
from ojster.workflows.run.growth import grow_all
from ojster.workflows.run.streams import append_of_flow
from ojster.workflows.run.suspensions import suspend_jobs
from ojster.workflows.suspension import SuspensionKind

_OF_THE_GRAPH: Final = frozenset(("run", *RECEIVING, *TOLD))
"""Kinds of records that are recorded under the lock of the workflow."""

_encode: Final = msgspec.json.Encoder().encode

_COLUMNS: Final = "key, kind, name, asked_at, input, ended_at, place, seen_at, number, result, error"


def find_records(tx: Transaction, items: Sequence[FlowReading]) -> list[FlowRecords | OjsterError]:
    """Return the records of the flow that each of these jobs runs: all, or those that have ended since a number."""
    jobs = tx.find_jobs([item.job_id for item in items])
    seqs = (tx.integers({job.workflow for job in jobs.values() if job.workflow is not None}),)
    flows = {job.id: job.node for job in jobs.values() if job.node is not None}
    whole = (tx.integers({flows[item.job_id] for item in items if item.after is None and item.job_id in flows}),)
    known = [(flows[item.job_id], item.after) for item in items if item.after is not None and item.job_id in flows]
    # The versions first: what ends meanwhile has another one.
    versions, wholes, *lasts = tx.execute_together([(_versions(tx), seqs), (_whole(tx), whole), *_ends(known)])
    workflows = {seq: (id, version) for seq, id, version in versions}
    records: dict[int, list[FlowRecord]] = {}
    waited_at: dict[int, int] = {}
    for flow, *row in wholes:
        record = _record(row)
        if record.key == POSITION:
            waited_at[flow] = record.asked_at
        else:
            records.setdefault(flow, []).append(record)
    ends = dict(zip(known, map(_records, lasts), strict=True))
    results: list[FlowRecords | OjsterError] = []
    for item in items:
        job = jobs.get(item.job_id)
        if job is None or job.node is None or job.workflow is None:
            results.append(no_job(item.job_id) if job is None else _no_flow(job))
        else:
            own = records.get(job.node, []) if item.after is None else ends[job.node, item.after]
            waited = waited_at.get(job.node)
            results.append(FlowRecords(*workflows[job.workflow], tx.now, own, flow=job.node, waited_at=waited))
    return results


def _versions(tx: Transaction) -> str:
    return f"SELECT seq, id, version FROM workflows WHERE seq {tx.among}"


def _whole(tx: Transaction) -> str:
    return f"SELECT flow, {_COLUMNS} FROM flow_records WHERE flow {tx.among} AND kind <> 'sleep'"


def _ends(known: Iterable[tuple[int, int]]) -> list[Query]:
    """Return, for each flow and the number of the last end that it knows, the query for what others ended since."""
    query = f"SELECT {_COLUMNS} FROM flow_records WHERE flow = ? AND number > ?"
    return [(query, flow_and_number) for flow_and_number in known]


def _records(rows: Iterable[Row]) -> list[FlowRecord]:
    return [_record(row) for row in rows]


def _record(row: Sequence[Any]) -> FlowRecord:
    *values, result, error = row
    record: Any = FlowRecord
    made: FlowRecord = record(*values, UNSET if result is None else Raw(result), UNSET if error is None else Raw(error))
    return made


def _no_flow(job: Job) -> OjsterError:
    return InvalidRequest(f"The job {job.id} runs no flow. Only the job of a flow has records.", field="job_id")


def take_turns(tx: Transaction, turns: Sequence[Turn]) -> list[FlowRecords | OjsterError]:
    """Record what flows have done; suspend those that wait. Return what has ended for each, or its refusal."""
    recorded = _record_at_once(tx, turns)
    if not recorded:
        return _take_any(tx, turns)
    others = [turn for place, turn in enumerate(turns) if place not in recorded]
    answers = iter(_take_any(tx, others) if others else ())
    return [recorded[place] if place in recorded else next(answers) for place in range(len(turns))]


def _record_at_once(tx: Transaction, turns: Sequence[Turn]) -> dict[int, FlowRecords]:
    """Record outcomes of local steps of attempts that run, in one statement; return the answers by place.

    ``_take_any`` specifies what it does, and is for the turns that it leaves: such as those of a flow that is to be
    cancelled, or whose worker has lost its lease. If one turn is of another kind, nothing is done: all jobs of a call
    are locked in one order.
    """
    if len({turn.job_id for turn in turns}) < len(turns):
        return {}
    records: list[tuple[RunningAttempt, NewRecord]] = []
    for turn in turns:
        if turn.flow is None or turn.worker_id is None or turn.attempt is None or turn.started_at is None:
            return {}
        if not turn.records or _concerns_graph(turn):
            return {}
        attempt = (turn.job_id, turn.attempt, turn.started_at, turn.worker_id)
        records += [(attempt, record) for record in turn.records]
    keys: dict[int, list[str]] = {}
    unusual: set[int] = set()
    for flow, key, is_cancelled, runs_flow in insert_records_of_attempts(tx, records):
        keys.setdefault(flow, []).append(key)
        if is_cancelled or not runs_flow:
            unusual.add(flow)
    recorded: dict[int, FlowRecords] = {}
    for place, turn in enumerate(turns):
        flow = turn.flow or 0
        if len(keys.get(flow, ())) == len(turn.records) and flow not in unusual:
            recorded[place] = FlowRecords("", turn.version, tx.now, [])
            del keys[flow]
    _note_seen(tx, [(turns[place].flow or 0, turns[place].seen) for place in recorded])
    _delete(tx, [(flow, key) for flow, own in keys.items() for key in own])
    return recorded


def _delete(tx: Transaction, keys: Sequence[tuple[int, str]]) -> None:
    tx.execute_many("DELETE FROM flow_records WHERE flow = ? AND key = ?", keys)


def _take_any(tx: Transaction, turns: Sequence[Turn]) -> list[FlowRecords | OjsterError]:
    """Do the same with a look at each job first, whatever its turn says."""
    for lock_limits in hooks(tx).before_growth:
        lock_limits(tx, [turn.job_id for turn in turns if any(record.kind == "run" for record in turn.records)])
    jobs = tx.lock_jobs([turn.job_id for turn in turns])
    results: list[FlowRecords | OjsterError | None] = [
        refusal_of_attempt(jobs.get(turn.job_id), turn) for turn in turns
    ]
    local: dict[str, int] = {}
    others: list[int] = []
    seen: set[str] = set()
    for place, turn in enumerate(turns):
        if results[place] is None:
            is_local = turn.records and not _concerns_graph(turn) and jobs[turn.job_id].node is not None
            if is_local and turn.job_id not in seen:  # later turns of a job come after its earlier ones
                local[turn.job_id] = place
            else:
                others.append(place)
            seen.add(turn.job_id)
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
    new = Counter(flow for flow, *_ in inserted)
    cancelled = {flow for flow, _, is_cancelled, _ in inserted if is_cancelled}
    strangers = {flow for flow, _, _, runs_flow in inserted if not runs_flow}
    recorded = {flow for job, turn in steps if new[flow := job.node or 0] == len(turn.records)} - strangers
    _note_seen(tx, [(job.node or 0, turn.seen) for job, turn in steps if job.node in recorded])
    results: list[FlowRecords | OjsterError] = []
    for job, turn in steps:
        flow = job.node or 0
        if flow in recorded:
            # A step goes on by its own result; it asks for what else has ended when it has nothing to do.
            # A cancellation comes with all ends before it: the worker asks for later ones only.
            (ends,) = tx.execute_together(_ends([(flow, turn.ended)])) if flow in cancelled else ([],)
            results.append(FlowRecords("", turn.version, tx.now, _records(ends)))
            continue
        own = {key for place, key, *_ in inserted if place == flow}
        _delete(tx, [(flow, key) for key in own])
        known = next((r.key for r in turn.records if r.key not in own), turn.records[0].key)
        results.append(_no_flow(job) if flow in strangers else known_already(known))
    return results


def _take_others(tx: Transaction, jobs: dict[str, Job], turns: Sequence[Turn]) -> list[FlowRecords | OjsterError]:
    """Record what flows have done that concerns the graph, or asks what has ended."""
    results: dict[int, FlowRecords | OjsterError] = {}
    waiting: Sequence[int] = range(len(turns))
    while waiting:
        first = {turns[place].job_id: place for place in reversed(waiting)}  # a job's later turns come after its first
        # Each of these may end jobs of other turns, which are therefore locked again: as they are then.
        ending = [place for place in sorted(first.values()) if turns[place].cancelled or turns[place].was_cancelled]
        together = [place for place in sorted(first.values()) if place not in ending]
        for group in filter(None, [*([place] for place in ending), together]):
            if results:
                jobs |= tx.lock_jobs([turns[place].job_id for place in group])
            results |= zip(group, _take_together(tx, jobs, [turns[place] for place in group]), strict=True)
        waiting = [place for place in waiting if place not in results]
    advance(tx)
    cancel_left(tx)
    return [results[place] for place in range(len(turns))]


def _take_together(tx: Transaction, jobs: dict[str, Job], turns: Sequence[Turn]) -> list[FlowRecords | OjsterError]:
    """Take turns of different flows with the same statements; each alone if one of them is refused."""
    refusals = [refusal_of_attempt(jobs.get(turn.job_id), turn) for turn in turns]
    accepted = [turn for turn, refusal in zip(turns, refusals, strict=True) if refusal is None]
    try:
        with tx.savepoint():
            taken: list[FlowRecords | OjsterError] = [*_take(tx, [(jobs[turn.job_id], turn) for turn in accepted])]
    except OjsterError as refused:
        if len(accepted) == 1:
            taken = [refused]
        else:
            jobs |= tx.lock_jobs([turn.job_id for turn in accepted])  # as they are without what was rolled back
            taken = [result for turn in accepted for result in _take_together(tx, jobs, [turn])]
    return merged(refusals, taken)


def _concerns_graph(turn: Turn) -> bool:
    return bool(turn.suspends or turn.was_cancelled or turn.cancelled or turn.restarts) or any(
        record.kind in _OF_THE_GRAPH or record.result_file is not None for record in turn.records
    )


def _take(tx: Transaction, taken: Sequence[tuple[Job, Turn]]) -> list[FlowRecords]:
    """Take turns of different flows; return what each flow gets.

    Raises
    ------
    OjsterError
        One of them is refused.
    """
    for job, _ in taken:
        if job.node is None:
            raise _no_flow(job)
    if not taken:
        return []
    of_graph = [(job, turn) for job, turn in taken if turn.records or _concerns_graph(turn)]
    news = _lock_flows(tx, of_graph) if of_graph else set()
    _note_seen(tx, [(job.node or 0, turn.seen) for job, turn in taken])
    for job, turn in of_graph:
        _cancel_awaited(tx, job, turn.cancelled)
        append_of_flow(tx, job.node or 0, [record for record in turn.records if record.kind == "chunk"])
        tell(tx, job, [record for record in turn.records if record.kind in ("published", "answer")])
        if turn.restarts:
            _cancel_awaited(tx, job, waiting_keys(tx, job.node or 0))
            restart(tx, job, [record for record in turn.records if record.kind == "begin"])
    asks = [(job, turn) for job, turn in taken if not turn.restarts]
    asked = [(job, turn, record) for job, turn in asks for record in turn.records if record.kind not in TOLD]
    others = [(job, record) for job, _, record in asked if record.kind != "run"]
    insert_records(tx, [(job.node or 0, with_file(tx, job, record), None) for job, record in others])
    news |= _ask(tx, [(job, turn, record) for job, turn, record in asked if record.kind == "run"])
    if of_graph:
        news |= receive_all(tx, [job.node or 0 for job, _ in of_graph])
    for job, turn in of_graph:
        listening = [record for record in turn.records if record.kind in LISTENING]
        listen(tx, job, listening)
        if (turn.cancelled or listening) and give_broadcasts(tx, job.node or 0):
            news.add(job.node or 0)
    news |= tx.known[WOKEN].keys()
    waits = [(job, turn) for job, turn in of_graph if turn.suspends and not turn.was_cancelled]
    waits = [(job, turn) for job, turn in waits if job.node not in news and (turn.wakes_at or tx.now + 1) > tx.now]
    _suspend(tx, waits)
    left = {job.id for job, _ in waits}
    for job, turn in of_graph:
        if turn.was_cancelled:
            left.add(job.id)
            cancel_job(tx, job, by_itself=True)
    seqs = (tx.integers(sorted({job.workflow or 0 for job, _ in taken})),)
    asking = [(job, turn) for job, turn in taken if job.id not in left]
    # The versions first: what ends meanwhile has another one.
    asked_for = _ends((job.node or 0, turn.ended) for job, turn in asking)
    versions, *ends = tx.execute_together([(_versions(tx), seqs), *asked_for])
    workflows = {seq: (id, version) for seq, id, version in versions}
    by_job = {job.id: _records(own) for (job, _), own in zip(asking, ends, strict=True)}
    return [
        FlowRecords(*workflows[job.workflow or 0], tx.now, by_job.get(job.id, []), job.id in left) for job, _ in taken
    ]


def _lock_flows(tx: Transaction, taken: Sequence[tuple[Job, Turn]]) -> set[int]:
    """Lock the workflows of flows; return those flows for which something has ended that their workers do not know.

    Raises
    ------
    InvalidRequest
        A job runs no flow.
    """
    graph = LoadedGraph(tx)
    lock = locking(tx, {job.workflow for job, _ in taken if job.workflow is not None})
    containers = (tx.integers(sorted((job.node or 0) - body_number(0) for job, _ in taken)),)
    running = (f"SELECT id FROM nodes WHERE id {tx.among} AND kind = '{Kind.FLOW}'", containers)
    locked, flows = tx.execute_together([lock, running])
    graph.take_in(locked, ())
    known = {body_number(id) for (id,) in flows}
    changed: dict[int, int] = {}
    for job, turn in taken:
        if job.node is None or job.node not in known or job.workflow is None:
            raise _no_flow(job)
        # While nothing has happened in the workflow, nothing has ended in it.
        if turn.suspends and graph.workflows[job.workflow].version != turn.version:
            changed[job.node] = turn.ended
    answers = tx.execute_together([(_HAS_ENDED, known) for known in changed.items()])
    return {flow for flow, rows in zip(changed, answers, strict=True) if rows}


_HAS_ENDED: Final = "SELECT 1 FROM flow_records WHERE flow = ? AND number > ? LIMIT 1"


def _suspend(tx: Transaction, waits: Sequence[tuple[Job, Turn]]) -> None:
    """Suspend the jobs of flows that wait."""
    if not waits:
        return
    keep_positions(tx, [(job.node or 0, turn.position) for job, turn in waits if turn.position is not None])
    suspend_jobs(tx, [(job, turn.wakes_at) for job, turn in waits], SuspensionKind.FLOW)
    lost = [job for job, _ in waits if job.losses and job.state == JobState.PENDING]
    for job in lost:  # it has come further since its worker died, and may live for months
        job.attempt, job.losses = job.counted_attempts, 0
    write_losses(tx, lost)


def _note_seen(tx: Transaction, ends: Sequence[tuple[int, Sequence[Seen]]]) -> None:
    """Keep the order in which flows have seen ends: they take the same branches when they run again."""
    tx.execute_many(
        "UPDATE flow_records SET place = ?, seen_at = ? WHERE flow = ? AND key = ?",
        [(seen.place, seen.at, flow, seen.key) for flow, own in ends for seen in own],
    )


def _ask(tx: Transaction, runs: Sequence[tuple[Job, Turn, NewRecord]]) -> set[int]:
    """Add the steps of runs to their flows, with their records; return the flows that get the refusal of one."""
    if not runs:
        return set()
    try:
        with tx.savepoint():
            _add(tx, runs)
            return set()
    except (InvalidRequest, PayloadTooLarge) as refusal:
        if len(runs) == 1:  # the function gets the refusal, and may go on
            ((job, _, record),) = runs
            error = _encode({"state": "failed", "error": {"type": refusal.code, **refusal.to_wire()}})
            insert_records(tx, [(job.node or 0, record, None)])
            note_ends(tx, [(job.node or 0, record.key, record.asked_at, None, error)])
            return {job.node or 0}
    middle = len(runs) // 2
    return _ask(tx, runs[:middle]) | _ask(tx, runs[middle:])


def _add(tx: Transaction, runs: Sequence[tuple[Job, Turn, NewRecord]]) -> None:
    """Add the steps of runs to their flows, with their records."""
    by_job: dict[str, list[NewRecord]] = {}
    for job, _, record in runs:
        if record.step is UNSET:
            raise InvalidRequest("A record of the kind 'run' needs a 'step'.", field="records")
        by_job.setdefault(job.id, []).append(record)
    flows = {job.id: (job, turn.access) for job, turn, _ in runs}
    steps = {id: [stored(record.step) or b"" for record in own] for id, own in by_job.items()}
    added = grow_all(tx, [(job, steps[id], access) for id, (job, access) in flows.items()])
    records: list[tuple[int, NewRecord, int | None]] = []
    for (job, _), nodes in zip(flows.values(), added, strict=True):
        if not nodes:
            raise Conflict(f"The flow of the job {job.id} was stopped. It can add no steps.", job_id=job.id)
        records += [(job.node or 0, record, node.id) for record, node in zip(by_job[job.id], nodes, strict=True)]
    insert_records(tx, records)
    # At once: such as an empty map, or a refused job.
    end_awaited(tx, [node.id for nodes in added for node in nodes if node.has_ended])


def _cancel_awaited(tx: Transaction, job: Job, keys: Sequence[str]) -> None:
    """Cancel the steps that a flow no longer waits for; put back messages that it has not seen."""
    if not keys:
        return
    assert job.node is not None
    among = tx.texts(keys)
    rows = tx.execute(
        f"SELECT key, kind, node, asked_at FROM flow_records WHERE flow = ? AND key {tx.among_texts}",
        (job.node, among),
    )
    received = [key for key, kind, *_ in rows if kind in ("receive", "receive_many")]
    for key in received:
        tx.execute("UPDATE flow_messages SET taken_by = NULL WHERE flow = ? AND taken_by = ?", (job.node, key))
    if listening := [key for key, kind, *_ in rows if kind in LISTENING]:
        put_back(tx, job.node, listening)
    ended_at = end_times(tx, [(job.node, asked_at) for *_, asked_at in rows])
    tx.execute(
        f"""
        UPDATE flow_records
        SET ended_at = ?, result = NULL, error = ?
        WHERE flow = ? AND key {tx.among_texts}
        """,
        (ended_at.get(job.node, tx.now), GIVEN_UP, job.node, among),
    )
    nodes = [node for _, _, node, _ in rows if node is not None]
    if nodes:
        graph = LoadedGraph(tx)
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
