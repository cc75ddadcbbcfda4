"""Calls about the audit log, made to a server."""

from __future__ import annotations

from typing import Final
from urllib.parse import urlencode

from ojster.audit.entries import AuditEntry, AuditQuery, Check, Position
from ojster.audit.wire import AuditAnswer, VerifiedAnswer, read_check, read_entry
from ojster.client.connection import RemoteCapability
from ojster.core.timestamps import format_timestamp

MAX_VERIFY_SECONDS: Final = 3_600.0
"""Read timeout for a check of the whole log, in seconds, in addition to the usual 30."""


class RemoteAudit(RemoteCapability):
    """Calls about the audit log."""

    async def select(self, query: AuditQuery) -> list[AuditEntry]:
        """Return the entries that a query asks for, the newest first."""
        times = {"since": query.since, "until": query.until}
        wanted = {name: None if at is None else format_timestamp(at) for name, at in times.items()}
        for name in ("principal", "tenant", "event", "operation", "object", "outcome"):
            wanted[name] = getattr(query, name)
        given = {name: value for name, value in wanted.items() if value is not None} | {"limit": str(query.limit)}
        if query.before is not None:
            given["cursor"] = str(query.before)
        answer = await self._connection.ask(AuditAnswer, "GET", f"/admin/audit?{urlencode(given)}")
        return [read_entry(one) for one in answer.entries]

    async def verify(self, start: Position = Position()) -> Check:  # noqa: B008  (it is frozen)
        """Check that no entry is missing and none was changed, after ``start`` or from the beginning."""
        path = "/admin/audit/verify"
        if start.number:
            path += f"?{urlencode({'after': f'{start.number}:{start.hash}'})}"
        answer = await self._connection.ask(VerifiedAnswer, "GET", path, wait=MAX_VERIFY_SECONDS)
        return read_check(answer.verified)
