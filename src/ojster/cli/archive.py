"""Backups of a SQLite database with its files: one archive, checked when it is written and when it is restored.

An archive is a tar file with ``jobs.db``, the pieces of files as ``files/FILE/PIECE``, and, at its end,
``ojster-backup.json`` with the SHA-256 of each member. An archive without it is incomplete.
"""

from __future__ import annotations

import asyncio
import hashlib
import io
import os
import shutil
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final

import apsw
import msgspec

from ojster.core.errors import BackendError, BackendUnavailable, Conflict, InvalidRequest
from ojster.core.timestamps import format_timestamp, system_clock
from ojster.core.version import __version__
from ojster.files.store import DirectoryStore, FileStore
from ojster.storage.migrations import refuse_newer, scripts
from ojster.storage.sqlite.open_files import refuse_second_name
from ojster.storage.sqlite.schema import schema_version

FORMAT: Final = 1
DATABASE: Final = "jobs.db"
FILES: Final = "files/"
MANIFEST: Final = "ojster-backup.json"


class Manifest(msgspec.Struct):
    """What an archive holds: the SHA-256 of each member, by its name."""

    format: int
    ojster: str
    schema: int
    created_at: str
    members: dict[str, str]


class ArchiveSummary(msgspec.Struct):
    """What was saved or restored. ``missing`` are files of which pieces are gone from the file store."""

    path: str
    jobs: int
    workflows: int
    files: int
    bytes: int
    missing: list[str] = []


def back_up(database: Path, target: Path, store: FileStore | None) -> ArchiveSummary:
    """Copy a database and its files into an archive, while everything runs.

    Raises
    ------
    BackendUnavailable
        The database does not exist, has several names (hard links), was made by a newer Ojster or by one that was
        never released, or cannot be read or written to the archive.
    Conflict
        The archive exists.
    InvalidRequest
        The directory for the files does not exist, but the database has files; or the database is damaged.
    """
    if not database.exists():
        raise BackendUnavailable(f"There is no database file {database}. Check --url.")
    refuse_second_name(database)
    if target.exists():
        raise Conflict(f"{target} exists. Choose another name, or remove it.")
    unfinished = target.with_name(target.name + ".part")
    try:
        with tempfile.TemporaryDirectory(prefix=".ojster-backup-", dir=target.parent) as folder:
            copy = Path(folder) / DATABASE
            _copy_database(database, copy)
            _check_database(copy)
            with _private(unfinished) as file, tarfile.open(fileobj=file, mode="w") as archive:
                summary = _write(archive, copy, store)
        os.replace(unfinished, target)
    except OSError as error:
        raise BackendUnavailable(f"Cannot write {target}: {error.strerror or error}.") from None
    finally:
        unfinished.unlink(missing_ok=True)
    summary.path, summary.bytes = str(target), target.stat().st_size
    return summary


def restore(source: Path, database: Path, files: Path | None) -> ArchiveSummary:
    """Restore an archive; nothing exists at the target unless everything is right.

    Parameters
    ----------
    files:
        The directory for the files; ``None``: they are left out.

    Raises
    ------
    Conflict
        The database, a log of SQLite beside it, or the directory exists.
    InvalidRequest
        The archive is damaged or incomplete.
    BackendUnavailable
        The target cannot be written, or the archive is of a newer Ojster, or of one that was never released.
    """
    beside = [database.with_name(database.name + ending) for ending in ("-wal", "-shm", "-journal")]
    for existing in (database, *beside, files):  # SQLite would replay a log that was left behind
        if existing is not None and existing.exists():
            raise Conflict(f"{existing} exists. Move it away, or choose another --url; nothing is overwritten.")
    try:
        database.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryDirectory(prefix=".ojster-restore-", dir=database.parent) as folder:
            root = Path(folder)
            _extract(source, root)
            summary = _count(root / DATABASE)
            if files is not None and (root / FILES).is_dir():
                summary.files = len(list((root / FILES).iterdir()))
                files.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                shutil.move(root / FILES, files)
            os.replace(root / DATABASE, database)  # last: without it, nothing is there
    except OSError as error:
        raise BackendUnavailable(f"Cannot restore {source}: {error.strerror or error}.") from None
    summary.path, summary.bytes = str(database), source.stat().st_size
    return summary


