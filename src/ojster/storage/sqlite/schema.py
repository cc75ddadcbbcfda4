"""The version of a schema, and its migration."""

from __future__ import annotations

from contextlib import closing
from functools import cache
from typing import Final

import apsw

from ojster.storage.migrations import refuse_newer, refuse_unreleased, scripts

APPLICATION_ID: Final = 0x4F4A5354
"""The id that SQLite files of Ojster have in their header (``OJST``). Those of unreleased versions have none."""


def migrate(connection: apsw.Connection) -> int:
    """Migrate the schema to the current version, in one transaction; return that version.

    Raises
    ------
    BackendUnavailable
        The schema is newer than this version of Ojster, or was made by one that was never released.
    """
    wanted = scripts("sqlite")
    if schema_version(connection) == len(wanted):  # without the lock, which another process may keep for long
        return len(wanted)
    connection.execute("BEGIN IMMEDIATE")
    try:
        version = schema_version(connection)
        refuse_newer(version, len(wanted))
        for script in wanted[version:]:
            connection.execute(script)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {len(wanted)}")
        connection.execute("COMMIT")
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    return len(wanted)


def create_in_memory(connection: apsw.Connection) -> int:
    """Create the schema in an empty database in memory, by copying it; return its version.

    The copy takes a seventh of the time of the script, and tests of applications open such a database each time.
    """
    with closing(apsw.Connection(":memory:")) as source:
        source.deserialize("main", _image())
        with connection.backup("main", source, "main") as copy:
            copy.step(-1)
        return schema_version(connection)


@cache
def _image() -> bytes:
    """Return the pages of a database without rows. Bytes, unlike a connection, survive a fork."""
    with closing(apsw.Connection(":memory:")) as connection:
        migrate(connection)
        return connection.serialize("main")


def schema_version(connection: apsw.Connection) -> int:
    """Return the version of the schema of a database; 0 if it has none.

    Raises
    ------
    BackendUnavailable
        An Ojster that was never released has made it.
    """
    version = int(connection.execute("PRAGMA user_version").get or 0)
    if version and connection.execute("PRAGMA application_id").get != APPLICATION_ID:
        refuse_unreleased(version, instead="a new file")
    return version
