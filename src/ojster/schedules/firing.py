"""Firing of cron jobs: what an occurrence starts, and what becomes of the unfinished runs before it.

The transaction that advances ``next_run_at`` fires the occurrence, so it fires once, on whichever server is first.

Spec: ojs-cron
"""

from __future__ import annotations

import logging
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

from ojster.core.errors import Duplicate, OjsterError
from ojster.core.job import Job
from ojster.core.json_objects import Members, read_members, without_nulls
from ojster.core.tenant import called, split
from ojster.core.timestamps import format_timestamp
from ojster.jobs.authorship import sign
from ojster.jobs.extension import Due
from ojster.jobs.new_job import NewJob, read_job
from ojster.jobs.push import Pushed, push
from ojster.queues.rules import completed
from ojster.schedules.cron import COLUMNS, Cron, cron_of, find, no_cron, write
from ojster.schedules.misses import Miss, note_late, note_miss
from ojster.schedules.runs import cancel_unfinished, count_waiting, key_of_line, unfinished_run
from ojster.storage.call import for_each
from ojster.storage.transaction import Held, Later, Transaction
from ojster.workflows.plan.values import NewWorkflow
from ojster.workflows.run.starting import Starter, start_workflow
from ojster.workflows.run.turns import SCHEDULED_LINE
from ojster.workflows.stored_workflow import facts_of

log = logging.getLogger(__name__)

MAX_FIRED: Final = 200
"""Maximum number of cron jobs that fire in one transaction."""

MAX_FIRED_WEIGHT: Final = 1_000
"""Weight of the workflows of one transaction from which the other cron jobs fire in the next one."""

_LONG_LINE: Final = 3
"""Number of waiting runs of a cron job, with the policy ``enqueue``, that is logged."""

StartedByCron: TypeAlias = Job | NewWorkflow
"""What an occurrence of a cron job has started."""


class Started(NamedTuple):
    """What an occurrence of a cron job has started.

    If ``is_new`` is false, it has started nothing: its job is a duplicate of ``run``, which its policy ignores.
    """

    run: StartedByCron
    is_new: bool = True


def fire_due(tx: Transaction) -> Due:
    """Fire at most ``MAX_FIRED`` due cron jobs; return when the next one is due.

    However many occurrences were missed, a cron job fires once.

    Spec: ojs-cron 7.3
    """
    # Another server fires a row that it has locked. Waiting would make all later cron jobs late, to find in the end
    # that nothing is due.
    rows = tx.execute(
        f"SELECT {COLUMNS} FROM crons WHERE next_run_at <= :now ORDER BY next_run_at LIMIT :limit" + tx.skip_locked,
        {"now": tx.now, "limit": MAX_FIRED},
    )
    weight = fired = 0
    for row in rows:
        cron = cron_of(row)
        if weight >= MAX_FIRED_WEIGHT:
            break
        fired += 1
        try:
            with tx.savepoint():
                weight += _fire(tx, cron)
        except Held as held:  # it stays due, and does not keep others from firing
            log.debug("the cron job %s fires later: %s", cron.name, held)
    ((next_run_at,),) = tx.execute("SELECT min(next_run_at) FROM crons WHERE next_run_at IS NOT NULL")
    return Due(next_run_at, has_more=fired < len(rows))


@for_each
def trigger(tx: Transaction, order: tuple[str, str | None]) -> StartedByCron | OjsterError:
    """Start what cron jobs start now, enabled or not and whatever runs already; their next runs stay as they are.

    Each order is the name of the cron job, and that of the caller, if it is known: it is the creator of the run.
    """
    name, by = order
    # The number of runs is read and written back: a run that fires meanwhile would not be counted.
    cron = find(tx, name, tx.for_update)
    if cron is None:
        return no_cron(name)
    started = start(tx, cron, tx.now, by, _line(cron))
    if isinstance(started, OjsterError):
        return started
    if started.is_new:
        facts = facts_of_occurrence(cron, tx.now) | facts_of_run(started.run) | {"run_count": cron.run_count + 1}
        tx.emit_about("cron.triggered", cron.name, **facts, manual=True)
        write(tx, msgspec.structs.replace(cron, last_run_at=tx.now, run_count=cron.run_count + 1))
    return started.run


def _fire(tx: Transaction, cron: Cron) -> int:
    """Fire a due cron job; return the weight of the workflow that it has started, or 0."""
    scheduled_for = cron.next_run_at or tx.now
    facts = facts_of_occurrence(cron, scheduled_for)
    run: StartedByCron | None = None
    if cron.overlap_policy == "skip" and (unfinished := unfinished_run(tx, cron.name)):
        facts |= {"reason": "overlap_skip"} | unfinished
        _note(
            tx,
            cron,
            scheduled_for,
            "overlap_skip",
            "The run before it had not finished.",
            next(iter(unfinished.values())),
        )
    else:
        if cron.overlap_policy == "cancel_previous":
            cancel_unfinished(tx, cron.name)
        started = start(tx, cron, scheduled_for, cron.created_by, _line(cron))
        if isinstance(started, OjsterError):
            log.warning("the cron job %s did not fire: %s", cron.name, started)
            facts |= {"reason": started.code, "message": started.message}
            _note(tx, cron, scheduled_for, started.code, started.message)
        elif not started.is_new:
            facts |= facts_of_duplicate(started)
            _note(tx, cron, scheduled_for, facts["reason"], facts["message"])
        else:
            run = started.run
            facts |= facts_of_run(run)
            _warn_of_line(tx, cron)
    fired = run is not None
    facts["run_count"] = cron.run_count + fired
    tx.emit_about("cron.triggered" if fired else "cron.skipped", cron.name, **facts)
    schedule = cron.schedule
    # An interval is counted from the time at which it was due, so that it does not drift.
    next_run_at = schedule.next_after(scheduled_for)
    if next_run_at is not None:
        for missing in schedule.skipped_between(scheduled_for, next_run_at):
            skipped = facts_of_occurrence(cron, missing) | {"reason": "dst_skip", "run_count": cron.run_count + fired}
            tx.emit_about("cron.skipped", cron.name, **skipped)
            _note(tx, cron, missing, "dst_skip", "The clock skipped this time: daylight saving time began.")
    if next_run_at is not None and next_run_at <= tx.now:
        note_late(tx, cron, next_run_at)
        next_run_at = schedule.next_after(tx.now)
    write(
        tx,
        msgspec.structs.replace(
            cron,
            last_run_at=tx.now if fired else cron.last_run_at,
            run_count=cron.run_count + fired,
            next_run_at=next_run_at,
        ),
    )
    return run.weight if isinstance(run, NewWorkflow) else 0


