"""What the audit log adds to maintenance: its retention."""

from __future__ import annotations

from ojster.audit.entries import forget
from ojster.jobs.extension import DeletedCounts, Extension
from ojster.storage.transaction import Transaction


class AuditExtension(Extension):
    """Retention of the audit log."""

    def forget(self, tx: Transaction, room: int) -> DeletedCounts:
        """Delete entries past their retention."""
        return DeletedCounts(rows=forget(tx, room))
