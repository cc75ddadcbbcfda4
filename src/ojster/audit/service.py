"""Calls about the audit log."""

from __future__ import annotations

from ojster.audit import entries
from ojster.audit.calls import AuditCalls
from ojster.audit.entries import AuditCheck, AuditEntry, AuditEvent, AuditQuery, Position
from ojster.jobs.scope import CapabilityService


class AuditService(CapabilityService, AuditCalls):
    """Calls about the audit log."""

    async def record(self, event: AuditEvent) -> Position:
        """Append an entry; return its place."""
        return await self.database.run(entries.record, event)

    async def select(self, query: AuditQuery) -> list[AuditEntry]:
        """Return the entries that a query asks for, the newest first."""
        self.scope.require_all_tenants("The audit log")
        return await self.database.survey(entries.select, query)

    async def verify(self, after: str | None = None) -> AuditCheck:
        """Check that no entry is missing and none was changed.

        Parameters
        ----------
        after:
            The number and the hash of the entry to begin after, ``17:9f86…``; ``None``: from the beginning.

        Returns
        -------
        Check
            The last entry that is right, and what is wrong with the next one, if anything is.

        Raises
        ------
        InvalidRequest
            ``after`` is malformed.
        """
        self.scope.require_all_tenants("The audit log")
        start = Position() if after is None else Position.read(after)
        while True:
            verdict = await self.database.read(entries.check, start)
            if verdict.problem is not None or verdict.last == verdict.head:
                return verdict
            start = verdict.last
