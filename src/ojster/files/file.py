"""Files: bytes with a SHA-256 hash, uploaded in chunks. Artifacts and large results refer to them.

``result_ref`` refers to a result that is too large to be stored inline.

Spec: ojs-workflows 7.5
"""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from ojster.core.errors import Conflict, InvalidRequest, OjsterError

CHUNK_BYTES: Final = 8 * 1024 * 1024
"""Size of the chunks in which files are stored and held in memory, in bytes."""

LARGEST_FILE: Final = 1 << 40
"""Maximum size of a file, in bytes."""

MAX_INLINE_RESULT_BYTES: Final = 65_536
"""Maximum size of an inline result, in bytes. Larger results are stored as files if there is a file store."""

OCTET_STREAM: Final = "application/octet-stream"
JSON: Final = "application/json"
RESULT: Final = "/result"
"""Name of the item that holds a job's result, if it is a file. The slash keeps clients from using the name."""

MAX_LOADED_RESULT_BYTES: Final = 256 * 1024 * 1024
"""Maximum size of a result that the Python client loads, in bytes. Larger results stay references."""

_SHA256: Final = re.compile(r"[0-9a-f]{64}")
_MEDIA_TYPE: Final = re.compile(r"[A-Za-z0-9!#$&^_.+\-]{1,64}/[A-Za-z0-9!#$&^_.+\-]{1,64}(; ?[!-~ ]{1,100})?")
_FILENAME: Final = re.compile(r"[^/\\]{1,255}")
_FILES_PATH: Final = "/ojs/v1/files/"
MARK: Final = b'"result_ref"'


class HashMismatch(OjsterError):
    """The uploaded bytes do not have the announced SHA-256. The upload was discarded."""

    code = "checksum_mismatch"
    status = 422
    retryable = True


class FileRef(msgspec.Struct, frozen=True, omit_defaults=True):
    """A reference to a complete file. ``size`` is in bytes, ``sha256`` is hexadecimal."""

    id: str
    sha256: str
    size: int
    content_type: str = OCTET_STREAM
    filename: str | None = None


class NewFile(msgspec.Struct, frozen=True):
    """A file to upload.

    Parameters
    ----------
    size, sha256:
        Length in bytes and hash, if known. If the tenant already has a complete file with the hash, no upload is
        needed; otherwise the uploaded bytes must match.
    job_id:
        The job that the file belongs to; the file is then in that job's workspace.
    worker_id, attempt:
        The worker that uploads it for the job, which must hold its lease, and its attempt; ``None``: any.
    """

    size: int | None = None
    sha256: str | None = None
    content_type: str = OCTET_STREAM
    filename: str | None = None
    job_id: str | None = None
    worker_id: str | None = None
    attempt: int | None = None

    def check(self) -> NewFile:
        """Return the file if its members are valid.

        Raises
        ------
        InvalidRequest
            A member is malformed.
        """
        if self.size is not None and not 0 <= self.size <= LARGEST_FILE:
            raise InvalidRequest(f"'size' must be from 0 to {LARGEST_FILE} bytes, not {self.size}.", field="size")
        if self.sha256 is not None and not _SHA256.fullmatch(self.sha256):
            raise InvalidRequest("'sha256' must be 64 hexadecimal digits in lower case.", field="sha256")
        if not _MEDIA_TYPE.fullmatch(self.content_type):
            raise InvalidRequest(
                f"'content_type' must be a media type such as 'text/plain', not {self.content_type[:80]!r}.",
                field="content_type",
            )
        name = self.filename
        if name is not None and (name in (".", "..") or not name.isprintable() or not _FILENAME.fullmatch(name)):
            raise InvalidRequest(
                f"'filename' must be 1 to 255 printable characters without slashes, not {name[:80]!r}.",
                field="filename",
            )
        return self


class File(msgspec.Struct, frozen=True, omit_defaults=True):
    """A file, complete or partly uploaded. Times are RFC 3339.

    Parameters
    ----------
    size:
        Total length in bytes; ``None`` if it is not known before the end of the upload.
    offset:
        Number of bytes that are uploaded and stored.
    """

    id: str
    offset: int
    complete: bool
    created_at: str
    size: int | None = None
    sha256: str | None = None
    content_type: str = OCTET_STREAM
    filename: str | None = None
    created_by: str | None = None

    @property
    def ref(self) -> FileRef:
        """The reference to this file.

        Raises
        ------
        Conflict
            The upload is not complete.
        """
        if not self.complete or self.sha256 is None:
            raise Conflict(f"The upload of the file {self.id} is not complete: finish it first.", offset=self.offset)
        return FileRef(self.id, self.sha256, self.offset, self.content_type, self.filename)


# Results stored as files


def reference_to(file: FileRef) -> bytes:
    """Return the JSON that replaces a result stored as a file.

    Spec: ojs-workflows 7.5
    """
    return msgspec.json.encode(
        {
            "result_ref": f"{_FILES_PATH}{file.id}/content",
            "result_size_bytes": file.size,
            "result_content_type": file.content_type,
            "result_sha256": file.sha256,
        }
    )


def may_refer(raw: bytes | None) -> bool:
    """Whether JSON may contain references to files. Fast; ``False`` is always correct."""
    return raw is not None and MARK in raw


def referred_file(value: Any) -> str | None:
    """Return the id of the file that holds a result, or ``None`` if the value is not such a reference."""
    if not isinstance(value, dict) or value.keys() != _MEMBERS or not isinstance(value["result_ref"], str):
        return None
    if value["result_content_type"] != JSON:
        return None
    id = value["result_ref"].removeprefix(_FILES_PATH).removesuffix("/content")
    return id if value["result_ref"] == f"{_FILES_PATH}{id}/content" and "/" not in id else None


_MEMBERS: Final = {"result_ref", "result_size_bytes", "result_content_type", "result_sha256"}
