"""How do concurrent calls share a transaction? One thread, one connection; what arrives meanwhile is merged.

Calls from event loops are collected for one turn of the loop and handed over together; the thread takes all that is
there, groups it by operation, runs each operation once over all its arguments and commits once (group commit). The
more calls wait, the cheaper each becomes.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from queue import Empty, SimpleQueue
from typing import Any, Final, TypeVar

from ojster.database.transaction import Transaction
from ojster.model.errors import BackendError, BackendUnavailable, OjsterError

log = logging.getLogger(__name__)

A = TypeVar("A")
R = TypeVar("R")
Operation = Callable[[Transaction, Sequence[A]], Sequence[R]]
"""A transaction function that serves many calls at once: a list of arguments in, a list of results out."""

MOST_ARGUMENTS: Final = 1_000
"""How many arguments share one transaction at most, which bounds how long each call takes."""


class Call:
    """One call that waits for its results, one for each of its arguments."""

    __slots__ = ("arguments", "error", "future", "operation", "results")

    def __init__(
        self, operation: Operation[Any, Any], arguments: Sequence[Any], future: asyncio.Future[Sequence[Any]]
    ) -> None:
        self.operation = operation
        self.arguments = arguments
        self.future = future
        self.results: Sequence[Any] = ()
        self.error: OjsterError | None = None


class _Port:
    """The side of the dispatcher that one event loop sees."""

    def __init__(self, loop: asyncio.AbstractEventLoop, inbox: SimpleQueue[tuple[_Port, list[Call]] | None]) -> None:
        self.loop = loop
        self._inbox = inbox
        self._calls: list[Call] = []

    def put(self, operation: Operation[Any, Any], arguments: Sequence[Any]) -> asyncio.Future[Sequence[Any]]:
        future: asyncio.Future[Sequence[Any]] = self.loop.create_future()
        if not self._calls:
            self.loop.call_soon(self._hand_over)
        self._calls.append(Call(operation, arguments, future))
        return future

    def _hand_over(self) -> None:
        calls, self._calls = self._calls, []
        self._inbox.put((self, calls))

    def deliver(self, calls: list[Call]) -> None:
        for call in calls:
            if not call.future.done():
                if call.error is not None:
                    call.future.set_exception(call.error)
                else:
                    call.future.set_result(call.results)


class Dispatcher:
    """Runs transaction functions for any number of event loops, one transaction at a time.

    Parameters
    ----------
    transaction:
        Opens a transaction: commits at the end of the block, rolls back if the block raises. Only used in the thread.
    name:
        The thread's name.
    """

    def __init__(self, transaction: Callable[[], AbstractContextManager[Transaction]], name: str) -> None:
        self._transaction = transaction
        self._inbox: SimpleQueue[tuple[_Port, list[Call]] | None] = SimpleQueue()
        self._ports: dict[asyncio.AbstractEventLoop, _Port] = {}
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._closed = False

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """Finish what was handed over, then end the thread."""
        self._closed = True
        if self._thread.is_alive():
            self._inbox.put(None)
            self._thread.join()

    def run(self, operation: Operation[A, R], arguments: Sequence[A]) -> asyncio.Future[Sequence[R]]:
        """Run ``operation`` for ``arguments``, together with others that wait; return its results in the running loop.

        Raises
        ------
        BackendUnavailable
            The database is closed or cannot be reached.
        BackendError
            The operation failed unexpectedly.
        """
        if self._closed:
            raise BackendUnavailable("The database is closed.")
        loop = asyncio.get_running_loop()
        port = self._ports.get(loop)
        if port is None:
            self._ports = {known: port for known, port in self._ports.items() if not known.is_closed()}
            port = self._ports[loop] = _Port(loop, self._inbox)
        return port.put(operation, arguments)

    def _run(self) -> None:
        inbox = self._inbox
        closing = False
        while not closing:
            arrived = [inbox.get()]
            count = 0
            while count < MOST_ARGUMENTS:
                try:
                    item = inbox.get_nowait()
                except Empty:
                    break
                arrived.append(item)
                count += sum(len(call.arguments) for call in item[1]) if item else 0
            batches = [item for item in arrived if item is not None]
            closing = len(batches) < len(arrived)
            self._execute([call for _, calls in batches for call in calls])
            for port, calls in batches:
                try:
                    port.loop.call_soon_threadsafe(port.deliver, calls)
                except RuntimeError:
                    log.debug("an event loop was closed while %d calls were under way", len(calls))

    def _execute(self, calls: list[Call]) -> None:
        if not calls:
            return
        try:
            with self._transaction() as tx:
                self._apply(tx, calls)
        except Exception as error:
            if len(calls) > 1:  # so that one bad call does not spoil the others
                for call in calls:
                    self._execute([call])
            else:
                calls[0].error = _as_ojster_error(error, calls[0])

    def _apply(self, tx: Transaction, calls: list[Call]) -> None:
        alike: dict[Operation[Any, Any], list[Call]] = {}
        for call in calls:
            alike.setdefault(call.operation, []).append(call)
        for operation, group in alike.items():
            if len(group) == 1:
                group[0].results = operation(tx, group[0].arguments)
                continue
            results = operation(tx, [argument for call in group for argument in call.arguments])
            position = 0
            for call in group:
                call.results = results[position : position + len(call.arguments)]
                position += len(call.arguments)


def _as_ojster_error(error: Exception, call: Call) -> OjsterError:
    if isinstance(error, OjsterError):
        return error
    name = getattr(call.operation, "__name__", str(call.operation))
    log.error("%s failed", name, exc_info=error)
    return BackendError(f"{name} failed unexpectedly: {type(error).__name__}. The server's log has the details.")
