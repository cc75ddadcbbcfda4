"""How do concurrent calls share transactions? What arrives while the threads are busy is merged.

Calls from event loops are collected for one turn of the loop and handed over together; a thread takes all that is
there, groups it by operation, runs each operation once over all its arguments and commits once (group commit). The
more calls wait, the cheaper each becomes. A database that can run several transactions at once has a thread for each.

A call may be patient: if it is in vain, it is kept until something happens that it waits for, and is then served by the
very transaction that makes it happen. A waiting fetch costs nothing, and gets its job with the commit of the push.
"""

from __future__ import annotations

import asyncio
import logging
import random
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final, TypeVar

from ojster.core.errors import BackendError, BackendUnavailable, OjsterError
from ojster.storage.inbox import Inbox
from ojster.storage.parked import WaitingRoom
from ojster.storage.transaction import EVERY_JOB, Later, Transaction, TryAgain

log = logging.getLogger(__name__)

A = TypeVar("A")
R = TypeVar("R")
Operation = Callable[[Transaction, Sequence[A]], Sequence[R]]
"""A transaction function that serves many calls at once: a list of arguments in, a list of results out."""

OpenTransaction = Callable[[], AbstractContextManager[Transaction]]
"""Opens a transaction: commits at the end of the block, rolls back if the block raises. Used by one thread alone."""

MOST_ARGUMENTS: Final = 1_000
"""How many arguments share one transaction at most, which bounds how long each call takes."""

MOST_TRIES: Final = 12
"""How often a transaction is run that the database undoes, before its calls are refused."""

FIRST_PAUSE: Final = 0.002
LONGEST_PAUSE: Final = 1.0
"""How long to wait before it is run again, in seconds: doubled each time, and varied."""


TRIES_ALONE: Final = 4
"""The same for a call that was in a transaction which failed so often; it is then run alone."""

LONGEST_POSTPONED: Final = 30.0
LONGEST_POSTPONEMENT: Final = 0.1
"""How long a call is made again and again that has to wait for somebody else, and the longest pause, in seconds."""


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

    __slots__ = ("in_vain", "is_over", "queues", "unwanted")

    def __init__(
        self, queues: Sequence[str], in_vain: Callable[[Any], bool], unwanted: Callable[[Any], object]
    ) -> None:
        self.queues = queues
        self.in_vain = in_vain
        self.unwanted = unwanted
        self.is_over = False
        """Whether the call is to be answered now, with whatever it has got: see ``Dispatcher.hurry``."""


class Call:
    """One call that waits for its results, one for each of its arguments. A patient call has one argument."""

    __slots__ = (
        "arguments",
        "error",
        "future",
        "has_waited",
        "operation",
        "patience",
        "port",
        "postponed_at",
        "results",
        "vain_results",
    )

    def __init__(
        self, port: _Port, operation: Operation[Any, Any], arguments: Sequence[Any], patience: Patience | None
    ) -> None:
        self.port = port
        self.operation = operation
        self.arguments = arguments
        self.patience = patience
        self.future: asyncio.Future[Sequence[Any]] = port.loop.create_future()
        self.results: Sequence[Any] = ()
        self.vain_results: Sequence[Any] = ()
        """What it had got in vain, before it waited."""
        self.error: OjsterError | None = None
        self.postponed_at: float | None = None
        self.has_waited = False

    @property
    def in_vain(self) -> bool:
        """Whether it should wait for a better result."""
        patience = self.patience
        return (
            patience is not None and not patience.is_over and self.error is None and patience.in_vain(self.results[0])
        )

    def deliver(self) -> None:
        """Give the caller its results, if it still wants them."""
        if self.future.done():
            if self.patience is not None and self.error is None and not self.patience.in_vain(self.results[0]):
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


_Item = Call | _Ring
"""What a thread is handed."""


