"""What is a file? Bytes with a SHA-256, uploaded in pieces; artifacts and large results refer to it. (seed 003)

``result_ref`` is that of ojs-workflows.md section 7.5: where a result is to be had that is too large to be handed on.
"""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from ojster.core.errors import Conflict, InvalidRequest, OjsterError

CHUNK: Final = 8 * 1024 * 1024
"""In pieces of how many bytes files are stored, and at most held in memory."""

LARGEST_FILE: Final = 1 << 40
"""How many bytes a file may have."""

LARGEST_INLINE_RESULT: Final = 65_536
"""Results of more bytes are kept as files, if there is where to keep them."""

OCTETS: Final = "application/octet-stream"
JSON: Final = "application/json"
RESULT: Final = "/result"
"""What the item of a job is called that holds its result: nobody else can call one so."""

LARGEST_RESTORED: Final = 256 * 1024 * 1024
"""Results of more bytes stay references also for Python programs."""

_SHA256: Final = re.compile(r"[0-9a-f]{64}")
_MEDIA_TYPE: Final = re.compile(r"[A-Za-z0-9!#$&^_.+\-]{1,64}/[A-Za-z0-9!#$&^_.+\-]{1,64}(; ?[!-~ ]{1,100})?")
_FILENAME: Final = re.compile(r"[^/\\]{1,255}")
_AT: Final = "/ojs/v1/files/"
_MARK: Final = b'"result_ref"'


class HashMismatch(OjsterError):
    """What was uploaded has not the SHA-256 that it was said to have; it was thrown away."""

    code = "hash_mismatch"
    status = 422
    retryable = True


class FileRef(msgspec.Struct, frozen=True, omit_defaults=True):
    """A complete file, as those show it that refer to it. ``size`` is in bytes, ``sha256`` hexadecimal."""

    id: str
    sha256: str
    size: int
    content_type: str = OCTETS
    filename: str | None = None


class NewFile(msgspec.Struct, frozen=True):
    """A file that is to be uploaded.

    Parameters
    ----------
    size, sha256:
        Its length in bytes and its hash, if they are known: then a file that is there already need not be uploaded,
        and what is uploaded must match.
    job_id:
        The job whose it is: it belongs to the workspace of that.
    """

    size: int | None = None
    sha256: str | None = None
    content_type: str = OCTETS
    filename: str | None = None
    job_id: str | None = None

    def check(self) -> NewFile:
        """Return it, if it may be.

        Raises
        ------
        InvalidRequest
            Something of it is malformed.
        """
        if self.size is not None and not 0 <= self.size <= LARGEST_FILE:
            raise InvalidRequest(f"A file has 0 to {LARGEST_FILE} bytes, not {self.size}.", field="size")
        if self.sha256 is not None and not _SHA256.fullmatch(self.sha256):
            raise InvalidRequest("'sha256' must be 64 hexadecimal digits, in lower case.", field="sha256")
        if not _MEDIA_TYPE.fullmatch(self.content_type):
            raise InvalidRequest(f"{self.content_type[:80]!r} is no content type.", field="content_type")
        name = self.filename
        if name is not None and (name in (".", "..") or not name.isprintable() or not _FILENAME.fullmatch(name)):
            raise InvalidRequest(f"{name[:80]!r} is no name of a file.", field="filename")
        return self


class File(msgspec.Struct, frozen=True, omit_defaults=True):
    """A file, or as much of it as has come. Times are RFC 3339.

    Parameters
    ----------
    size:
        How many bytes it has; ``None``: that is not known before the end of the upload.
    offset:
        How many of them have come, and are safe.
    """

    id: str
    offset: int
    complete: bool
    created_at: str
    size: int | None = None
    sha256: str | None = None
    content_type: str = OCTETS
    filename: str | None = None
    created_by: str | None = None

    @property
    def ref(self) -> FileRef:
        """The file as those show it that refer to it.

        Raises
        ------
        Conflict
            It is not complete.
        """
        if not self.complete or self.sha256 is None:
            raise Conflict(f"The upload of the file {self.id} is not complete.", offset=self.offset)
        return FileRef(self.id, self.sha256, self.offset, self.content_type, self.filename)


# Results that are files


def reference_to(file: FileRef) -> bytes:
    """Return what stands for a result that is kept as a file, as JSON (ojs-workflows.md section 7.5)."""
    return msgspec.json.encode(
        {
            "result_ref": f"{_AT}{file.id}/content",
            "result_size_bytes": file.size,
            "result_content_type": file.content_type,
            "result_sha256": file.sha256,
        }
    )


def may_refer(raw: bytes | None) -> bool:
    """Whether JSON may hold such references; quick, and never wrong when it says no."""
    return raw is not None and _MARK in raw


def referred_file(value: Any) -> str | None:
    """Return the id of the file that stands for a result, if the value is such a reference."""
    if not isinstance(value, dict) or value.keys() != _MEMBERS or not isinstance(value["result_ref"], str):
        return None
    if value["result_content_type"] != JSON:
        return None
    id = value["result_ref"].removeprefix(_AT).removesuffix("/content")
    return id if value["result_ref"] == f"{_AT}{id}/content" and "/" not in id else None


_MEMBERS: Final = {"result_ref", "result_size_bytes", "result_content_type", "result_sha256"}
