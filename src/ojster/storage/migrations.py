"""Schema migrations: scripts that run in order, each once. There are no downgrades."""

from __future__ import annotations

from importlib import resources

from ojster.core.errors import BackendUnavailable


def scripts(kind: str) -> list[str]:
    """Return the scripts for a kind of database (``sqlite``, ``postgres``), oldest first."""
    folder = resources.files("ojster.storage").joinpath(kind, "schema")
    return [entry.read_text() for entry in sorted(folder.iterdir(), key=lambda entry: entry.name)]


def refuse_newer(version: int, known: int) -> None:
    """Raise an error if a schema is newer than this version of Ojster.

    Raises
    ------
    BackendUnavailable
        A newer version of Ojster has migrated the schema.
    """
    if version > known:
        raise BackendUnavailable(
            f"The database has schema version {version}, but this Ojster supports at most {known}: upgrade Ojster."
        )
