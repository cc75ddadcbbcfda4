"""Calls about the audit log, as a service, a server and its client have them.

Spec: ojs-security 11
"""

from __future__ import annotations

from typing import Final

from ojster.audit.entries import AuditCheck, AuditEntry, AuditQuery
from ojster.audit.wire import AuditAnswer, VerifiedAnswer
from ojster.core.calls import Call, Calls, Handled

MAX_VERIFY_SECONDS: Final = 3_600.0
"""Time that a check of the whole log may take beyond the usual, in seconds."""

_TAG: Final = "Operators"


class AuditCalls(Calls):
    """Calls about the audit log."""

    @Handled("GET", "/admin/audit", "list_audit_entries", _TAG, AuditAnswer)
    async def select(self, query: AuditQuery) -> list[AuditEntry]:
        """List the entries of the audit log, the newest first. All parameters are optional, and must hold together."""

    @Call("GET", "/admin/audit/verify", "verify_audit_log", _TAG, VerifiedAnswer, wait=MAX_VERIFY_SECONDS)
    async def verify(self, after: str | None = None) -> AuditCheck:
        """Check that no entry of the audit log is missing and none was changed, from the beginning or ``after`` one.

        ``after`` is the number and the hash of an entry, ``17:9f86…``, as an earlier check has returned it.
        """
