"""Records of files: hashes, pieces, and references.

The bytes are in the file store; ``ojster.files.service`` connects the two. A tenant has one file per hash. Files that
no collection item refers to are deleted after ``GRACE``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from ojster.core.durations import DAY
from ojster.core.errors import Conflict, InvalidRequest, NotFound, OjsterError
from ojster.core.ids import new_id
from ojster.core.parsing import Bounded, PageLimit
from ojster.core.tenant import NOBODY, split, tenants_around
from ojster.core.timestamps import format_timestamp
from ojster.files.file import File, FileRef, NewFile
from ojster.files.usage import add_bytes, refuse_bytes
from ojster.jobs.leases import check_holder
from ojster.jobs.messages import Holder
from ojster.jobs.queries import find_owners, no_job
from ojster.storage.call import for_each
from ojster.storage.transaction import Row, Transaction

GRACE: Final = DAY
"""Time that an unreferenced file or an idle upload is kept, in microseconds."""

DOOMED_PER_TRANSACTION: Final = 100
"""Maximum number of files that one transaction marks as doomed."""

_COLUMNS: Final = "tenant, state, id, stored, created_at, size, sha256, content_type, filename, created_by"

_FORGETTABLE: Final = """
    touched_at < :before
    AND state <> 'doomed'
    AND NOT EXISTS (
        SELECT 1
        FROM collection_items AS i
        WHERE i.file_id = files.id AND i.removed_at IS NULL
    )
"""


class OwnedFile(msgspec.Struct, frozen=True):
    """A file and its tenant."""

    tenant: str
    file: File


class Creation(msgspec.Struct, frozen=True):
    """Request for an upload; ``tenant`` is the scope of the caller (``None``: all tenants)."""

    new: NewFile
    tenant: str | None = None
    by: str | None = None


@for_each
def create_files(tx: Transaction, creation: Creation) -> File | OjsterError:
    """Begin uploads; return each file, which is complete if the tenant has its content already, or its refusal."""
    tenant = creation.tenant or NOBODY
    if creation.new.job_id is not None:
        (owners,) = find_owners(tx, [(creation.new.job_id,)])
        if creation.new.job_id not in owners or creation.tenant not in (None, owners[creation.new.job_id][0]):
            return no_job(creation.new.job_id)
        tenant, _ = owners[creation.new.job_id]
        try:
            check_holder(tx, Holder(creation.new.job_id, creation.new.worker_id, creation.new.attempt))
        except OjsterError as refusal:
            return refusal
    known = _known_by_hash(tx, tenant, creation.new)
    no_room = None if known is not None or creation.new.size is None else refuse_bytes(tx, tenant, creation.new.size)
    return known or no_room or _begin(tx, tenant, creation)


def _known_by_hash(tx: Transaction, tenant: str, new: NewFile) -> File | None:
    if new.sha256 is None:
        return None
    known = _complete(tx, tenant, new.sha256)
    return None if known is None or new.size not in (None, known.file.offset) else known.file


def _complete(tx: Transaction, tenant: str, sha256: str) -> OwnedFile | None:
    """Return a tenant's complete file with a hash, if it has one, and renew its grace period."""
    rows = tx.execute(
        f"""
        UPDATE files
        SET touched_at = :now
        WHERE tenant = :tenant AND sha256 = :sha256 AND state = 'complete'
        RETURNING {_COLUMNS}
        """,
        {"now": tx.now, "tenant": tenant, "sha256": sha256},
    )
    return _known(rows[0]) if rows else None


def _begin(tx: Transaction, tenant: str, creation: Creation) -> File:
    new = creation.new
    (row,) = tx.execute(
        f"""
        INSERT INTO files (
            id, tenant, state, stored, created_at, size, sha256, content_type, filename, created_by,
            touched_at
        )
        VALUES (:id, :tenant, 'uploading', 0, :now, :size, :sha256, :content_type, :filename, :by, :now)
        RETURNING {_COLUMNS}
        """,
        {
            "id": new_id(),
            "tenant": tenant,
            "now": tx.now,
            "size": new.size,
            "sha256": new.sha256,
            "content_type": new.content_type,
            "filename": new.filename,
            "by": creation.by,
        },
    )
    return _known(row).file


@for_each
def find_files(tx: Transaction, id: str) -> OwnedFile | OjsterError:
    """Return each file with its tenant, or ``NotFound``."""
    rows = tx.execute(f"SELECT {_COLUMNS} FROM files WHERE id = :id AND state <> 'doomed'", {"id": id})
    return _known(rows[0]) if rows else no_file(id)


class FilePage(Bounded, frozen=True):
    """Request for files of a tenant (``None``: all tenants) that were begun before the file with the id ``before``."""

    tenant: str | None
    limit: PageLimit
    before: str | None = None


@for_each
def list_files(tx: Transaction, page: FilePage) -> list[File]:
    """Return pages of files, newest first."""
    conditions = {"tenant": page.tenant, "before": page.before}
    parameters: dict[str, Any] = {name: value for name, value in conditions.items() if value is not None}
    condition = " AND tenant = :tenant" * (page.tenant is not None) + " AND id < :before" * (page.before is not None)
    rows = tx.execute(
        f"SELECT {_COLUMNS} FROM files WHERE state <> 'doomed'{condition} ORDER BY id DESC LIMIT :limit",
        parameters | {"limit": page.limit},
    )
    return [_known(row).file for row in rows]


