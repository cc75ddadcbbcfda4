"""Endpoints for the audit log.

Spec: ojs-security 11
"""

from __future__ import annotations

import re
from typing import Final

from msgspec import UNSET

from ojster.audit.entries import AuditQuery, Position
from ojster.audit.wire import AuditAnswer, AuditPageBody, VerifiedAnswer, show_check, show_entry
from ojster.core.errors import InvalidRequest
from ojster.core.timestamps import parse_moment
from ojster.server.answer import Answer, encode
from ojster.server.pages import page_of
from ojster.server.request import HttpRequest
from ojster.server.route import BASE, Route

_FILTERS: Final = ("principal", "tenant", "event", "operation", "object", "outcome")

_AFTER: Final = re.compile(r"([0-9]{1,18}):([0-9a-f]{64}|)")


async def list_audit_entries(request: HttpRequest) -> Answer:
    """List the entries of the audit log, the newest first. All parameters are optional, and must hold together."""
    query = request.query
    limit, offset, before = page_of(query, default=100, largest=1_000)
    if offset:
        raise InvalidRequest("The audit log has no offset. Go on with its 'next_cursor'.", field="offset")
    now = request.service.database.clock()
    since, until = (parse_moment(query[name], now) if name in query else None for name in ("since", "until"))
    wanted = {name: query[name] for name in _FILTERS if name in query}
    found = await request.service.audit.select(
        AuditQuery(since=since, until=until, before=before, limit=limit + 1, **wanted)
    )
    has_more = len(found) > limit
    page = AuditPageBody(limit, has_more, str(found[limit - 1].number) if has_more else UNSET)
    return Answer(encode(AuditAnswer([show_entry(one) for one in found[:limit]], page)))


async def verify_audit_log(request: HttpRequest) -> Answer:
    """Check that no entry of the audit log is missing and none was changed, from the beginning or ``after`` one.

    ``after`` is the number and the hash of an entry, ``17:9f86…``, as an earlier check has returned it.
    """
    after = request.query.get("after")
    start = Position()
    if after is not None:
        parts = _AFTER.fullmatch(after)
        if parts is None:
            raise InvalidRequest(
                "'after' must be the number and the hash of an entry, as in '17:9f86…'.", field="after"
            )
        start = Position(int(parts[1]), parts[2])
    return Answer(encode(VerifiedAnswer(show_check(await request.service.audit.verify(start)))))


_PATH: Final = f"{BASE}/admin/audit"
_TAG: Final = "Operators"

ROUTES: Final = (
    Route(
        "GET",
        _PATH,
        list_audit_entries,
        _TAG,
        answer=AuditAnswer,
        query=(*_FILTERS, "since", "until", "limit", "offset", "cursor"),
    ),
    Route("GET", f"{_PATH}/verify", verify_audit_log, _TAG, answer=VerifiedAnswer, query=("after",)),
)
