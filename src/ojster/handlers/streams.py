"""Streams as jobs see them: they append, and others follow."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

from msgspec.structs import replace

from ojster.client.interface import Client
from ojster.client.plain_methods import plain
from ojster.core.values import to_json
from ojster.handlers.codec import Codecs
from ojster.workflows.stream import MAX_CHUNKS_AT_ONCE, MAX_STREAM_NAME, StreamAppend

T = TypeVar("T")


def check_stream_name(name: str) -> str:
    """Return the name of a stream.

    Raises
    ------
    ValueError
        It is empty or too long.
    """
    if not 0 < len(name) <= MAX_STREAM_NAME:
        raise ValueError(f"The name of a stream has 1 to {MAX_STREAM_NAME} characters, not {len(name)}.")
    return name


class JobStream(Generic[T]):
    """A stream of a workflow to which a job appends; see ``JobContext.stream``.

    Methods that begin with ``a`` are for asynchronous handlers, the others for plain functions.

    Parameters
    ----------
    client:
        Client of the worker.
    name:
        Name of the stream.
    attempt:
        Returns the stream, and the attempt that appends, without values.
    wait:
        Waits for a call in a plain function.
    codecs:
        Encode the values; ``None``: nothing does.
    """

    def __init__(
        self,
        client: Client,
        name: str,
        attempt: Callable[[], StreamAppend],
        wait: Callable[[Coroutine[Any, Any, Any]], Any],
        codecs: Codecs | None = None,
    ) -> None:
        self.name = check_stream_name(name)
        self._codecs = codecs or Codecs(())
        self._client = client
        self._attempt = attempt
        self._wait = wait

    async def aappend(self, *values: T) -> None:
        """Append values. They are stored when this returns; readers get them at once.

        Parameters
        ----------
        values:
            JSON values, of at most 64 KiB each.

        Raises
        ------
        TypeError
            One is no JSON value.
        PayloadTooLarge
            One, or the stream, is too large.
        InvalidRequest
            The job belongs to no workflow, or the stream is closed.
        Conflict
            The job was cancelled or has lost its lease; the handler should stop.
        """
        encoded = tuple(self._codecs.encode_value(to_json(value)) for value in values)
        for start in range(0, len(encoded), MAX_CHUNKS_AT_ONCE):
            part = encoded[start : start + MAX_CHUNKS_AT_ONCE]
            await self._client.flows.append(replace(self._attempt(), values=part))

    append = plain(aappend)
