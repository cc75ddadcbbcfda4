"""``Run.stream``: the chunks of a stream, as they come."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from ojster.client.event_loop_thread import EventLoopThread
from ojster.client.interface import Client
from ojster.handlers.arguments import from_json
from ojster.handlers.codec import Codecs
from ojster.workflows.flow import MAX_WAIT_MS
from ojster.workflows.stream import StreamAddress

T = TypeVar("T")


class Connected(Protocol):
    """An application, as far as a handle needs it."""

    _event_loop_thread: EventLoopThread

    @property
    def codecs(self) -> Codecs:
        """The codecs of arguments, messages and what flows publish."""

    def client(self) -> Client:
        """Return the client for the running event loop."""


class RunStream(Generic[T]):
    """The values of a stream of a run, as they come: iterate over it with ``async for``, or with ``for``.

    The iteration ends when the stream is closed, or when the run has finished. Another one goes on at ``position``.

    Parameters
    ----------
    app:
        The application that the run belongs to.
    wait:
        Waits for a call in a plain function.
    start:
        The stream, and the position after which to begin.
    type:
        What values are converted to; ``None``: JSON values.

    Attributes
    ----------
    position:
        Number of the last chunk that was read. Keep it, and pass it as ``after``, to go on later.
    """

    def __init__(
        self,
        app: Connected,
        wait: Callable[[Coroutine[Any, Any, T]], T],
        start: StreamAddress,
        type: type[T] | None,
    ) -> None:
        self._app = app
        self._wait = wait
        self._start = start
        self._type = type
        self.position = start.after

    async def __aiter__(self) -> AsyncIterator[T]:
        """Yield the values that follow the position.

        Yields
        ------
        Any
            A value, converted to the type of the stream.

        Raises
        ------
        NotFound
            The run does not exist.
        TypeError
            A value is not of the type. Its position counts as read.
        """
        has_ended = False
        while not has_ended:
            address = msgspec.structs.replace(self._start, after=self.position)
            page = await self._app.client().flows.read_stream(address, MAX_WAIT_MS)
            for chunk in page.chunks:
                self.position = chunk.number
                yield self._converted(chunk.value)
            has_ended = page.has_ended

    def __iter__(self) -> Iterator[T]:
        """Yield the values that follow the position, in a plain function. See ``__aiter__``."""
        values = aiter(self)
        while True:
            try:
                yield self._wait(_next(values))
            except StopAsyncIteration:
                return

    def _converted(self, value: msgspec.Raw) -> T:
        read = self._app.codecs.decode_value(msgspec.json.decode(value))
        try:
            converted: T = (
                read if self._type is None else msgspec.convert(read, self._type, dec_hook=from_json, str_keys=True)
            )
        except msgspec.ValidationError as error:
            text = f"Chunk {self.position} of the stream {self._start.name!r} is not what is expected: {error}."
            raise TypeError(text) from None
        return converted


async def _next(values: AsyncIterator[T]) -> T:
    return await anext(values)
