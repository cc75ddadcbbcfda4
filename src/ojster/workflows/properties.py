"""Properties of a workflow: named values that its jobs share and change."""

from __future__ import annotations

import msgspec

from ojster.core.errors import Conflict, InvalidRequest, OjsterError, PayloadTooLarge
from ojster.core.job import NODE_BITS, Job
from ojster.core.property_values import MAX_PROPERTIES, Changes, Property, PropertyConflict, check_changes
from ojster.jobs.leases import refusal_of
from ojster.jobs.messages import Holder
from ojster.storage.call import for_each, returns_refusal
from ojster.storage.transaction import Transaction
from ojster.workflows.stored_workflow import get_workflow


class PropertyChange(msgspec.Struct, frozen=True):
    """A request to change the properties of a workflow.

    Parameters
    ----------
    job_id, worker_id, attempt:
        Job of the workflow that makes the change; refused if the worker has lost its lease. ``None``: no lease is
        checked.
    """

    workflow_id: str
    changes: Changes
    job_id: str | None = None
    worker_id: str | None = None
    attempt: int | None = None


@for_each
@returns_refusal
def read_all(tx: Transaction, id: str) -> dict[str, Property]:
    """Return the properties of each workflow, by name."""
    return _read(tx, get_workflow(tx, id).seq)


@for_each
@returns_refusal
def change(tx: Transaction, item: PropertyChange) -> dict[str, Property]:
    """Change properties; return all properties of the workflow, or the reason why the change was refused."""
    if item.job_id is None and (item.worker_id is not None or item.attempt is not None):
        raise InvalidRequest("'worker_id' and 'attempt' require a 'job_id'.", field="job_id")
    if item.job_id is not None:
        job = tx.lock_jobs([item.job_id]).get(item.job_id)
        if refusal := refusal_of(job, Holder(item.job_id, item.worker_id, item.attempt)):
            raise refusal
    # Versions are compared and set under this lock; without it, two changes could both follow the same version.
    workflow = get_workflow(tx, item.workflow_id, lock=True)
    if item.job_id is not None and (job is None or job.workflow != workflow.seq):
        raise Conflict(f"The job {item.job_id} does not belong to the workflow {workflow.id}.", job_id=item.job_id)
    if workflow.finished_at is not None:
        raise Conflict(
            f"The workflow {workflow.id} is {workflow.state}; its properties can no longer be changed.",
            workflow_id=workflow.id,
            current_state=workflow.state,
        )
    apply(tx, workflow.seq, item.changes)
    return _read(tx, workflow.seq)


def refusal_of_changes(tx: Transaction, job: Job, changes: Changes | None) -> OjsterError | None:
    """Change the properties of a job's workflow at the end of its attempt; return the error if that is refused."""
    if changes is None:
        return None
    if job.node is None:
        return Conflict(f"The job {job.id} does not belong to a workflow with properties.", job_id=job.id)
    try:
        check_changes(changes)
        apply(tx, job.node >> NODE_BITS, changes)
    except OjsterError as refusal:
        return refusal
    return None


def apply(tx: Transaction, workflow: int, changes: Changes) -> None:
    """Change the properties of a workflow that the caller has locked.

    Raises
    ------
    PropertyConflict
        A property has a different version than expected.
    PayloadTooLarge
        The workflow would have more than ``MAX_PROPERTIES`` properties.
    """
    rows = tx.execute(
        "SELECT name, version, value IS NOT NULL FROM workflow_properties WHERE workflow = :workflow",
        {"workflow": workflow},
    )
    known = {name: (version, bool(there)) for name, version, there in rows}
    for name, version in changes.expected.items():
        actual, there = known.get(name, (0, False))
        if version != (actual if there else 0):
            raise PropertyConflict(
                f"The property {name!r} has version {actual if there else 0}, not the expected version {version}. "
                "Read it again and repeat the change.",
                property=name,
                current_version=actual if there else 0,
                expected_version=version,
            )
    names = {name for name, (_, there) in known.items() if there}
    if len((names | changes.set.keys()) - set(changes.delete)) > MAX_PROPERTIES:
        raise PayloadTooLarge(f"A workflow has at most {MAX_PROPERTIES} properties.", limit=MAX_PROPERTIES)
    latest = max((version for version, _ in known.values()), default=0)
    values = {name: bytes(value) for name, value in changes.set.items()}
    values_or_none = values | {name: None for name in changes.delete if name in names}
    tx.execute_many(
        """
        INSERT INTO workflow_properties (workflow, name, value, version)
        VALUES (?, ?, ?, ?)
        ON CONFLICT (workflow, name) DO UPDATE SET value = excluded.value, version = excluded.version
        """,
        [(workflow, name, value, latest + 1) for name, value in values_or_none.items()],
    )
    # Versions are numbered per workflow, so one row of a deleted property is enough to never reuse a version.
    tx.execute(
        "DELETE FROM workflow_properties WHERE workflow = :workflow AND value IS NULL AND version <= :latest",
        {"workflow": workflow, "latest": latest if values_or_none else latest - 1},
    )


def _read(tx: Transaction, workflow: int) -> dict[str, Property]:
    rows = tx.execute(
        """
        SELECT name, value, version
        FROM workflow_properties
        WHERE workflow = :workflow AND value IS NOT NULL
        ORDER BY name
        """,
        {"workflow": workflow},
    )
    return {name: Property(msgspec.Raw(value), version) for name, value, version in rows}
