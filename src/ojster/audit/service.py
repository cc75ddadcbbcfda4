"""Calls about the audit log."""

from __future__ import annotations

from ojster.audit import entries
from ojster.audit.entries import AuditEntry, AuditEvent, AuditQuery, Check, Position
from ojster.jobs.scope import CapabilityService


class AuditService(CapabilityService):
    """Calls about the audit log."""

    async def record(self, event: AuditEvent) -> Position:
        """Append an entry; return its place."""
        return await self.database.run(entries.record, event)

    async def select(self, query: AuditQuery) -> list[AuditEntry]:
        """Return the entries that a query asks for, the newest first."""
        self.scope.require_all_tenants("The audit log")
        return await self.database.survey(entries.select, query)

    async def verify(self, start: Position = Position()) -> Check:  # noqa: B008  (it is frozen)
        """Check that no entry is missing and none was changed, after ``start`` or from the beginning.

        Returns
        -------
        Check
            The last entry that is right, and what is wrong with the next one, if anything is.
        """
        self.scope.require_all_tenants("The audit log")
        while True:
            verdict = await self.database.read(entries.check, start)
            if verdict.problem is not None or verdict.last == verdict.head:
                return verdict
            start = verdict.last
