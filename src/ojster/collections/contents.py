"""What is in collections, and what was? Items that are added, replaced, removed and found. (seed 003: collections)"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from ojster.collections.items import (
    ARTIFACTS,
    INTERNAL,
    MOST_FOUND,
    Item,
    Kind,
    Lookup,
    Lookups,
    Matching,
    NewItem,
    Provided,
    is_internal,
    is_of_job,
    key_of,
    key_of_job,
    key_of_workflow,
)
from ojster.core.errors import Conflict, InvalidRequest, NotFound, OjsterError
from ojster.core.job import Job
from ojster.core.states import JobState
from ojster.core.tenant import called, qualify, split
from ojster.core.timestamps import format_timestamp
from ojster.files.file import RESULT, FileRef
from ojster.files.records import let_go, refer
from ojster.jobs.queries import no_job
from ojster.storage.system import FORGOTTEN, drop
from ojster.storage.transaction import ColumnType, Row, Transaction
from ojster.workflows.graph import find_workflow, no_workflow
from ojster.workflows.node import NUMBER_BITS

MOST_ITEMS: Final = 10_000
"""How many items a workflow's own collection may hold."""

AT_ONCE: Final = 200
"""How many names stand in one statement."""

_COLUMNS: Final = (
    "id, collection, name, kind, data, created_at, category, job_id, created_by, removed_at, removed_by, file"
)


class Collection(msgspec.Struct, frozen=True):
    """A named collection, and how many items are in it."""

    name: str
    items: int
    created_at: str
    description: str | None = None
    created_by: str | None = None


class NewCollection(msgspec.Struct, frozen=True):
    """A collection that is to be made; ``name`` as it is kept."""

    name: str
    description: str | None = None
    created_by: str | None = None


def create_collections(tx: Transaction, new: Sequence[NewCollection]) -> list[Collection | OjsterError]:
    """Make collections; for each return it, or that there is one of its name."""
    results: list[Collection | OjsterError] = []
    for one in new:
        rows = tx.execute("SELECT name FROM collections WHERE name = :name", {"name": one.name})
        if rows:
            results.append(
                Conflict(f"There is a collection {called(one.name)!r} already.", collection=called(one.name))
            )
            continue
        tx.execute(
            "INSERT INTO collections (name, description, created_at, created_by) "
            "VALUES (:name, :description, :now, :by)",
            {"name": one.name, "description": one.description, "now": tx.now, "by": one.created_by},
        )
        tx.emit_about("collection.created", one.name, collection=one.name)
        results.append(Collection(called(one.name), 0, format_timestamp(tx.now), one.description, one.created_by))
    return results


def list_collections(tx: Transaction, requests: Sequence[None]) -> list[list[tuple[str, Collection]]]:
    """Return all named collections by name, each with the name under which it is kept, for each request."""
    rows = tx.execute(
        "SELECT name, (SELECT count(*) FROM collection_items AS i WHERE i.collection = collections.name "
        "AND i.removed_at IS NULL), created_at, description, created_by FROM collections ORDER BY name"
    )
    found = [
        (name, Collection(called(name), items, format_timestamp(at), description, by))
        for name, items, at, description, by in rows
    ]
    return [found for _ in requests]


class Removal(msgspec.Struct, frozen=True):
    """A collection that is to go; with ``force`` although something is in it."""

    name: str
    force: bool = False


def delete_collections(tx: Transaction, removals: Sequence[Removal]) -> list[OjsterError | None]:
    """Delete collections with all that they hold or have held."""
    results: list[OjsterError | None] = []
    for one in removals:
        rows = tx.execute("SELECT name FROM collections WHERE name = :name" + tx.for_update, {"name": one.name})
        held = _count(tx, one.name) if rows else 0
        if not rows:
            results.append(no_collection(one.name))
        elif held and not one.force:
            results.append(Conflict(f"The collection {called(one.name)!r} holds {held} items.", items=held))
        else:
            _let_go(
                tx,
                tx.execute(
                    "DELETE FROM collection_items WHERE collection = :name RETURNING job_id, file_id",
                    {"name": one.name},
                ),
            )
            tx.execute("DELETE FROM collections WHERE name = :name", {"name": one.name})
            tx.emit_about("collection.deleted", one.name, collection=one.name)
            results.append(None)
    return results


