"""The audit log as JSON.

Spec: ojs-security 11
"""

from __future__ import annotations

import msgspec
from msgspec import UNSET, Struct, UnsetType

from ojster.audit.entries import AuditEntry, Check, Position
from ojster.core.wire import Count, Json, Timestamp


class AuditEntryInfo(Struct):
    """An entry of the audit log; ``number`` and ``hash`` are its place in the chain."""

    number: Count
    hash: str
    timestamp: Timestamp
    event_type: str
    principal: str
    outcome: str
    operation: str
    source_ip: str
    correlation_id: str
    object: str = ""
    tenant: str | UnsetType = UNSET
    refusal: str | UnsetType = UNSET
    detail: dict[str, Json] | UnsetType = UNSET


class AuditPageBody(Struct):
    """Whether there are older entries, and the cursor with which they begin."""

    limit: Count
    has_more: bool
    next_cursor: str | UnsetType = UNSET


class AuditAnswer(Struct):
    """A page of the audit log, the newest entry first."""

    entries: list[AuditEntryInfo]
    pagination: AuditPageBody


class PositionBody(Struct):
    """A place in the chain."""

    number: Count
    hash: str


class VerifiedBody(Struct):
    """The last entry that is right, the last one of the log, and what is wrong between them."""

    intact: bool
    last: PositionBody
    head: PositionBody
    problem: str | UnsetType = UNSET


class VerifiedAnswer(Struct):
    """The answer to a check of the audit log."""

    verified: VerifiedBody


def show_entry(entry: AuditEntry) -> AuditEntryInfo:
    """Return an entry as JSON members."""
    return msgspec.convert(
        {"number": entry.number, "hash": entry.hash} | msgspec.json.decode(entry.body), AuditEntryInfo
    )


def read_entry(shown: AuditEntryInfo) -> AuditEntry:
    """Return the entry in an answer."""
    members = {name: value for name, value in msgspec.to_builtins(shown).items() if name not in ("number", "hash")}
    return AuditEntry(shown.number, shown.hash, msgspec.json.encode(members))


def show_check(check: Check) -> VerifiedBody:
    """Return the result of a check as JSON members."""
    return VerifiedBody(
        check.problem is None,
        PositionBody(check.last.number, check.last.hash),
        PositionBody(check.head.number, check.head.hash),
        UNSET if check.problem is None else check.problem,
    )


def read_check(shown: VerifiedBody) -> Check:
    """Return the result in an answer."""
    last, head = (Position(position.number, position.hash) for position in (shown.last, shown.head))
    return Check(last, head, None if shown.problem is UNSET else shown.problem)
