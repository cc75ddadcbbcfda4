"""Endpoints for worker pools: groups of workers that queues share.

Spec: ojs-fair-scheduling 10
"""

from __future__ import annotations

from typing import Final

from ojster.queues.calls import PoolCalls
from ojster.queues.limit_wire import PoolAnswer
from ojster.queues.wire import POOL
from ojster.server.answer import Answer, encode
from ojster.server.declared import endpoints_of
from ojster.server.request import HttpRequest


async def _put(request: HttpRequest) -> Answer:
    body = await request.read(POOL)
    pool, is_new = await request.service.pools.replace(request.path["name"], body)
    if body.weights and body.strategy != "weighted":
        request.warn(f"The weights have no effect with the strategy {body.strategy!r}. Use 'weighted'.")
    return Answer(encode(PoolAnswer(pool)), 201 if is_new else 200)


ROUTES: Final = endpoints_of(PoolCalls, lambda service: service.pools, {PoolCalls.put: _put})
