"""Plain methods are derived from asynchronous ones: ``result = plain(aresult)``."""

from __future__ import annotations

import inspect
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from ojster.client.event_loop_thread import EventLoopThread, InEventLoopThread
from ojster.client.plain_methods import plain, plain_iterator


class Counter(InEventLoopThread):
    """Counts."""

    def __init__(self) -> None:
        self._event_loop_thread = EventLoopThread()
        self.ended = threading.Event()

    async def aadd(self, number: int, /, *others: int, times: int = 1) -> int:
        """Add numbers. See ``acount``, and ``args``.

        Examples
        --------
        >>> await counter.aadd(1, 2)
        3
        """
        return times * sum((number, *others))

    add = plain(aadd)

    async def acount(self, upto: int) -> AsyncIterator[int]:
        """Yield numbers."""
        try:
            for number in range(upto):
                yield number
            raise LookupError("no more")
        finally:
            self.ended.set()

    count = plain_iterator(acount)


@pytest.fixture
def counter() -> Iterator[Counter]:
    counter = Counter()
    yield counter
    counter._event_loop_thread.close()


def test_a_plain_method_takes_and_returns_the_same(counter: Counter) -> None:
    assert counter.add(1, 2, times=2) == 6
    assert Counter.add(counter, 1) == 1
    with pytest.raises(TypeError, match="missing 1 required"):
        counter.add()  # type: ignore[call-arg]


def test_a_plain_generator_yields_each_item_and_raises_the_error(counter: Counter) -> None:
    numbers = counter.count(2)
    assert [next(numbers), next(numbers)] == [0, 1]
    with pytest.raises(LookupError, match="no more"):
        next(numbers)
    assert counter.ended.is_set()


def test_help_shows_a_plain_method_as_any_other() -> None:
    shown: Any = Counter.add
    assert (shown.__name__, shown.__qualname__, shown.__module__) == ("add", "Counter.add", __name__)
    assert str(inspect.signature(shown)) == "(self, number: 'int', /, *others: 'int', times: 'int' = 1) -> 'int'"
    assert str(inspect.signature(Counter.count)) == "(self, upto: 'int') -> 'Iterator[int]'"
    assert not inspect.iscoroutinefunction(shown)
    assert inspect.isgeneratorfunction(Counter.count)


def test_the_docstring_and_its_example_are_those_of_plain_code() -> None:
    text = inspect.getdoc(Counter.add) or ""
    assert text.startswith("Add numbers. See ``count``, and ``args``.")
    assert ">>> counter.add(1, 2)" in text


def test_a_subclass_that_overrides_the_asynchronous_method_changes_both(counter: Counter) -> None:
    class Negative(Counter):
        async def aadd(self, number: int, /, *others: int, times: int = 1) -> int:
            return -await super().aadd(number, *others, times=times)

    negative = Negative()
    assert negative.add(1, 2) == -3
    negative._event_loop_thread.close()


def test_names_that_break_the_convention_are_refused() -> None:
    with pytest.raises((TypeError, RuntimeError)) as refused:  # Python 3.11 wraps what such a method raises

        class Wrong(Counter):
            plus = plain(Counter.aadd)

    assert "name that one 'aplus'" in str(refused.value.__cause__ or refused.value)


@pytest.mark.anyio
async def test_a_blocking_call_in_a_coroutine_warns_at_its_line(counter: Counter) -> None:
    with pytest.warns(RuntimeWarning, match="holds up the event loop") as seen:
        counter.add(1)
    assert seen[0].filename == __file__
    with pytest.warns(RuntimeWarning, match="holds up the event loop") as seen:
        next(counter.count(1))
    assert seen[0].filename == __file__
    assert "next(counter" in inspect.getsource(inspect.getmodule(Counter) or Counter).splitlines()[seen[0].lineno - 1]
