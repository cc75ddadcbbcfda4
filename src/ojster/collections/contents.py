"""Collections: items that are added, replaced, removed and looked up, with their history."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from ojster.collections.items import (
    ARTIFACTS,
    INTERNAL,
    MAX_LOOKUP_ITEMS,
    Item,
    Kind,
    Lookup,
    Matching,
    NewItem,
    PromisedItem,
    is_internal,
    is_of_job,
    key_of,
    key_of_job,
    key_of_promises,
    key_of_workflow,
)
from ojster.collections.places import Place, find_place, find_readable, need_readable
from ojster.core.errors import Conflict, InvalidRequest, NotFound
from ojster.core.job import NODE_BITS, Job
from ojster.core.states import JobState
from ojster.core.tenant import called, tenants_around
from ojster.core.timestamps import format_timestamp
from ojster.files.file import RESULT, FileRef
from ojster.files.records import refer, renew_grace
from ojster.jobs.leases import check_holder
from ojster.storage.call import for_each, returns_refusal
from ojster.storage.system import RETENTION_POSITION, drop
from ojster.storage.transaction import ColumnType, Row, Transaction

MAX_ITEMS: Final = 10_000
"""Maximum number of items in the own collection of a workflow or a job."""

_COLUMNS: Final = (
    "id, collection, name, kind, data, created_at, category, job_id, created_by, removed_at, removed_by, file"
)


class Promise(msgspec.Struct, frozen=True):
    """An item that a step will provide, with the number and the place of the step in its workflow."""

    number: int
    place: str
    item: PromisedItem


class Addition(msgspec.Struct, frozen=True):
    """Request to add an item to a collection."""

    place: Place
    item: NewItem
    by: str | None = None


@for_each
@returns_refusal
def add(tx: Transaction, addition: Addition) -> Item:
    """Add items to collections; return each, or its refusal."""
    check_holder(tx, addition.place.holder)  # jobs are locked before workflows
    key, tenant = find_place(tx, addition.place, lock=True)
    _check_runs(tx, addition.place)
    return put(tx, key, tenant, addition.item, by=addition.by)


class ItemRemoval(msgspec.Struct, frozen=True):
    """Request to remove an item."""

    place: Place
    name: str
    by: str | None = None


@for_each
@returns_refusal
def remove(tx: Transaction, taking: ItemRemoval) -> Item:
    """Remove items, keep them in the history, and return each, or its refusal."""
    check_holder(tx, taking.place.holder)
    key, _ = find_place(tx, taking.place, lock=True)
    removed = _remove(tx, key, taking.name, taking.by)
    if removed is None:
        raise _no_item(key, taking.name)
    return removed


class ItemQuery(msgspec.Struct, frozen=True):
    """Request for the items of a collection that match; ``history``: removed ones too."""

    place: Place
    matching: Matching
    history: bool = False


@for_each
@returns_refusal
def show(tx: Transaction, question: ItemQuery) -> list[Item]:
    """Return the matching items in insertion order, or the refusal, for each request."""
    key, _ = find_place(tx, question.place)
    items = _select(tx, key, question.matching, history=question.history)
    if is_internal(key):
        items = sorted([*items, *_templates(tx, key, question.matching)], key=lambda item: item.id)
    return items[: MAX_LOOKUP_ITEMS + 1]


def _check_runs(tx: Transaction, place: Place) -> None:
    """Refuse to add to the own collection of a job that is not active."""
    if place.job_id is not None and place.name is None:
        state = tx.find_jobs([place.job_id])[place.job_id].state
        if state != JobState.ACTIVE:
            raise Conflict(f"Job {place.job_id} is {state}. Only an active job can add to its own collection.")


def put(tx: Transaction, key: str, tenant: str, new: NewItem, *, job: Job | None = None, by: str | None = None) -> Item:
    """Add an item to a collection.

    Parameters
    ----------
    tenant:
        Tenant of the collection, to which the item's file must belong.
    job:
        Job that adds the item; without it, ``by`` names the caller.

    Raises
    ------
    Conflict
        The name is taken and ``replace`` is false; the collection is full; or the file is incomplete.
    NotFound
        The file does not exist.
    """
    file = _file_of(tx, new, tenant)
    replaced = _remove(tx, key, new.name, by) if new.replace else None
    if not new.replace and tx.execute(f"{_ACTIVE} AND name = :name", {"key": key, "name": new.name}):
        message = f"The collection {_called(key)!r} has an item {new.name!r} already. Remove it, or replace it."
        raise Conflict(message, item=new.name)
    if replaced is None:
        _check_room(tx, key, 1)
    tx.insert_rows("collection_items", _TYPES, [_row(tx, key, new, file, job, by)])
    (item,) = tx.execute(f"{_ACTIVE} AND name = :name", {"key": key, "name": new.name})
    return _item(item)


def put_all(tx: Transaction, items: Sequence[tuple[str, NewItem, Job]]) -> None:
    """Add items with different names to collections, each in place of the item with the same name.

    Raises
    ------
    Conflict
        A collection would hold too many items.
    NotFound
        A file does not exist.
    """
    files = [_file_of(tx, new, job.tenant) for _, new, job in items]
    names: dict[str, list[str]] = {}
    for key, new, _ in items:
        names.setdefault(key, []).append(new.name)
    for key, wanted in names.items():
        replaced = tx.execute(
            f"""
            UPDATE collection_items
            SET removed_at = ?
            WHERE collection = ? AND removed_at IS NULL AND name {tx.among_texts}
            RETURNING job_id, file_id
            """,
            (tx.now, key, tx.texts(wanted)),
        )
        release_references(tx, replaced)
        _check_room(tx, key, len(wanted) - len(replaced))
    rows = [_row(tx, key, new, file, job, None) for (key, new, job), file in zip(items, files, strict=True)]
    tx.insert_rows("collection_items", _TYPES, rows)


def _file_of(tx: Transaction, new: NewItem, tenant: str) -> FileRef | None:
    """Return the file of an artifact, with the name and content type that the new item gives it."""
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
    # A job's own items do not delay its deletion, nor that of its workflow.
    is_elsewhere = job is not None and job.node is not None and not is_internal(key) and not is_of_job(key)
    workflow = (job.node or 0) >> NODE_BITS if job is not None and is_elsewhere else None
    who = by if job is None else f"job {job.id}"
    job_id = None if job is None or is_of_job(key) else job.id
    described = None if file is None else msgspec.json.encode(file)
    return (key, new.name, kind, new.category, new.data, job_id, workflow, tx.now, who, new.file_id, described)


def _check_room(tx: Transaction, key: str, more: int) -> None:
    """Refuse items beyond ``MAX_ITEMS`` in the own collection of a workflow or a job."""
    is_own = is_internal(key) or is_of_job(key)
    if more > 0 and is_own and count(tx, key) + more > MAX_ITEMS:
        raise Conflict(
            f"The collection {_called(key)!r} would hold more than {MAX_ITEMS} items. Remove items first.",
            items=MAX_ITEMS,
        )


def promise(tx: Transaction, workflow: int, promises: Sequence[Promise]) -> None:
    """Record the items that steps promise in a workflow's collection, if their names are free.

    Names with references are no names of items yet. They are kept apart, each with the node of its step, so that two
    steps may have the same, and no lookup finds them.
    """
    own, others = key_of_workflow(workflow), key_of_promises(workflow)
    templates = sum("{" in promise.item.name for promise in promises)
    room = MAX_ITEMS - count(tx, others) if templates else 0
    rows = []
    for promise in promises:
        name, category = promise.item.name, promise.item.category
        if "{" not in name:
            rows.append((own, name, category, b"null", tx.now, f"step {promise.place}"))
        elif room > 0:
            room -= 1
            rows.append((others, f"{promise.number}/{name}", category, b"null", tx.now, f"step {promise.place}"))
    tx.execute_many(
        """
        INSERT INTO collection_items (collection, name, kind, category, data, created_at, created_by)
        VALUES (?, ?, 'promise', ?, ?, ?, ?)
        ON CONFLICT (collection, name)
        WHERE removed_at IS NULL DO NOTHING
        """,
        rows,
    )


def copy_items_of_workflow(tx: Transaction, source: int, copy: int) -> None:
    """Copy the items of a workflow, and what its steps promise, for another; both are given by their ``seq``."""
    for key_of_collection in (key_of_workflow, key_of_promises):
        tx.execute(
            f"""
            INSERT INTO collection_items (collection, {_COPIED})
            SELECT :copy, {_COPIED}
            FROM collection_items
            WHERE collection = :source AND removed_at IS NULL
            ORDER BY id
            """,
            {"copy": key_of_collection(copy), "source": key_of_collection(source)},
        )


_COPIED: Final = "name, kind, category, job_id, file_id, created_at, created_by, data, file"


def forget_templates(tx: Transaction, workflow: int, number: int) -> None:
    """Delete the promises of a step with references in their names: their items have names now."""
    tx.execute(
        """
        DELETE FROM collection_items
        WHERE collection = :key AND removed_at IS NULL AND name >= :first AND name < :last
        """,
        {"key": key_of_promises(workflow), "first": f"{number}/", "last": f"{number}0"},  # '0' comes after '/'
    )


def _templates(tx: Transaction, key: str, matching: Matching) -> list[Item]:
    """Return the promises of a workflow whose names, as far as they are known, match."""
    rows = tx.execute(f"{_ACTIVE} ORDER BY id LIMIT {MAX_ITEMS}", {"key": key_of_promises(int(key.rpartition("/")[2]))})
    items = [_item((*row[:2], row[2].partition("/")[2], *row[3:])) for row in rows]
    return [item for item in items if matching.may_match(item.name, item.category)]


def look_up(tx: Transaction, lookups: tuple[Lookup, ...], tenant: str, workflow: int | None) -> list[Item]:
    """Return the items that lookups match, each lookup's in insertion order, and each item once.

    Raises
    ------
    NotFound
        A required item is missing, or only promised; or a named collection does not exist.
    InvalidRequest
        More than ``MAX_LOOKUP_ITEMS`` items match.
    """
    by_id: dict[int, Item] = {}
    for lookup in lookups:
        key = key_of(tenant, lookup.collection, workflow)
        if not is_internal(key) and tenants_around(tenant):
            key = find_readable(tx, key) or key
        matching = _select(tx, key, lookup)
        items = [item for item in matching if item.kind != "promise"]
        if lookup.single and not items:
            promised_by = next((item.created_by for item in matching), None)
            raise _no_item(key, lookup.name or "", promised_by)
        if not matching and lookup.collection != INTERNAL:
            need_readable(tx, key)  # a misspelt name would look like an empty collection
        by_id |= {item.id: item for item in items if item.id not in by_id}
    if len(by_id) > MAX_LOOKUP_ITEMS:
        raise InvalidRequest(
            f"A lookup finds {len(by_id)} items; at most {MAX_LOOKUP_ITEMS} are allowed.", field="$lookup"
        )
    return list(by_id.values())


_ACTIVE: Final = f"SELECT {_COLUMNS} FROM collection_items WHERE collection = :key AND removed_at IS NULL"

_REMOVED: Final = f"SELECT {_COLUMNS} FROM collection_items WHERE collection = :key AND removed_at IS NOT NULL"


def _select(tx: Transaction, key: str, matching: Matching, *, history: bool = False) -> list[Item]:
    parameters: dict[str, Any] = {"key": key, "most": MAX_LOOKUP_ITEMS + 1}
    condition = ""
    if matching.name is not None:
        condition, parameters = " AND name = :name", parameters | {"name": matching.name}
    if matching.name_startswith:
        condition += " AND name >= :start AND name < :end"
        parameters |= {"start": matching.name_startswith, "end": matching.name_startswith + "\U0010ffff"}
    if matching.category is not None:
        condition, parameters = f"{condition} AND category = :category", parameters | {"category": matching.category}
    query = _ACTIVE + condition
    if history:  # present and removed items each have their own index
        query += f" UNION ALL {_REMOVED}{condition}"
    is_exact = not (matching.name_endswith or matching.name_contains or matching.looks_into_data)
    rows = tx.execute(f"{query} ORDER BY id{' LIMIT :most' * is_exact}", parameters)
    items = [_item(row) for row in rows]
    return [item for item in items if matching.matches(item.name, item.category, item.data)][: MAX_LOOKUP_ITEMS + 1]


def copy_items(tx: Transaction, source: str, target: str, by: str) -> None:
    """Replace the items of the collection ``target`` by a copy of the items of ``source``."""
    empty(tx, [target])
    copied = tx.execute(
        """
        INSERT INTO collection_items (
            collection, name, kind, category, data, created_at, created_by, file_id, file
        )
        SELECT :target, name, kind, category, data, :now, :by, file_id, file
        FROM collection_items
        WHERE collection = :source AND removed_at IS NULL
        RETURNING file_id
        """,
        {"target": target, "now": tx.now, "by": by, "source": source},
    )
    renew_grace(tx, [file_id for (file_id,) in copied if file_id is not None])  # renews their grace period


def empty(tx: Transaction, keys: Sequence[str]) -> None:
    """Remove all items of collections, and keep them in the history; results of a flow's local steps stay."""
    if not keys:
        return
    rows = tx.execute(
        f"""
        UPDATE collection_items
        SET removed_at = ?
        WHERE collection {tx.among_texts}
            AND removed_at IS NULL
            AND substr(name, 1, {len(_RESULTS)}) <> '{_RESULTS}'
        RETURNING job_id, file_id
        """,
        (tx.now, tx.texts(keys)),
    )
    release_references(tx, rows)


