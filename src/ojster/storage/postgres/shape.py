"""What the scripts of the schema make, as far as operators may change or lose it: indexes and storage parameters."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import psycopg

from ojster.storage.migrations import scripts

_INDEX: Final = re.compile(
    r"^(CREATE|DROP)(?: UNIQUE)? INDEX(?: CONCURRENTLY)?(?: IF (?:NOT )?EXISTS)? (\w+)", re.MULTILINE
)
_TABLE: Final = re.compile(
    r"^CREATE (?:UNLOGGED )?TABLE (\w+) \((?:.*?)^\)(?: WITH \(([^)]*)\))?;", re.MULTILINE | re.DOTALL
)
_SET: Final = re.compile(r"^ALTER TABLE (\w+) SET \(([^)]*)\);", re.MULTILINE)


class Shape(NamedTuple):
    """Names of indexes, and the storage parameters of tables, each as ``name=value``."""

    indexes: frozenset[str]
    parameters: dict[str, frozenset[str]]


def intended_shape() -> Shape:
    """Return what the scripts make."""
    indexes: set[str] = set()
    parameters: dict[str, dict[str, str]] = {}
    for script in scripts("postgres"):
        for verb, name in _INDEX.findall(script):
            (indexes.add if verb == "CREATE" else indexes.discard)(name)
        for table, options in (*_TABLE.findall(script), *_SET.findall(script)):
            parameters.setdefault(table, {}).update(_pairs(options))
    shown = {table: frozenset(f"{name}={value}" for name, value in own.items()) for table, own in parameters.items()}
    return Shape(frozenset(indexes), shown)


def _pairs(options: str) -> Iterator[tuple[str, str]]:
    for part in filter(None, map(str.strip, options.split(","))):
        name, _, value = part.partition("=")
        yield name.strip(), value.strip()


def actual_shape(connection: psycopg.Connection[Any], schema: str) -> Shape:
    """Return what a schema has; indexes that are not valid, or belong to a constraint, are left out."""
    indexes = connection.execute(
        """
        SELECT c.relname
        FROM pg_index AS i
        JOIN pg_class AS c ON c.oid = i.indexrelid
        WHERE c.relnamespace = to_regnamespace(%s)
            AND i.indisvalid
            AND NOT EXISTS (SELECT 1 FROM pg_constraint AS k WHERE k.conindid = i.indexrelid)
        """,
        (schema,),
    ).fetchall()
    tables = connection.execute(
        """
        SELECT relname, coalesce(reloptions, '{}')
        FROM pg_class
        WHERE relnamespace = to_regnamespace(%s) AND relkind = 'r'
        """,
        (schema,),
    ).fetchall()
    return Shape(frozenset(name for (name,) in indexes), {name: frozenset(options) for name, options in tables})


def differences(intended: Shape, actual: Shape) -> list[str]:
    """Return what is missing of the intended shape, or changed, in words."""
    differences = [f"the index {name} is missing or not valid" for name in sorted(intended.indexes - actual.indexes)]
    for table, parameters in sorted(intended.parameters.items()):
        present = actual.parameters.get(table)
        if present is None:
            differences.append(f"the table {table} is missing")
            continue
        names = {pair.partition("=")[0] for pair in parameters}
        if missing := sorted(parameters - present):
            differences.append(f"{table} lacks {', '.join(missing)}")
        elif "autovacuum_enabled=false" in present and "autovacuum_enabled" not in names:
            differences.append(f"autovacuum is off for {table}")
    return differences
