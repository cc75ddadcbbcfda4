"""Workers: heartbeats, lease extension, directives, and workers that stop sending heartbeats.

Spec: ojs-worker-protocol (BEAT)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal

import msgspec

from ojster.core.durations import SECOND
from ojster.core.errors import Conflict, NotFound, OjsterError
from ojster.core.job import Job
from ojster.core.job_flags import CANCEL_REQUESTED
from ojster.core.job_table import HELD_BY_WORKER, JOB_COLUMNS
from ojster.core.tenant import called
from ojster.fleet.abilities import PLAIN, Abilities, abilities_by_worker, decode_abilities, worker_rules_by_id
from ojster.fleet.lost_workers import forget_loss, note_expired_lease, note_last_report, note_loss
from ojster.fleet.requirements import read_provided
from ojster.fleet.worker_starts import note_start
from ojster.jobs.ending_attempts import confirm_ends_of_worker
from ojster.jobs.extension import lock_with, settle
from ojster.jobs.leases import death_of, lease_end
from ojster.jobs.topics import tell_worker
from ojster.jobs.transitions import Loss, fail_lost_attempts, make_available
from ojster.jobs.versions import HandledVersions
from ojster.storage.call import for_each
from ojster.storage.transaction import Transaction


class Heartbeat(msgspec.Struct, frozen=True):
    """A worker's report on itself and its active jobs.

    ``lease`` is the requested lease extension in microseconds; ``None``: the server's default.
    """

    worker_id: str
    active_jobs: tuple[str, ...] = ()
    lease: int | None = None
    state: str = "running"
    hostname: str | None = None
    pid: int | None = None
    queues: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    concurrency: int | None = None
    pool: str | None = None
    handlers: tuple[HandledVersions, ...] = ()
    """Job types whose versions are limited: the worker handles only some of them."""
    job_types: tuple[str, ...] | None = None
    """Job types that it has handlers for, sorted; ``None``: it says nothing, and gets all."""
    capabilities: dict[str, Any] = {}
    """Capabilities of the worker, for jobs with requirements.

    Spec: ojs-ml-resources 11
    """
    tenant: str | None = None
    """The only tenant whose jobs it may run; ``None``: all tenants."""
    attempts: dict[str, int] = {}
    """The attempts of the active jobs, by id; a job whose attempt is another by now is lost."""
    code_version: str | None = None
    """Version, or digest, of the code that it runs; ``None``: it does not say."""


class HeartbeatResponse(msgspec.Struct):
    """The response to a heartbeat.

    Attributes
    ----------
    extended:
        Ids of jobs with an extended lease.
    cancelled:
        Ids of cancelled jobs. The worker must stop them.
    lost:
        Ids of jobs that the worker does not hold. The worker must stop them.
    woken:
        Whether there is something that the worker does not know yet: it should send another heartbeat at once.
    timeout:
        Silence after which the worker counts as lost, in microseconds.
    """

    directive: str
    extended: list[str]
    cancelled: list[str]
    lost: list[str]
    woken: bool = False
    timeout: int = 30 * SECOND


class KnownWorker(msgspec.Struct, frozen=True):
    """A worker, as its last heartbeat described it."""

    id: str
    state: str
    directive: str | None
    hostname: str | None
    pid: int | None
    queues: list[str]
    labels: list[str]
    concurrency: int | None
    active_jobs: int
    started_at: int
    last_seen_at: int
    pool: str | None = None
    provides: dict[str, list[str]] = {}
    """Its capabilities, by name: its own report, corrected by its worker rule."""
    enabled: bool = True
    """Whether its worker rule lets it have jobs."""


_WORKER_COLUMNS: Final = (
    "id, state, directive, hostname, pid, queues, labels, concurrency, active_jobs, started_at, last_seen_at, pool"
)

_BEAT: Final = f"""
    INSERT INTO workers ({_WORKER_COLUMNS}, abilities)
    VALUES (
        :id, :state, NULL, :hostname, :pid, :queues, :labels, :concurrency, :active_jobs, :now, :now,
        :pool, :abilities
    )
    ON CONFLICT (id) DO UPDATE SET
        state = excluded.state, hostname = excluded.hostname, pid = excluded.pid,
        queues = excluded.queues, labels = excluded.labels, concurrency = excluded.concurrency,
        active_jobs = excluded.active_jobs, last_seen_at = excluded.last_seen_at, pool = excluded.pool,
        abilities = excluded.abilities
    RETURNING directive, started_at
