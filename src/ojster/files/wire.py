"""The JSON of requests and answers about files."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from ojster.core.calls import Arguments, Single
from ojster.files.file import OCTET_STREAM, File


class FileBody(Arguments, forbid_unknown_fields=True):
    """A file to upload; ``size`` is in bytes."""

    size: Annotated[int, Meta(ge=0)] | None = None
    sha256: str | None = None
    content_type: str = OCTET_STREAM
    filename: str | None = None
    job_id: Annotated[str, Meta(description="Id of the job that the file belongs to.")] | None = None
    worker_id: Annotated[str, Meta(description="Worker that must hold the lease of the job.")] | None = None
    attempt: Annotated[int, Meta(description="Attempt that the job must be in.")] | None = None


class FileAnswer(Single[File]):
    """One file, or the progress of its upload."""

    file: File


class FilesAnswer(Single[list[File]]):
    """Files, newest first."""

    files: list[File]


class DeletedFileAnswer(Struct):
    """The id of a file that was deleted."""

    id: str
    deleted: Literal[True] = True