class Place(msgspec.Struct, frozen=True):
    """A collection: a named one, as it is kept, or that of a workflow or job; and whose view it is (``None``: all).

    A named one with a job is that which the job's workspace calls so.
    """

    name: str | None = None
    workflow_id: str | None = None
    job_id: str | None = None
    tenant: str | None = None


class Addition(msgspec.Struct, frozen=True):
    """Something that somebody wants to put into a collection."""

    place: Place
    item: NewItem
    by: str | None = None


def add(tx: Transaction, additions: Sequence[Addition]) -> list[Item | OjsterError]:
    """Put items into collections; for each return it, or why it was refused."""
    results: list[Item | OjsterError] = []
    for one in additions:
        try:
            key, tenant = find_place(tx, one.place, lock=True)
            _check_runs(tx, one.place)
            results.append(put(tx, key, tenant, one.item, by=one.by))
        except OjsterError as refusal:
            results.append(refusal)
    return results


class Taking(msgspec.Struct, frozen=True):
    """An item that somebody wants to remove."""

    place: Place
    name: str
    by: str | None = None


def remove(tx: Transaction, takings: Sequence[Taking]) -> list[Item | OjsterError]:
    """Remove items, of which it stays known that they were there; for each return it, or that there is none."""
    results: list[Item | OjsterError] = []
    for one in takings:
        try:
            key, _ = find_place(tx, one.place, lock=True)
        except OjsterError as refusal:
            results.append(refusal)
            continue
        found = _remove(tx, key, one.name, one.by)
        results.append(_no_item(key, one.name) if found is None else found)
    return results


class Question(msgspec.Struct, frozen=True):
    """Which items of a collection somebody wants to see: those that match, and, if so asked, those that were there."""

    place: Place
    lookup: Lookup
    history: bool = False


def show(tx: Transaction, questions: Sequence[Question]) -> list[list[Item] | OjsterError]:
    """Return the items that match, in the order in which they were added; for each question."""
    results: list[list[Item] | OjsterError] = []
    for one in questions:
        try:
            key, _ = find_place(tx, one.place)
            results.append(_select(tx, key, one.lookup, history=one.history))
        except OjsterError as refusal:
            results.append(refusal)
    return results


def find_place(tx: Transaction, place: Place, *, lock: bool = False) -> tuple[str, str]:
    """Return under which name the items of a collection are kept, and whose it is.

    Raises
    ------
    NotFound
        There is no such collection, workflow or job.
    """
    if place.job_id is not None:
        job = (tx.lock_jobs if lock else tx.find_jobs)([place.job_id]).get(place.job_id)
        if job is None or place.tenant not in (None, job.tenant):
            raise no_job(place.job_id)
        if place.name is not None:
            return need_collection(tx, qualify(job.tenant, called(place.name))), job.tenant
        return key_of_job(job.seq), job.tenant
    if place.workflow_id is not None:
        workflow = find_workflow(tx, place.workflow_id, lock=lock)
        if workflow is None or place.tenant not in (None, workflow.tenant):
            raise no_workflow(place.workflow_id)
        return key_of_workflow(workflow.seq), workflow.tenant
    name = place.name or ""
    return need_collection(tx, name), split(name)[0]


def _check_runs(tx: Transaction, place: Place) -> None:
    """Refuse that something is said to be of a job that does not run."""
    if place.job_id is not None and place.name is None:
        state = tx.find_jobs([place.job_id])[place.job_id].state
        if state != JobState.ACTIVE:
            raise Conflict(f"The job {place.job_id} is {state}; only one that runs brings something about.")


