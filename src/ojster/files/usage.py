"""How many bytes the files of a workspace take, and how many they may take."""

from __future__ import annotations

from ojster.core.errors import PayloadTooLarge
from ojster.core.tenant import shown_tenant
from ojster.storage.transaction import Transaction
from ojster.tenancy.tenant import tenants_by_id


def refuse_bytes(tx: Transaction, tenant: str, more: int) -> PayloadTooLarge | None:
    """Return the refusal if a workspace has no room for so many more bytes, else lock its usage."""
    tx.execute(
        "INSERT INTO file_usage (tenant, bytes) VALUES (:tenant, 0) ON CONFLICT (tenant) DO NOTHING", {"tenant": tenant}
    )
    # Uploads that add at the same time would all fit into the same room. The insertion before makes sure that there is
    # a row to lock.
    ((used,),) = tx.execute(f"SELECT bytes FROM file_usage WHERE tenant = :tenant{tx.for_update}", {"tenant": tenant})
    most = max_bytes(tx, tenant)
    if used + more <= most:
        return None
    return PayloadTooLarge(
        f"The files of the workspace {shown_tenant(tenant)!r} take {used} bytes; with {more} more they exceed "
        f"max_file_bytes ({most}). Delete files or collection items that refer to them, or ask an operator for more.",
        limit=most,
    )


def add_bytes(tx: Transaction, tenant: str, more: int) -> None:
    """Add to the bytes that the files of a workspace take; a negative number takes away."""
    tx.execute("UPDATE file_usage SET bytes = bytes + :more WHERE tenant = :tenant", {"more": more, "tenant": tenant})


def max_bytes(tx: Transaction, tenant: str) -> int:
    """Return the maximum size of all files of a workspace, in bytes: its own limit, or that of the server."""
    own = tenants_by_id(tx).get(tenant)
    return tx.settings.largest_storage if own is None or own.max_file_bytes is None else own.max_file_bytes