_RESULTS: Final = f"{RESULT}/"
"""The beginning of the names of items with results of a flow's local steps, which its attempts share."""


def delete_items(tx: Transaction, keys: Sequence[str]) -> None:
    """Delete all items of collections and their history, because their owner is deleted."""
    if not keys:
        return
    for which in ("IS NULL", "IS NOT NULL"):  # each has an index of its own
        rows = tx.execute(
            f"""
            DELETE FROM collection_items
            WHERE collection {tx.among_texts} AND removed_at {which}
            RETURNING file_id
            """,
            (tx.texts(keys),),
        )
        release_references(tx, [(None, file_id) for (file_id,) in rows])


def artifacts_of(tx: Transaction, job: Job, matching: Matching) -> list[Item]:
    """Return the artifacts of a job that match, except its results, in insertion order."""
    items = _select(tx, key_of_job(job.seq), matching)
    return [item for item in items if not item.name.startswith(RESULT)]


def delete_named(tx: Transaction, key: str, prefix: str) -> None:
    """Delete the items of a collection whose names begin with a prefix."""
    rows = tx.execute(
        """
        DELETE FROM collection_items
        WHERE collection = :key AND removed_at IS NULL AND substr(name, 1, :length) = :prefix
        RETURNING file_id
        """,
        {"key": key, "prefix": prefix, "length": len(prefix)},
    )
    release_references(tx, [(None, file_id) for (file_id,) in rows])


