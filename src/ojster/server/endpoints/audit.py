"""Endpoints for the audit log.

Spec: ojs-security 11
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Final

import msgspec
from msgspec import UNSET

from ojster.audit.calls import AuditCalls
from ojster.audit.entries import AuditQuery
from ojster.audit.wire import AUDIT_COLUMNS, AuditAnswer, AuditPageBody, row_of, show_entry
from ojster.core.calls import declared_by
from ojster.core.csv_text import Row
from ojster.server.answer import Answer, encode
from ojster.server.declared import arguments_of, endpoints_of
from ojster.server.export import FORMAT, exported, format_of
from ojster.server.request import HttpRequest
from ojster.server.route import BASE, Route

MAX_ENTRIES: Final = 1_000
"""Maximum number of entries in one answer."""


async def _select(request: HttpRequest) -> Answer:
    query: AuditQuery = (await arguments_of(request, AuditCalls.select))["query"]
    limit = min(query.limit, MAX_ENTRIES)
    entries = await request.service.audit.select(msgspec.structs.replace(query, limit=limit + 1))
    has_more = len(entries) > limit
    page = AuditPageBody(limit, has_more, str(entries[limit - 1].number) if has_more else UNSET)
    return Answer(encode(AuditAnswer([show_entry(entry) for entry in entries[:limit]], page)))


_FILTERS: Final = tuple(name for name in declared_by(AuditCalls.select).in_query if name not in ("limit", "cursor"))


async def export_audit_log(request: HttpRequest) -> Answer:
    """Export all entries of the audit log that match, the newest first, as a file: ``format`` is ``csv`` or ``json``.

    In CSV, a text with which a spreadsheet would begin a formula has an apostrophe in front.
    """
    query: AuditQuery = (await arguments_of(request, AuditCalls.select))["query"]
    return await exported(format_of(request.query), "audit-log", AUDIT_COLUMNS, _pages(request, query))


async def _pages(request: HttpRequest, query: AuditQuery) -> AsyncGenerator[list[Row], None]:
    before = None
    while True:
        page = msgspec.structs.replace(query, limit=MAX_ENTRIES, before=before)
        entries = await request.service.audit.select(page)
        yield [row_of(entry) for entry in entries]
        if len(entries) < MAX_ENTRIES:
            return
        before = entries[-1].number


ROUTES: Final = (
    *endpoints_of(AuditCalls, lambda service: service.audit, {AuditCalls.select: _select}),
    Route("GET", f"{BASE}/admin/audit/export", export_audit_log, "Operators", query=(*_FILTERS, *FORMAT), exports=True),
)
