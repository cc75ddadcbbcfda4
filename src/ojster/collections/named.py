"""Named collections: their creation, settings, list, deletion, and the retention of removed items."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec import UNSET, UnsetType

from ojster.collections.contents import count, release_references
from ojster.collections.places import no_collection
from ojster.core.durations import format_duration
from ojster.core.errors import Conflict, OjsterError
from ojster.core.tenant import called
from ojster.core.timestamps import format_timestamp
from ojster.storage.call import for_each
from ojster.storage.transaction import Row, Transaction


class Collection(msgspec.Struct, frozen=True, omit_defaults=True):
    """A named collection and the number of its items.

    Parameters
    ----------
    description:
        What it is for.
    keep_removed:
        How long it keeps removed and replaced items (``P30D``), or ``never`` to delete none; ``None``: the same as
        ``never``.
    shared:
        Whether the workspaces inside its workspace can read it.
    workspace:
        The workspace that it belongs to, if that is another one, which shares it.
    """

    name: str
    items: int
    created_at: str
    description: str | None = None
    created_by: str | None = None
    keep_removed: str | None = None
    shared: bool = False
    workspace: str | None = None


class NewCollection(msgspec.Struct, frozen=True):
    """A collection to create; ``name`` is qualified with the tenant, ``keep_removed`` is in microseconds."""

    name: str
    description: str | None = None
    created_by: str | None = None
    keep_removed: int | None = None
    shared: bool = False


@for_each
def create_collections(tx: Transaction, new_collection: NewCollection) -> Collection | OjsterError:
    """Create collections; return each, or ``Conflict`` if its name is taken."""
    rows = tx.execute("SELECT name FROM collections WHERE name = :name", {"name": new_collection.name})
    if rows:
        return Conflict(
            f"The collection {called(new_collection.name)!r} exists already. Choose another name.",
            collection=called(new_collection.name),
        )
    (row,) = tx.execute(
        f"""
        INSERT INTO collections (name, description, created_at, created_by, keep_removed, shared)
        VALUES (:name, :description, :now, :by, :keep_removed, :shared)
        RETURNING {_COLUMNS}
        """,
        {
            "name": new_collection.name,
            "description": new_collection.description,
            "now": tx.now,
            "by": new_collection.created_by,
            "keep_removed": new_collection.keep_removed,
            "shared": int(new_collection.shared),
        },
    )
    tx.emit_about("collection.created", new_collection.name, collection=new_collection.name)
    return _collection(row, 0)


_COLUMNS: Final = "name, created_at, description, created_by, keep_removed, shared"


def _collection(row: Row, items: int) -> Collection:
    name, created_at, description, created_by, keep_removed, shared = row
    kept = None if keep_removed is None else format_duration(keep_removed)
    return Collection(called(name), items, format_timestamp(created_at), description, created_by, kept, bool(shared))


class CollectionChange(msgspec.Struct, frozen=True):
    """Settings of a collection to change; ``name`` is qualified, ``keep_removed`` in microseconds or ``None``."""

    name: str
    description: str | UnsetType | None = UNSET
    keep_removed: int | UnsetType | None = UNSET
    shared: bool | UnsetType = UNSET


@for_each
def change_collections(tx: Transaction, change: CollectionChange) -> Collection | OjsterError:
    """Change settings of collections; return each collection, or ``NotFound``."""
    new: dict[str, object] = {
        name: value for name in ("description", "keep_removed") if (value := getattr(change, name)) is not UNSET
    }
    if change.shared is not UNSET:
        new["shared"] = int(change.shared)
    assignments = ", ".join(f"{name} = :{name}" for name in new) or "name = name"
    rows = tx.execute(
        f"UPDATE collections SET {assignments} WHERE name = :which RETURNING {_COLUMNS}",
        {**new, "which": change.name},
    )
    return _collection(rows[0], count(tx, change.name)) if rows else no_collection(change.name)


def list_collections(tx: Transaction, requests: Sequence[None]) -> list[list[tuple[str, Collection]]]:
    """Return all named collections by name, each with its qualified name, for each request."""
    rows = tx.execute(
        f"""
        SELECT {_COLUMNS}, (
            SELECT count(*)
            FROM collection_items AS i
            WHERE i.collection = collections.name AND i.removed_at IS NULL
        )
        FROM collections
        ORDER BY name
        """
    )
    collections = [(row[0], _collection(row[:-1], row[-1])) for row in rows]
    return [collections for _ in requests]


def forget_removed_items(tx: Transaction, room: int) -> int:
    """Delete removed items of collections past the retention of their collection, at most ``room``; return how many."""
    deleted = 0
    for name, keep in tx.execute("SELECT name, keep_removed FROM collections WHERE keep_removed IS NOT NULL"):
        if deleted >= room:
            break
        # Servers share the work: each deletes items that no other one has locked.
        rows = tx.execute(
            f"""
            DELETE FROM collection_items
            WHERE id IN (
                SELECT id
                FROM collection_items
                WHERE collection = :name AND removed_at IS NOT NULL AND removed_at < :before
                ORDER BY removed_at
                LIMIT :room{tx.skip_locked}
            )
            RETURNING id
            """,
            {"name": name, "before": tx.now - keep, "room": room - deleted},
        )
        deleted += len(rows)
    return deleted


def count_removed_items(tx: Transaction) -> int:
    """Return how many items repeated calls of ``forget_removed_items`` would delete."""
    ((total,),) = tx.execute(
        """
        SELECT count(*)
        FROM collections AS c
        JOIN collection_items AS i ON i.collection = c.name
        WHERE c.keep_removed IS NOT NULL AND i.removed_at IS NOT NULL AND i.removed_at < :now - c.keep_removed
        """,
        {"now": tx.now},
    )
    return int(total)


class Removal(msgspec.Struct, frozen=True):
    """A collection to delete; ``force``: even if it has items."""

    name: str
    force: bool = False


@for_each
def delete_collections(tx: Transaction, removal: Removal) -> OjsterError | None:
    """Delete collections with their items and history."""
    # Of two deletions, the second finds no collection, and no items to release.
    rows = tx.execute("SELECT name FROM collections WHERE name = :name" + tx.for_update, {"name": removal.name})
    held = count(tx, removal.name) if rows else 0
    if not rows:
        return no_collection(removal.name)
    if held and not removal.force:
        return Conflict(f"The collection {called(removal.name)!r} holds {held} items. Use 'force=true'.", items=held)
    release_references(
        tx,
        tx.execute(
            "DELETE FROM collection_items WHERE collection = :name RETURNING job_id, file_id",
            {"name": removal.name},
        ),
    )
    tx.execute("DELETE FROM collections WHERE name = :name", {"name": removal.name})
    tx.emit_about("collection.deleted", removal.name, collection=removal.name)
    return None
