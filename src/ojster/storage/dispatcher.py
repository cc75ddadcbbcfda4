"""Group commit: the dispatcher merges concurrent calls into shared transactions.

Each event loop collects the calls of one turn and hands them over together. A thread takes all waiting calls, groups
them by operation, runs each operation once over all its arguments, and commits once. The more calls wait, the cheaper
each becomes. A database that can run several transactions at once has one thread for each.

A long-poll call that finds nothing is parked until there is news of one of its topics. The transaction with the news,
such as jobs that become available, then serves the parked call. A parked fetch costs nothing, and gets its job with the
commit of the push.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import chain
from operator import attrgetter
from typing import Any, Final, TypeVar
from weakref import WeakSet

from ojster.core.errors import BackendError, BackendUnavailable, InvalidRequest, OjsterError
from ojster.core.printable import unstorable
from ojster.core.tuning import long_work
from ojster.storage.call import LongPoll, PendingCall, Port, TransactionFunction, place_of
from ojster.storage.effects import UNKNOWN_COUNT
from ojster.storage.inbox import Inbox
from ojster.storage.parked import ParkedCalls
from ojster.storage.transaction import Later, Transaction, TryAgain

log = logging.getLogger(__name__)

A = TypeVar("A")
R = TypeVar("R")

OpenTransaction = Callable[[], AbstractContextManager[Transaction]]
"""Opens a transaction: commits at the end of the block, rolls back if the block raises. Used by one thread alone."""


class StatementRefused(Exception):
    """The database refuses a statement, for a reason that may concern one of several calls alone, and may pass."""


MAX_ARGUMENTS: Final = 1_000
"""Maximum number of arguments in one transaction, to bound the duration of each call."""

LONG_WORK: Final = 200
"""Weight of a call from which on threads take turns more often while it runs."""

MAX_TRIES: Final = 12
"""Maximum number of runs of a transaction that the database rolls back."""

FIRST_RETRY_PAUSE_SECONDS: Final = 0.002
"""First pause before another run, in seconds; doubled each time, with jitter."""

MAX_RETRY_PAUSE_SECONDS: Final = 1.0
"""Maximum pause before another run, in seconds."""

MAX_TRIES_ALONE: Final = 4
"""Maximum number of runs of a call that is run alone, after the transaction that it shared has failed."""

MAX_POSTPONED_SECONDS: Final = 30.0
"""Maximum time for which a call refused with ``Later`` is retried, in seconds."""

MAX_POSTPONE_PAUSE_SECONDS: Final = 0.1
"""Maximum pause between these retries, in seconds."""

FIRST_LOOK_PAUSE_SECONDS: Final = 0.01
"""First pause before claims look again at what they skipped, in seconds; doubled while they skip it again."""

MAX_LOOK_PAUSE_SECONDS: Final = 0.1
"""Maximum pause before they look again, in seconds."""


class _LoopCalls:
    """The calls of one event loop, handed to the dispatcher once per turn of the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, dispatcher: Dispatcher) -> None:
        self.loop = loop
        self._dispatcher = dispatcher
        self._calls: list[PendingCall] = []

    def put(self, call: PendingCall) -> None:
        if not self._calls:
            self.loop.call_soon(self._hand_over)
        self._calls.append(call)

    def join(self, call: PendingCall) -> None:
        """Hand over a call together with the one before it of this turn."""
        self._calls[-1].companion = call

    def _hand_over(self) -> None:
        calls, self._calls = self._calls, []
        self._dispatcher.take(calls)


class _WakeUp:
    """A wake-up: there is news of ``topics``. ``None``: all parked calls must be answered."""

    __slots__ = ("topics",)

    def __init__(self, topics: Sequence[str] | None) -> None:
        self.topics = topics


_companion_of: Final = attrgetter("companion")

_Item = PendingCall | _WakeUp
"""An item of the inbox."""


