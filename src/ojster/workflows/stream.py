"""Streams of workflows: what appends to them, and what their readers get."""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Raw, Struct

from ojster.core.calls import SET_BY_SERVICE
from ojster.core.wire import Count

MAX_STREAM_NAME: Final = 255
"""Maximum length of the name of a stream, in characters."""

MAX_STREAMS: Final = 100
"""Maximum number of streams of a workflow."""

MAX_CHUNKS: Final = 100_000
"""Maximum number of chunks of a stream."""

MAX_CHUNK_BYTES: Final = 65_536
"""Maximum size of a chunk of a stream, in bytes of JSON."""

MAX_STREAM_BYTES: Final = 16_777_216
"""Maximum size of all chunks of a stream, in bytes of JSON."""

MAX_CHUNKS_AT_ONCE: Final = 250
"""Maximum number of chunks that are appended, or read, at once."""


class StreamAppend(Struct, frozen=True):
    """Values that a job appends to a stream of its workflow.

    Parameters
    ----------
    job_id:
        The job, which must run.
    name:
        Name of the stream.
    values:
        Any JSON values.
    append_id:
        The append is made once, also if it is sent again.
    worker_id, attempt, started_at:
        The attempt that appends, as in a ``Turn``; ``None``: any.
    """

    job_id: str
    name: str
    values: tuple[bytes, ...]
    append_id: str | None = None
    worker_id: str | None = None
    attempt: int | None = None
    started_at: int | None = None


class StreamAddress(Struct, frozen=True):
    """A position in a stream.

    Parameters
    ----------
    workflow_id, name:
        The workflow, and the name of its stream.
    after:
        Number of the last chunk that the reader knows; 0: none.
    tenant:
        The tenant that asks; ``None``: any.
    """

    workflow_id: str
    name: str
    after: Count = 0
    tenant: Annotated[str | None, SET_BY_SERVICE] = None


class StreamChunk(Struct, frozen=True):
    """A value in a stream.

    Parameters
    ----------
    number:
        Its position: the numbers of a stream ascend, from 1.
    at:
        When it was appended, in microseconds since the epoch.
    value:
        Any JSON value.
    """

    number: int
    at: int
    value: Raw


class StreamPage(Struct, frozen=True):
    """The chunks that follow a position.

    Parameters
    ----------
    chunks:
        At most 250, in their order.
    has_ended:
        Whether nothing follows: the stream is closed, or its workflow has finished.
    """

    chunks: list[StreamChunk]
    has_ended: bool


def key_of_chunk(name: str, number: int) -> str:
    """Return the key of the record with which the function of a flow appends to a stream, or closes it, once more."""
    return f"!chunk/{number}/{name}"


def key_of_stream(name: str) -> str:
    """Return the key of the record that says how often the function of a flow has appended to a stream."""
    return f"!stream/{name}"
