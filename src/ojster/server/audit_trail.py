"""What a server writes to the audit log: an entry in the database, and a line of the logger ``ojster.audit``.

Spec: ojs-security 11
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any, Final

import msgspec

from ojster.audit.entries import AuditEvent
from ojster.core.errors import OjsterError
from ojster.core.printable import printable
from ojster.core.timestamps import format_timestamp
from ojster.server.audit_words import MAX_OBJECT_CHARS, MAX_REQUEST_BYTES, without_secrets, without_values
from ojster.server.throttle import Throttle
from ojster.service import Service

MAX_REFUSALS: Final = 100
"""Maximum number of refused requests in a row that get an entry in the database. All get a line of the logger."""

REFUSALS_PER_SECOND: Final = 5.0
"""Number of refused requests that get an entry for each second, in the long run."""

log = logging.getLogger(__name__)
audit_log = logging.getLogger("ojster.audit")


class AuditTrail:
    """Writes the audit log of a server."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._refusals = Throttle()
        self._left_out = 0

    async def tell(self, entry: AuditEvent) -> None:
        """Write about a request, before it is answered."""
        self._write_line(entry)
        if entry.event != "access.used":
            if not self._refusals.allows("", MAX_REFUSALS, REFUSALS_PER_SECOND):
                self._left_out += 1
                return
            if self._left_out:  # refused requests since the last one that has an entry
                entry = msgspec.structs.replace(entry, detail=entry.detail | {"left_out": self._left_out})
                self._left_out = 0
        try:
            await self._service.audit.record(entry)
        except OjsterError as error:
            log.error("the audit log lacks an entry (request %s): %s", entry.correlation_id, error.message)

    def _write_line(self, entry: AuditEvent) -> None:
        more = {} if entry.refusal is None else {"refusal": entry.refusal}
        line = {
            "timestamp": format_timestamp(self._service.database.clock()),
            "event_type": entry.event,
            "principal": entry.principal,
            "source_ip": entry.source_ip,
            "correlation_id": entry.correlation_id,
            "outcome": entry.outcome,
            "detail": {"operation": entry.operation} | entry.detail | more,
        }
        audit_log.info("%s", msgspec.json.encode(line).decode())


def shown_request(body: bytes) -> Any:
    """Return the body of a request for an entry: without what may be secret and users' values, or only its size."""
    if len(body) <= MAX_REQUEST_BYTES:
        try:
            return without_values(without_secrets(msgspec.json.decode(body)))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            pass
    return {"bytes": len(body)}


def shown_object(values: Iterable[str]) -> str:
    """Return the values in the path of a request as one text, without control characters."""
    return printable("/".join(values)[:MAX_OBJECT_CHARS])
