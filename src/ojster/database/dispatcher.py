"""How do concurrent calls share a transaction? One thread, one connection; what arrives meanwhile is merged.

Calls from event loops are collected for one turn of the loop and handed over together; the thread takes all that is
there, groups it by operation, runs each operation once over all its arguments and commits once (group commit). The
more calls wait, the cheaper each becomes.

A call may be patient: if it is in vain, it is kept until something happens that it waits for, and is then served by the
very transaction that makes it happen. A waiting fetch costs nothing, and gets its job with the commit of the push.
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


class Patience:
    """What a call waits for that was made in vain.

    Parameters
    ----------
    queues:
        The call is tried again whenever jobs become available in one of them.
    in_vain:
        Tells of a result whether it is worth waiting for a better one.
    unwanted:
        Called in the caller's loop with a result that comes after the caller has given up.
    """

    __slots__ = ("in_vain", "queues", "unwanted")

    def __init__(
        self, queues: Sequence[str], in_vain: Callable[[Any], bool], unwanted: Callable[[Any], object]
    ) -> None:
        self.queues = queues
        self.in_vain = in_vain
        self.unwanted = unwanted


class Call:
    """One call that waits for its results, one for each of its arguments. A patient call has one argument."""

    __slots__ = ("arguments", "error", "future", "operation", "patience", "port", "results")

    def __init__(
        self, port: _Port, operation: Operation[Any, Any], arguments: Sequence[Any], patience: Patience | None
    ) -> None:
        self.port = port
        self.operation = operation
        self.arguments = arguments
        self.patience = patience
        self.future: asyncio.Future[Sequence[Any]] = port.loop.create_future()
        self.results: Sequence[Any] = ()
        self.error: OjsterError | None = None

    @property
    def in_vain(self) -> bool:
        """Whether it should wait for a better result."""
        return self.patience is not None and self.error is None and self.patience.in_vain(self.results[0])

    def deliver(self) -> None:
        """Give the caller its results, if it still wants them."""
        if self.future.done():
            if self.patience is not None and self.error is None and not self.in_vain:
                self.patience.unwanted(self.results[0])
        elif self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.results)


class _Port:
    """The side of the dispatcher that one event loop sees."""

    def __init__(self, loop: asyncio.AbstractEventLoop, dispatcher: Dispatcher) -> None:
        self.loop = loop
        self._dispatcher = dispatcher
        self._calls: list[Call] = []

    def put(self, call: Call) -> None:
        if not self._calls:
            self.loop.call_soon(self._hand_over)
        self._calls.append(call)

    def _hand_over(self) -> None:
        calls, self._calls = self._calls, []
        self._dispatcher.take(calls)


class _Ring:
    """Word that something has happened elsewhere: jobs are available in ``queues``; ``None``: nobody is to wait on."""

    __slots__ = ("queues",)

    def __init__(self, queues: Sequence[str] | None) -> None:
        self.queues = queues


_Item = list[Call] | _Ring | None
"""What the thread is handed: calls, a ring, or (``None``) the end."""


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
        self._inbox: SimpleQueue[_Item] = SimpleQueue()
        self._ports: dict[asyncio.AbstractEventLoop, _Port] = {}
        self._waiting: dict[str, dict[Call, None]] = {}
        """Patient calls, by queue, in the order in which they came."""
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._closed = False
        self._closing = threading.Lock()

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """Finish what was handed over, then end the thread."""
        with self._closing:
            self._closed = True
            self._inbox.put(None)
        if self._thread.is_alive():
            self._thread.join()

    def run(
        self, operation: Operation[A, R], arguments: Sequence[A], patience: Patience | None = None
    ) -> asyncio.Future[Sequence[R]]:
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
            port = self._ports[loop] = _Port(loop, self)
        call = Call(port, operation, arguments, patience)
        port.put(call)
        return call.future

    def take(self, calls: list[Call]) -> None:
        """Take the calls of one turn of an event loop; for its port."""
        with self._closing:
            if not self._closed:
                self._inbox.put(calls)
                return
        for call in calls:
            call.error = BackendUnavailable("The database is closed.")
            call.deliver()

    def ring(self, queues: Sequence[str] | None) -> None:
        """Say, from any thread, that another process has made jobs available; ``None``: let nobody wait on."""
        self._inbox.put(_Ring(queues))

    def _run(self) -> None:
        inbox = self._inbox
        closing = False
        while not closing:
            items = [inbox.get()]
            count = 0
            while count < MOST_ARGUMENTS:
                try:
                    item = inbox.get_nowait()
                except Empty:
                    break
                items.append(item)
                count += sum(len(call.arguments) for call in item) if isinstance(item, list) else 0
            closing = None in items
            calls = [call for item in items if isinstance(item, list) for call in item]
            done = self._execute(calls)
            for item in items:
                if isinstance(item, _Ring):
                    done += self._give_up() if item.queues is None else self._execute([], item.queues)
            if closing:
                done += self._give_up()
            self._deliver(done)

    def _execute(self, calls: list[Call], queues: Sequence[str] = ()) -> list[Call]:
        """Run calls in one transaction, and serve those who wait for what it makes available; return who is done."""
        if not calls and not any(queue in self._waiting for queue in queues):
            return []
        try:
            with self._transaction() as tx:
                self._apply(tx, calls)
                for call in calls:
                    if call.in_vain:
                        self._keep(call)
                served = self._serve(tx, queues)
        except Exception as error:
            for call in calls:
                self._drop(call)
            if len(calls) > 1 and not isinstance(
                error, BackendUnavailable
            ):  # so that one bad call does not spoil the others
                return [done for call in calls for done in self._execute([call])]
            for call in calls:
                call.error = _as_ojster_error(error, call)
            if not calls:
                log.error("those who wait for %s could not be served", ", ".join(queues), exc_info=error)
            return calls
        done = [call for call in calls if not call.in_vain]
        for call, results in served.items():
            call.results = results
            self._drop(call)
        return done + list(served)

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

    def _serve(self, tx: Transaction, queues: Sequence[str]) -> dict[Call, Sequence[Any]]:
        """Try the patient calls that wait for what this transaction, or another process, has made available."""
        served: dict[Call, Sequence[Any]] = {}
        for queue in {**tx.effects.available, **dict.fromkeys(queues, 0)} if self._waiting else ():
            for call in list(self._waiting.get(queue, ())):
                if call.future.done():
                    self._drop(call)
                elif call not in served:
                    results = call.operation(tx, call.arguments)
                    assert call.patience is not None
                    if call.patience.in_vain(results[0]):
                        break  # nor is there anything for those who came later
                    served[call] = results
        return served

    def _keep(self, call: Call) -> None:
        assert call.patience is not None
        if not call.future.done():
            for queue in call.patience.queues:
                self._waiting.setdefault(queue, {})[call] = None

    def _drop(self, call: Call) -> None:
        for queue in call.patience.queues if call.patience is not None else ():
            waiting = self._waiting.get(queue, {})
            waiting.pop(call, None)
            if not waiting:
                self._waiting.pop(queue, None)

    def _give_up(self) -> list[Call]:
        """Let nobody wait on: each gets what it had got in vain."""
        calls = list(dict.fromkeys(call for waiting in self._waiting.values() for call in waiting))
        self._waiting.clear()
        return calls

    def _deliver(self, done: list[Call]) -> None:
        by_port: dict[_Port, list[Call]] = {}
        for call in done:
            by_port.setdefault(call.port, []).append(call)
        for port, calls in by_port.items():
            try:
                port.loop.call_soon_threadsafe(_deliver_all, calls)
            except RuntimeError:
                log.debug("an event loop was closed while %d calls were under way", len(calls))


def _deliver_all(calls: list[Call]) -> None:
    for call in calls:
        call.deliver()


def _as_ojster_error(error: Exception, call: Call) -> OjsterError:
    if isinstance(error, OjsterError):
        return error
    name = getattr(call.operation, "__name__", str(call.operation))
    log.error("%s failed", name, exc_info=error)
    return BackendError(f"{name} failed unexpectedly: {type(error).__name__}. The server's log has the details.")
