"""Enqueue middleware.

Spec: ojs-middleware
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec

from ojster.core.json_objects import Members
from ojster.core.parsing import read_value

JobRequest = dict[str, Any]


Enqueue = Callable[[JobRequest], Awaitable[JobRequest]]


EnqueueMiddleware = Callable[[JobRequest, Enqueue], Awaitable[JobRequest]]
"""Wraps every push: gets the request and ``next``; may change it, or raise to refuse it. Spec: ojs-middleware"""


async def through_middleware(middleware: Sequence[EnqueueMiddleware], members: Members) -> Members:
    """Pass an enqueue request through the middleware, the first outermost; a middleware may raise to refuse it."""
    if not middleware:
        return members

    async def enqueue(request: JobRequest) -> JobRequest:
        return request

    chain: Enqueue = enqueue
    for layer in reversed(middleware):
        chain = _wrap(layer, chain)
    request = await chain({name: read_value(raw, name) for name, raw in members.items()})
    return {name: msgspec.Raw(msgspec.json.encode(value)) for name, value in request.items()}


def _wrap(layer: EnqueueMiddleware, inner: Enqueue) -> Enqueue:
    async def wrapped(request: JobRequest) -> JobRequest:
        return await layer(request, inner)

    return wrapped