def need_collection(tx: Transaction, key: str) -> str:
    """Return the name under which the items of a named collection are kept, if there is one.

    Raises
    ------
    NotFound
        There is none.
    """
    if not tx.execute("SELECT name FROM collections WHERE name = :name", {"name": key}):
        raise no_collection(key)
    return key


# What happens inside of other transactions


def put(tx: Transaction, key: str, tenant: str, new: NewItem, *, job: Job | None = None, by: str | None = None) -> Item:
    """Put an item into a collection.

    Parameters
    ----------
    tenant:
        Whose collection it is: its file must be theirs.
    job:
        Which job does so; else ``by`` says who.

    Raises
    ------
    Conflict
        There is one of its name, and it is not to be replaced; or there are too many; or its file is not complete.
    NotFound
        There is no such file.
    """
    file = _file_of(tx, new, tenant)
    replaced = _remove(tx, key, new.name, by) if new.replace else None
    if not new.replace and tx.execute(f"{_ACTIVE} AND name = :name", {"key": key, "name": new.name}):
        message = f"The collection {_called(key)!r} has an item {new.name!r}; remove it, or replace it."
        raise Conflict(message, item=new.name)
    if replaced is None:
        _check_room(tx, key, 1)
    tx.insert_rows("collection_items", _TYPES, [_row(tx, key, new, file, job, by)])
    (item,) = tx.execute(f"{_ACTIVE} AND name = :name", {"key": key, "name": new.name})
    return _item(item)


def put_all(tx: Transaction, items: Sequence[tuple[str, NewItem, Job]]) -> None:
    """Put items of different names into collections, each in the place of what has its name there.

    Raises
    ------
    Conflict
        There would be too many.
    NotFound
        There is no such file.
    """
    files = [_file_of(tx, new, job.tenant) for _, new, job in items]
    names: dict[str, list[str]] = {}
    for key, new, _ in items:
        names.setdefault(key, []).append(new.name)
    for key, wanted in names.items():
        replaced = 0
        for first in range(0, len(wanted), AT_ONCE):
            some = wanted[first : first + AT_ONCE]
            rows = tx.execute(
                "UPDATE collection_items SET removed_at = ? WHERE collection = ? AND removed_at IS NULL "
                f"AND name IN ({', '.join('?' * len(some))}) RETURNING job_id, file_id",
                (tx.now, key, *some),
            )
            replaced += len(rows)
            _let_go(tx, rows)
        _check_room(tx, key, len(wanted) - replaced)
    rows = [_row(tx, key, new, file, job, None) for (key, new, job), file in zip(items, files, strict=True)]
    tx.insert_rows("collection_items", _TYPES, rows)


def _file_of(tx: Transaction, new: NewItem, tenant: str) -> FileRef | None:
    """Return the file of an artifact, called as whoever adds it calls it."""
    if new.file_id is None:
        return None
    file = refer(tx, new.file_id, tenant)
    filename, content_type = new.filename or file.filename, new.content_type or file.content_type
    return msgspec.structs.replace(file, filename=filename, content_type=content_type)


_TYPES: Final[dict[str, ColumnType]] = {
    "collection": "text",
    "name": "text",
    "kind": "text",
    "category": "text",
    "data": "bytea",
    "job_id": "uuid",
    "workflow": "bigint",
    "created_at": "bigint",
    "created_by": "text",
    "file_id": "text",
    "file": "bytea",
}


def _row(
    tx: Transaction, key: str, new: NewItem, file: FileRef | None, job: Job | None, by: str | None
) -> tuple[Any, ...]:
    kind: Kind = "data" if file is None else "artifact"
    is_elsewhere = job is not None and job.node is not None and not is_internal(key)
    workflow = (job.node or 0) >> NUMBER_BITS if job is not None and is_elsewhere else None
    who = by if job is None else f"job {job.id}"
    job_id = None if job is None or is_of_job(key) else job.id  # what is its own does not keep a job
    described = None if file is None else msgspec.json.encode(file)
    return (key, new.name, kind, new.category, new.data, job_id, workflow, tx.now, who, new.file_id, described)


