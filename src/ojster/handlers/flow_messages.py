"""What a flow says to others, and hears of them: messages, published values and streams."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import nullcontext
from typing import Any, Generic, TypeVar, overload

import msgspec
from msgspec import UNSET, Raw, UnsetType

from ojster.core.values import Seconds, to_json, to_millis, to_seconds
from ojster.handlers.arguments import converted_to
from ojster.handlers.flow_execution import FlowExecution
from ojster.handlers.flow_keys import input_digest
from ojster.handlers.streams import check_stream_name
from ojster.workflows.broadcast import MAX_LOOK_BACK, key_of_broadcast
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
    def receive(
        self,
        name: str,
        type: type[T],
        *,
        timeout: Seconds | None = None,
        key: str | int | None = None,
        look_back: Seconds = 0,
    ) -> Coroutine[Any, Any, T]: ...

    @overload
    def receive(
        self,
        name: str,
        type: None = None,
        *,
        timeout: Seconds | None = None,
        key: str | int | None = None,
        look_back: Seconds = 0,
    ) -> Coroutine[Any, Any, Any]: ...

    def receive(
        self,
        name: str,
        type: Any = None,
        *,
        timeout: Seconds | None = None,
        key: str | int | None = None,
        look_back: Seconds = 0,
    ) -> Coroutine[Any, Any, Any]:
        """Wait for a message with this name (``Run.send``), without a worker, and return its data.

        Messages are kept when they come, also before the flow waits for them, and received once, in their order.

        With ``key``, it waits for a message to all flows that wait for this name and key (``App.send``), and receives
        those that are sent after it began to wait. When it waits for the same name and key again, it has missed none.

        Parameters
        ----------
        name:
            Name of the message.
        type:
            What the data is converted to; by default a JSON value.
        timeout:
            Longest wait, in seconds or as a ``timedelta``, at most 100 years; none by default.
        key:
            What the message is about, such as the id of an order; ``None``, the default: messages to this flow.
        look_back:
            With ``key``: how long before the wait a message may have been sent, in seconds or as a ``timedelta``, at
            most 7 days; 0 by default.

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
        ValueError
            The key, the look-back or the timeout is not possible.
        """
        if self._execution.is_closed:
            return self._execution.never()
        return self._receive(self._asked("receive", "listen", name, key, look_back), type, timeout)

    @overload
    def receive_many(
        self,
        name: str,
        type: type[T],
        *,
        timeout: Seconds | None = None,
        key: str | int | None = None,
        look_back: Seconds = 0,
    ) -> Coroutine[Any, Any, list[T]]: ...

    @overload
    def receive_many(
        self,
        name: str,
        type: None = None,
        *,
        timeout: Seconds | None = None,
        key: str | int | None = None,
        look_back: Seconds = 0,
    ) -> Coroutine[Any, Any, list[Any]]: ...

    def receive_many(
        self,
        name: str,
        type: Any = None,
        *,
        timeout: Seconds | None = None,
        key: str | int | None = None,
        look_back: Seconds = 0,
    ) -> Coroutine[Any, Any, list[Any]]:
        """Wait for a message with this name, and return the data of all that have come, in their order.

        Parameters
        ----------
        name, type, timeout, key, look_back:
            See ``receive``.

        Returns
        -------
        list
            The data of at least one message, and of at most 1,000.

        Raises
        ------
        TimeoutError, TypeError, ValueError
            See ``receive``.
        """
        if self._execution.is_closed:
            return self._execution.never()
        record = self._asked("receive_many", "listen_many", name, key, look_back)
        return self._receive(record, None if type is None else list[type], timeout)

    def _asked(self, kind: str, by_key: str, name: str, key: str | int | None, look_back: Seconds) -> NewRecord:
        """Return the record that waits for a message, or with a key for a broadcast."""
        micros = to_millis(look_back) * 1_000
        if key is None:
            if micros:
                raise ValueError(
                    "A flow looks back to messages with a key alone. Messages to the flow are kept anyway."
                )
            return self._record(self._execution.key_of(name, self._key), kind, name, None)
        if micros > MAX_LOOK_BACK:
            raise ValueError(f"A flow looks back at most 7 days, not {look_back}.")
        about = key_of_broadcast(key)
        record = self._record(self._execution.key_of(name, self._key), by_key, name, self._digest([name, about]))
        return msgspec.structs.replace(record, correlation_key=about, look_back=micros)

    async def _receive(self, record: NewRecord, type: Any, timeout: Seconds | None) -> Any:
        limit = nullcontext() if timeout is None else asyncio.timeout(_bounded(timeout))
        if type is not None:
            self._execution.expected[record.key] = type
        async with limit:
            result = await self._execution.ask(record)
        data = self._decoded(result)
        if record.kind in ("receive_many", "listen_many"):
            data = [self._execution.codecs.decode_value(message) for message in data]
        if type is None:
            return data
        try:
            return converted_to(type, data)
        except msgspec.ValidationError as error:
            raise TypeError(
                f"The message {record.name!r} is not what the flow receives: {error}. A retry gets the same message: "
                f"catch this error in the function, or fork the run from {record.key!r} with the right result."
            ) from None

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


def _bounded(timeout: Seconds) -> float:
    """Return a timeout in seconds; one that has passed already may be negative."""
    seconds = to_seconds(timeout)
    return seconds if seconds <= 0 else to_millis(timeout) / 1000
