"""Cron jobs: registration, and firing of due occurrences.

The transaction that advances ``next_run_at`` fires the occurrence, so it fires once, on whichever server is first.

Spec: ojs-cron
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Final, Literal

import msgspec

from ojster.core.errors import Duplicate, InvalidRequest, NotFound, OjsterError
from ojster.core.job import Job
from ojster.core.json_objects import read_members
from ojster.core.tenant import TENANT_NAMES_RANGE, called, names_of, split
from ojster.core.timestamps import format_timestamp
from ojster.jobs.extension import settle
from ojster.jobs.job_types import defaults_by_type, with_defaults
from ojster.jobs.new_job import NewJob, read_job
from ojster.jobs.options_wire import queue_of
from ojster.jobs.push import Pushed, push
from ojster.jobs.transitions import cancel_job
from ojster.queues.rules import queue_rules
from ojster.schedules.cron_expression import OVERLAP_POLICIES, CronSchedule, OverlapPolicy
from ojster.storage.call import for_each
from ojster.storage.transaction import JOB_COLUMNS, Held, Later, Transaction

log = logging.getLogger(__name__)

MAX_FIRED: Final = 200


class Cron(msgspec.Struct, frozen=True, kw_only=True):
    """A cron job. ``template`` is the enqueue request of its jobs, as JSON. Times are microseconds since the epoch."""

    name: str
    expression: str
    timezone: str = "UTC"
    overlap_policy: OverlapPolicy = "skip"
    enabled: bool = True
    description: str | None = None
    template: bytes = b"{}"
    created_at: int = 0
    last_run_at: int | None = None
    next_run_at: int | None = None
    run_count: int = 0

    def __post_init__(self) -> None:
        if self.overlap_policy not in OVERLAP_POLICIES:
            raise InvalidRequest(
                f"overlap_policy is {self.overlap_policy!r}, but must be one of {', '.join(OVERLAP_POLICIES)}.",
                field="overlap_policy",
            )

    @property
    def job_type(self) -> str | None:
        """The type of its jobs; ``None``: its template names none."""
        job_type: str | None = msgspec.json.decode(read_members(self.template, "The template").get("type", b"null"))
        return job_type

    @property
    def schedule(self) -> CronSchedule:
        """Schedule of the cron job."""
        return CronSchedule(self.expression, self.timezone)


_COLUMNS = (
    "name, expression, timezone, overlap_policy, enabled, description, template, created_at, last_run_at, "
    "next_run_at, run_count"
)


OnConflict = Literal["replace", "reject"]
"""What becomes of a registration if there is a cron job with its name: it replaces that one, or is refused."""


class Registration(msgspec.Struct, frozen=True):
    """A cron job to register."""

    cron: Cron
    on_conflict: OnConflict = "replace"


class Registered(msgspec.Struct, frozen=True):
    """A registered cron job, whether it is new, and whether it is new or differs from the one before."""

    cron: Cron
    is_new: bool
    is_changed: bool


def register(tx: Transaction, registrations: Sequence[Registration]) -> list[Registered | OjsterError]:
    """Register or update cron jobs by name.

    An update keeps the history, and also the next run if the schedule is unchanged, so an application may register all
    its cron jobs at every start.

    Spec: ojs-cron 8.1
    """
    return [_register(tx, registration.cron, registration.on_conflict) for registration in registrations]


def _register(tx: Transaction, cron: Cron, on_conflict: OnConflict) -> Registered | OjsterError:
    # A cron job that does not exist has no row to lock: registrations of one name take turns by a key. A known row is
    # locked as well, because a run writes it too: a row that is written back as it was before would run again.
    if tx.lock_keys({"cron:" + cron.name}):
        raise Held(f"Another caller is registering the cron job {cron.name}.")
    known = _find(tx, cron.name, tx.for_update)
    if known is not None and on_conflict == "reject":
        name = called(cron.name)
        message = f"There is a cron job {name!r} already. Choose another name, or change that one."
        return Duplicate(message, field="name", resource_id=name)
    next_run_at = cron.schedule.next_after(tx.now) if cron.enabled else None
    if known is None:
        cron = msgspec.structs.replace(cron, created_at=tx.now, next_run_at=next_run_at)
    else:
        unchanged = (known.expression, known.timezone) == (cron.expression, cron.timezone)
        if cron.enabled and unchanged and known.next_run_at is not None:
            next_run_at = known.next_run_at
        cron = msgspec.structs.replace(
            cron,
            created_at=known.created_at,
            last_run_at=known.last_run_at,
            run_count=known.run_count,
            next_run_at=next_run_at,
        )
    if cron != known:
        _write(tx, cron)
    return Registered(cron, known is None, cron != known)


def switch(tx: Transaction, orders: Sequence[tuple[str, bool]]) -> list[Cron | OjsterError]:
    """Enable or disable cron jobs."""
    results: list[Cron | OjsterError] = []
    for name, enabled in orders:
        # The whole row is written back: a run that fires meanwhile would be undone.
        cron = _find(tx, name, tx.for_update)
        if cron is None:
            results.append(_no_cron(name))
            continue
        next_run_at = cron.schedule.next_after(tx.now) if enabled else None
        cron = msgspec.structs.replace(cron, enabled=enabled, next_run_at=next_run_at)
        _write(tx, cron)
        results.append(cron)
    return results


@for_each
def unregister(tx: Transaction, name: str) -> Cron | OjsterError:
    """Remove cron jobs. The jobs that they enqueued stay."""
    # Wait for a run that fires, so that the answer is the last version.
    cron = _find(tx, name, tx.for_update)
    if cron is not None:
        tx.execute("DELETE FROM crons WHERE name = :name", {"name": name})
    return cron or _no_cron(name)


class CronSelection(msgspec.Struct, frozen=True):
    """Cron jobs to list, by name.

    Parameters
    ----------
    tenant:
        Only those of this tenant; ``None``: all.
    enabled:
        Only enabled ones (true) or disabled ones (false); ``None``: both.
    limit, offset:
        The page; without a limit, all of them.
    """

    tenant: str | None = None
    enabled: bool | None = None
    limit: int | None = None
    offset: int = 0


def list_crons(tx: Transaction, selections: Sequence[CronSelection]) -> list[tuple[list[Cron], int]]:
    """Return the page of cron jobs that each selection names, and the number of them on all pages."""
    results = []
    for chosen in selections:
        first, end = names_of(chosen.tenant) if chosen.tenant else TENANT_NAMES_RANGE
        of_tenant = "name >= :first AND name < :end"
        whose = "1 = 1" if chosen.tenant is None else of_tenant if chosen.tenant else f"NOT ({of_tenant})"
        matching = f"FROM crons WHERE {whose}"
        if chosen.enabled is not None:
            matching += f" AND enabled = {int(chosen.enabled)}"
        bounds = {"first": first, "end": end}
        ((total,),) = tx.execute(f"SELECT count(*) {matching}", bounds)
        rows = tx.execute(
            f"SELECT {_COLUMNS} {matching} ORDER BY name LIMIT :limit OFFSET :offset",
            bounds | {"limit": total if chosen.limit is None else chosen.limit, "offset": chosen.offset},
        )
        results.append(([_cron(row) for row in rows], int(total)))
    return results


def find_cron(tx: Transaction, names: Sequence[str]) -> list[Cron | OjsterError]:
    """Return the cron job of each name."""
    return [_find(tx, name) or _no_cron(name) for name in names]


def fire_due(tx: Transaction) -> int | None:
    """Fire at most ``MAX_FIRED`` due cron jobs; return when the next one is due.

    However many occurrences were missed, a cron job fires once.

    Spec: ojs-cron 7.3
    """
    # Another server fires a row that it has locked. Waiting would make all later cron jobs late, to find in the end
    # that nothing is due.
    rows = tx.execute(
        f"SELECT {_COLUMNS} FROM crons WHERE next_run_at <= :now ORDER BY next_run_at LIMIT :limit" + tx.skip_locked,
        {"now": tx.now, "limit": MAX_FIRED},
    )
    for row in rows:
        cron = _cron(row)
        try:
            with tx.savepoint():
                _fire(tx, cron)
        except Held as held:  # it stays due, and does not keep others from firing
            log.debug("the cron job %s fires later: %s", cron.name, held)
    ((next_run_at,),) = tx.execute("SELECT min(next_run_at) FROM crons WHERE next_run_at IS NOT NULL")
    return next_run_at  # type: ignore[no-any-return]  # a column of integers


def trigger(tx: Transaction, names: Sequence[str]) -> list[Job | OjsterError]:
    """Enqueue the job of each cron job now, enabled or not and whatever runs already; its next run stays as it is."""
    return [_trigger(tx, name) for name in names]


def _trigger(tx: Transaction, name: str) -> Job | OjsterError:
    # The number of runs is read and written back: a run that fires meanwhile would not be counted.
    cron = _find(tx, name, tx.for_update)
    if cron is None:
        return _no_cron(name)
    job = _push(tx, cron, tx.now)
    if isinstance(job, OjsterError):
        return job
    facts = _facts(cron, tx.now) | {"job_id": job.id, "job_type": job.type, "run_count": cron.run_count + 1}
    tx.emit_about("cron.triggered", cron.name, **facts, manual=True)
    _write(tx, msgspec.structs.replace(cron, last_run_at=tx.now, run_count=cron.run_count + 1))
    return job


def _fire(tx: Transaction, cron: Cron) -> None:
    scheduled_for = cron.next_run_at or tx.now
    # Lock only jobs that are to be cancelled: a fetch skips locked jobs, and is not notified when they are free.
    lock = tx.for_update if cron.overlap_policy == "cancel_previous" else ""
    unfinished = _unfinished_jobs(tx, cron.name, lock) if cron.overlap_policy != "allow" else []
    facts = _facts(cron, scheduled_for)
    fired = False
    if unfinished and cron.overlap_policy == "skip":
        facts |= {"reason": "overlap_skip", "active_job_id": unfinished[0].id, "existing_job_id": unfinished[0].id}
    else:
        if cron.overlap_policy == "cancel_previous":
            for job in unfinished:
                cancel_job(tx, job)
            settle(tx)
        made = _push(tx, cron, scheduled_for)
        if isinstance(made, OjsterError):
            log.warning("the cron job %s did not fire: %s", cron.name, made)
            facts |= {"reason": made.code, "message": made.message}
        else:
            fired = True
            facts |= {"job_id": made.id, "job_type": made.type}
    facts["run_count"] = cron.run_count + fired
    tx.emit_about("cron.triggered" if fired else "cron.skipped", cron.name, **facts)
    schedule = cron.schedule
    # An interval is counted from the time at which it was due, so that it does not drift.
    next_run_at = schedule.next_after(scheduled_for)
    if next_run_at is not None:
        for missing in schedule.skipped_between(scheduled_for, next_run_at):
            skipped = _facts(cron, missing) | {"reason": "dst_skip", "run_count": cron.run_count + fired}
            tx.emit_about("cron.skipped", cron.name, **skipped)
    if next_run_at is not None and next_run_at <= tx.now:
        next_run_at = schedule.next_after(tx.now)
    _write(
        tx,
        msgspec.structs.replace(
            cron,
            last_run_at=tx.now if fired else cron.last_run_at,
            run_count=cron.run_count + fired,
            next_run_at=next_run_at,
        ),
    )


def _push(tx: Transaction, cron: Cron, scheduled_for: int) -> Job | OjsterError:
    """Push the job of an occurrence; return it, or why it is refused."""
    pushed: list[Pushed] | OjsterError
    try:
        (pushed,) = push(tx, [[_new_job(tx, cron, scheduled_for)]])
    except OjsterError as refusal:
        pushed = refusal
    if isinstance(pushed, Later):
        raise Held(pushed.message)
    return pushed if isinstance(pushed, OjsterError) else pushed[0].job


def _facts(cron: Cron, scheduled_for: int) -> dict[str, Any]:
    """Return what the events of an occurrence of a cron job say about it."""
    moment = format_timestamp(scheduled_for)
    return {
        "cron_name": cron.name,
        "cron_expr": cron.expression,
        "cron_expression": cron.expression,
        "job_type": cron.job_type,
        "scheduled_at": moment,
        "timezone": cron.timezone,
        "scheduled_time": moment,
    }


def _new_job(tx: Transaction, cron: Cron, scheduled_for: int) -> NewJob:
    members = read_members(cron.template, "The cron job's template")
    written = members.get("meta", msgspec.Raw(b"{}"))
    meta: dict[str, Any] = {} if bytes(written) == b"null" else dict(read_members(written, "meta"))
    meta |= {"cron_name": called(cron.name), "cron_triggered_at": format_timestamp(scheduled_for)}
    members["meta"] = msgspec.Raw(msgspec.json.encode(meta))
    members.pop("id", None)
    tenant = split(cron.name)[0] or None
    otherwise = tx.settings.default_tenant
    members = with_defaults(defaults_by_type(tx), members, tenant, otherwise)
    queue = queue_of(members)
    if (rules := queue_rules(tx).get(queue)) is not None:
        members = rules.apply(members, queue)
    job = read_job(members, tx.now, largest=2 * tx.settings.largest_job, tenant=tenant, otherwise=otherwise)
    job.cron_name = cron.name
    if cron.overlap_policy == "enqueue":
        job.exclusive_key = "cron:" + cron.name
    return job


def _unfinished_jobs(tx: Transaction, name: str, lock: str) -> list[Job]:
    rows = tx.execute(
        f"SELECT {JOB_COLUMNS} FROM jobs WHERE cron_name = :name AND finished_at IS NULL ORDER BY seq" + lock,
        {"name": name},
    )
    return [Job(*row) for row in rows]


def _find(tx: Transaction, name: str, lock: str = "") -> Cron | None:
    rows = tx.execute(f"SELECT {_COLUMNS} FROM crons WHERE name = :name" + lock, {"name": name})
    return _cron(rows[0]) if rows else None


def _write(tx: Transaction, cron: Cron) -> None:
    tx.execute(
        f"""
        INSERT INTO crons ({_COLUMNS})
        VALUES (
            :name, :expression, :timezone, :overlap_policy, :enabled, :description, :template, :created_at,
            :last_run_at, :next_run_at, :run_count
        )
        ON CONFLICT (name) DO UPDATE SET
            expression = excluded.expression, timezone = excluded.timezone,
            overlap_policy = excluded.overlap_policy, enabled = excluded.enabled,
            description = excluded.description, template = excluded.template,
            last_run_at = excluded.last_run_at, next_run_at = excluded.next_run_at,
            run_count = excluded.run_count
        """,
        msgspec.structs.asdict(cron) | {"enabled": int(cron.enabled)},
    )
    tx.expect(cron.next_run_at)


def _cron(row: tuple[Any, ...]) -> Cron:
    names = [name.strip() for name in _COLUMNS.split(",")]
    fields = dict(zip(names, row, strict=True))
    fields["enabled"] = bool(fields["enabled"])
    return Cron(**fields)


def _no_cron(name: str) -> NotFound:
    name = called(name)
    return NotFound(f"There is no cron job {name!r}.", resource_type="cron_job", resource_id=name)
