"""Signatures of handlers: what workers announce of the arguments of each job type, for forms that enqueue one.

They check nothing: a schema that is registered for a type does. The last worker to announce a type is right, because a
new version of the code is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from ojster.core.errors import InvalidRequest
from ojster.core.parsing import read_value
from ojster.core.tenant import NOBODY
from ojster.jobs.names import check_type
from ojster.storage.call import for_each
from ojster.storage.transaction import Transaction

MAX_SIGNATURE_BYTES: Final = 8_192
"""Maximum size of the JSON Schema of a signature, in bytes."""

MAX_SIGNATURES: Final = 500
"""Maximum number of signatures of a tenant; the oldest of more are deleted."""

_encode: Final = msgspec.json.Encoder().encode


class Signature(msgspec.Struct, frozen=True):
    """The arguments of a job type, as the handler of a worker takes them.

    Parameters
    ----------
    type:
        The job type.
    schema:
        A JSON Schema of the array of arguments.
    is_flow:
        Whether it starts as a flow, and not as a job.
    announced_at:
        Time when a worker announced it last, in microseconds since the epoch.
    """

    type: str
    schema: dict[str, Any]
    is_flow: bool = False
    announced_at: int = 0


class Announcement(msgspec.Struct, frozen=True):
    """The signatures that a worker announces, sorted by type: type, JSON Schema, and whether it is a flow."""

    tenant: str
    rows: tuple[tuple[str, bytes, bool], ...]


def read_announcement(tenant: str | None, signatures: Sequence[Signature]) -> Announcement:
    """Return the announcement in a request.

    Raises
    ------
    InvalidRequest
        There are too many signatures, a type is malformed, or a schema is too large or too deep.
    """
    if len(signatures) > MAX_SIGNATURES:
        raise InvalidRequest(
            f"'signatures' has {len(signatures)} entries; at most {MAX_SIGNATURES} are allowed.", field="signatures"
        )
    rows = {}
    for signature in signatures:
        type = check_type(signature.type)
        body = _encode(signature.schema)
        if len(body) > MAX_SIGNATURE_BYTES:
            raise InvalidRequest(
                f"The signature of {type!r} takes {len(body)} bytes; at most {MAX_SIGNATURE_BYTES} are allowed.",
                field="signatures",
            )
        read_value(body, "signatures")
        rows[type] = (type, body, signature.is_flow)
    return Announcement(tenant or NOBODY, tuple(sorted(rows.values())))


def announce(tx: Transaction, announcements: Sequence[Announcement]) -> list[int]:
    """Keep the signatures of each announcement in place of earlier ones; return their numbers."""
    for announcement in announcements:
        tenant = announcement.tenant
        tx.execute_many(
            """
            INSERT INTO signatures (tenant, type, schema, is_flow, announced_at)
            VALUES (?, ?, ?, ?, ?)
            ON CONFLICT (tenant, type) DO UPDATE SET
                schema = excluded.schema, is_flow = excluded.is_flow, announced_at = excluded.announced_at
            """,
            [(tenant, type, schema, int(is_flow), tx.now) for type, schema, is_flow in announcement.rows],
        )
        tx.execute(
            """
            DELETE FROM signatures
            WHERE tenant = :tenant
                AND type IN (
                    SELECT type
                    FROM signatures
                    WHERE tenant = :tenant
                    ORDER BY announced_at DESC, type
                    LIMIT :most OFFSET :most
                )
            """,
            {"tenant": tenant, "most": MAX_SIGNATURES},
        )
    return [len(announcement.rows) for announcement in announcements]


@for_each
def list_signatures(tx: Transaction, request: tuple[str, str | None]) -> list[Signature]:
    """Return the signatures that a tenant sees, of one type or (``None``) of all, by type.

    Those of its own workers come before those of workers for all tenants.
    """
    tenant, type = request
    rows = tx.execute(
        """
        SELECT type, schema, is_flow, announced_at
        FROM signatures
        WHERE tenant IN (:nobody, :tenant)
            AND type = coalesce(:type, type)
        ORDER BY type, tenant
        """,
        {"tenant": tenant, "nobody": NOBODY, "type": type},
    )
    known = {
        name: Signature(name, msgspec.json.decode(bytes(body)), bool(is_flow), at) for name, body, is_flow, at in rows
    }
    return list(known.values())
