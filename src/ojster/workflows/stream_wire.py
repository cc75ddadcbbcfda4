"""The JSON of requests and answers about streams of workflows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from msgspec import Meta, Raw, Struct

from ojster.core.calls import Arguments
from ojster.core.ids import new_id
from ojster.core.parsing import read_value
from ojster.core.timestamps import format_optional, format_timestamp, parse_timestamp
from ojster.core.wire import Count, FromWorker, Identifier, Timestamp
from ojster.jobs.wire import Start
from ojster.workflows.stream import MAX_CHUNKS_AT_ONCE, StreamChunk, StreamPage


class AppendBody(FromWorker, Arguments, kw_only=True, omit_defaults=True):
    """Values to append to a stream: any JSON values.

    An append with an ``append_id`` that the workflow has got already is not made again. A worker names itself and its
    attempt; it must then hold the lease of the job.
    """

    values: Annotated[list[Raw], Meta(min_length=1, max_length=MAX_CHUNKS_AT_ONCE)]
    append_id: Identifier | None = None
    worker_id: Identifier | None = None
    attempt: Count | None = None
    started_at: Start | None = None

    @classmethod
    def of(cls, values: tuple[bytes, ...], append_id: str | None, started_at: int | None, **worker: Any) -> AppendBody:
        """Return the body for values. Its id makes it safe to send it again."""
        return cls(
            values=[Raw(value) for value in values],
            append_id=append_id or new_id(),
            started_at=format_optional(started_at),
            **worker,
        )

    def arguments(self, now: int) -> Mapping[str, Any]:
        """Return the values as JSON, and who appends them.

        Raises
        ------
        InvalidRequest
            A value is nested too deeply.
        """
        for value in self.values:
            read_value(value, "values")
        return {
            "values": tuple(bytes(value) for value in self.values),
            "append_id": self.append_id,
            "worker_id": self.worker_id,
            "attempt": self.attempt,
            "started_at": None if self.started_at is None else parse_timestamp(self.started_at),
        }


class AppendedAnswer(Struct):
    """Values were appended; ``number`` is the position of the last one."""

    number: Count

    @classmethod
    def of(cls, value: int) -> AppendedAnswer:
        return cls(value)

    def value(self) -> int:
        return self.number


class ChunkBody(Struct):
    """A value in a stream, its position, and when it was appended."""

    number: Count
    at: Timestamp
    value: Raw


class StreamAnswer(Struct):
    """The chunks of a stream that follow a position; ``has_ended``: nothing follows them."""

    chunks: list[ChunkBody]
    has_ended: bool

    @classmethod
    def of(cls, value: StreamPage) -> StreamAnswer:
        shown = [ChunkBody(chunk.number, format_timestamp(chunk.at), chunk.value) for chunk in value.chunks]
        return cls(shown, value.has_ended)

    def value(self) -> StreamPage:
        chunks = [
            StreamChunk(chunk.number, parse_timestamp(chunk.at), Raw(bytes(chunk.value))) for chunk in self.chunks
        ]
        return StreamPage(chunks, self.has_ended)
