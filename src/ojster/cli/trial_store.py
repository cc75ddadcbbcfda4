"""A store for a trial: empty, on the disk or in the database of a real one, and deleted afterwards."""

from __future__ import annotations

import contextlib
import re
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

import apsw
import click

from ojster.core.errors import BackendUnavailable
from ojster.storage.database import SQLITE, sqlite_path
from ojster.storage.open import MEMORY

if TYPE_CHECKING:
    import psycopg

FORGOTTEN_AFTER: Final = 86_400
"""Age from which the store of a trial that was killed is deleted by the next trial, in seconds."""


class TrialStore:
    """An empty store.

    Parameters
    ----------
    url:
        Its URL, for ``App``.
    size:
        Returns the bytes that it takes on the disk.
    """

    def __init__(self, url: str, size: Callable[[], int]) -> None:
        self.url = url
        self.size = size


@contextmanager
def trial_store(url: str) -> Iterator[TrialStore]:
    """Make a store beside the one at ``url``, which is not touched, and delete it after the block.

    For a SQLite file, it is a file in the same folder; for PostgreSQL, a schema of the same database.

    Raises
    ------
    click.UsageError
        ``url`` is neither, or the role may not create a schema.
    BackendUnavailable
        The database cannot be reached.
    """
    if url.startswith(SQLITE) and url != MEMORY:
        with _file(Path(sqlite_path(url))) as store:
            yield store
    elif url.startswith(("postgresql://", "postgres://")):
        with _schema(url) as store:
            yield store
    else:
        raise click.UsageError(
            f"A trial needs the URL of a SQLite file or a PostgreSQL database, not {url.partition(':')[0]}:…. "
            "Give that of the server's database."
        )


def prefix_of(url: str) -> str:
    """Return how the names of the trial stores beside a store begin: files, or schemas of PostgreSQL."""
    if url.startswith(SQLITE):
        return f".{Path(sqlite_path(url)).name}-trial-"
    from ojster.storage.postgres.url import parse_postgres_url

    return f"{parse_postgres_url(url).schema[:30]}_trial_"


def _name(prefix: str) -> str:
    return f"{prefix}{int(time.time())}_{secrets.token_hex(3)}"


def _is_forgotten(name: str, prefix: str) -> bool:
    """Tell whether something is what a trial has left: nothing else is ever deleted."""
    match = _OWN_NAME.fullmatch(name.removeprefix(prefix)) if name.startswith(prefix) else None
    return match is not None and time.time() - int(match[1]) > FORGOTTEN_AFTER


_OWN_NAME: Final = re.compile(r"(\d{10})_[0-9a-f]{6}(-\w+)?")
"""What follows the prefix in the name of a trial's store, and of the files beside one of SQLite."""

_MARK: Final = "The store of a trial of ojster bench; it may be deleted."
"""Comment on each schema of a trial."""


@contextmanager
def _file(real: Path) -> Iterator[TrialStore]:
    folder, prefix = real.parent, prefix_of(f"{SQLITE}{real}")
    if not folder.is_dir():
        raise click.UsageError(f"The folder {folder} does not exist.")
    for left in folder.iterdir():
        if _is_forgotten(left.name, prefix):
            _delete(left)
    place = folder / _name(prefix)

    def files() -> list[Path]:
        return [file for file in folder.iterdir() if file.name.startswith(place.name)]

    def size() -> int:
        with contextlib.closing(apsw.Connection(str(place))) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return place.stat().st_size

    try:
        yield TrialStore(f"{SQLITE}{place}", size)
    finally:
        for file in files():
            _delete(file)


def _delete(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _check_rights(connection: psycopg.Connection) -> None:
    """Refuse a role that may not create the schema of a trial."""
    (role, database, may) = connection.execute(
        "SELECT current_user, current_database(), has_database_privilege(current_database(), 'CREATE')"
    ).fetchone() or ("", "", True)
    if not may:
        raise click.UsageError(
            f"The role {role!r} may not create a schema for a trial. Use another role, or run as the database's owner: "
            f'GRANT CREATE ON DATABASE "{database}" TO "{role}"'
        )


@contextmanager
def _schema(url: str) -> Iterator[TrialStore]:
    import psycopg
    from psycopg import sql

    from ojster.storage.postgres.url import parse_postgres_url

    prefix = prefix_of(url)
    name = _name(prefix)
    parsed = parse_postgres_url(url)
    try:
        opened = psycopg.connect(parsed.conninfo, autocommit=True)
    except psycopg.OperationalError as error:
        why = " ".join(str(error).split())
        raise BackendUnavailable(f"The database {parsed.shown} cannot be used: {why}") from error
    with opened as connection:

        def drop(schema: str) -> None:
            connection.execute(sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(sql.Identifier(schema)))

        def size() -> int:
            row = connection.execute(
                """
                SELECT coalesce(sum(pg_total_relation_size(oid)), 0)::bigint
                FROM pg_class
                WHERE relnamespace = to_regnamespace(%s) AND relkind = 'r'
                """,
                (name,),
            ).fetchone()
            return 0 if row is None else int(row[0])

        known = connection.execute(
            """
            SELECT nspname
            FROM pg_namespace
            WHERE pg_has_role(nspowner, 'USAGE') AND obj_description(oid, 'pg_namespace') = %s
            """,
            (_MARK,),
        ).fetchall()
        for (left,) in known:
            if _is_forgotten(left, prefix):
                drop(left)
        _check_rights(connection)
        try:
            connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(name)))
            connection.execute(sql.SQL("COMMENT ON SCHEMA {} IS {}").format(sql.Identifier(name), sql.Literal(_MARK)))
            yield TrialStore(f"{url}{'&' if '?' in url else '?'}schema={quote(name)}", size)
        finally:
            drop(name)
