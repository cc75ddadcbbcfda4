"""What a flow says to others, and hears of them: messages, published values and streams."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import nullcontext
from typing import Any, Generic, TypeVar, overload

import msgspec
from msgspec import UNSET, Raw, UnsetType

from ojster.core.values import Seconds, to_json, to_seconds
from ojster.handlers.arguments import from_json
from ojster.handlers.flow_execution import FlowExecution
from ojster.handlers.flow_keys import input_digest
from ojster.handlers.streams import check_stream_name
from ojster.workflows.flow import MAX_MESSAGE_BYTES, PUBLISHED, NewRecord
from ojster.workflows.stream import MAX_CHUNK_BYTES

T = TypeVar("T")


class FlowStream(Generic[T]):
    """A stream of the run to which the function of a flow appends; see ``Flow.stream``.

    Parameters
    ----------
    name:
        Name of the stream.
    execution:
        The run of the function.
    """

    def __init__(self, name: str, execution: FlowExecution) -> None:
        self.name = check_stream_name(name)
        self._execution = execution

    def append(self, value: T) -> None:
        """Append a value. It is stored together with what the flow does next, or when it waits or ends.

        Parameters
        ----------
        value:
            Any JSON value, of at most 64 KiB.

        Raises
        ------
        TypeError, ValueError
            It is no JSON value, or too large.
        RuntimeError
            It is called in a local step: there use ``flow.job.stream``.
        """
        encoded = self._execution.codecs.encode_value(to_json(value))
        if len(encoded) > MAX_CHUNK_BYTES:
            what = f"A chunk of the stream {self.name!r} takes {len(encoded)} bytes"
            raise ValueError(f"{what}; at most {MAX_CHUNK_BYTES} are allowed.")
        self._tell(Raw(encoded))

    def close(self) -> None:
        """End the stream: nothing can be appended any more. Otherwise it ends with the run."""
        self._tell(UNSET)

    def _tell(self, value: Raw | UnsetType) -> None:
        now = self._execution.loop.now
        self._execution.tell(NewRecord("!chunk", "chunk", self.name, now, ended_at=now, result=value))


class Messages:
    """The part of ``Flow`` that talks to others."""

    _execution: FlowExecution
    _key: str | None

    @overload
    def receive(self, name: str, type: type[T], *, timeout: Seconds | None = None) -> Coroutine[Any, Any, T]: ...

    @overload
    def receive(self, name: str, type: None = None, *, timeout: Seconds | None = None) -> Coroutine[Any, Any, Any]: ...

    def receive(self, name: str, type: Any = None, *, timeout: Seconds | None = None) -> Coroutine[Any, Any, Any]:
        """Wait for a message with this name (``Run.send``), without a worker, and return its data.

        Messages are kept when they come, also before the flow waits for them, and received once, in their order.

        Parameters
        ----------
        name:
            Name of the message.
        type:
            What the data is converted to; by default a JSON value.
        timeout:
            Longest wait, in seconds or as a ``timedelta``; none by default.

        Returns
        -------
        Any
            The data.

        Raises
        ------
        TimeoutError
            No message has come in time.
        TypeError
            The data is not what ``type`` says.
        """
        if self._execution.is_closed:
            return self._execution.never()
        record = self._record(self._execution.key_of(name, self._key), "receive", name, None)
        return self._receive(record, type, timeout)

    @overload
    def receive_many(
        self, name: str, type: type[T], *, timeout: Seconds | None = None
    ) -> Coroutine[Any, Any, list[T]]: ...

    @overload
    def receive_many(
        self, name: str, type: None = None, *, timeout: Seconds | None = None
    ) -> Coroutine[Any, Any, list[Any]]: ...

    def receive_many(
        self, name: str, type: Any = None, *, timeout: Seconds | None = None
    ) -> Coroutine[Any, Any, list[Any]]:
        """Wait for a message with this name, and return the data of all that have come, in their order.

        Parameters
        ----------
        name, type, timeout:
            See ``receive``.

        Returns
        -------
        list
            The data of at least one message, and of at most 1,000.

        Raises
        ------
        TimeoutError, TypeError
            See ``receive``.
        """
        if self._execution.is_closed:
            return self._execution.never()
        record = self._record(self._execution.key_of(name, self._key), "receive_many", name, None)
        return self._receive(record, None if type is None else list[type], timeout)

    async def _receive(self, record: NewRecord, type: Any, timeout: Seconds | None) -> Any:
        limit = nullcontext() if timeout is None else asyncio.timeout(to_seconds(timeout))
        async with limit:
            result = await self._execution.ask(record)
        data = self._decoded(result)
        if record.kind == "receive_many":
            data = [self._execution.codecs.decode_value(message) for message in data]
        if type is None:
            return data
        try:
            return msgspec.convert(data, type, dec_hook=from_json, str_keys=True)
        except msgspec.ValidationError as error:
            raise TypeError(f"The message {record.name!r} is not what the flow receives: {error}.") from None

    @property
    def state(self) -> Any:
        """Any object that the function shares with the handlers of its updates; ``None`` at first."""
        return self._execution.state

    @state.setter
    def state(self, value: Any) -> None:
        self._execution.state = value

    def publish(self, value: Any) -> None:
        """Publish something for others to read while the flow runs, and afterwards (``Run.published``).

        The last value counts. It is stored together with what the flow does next, or when it waits or ends.

        Parameters
        ----------
        value:
            Any JSON value, of at most 256 KiB.

        Raises
        ------
        TypeError, ValueError
            It is no JSON value, or too large.
        """
        encoded = self._execution.codecs.encode_value(to_json(value))
        if len(encoded) > MAX_MESSAGE_BYTES:
            raise ValueError(f"It takes {len(encoded)} bytes; at most {MAX_MESSAGE_BYTES} can be published.")
        now = self._execution.loop.now
        self._execution.tell(NewRecord(PUBLISHED, "published", "", now, ended_at=now, result=Raw(encoded)))

    @overload
    def stream(self, name: str, type: type[T]) -> FlowStream[T]: ...

    @overload
    def stream(self, name: str, type: None = None) -> FlowStream[Any]: ...

    def stream(self, name: str, type: Any = None) -> FlowStream[Any]:
        """Return a stream of the run, to append to: others follow it from any position (``Run.stream``).

        What the function appends is in the stream once, however often it runs. A local step or a job appends with
        ``JobContext.stream`` (``flow.job.stream``): once each time it runs.

        Parameters
        ----------
        name:
            Name of the stream, of at most 255 characters. All flows and jobs of the run share it.
        type:
            Type of its values, for type checkers.

        Returns
        -------
        FlowStream
            The stream.

        Raises
        ------
        ValueError
            The name is empty or too long.

        Examples
        --------
        >>> async def answer(flow, think, questions):
        ...     steps = flow.stream("steps", str)
        ...     for question in questions:
        ...         steps.append(await flow.run(think, question))
        ...     steps.close()
        """
        return FlowStream(name, self._execution)

    def _record(self, key: str, kind: Any, name: str, input: str | None, step: Raw | UnsetType = UNSET) -> NewRecord:
        return NewRecord(key, kind, name, self._execution.loop.now, input, step=step)

    def _digest(self, value: Any) -> str | None:
        digest = input_digest(value)
        return None if digest is None else self._execution.codecs.digest(digest)

    def _decoded(self, result: Raw) -> Any:
        return self._execution.codecs.decode_value(msgspec.json.decode(result))
