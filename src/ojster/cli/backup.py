"""The `ojster backup` and `ojster restore` commands."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec

from ojster.cli.archive import ArchiveSummary, back_up
from ojster.cli.archive import restore as restore_archive
from ojster.cli.option_rules import excludes
from ojster.cli.options import done, examples, with_json, with_url
from ojster.cli.output import errors
from ojster.core.errors import InvalidRequest
from ojster.files.open import store_for
from ojster.storage.database import SQLITE, names_a_database, sqlite_path, without_password
from ojster.storage.open import MEMORY


@click.command(
    epilog=examples(
        "ojster backup jobs-2026-11-23.tar",
        "ojster backup /backups/jobs.tar --url sqlite:////var/lib/ojster/jobs.db",
        "ojster backup jobs.tar --no-files",
    )
)
@click.argument("archive", type=click.Path(dir_okay=False, path_type=Path))
@with_url
@click.option("--files", metavar="WHERE", help="Storage of files, as for 'ojster serve'.")
@click.option("--no-files", is_flag=True, help="Save the database alone.")
@with_json
@excludes("no_files", "files")
def backup(archive: Path, url: str, files: str | None, no_files: bool, as_json: bool) -> None:
    """Save a SQLite database and its files in ARCHIVE, while servers and workers run.

    The copy is checked. PostgreSQL has its own tools: pg_dump, or continuous archiving.
    """
    database = _database_of(url)
    summary = back_up(database, archive, None if no_files else store_for(url, files))
    if summary.missing:
        errors.print(
            f"[yellow]{len(summary.missing)} files lack pieces in the file store; in the backup they are damaged.[/]"
        )
    _tell("Saved", summary, as_json)


@click.command(
    epilog=examples(
        "ojster restore jobs-2026-11-23.tar --url sqlite:///jobs.db",
        "ojster restore jobs.tar --url sqlite:///copy.db --no-files",
    )
)
@click.argument("archive", type=click.Path(dir_okay=False, path_type=Path))
@with_url
@click.option(
    "--files", type=click.Path(path_type=Path), help="Directory for the files; by default beside the database."
)
@click.option("--no-files", is_flag=True, help="Restore the database alone.")
@with_json
@excludes("no_files", "files")
def restore(archive: Path, url: str, files: Path | None, no_files: bool, as_json: bool) -> None:
    """Restore ARCHIVE as a new SQLite database. Nothing is overwritten, and a damaged archive restores nothing."""
    database = _database_of(url)
    folder = None if no_files else files or database.with_name(database.name + "-files")
    _tell("Restored", restore_archive(archive, database, folder), as_json)


def _database_of(url: str) -> Path:
    if url.startswith(SQLITE) and url != MEMORY:
        return Path(sqlite_path(url))
    if names_a_database(url) and not url.startswith(SQLITE):
        raise InvalidRequest(
            "PostgreSQL has its own tools for this: pg_dump and pg_restore, or continuous archiving. Files are in the "
            "file store (--files)."
        )
    raise InvalidRequest(
        f"{without_password(url)!r} is not the URL of a SQLite file. Run this where the file is: --url sqlite:///jobs.db"
    )


def _tell(verb: str, summary: ArchiveSummary, as_json: bool) -> None:
    words = f"{verb} {summary.jobs} jobs, {summary.workflows} workflows and {summary.files} files: {summary.path}"
    done(words + ".", as_json, msgspec.to_builtins(summary))
