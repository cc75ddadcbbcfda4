"""What a process remembers of the database, so that hot transactions do not read it again.

Operators' settings are looked at in every transaction and hardly ever change. A ``Remembered`` value is read once, and
again after the process hears of a change. A ``Local`` value belongs to the process alone and is never read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Generic, Protocol, TypeVar

from ojster.core.queue_names import name_of_type

T = TypeVar("T")

MAX_COUNTED_TYPES: Final = 1_000
"""Maximum number of job types whose work a process counts: callers choose the names, and each has a row a minute."""

_UNSET: Final[Any] = object()


class Memory:
    """The remembered values of one database in one process.

    Attributes
    ----------
    version:
        Grows whenever the process hears that an operator changed something.
    is_callers:
        Whether it serves a caller's transaction, in which settings are not applied.
    """

    def __init__(self, *, is_callers: bool = False) -> None:
        self.version = 0
        self.is_callers = is_callers
        self.values: dict[Remembered[Any], Any] = {}
        self.locals: dict[Local[Any], Any] = {}
        self._types: dict[str, str] = {}
        self.finishers: tuple[Callable[[Any], None], ...] = ()
        """What each transaction does before it is committed, and again if more happens in it; takes the transaction."""

    def name_of_counted(self, type: str) -> str | None:
        """Return under which name a job type is counted; ``None``: it is not.

        The first ``MAX_COUNTED_TYPES`` that the process meets are.
        """
        name = self._types.get(type)
        if name is None and len(self._types) < MAX_COUNTED_TYPES:
            name = self._types[type] = name_of_type(type)
        return name

    def apart(self) -> Memory:
        """Return a memory for one transaction that sees other data: it has the local values, and no others."""
        other = Memory(is_callers=self.is_callers)
        other.locals, other._types, other.finishers = self.locals, self._types, self.finishers
        return other

    def forget(self) -> None:
        """Read all remembered values again when they are next needed."""
        self.version += 1
        self.values.clear()


class MemoryHolder(Protocol):
    """A transaction, as far as memory is concerned."""

    memory: Memory
    memory_version: int
    """``memory.version`` when the transaction began."""


class Remembered(Generic[T]):
    """A value that transactions read from the database once.

    Parameters
    ----------
    read:
        Reads the value; takes the transaction.
    in_callers:
        The value in callers' transactions, to which operators' settings do not apply; without one, it is read.
    """

    def __init__(self, read: Callable[[Any], T], in_callers: T = _UNSET) -> None:
        self._read = read
        self._in_callers = in_callers

    def __call__(self, tx: MemoryHolder) -> T:
        """Return the value, from memory if it is there."""
        memory = tx.memory
        if memory.is_callers and self._in_callers is not _UNSET:
            return self._in_callers
        known = memory.values.get(self, _UNSET)
        if known is _UNSET:
            known = self._read(tx)
            if tx.memory_version == memory.version:  # otherwise it may have been read before a change
                memory.values[self] = known
        value: T = known
        return value

    def for_each(self, tx: MemoryHolder, requests: Sequence[None]) -> list[T]:
        """Return the value for each request: the transaction function of ``Database.remembered``."""
        return [self(tx) for _ in requests]

    def known(self, memory: Memory) -> T | None:
        """Return the value if this process has read it since the last change."""
        value: T | None = memory.values.get(self)
        return value


class Local(Generic[T]):
    """A value that each process keeps for itself, made by ``factory`` when it is first used."""

    def __init__(self, factory: Callable[[], T]) -> None:
        self._factory = factory

    def __call__(self, tx: MemoryHolder) -> T:
        """Return the value, in a transaction."""
        value: T | None = tx.memory.locals.get(self)
        return self.of(tx.memory) if value is None else value

    def of(self, memory: Memory) -> T:
        """Return the value, outside of transactions."""
        values = memory.locals
        if self not in values:
            values[self] = self._factory()
        value: T = values[self]
        return value
