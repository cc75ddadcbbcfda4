"""Endpoints for rate limits: show their usage, and override them for a time.

Spec: ojs-rate-limiting 10
"""

from __future__ import annotations

from typing import Final

from ojster.queues.calls import RateLimitCalls
from ojster.queues.limit_wire import LimitPageAnswer
from ojster.server.answer import Answer, encode
from ojster.server.declared import endpoints_of
from ojster.server.pages import numbered_page, numbered_pagination
from ojster.server.request import HttpRequest


async def _list(request: HttpRequest) -> Answer:
    page = numbered_page(request.query)
    limits, total = await request.service.rate_limits.page(page.size, page.offset)
    return Answer(encode(LimitPageAnswer(limits, numbered_pagination(page, total))))


ROUTES: Final = endpoints_of(RateLimitCalls, lambda service: service.rate_limits, {RateLimitCalls.all: _list})
