"""Execution of reactions, one after the other, in the transaction of the event.

A failed reaction is recorded in the history of its job. It never undoes the event. Whether the caller may declare a
reaction is checked when the job is pushed (``Scope.check_contents``). What it creates belongs to its creator.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Final

import msgspec

from ojster.collections.collect import Collect
from ojster.collections.outputs import (
    COLLECTED,
    collect_all,
    collect_outputs,
    lookup_resolver,
    note_failure,
    reference_resolver,
    run_reaction,
    workflow_of,
)
from ojster.core.errors import OjsterError
from ojster.core.job import Job
from ojster.core.job_flags import LOOKUP_BIT
from ojster.core.job_flags import JobEvent as Event
from ojster.core.json_objects import Members, read_members
from ojster.core.origins import next_generation, origin_of
from ojster.core.references import Unresolvable, resolve
from ojster.events.channel import Notify
from ojster.events.notifications import notify
from ojster.events.reaction_rules import Action, Enqueue, StartWorkflow, reactions_of
from ojster.insight.task_history import record_all
from ojster.insight.task_values import Record
from ojster.jobs.authorship import creators_of, sign
from ojster.jobs.extension import settle
from ojster.jobs.new_job import NewJob, check_envelope, read_job
from ojster.jobs.push import admit
from ojster.jobs.scope import accepted
from ojster.queues.rules import completed
from ojster.storage.transaction import Held, Later, Transaction, TryAgain
from ojster.workflows.run.starting import Starter, start_workflow

MAX_REACTION_ROUNDS: Final = 8
"""Maximum number of rounds of reactions that trigger reactions, in one transaction."""

_OF_JOB: Final = ("args", "meta")
_OF_WORKFLOW: Final = ("params", "properties", "target")
"""Members in which references to the job are resolved; those in other members belong to the new workflow."""

_encode: Final = msgspec.json.Encoder().encode

log = logging.getLogger("ojster")


def react(tx: Transaction) -> None:
    """Carry out the reactions to the events of this transaction."""
    for _ in range(MAX_REACTION_ROUNDS):
        if not tx.effects.watched:
            return
        collect_outputs(tx)
        fired, tx.effects.watched = tx.effects.watched, []
        wanted = list(_actions(tx, fired))
        collect_all(tx, [(job, event, action) for job, event, action in wanted if isinstance(action, Collect)])
        _enqueue_all(tx, [(job, event, action) for job, event, action in wanted if isinstance(action, Enqueue)])
        record_all(tx, [(job, event, action) for job, event, action in wanted if isinstance(action, Record)])
        for job, event, action in wanted:
            if isinstance(action, StartWorkflow | Notify):  # the other kinds are carried out elsewhere
                run_reaction(tx, job, event, partial(_act, tx, job, event, action))
        settle(tx)  # a new job may have replaced a step of a workflow
    for job, event in tx.effects.watched:
        note_failure(
            tx, job, event, f"More than {MAX_REACTION_ROUNDS} reactions triggered each other. Shorten the chain."
        )
    tx.effects.watched.clear()


def _actions(tx: Transaction, fired: Sequence[tuple[Job, Event]]) -> Iterator[tuple[Job, Event, Action]]:
    """Yield the actions to carry out, in the order of the events."""
    fresh = tx.find_jobs([job.id for job, _ in fired if not job.seq])  # inserted in this transaction
    tx.load_envelopes(job for job, _ in fired if job.seq)
    for known, event in fired:
        job = fresh.get(known.id, known)
        actions = reactions_of(job.envelope).get(event, ())
        if actions and origin_of(job.envelope).generation >= tx.settings.most_generations:
            actions = _stopped(tx, job, event, actions)
        for action in actions:
            was_collected = event == "on_success" and job.id in COLLECTED(tx)
            if not (was_collected and isinstance(action, Collect)):
                yield job, event, action


def _stopped(tx: Transaction, job: Job, event: Event, actions: tuple[Action, ...]) -> tuple[Action, ...]:
    """Note that a job is too far down a line of reactions to create others; return its other actions."""
    others = tuple(action for action in actions if not isinstance(action, Enqueue | StartWorkflow))
    if len(others) < len(actions):
        limit = tx.settings.most_generations
        error = f"The job is the result of {limit} reactions in a row, the limit. They may be a loop."
        note_failure(tx, job, event, error)
    return others


def _enqueue_all(tx: Transaction, wanted: Sequence[tuple[Job, Event, Enqueue]]) -> None:
    """Push the jobs of ``enqueue`` reactions in one batch; record refusals in the history of the source job."""
    ready: list[tuple[Job, Event, NewJob]] = []
    creators = creators_of(tx, [job for job, _, _ in wanted])
    for job, event, action in wanted:
        try:
            members = _descended(job, _resolved(tx, action.job, _OF_JOB, job), "meta")
            members = completed(tx, members, job.tenant)
            new = read_job(members, tx.now, largest=tx.settings.largest_job, tenant=job.tenant)
            envelope = sign(new.envelope, creators[job.id])
            check_envelope(envelope, tx.settings.largest_job)
            flags = new.flags & ~LOOKUP_BIT  # lookups are already resolved
            new = msgspec.structs.replace(new, flags=flags, envelope=envelope)
            ready.append((job, event, new))
        except (OjsterError, Unresolvable) as error:
            note_failure(tx, job, event, str(error))
    if not ready:
        return
    try:
        with tx.savepoint():
            results = admit(tx, [[new] for _, _, new in ready])
    except TryAgain:
        raise
    except Exception:
        log.exception("batch push of jobs by reactions failed; they are pushed one by one")
        for job, event, new in ready:
            run_reaction(tx, job, event, partial(_push, tx, new))
        return
    for (job, event, _), result in zip(ready, results, strict=True):
        try:
            _accept(result)
        except OjsterError as error:
            note_failure(tx, job, event, str(error))


def _push(tx: Transaction, new: NewJob) -> None:
    (pushed,) = admit(tx, [[new]])
    _accept(pushed)


def _act(tx: Transaction, job: Job, event: Event, action: StartWorkflow | Notify) -> None:
    match action:
        case StartWorkflow():
            _start(tx, job, _resolved(tx, action.workflow, _OF_WORKFLOW, job))
        case Notify():
            notify(tx, job, event, action)


def _start(tx: Transaction, job: Job, members: Members) -> None:
    members = _descended(job, members, "metadata" if "metadata" in members or "meta" not in members else "meta")
    start_workflow(tx, members, Starter(job.tenant, created_by=creators_of(tx, [job])[job.id]))


def _accept(result: Any) -> None:
    """Raise the error if the result is one, so that the changes that led to it are undone."""
    if isinstance(result, Later):
        raise Held(result.message)
    accepted(result)


def _descended(job: Job, members: Members, name: str) -> Members:
    """Return a request with the job that led to it, in its member ``name``."""
    written = bytes(members.get(name, b"{}"))
    if written[:1] != b"{":
        return members  # which is refused
    descent = next_generation(origin_of(job.envelope), job.id)
    return members | {name: msgspec.Raw(_encode(read_members(written, name) | descent))}


def _resolved(tx: Transaction, template: Members, names: tuple[str, ...], job: Job) -> Members:
    """Return a request with its references to a job and its lookups resolved."""
    references, lookups = reference_resolver(job), lookup_resolver(tx, job.tenant, workflow_of(job))
    return {
        name: msgspec.Raw(resolve(raw, references, lookups)) if name in names else raw for name, raw in template.items()
    }