def _copy_database(database: Path, copy: Path) -> None:
    """Copy a consistent state of a database; others may write meanwhile."""
    copy.touch(mode=0o600)
    try:
        connection = apsw.Connection(str(database), flags=apsw.SQLITE_OPEN_READWRITE)
        try:
            connection.set_busy_timeout(10_000)
            connection.execute("VACUUM INTO ?", (str(copy),))
        finally:
            connection.close()
    except apsw.Error as error:
        raise BackendUnavailable(f"Cannot copy the database file {database}: {error}.") from None


def _check_database(copy: Path) -> None:
    try:
        with _opened(copy) as connection:
            problems = [row[0] for row in connection.execute("PRAGMA integrity_check(5)")]
            has_jobs = connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'payloads'").fetchall()
            if has_jobs:
                # What a newer schema says of files is not known, so that a copy of it would not be complete.
                refuse_newer(schema_version(connection), len(scripts("sqlite")))
    except apsw.Error as error:
        raise InvalidRequest(f"The database is damaged: {error}.") from None
    if problems != ["ok"]:
        raise InvalidRequest(f"The database is damaged: {'; '.join(problems)}.")
    if not has_jobs:
        raise InvalidRequest("This is no database of Ojster.")


def _write(archive: tarfile.TarFile, copy: Path, store: FileStore | None) -> ArchiveSummary:
    members: dict[str, str] = {}
    summary = _count(copy)
    if store is not None:
        by_file = _pieces(copy, "complete", "uploading")
        if by_file and isinstance(store, DirectoryStore) and not store.root.exists():
            raise InvalidRequest(
                f"The database has files ({len(by_file)}), but there is no directory {store.root}. Name the storage of "
                "'ojster serve' with --files, or save the database alone with --no-files."
            )
        # A file counts as damaged since a piece could not be read, perhaps because the store was away for a moment.
        for file, pieces in (by_file | _pieces(copy, "damaged")).items():
            try:
                contents = asyncio.run(_read(store, pieces))
            except BackendError:
                summary.missing.append(file)
                continue
            for name, piece in contents:
                _add(archive, members, FILES + name, piece)
            summary.files += 1
    if summary.missing:
        with _opened(copy, write=True) as connection:
            connection.executemany(
                # An upload cannot go on without its pieces; once it is doomed, its client begins again.
                "UPDATE files SET state = CASE state WHEN 'uploading' THEN 'doomed' ELSE 'damaged' END WHERE id = ?",
                [(file,) for file in summary.missing],
            )
    with copy.open("rb") as content:
        members[DATABASE] = hashlib.file_digest(content, "sha256").hexdigest()
    archive.add(copy, DATABASE, filter=_owned_by_nobody)
    with _opened(copy) as connection:
        ((schema,),) = connection.execute("PRAGMA user_version").fetchall()
    manifest = Manifest(FORMAT, __version__, int(schema or 0), format_timestamp(system_clock()), members)
    _add(archive, {}, MANIFEST, msgspec.json.format(msgspec.json.encode(manifest), indent=2))
    return summary


async def _read(store: FileStore, pieces: list[tuple[str, bytes]]) -> list[tuple[str, bytes]]:
    """Return the pieces of a file, as they are in the store.

    Raises
    ------
    BackendError
        One is missing, or not what the database says.
    """
    members = []
    for name, digest in pieces:
        piece = await store.get(name)
        if hashlib.sha256(piece).digest() != digest:
            raise BackendError(f"The piece {name} of a file is damaged.")
        members.append((name, piece))
    return members