class Piece(msgspec.Struct, frozen=True):
    """A piece of a file: first byte, size in bytes, SHA-256, and name in the file store."""

    file_id: str
    start: int
    size: int
    sha256: bytes
    name: str


@for_each
def add_pieces(tx: Transaction, piece: Piece) -> File | OjsterError:
    """Record pieces that are in the store; return each file, or ``Conflict`` if another upload has changed it."""
    # Of two pieces for the same place, the second waits here, and then finds that the file has grown.
    changed = tx.execute(
        f"SELECT tenant FROM files WHERE id = :id AND state = 'uploading' AND stored = :start{tx.for_update}",
        {"id": piece.file_id, "start": piece.start},
    )
    if not changed:
        return _gone_on(piece.file_id)
    if refusal := refuse_bytes(tx, changed[0][0], piece.size):
        return refusal
    add_bytes(tx, changed[0][0], piece.size)
    rows = tx.execute(
        f"UPDATE files SET stored = stored + :size, touched_at = :now WHERE id = :id RETURNING {_COLUMNS}",
        {"size": piece.size, "now": tx.now, "id": piece.file_id},
    )
    tx.execute(
        "INSERT INTO file_pieces (file, start, size, sha256, piece) VALUES (:id, :start, :size, :sha256, :piece)",
        {
            "id": piece.file_id,
            "start": piece.start,
            "size": piece.size,
            "sha256": piece.sha256,
            "piece": piece.name,
        },
    )
    return _known(rows[0]).file


def list_pieces(tx: Transaction, ids: Sequence[str]) -> list[list[Piece]]:
    """Return the pieces of files, in order."""
    return [
        [
            Piece(id, *row)
            for row in tx.execute(
                "SELECT start, size, sha256, piece FROM file_pieces WHERE file = :id ORDER BY start", {"id": id}
            )
        ]
        for id in ids
    ]


class Finish(msgspec.Struct, frozen=True):
    """The end of an upload: size in bytes, and SHA-256."""

    file_id: str
    size: int
    sha256: str


@for_each
def finish_files(tx: Transaction, upload: Finish) -> File | OjsterError:
    """Complete files; return each, or the tenant's complete file with the same content."""
    # Of two calls that complete a file, the second waits here, and then finds it complete.
    rows = tx.execute(
        f"SELECT {_COLUMNS} FROM files WHERE id = :id AND state = 'uploading'{tx.for_update}",
        {"id": upload.file_id},
    )
    if not rows:
        (file,) = find_files(tx, [upload.file_id])  # another call has completed it
        return file if isinstance(file, OjsterError) else file.file
    if _known(rows[0]).file.offset != upload.size:
        return _gone_on(upload.file_id)
    known = _complete(tx, _known(rows[0]).tenant, upload.sha256)
    if known is not None:
        _doom(tx, upload.file_id)
        return known.file
    (row,) = tx.execute(
        f"""
        UPDATE files
        SET state = 'complete', sha256 = :sha256, size = stored, touched_at = :now
        WHERE id = :id
        RETURNING {_COLUMNS}
        """,
        {"sha256": upload.sha256, "now": tx.now, "id": upload.file_id},
    )
    return _known(row).file


@for_each
def reset_uploads(tx: Transaction, upload: Finish) -> list[str] | OjsterError:
    """Reset uploads with a wrong hash; return the names of their pieces, which the caller deletes from the store."""
    rows = tx.execute(
        "UPDATE files SET stored = 0 WHERE id = :id AND state = 'uploading' AND stored = :size RETURNING tenant",
        {"id": upload.file_id, "size": upload.size},
    )
    if not rows:
        return _gone_on(upload.file_id)
    add_bytes(tx, rows[0][0], -upload.size)
    pieces = tx.execute("DELETE FROM file_pieces WHERE file = :id RETURNING piece", {"id": upload.file_id})
    return [piece for (piece,) in pieces]


@for_each
def distrust(tx: Transaction, id: str) -> None:
    """Mark files as damaged, so that no upload is answered with them; references to them stay."""
    tx.execute("UPDATE files SET state = 'damaged' WHERE id = :id AND state = 'complete'", {"id": id})


def _gone_on(file_id: str) -> Conflict:
    return Conflict(f"Another call has changed the upload of file {file_id}. Read its offset, and continue there.")


# References


def refer(tx: Transaction, file_id: str, tenant: str) -> FileRef:
    """Return the reference to a tenant's complete file, and renew its grace period.

    Raises
    ------
    NotFound
        The tenant has no such file.
    Conflict
        The file is incomplete.
    """
    rows = tx.execute(
        f"""
        UPDATE files
        SET touched_at = :now
        WHERE id = :id AND tenant = :tenant AND state <> 'doomed'
        RETURNING {_COLUMNS}
        """,
        {"now": tx.now, "id": file_id, "tenant": tenant},
    )
    if not rows:
        raise no_file(file_id)
    return _known(rows[0]).file.ref