"""


@for_each
def beat(tx: Transaction, beat: Heartbeat) -> HeartbeatResponse:
    """Record heartbeats, extend the leases of the workers' jobs, and return a ``HeartbeatResponse`` for each."""
    now = tx.now
    abilities = Abilities(beat.handlers, read_provided(beat.capabilities), runs=beat.job_types)
    _note_abilities(tx, beat, abilities)
    becomes_quiet = beat.state == "quiet" and tx.execute(
        "SELECT id FROM workers WHERE id = :id AND state <> 'quiet'", {"id": beat.worker_id}
    )
    ((directive, started_at),) = tx.execute(
        _BEAT,
        {
            "id": beat.worker_id,
            "state": beat.state,
            "hostname": beat.hostname,
            "pid": beat.pid,
            "queues": msgspec.json.encode(beat.queues).decode(),
            "labels": msgspec.json.encode(beat.labels).decode(),
            "concurrency": beat.concurrency,
            "active_jobs": len(beat.active_jobs),
            "pool": beat.pool,
            "abilities": None if abilities == PLAIN else msgspec.json.encode(abilities).decode(),
            "now": now,
        },
    )
    if started_at == now:
        _announce(tx, beat, abilities)
    if becomes_quiet:
        tx.emit_about("worker.quiet", beat.worker_id, worker_id=beat.worker_id, active_jobs=len(beat.active_jobs))
    tx.expect(now + tx.settings.heartbeat_timeout)
    jobs = tx.lock_jobs(beat.active_jobs) if beat.active_jobs else {}
    rule = worker_rules_by_id(tx).get(beat.worker_id)
    if rule is not None and not rule.enabled and directive in (None, "running"):
        directive = "quiet"
    pulse = HeartbeatResponse(directive or "running", [], [], [], timeout=tx.settings.heartbeat_timeout)
    rows = []
    for id in beat.active_jobs:
        job = jobs.get(id)
        if job is not None and beat.tenant not in (None, job.tenant):
            job = None
        if job is not None and job.state == "active" and job.flags & CANCEL_REQUESTED:
            pulse.cancelled.append(id)
        elif job is not None and _holds(beat, job):
            lease = beat.lease or tx.settings.default_lease
            job.due_at = lease_end(tx, job, lease)
            tx.expect(job.due_at)
            rows.append((job.due_at, job.seq))
            pulse.extended.append(id)
            who = called(beat.worker_id)
            tx.emit("job.heartbeat", job, worker_id=who, attempt=job.attempt, visible_until=job.due_at)
        elif job is not None and job.state == "cancelled":
            pulse.cancelled.append(id)
        else:
            pulse.lost.append(id)
    tx.execute_many("UPDATE jobs SET due_at = ? WHERE seq = ?", rows)
    return pulse


def _holds(beat: Heartbeat, job: Job) -> bool:
    """Return whether a worker holds the lease of a job, and runs its current attempt."""
    is_its = job.state == "active" and job.worker_id in (None, beat.worker_id)
    return is_its and beat.attempts.get(job.id, job.attempt) == job.attempt


def _announce(tx: Transaction, beat: Heartbeat, abilities: Abilities) -> None:
    """Tell of a worker that has started, or has come back."""
    forget_loss(tx, beat.worker_id)
    note_start(tx, beat.worker_id, beat.hostname, beat.queues, beat.code_version)
    tx.emit_about(
        "worker.started",
        beat.worker_id,
        worker_id=beat.worker_id,
        queues=list(beat.queues),
        concurrency=beat.concurrency,
    )
    if abilities != PLAIN:  # other processes may not remember it, although this one does
        tx.effects.configured = True
        tx.effects.opened.update(beat.queues)


def _note_abilities(tx: Transaction, beat: Heartbeat, abilities: Abilities) -> None:
    """If the capabilities of a worker have changed, make all processes reload them, and reopen its queues."""
    abilities = abilities.under(worker_rules_by_id(tx).get(beat.worker_id))
    if abilities_by_worker(tx).get(beat.worker_id, PLAIN) != abilities:
        tx.effects.configured = True
        tx.effects.opened.update(beat.queues)


@for_each
def direct(tx: Transaction, order: tuple[str, str]) -> KnownWorker | OjsterError:
    """Set the directive for workers' next heartbeats: ``running``, ``quiet`` or ``terminate``.

    For each, return the worker or a `NotFound`.
    """
    worker_id, directive = order
    rows = tx.execute(
        f"UPDATE workers SET directive = :directive WHERE id = :id RETURNING {_WORKER_COLUMNS}, abilities",
        {"id": worker_id, "directive": directive},
    )
    tell_worker(tx, worker_id)
    return _worker(tx, rows[0]) if rows else _no_worker(worker_id)