def _pieces(copy: Path, *states: str) -> dict[str, list[tuple[str, bytes]]]:
    """Return the names and the hashes of the pieces of each file in one of the states."""
    by_file: dict[str, list[tuple[str, bytes]]] = {}
    with _opened(copy) as connection:
        for file, piece, digest in connection.execute(
            """
            SELECT f.id, p.piece, p.sha256
            FROM files AS f
            JOIN file_pieces AS p ON p.file = f.id
            WHERE f.state IN (SELECT value FROM json_each(?))
            ORDER BY f.id, p.start
            """,
            (msgspec.json.encode(states).decode(),),
        ):
            by_file.setdefault(str(file), []).append((f"{file}/{piece}", bytes(digest)))
    return by_file


def _extract(source: Path, root: Path) -> None:
    """Extract an archive into an empty directory, and check each member."""
    digests: dict[str, str] = {}
    manifest: Manifest | None = None
    try:
        with tarfile.open(source, mode="r:") as archive:
            for member in archive:
                name = member.name
                content = archive.extractfile(member) if member.isfile() else None
                if content is None or not _is_plain(name) or manifest is not None:
                    raise InvalidRequest(f"{source} is no backup of Ojster: it has the member {name!r:.80}.")
                if name == MANIFEST:
                    manifest = msgspec.json.decode(content.read(1 << 28), type=Manifest)
                else:
                    digests[name] = _save(content, root / name)
    except FileNotFoundError:
        raise InvalidRequest(f"There is no file {source}.") from None
    except (tarfile.TarError, msgspec.DecodeError, EOFError) as error:
        raise InvalidRequest(f"{source} is no backup of Ojster, or damaged: {error}.") from None
    if manifest is None:
        raise InvalidRequest(f"{source} is incomplete: {MANIFEST} is missing at its end.")
    if manifest.format != FORMAT:
        raise InvalidRequest(f"{source} has the format {manifest.format}; this version of Ojster reads {FORMAT}.")
    if wrong := sorted(
        name for name in digests.keys() | manifest.members if digests.get(name) != manifest.members.get(name)
    ):
        raise InvalidRequest(f"{source} is damaged: {wrong[0]!r:.80} is not what was saved.")
    _check_database(root / DATABASE)


def _is_plain(name: str) -> bool:
    """Whether the name of a member stays inside the archive."""
    parts = name.split("/")
    if name in (DATABASE, MANIFEST):
        return True
    return len(parts) == 3 and parts[0] + "/" == FILES and all(part not in ("", ".", "..") for part in parts)


def _save(content: IO[bytes], path: Path) -> str:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    digest = hashlib.sha256()
    with _private(path) as file:
        while block := content.read(1 << 20):
            digest.update(block)
            file.write(block)
    return digest.hexdigest()


def _add(archive: tarfile.TarFile, members: dict[str, str], name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode, entry.mtime = len(content), 0o600, system_clock() // 1_000_000
    members[name] = hashlib.sha256(content).hexdigest()
    archive.addfile(entry, io.BytesIO(content))


def _owned_by_nobody(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    entry.mode = 0o600
    return entry


def _count(copy: Path) -> ArchiveSummary:
    with _opened(copy) as connection:
        ((jobs,),) = connection.execute("SELECT count(*) FROM jobs").fetchall()
        ((workflows,),) = connection.execute("SELECT count(*) FROM workflows").fetchall()
    return ArchiveSummary(str(copy), int(jobs or 0), int(workflows or 0), 0, 0)


@contextmanager
def _opened(path: Path, *, write: bool = False) -> Iterator[apsw.Connection]:
    flags = apsw.SQLITE_OPEN_READWRITE if write else apsw.SQLITE_OPEN_READONLY
    connection = apsw.Connection(str(path), flags=flags)
    try:
        yield connection
    finally:
        connection.close()


@contextmanager
def _private(path: Path) -> Iterator[IO[bytes]]:
    """Open a new file that only its owner can read, and flush it to disk at the end."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())
