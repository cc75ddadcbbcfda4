"""Endpoints for rate limits: show their usage, and override them for a time.

Spec: ojs-rate-limiting 10
"""

from __future__ import annotations

from typing import Final

import msgspec

from ojster.core.errors import InvalidRequest
from ojster.core.rate_limit import Limits
from ojster.core.timestamps import parse_timestamp
from ojster.jobs.rate_limit_wire import check_key, parse_limits
from ojster.queues import limit_views, limits
from ojster.queues.answer_wire import LimitAnswer, LimitPageAnswer, show_limit
from ojster.queues.limits import Override
from ojster.queues.wire import RATE_LIMIT_OVERRIDE, RateLimitOverrideBody
from ojster.server.answer import Answer, encode
from ojster.server.pages import numbered_page, numbered_pagination
from ojster.server.request import HttpRequest
from ojster.server.route import BASE, NUMBERED_PAGE, Route


async def list_rate_limits(request: HttpRequest) -> Answer:
    """List the rate limits by key, with their current usage."""
    page = numbered_page(request.query)
    found, total = await request.service.scope.look(
        limit_views.list_limits, (request.service.scope.tenant or "", page.size, page.offset)
    )
    return Answer(encode(LimitPageAnswer([show_limit(one) for one in found], numbered_pagination(page, total))))


async def show_rate_limit(request: HttpRequest) -> Answer:
    """Show the limits of a key and their current usage."""
    return await _shown(request, request.path["key"])


async def override_rate_limit(request: HttpRequest) -> Answer:
    """Override the limits of a key until ``expires_at``, or until the override is deleted."""
    key = check_key(request.path["key"])
    body = await request.read(RATE_LIMIT_OVERRIDE)
    given = parse_limits(msgspec.to_builtins(body), "override")
    if given == Limits():
        raise InvalidRequest("The override is empty. Set 'concurrency', 'rate' or 'throttle'.", field="concurrency")
    until = None if body.expires_at is None else parse_timestamp(body.expires_at)
    if until is not None and until <= request.service.database.clock():
        raise InvalidRequest("'expires_at' is in the past. Use a later time.", field="expires_at")
    await request.service.scope.do(limits.override, Override(request.service.scope.named(key), given, until))
    return await _shown(request, key)


async def restore_rate_limit(request: HttpRequest) -> Answer:
    """Delete the override of a key, so that the limits in its jobs apply again."""
    await request.service.scope.do(limits.override, Override(request.service.scope.named(request.path["key"]), None))
    return await _shown(request, request.path["key"])


async def _shown(request: HttpRequest, key: str) -> Answer:
    state = await request.service.scope.look(limit_views.show_limits, request.service.scope.named(key))
    return Answer(encode(show_limit(state)))


ROUTES: Final = (
    Route("GET", f"{BASE}/rate-limits", list_rate_limits, "Rate limits", answer=LimitPageAnswer, query=NUMBERED_PAGE),
    Route("GET", f"{BASE}/rate-limits/{{key}}", show_rate_limit, "Rate limits", answer=LimitAnswer),
    Route("PUT", f"{BASE}/rate-limits/{{key}}", override_rate_limit, "Rate limits", RateLimitOverrideBody, LimitAnswer),
    Route("DELETE", f"{BASE}/rate-limits/{{key}}", restore_rate_limit, "Rate limits", answer=LimitAnswer),
)
