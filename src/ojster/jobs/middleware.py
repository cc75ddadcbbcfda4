"""Enqueue middleware.

Spec: ojs-middleware
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, Final, TypeVar

import msgspec

from ojster.core.json_objects import Members
from ojster.core.parsing import read_value
from ojster.core.refusals import JobDropped

JobRequest = dict[str, Any]
"""The request for a job, decoded, which middleware may change."""

EnqueueFunction = Callable[[JobRequest], Awaitable[JobRequest | None]]

EnqueueMiddleware = Callable[[JobRequest, EnqueueFunction], Awaitable[JobRequest | None]]
"""Wraps every push: gets the request and ``next``; may change it, return nothing to drop it, or raise to refuse it.

Spec: ojs-middleware 3
"""

M = TypeVar("M")


class MiddlewareChain(list[M]):
    """Middleware, the first outermost. Add a layer with ``append``, or at the place that it needs.

    Layers are identified by equality: ``remove`` and ``insert_before`` take the layer itself. While jobs pass through
    the chain, and while a worker or a server of this process runs, it cannot change: every change raises
    ``RuntimeError``, so that a job leaves through the layers through which it came.

    Examples
    --------
    >>> from ojster import App
    >>> app = App("sqlite:///:memory:")
    >>> async def log(request, enqueue):
    ...     return await enqueue(request)
    >>> async def check(request, enqueue):
    ...     return await enqueue(request)
    >>> app.enqueue_middleware.append(log)
    >>> app.enqueue_middleware.insert_before(log, check)
    >>> app.enqueue_middleware == [check, log]
    True
    >>> app.close()

    Spec: ojs-middleware 5
    """

    def __init__(self, layers: Iterable[M] = ()) -> None:
        super().__init__(layers)
        self._users = 0
        self._lock = threading.Lock()  # jobs pass through it in several threads

    def count_users(self, change: int) -> None:
        """Count those that use the chain, which cannot change while there are any."""
        with self._lock:
            self._users += change

    def check_change(self, change: str) -> None:
        """Raise ``RuntimeError`` if the chain is in use."""
        if self._users:
            raise RuntimeError(
                f"The middleware cannot change now ({change}): jobs run through it. Change it before a worker or a "
                "server starts: beside the application, or in a function of app.on_startup."
            )

    def prepend(self, layer: M) -> None:
        """Add a layer around all others."""
        self.insert(0, layer)

    def insert_before(self, existing: M, layer: M) -> None:
        """Add a layer directly around ``existing``.

        Raises
        ------
        ValueError
            ``existing`` is not in the chain.
        """
        self.insert(self._place(existing), layer)

    def insert_after(self, existing: M, layer: M) -> None:
        """Add a layer directly inside ``existing``.

        Raises
        ------
        ValueError
            ``existing`` is not in the chain.
        """
        self.insert(self._place(existing) + 1, layer)

    def _place(self, existing: M) -> int:
        if existing not in self:
            raise ValueError(f"The layer {existing!r} is not in the chain. Insert beside one of its layers.")
        return self.index(existing)


def _if_unused(name: str) -> Callable[..., Any]:
    """Return a method of lists that first checks whether the chain may change."""
    method = getattr(list, name)

    @wraps(method)
    def change(chain: MiddlewareChain[Any], *args: Any, **named: Any) -> Any:
        chain.check_change(f"{name} of {args[-1]!r}" if args else name)
        return method(chain, *args, **named)

    return change


_CHANGES: Final = ("append", "extend", "insert", "remove", "pop", "clear", "sort", "reverse")
_OPERATORS: Final = ("__setitem__", "__delitem__", "__iadd__", "__imul__")
for _name in (*_CHANGES, *_OPERATORS):
    setattr(MiddlewareChain, _name, _if_unused(_name))


@contextmanager
def in_use(*chains: MiddlewareChain[Any]) -> Iterator[None]:
    """Let nobody change the chains within the block. Blocks may overlap."""
    for chain in chains:
        chain.count_users(1)
    try:
        yield
    finally:
        for chain in chains:
            chain.count_users(-1)


async def through_middleware(middleware: MiddlewareChain[EnqueueMiddleware], members: Members) -> Members:
    """Pass an enqueue request through the middleware, the first outermost; a middleware may raise to refuse it.

    Raises
    ------
    JobDropped
        A middleware returned nothing.
    """
    if not middleware:
        return members

    async def enqueue(request: JobRequest) -> JobRequest | None:
        return request

    chain: EnqueueFunction = enqueue
    for layer in reversed(middleware):
        chain = _wrap(layer, chain)
    with in_use(middleware):
        request = await chain({name: read_value(raw, name) for name, raw in members.items()})
    if request is None:
        type = bytes(members.get("type", b"null")).decode(errors="replace")
        raise JobDropped(f"Middleware has dropped the job of type {type[:80]}; it was not enqueued.")
    return {name: msgspec.Raw(msgspec.json.encode(value)) for name, value in request.items()}


def _wrap(layer: EnqueueMiddleware, inner: EnqueueFunction) -> EnqueueFunction:
    async def wrapped(request: JobRequest) -> JobRequest | None:
        return await layer(request, inner)

    return wrapped
