"""The JSON of requests and answers about files."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct

from ojster.files.file import OCTET_STREAM


class FileBody(Struct, forbid_unknown_fields=True):
    """A file to upload; ``size`` is in bytes."""

    size: Annotated[int, Meta(ge=0)] | None = None
    sha256: str | None = None
    content_type: str = OCTET_STREAM
    filename: str | None = None
    job_id: Annotated[str, Meta(description="Id of the job that the file belongs to.")] | None = None


FILE: Final = msgspec.json.Decoder(FileBody)
