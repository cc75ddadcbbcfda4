"""Updates of flows: requests that a running flow answers, by a handler beside its function."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

import msgspec
from msgspec import UNSET, Raw, UnsetType

from ojster.core.values import to_json
from ojster.handlers.arguments import HandlerTypes
from ojster.handlers.flow import Flow
from ojster.handlers.flow_errors import described
from ojster.handlers.flow_execution import FlowExecution
from ojster.handlers.handler_signature import HandlerSignature
from ojster.workflows.flow import MAX_MESSAGE_BYTES, RESERVED, NewRecord, key_of_update, message_of

P = ParamSpec("P")
R = TypeVar("R")

log = logging.getLogger(__name__)


class UpdateHandler(Generic[P, R]):
    """A declared update of a flow. ``FlowType.update`` creates it from a coroutine function.

    Parameters
    ----------
    flow:
        Name of the flow, for errors.
    function:
        The handler: a coroutine function whose first parameter is the ``Flow``.

    Raises
    ------
    TypeError
        The function cannot be the handler of an update.

    Examples
    --------
    >>> from ojster import App, Flow
    >>> app = App("sqlite:///:memory:")
    >>> @app.flow("counter")
    ... async def count(flow: Flow) -> int:
    ...     flow.state = 0
    ...     return await flow.receive("end", int)
    >>> @count.update
    ... async def add(flow: Flow, number: int) -> int:
    ...     flow.state += number
    ...     return flow.state
    >>> add.name
    'add'
    >>> app.close()
    """

    def __init__(self, flow: str, function: Callable[Concatenate[Flow, P], Coroutine[Any, Any, R]]) -> None:
        self.name = function.__name__
        self.function = function
        parameters = list(inspect.signature(function).parameters.values())
        if not inspect.iscoroutinefunction(function) or not parameters:
            raise TypeError(
                f"{flow}: the handler of an update is a coroutine function whose first parameter is the Flow: async "
                f"def {self.name}(flow: Flow, …)."
            )
        signature = inspect.signature(function).replace(parameters=parameters[1:])
        self._arguments = HandlerSignature(f"{flow}.{self.name}", signature)
        self.types = HandlerTypes(f"{flow}.{self.name}", function, signature, 0)

    def arguments(self, *args: P.args, **kwargs: P.kwargs) -> list[Any]:
        """Return arguments of the handler as JSON values.

        Returns
        -------
        list
            The arguments, by position.

        Raises
        ------
        TypeError
            The handler does not take these arguments, or they are no JSON values.
        """
        encoded: list[Any] = msgspec.json.decode(to_json(list(self._arguments.arguments(args, kwargs))))
        self.types.convert(encoded)
        return encoded


async def listen(update: UpdateHandler[..., Any], flow: Flow, execution: FlowExecution) -> None:
    """Handle the updates that come, each in a task of its own."""
    view = Flow(execution)  # only the function restarts the flow
    view.__dict__["random"] = flow.random
    number = 0
    while True:
        number += 1
        name = message_of(update.name)
        key = key_of_update(name, number)
        execution.expected[key] = update
        asked = NewRecord(key, "receive", name, execution.loop.now)
        answering: Any = _answer(update, view, execution, key, await execution.ask(asked))
        answering.__qualname__ = update.name  # by which keys are made of what the handler asks for
        execution.loop.create_task(answering)


async def _answer(update: UpdateHandler[..., Any], flow: Flow, execution: FlowExecution, key: str, sent: Raw) -> None:
    result: Raw | UnsetType = UNSET
    error: Raw | UnsetType = UNSET
    call: Any = update.function
    try:
        args, named = update.types.convert(execution.codecs.decode_list(msgspec.json.decode(sent)))  # it may be altered
        answer = to_json(await call(flow, *args, **named))
        result = Raw(_small_enough(execution.codecs.encode_value(answer)))
    except BaseException as raised:
        task = asyncio.current_task()
        is_stopped = task is not None and task.cancelling() > 0  # the function of the flow has ended
        if is_stopped or not isinstance(raised, Exception | asyncio.CancelledError):
            raise
        error = Raw(to_json({name: value for name, value in described(raised).items() if name != "backtrace"}))
        if not execution.is_replaying:
            log.info("the update %s of the flow %s has failed: %r", update.name, flow.id, raised)
    now = execution.loop.now
    answer_key = f"{RESERVED}answer{key.removeprefix(RESERVED)}"
    execution.tell(NewRecord(answer_key, "answer", key, now, ended_at=now, result=result, error=error))


def _small_enough(value: bytes) -> bytes:
    if len(value) > MAX_MESSAGE_BYTES:
        raise ValueError(f"The answer takes {len(value)} bytes; at most {MAX_MESSAGE_BYTES} are allowed.")
    return value
