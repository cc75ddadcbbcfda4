"""Schema migrations: scripts that run in order, each once. There are no downgrades."""

from __future__ import annotations

from importlib import resources

from ojster.core.errors import BackendUnavailable


def scripts(kind: str) -> list[str]:
    """Return the scripts for a kind of database (``sqlite``, ``postgres``), oldest first."""
    folder = resources.files("ojster.storage").joinpath(kind, "schema")
    return [entry.read_text() for entry in sorted(folder.iterdir(), key=lambda entry: entry.name)]


def refuse_unreleased(version: int, *, instead: str) -> None:
    """Raise an error: a schema was made by an Ojster from before the first release, whose scripts are gone.

    Parameters
    ----------
    instead:
        What to give to this Ojster, such as ``"a new file"``.
    """
    raise BackendUnavailable(
        f"The database has schema version {version} of an Ojster that was never released, and cannot be migrated. "
        f"Finish its jobs with that Ojster, then give this one {instead}."
    )


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