def renew_grace(tx: Transaction, file_ids: Sequence[str]) -> None:
    """Renew the grace period of files that have lost a reference."""
    tx.execute_many("UPDATE files SET touched_at = ? WHERE id = ?", [(tx.now, id) for id in file_ids])


def end_grace(tx: Transaction, file_ids: Sequence[str], until: int) -> None:
    """End the grace period of files that were not used since ``until``, in microseconds since the epoch."""
    over = [(tx.now - GRACE - 1, id, until) for id in file_ids]
    tx.execute_many("UPDATE files SET touched_at = ? WHERE id = ? AND touched_at <= ?", over)


# Deletion


class FileDeletion(msgspec.Struct, frozen=True):
    """Request to delete a file; ``tenant`` is the scope of the caller (``None``: all tenants)."""

    file_id: str
    tenant: str | None = None


@for_each
def delete_files(tx: Transaction, deletion: FileDeletion) -> OjsterError | None:
    """Mark unreferenced files as doomed; the caller deletes their pieces."""
    # A new item touches the row of its file: either it is seen below, or it finds the file doomed.
    rows = tx.execute(
        f"SELECT {_COLUMNS} FROM files WHERE id = :id AND state <> 'doomed'{tx.for_update}",
        {"id": deletion.file_id},
    )
    if not rows or deletion.tenant not in (None, _known(rows[0]).tenant):
        return no_file(deletion.file_id)
    if items := tx.execute(
        "SELECT name FROM collection_items WHERE file_id = :id AND removed_at IS NULL LIMIT 1",
        {"id": deletion.file_id},
    ):
        message = f"The collection item {items[0][0]!r} refers to file {deletion.file_id}. Remove the item first."
        return Conflict(message, item=items[0][0])
    _doom(tx, deletion.file_id)
    return None


def forget_files(tx: Transaction, requests: Sequence[None]) -> list[list[str]]:
    """Mark files as doomed that are unreferenced for ``GRACE``; return doomed files, with pieces to be deleted."""
    # A locked file is in use, or another server dooms it: neither is worth a wait.
    rows = tx.execute(
        f"SELECT id FROM files WHERE {_FORGETTABLE} LIMIT :most{tx.skip_locked}",
        {"before": tx.now - GRACE, "most": DOOMED_PER_TRANSACTION},
    )
    for (id,) in rows:
        _doom(tx, id)
    doomed = [
        id
        for (id,) in tx.execute(
            "SELECT id FROM files WHERE state = 'doomed' LIMIT :most", {"most": DOOMED_PER_TRANSACTION}
        )
    ]
    return [doomed for _ in requests]


def count_forgettable_files(tx: Transaction, requests: Sequence[None]) -> list[int]:
    """Return the number of files that are unreferenced for ``GRACE``."""
    ((count,),) = tx.execute(f"SELECT count(*) FROM files WHERE {_FORGETTABLE}", {"before": tx.now - GRACE})
    return [int(count) for _ in requests]


@for_each
def erase_files(tx: Transaction, id: str) -> None:
    """Delete the records of files after their pieces."""
    tx.execute("DELETE FROM file_pieces WHERE file = :id", {"id": id})
    for tenant, stored in tx.execute("DELETE FROM files WHERE id = :id RETURNING tenant, stored", {"id": id}):
        add_bytes(tx, tenant, -stored)


def _doom(tx: Transaction, file_id: str) -> None:
    tx.execute("UPDATE files SET state = 'doomed' WHERE id = :id", {"id": file_id})


def no_file(file_id: str) -> NotFound:
    """Return the refusal for a missing file."""
    return NotFound(f"There is no file {file_id!r}.", resource_type="file", resource_id=file_id)


def too_long(file: File, most: int) -> InvalidRequest:
    """Return the refusal for bytes beyond the size of a file."""
    return InvalidRequest(f"File {file.id} is longer than {most} bytes. Upload at most that many bytes.", field="size")


def _known(row: Row) -> OwnedFile:
    tenant, state, id, stored, created_at, size, sha256, content_type, filename, created_by = row
    created = format_timestamp(created_at)
    is_complete = state in ("complete", "damaged")
    file = File(id, stored, is_complete, created, size, sha256, content_type, filename, created_by)
    return OwnedFile(tenant, file)


@for_each
def is_file_shared(tx: Transaction, request: tuple[str, str, str]) -> bool:
    """Return whether tenants can read files of others, given as ``(file_id, owner, tenant)``.

    They can if an item of a shared collection refers to the file, and the owner is a workspace around them.
    """
    file_id, owner, tenant = request
    rows = []
    if owner in tenants_around(tenant):
        rows = tx.execute(
            """
            SELECT c.name
            FROM collection_items AS i
            JOIN collections AS c ON c.name = i.collection
            WHERE i.file_id = :file_id AND i.removed_at IS NULL AND c.shared = 1
            """,
            {"file_id": file_id},
        )
    return any(split(name)[0] == owner for (name,) in rows)
