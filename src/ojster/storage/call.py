"""Calls that wait for their results, and long polls."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any, Final, Protocol, TypeVar

from ojster.core.errors import OjsterError
from ojster.storage.transaction import Transaction

A = TypeVar("A")
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])
TransactionFunction = Callable[[Transaction, Sequence[A]], Sequence[R]]
"""A transaction function that serves many calls at once: a list of arguments in, a list of results out."""


_FIRST: Final[set[object]] = set()


def runs_first(operation: F) -> F:
    """Have a transaction function run before the others of a transaction: its locks come first."""
    _FIRST.add(operation)
    return operation


def place_of(operation: TransactionFunction[Any, Any]) -> tuple[bool, str, str]:
    """Return the place of a transaction function among those of one transaction.

    It does not depend on which call arrives first. Otherwise one transaction would lock what one function needs before
    what another one needs, and a second transaction the other way around, and each would wait for the other. The order
    of locks is in docs/adr/0006-postgresql-concurrency.md.
    """
    name = getattr(operation, "__qualname__", type(operation).__qualname__)
    return operation not in _FIRST, operation.__module__, name


def for_each(function: Callable[[Transaction, A], R]) -> Callable[[Transaction, Sequence[A]], list[R]]:
    """Make a transaction function of one that serves a single item, where no item needs to know of the others.

    Parameters
    ----------
    function:
        Takes the transaction and an item, and returns its result, or its refusal as a value.
    """

    @wraps(function)
    def for_all(tx: Transaction, items: Sequence[A]) -> list[R]:
        return [function(tx, item) for item in items]

    return for_all


def returns_refusal(function: Callable[[Transaction, A], R]) -> Callable[[Transaction, A], R | OjsterError]:
    """Make a function that returns its refusal of one that raises it, before it has changed anything."""

    @wraps(function)
    def returning(tx: Transaction, item: A) -> R | OjsterError:
        try:
            return function(tx, item)
        except OjsterError as refusal:
            return refusal

    return returning


class Port(Protocol):
    """The side of a dispatcher that one event loop sees."""

    loop: asyncio.AbstractEventLoop

    def put(self, call: PendingCall) -> None:
        """Hand over a call."""


class LongPoll:
    """Conditions under which a call is parked, for a long poll.

    Parameters
    ----------
    topics:
        The names under which the call is parked, each with the topics that it hears: with news of one, it runs again.
    found_nothing:
        Returns whether a result is empty, so that the call waits for a better one.
    unwanted:
        Called in the caller's event loop with a non-empty result that arrives after the caller has gone.
    """

    __slots__ = ("found_nothing", "is_over", "topics", "unwanted")

    def __init__(
        self,
        topics: Mapping[str, Sequence[str]],
        found_nothing: Callable[[Any], bool],
        unwanted: Callable[[Any], object],
    ) -> None:
        self.topics = topics
        self.found_nothing = found_nothing
        self.unwanted = unwanted
        self.is_over = False
        """Whether the call must be answered now, with any result: see ``Dispatcher.hurry``."""


class PendingCall:
    """A call and its results, one for each argument. A long-poll call has one argument."""

    __slots__ = (
        "arguments",
        "companion",
        "empty_results",
        "error",
        "future",
        "has_waited",
        "operation",
        "poll",
        "port",
        "postponed_at",
        "results",
        "weight",
    )

    def __init__(
        self,
        port: Port,
        operation: TransactionFunction[Any, Any],
        arguments: Sequence[Any],
        poll: LongPoll | None,
        weight: int | None = None,
    ) -> None:
        self.port = port
        self.operation = operation
        self.arguments = arguments
        self.poll = poll
        self.weight = len(arguments) if weight is None else weight
        self.companion: PendingCall | None = None
        """A call that is to be run in the same transaction."""
        self.future: asyncio.Future[Sequence[Any]] = port.loop.create_future()
        self.results: Sequence[Any] = ()
        self.empty_results: Sequence[Any] = ()
        """The empty results with which the call was parked."""
        self.error: OjsterError | None = None
        self.postponed_at: float | None = None
        self.has_waited = False

    def split(self) -> list[PendingCall]:
        """Return the call and its companion, which are two calls from now on."""
        companion, self.companion = self.companion, None
        return [self] if companion is None else [self, companion]

    @property
    def found_nothing(self) -> bool:
        """Whether the call has an empty result and should wait for a better one."""
        poll = self.poll
        return poll is not None and not poll.is_over and self.error is None and poll.found_nothing(self.results[0])

    @property
    def is_left(self) -> bool:
        """Whether the caller of a long poll has gone: what the call would get could only be given back."""
        return self.poll is not None and self.future.done()

    def deliver(self) -> None:
        """Pass the results or the error to the caller; pass late results to ``LongPoll.unwanted``."""
        if self.future.done():
            if self.poll is not None and self.error is None and not self.poll.found_nothing(self.results[0]):
                self.poll.unwanted(self.results[0])
        elif self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.results)


def has_arrived(call: asyncio.Future[Any]) -> bool:
    """Whether a call has its result although its caller was cancelled."""
    return call.done() and not call.cancelled() and call.exception() is None
