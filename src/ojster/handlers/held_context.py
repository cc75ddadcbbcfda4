"""A context manager that is open in a task of its own, while other code runs."""

from __future__ import annotations

import asyncio
import contextvars
from contextlib import AbstractAsyncContextManager
from typing import Generic, TypeVar

T = TypeVar("T")


class HeldContext(Generic[T]):
    """An asynchronous context manager that a task of its own enters and leaves.

    Parameters
    ----------
    loop:
        The event loop of the task.
    manager:
        The context manager.
    context:
        The context variables of the task; ``None``: a copy of the present ones.

    Attributes
    ----------
    entered:
        The value of the context manager, once it is entered.
    task:
        Ends when the context manager was left. Its result is what was raised meanwhile, if anything: a task cannot
        carry all exceptions.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        manager: AbstractAsyncContextManager[T],
        context: contextvars.Context | None = None,
    ) -> None:
        self.entered: asyncio.Future[T] = loop.create_future()
        self._left: asyncio.Future[BaseException | None] = loop.create_future()
        self.task = loop.create_task(self._hold(manager), context=context)

    async def _hold(self, manager: AbstractAsyncContextManager[T]) -> BaseException | None:
        error = traceback = None
        try:
            async with manager as value:
                self.entered.set_result(value)
                if (error := await self._left) is not None:
                    traceback = error.__traceback__
                    raise error
        except BaseException as raised:
            if raised is error:
                raised.__traceback__ = traceback  # it would keep this frame, and with it itself
            return raised
        return None

    def leave(self, error: BaseException | None) -> None:
        """Let the task leave the context manager, because of an error or not."""
        self._left.set_result(error)
