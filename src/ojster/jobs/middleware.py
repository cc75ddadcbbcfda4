"""Enqueue middleware.

Spec: ojs-middleware
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import msgspec

from ojster.core.json_objects import Members
from ojster.core.parsing import read_value
from ojster.core.refusals import JobDropped

JobRequest = dict[str, Any]

Enqueue = Callable[[JobRequest], Awaitable[JobRequest | None]]

EnqueueMiddleware = Callable[[JobRequest, Enqueue], Awaitable[JobRequest | None]]
"""Wraps every push: gets the request and ``next``; may change it, return nothing to drop it, or raise to refuse it.

Spec: ojs-middleware 3
"""

M = TypeVar("M")


class MiddlewareChain(list[M]):
    """Middleware, the first outermost. Add a layer with ``append``, or at the place that it needs.

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

    def _place(self, existing: M) -> int:
        if existing not in self:
            raise ValueError(f"The layer {existing!r} is not in the chain. Insert beside one of its layers.")
        return self.index(existing)

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


async def through_middleware(middleware: Sequence[EnqueueMiddleware], members: Members) -> Members:
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

    chain: Enqueue = enqueue
    for layer in reversed(middleware):
        chain = _wrap(layer, chain)
    request = await chain({name: read_value(raw, name) for name, raw in members.items()})
    if request is None:
        type = bytes(members.get("type", b"null")).decode(errors="replace")
        raise JobDropped(f"Middleware has dropped the job of type {type[:80]}; it was not enqueued.")
    return {name: msgspec.Raw(msgspec.json.encode(value)) for name, value in request.items()}


def _wrap(layer: EnqueueMiddleware, inner: Enqueue) -> Enqueue:
    async def wrapped(request: JobRequest) -> JobRequest | None:
        return await layer(request, inner)

    return wrapped