def _note(tx: Transaction, cron: Cron, at: int, reason: str, message: str, active_id: str | None = None) -> None:
    """Record that an occurrence starts nothing."""
    note_miss(tx, cron, Miss(since=at, until=at, reason=reason, message=message, active_id=active_id))


def _warn_of_line(tx: Transaction, cron: Cron) -> None:
    """Log that runs wait for their turn faster than they end: once, when there are more than two.

    Spec: ojs-cron 6.1
    """
    if cron.overlap_policy == "enqueue" and count_waiting(tx, cron.name, _LONG_LINE + 1) == _LONG_LINE:
        log.warning(
            "%d runs of the cron job %s wait for their turn: it fires faster than they end", _LONG_LINE, cron.name
        )


def _line(cron: Cron) -> int:
    """Return the line in which the runs of the schedule wait for each other; 0: they do not."""
    return SCHEDULED_LINE if cron.overlap_policy == "enqueue" else 0


def start(tx: Transaction, cron: Cron, scheduled_for: int, by: str | None, line: int) -> Started | OjsterError:
    """Push the job of an occurrence, or start its workflow; return it, or why it is refused.

    ``by``: the name of its creator, if it is known; ``line``: in which it waits for those before it; 0: it does not.
    """
    try:
        if cron.workflow is not None:
            with tx.savepoint():  # a refusal leaves nothing of the workflow
                return Started(_start_workflow(tx, cron, scheduled_for, by, line))
        pushed: list[Pushed] | OjsterError
        (pushed,) = push(tx, [[_new_job(tx, cron, scheduled_for, by, line)]])
    except Held:
        raise
    except OjsterError as refusal:
        pushed = refusal
    if isinstance(pushed, Later):
        raise Held(pushed.message)
    return pushed if isinstance(pushed, OjsterError) else Started(pushed[0].job, is_new=not pushed[0].existing)


def facts_of_occurrence(cron: Cron, scheduled_for: int) -> dict[str, Any]:
    """Return what the events of an occurrence of a cron job say about it."""
    moment = format_timestamp(scheduled_for)
    of_job = {"job_type": cron.job_type} if cron.workflow is None else {}
    return {
        "cron_name": cron.name,
        "cron_expr": cron.expression,
        "cron_expression": cron.expression,
        **of_job,
        "scheduled_at": moment,
        "timezone": cron.timezone,
        "scheduled_time": moment,
    }


def facts_of_run(run: StartedByCron) -> dict[str, Any]:
    """Return what the events of an occurrence say about what it has started."""
    if isinstance(run, Job):
        return {"job_id": run.id, "job_type": run.type}
    return facts_of(run.id, run.type, run.name)


def facts_of_duplicate(started: Started) -> dict[str, Any]:
    """Return what the events of an occurrence say that has started nothing, because its job is a duplicate."""
    message = f"Its job would be a duplicate of the job {started.run.id}."
    return {"reason": Duplicate.code, "message": message, "existing_job_id": started.run.id}


def _named(cron: Cron, scheduled_for: int, written: msgspec.Raw, name: str) -> msgspec.Raw:
    """Return metadata with the name of the cron job and the time of the occurrence."""
    meta: dict[str, Any] = {} if bytes(written) == b"null" else dict(read_members(written, name))
    meta |= {"cron_name": called(cron.name), "cron_triggered_at": format_timestamp(scheduled_for)}
    return msgspec.Raw(msgspec.json.encode(meta))


def _new_job(tx: Transaction, cron: Cron, scheduled_for: int, by: str | None, line: int) -> NewJob:
    members = read_members(cron.template, "The cron job's template")
    members["meta"] = _named(cron, scheduled_for, members.get("meta", msgspec.Raw(b"{}")), "meta")
    members.pop("id", None)
    tenant = split(cron.name)[0] or None
    otherwise = tx.settings.default_tenant
    members = completed(tx, members, tenant, otherwise)
    job = read_job(members, tx.now, largest=2 * tx.settings.largest_job, tenant=tenant, otherwise=otherwise)
    job.envelope = sign(job.envelope, by)
    job.cron_name = cron.name
    if line:
        job.exclusive_key = key_of_line(cron.name, line)
    return job


def _start_workflow(tx: Transaction, cron: Cron, scheduled_for: int, by: str | None, line: int) -> NewWorkflow:
    members: Members = without_nulls(read_members(cron.workflow or b"{}", "The cron job's workflow"))
    name = "metadata" if "metadata" in members or "meta" not in members else "meta"
    members[name] = _named(cron, scheduled_for, members.get(name, msgspec.Raw(b"{}")), name)
    starter = Starter(
        split(cron.name)[0] or None,
        tx.settings.default_tenant,
        created_by=by,
        cron_name=cron.name,
        turn_line=line,
    )
    return start_workflow(tx, members, starter)
