"""Task history: records of earlier runs, and jobs that are skipped because of them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

import msgspec

from ojster.collections.contents import copy_items, delete_items, look_up, put
from ojster.collections.items import INTERNAL, Item, NewItem, key_of, key_of_job, read_lookup
from ojster.collections.outputs import (
    filled,
    lookup_resolver,
    note_failure,
    reference_resolver,
    run_reaction,
    workflow_of,
)
from ojster.core.durations import DAY
from ojster.core.errors import NotFound, OjsterError
from ojster.core.job import Job, last_error
from ojster.core.job_flags import SKIPS
from ojster.core.job_flags import JobEvent as Event
from ojster.core.outcome import SKIPPED, Outcome, is_from_handler, outcome_of
from ojster.core.references import Unresolvable, parse_reference, resolve
from ojster.core.timestamps import format_timestamp
from ojster.insight.task_values import (
    KEPT_RUNS,
    Record,
    SkipIfChanged,
    SkipIfUnchanged,
    Task,
    TaskFilter,
    TaskRun,
    TaskStatistics,
    check_key,
)
from ojster.jobs.extension import Erasure
from ojster.jobs.stored_actions import stored_actions
from ojster.jobs.transitions import complete_job, write_completed
from ojster.storage.call import for_each
from ojster.storage.transaction import Row, Transaction

RUN_RETENTION_US: Final = 365 * DAY
"""Maximum retention of a run, in microseconds."""

MAX_RECORDED_RESULT_BYTES: Final = 65_536
"""Maximum size of a recorded result, in bytes. Larger results are left out."""

RUNS_AT_ONCE: Final = 5_000
"""Number of runs that one step of an erasure examines."""

_KEY: Final = ("tenant", "type", "subject", "context")
_IS_TASK: Final = "tenant = :tenant AND type = :type AND subject = :subject AND context = :context"
_OF_RUN: Final = "/run/"
_RUN_COLUMNS: Final = (
    "id, type, subject, context, outcome, job_id, workflow_id, finished_at, duration, waited, attempts, result, error"
)

_COUNTS: Final = {
    Outcome.SUCCESS: "successes",
    Outcome.FAILURE: "failures",
    Outcome.ERROR: "errors",
    Outcome.SKIPPED: "skipped",
}

Key = tuple[str, str, str, str]


class _Membership(msgspec.Struct):
    workflow_id: str | None = None


_membership: Final = msgspec.json.Decoder(_Membership).decode


# Record runs


def record_all(tx: Transaction, wanted: Sequence[tuple[Job, Event, Record]]) -> None:
    """Record how jobs have ended; record failures to do so in the history of the job."""
    reports: list[tuple[Key, Job, Event]] = []
    for job, event, action in wanted:
        try:
            reports.append((_key_of(job, action), job, event))
        except (OjsterError, Unresolvable) as error:
            note_failure(tx, job, event, str(error))
    for key, job, event in sorted(reports, key=lambda report: report[0]):  # a fixed order makes deadlocks rare
        run_reaction(tx, job, event, partial(_record, tx, key, job, event))


def _key_of(job: Job, action: Record | SkipIfUnchanged) -> Key:
    resolver = reference_resolver(job)
    subject = check_key(filled(action.subject, resolver), "subject")
    return job.tenant, job.type, subject, check_key(filled(action.context, resolver), "context")


def _record(tx: Transaction, key: Key, job: Job, event: Event) -> None:
    error = bytes(last_error(job.errors)) if job.errors and event == "on_failure" else None
    outcome = outcome_of(job.state, error, skipped=job.suspension == SKIPPED) or Outcome.ERROR
    inputs = tx.execute("SELECT inputs FROM job_inputs WHERE seq = ?", (job.seq,)) if job.flags & SKIPS else []
    result = job.result if job.result is None or len(job.result) <= MAX_RECORDED_RESULT_BYTES else None
    is_whole = result is not None or job.result is None
    started = job.started_at if outcome is not Outcome.SKIPPED else None
    duration = 0 if started is None else (job.finished_at or tx.now) - started
    ((run,),) = tx.execute(
        """
        INSERT INTO task_runs (
            tenant, type, subject, context, outcome, job_id, workflow_id, finished_at, duration, waited,
            attempts, result, error, inputs
        )
        VALUES (
            :tenant, :type, :subject, :context, :outcome, :job_id, :workflow_id, :finished_at, :duration,
            :waited, :attempts, :result, :error, :inputs
        )
        RETURNING id
        """,
        dict(zip(_KEY, key, strict=True))
        | {
            "outcome": outcome.value,
            "job_id": job.id,
            "workflow_id": _membership(job.envelope).workflow_id,
            "finished_at": job.finished_at or tx.now,
            "duration": duration,
            "waited": 0 if started is None else max(0, started - (job.enqueued_at or started)),
            "attempts": job.attempt,
            "result": result,
            "error": error,
            "inputs": inputs[0][0] if inputs and is_whole and outcome is Outcome.SUCCESS else None,
        },
    )
    if inputs and outcome is Outcome.SUCCESS:
        copy_items(tx, key_of_job(job.seq), _artifacts_of(run), f"job {job.id}")
    has_run = outcome is Outcome.SUCCESS or (error is not None and is_from_handler(error))
    _count(tx, key, outcome, duration if has_run else None)
    _forget_older(tx, key)


_SUMS: Final = ("successes", "failures", "errors", "skipped", "ran")
_LAST: Final = ("last_success_at", "last_failure_at")
_COLUMNS: Final = (*_KEY, *_SUMS, "shortest", "longest", *_LAST, "changed_at")
_KNOWN: Final = "task_statistics"


def _extreme(name: str, relation: str) -> str:
    """Return the SQL that keeps the smaller (``<=``) or greater (``>=``) of two values, either of which may be null."""
    new, known = f"excluded.{name}", f"{_KNOWN}.{name}"
    return f"{name} = CASE WHEN {new} IS NULL OR {known} {relation} {new} THEN {known} ELSE {new} END"


_ADD: Final = f"""
    INSERT INTO task_statistics ({", ".join(_COLUMNS)})
    VALUES (:{", :".join(_COLUMNS)})
    ON CONFLICT ({", ".join(_KEY)}) DO UPDATE SET
        {", ".join(f"{name} = {_KNOWN}.{name} + excluded.{name}" for name in _SUMS)},
        {_extreme("shortest", "<=")},
        {_extreme("longest", ">=")},
        {", ".join(f"{name} = coalesce(excluded.{name}, {_KNOWN}.{name})" for name in _LAST)},
        changed_at = excluded.changed_at
