"""Push of jobs: tenant limits, backpressure, checks of ids and unique keys, insertion.

Spec: ojs-core 7.1 (PUSH), ojs-unique-jobs
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Set
from itertools import groupby, islice
from operator import attrgetter
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from ojster.core.errors import Conflict, Duplicate, Forbidden, OjsterError
from ojster.core.job import Job
from ojster.core.job_flags import LOOKUP_BIT
from ojster.core.job_table import JOB_COLUMNS
from ojster.core.parsing import read_value
from ojster.core.states import JOB_STATES, UNFINISHED, JobState
from ojster.core.timestamps import format_timestamp
from ojster.jobs.authorship import find_creators
from ojster.jobs.extension import Group, hooks, settle
from ojster.jobs.models import Copies
from ojster.jobs.new_job import NewJob, Reach
from ojster.jobs.transitions import cancel_job
from ojster.jobs.versions import version_number
from ojster.storage.call import runs_first
from ojster.storage.transaction import Later, Transaction

MADE_AT_ONCE: Final = 250
"""Number of copies of a job that are made before the database is given them."""


class Pushed(msgspec.Struct, gc=False):  # a call makes a thousand: the garbage collector would look through them
    """Result of a push: the stored job, or, with ``existing``, the job that it duplicates."""

    job: Job
    existing: bool = False


@runs_first
def push(tx: Transaction, groups: Sequence[Group]) -> list[list[Pushed] | OjsterError | Later]:
    """Insert groups of jobs; return the jobs of each group, or the error for which the whole group was refused."""
    # Locked before room is taken: a push that must wait for a key runs again, and would take room each time.
    held = tx.lock_keys(_unique_keys(groups))
    refusals: list[OjsterError | None] = [_must_wait(group, held) for group in groups]
    room = iter(find_room(tx, _without(groups, refusals)))
    refusals = [refusal or next(room) for refusal in refusals]
    admitted = iter(admit(tx, _without(groups, refusals), held))
    results = [refusal or next(admitted) for refusal in refusals]
    follow_up_pushes(tx, results)
    settle(tx)  # a replaced or dropped job may belong to a workflow
    return results


def follow_up_pushes(tx: Transaction, results: Sequence[list[Pushed] | OjsterError | Later]) -> None:
    """Carry out what follows from admitted jobs for which ``find_room`` has found room."""
    for follow_up in hooks(tx).pushed:
        follow_up(tx, _queues_of_new(results))


def _queues_of_new(results: Sequence[list[Pushed] | OjsterError | Later]) -> Iterator[str]:
    """Yield the queue of each job that did not exist before."""
    for result in results:
        if isinstance(result, list):
            yield from (outcome.job.queue for outcome in result if not outcome.existing)


def find_room(tx: Transaction, groups: Sequence[Group]) -> list[OjsterError | None]:
    """Return the error for each group of jobs for which disk, tenant or queue have no capacity, else ``None``."""
    if (full := tx.refuse_growth()) is not None:
        return [full for _ in groups]
    refusals: list[OjsterError | None] = [None for _ in groups]
    # Tenants come last: they are charged for what is pushed, and not for what a full queue refuses.
    for refuse in reversed(hooks(tx).refuse_push):
        more = iter(refuse(tx, _without(groups, refusals)))
        refusals = [refusal or next(more) for refusal in refusals]
    return refusals


def _without(groups: Sequence[Group], refusals: Sequence[OjsterError | None]) -> list[Group]:
    return [group for group, refusal in zip(groups, refusals, strict=True) if refusal is None]


def _unique_keys(groups: Sequence[Group]) -> set[str]:
    return {job.unique_key for group in groups for job in group if job.unique_key is not None}


def _must_wait(group: Group, held: Set[str]) -> Later | None:
    """Return the refusal of a group if another transaction holds one of its unique keys, else ``None``."""
    if held and any(job.unique_key in held for job in group):
        return Later("Another open transaction pushes a job with the same unique key. Retry later.")
    return None


def admit(
    tx: Transaction, groups: Sequence[Group], held: Set[str] | None = None
) -> list[list[Pushed] | OjsterError | Later]:
    """Insert groups of jobs; for each group, return its jobs, or the error that kept all of them out.

    ``held``: the unique keys that others have locked, if the caller has locked the rest; ``None``: it has locked none.
    """
    others = [job for group in groups for job in group if job.model is None]  # copies have neither ids nor keys
    own_ids = [job.id for job in others if job.id_is_given]
    taken = set(tx.find_jobs(own_ids)) if own_ids else set()
    # A duplicate that another transaction has not committed is invisible, and there is no row to lock yet: the key
    # stands for it. It is tried, not awaited, because the other transaction may be a caller's, and stay open.
    held = tx.lock_keys(_unique_keys(groups)) if held is None else held
    results: list[list[Pushed] | OjsterError | Later] = []
    waiting: list[Job] = []
    rows = _Rows(tx)
    for group in groups:
        if (later := _must_wait(group, held)) is not None:
            results.append(later)
            continue
        try:
            if own_ids:
                _check_ids(group, taken)
            if isinstance(group, Copies) or any(job.unique_key for job in group):
                _insert(tx, waiting, are_alike=rows.are_alike)
                waiting = []
                rows = _Rows(tx)
                results.append(_push_copies(tx, group) if isinstance(group, Copies) else _push_unique(tx, group))
            else:
                jobs = rows.of(group)
                waiting += jobs
                results.append([Pushed(job) for job in jobs])
        except OjsterError as refusal:
            results.append(refusal)
        else:
            if own_ids:
                taken.update(job.id for job in group if job.id_is_given)
    _insert(tx, waiting, are_alike=rows.are_alike)
    return results


def _check_ids(group: Group, taken: set[str]) -> None:
    seen: set[str] = set()
    for index, new in enumerate(group):
        if new.id_is_given:
            if new.id in taken or new.id in seen:
                raise Duplicate(
                    f"A job with the id {new.id} already exists. Use another id.", existing_job_id=new.id, index=index
                )
            seen.add(new.id)


_model_of: Final = attrgetter("model")


class _Rows:
    """Makes the jobs to store of groups. Jobs of one model are copies of the first of them, as it was admitted.

    Others between them end that: to admit a job may change its queue, and the last word counts.
    """

    def __init__(self, tx: Transaction) -> None:
        self._tx = tx
        self._model: object = None
        self._first: Job | None = None
        self.are_alike = True
        """Whether all jobs are copies of one."""

    def of(self, group: Group) -> list[Job]:
        model = group[0].model if group else None
        if model is None or (len(group) > 1 and len(set(map(_model_of, group))) > 1):
            self._first, self.are_alike = None, False
            return _new_rows(self._tx, group)
        first = self._first
        if first is None or model is not self._model:
            self.are_alike = self._model is None and self.are_alike
            (first,) = _new_rows(self._tx, group[:1])
            self._model, self._first = model, first
        return [replace(first, id=new.id, envelope=new.envelope, node=new.node) for new in group]


def _new_rows(tx: Transaction, group: Group, scheduled_at: int | None = None) -> list[Job]:
    """Return the jobs to store, in their initial states; ``scheduled_at``: the time of the job that they replace."""
    jobs = [_new_row(tx, new, scheduled_at) for new in group]
    for admit_all in hooks(tx).admit:
        admit_all(tx, group, jobs)
    return jobs


def _new_row(tx: Transaction, new: NewJob, scheduled_at: int | None) -> Job:
    now = tx.now
    if scheduled_at is None:
        scheduled_at = new.scheduled_at
    job = Job(0, new.id, new.type, new.queue, "available", new.priority, 0, new.max_attempts, now)
    job.expires_at = new.expires_at
    job.timeout = new.timeout
    job.lease = new.lease
    job.unique_key = new.unique_key
    job.cron_name = new.cron_name
    job.exclusive_key = new.exclusive_key
    job.node = new.node
    job.tenant = new.tenant
    if new.version is not None:
        job.version = version_number(read_value(new.version, "version"))
    job.needs = new.needs
    job.trace_id = new.trace_id
    job.shared = new.shared
    job.flags = new.flags if new.node is None else new.flags & ~LOOKUP_BIT  # lookups of steps are already resolved
    job.envelope = new.envelope if scheduled_at == new.scheduled_at else _scheduled(new.envelope, scheduled_at or now)
    if new.suspension is not None:
        job.state = "pending"
        job.suspension = "delay" if new.suspension.ends_by_time else "complete"
        job.due_at = new.suspension.due(now, now)
    elif new.pending:
        job.state = "pending"
        job.due_at = new.expires_at
    elif scheduled_at is not None and scheduled_at > now:
        job.state = "scheduled"
        job.due_at = scheduled_at
    else:
        job.enqueued_at = now
        job.due_at = new.expires_at
    return job


def _scheduled(envelope: bytes, scheduled_at: int) -> bytes:
    """Return the envelope of a job that keeps the time of the job which it replaces."""
    members = msgspec.json.decode(envelope, type=dict[str, msgspec.Raw])
    return msgspec.json.encode(members | {"scheduled_at": format_timestamp(scheduled_at)})


def _insert(tx: Transaction, jobs: Sequence[Job], *, are_alike: bool = False) -> None:
    """Insert jobs, and record their effects. ``are_alike``: whether only their ids and envelopes differ."""
    if not jobs:
        return
    tx.insert_jobs(jobs, are_alike=are_alike)
    _note_new(tx, jobs, are_alike=are_alike)


def _push_copies(tx: Transaction, copies: Copies) -> list[Pushed]:
    """Insert copies of a job: the database inserts a part of them while the next one is made."""
    (first,) = _new_rows(tx, copies[:1])
    made = (replace(first, id=id, envelope=envelope) for id, envelope in copies.made())
    jobs: list[Job] = []
    while part := list(islice(made, MADE_AT_ONCE)):
        tx.insert_jobs(part, are_alike=True)
        jobs += part
    _note_new(tx, jobs, are_alike=True)
    return [Pushed(job) for job in jobs]


def _note_new(tx: Transaction, jobs: Sequence[Job], *, are_alike: bool) -> None:
    """Record the effects of jobs that were inserted."""
    for alike in [jobs] if are_alike else [list(alike) for _, alike in groupby(jobs, key=_what_follows)]:
        _record_new(tx, alike)
    ensure_queues(tx, {job.queue for job in (jobs[:1] if are_alike else jobs)})


_what_follows: Final = attrgetter("queue", "tenant", "type", "state", "due_at", "flags", "trace_id")
"""What the effects of a new job depend on."""


def _record_new(tx: Transaction, jobs: Sequence[Job]) -> None:
    """Record the effects of new jobs on whose ids alone these effects differ."""
    first = jobs[0]
    JOB_STATES.check(None, first.state)
    tx.count(first.queue, first.tenant, first.state, len(jobs))
    tx.expect(first.due_at)
    data: dict[str, Any] = {"from": None, "to": first.state}
    if first.state == "available":
        tx.make_fetchable(*jobs)
        tx.emit_together("job.enqueued", jobs, data)
    elif first.state == "scheduled":
        tx.emit_together("job.scheduled", jobs, {"scheduled_at": first.due_at, **data})
    else:
        tx.emit_together("job.pending", jobs, data)
    if first.flags:
        for job in jobs:
            tx.note_event(job, "on_creation")
            if job.node is not None:
                tx.note_event(job, "on_unblock")


def ensure_queues(tx: Transaction, names: Iterable[str]) -> None:
    """Insert queues with these names, unless they exist."""
    if tx.memory.is_callers:
        return  # others would wait for the rows until the caller's transaction ends: Transaction.tidy adds them
    tx.execute_many(
        "INSERT INTO queues (name, created_at) VALUES (?, ?) ON CONFLICT (name) DO NOTHING",
        [(name, tx.now) for name in sorted(names)],
    )


def _push_unique(tx: Transaction, group: Group) -> list[Pushed]:
    if len(group) == 1 and not _replaces(group[0]):
        return [_push_one_unique(tx, group[0], 0)]
    with tx.savepoint():  # a job that a queue refuses replaces nothing
        return [_push_one_unique(tx, new, index) for index, new in enumerate(group)]


def _replaces(new: NewJob) -> bool:
    return new.unique is not None and new.unique.on_conflict.startswith("replace")


def _push_one_unique(tx: Transaction, new: NewJob, index: int) -> Pushed:
    """Insert a job unless its unique key is taken. Check and insert are one transaction, so uniqueness is strict."""
    policy = new.unique
    scheduled_at = None
    if policy is not None and (others := _duplicates(tx, new)):
        newest = others[0]
        if new.reach is not None:
            _check_reach(tx, new.reach, others, policy.on_conflict, index)
        match policy.on_conflict:
            case "ignore":
                tx.load_envelopes([newest])
                return Pushed(newest, existing=True)
            case "reject":
                raise Duplicate(
                    f"A job with the same unique key already exists: {newest.id} ({newest.state}). Retry when it ends.",
                    existing_job_id=newest.id,
                    existing_job_state=newest.state,
                    unique_key=new.unique_key,
                    index=index,
                )
            case "replace_except_schedule" if newest.state == JobState.SCHEDULED:
                scheduled_at = newest.due_at
        replaced = [other for other in others if other.state in UNFINISHED]
        if tx.memory.is_callers:
            _refuse_steps(replaced)
        for other in replaced:
            cancel_job(tx, other)
    (job,) = _new_rows(tx, [new], scheduled_at)
    _insert(tx, [job])
    return Pushed(job)


def _check_reach(tx: Transaction, reach: Reach, others: Sequence[Job], on_conflict: str, index: int) -> None:
    """Raise a refusal that tells nothing of jobs with the same unique key if the caller may not touch them."""
    if not all(reach.access.covers(other.queue) for other in others):
        raise Duplicate("A job with the same unique key exists in a queue that the token does not cover.", index=index)
    if not reach.only_own or not on_conflict.startswith("replace"):
        return
    (creators,) = find_creators(tx, [tuple(other.id for other in others)])
    for other in others:
        if creators[other.id] != reach.access.who:
            raise Forbidden(
                f"The job {other.id} with the same unique key was created by another; {reach.access.who!r} may replace "
                "only its own. Ask an owner."
            )


def _refuse_steps(jobs: Sequence[Job]) -> None:
    """Raise the refusal of a push in a caller's transaction that would replace a step of a workflow.

    It would lock the workflow, and so keep others waiting, for as long as that transaction is open.
    """
    if steps := [job.id for job in jobs if job.node is not None]:
        raise Conflict(
            f"The job {steps[0]} is a step of a workflow, and cannot be replaced in your transaction. Enqueue the new "
            "job with 'enqueue', after the commit.",
            job_id=steps[0],
        )


def _duplicates(tx: Transaction, new: NewJob) -> list[Job]:
    """Return the jobs that the new one duplicates, newest first."""
    policy = new.unique
    assert policy is not None
    # Lock only jobs that will be replaced, because claims skip locked jobs.
    lock = tx.for_update if _replaces(new) else ""
    rows = tx.execute(
        f"SELECT {JOB_COLUMNS} FROM jobs WHERE unique_key = :key ORDER BY seq DESC" + lock,
        {"key": new.unique_key},
    )
    jobs = [Job(*row) for row in rows]
    return [
        job
        for job in jobs
        if job.state in policy.states and (policy.period is None or job.created_at + policy.period > tx.now)
    ]
