"""Endpoints for worker pools: groups of workers that queues share.

Spec: ojs-fair-scheduling 10
"""

from __future__ import annotations

from typing import Any, Final

from ojster.core.durations import format_duration, parse_duration
from ojster.core.errors import InvalidRequest
from ojster.core.timestamps import format_timestamp
from ojster.jobs.names import check_queue_name
from ojster.queues import pools
from ojster.queues.fairness import Sharing
from ojster.queues.pool import Pool
from ojster.queues.pools import PoolOverview
from ojster.queues.wire import POOL, PoolBody
from ojster.server.request import Answer, HttpRequest, encode
from ojster.server.route import BASE, Route

_MAX_NAME_CHARS: Final = 128
"""Maximum length of a pool's name, in characters."""


async def list_pools(exchange: HttpRequest) -> Answer:
    """List the pools by name, with their numbers of active workers and jobs."""
    found = await exchange.engine.scope.look(pools.list_pools, None)
    return Answer(encode({"items": [_shown(one) for one in found]}))


async def show_pool(exchange: HttpRequest) -> Answer:
    """Show a pool with its numbers of active workers and jobs."""
    return Answer(encode({"pool": _shown(await exchange.engine.scope.look(pools.find_pools, exchange.path["name"]))}))


async def put_pool(exchange: HttpRequest) -> Answer:
    """Create or replace a pool. It applies at once to all workers that name it."""
    found, is_new = await exchange.engine.scope.do(
        pools.put_pools, _pool(exchange.path["name"], await exchange.read(POOL))
    )
    return Answer(encode({"pool": _shown(found)}), 201 if is_new else 200)


async def delete_pool(exchange: HttpRequest) -> Answer:
    """Delete a pool. Its workers continue without a pool."""
    await exchange.engine.scope.do(pools.delete_pools, exchange.path["name"])
    return Answer(encode({"deleted": True, "name": exchange.path["name"]}))


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


def _shown(one: PoolOverview) -> dict[str, Any]:
    pool, sharing = one.pool, one.pool.sharing
    shown: dict[str, Any] = {
        "name": pool.name,
        "queues": pool.queues,
        "concurrency": pool.concurrency,
        "strategy": sharing.strategy,
        "isolated": pool.isolated,
        "active_workers": one.active_workers,
        "active_jobs": one.active_jobs,
        "created_at": format_timestamp(pool.created_at),
        "updated_at": format_timestamp(pool.updated_at),
    }
    if sharing.strategy == "weighted":
        shown["weights"] = {queue: sharing.weight(queue) for queue in pool.queues}
    if sharing.rotation is not None:
        shown["starvation_prevention"] = {
            "enabled": True,
            "rotation_interval": format_duration(sharing.rotation),
            "min_dispatch_ratio": sharing.least_share,
        }
    return shown


async def show_dispatched(exchange: HttpRequest) -> Answer:
    """Show the jobs claimed from each queue in the last minute."""
    found = await exchange.engine.scope.look(pools.count_dispatched, None)
    queues = [
        {
            "name": one.queue,
            "dispatch_count_1m": round(one.started),
            "dispatch_ratio_1m": round(one.share, 4),
            "avg_wait_ms": one.waited // 1000,
            "active_jobs": one.active,
        }
        for one in found
    ]
    shown = {"queues": queues, "window": "PT1M"}
    return Answer(encode({"stats": shown} | shown))


ROUTES: Final = (
    Route("GET", f"{BASE}/admin/pools", list_pools, "Operators"),
    Route("GET", f"{BASE}/admin/pools/{{name}}", show_pool, "Operators"),
    Route("PUT", f"{BASE}/admin/pools/{{name}}", put_pool, "Operators", PoolBody),
    Route("DELETE", f"{BASE}/admin/pools/{{name}}", delete_pool, "Operators"),
    Route("GET", f"{BASE}/admin/scheduling/stats", show_dispatched, "Operators"),
)
