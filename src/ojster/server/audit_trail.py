"""What a server writes to the audit log: an entry in the database, and a line of the logger ``ojster.audit``.

Spec: ojs-security 11
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from ojster.audit.entries import AuditEvent
from ojster.core.errors import OjsterError
from ojster.core.printable import printable
from ojster.core.timestamps import format_timestamp
from ojster.server.throttle import Throttle
from ojster.service import Service

MAX_REFUSALS: Final = 100
"""Maximum number of refused requests in a row that get an entry in the database. All get a line of the logger."""

REFUSALS_PER_SECOND: Final = 5.0
"""Number of refused requests that get an entry for each second, in the long run."""

MAX_REQUEST_BYTES: Final = 2_048
"""Maximum size of a request that is shown in an entry, in bytes. Of a larger one, the entry has the size."""

MAX_OBJECT_CHARS: Final = 512
"""Maximum length of what an entry says about the object, in characters."""

_SECRET: Final = re.compile(r"secret|password|token|key|authorization|header|url", re.IGNORECASE)

log = logging.getLogger(__name__)
audit_log = logging.getLogger("ojster.audit")


_DECISIONS: Final = {
    "review_step": {"approve": "approved", "reject": "rejected", "": "made a note on"},
    "resume_workflow": {"result": "answered", "error": "declined to answer", "": "resumed"},
    "activate_job": {"result": "answered", "error": "declined to answer", "": "activated"},
}
"""For each operation by which people decide something: the words for what its body says."""


def decision_in_words(operation: str, path: Mapping[str, str], body: bytes | None) -> str | None:
    """Return what somebody decided about a step or a job, in words; ``None`` for other operations."""
    words = _DECISIONS.get(operation)
    if words is None:
        return None
    members = _members_of(body or b"{}")
    action = members.get("action") or next((name for name in ("error", "result") if name in members), "")
    if not isinstance(action, str):  # the request was refused for it
        action = ""
    step = path.get("step") or members.get("step")
    subject = f"the job {path['id']}" if operation == "activate_job" else f"the workflow {path['id']}"
    said = members.get("notes") or members.get(action)
    what = "" if said is None else f": {said if isinstance(said, str) else msgspec.json.encode(said).decode()}"
    if len(what) > MAX_REQUEST_BYTES:
        what = ""
    where = f"the step {str(step)[:MAX_OBJECT_CHARS]} of {subject}" if step else subject
    return printable(f"{words.get(action, words[''])} {where}{what}")


def _members_of(body: bytes) -> dict[str, Any]:
    """Return the members of a request, of whatever size, without what may be secret; none of what is no object."""
    try:
        request = _without_secrets(msgspec.json.decode(body))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}
    return request if isinstance(request, dict) else {}


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
    """Return the body of a request for an entry: without what may be secret, or only its size."""
    if len(body) <= MAX_REQUEST_BYTES:
        try:
            return _without_secrets(msgspec.json.decode(body))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            pass
    return {"bytes": len(body)}


def shown_object(values: Iterable[str]) -> str:
    """Return the values in the path of a request as one text, without control characters."""
    return printable("/".join(values)[:MAX_OBJECT_CHARS])


def _without_secrets(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: "…" if _SECRET.search(name) else _without_secrets(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_without_secrets(inner) for inner in value]
    return value