"""


def _count(tx: Transaction, key: Key, outcome: Outcome, ran: int | None) -> None:
    """Count a run; ``ran`` is how long it took, in microseconds, or ``None`` if the handler did not run to an end."""
    tx.execute(
        _ADD,
        dict(zip(_KEY, key, strict=True))
        | {name: int(outcome is kind) for kind, name in _COUNTS.items()}
        | {
            "ran": ran or 0,
            "shortest": ran,
            "longest": ran,
            "last_success_at": tx.now if outcome is Outcome.SUCCESS else None,
            "last_failure_at": tx.now if outcome in (Outcome.FAILURE, Outcome.ERROR) else None,
            "changed_at": tx.now,
        },
    )


def _forget_older(tx: Transaction, key: Key) -> None:
    """Keep the last success, the last failure and the ``KEPT_RUNS`` runs of a task; delete the others."""
    rows = tx.execute(
        f"SELECT id, outcome FROM task_runs WHERE {_IS_TASK} ORDER BY id DESC", dict(zip(_KEY, key, strict=True))
    )
    kept = {id for id, _ in rows[:KEPT_RUNS]}
    for outcomes in ((Outcome.SUCCESS,), (Outcome.FAILURE, Outcome.ERROR)):
        kept.update([id for id, outcome in rows if outcome in outcomes][:1])
    _delete(tx, [id for id, _ in rows if id not in kept])


def _delete(tx: Transaction, runs: Sequence[int]) -> None:
    tx.execute_many("DELETE FROM task_runs WHERE id = ?", [(run,) for run in runs])
    delete_items(tx, [_artifacts_of(run) for run in runs])


def forget_runs(tx: Transaction, room: int) -> int:
    """Delete runs and statistics older than ``RUN_RETENTION_US``, at most ``room`` of each; return their number."""
    before = tx.now - RUN_RETENTION_US
    runs = tx.execute("SELECT id FROM task_runs WHERE finished_at < ? ORDER BY finished_at LIMIT ?", (before, room))
    _delete(tx, [id for (id,) in runs])
    tasks = tx.execute(
        "SELECT tenant, type, subject, context FROM task_statistics WHERE changed_at < ? ORDER BY changed_at LIMIT ?",
        (before, room),
    )
    condition = "tenant = ? AND type = ? AND subject = ? AND context = ? AND changed_at < ?"
    tx.execute_many(f"DELETE FROM task_statistics WHERE {condition}", [(*row, before) for row in tasks])
    return len(runs) + len(tasks)


def erase_runs(tx: Transaction, erasure: Erasure) -> int | None:
    """Delete the runs of deleted jobs among the next ones; return where the next step begins, ``None`` at the end."""
    query = "SELECT id, job_id, workflow_id FROM task_runs WHERE id > :after ORDER BY id LIMIT :window"
    runs = tx.execute(query, {"after": erasure.position, "window": RUNS_AT_ONCE})
    _delete(tx, [id for id, *owners in runs if not erasure.subjects.isdisjoint(owners)])
    return int(runs[-1][0]) if len(runs) == RUNS_AT_ONCE else None


def _artifacts_of(run: int) -> str:
    return f"{_OF_RUN}{run}"


# Read runs


@for_each
def list_runs(tx: Transaction, chosen: TaskFilter) -> list[TaskRun]:
    """Return runs of tasks, the latest first; for each filter."""
    where, parameters = _where(chosen)
    if chosen.outcome is not None:
        where, parameters = f"{where} AND outcome = :outcome", parameters | {"outcome": chosen.outcome.value}
    rows = tx.execute(f"SELECT {_RUN_COLUMNS} FROM task_runs WHERE {where} ORDER BY id DESC LIMIT :limit", parameters)
    return [_run(row) for row in rows]


@for_each
def list_statistics(tx: Transaction, chosen: TaskFilter) -> list[TaskStatistics]:
    """Return the statistics of tasks, ordered by type, subject and context, for each filter."""
    where, parameters = _where(chosen)
    rows = tx.execute(
        f"""
        SELECT
            type, subject, context, successes, failures, errors, skipped, ran, shortest, longest,
            last_success_at, last_failure_at, changed_at
        FROM task_statistics
        WHERE {where}
        ORDER BY type, subject, context
        LIMIT :limit
        """,
        parameters,
    )
    return [_statistics(row) for row in rows]


def _where(chosen: TaskFilter) -> tuple[str, dict[str, Any]]:
    values = {name: getattr(chosen, name) for name in _KEY if getattr(chosen, name) is not None}
    condition = " AND ".join(f"{name} = :{name}" for name in values) or "1 = 1"
    return condition, values | {"limit": chosen.limit}


def _run(row: Row) -> TaskRun:
    id, type, subject, context, outcome, job_id, workflow_id, finished_at, duration, waited, attempts, result, error = (
        row
    )
    return TaskRun(
        id,
        Task(type, subject, context),
        Outcome(outcome),
        job_id,
        format_timestamp(finished_at),
        duration / 1e6,
        attempts,
        waited / 1e6,
        workflow_id,
        msgspec.UNSET if result is None else msgspec.Raw(result),
        msgspec.UNSET if error is None else msgspec.Raw(error),
    )


def _statistics(row: Row) -> TaskStatistics:
    type, subject, context, successes, failures, errors, skipped, ran, shortest, longest, succeeded, failed, at = row
    counted = successes + failures
    return TaskStatistics(
        Task(type, subject, context),
        counted + errors + skipped,
        successes,
        failures,
        errors,
        skipped,
        format_timestamp(at),
        success_rate=successes / (counted + errors) if counted + errors else None,
        average_duration=ran / counted / 1e6 if counted else None,
        shortest_duration=None if shortest is None else shortest / 1e6,
        longest_duration=None if longest is None else longest / 1e6,
        last_success_at=None if succeeded is None else format_timestamp(succeeded),
        last_failure_at=None if failed is None else format_timestamp(failed),
    )


# Skip jobs


_skip: Final = msgspec.json.Decoder(SkipIfUnchanged | SkipIfChanged).decode


class Adoption(msgspec.Struct):
    """Reason to skip a job, and the result that it adopts."""

    reason: str
    result: bytes | None
    job_id: str | None = None


def adoption_of(tx: Transaction, job: Job) -> Adoption | None:
    """Return the adoption if a job that is being claimed can be skipped, else ``None``.

    The caller holds the lock of its workflow.
    """
    tx.execute("DELETE FROM job_inputs WHERE seq = :seq", {"seq": job.seq})
    for action in map(_skip, stored_actions(job.envelope, "on_assignment", "skip-if-unchanged", "skip-if-changed")):
        adoptions: list[Adoption | None] = []
        decide = _if_unchanged if isinstance(action, SkipIfUnchanged) else _if_changed
        run_reaction(tx, job, "on_assignment", lambda: adoptions.append(decide(tx, job, action)))  # noqa: B023
        if adoptions and adoptions[0] is not None:
            return adoptions[0]
    return None


def skip(tx: Transaction, job: Job, adopted: Adoption) -> None:
    """Complete a job without running it."""
    job.suspension = SKIPPED
    tx.emit("job.skipped", job, reason=adopted.reason, adopted_job_id=adopted.job_id)
    complete_job(tx, job, adopted.result, 0)
    write_completed(tx, [job])
    tx.execute("UPDATE jobs SET suspension = :suspension WHERE seq = :seq", {"suspension": SKIPPED, "seq": job.seq})


def _if_unchanged(tx: Transaction, job: Job, action: SkipIfUnchanged) -> Adoption | None:
    resolver = reference_resolver(job)
    if action.inputs is msgspec.UNSET:
        inputs = resolver(parse_reference("job.args"))
    else:
        inputs = resolve(action.inputs, resolver, lookup_resolver(tx, job.tenant, workflow_of(job)))
    canonical = msgspec.json.encode(msgspec.json.decode(inputs), order="sorted")
    digest = hashlib.sha256(canonical).digest()
    key = _key_of(job, action)
    last = tx.execute(
        f"""
        SELECT id, inputs, result, job_id
        FROM task_runs
        WHERE {_IS_TASK} AND outcome = 'success'
        ORDER BY id DESC
        LIMIT 1
        """,
        dict(zip(_KEY, key, strict=True)),
    )
    if last and last[0][1] == digest:
        run, _, result, job_id = last[0]
        copy_items(tx, _artifacts_of(run), key_of_job(job.seq), f"job {job_id}")
        return Adoption(f"The inputs are the same as those of the job {job_id}.", result, job_id)
    tx.execute("INSERT INTO job_inputs (seq, inputs) VALUES (:seq, :inputs)", {"seq": job.seq, "inputs": digest})
    return None


def _if_changed(tx: Transaction, job: Job, action: SkipIfChanged) -> Adoption | None:
    item = _found_now(tx, job, action)
    if (None if item is None else item.id) == action.item:
        return None
    reason = f"Result of lookup {action.lookup!r} changed"
    if item is None:
        return Adoption(reason, None)
    new = NewItem(item.name, bytes(item.data), item.category, True).with_file(item.file)
    if item.file is not None:
        put(tx, key_of_job(job.seq), job.tenant, new, job=job)
    if action.provides is not None:
        key = key_of(job.tenant, INTERNAL, workflow_of(job))
        put(tx, key, job.tenant, msgspec.structs.replace(new, name=action.provides), job=job)
    return Adoption(reason, bytes(item.data), item.job_id)


def _found_now(tx: Transaction, job: Job, action: SkipIfChanged) -> Item | None:
    lookups, _ = read_lookup(msgspec.json.encode(action.lookup))
    try:
        (items,) = look_up(tx, lookups, job.tenant, workflow_of(job))
    except NotFound:
        return None
    return items
