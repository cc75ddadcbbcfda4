"""Endpoints for the audit log.

Spec: ojs-security 11
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import UNSET

from ojster.audit.calls import AuditCalls
from ojster.audit.entries import AuditQuery
from ojster.audit.wire import AuditAnswer, AuditPageBody, show_entry
from ojster.server.answer import Answer, encode
from ojster.server.declared import arguments_of, endpoints_of
from ojster.server.request import HttpRequest

MAX_ENTRIES: Final = 1_000
"""Maximum number of entries in one answer."""


async def _select(request: HttpRequest) -> Answer:
    query: AuditQuery = (await arguments_of(request, AuditCalls.select))["query"]
    limit = min(query.limit, MAX_ENTRIES)
    entries = await request.service.audit.select(msgspec.structs.replace(query, limit=limit + 1))
    has_more = len(entries) > limit
    page = AuditPageBody(limit, has_more, str(entries[limit - 1].number) if has_more else UNSET)
    return Answer(encode(AuditAnswer([show_entry(entry) for entry in entries[:limit]], page)))


ROUTES: Final = endpoints_of(AuditCalls, lambda service: service.audit, {AuditCalls.select: _select})
