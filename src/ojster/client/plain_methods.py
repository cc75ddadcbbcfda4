"""Plain methods, derived from the asynchronous ones: ``result = plain(aresult)`` waits for ``aresult``.

The name of an asynchronous method begins with ``a``. Its plain twin has the same parameters, runs it in the event loop
of the object, and returns what it returns. A subclass that overrides the asynchronous method changes both.

>>> from ojster.client.event_loop_thread import EventLoopThread
>>> class Greeter:
...     def __init__(self) -> None:
...         self.thread = EventLoopThread()
...     def _wait(self, call):
...         return self.thread.call(call)
...     async def agreet(self, name: str) -> str:
...         return f"Hello {name}"
...     greet = plain(agreet)
>>> greeter = Greeter()
>>> greeter.greet("Ada")
'Hello Ada'
>>> greeter.thread.close()
"""

from __future__ import annotations

import inspect
import re
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, overload

P = ParamSpec("P")
R = TypeVar("R")


class Waiting(Protocol):
    """An object that waits for calls in an event loop which runs in another thread."""

    def _wait(self, call: Coroutine[Any, Any, R], /) -> R: ...


S = TypeVar("S", bound=Waiting)


class PlainMethod(Generic[S, P, R]):
    """The plain twin of an asynchronous method, for type checkers; the class itself gets a function in its place."""

    def __init__(
        self, asynchronous: Callable[..., Any], returns: str, call: Callable[[str], Callable[..., R]], before: str = "a"
    ) -> None:
        self._asynchronous = asynchronous
        self._returns = returns
        self._call = call
        self._before = before
        """What the name of the asynchronous method has before that of its twin."""

    def __set_name__(self, owner: type[S], name: str) -> None:
        """Replace this object with a function that ``help``, ``inspect`` and profilers show as any other method.

        Raises
        ------
        TypeError
            The names of the two do not follow the convention.
        """
        asynchronous = self._asynchronous.__name__
        if asynchronous != f"{self._before}{name}":
            wanted = f"{self._before}{name}"
            raise TypeError(f"{owner.__name__}.{name} is derived from {asynchronous!r}; name that one {wanted!r}.")
        function = self._call(asynchronous)
        function.__name__, function.__qualname__ = name, f"{owner.__qualname__}.{name}"
        function.__module__, function.__doc__ = owner.__module__, _plain_text(self._asynchronous.__doc__, vars(owner))
        function.__annotations__ = {**self._asynchronous.__annotations__, "return": self._returns}
        signature = inspect.signature(self._asynchronous)
        function.__signature__ = signature.replace(return_annotation=self._returns)  # type: ignore[attr-defined]
        setattr(owner, name, function)

    @overload
    def __get__(self, instance: None, owner: type[S], /) -> Callable[Concatenate[S, P], R]: ...

    @overload
    def __get__(self, instance: S, owner: type[S], /) -> Callable[P, R]: ...

    def __get__(self, instance: S | None, owner: type[S], /) -> Callable[..., R]:
        """Type checkers see what access to the method returns. It never runs: a function has taken this place."""
        raise NotImplementedError


def plain(method: Callable[Concatenate[S, P], Coroutine[Any, Any, R]]) -> PlainMethod[S, P, R]:
    """Return the plain twin of an asynchronous method.

    Parameters
    ----------
    method:
        The method; its name is that of its twin with an ``a`` before it. Its class has a method ``_wait``.
    """

    def derived(name: str) -> Callable[..., R]:
        def call(self: S, *args: Any, **kwargs: Any) -> R:
            __tracebackhide__ = True  # pytest shows the line of the test, and what it called
            waiting: Coroutine[Any, Any, R] = getattr(self, name)(*args, **kwargs)
            return self._wait(waiting)

        return call

    return PlainMethod(method, str(method.__annotations__["return"]), derived)


class Calling(Protocol):
    """An object that makes calls of one capability by their names, and waits for them."""

    def _make(self, name: str, /, *args: Any, **kwargs: Any) -> Any: ...


def plain_call(call: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]]) -> PlainMethod[Any, P, R]:
    """Return a method that makes a call of a client, waits for it, and returns what it returns.

    Parameters
    ----------
    call:
        The call, which has the same name. The class of the method has a method ``_make``.
    """

    def derived(name: str) -> Callable[..., R]:
        def make(self: Calling, *args: Any, **kwargs: Any) -> R:
            value: R = self._make(name, *args, **kwargs)
            return value

        return make

    return PlainMethod(call, str(call.__annotations__["return"]), derived, before="")


def plain_iterator(method: Callable[Concatenate[S, P], AsyncIterator[R]]) -> PlainMethod[S, P, Iterator[R]]:
    """Return the plain twin of an asynchronous generator: a generator that waits for each item.

    Parameters
    ----------
    method:
        The method; its name is that of its twin with an ``a`` before it. Its class has a method ``_wait``.
    """

    def derived(name: str) -> Callable[..., Iterator[R]]:
        def iterate(self: S, *args: Any, **kwargs: Any) -> Iterator[R]:
            items: AsyncIterator[R] = getattr(self, name)(*args, **kwargs)
            while True:
                try:
                    yield self._wait(_next(items))
                except StopAsyncIteration:
                    return

        return iterate

    return PlainMethod(method, str(method.__annotations__["return"]).removeprefix("Async"), derived)


async def _next(items: AsyncIterator[R]) -> R:
    return await anext(items)


def _plain_text(text: str | None, members: Mapping[str, Any]) -> str | None:
    """Return a docstring without ``await``, in which the asynchronous methods of a class have their plain names."""
    if text is None:
        return None
    twins = {name for name in members if f"a{name}" in members}
    return re.sub(r"\bawait |\ba(\w+)\b", lambda word: _without_a(word, twins), text)


def _without_a(word: re.Match[str], twins: set[str]) -> str:
    if word[1] is None:
        return ""
    return word[1] if word[1] in twins else word[0]