@for_each
def held_jobs(tx: Transaction, worker_id: str) -> list[Job]:
    """Return the jobs that each worker holds."""
    rows = tx.execute(f"SELECT id {HELD_BY_WORKER} ORDER BY seq", {"worker_id": worker_id})
    jobs_by_id = tx.find_jobs([id for (id,) in rows])
    return [jobs_by_id[id] for (id,) in rows]


@for_each
def deregister(tx: Transaction, worker_id: str) -> OjsterError | None:
    """Delete workers that have missed their heartbeats. The attempts of their jobs end, and count as losses."""
    # A heartbeat that arrives now is waited for, and then shows that the worker is alive.
    rows = tx.execute("SELECT last_seen_at FROM workers WHERE id = :id" + tx.for_update, {"id": worker_id})
    if not rows:
        return _no_worker(worker_id)
    if rows[0][0] > tx.now - tx.settings.heartbeat_timeout:
        return Conflict(
            f"The worker {called(worker_id)} is alive. Only a worker that has sent no heartbeat for "
            f"{tx.settings.heartbeat_timeout / 1e6:g} seconds can be deregistered; quiet it instead.",
            worker_id=worker_id,
        )
    _lose_worker(tx, worker_id)
    return None


class Leave(msgspec.Struct, frozen=True):
    """The end of a worker. ``lost``: it did not stop gracefully, so its jobs count losses (``Job.losses``)."""

    worker_id: str
    lost: bool = False


def leave(tx: Transaction, leaves: Sequence[Leave]) -> list[None]:
    """Delete workers and release their jobs. Attempts do not count; if the worker is lost, each job counts a loss."""
    for leave in leaves:
        worker_id = leave.worker_id
        if leave.lost:
            _lose_worker(tx, worker_id)
            continue
        release_jobs_of(tx, worker_id)
        confirm_ends_of_worker(tx, worker_id)
        _forget(tx, worker_id, "shutdown")
    settle(tx)
    return [None for _ in leaves]


def list_workers(tx: Transaction, requests: Sequence[None]) -> list[list[KnownWorker]]:
    """Return all workers, those seen last first, for each request."""
    rows = tx.execute(f"SELECT {_WORKER_COLUMNS}, abilities FROM workers ORDER BY last_seen_at DESC, id")
    workers = [_worker(tx, row) for row in rows]
    return [workers for _ in requests]


@for_each
def find_workers(tx: Transaction, id: str) -> KnownWorker | OjsterError:
    """Return the worker with each id, or a `NotFound`."""
    rows = tx.execute(f"SELECT {_WORKER_COLUMNS}, abilities FROM workers WHERE id = :id", {"id": id})
    return _worker(tx, rows[0]) if rows else _no_worker(id)


def reap_silent_workers(tx: Transaction) -> int | None:
    """Release the jobs of workers with overdue heartbeats; return when the next worker becomes overdue, if any."""
    horizon = tx.lease_horizon  # a worker is silent as well while nothing can be written
    deadline = horizon.ended_by - tx.settings.heartbeat_timeout
    # A locked worker sends a heartbeat just now, or another server reaps it. Waiting would keep the jobs of all other
    # silent workers from running again.
    for (worker_id,) in tx.execute(
        "SELECT id FROM workers WHERE last_seen_at <= :deadline" + tx.skip_locked, {"deadline": deadline}
    ):
        if (seen := _last_report(tx, worker_id, deadline)) is None:
            _lose_worker(tx, worker_id)
        else:
            tx.execute("UPDATE workers SET last_seen_at = :seen WHERE id = :id", {"seen": seen, "id": worker_id})
            note_last_report(tx, worker_id, seen)
    ((oldest,),) = tx.execute("SELECT min(last_seen_at) FROM workers")
    return None if oldest is None else horizon.next_expiry(oldest + tx.settings.heartbeat_timeout)


def died_with_their_workers(tx: Transaction, jobs: Sequence[Job]) -> set[str]:
    """Return the ids of jobs whose leases have expired after their workers had been silent for long.

    A lease may end before its worker counts as lost, or at the same moment, as it does with the defaults of both. A
    worker that lives sends several heartbeats in a lease, so half of the heartbeat timeout without one is its death.
    """
    before = tx.now - tx.settings.heartbeat_timeout // 2
    silent = {
        worker_id
        for worker_id in {job.worker_id for job in jobs}
        if tx.execute(
            "SELECT 1 FROM workers WHERE id = :id AND last_seen_at <= :before", {"id": worker_id, "before": before}
        )
    }
    died = [job for job in jobs if job.worker_id in silent]
    for job in died:
        note_expired_lease(tx, job.worker_id or "", job)
    return {job.id for job in died}