def _check_room(tx: Transaction, key: str, more: int) -> None:
    """Refuse more items than the own collection of a workflow or a job may hold."""
    is_own = is_internal(key) or is_of_job(key)
    if more > 0 and is_own and _count(tx, key) + more > MOST_ITEMS:
        raise Conflict(f"The collection {_called(key)!r} would hold more than {MOST_ITEMS} items.", items=MOST_ITEMS)


def promise(tx: Transaction, workflow: int, promises: Sequence[tuple[str, Provided]]) -> None:
    """Note in a workflow's collection what its steps will bring, as far as its name is known and it is not there."""
    rows = [
        (key_of_workflow(workflow), one.name, one.category, b"null", tx.now, f"step {place}")
        for place, one in promises
        if "{" not in one.name
    ]
    tx.execute_many(
        "INSERT INTO collection_items (collection, name, kind, category, data, created_at, created_by) "
        "VALUES (?, ?, 'promise', ?, ?, ?, ?) "
        "ON CONFLICT (collection, name) WHERE removed_at IS NULL DO NOTHING",
        rows,
    )


def look_up(tx: Transaction, lookups: Lookups, tenant: str, workflow: int | None) -> list[Item]:
    """Return the items that lookups mean, of each in the order in which they were added.

    Raises
    ------
    NotFound
        One that must be there is not, or is only promised.
    InvalidRequest
        There are too many.
    """
    found: list[Item] = []
    for lookup in lookups:
        key = key_of(tenant, lookup.collection, workflow)
        items = [item for item in _select(tx, key, lookup) if item.kind != "promise"]
        if lookup.single and not items:
            raise _no_item(key, lookup.name or "")
        found += items
    if len(found) > MOST_FOUND:
        raise InvalidRequest(f"A lookup finds {len(found)} items; at most {MOST_FOUND} are allowed.", field="$lookup")
    return found


_ACTIVE: Final = f"SELECT {_COLUMNS} FROM collection_items WHERE collection = :key AND removed_at IS NULL"
_REMOVED: Final = f"SELECT {_COLUMNS} FROM collection_items WHERE collection = :key AND removed_at IS NOT NULL"


def _select(tx: Transaction, key: str, lookup: Lookup, *, history: bool = False) -> list[Item]:
    parameters: dict[str, Any] = {"key": key, "most": MOST_FOUND + 1}
    condition = ""
    if lookup.name is not None:
        condition, parameters = " AND name = :name", parameters | {"name": lookup.name}
    if lookup.name_startswith:
        condition += " AND name >= :start AND name < :end"
        parameters |= {"start": lookup.name_startswith, "end": lookup.name_startswith + "\U0010ffff"}
    if lookup.category is not None:
        condition, parameters = f"{condition} AND category = :category", parameters | {"category": lookup.category}
    query = _ACTIVE + condition
    if history:  # what is there, and what was, each have an index of their own
        query += f" UNION ALL {_REMOVED}{condition}"
    is_exact = not (lookup.name_endswith or lookup.name_contains or lookup.data)
    rows = tx.execute(f"{query} ORDER BY id{' LIMIT :most' * is_exact}", parameters)
    items = [_item(row) for row in rows]
    return [item for item in items if lookup.matches(item.name, item.category, item.data)][: MOST_FOUND + 1]


