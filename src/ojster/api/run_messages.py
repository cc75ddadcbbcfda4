"""What a program says to a flow that it has started, and reads of it: messages, updates, published values, streams."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, ParamSpec, TypeVar, overload

import msgspec

from ojster.api.run_stream import Connected, RunStream
from ojster.client.plain_methods import plain
from ojster.core.declared_options import checks_options
from ojster.core.ids import new_id
from ojster.core.values import to_json
from ojster.handlers.flow_errors import UpdateFailed
from ojster.handlers.flow_updates import UpdateHandler
from ojster.handlers.streams import check_stream_name
from ojster.workflows.flow import MAX_WAIT_MS, FlowMessage
from ojster.workflows.stream import StreamAddress

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class RunMessages:
    """The part of ``Run`` that talks to a flow."""

    _app: Connected

    @property
    def id(self) -> str:
        """The workflow's id."""
        raise NotImplementedError

    def _wait(self, call: Coroutine[Any, Any, R], /) -> R:
        return self._app._event_loop_thread.call(call)

    @checks_options
    async def asend(
        self, name: str, data: Any = None, *, step: str | None = None, idempotency_key: str | None = None
    ) -> None:
        """Send a message to the flow (``Flow.receive``), also before it waits for the message, or has started.

        Parameters
        ----------
        name:
            Name of the message, by which the flow receives it.
        data:
            Any JSON value, of at most 256 KiB; ``None`` by default.
        step:
            The path of the step that is the flow; by default, the workflow itself is the flow.
        idempotency_key:
            A message with the same key is kept once. By default each call sends one.

        Raises
        ------
        InvalidRequest
            The name or the key is empty, longer than 255 characters, or the name begins with ``!``.
        NotFound, Conflict
            The step does not exist; there is no flow, or it has ended; or 10,000 messages wait for it.
        PayloadTooLarge, TypeError
            ``data`` is too large, or not a JSON value.
        """
        encoded = self._app.codecs.encode_value(to_json(data))
        message = FlowMessage(self.id, name, encoded, step, idempotency_key)
        await self._app.client().flows.send(message)

    send = plain(asend)

    async def aupdate(self, update: UpdateHandler[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Ask the flow for something that it answers while it runs (``FlowType.update``), and wait for the answer.

        Parameters
        ----------
        update:
            The update.
        args, kwargs:
            Arguments of its handler, without the ``Flow``.

        Returns
        -------
        Any
            The answer, converted as the return annotation of the handler says.

        Raises
        ------
        UpdateFailed
            The handler has raised an exception, or the flow has ended without an answer.
        NotFound, Conflict
            There is no flow, or it has ended before; or 10,000 messages wait for it.
        TypeError
            The handler does not take these arguments.
        """
        flows = self._app.client().flows
        encoded = self._app.codecs.encode_list(update.arguments(*args, **kwargs))
        state = await flows.update(self.id, update.name, encoded, None, new_id(), wait_ms=MAX_WAIT_MS)
        while state.state == "waiting":
            state = await flows.find_update(self.id, str(state.id), MAX_WAIT_MS)
        if state.state == "failed":
            error = msgspec.json.decode(state.error or b"{}")
            raise UpdateFailed(f"{update.name} failed: {error['type']}: {error['message']}", error)
        result = self._app.codecs.decode_value(msgspec.json.decode(state.result or b"null"))
        answer: R = update.types.convert_result(result)
        return answer

    def update(self, update: UpdateHandler[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Ask the flow for something, and wait for the answer. See ``aupdate``.

        Parameters
        ----------
        update:
            The update.
        args, kwargs:
            Arguments of its handler, without the ``Flow``.

        Returns
        -------
        Any
            The answer, converted as the return annotation of the handler says.

        Raises
        ------
        UpdateFailed, NotFound, Conflict, TypeError
            See ``aupdate``.
        """
        return self._wait(self.aupdate(update, *args, **kwargs))

    @checks_options
    async def apublished(self, *, step: str | None = None) -> Any:
        """Return what the flow has published last (``Flow.publish``), while it runs or afterwards.

        Parameters
        ----------
        step:
            The path of the step that is the flow; by default, the workflow itself is the flow.

        Returns
        -------
        Any
            A JSON value; ``None`` if it has published nothing.

        Raises
        ------
        NotFound, Conflict
            The step does not exist, or there is no flow.
        """
        return self._app.codecs.decode_value(await self._app.client().flows.published(self.id, step))

    published = plain(apublished)

    @overload
    def stream(self, name: str, type: type[T], *, after: int = 0) -> RunStream[T]: ...

    @overload
    def stream(self, name: str, type: None = None, *, after: int = 0) -> RunStream[Any]: ...

    def stream(self, name: str, type: Any = None, *, after: int = 0) -> RunStream[Any]:
        """Return the values of a stream (``Flow.stream``) as they come: ``async for chunk in run.stream("tokens")``.

        In a plain function iterate over it with ``for``. The iteration ends with the stream, or with the run.

        Parameters
        ----------
        name:
            Name of the stream. One that does not exist has no values yet.
        type:
            What the values are converted to; by default they are JSON values.
        after:
            Number of the chunk after which to begin; 0, the default: from the start. See ``RunStream.position``.

        Returns
        -------
        RunStream
            The values.

        Raises
        ------
        ValueError
            The name is empty or too long, or ``after`` is negative.
        """
        if after < 0:
            raise ValueError(f"A stream begins after chunk 0, or a later one, not {after}.")
        address = StreamAddress(self.id, check_stream_name(name), after)
        return RunStream(self._app, self._wait, address, type)