class Dispatcher:
    """Runs transaction functions for any number of event loops.

    Parameters
    ----------
    transactions:
        One function per thread, which opens its transactions.
    name:
        Prefix of the threads' names.
    """

    def __init__(self, transactions: Sequence[OpenTransaction], name: str) -> None:
        self._inbox: Inbox[_Item] = Inbox(len(transactions), MAX_ARGUMENTS)
        self._ports: dict[asyncio.AbstractEventLoop, _LoopCalls] = {}
        self._parked = ParkedCalls()
        self._threads = [
            threading.Thread(target=self._run, args=(transaction,), name=f"{name}-{number}", daemon=True)
            for number, transaction in enumerate(transactions, 1)
        ]
        self._closed = False
        self._closing = threading.Lock()
        self._skipped: set[str] = set()
        """Topics of which parked calls look again after a pause, for which a timer runs."""
        self._looked_at = 0.0
        self._look_pause = FIRST_LOOK_PAUSE_SECONDS
        self.is_inherited = False
        """Whether this process has inherited it in a fork, without its threads."""
        _dispatchers.add(self)

    def start(self) -> None:
        """Start the threads."""
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Finish the accepted calls, stop the threads, and answer parked calls with their empty results."""
        if self.is_inherited:
            return
        with self._closing:
            if not self._closed:
                self._closed = True
                self._inbox.close()
        for thread in self._threads:
            if thread.is_alive():
                thread.join()
        _deliver(self._parked.give_up())

    @property
    def busy(self) -> int:
        """Number of threads that are running a transaction."""
        return self._inbox.busy

    def run(
        self,
        operation: TransactionFunction[A, R],
        arguments: Sequence[A],
        poll: LongPoll | None = None,
        weight: int | None = None,
        *,
        joins: bool = False,
    ) -> asyncio.Future[Sequence[R]]:
        """Run ``operation`` for ``arguments``, merged with other waiting calls; return a future of the running loop.

        Parameters
        ----------
        weight:
            Amount of work: about the number of jobs that are written. Large calls let small ones pass. ``None``, the
            default: the number of arguments.
        joins:
            Whether it must run in the transaction of the call that was just made; default false: it usually does.

        Raises
        ------
        BackendUnavailable
            The database is closed or cannot be reached.
        BackendError
            The operation failed unexpectedly.
        """
        if self.is_inherited:
            raise BackendUnavailable(_INHERITED)
        if self._closed:
            raise BackendUnavailable("The database is closed.")
        loop = asyncio.get_running_loop()
        port = self._ports.get(loop)
        if port is None:
            self._ports = {known: port for known, port in self._ports.items() if not known.is_closed()}
            port = self._ports[loop] = _LoopCalls(loop, self)
        call = PendingCall(port, operation, arguments, poll, weight)
        if poll is not None and poll.topics:
            call.future.add_done_callback(lambda _: self._parked.forget(call))
        (port.join if joins else port.put)(call)
        return call.future

    def take(self, calls: list[PendingCall]) -> None:
        """Accept the calls of one turn of an event loop. Called by ``_LoopCalls``."""
        with self._closing:
            if not self._closed:
                self._inbox.put([(call, call.weight) for call in calls])
                return
        for call in chain.from_iterable(map(PendingCall.split, calls)):
            call.error = BackendUnavailable("The database is closed.")
            call.deliver()

    def hurry(self, poll: LongPoll) -> None:
        """Answer a parked call now with its empty results; if it is being run, with the results of that run."""
        poll.is_over = True
        _deliver(self._parked.expire(poll))

    def ring(self, topics: Sequence[str] | None) -> None:
        """Run the parked calls that hear these topics again; ``None``: answer all parked calls. Thread-safe."""
        if topics is not None:
            topics = self._parked.announce(topics)
        if topics is None or topics:
            self._inbox.put([(_WakeUp(topics), 0)])

    def wake_all_parked(self) -> None:
        """Run all parked calls again, in case a wake-up was missed. Thread-safe."""
        self.ring(self._parked.topics())

    def _run(self, transaction: OpenTransaction) -> None:
        while items := self._inbox.take():
            try:
                self._run_items(transaction, items)
            except Exception:
                log.exception("unexpected error in a database thread; the thread continues")
            finally:
                del items  # a large call would keep its results until the next one, which would wait while they go
                self._inbox.finish()

    def _run_items(self, transaction: OpenTransaction, items: list[_Item]) -> None:
        rings = [item.topics for item in items if isinstance(item, _WakeUp)]
        if None in rings:
            _deliver(self._parked.give_up())
        rung = {topic: UNKNOWN_COUNT for topics in rings if topics is not None for topic in topics}
        waiting = [item for item in items if isinstance(item, PendingCall)]
        if any(map(_companion_of, waiting)):
            waiting = [part for call in waiting for part in call.split()]
        # What it would get could only be given back, and what it was meant to get may no longer be known.
        calls = [call for call in waiting if call.poll is None or not call.is_left]
        if calls or rung:
            is_long = any(call.weight >= LONG_WORK for call in calls)
            with long_work() if is_long else nullcontext():
                self._execute(transaction, calls, rung)

    def _execute(
        self, transaction: OpenTransaction, calls: list[PendingCall], rung: Mapping[str, int], tries: int = MAX_TRIES
    ) -> None:
        """Run calls in one transaction, serve parked calls with the jobs it makes available, and deliver results."""
        for attempt in range(tries):
            since = self._parked.moment()
            woken = self._parked.take(rung)
            try:
                if not calls and not woken:
                    return
                with transaction() as tx:
                    self._apply(tx, woken + calls)
                    _finish(tx)
                    # With new settings, parked calls run after the commit: until then they would meet the old ones.
                    if (fetchable := tx.effects.fetchable) and not tx.effects.configured:
                        looked = woken + calls
                        waiting = self._parked.take(fetchable)
                        woken += waiting
                        # Calls that looked before the jobs were available run again, after the parked calls.
                        again = [call for call in looked if call.poll is not None and call.found_nothing]
                        self._apply(tx, waiting + again)
                        _finish(tx)
                        # A call may be parked under the name of jobs that it can no longer take: try the others, too.
                        left = dict.fromkeys(tx.effects.fetchable, UNKNOWN_COUNT) if waiting else {}
                        if left and (others := self._parked.take(left)):
                            woken += others
                            self._apply(tx, others)
                            _finish(tx)
                    effects = tx.effects
            except Exception as error:
                for call in woken:
                    call.results = call.empty_results
                self._keep(woken, since)
                if isinstance(error, TryAgain) and attempt < tries - 1:
                    log.debug("transaction rolled back; running it again: %s", error)
                    time.sleep(
                        min(MAX_RETRY_PAUSE_SECONDS, FIRST_RETRY_PAUSE_SECONDS * 2**attempt) * random.uniform(0.5, 1.0)
                    )
                    continue
                self._refuse(transaction, calls, error)
                return
            break
        done: list[PendingCall] = []
        found_nothing: list[PendingCall] = []
        for call in (*calls, *woken):
            if len(call.results) == 1 and isinstance(call.results[0], Later) and self._postponed(call):
                continue
            (found_nothing if call.poll is not None and call.found_nothing else done).append(call)
        self._keep(found_nothing, since)
        # Other threads may have parked calls for jobs committed now, unless a call here has just looked.
        exhausted = {name for call in found_nothing if call.poll is not None for name in call.poll.topics}
        self.ring([topic for topic in effects.fetchable if effects.configured or topic not in exhausted])
        _deliver(done)
        if effects.skipped:
            self._look_later(effects.skipped)

    def _look_later(self, topics: Iterable[str]) -> None:
        """Run the parked calls of topics again after a pause, and not only those that skipped something.

        Such a call may have had the only wake-up for a job, and may be answered or cancelled meanwhile.
        """
        with self._closing:
            is_timed = bool(self._skipped)
            self._skipped.update(topics)
            if is_timed:
                return
            has_looked = time.monotonic() - self._looked_at < self._look_pause
            pause = 2 * self._look_pause if has_looked else FIRST_LOOK_PAUSE_SECONDS
            self._look_pause = min(MAX_LOOK_PAUSE_SECONDS, pause)
        timer = threading.Timer(self._look_pause, self._look_again)
        timer.daemon = True
        timer.start()

    def _look_again(self) -> None:
        with self._closing:
            skipped, self._skipped = self._skipped, set()
            self._looked_at = time.monotonic()
        self.ring(list(skipped))

    def _keep(self, calls: list[PendingCall], since: int) -> None:
        """Park calls that have empty results; run those again that missed news after the moment ``since``."""
        kept = self._parked.keep(calls, since)
        if kept.again:
            self._inbox.put([(call, 1) for call in kept.again])
        _deliver(kept.given_up)

    def _postponed(self, call: PendingCall) -> bool:
        """Schedule another run of a call refused with ``Later``; return whether it was scheduled.

        Only a call with one argument can be postponed, for at most ``MAX_POSTPONED_SECONDS`` seconds.
        """
        if call.future.done():
            return False
        now = time.monotonic()
        call.postponed_at = call.postponed_at or now
        waited = now - call.postponed_at
        if waited > MAX_POSTPONED_SECONDS:
            return False
        pause = min(MAX_POSTPONE_PAUSE_SECONDS, max(FIRST_RETRY_PAUSE_SECONDS, waited / 4))
        try:
            call.port.loop.call_soon_threadsafe(call.port.loop.call_later, pause, call.port.put, call)
        except RuntimeError:
            log.debug("event loop closed while a call was postponed")
        return True

    def _refuse(self, transaction: OpenTransaction, calls: list[PendingCall], error: Exception) -> None:
        """Fail the calls of a failed transaction.

        Of several calls, each first runs again in a transaction of its own, so that one bad call does not fail the
        others; not if the database is unavailable.
        """
        if isinstance(error, TryAgain) and error.lost:
            error = BackendUnavailable(f"The connection to the database was lost repeatedly. Retry later: {error}")
        if len(calls) > 1 and not isinstance(error, BackendUnavailable):
            for call in calls:
                self._execute(transaction, [call], {}, MAX_TRIES_ALONE)
            return
        if isinstance(error, StatementRefused):
            error = BackendUnavailable(str(error))
        for call in calls:
            call.error = _as_ojster_error(error, call)
        if not calls:
            expected = isinstance(error, BackendUnavailable)
            log.warning("cannot serve parked fetches: %s", error, exc_info=None if expected else error)
        _deliver(calls)
        # Other fetches skipped the jobs that this transaction had locked.
        self.ring([topics[0] for call in calls if call.poll is not None for topics in call.poll.topics.values()])

    def _apply(self, tx: Transaction, calls: Sequence[PendingCall]) -> None:
        """Run calls by operation, in the order of ``place_of``, and fetches last: they find what others push."""
        alike: dict[TransactionFunction[Any, Any], list[PendingCall]] = {}
        for call in calls:
            alike.setdefault(call.operation, []).append(call)
        if len(alike) > 1:
            alike = dict(sorted(alike.items(), key=lambda item: (item[1][0].poll is not None, *place_of(item[0]))))
        for operation, group in alike.items():
            if len(group) == 1:
                group[0].results = operation(tx, group[0].arguments)
                continue
            results = operation(tx, [argument for call in group for argument in call.arguments])
            position = 0
            for call in group:
                call.results = results[position : position + len(call.arguments)]
                position += len(call.arguments)


_dispatchers: Final = WeakSet[Dispatcher]()

_INHERITED: Final = (
    "This database was opened before the process was forked, and works in the parent alone. Open it in the child, "
    "or start children with multiprocessing.get_context('spawn')."
)


def _disown() -> None:
    for dispatcher in list(_dispatchers):
        dispatcher.is_inherited = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_disown)


def _finish(tx: Transaction) -> None:
    for finish in tx.memory.finishers:
        finish(tx)


def _deliver(done: Iterable[PendingCall]) -> None:
    """Deliver results to the callers, each in its own event loop."""
    by_port: dict[Port, list[PendingCall]] = {}
    for call in done:
        by_port.setdefault(call.port, []).append(call)
    for port, calls in by_port.items():
        try:
            port.loop.call_soon_threadsafe(_deliver_all, calls)
        except RuntimeError:
            log.debug("event loop closed with %d calls in progress", len(calls))


def _deliver_all(calls: list[PendingCall]) -> None:
    for call in calls:
        call.deliver()


def _as_ojster_error(error: Exception, call: PendingCall) -> OjsterError:
    if isinstance(error, OjsterError):
        return error
    if isinstance(error, TryAgain):
        return BackendUnavailable(f"The transaction conflicted with others too often. Retry later: {error}")
    if isinstance(error, UnicodeEncodeError):
        return unstorable(error.object, error.object[error.start])
    if isinstance(error, OverflowError) and "int too" in str(error):  # SQLite's driver raises it
        return out_of_range()
    name = getattr(call.operation, "__name__", str(call.operation))
    log.error("%s failed", name, exc_info=error)
    return BackendError(f"{name} failed unexpectedly: {type(error).__name__}. The server's log has the details.")


def out_of_range() -> InvalidRequest:
    """Return the refusal of a number that databases cannot store."""
    return InvalidRequest("A number is out of range: integers must be from -2^63 to 2^63 - 1. Use a smaller one.")
