"""Named collections: their creation, list and deletion."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ojster.collections.contents import count, release_references
from ojster.collections.places import no_collection
from ojster.core.errors import Conflict, OjsterError
from ojster.core.tenant import called
from ojster.core.timestamps import format_timestamp
from ojster.storage.transaction import Transaction


class Collection(msgspec.Struct, frozen=True):
    """A named collection and the number of its items."""

    name: str
    items: int
    created_at: str
    description: str | None = None
    created_by: str | None = None


class NewCollection(msgspec.Struct, frozen=True):
    """A collection to create; ``name`` is qualified with the tenant."""

    name: str
    description: str | None = None
    created_by: str | None = None


def create_collections(tx: Transaction, new: Sequence[NewCollection]) -> list[Collection | OjsterError]:
    """Create collections; return each, or ``Conflict`` if its name is taken."""
    results: list[Collection | OjsterError] = []
    for one in new:
        rows = tx.execute("SELECT name FROM collections WHERE name = :name", {"name": one.name})
        if rows:
            results.append(
                Conflict(
                    f"The collection {called(one.name)!r} exists already. Choose another name.",
                    collection=called(one.name),
                )
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
    """Return all named collections by name, each with its qualified name, for each request."""
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
    """A collection to delete; ``force``: even if it has items."""

    name: str
    force: bool = False


def delete_collections(tx: Transaction, removals: Sequence[Removal]) -> list[OjsterError | None]:
    """Delete collections with their items and history."""
    results: list[OjsterError | None] = []
    for one in removals:
        rows = tx.execute("SELECT name FROM collections WHERE name = :name" + tx.for_update, {"name": one.name})
        held = count(tx, one.name) if rows else 0
        if not rows:
            results.append(no_collection(one.name))
        elif held and not one.force:
            results.append(
                Conflict(f"The collection {called(one.name)!r} holds {held} items. Use 'force=true'.", items=held)
            )
        else:
            release_references(
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