REPORTING_GRACE_US: Final = 10 * SECOND
"""Time that workers get to report to a server that has just started, in microseconds."""


def give_time_to_report(tx: Transaction, requests: Sequence[None]) -> list[int]:
    """Let no lease of a worker end, and no worker be lost, for ``REPORTING_GRACE_US``; return the number of leases.

    While the server was away, workers could neither report nor extend their leases.
    """
    until = tx.now + REPORTING_GRACE_US
    held = tx.execute(
        """
        UPDATE jobs
        SET due_at = :until
        WHERE state = 'active' AND due_at < :until AND worker_id IS NOT NULL
        RETURNING seq
        """,
        {"until": until},
    )
    tx.execute(
        "UPDATE workers SET last_seen_at = :seen WHERE last_seen_at < :seen",
        {"seen": until - tx.settings.heartbeat_timeout},
    )
    tx.expect(until)
    return [len(held) for _ in requests]


def _last_report(tx: Transaction, worker_id: str, since: int) -> int | None:
    """Return when a worker has last fetched or completed a job after ``since``; ``None``: it has not.

    Both are signs of life. They are looked up in the jobs, before a worker counts as lost, because a note of each would
    cost every fetch a statement.

    Spec: ojs-worker-protocol 6
    """
    times = [job.started_at for job in _jobs_held_by(tx, worker_id) if job.started_at and job.started_at > since]
    rows = tx.execute(
        """
        SELECT max(finished_at)
        FROM jobs
        WHERE state = 'completed'
            AND dead = 0
            AND finished_at > :since
            AND node IS NULL
            AND due_at IS NULL
            AND worker_id = :worker_id
        """,
        {"since": since, "worker_id": worker_id},
    )
    times += [at for (at,) in rows if at is not None]
    return max(times, default=None)


def _lose_worker(tx: Transaction, worker_id: str) -> None:
    """Delete a worker whose heartbeats stopped; the attempts of its jobs end, and each job counts a loss.

    Losses do not count towards ``max_attempts``: see ``fail_lost_attempts``.
    """
    held = _jobs_held_by(tx, worker_id)
    lock_with(tx, held)
    fail_lost_attempts(tx, [(job, death_of(worker_id)) for job in held], Loss.WORKER)
    confirm_ends_of_worker(tx, worker_id)
    settle(tx)
    note_loss(tx, worker_id, held)
    _forget(tx, worker_id, "error", "its heartbeats stopped")


def _forget(tx: Transaction, worker_id: str, reason: Literal["shutdown", "error"], message: str | None = None) -> None:
    if tx.execute("DELETE FROM workers WHERE id = :id RETURNING id", {"id": worker_id}):
        tx.emit_about("worker.stopped", worker_id, worker_id=worker_id, reason=reason, message=message)


def release_jobs_of(tx: Transaction, worker_id: str) -> None:
    """Release the jobs of a worker without counting their attempts. The caller must then call ``settle``."""
    held = _jobs_held_by(tx, worker_id)
    for job in held:
        job.attempt -= 1
    make_available(tx, held)


def _jobs_held_by(tx: Transaction, worker_id: str) -> list[Job]:
    # A report that arrives now counts if it was first; else it finds that its attempt has ended.
    rows = tx.execute(f"SELECT {JOB_COLUMNS} {HELD_BY_WORKER}{tx.for_update}", {"worker_id": worker_id})
    return [Job(*row) for row in rows]


def _worker(tx: Transaction, row: tuple[Any, ...]) -> KnownWorker:
    *columns, said = row
    rule = worker_rules_by_id(tx).get(row[0])
    abilities = (PLAIN if said is None else decode_abilities(said)).under(rule)
    return msgspec.structs.replace(
        KnownWorker(*columns),
        queues=msgspec.json.decode(row[5], type=list[str]),
        labels=msgspec.json.decode(row[6], type=list[str]),
        provides={name: list(values) for name, values in abilities.provided.facts.items()},
        enabled=rule is None or rule.enabled,
    )


def _no_worker(worker_id: str) -> NotFound:
    id = called(worker_id)
    return NotFound(f"There is no worker {id}.", resource_type="worker", resource_id=id)
