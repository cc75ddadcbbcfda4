"""What the audit log adds to maintenance: its retention."""

from __future__ import annotations

from ojster.audit.entries import count_forgettable, forget
from ojster.jobs.extension import DeletedCounts, Extension
from ojster.storage.transaction import Transaction


class AuditExtension(Extension):
    """Retention of the audit log."""

    def forget(self, tx: Transaction, room: int) -> DeletedCounts:
        """Delete entries past their retention."""
        number = forget(tx, room)
        return DeletedCounts(rows=number, audit_entries=number)

    def forgettable(self, tx: Transaction) -> DeletedCounts:
        """Count the entries past their retention."""
        return DeletedCounts(audit_entries=count_forgettable(tx))