def _remove(tx: Transaction, key: str, name: str, by: str | None) -> Item | None:
    rows = tx.execute(
        f"""
        UPDATE collection_items
        SET removed_at = :now, removed_by = :by
        WHERE collection = :key AND name = :name AND removed_at IS NULL
        RETURNING {_COLUMNS}, job_id, file_id
        """,
        {"key": key, "name": name, "now": tx.now, "by": by},
    )
    if not rows:
        return None
    release_references(tx, [row[-2:] for row in rows])
    return _item(rows[0][:-2])


def release_references(tx: Transaction, removed: Sequence[Row]) -> None:
    """Release the jobs and files, given as ``(job_id, file_id)``, that removed items referred to."""
    if any(job_id is not None for job_id, _ in removed):
        drop(tx, RETENTION_POSITION)  # so that retention examines again the jobs that were kept
    if files := [file_id for _, file_id in removed if file_id is not None]:
        renew_grace(tx, files)


def count(tx: Transaction, key: str) -> int:
    """Return the number of items of a collection."""
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


def _no_item(key: str, name: str, promised_by: str | None = None) -> NotFound:
    message = f"The collection {_called(key)!r} has no item {name!r}."
    if promised_by is not None:
        message += f" The {promised_by} promised it and has not provided it."
    return NotFound(message, resource_type="item", resource_id=name)
