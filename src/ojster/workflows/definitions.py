"""Workflow definitions and their versions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from ojster.core.errors import Conflict, Duplicate, NotFound, OjsterError
from ojster.core.tenant import called
from ojster.storage.call import for_each
from ojster.storage.transaction import Transaction
from ojster.workflows.definition import Definition

_COLUMNS: Final = "name, version, body, params_schema, hashes, created_at"
_LATEST: Final = "version = (SELECT max(version) FROM definitions AS d WHERE d.name = definitions.name)"


@for_each
def create_definitions(tx: Transaction, definition: Definition) -> Definition | OjsterError:
    """Create definitions; return each, or ``Duplicate`` if its name is taken."""
    if find(tx, definition.name) is not None:
        name = called(definition.name)
        return Duplicate(f"The definition {name!r} exists already. Change it with PUT.", definition=name)
    return _insert(tx, definition, "created")


@for_each
def update_definitions(tx: Transaction, definition: Definition) -> Definition | OjsterError:
    """Add a version to definitions, unless the latest is the same; return the latest of each, or ``NotFound``."""
    known = find(tx, definition.name)
    if known is None:
        return no_definition(definition.name)
    if (known.body, known.params_schema) == (definition.body, definition.params_schema):
        return known
    return _insert(tx, msgspec.structs.replace(definition, version=known.version + 1), "updated")


def _insert(tx: Transaction, definition: Definition, what: str) -> Definition:
    definition = msgspec.structs.replace(definition, created_at=tx.now)
    values = msgspec.structs.asdict(definition) | {"hashes": msgspec.json.encode(definition.hashes)}
    tx.execute(
        f"INSERT INTO definitions ({_COLUMNS}) VALUES (:name, :version, :body, :params_schema, :hashes, :created_at)",
        values,
    )
    tx.emit_about(f"definition.{what}", definition.name, definition=definition.name, version=definition.version)
    return definition


class Named(msgspec.Struct, frozen=True):
    """Reference to a definition; ``version`` ``None``: its latest version."""

    name: str
    version: int | None = None


def find_definitions(tx: Transaction, requests: Sequence[Named]) -> list[Definition | OjsterError]:
    """Return each definition, or ``NotFound``."""
    return [
        find(tx, request.name, request.version) or no_definition(request.name, request.version) for request in requests
    ]


def find(tx: Transaction, name: str, version: int | None = None) -> Definition | None:
    """Return a version of a definition (``None``: the latest), if it exists."""
    which = _LATEST if version is None else "version = :version"
    rows = tx.execute(
        f"SELECT {_COLUMNS} FROM definitions WHERE name = :name AND {which}", {"name": name, "version": version}
    )
    return _definition(rows[0]) if rows else None


def list_definitions(tx: Transaction, requests: Sequence[None]) -> list[list[Definition]]:
    """Return the latest version of each definition, by name, for each request."""
    rows = tx.execute(f"SELECT {_COLUMNS} FROM definitions WHERE {_LATEST} ORDER BY name")
    latest = [_definition(row) for row in rows]
    return [latest for _ in requests]


class DefinitionDeletion(msgspec.Struct, frozen=True):
    """Request to delete a definition; ``force``: even if it has unfinished workflows."""

    name: str
    force: bool = False


@for_each
def delete_definitions(tx: Transaction, deletion: DefinitionDeletion) -> OjsterError | None:
    """Delete definitions with all their versions. Workflows that were started from them continue."""
    name = called(deletion.name)
    rows = tx.execute(
        "SELECT count(*) FROM workflows WHERE definition = :name AND finished_at IS NULL", {"name": deletion.name}
    )
    if find(tx, deletion.name) is None:
        return no_definition(deletion.name)
    if rows[0][0] and not deletion.force:
        message = f"The definition {name!r} has {rows[0][0]} unfinished workflows, which would continue."
        return Conflict(message + " Delete it with 'force=true'.", definition=name, unfinished=rows[0][0])
    tx.execute("DELETE FROM definitions WHERE name = :name", {"name": deletion.name})
    tx.emit_about("definition.deleted", deletion.name, definition=deletion.name)
    return None


def _definition(row: Sequence[Any]) -> Definition:
    name, version, body, schema, hashes, created_at = row
    return Definition(name, version, body, schema, msgspec.json.decode(hashes), created_at)


def no_definition(name: str, version: int | None = None) -> NotFound:
    """Return the refusal for a missing definition or version."""
    shown = called(name)
    which = f"definition {shown!r}" if version is None else f"version {version} of the definition {shown!r}"
    return NotFound(f"There is no {which}.", resource_type="definition", resource_id=shown)