class Dispatcher:
    """Runs transaction functions for any number of event loops.

    Parameters
    ----------
    transactions:
        How each thread opens its transactions: as many run at once as there are entries.
    name:
        The threads' name.
    """

    def __init__(self, transactions: Sequence[OpenTransaction], name: str) -> None:
        self._inbox: Inbox[_Item] = Inbox(len(transactions), MOST_ARGUMENTS)
        self._ports: dict[asyncio.AbstractEventLoop, _Port] = {}
        self._room = WaitingRoom()
        self._threads = [
            threading.Thread(target=self._run, args=(transaction,), name=f"{name}-{number}", daemon=True)
            for number, transaction in enumerate(transactions, 1)
        ]
        self._closed = False
        self._closing = threading.Lock()

    def start(self) -> None:
        """Start the threads."""
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Finish what was handed over, then end the threads."""
        with self._closing:
            if not self._closed:
                self._closed = True
                self._inbox.close()
        for thread in self._threads:
            if thread.is_alive():
                thread.join()
        _deliver(self._room.give_up())

    @property
    def busy(self) -> int:
        """How many threads are at work."""
        return self._inbox.busy

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
        if patience is not None and patience.queues:
            call.future.add_done_callback(lambda _: self._room.forget(call))
        port.put(call)
        return call.future

    def take(self, calls: list[Call]) -> None:
        """Take the calls of one turn of an event loop; for its port."""
        with self._closing:
            if not self._closed:
                self._inbox.put([(call, len(call.arguments)) for call in calls])
                return
        for call in calls:
            call.error = BackendUnavailable("The database is closed.")
            call.deliver()

    def hurry(self, patience: Patience) -> None:
        """Answer a patient call now: with what it had got in vain, or, if it is being tried, with what that brings."""
        patience.is_over = True
        _deliver(self._room.expire(patience))

    def ring(self, queues: Sequence[str] | None) -> None:
        """Say, from any thread, that another process has made jobs available; ``None``: let nobody wait on."""
        if queues is not None:
            queues = self._room.announce(queues)
        if queues is None or queues:
            self._inbox.put([(_Ring(queues), 0)])

    def ring_everybody(self) -> None:
        """Let all who wait look again, from any thread: something may have been missed."""
        self.ring(self._room.queues())

    def _run(self, transaction: OpenTransaction) -> None:
        while items := self._inbox.take():
            try:
                self._work_off(transaction, items)
            except Exception:
                log.exception("a thread of the database stumbled, and goes on")
            finally:
                self._inbox.finish()

    def _work_off(self, transaction: OpenTransaction, items: list[_Item]) -> None:
        rings = [item.queues for item in items if isinstance(item, _Ring)]
        if None in rings:
            _deliver(self._room.give_up())
        rung = {queue: EVERY_JOB for queues in rings if queues is not None for queue in queues}
        calls = [item for item in items if isinstance(item, Call)]
        if calls or rung:
            self._execute(transaction, calls, rung)

    def _execute(
        self, transaction: OpenTransaction, calls: list[Call], rung: Mapping[str, int], tries: int = MOST_TRIES
    ) -> None:
        """Run calls in one transaction, serve those who wait for what it makes available, and answer who is done."""
        for attempt in range(tries):
            since = self._room.moment()
            woken = self._room.take(rung)
            try:
                if not calls and not woken:
                    return
                with transaction() as tx:
                    self._apply(tx, woken + calls)
                    _finish(tx)
                    if fetchable := tx.effects.fetchable:
                        looked = woken + calls
                        waiting = self._room.take(fetchable)
                        woken += waiting
                        # Those who looked before it was made available look again, behind those who waited.
                        self._apply(tx, waiting + [call for call in looked if call.in_vain])
                        _finish(tx)
                    effects = tx.effects
            except Exception as error:
                for call in woken:
                    call.results = call.vain_results
                self._keep(woken, since)
                if isinstance(error, TryAgain) and attempt < tries - 1:
                    log.debug("a transaction is run again: %s", error)
                    time.sleep(min(LONGEST_PAUSE, FIRST_PAUSE * 2**attempt) * random.uniform(0.5, 1.0))
                    continue
                self._refuse(transaction, calls, error)
                return
            break
        done = [call for call in (*calls, *woken) if not self._postponed(call)]
        in_vain = [call for call in done if call.in_vain]
        self._keep(in_vain, since)
        # Others may have come to wait meanwhile for what is committed now, unless it was looked for in vain.
        exhausted = {queue for call in in_vain for queue in _queues_of(call)}
        self.ring([queue for queue in effects.fetchable if queue not in exhausted])
        _deliver(call for call in done if not call.in_vain)

    def _keep(self, calls: list[Call], since: int) -> None:
        """Keep calls that looked in vain after the moment ``since``; those that missed something look again."""
        kept = self._room.keep(calls, since)
        if kept.again:
            self._inbox.put([(call, 1) for call in kept.again])
        _deliver(kept.given_up)

    def _postponed(self, call: Call) -> bool:
        """Send a call round again if it is refused only for now; tell whether that is so. Only single calls can be."""
        if len(call.results) != 1 or not isinstance(call.results[0], Later) or call.future.done():
            return False
        now = time.monotonic()
        call.postponed_at = call.postponed_at or now
        waited = now - call.postponed_at
        if waited > LONGEST_POSTPONED:
            return False
        pause = min(LONGEST_POSTPONEMENT, max(FIRST_PAUSE, waited / 4))
        try:
            call.port.loop.call_soon_threadsafe(call.port.loop.call_later, pause, call.port.put, call)
        except RuntimeError:
            log.debug("an event loop was closed while a call was postponed")
        return True

    def _refuse(self, transaction: OpenTransaction, calls: list[Call], error: Exception) -> None:
        """Refuse calls whose transaction failed; of several, each gets its own, so that none spoils the others."""
        if isinstance(error, TryAgain) and error.lost:
            error = BackendUnavailable(f"The connection to the database breaks again and again: {error}")
        if len(calls) > 1 and not isinstance(error, BackendUnavailable):
            for call in calls:
                self._execute(transaction, [call], {}, TRIES_ALONE)
            return
        for call in calls:
            call.error = _as_ojster_error(error, call)
        if not calls:
            expected = isinstance(error, BackendUnavailable)
            log.warning("those who wait for jobs could not be served: %s", error, exc_info=None if expected else error)
        _deliver(calls)
        # What the transaction had claimed was left out by others who looked meanwhile.
        self.ring(list({queue for call in calls for queue in _queues_of(call)}))

    def _apply(self, tx: Transaction, calls: Sequence[Call]) -> None:
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


def _finish(tx: Transaction) -> None:
    for finish in tx.memory.finishers:
        finish(tx)


def _queues_of(call: Call) -> Sequence[str]:
    """The queues that a patient call waits for."""
    return call.patience.queues if call.patience is not None else ()


def _deliver(done: Iterable[Call]) -> None:
    """Hand results to the callers, each in its own event loop."""
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
    if isinstance(error, TryAgain):
        return BackendUnavailable(f"Others were in the way too often; it may succeed if it is tried again: {error}")
    name = getattr(call.operation, "__name__", str(call.operation))
    log.error("%s failed", name, exc_info=error)
    return BackendError(f"{name} failed unexpectedly: {type(error).__name__}. The server's log has the details.")