def copy_items(tx: Transaction, source: str, target: str, by: str) -> None:
    """Put what is in the own collection of a job, or of one that is remembered, into another, in place of all there."""
    empty(tx, [target])
    copied = tx.execute(
        "INSERT INTO collection_items (collection, name, kind, category, data, created_at, created_by, file_id, file) "
        "SELECT :target, name, kind, category, data, :now, :by, file_id, file FROM collection_items "
        "WHERE collection = :source AND removed_at IS NULL RETURNING file_id",
        {"target": target, "now": tx.now, "by": by, "source": source},
    )
    let_go(tx, [file_id for (file_id,) in copied if file_id is not None])  # they are of interest, from now on


def empty(tx: Transaction, keys: Sequence[str]) -> None:
    """Remove all that is in collections; their history keeps it."""
    for first in range(0, len(keys), AT_ONCE):
        some = keys[first : first + AT_ONCE]
        rows = tx.execute(
            f"UPDATE collection_items SET removed_at = ? WHERE collection IN ({', '.join('?' * len(some))}) "
            "AND removed_at IS NULL RETURNING job_id, file_id",
            (tx.now, *some),
        )
        _let_go(tx, rows)


def delete_items(tx: Transaction, keys: Sequence[str]) -> None:
    """Delete all that was ever in collections that belong to something which is deleted."""
    for first in range(0, len(keys), AT_ONCE):
        some = keys[first : first + AT_ONCE]
        marks = ", ".join("?" * len(some))
        rows = tx.execute(f"DELETE FROM collection_items WHERE collection IN ({marks}) RETURNING job_id, file_id", some)
        _let_go(tx, [(None, file_id) for _, file_id in rows])


def artifacts_of(tx: Transaction, job: Job, matching: Matching) -> list[Item]:
    """Return the artifacts of a job that are like that, in the order in which they were added."""
    return [item for item in _select(tx, key_of_job(job.seq), matching.lookup) if item.name != RESULT]


def _remove(tx: Transaction, key: str, name: str, by: str | None) -> Item | None:
    rows = tx.execute(
        "UPDATE collection_items SET removed_at = :now, removed_by = :by "
        f"WHERE collection = :key AND name = :name AND removed_at IS NULL RETURNING {_COLUMNS}, job_id, file_id",
        {"key": key, "name": name, "now": tx.now, "by": by},
    )
    if not rows:
        return None
    _let_go(tx, [row[-2:] for row in rows])
    return _item(rows[0][:-2])


def _let_go(tx: Transaction, removed: Sequence[Row]) -> None:
    """Let go of the jobs and files, given as ``(job_id, file_id)``, to which items have referred."""
    if any(job_id is not None for job_id, _ in removed):
        drop(tx, FORGOTTEN)  # so that jobs are looked at again that were kept
    if files := [file_id for _, file_id in removed if file_id is not None]:
        let_go(tx, files)


def _count(tx: Transaction, key: str) -> int:
    ((count,),) = tx.execute(
        "SELECT count(*) FROM collection_items WHERE collection = :key AND removed_at IS NULL", {"key": key}
    )
    return int(count)


def _item(row: Row) -> Item:
    id, key, name, kind, data, created_at, category, job_id, created_by, removed_at, removed_by, file = row
    return Item(
        id,
        _called(key),
        name,
        kind,
        msgspec.Raw(data),
        format_timestamp(created_at),
        category,
        None if job_id is None else str(job_id),
        created_by,
        None if removed_at is None else format_timestamp(removed_at),
        removed_by,
        None if file is None else msgspec.json.decode(file, type=FileRef),
    )


def _called(key: str) -> str:
    if is_of_job(key):
        return ARTIFACTS
    return INTERNAL if is_internal(key) else called(key)


def no_collection(key: str) -> NotFound:
    """Return the refusal for a collection that is not there."""
    return NotFound(f"There is no collection {called(key)!r}.", resource_type="collection", resource_id=called(key))


def _no_item(key: str, name: str) -> NotFound:
    message = f"The collection {_called(key)!r} has no item {name!r}."
    return NotFound(message, resource_type="item", resource_id=name)
