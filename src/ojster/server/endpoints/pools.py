"""Endpoints for worker pools: groups of workers that queues share.

Spec: ojs-fair-scheduling 10
"""

from __future__ import annotations

from typing import Final

from ojster.core.durations import parse_duration
from ojster.core.errors import InvalidRequest
from ojster.core.wire import DeletedAnswer
from ojster.jobs.names import check_queue_name
from ojster.queues import pools
from ojster.queues.answer_wire import (
    DispatchedAnswer,
    DispatchedBody,
    DispatchedQueueBody,
    PoolAnswer,
    PoolsAnswer,
    show_pool,
)
from ojster.queues.fairness import Sharing
from ojster.queues.pool import Pool
from ojster.queues.wire import POOL, PoolBody
from ojster.server.answer import Answer, encode
from ojster.server.request import HttpRequest
from ojster.server.route import BASE, Route

_MAX_NAME_CHARS: Final = 128
"""Maximum length of a pool's name, in characters."""


async def list_pools(request: HttpRequest) -> Answer:
    """List the pools by name, with their numbers of active workers and jobs."""
    found = await request.service.scope.look(pools.list_pools, None)
    return Answer(encode(PoolsAnswer([show_pool(one) for one in found])))


async def show_one_pool(request: HttpRequest) -> Answer:
    """Show a pool with its numbers of active workers and jobs."""
    found = await request.service.scope.look(pools.find_pools, request.path["name"])
    return Answer(encode(PoolAnswer(show_pool(found))))


async def put_pool(request: HttpRequest) -> Answer:
    """Create or replace a pool. It applies at once to all workers that name it."""
    found, is_new = await request.service.scope.do(
        pools.put_pools, _pool(request.path["name"], await request.read(POOL))
    )
    return Answer(encode(PoolAnswer(show_pool(found))), 201 if is_new else 200)


async def delete_pool(request: HttpRequest) -> Answer:
    """Delete a pool. Its workers continue without a pool."""
    await request.service.scope.do(pools.delete_pools, request.path["name"])
    return Answer(encode(DeletedAnswer(request.path["name"])))


def _pool(name: str, body: PoolBody) -> Pool:
    if len(name) > _MAX_NAME_CHARS or not name.isprintable():
        raise InvalidRequest(f"Invalid pool name. Use at most {_MAX_NAME_CHARS} printable characters.", field="name")
    if body.name is not None and body.name != name:
        raise InvalidRequest(f"The path names {name!r}, the body {body.name[:40]!r}. Use one name.", field="name")
    queues = tuple(dict.fromkeys(check_queue_name(queue) for queue in body.queues))
    weights = dict(body.weights)
    if isinstance(body.queues, dict):
        weights = {queue: given.weight for queue, given in body.queues.items()} | weights
    if strangers := weights.keys() - set(queues):
        raise InvalidRequest(f"{min(strangers)[:60]!r} has a weight but is not in 'queues'. Add it.", field="weights")
    prevention = body.starvation_prevention
    least_share, rotation = 0.0, None
    if prevention is not None and prevention.enabled:
        least_share, rotation = prevention.min_dispatch_ratio, parse_duration(prevention.rotation_interval)
        if least_share * len(queues) > 1:
            raise InvalidRequest(
                f"{len(queues)} queues with a share of {least_share} each exceed 1. Lower it.",
                field="starvation_prevention.min_dispatch_ratio",
            )
    sharing = Sharing(body.strategy, tuple(sorted(weights.items())), least_share, rotation)
    return Pool(name, queues, body.concurrency, sharing, body.isolated)


async def show_dispatched(request: HttpRequest) -> Answer:
    """Show the jobs claimed from each queue in the last minute."""
    found = await request.service.scope.look(pools.count_dispatched, None)
    queues = [
        DispatchedQueueBody(one.queue, round(one.started), round(one.share, 4), one.waited // 1000, one.active)
        for one in found
    ]
    return Answer(encode(DispatchedAnswer(queues, stats=DispatchedBody(queues))))


ROUTES: Final = (
    Route("GET", f"{BASE}/admin/pools", list_pools, "Operators", answer=PoolsAnswer),
    Route("GET", f"{BASE}/admin/pools/{{name}}", show_one_pool, "Operators", answer=PoolAnswer),
    Route("PUT", f"{BASE}/admin/pools/{{name}}", put_pool, "Operators", PoolBody, PoolAnswer, more=(201,)),
    Route("DELETE", f"{BASE}/admin/pools/{{name}}", delete_pool, "Operators", answer=DeletedAnswer),
    Route("GET", f"{BASE}/admin/scheduling/stats", show_dispatched, "Operators", answer=DispatchedAnswer),
)
