"""Which versions of the schema are there? Scripts that are run in order, each once; there is no way back."""

from __future__ import annotations

from importlib import resources

from ojster.core.errors import BackendUnavailable


def scripts(kind: str) -> list[str]:
    """Return the scripts for a kind of database (``sqlite``, ``postgres``), the oldest first."""
    folder = resources.files("ojster.storage").joinpath(kind, "schema")
    return [entry.read_text() for entry in sorted(folder.iterdir(), key=lambda entry: entry.name)]


def refuse_newer(version: int, known: int) -> None:
    """Check that a schema is none from the future.

    Raises
    ------
    BackendUnavailable
        A newer version of Ojster has migrated it.
    """
    if version > known:
        raise BackendUnavailable(
            f"The database has schema version {version}, and this version of Ojster knows only {known}: upgrade Ojster."
        )
