"""Where items are: named collections, and those of workflows and jobs."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ojster.collections.items import key_of_job, key_of_workflow
from ojster.core.errors import Conflict, NotFound
from ojster.core.ids import is_workflow_id
from ojster.core.tenant import called, qualify, split, tenants_around
from ojster.jobs.messages import Holder
from ojster.jobs.queries import no_job, no_workflow
from ojster.storage.transaction import Transaction


class Place(msgspec.Struct, frozen=True):
    """A collection: named (qualified name), of a workflow, or of a job; ``tenant``: tenant scope (``None``: all).

    With a name and a job: the collection with this name of the job's tenant. With a workflow and a holder: the job of
    the workflow for which its items are changed.
    """

    name: str | None = None
    workflow_id: str | None = None
    job_id: str | None = None
    tenant: str | None = None
    holder: Holder | None = None


def find_place(tx: Transaction, place: Place, *, lock: bool = False) -> tuple[str, str]:
    """Return the key of a collection's items, and its tenant; ``lock``: to change it, which its own tenant alone may.

    Raises
    ------
    NotFound
        The collection, workflow or job does not exist.
    Conflict
        The job of the holder does not belong to the workflow.
    """
    if place.job_id is not None:
        job = (tx.lock_jobs if lock else tx.find_jobs)([place.job_id]).get(place.job_id)
        if job is None or place.tenant not in (None, job.tenant):
            raise no_job(place.job_id)
        if place.name is not None:
            name = qualify(job.tenant, called(place.name))
            return need_collection(tx, name) if lock else need_readable(tx, name), job.tenant
        return key_of_job(job.seq), job.tenant
    if place.workflow_id is not None:
        seq, tenant = _find_workflow(tx, place.workflow_id, lock=lock)
        if place.tenant not in (None, tenant):
            raise no_workflow(place.workflow_id)
        if place.holder is not None:
            _check_part(tx, place.holder.job_id, place.workflow_id, seq)
        return key_of_workflow(seq), tenant
    name = place.name or ""
    key = need_collection(tx, name) if lock else need_readable(tx, name)
    return key, split(key)[0]


def _find_workflow(tx: Transaction, id: str, *, lock: bool) -> tuple[int, str]:
    """Return the ``seq`` and the tenant of a workflow, or raise ``NotFound``."""
    if not is_workflow_id(id):
        raise no_workflow(id)
    # An item is added, or the workflow is deleted; never both: the deletion goes around the locked row.
    rows = tx.execute(
        "SELECT seq, tenant FROM workflows WHERE id = :id AND state <> 'hidden'" + (tx.for_update if lock else ""),
        {"id": id},
    )
    if not rows:
        raise no_workflow(id)
    return rows[0][0], rows[0][1]


def _check_part(tx: Transaction, job_id: str, workflow_id: str, seq: int) -> None:
    job = tx.find_jobs([job_id]).get(job_id)
    if job is None or job.workflow != seq:
        raise Conflict(f"The job {job_id} does not belong to the workflow {workflow_id}.", job_id=job_id)


def need_collection(tx: Transaction, key: str) -> str:
    """Return the key of a named collection's items, to change them; the collection stays until the transaction ends.

    Raises
    ------
    NotFound
        The collection does not exist.
    """
    # Of a deletion at the same time, one waits for the other: else the item would be left without a collection.
    if not tx.execute("SELECT name FROM collections WHERE name = :name" + tx.for_key_share, {"name": key}):
        raise no_collection(key)
    return key


def which_exist(tx: Transaction, keys: Sequence[str]) -> list[bool]:
    """Return whether there are named collections with these keys."""
    rows = tx.execute(f"SELECT name FROM collections WHERE name {tx.among_texts}", (tx.texts(keys),))
    known = {name for (name,) in rows}
    return [key in known for key in keys]


def find_readable(tx: Transaction, key: str) -> str | None:
    """Return the key of the collection that a tenant reads by a name; ``None``: there is none.

    It is the tenant's own collection, else that of the nearest workspace around it which has one and shares it.
    """
    tenant, name = split(key)
    around = [qualify(other, name) for other in tenants_around(tenant)]
    rows = tx.execute(
        f"SELECT name, shared FROM collections WHERE name IN (:key{''.join(f', :k{i}' for i in range(len(around)))})",
        {"key": key} | {f"k{i}": other for i, other in enumerate(around)},
    )
    is_shared: dict[str, int] = dict(rows)
    if key in is_shared:
        return key
    return next((other for other in around if is_shared.get(other)), None)


def need_readable(tx: Transaction, key: str) -> str:
    """Return the key of the collection that a tenant reads by a name, as ``find_readable`` does.

    Raises
    ------
    NotFound
        There is none.
    """
    readable = find_readable(tx, key)
    if readable is None:
        raise no_collection(key)
    return readable


def no_collection(key: str) -> NotFound:
    """Return the refusal for a missing collection."""
    return NotFound(f"There is no collection {called(key)!r}.", resource_type="collection", resource_id=called(key))
