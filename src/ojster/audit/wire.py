"""The audit log as JSON.

Spec: ojs-security 11
"""

from __future__ import annotations

from typing import Final, Self

import msgspec
from msgspec import UNSET, Struct, UnsetType

from ojster.audit.entries import AuditCheck, AuditEntry, Position
from ojster.core.json_objects import read_members
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

    def value(self) -> list[AuditEntry]:
        return [read_entry(shown) for shown in self.entries]


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

    @classmethod
    def of(cls, check: AuditCheck) -> Self:
        return cls(show_check(check))

    def value(self) -> AuditCheck:
        last, head = (Position(place.number, place.hash) for place in (self.verified.last, self.verified.head))
        return AuditCheck(last, head, self.verified.problem or None)


def show_entry(entry: AuditEntry) -> AuditEntryInfo:
    """Return an entry as JSON members."""
    return msgspec.convert(
        {"number": entry.number, "hash": entry.hash} | msgspec.json.decode(entry.body), AuditEntryInfo
    )


AUDIT_COLUMNS: Final = (
    "number", "timestamp", "principal", "summary", "operation", "object", "outcome", "refusal", "event_type", "tenant",
    "source_ip", "correlation_id", "detail", "hash",
)  # fmt: skip
"""Columns of the audit log in CSV."""


def row_of(entry: AuditEntry) -> dict[str, msgspec.Raw]:
    """Return the members of an entry as JSON, with what was done in words among them, if it is known."""
    row = read_members(msgspec.json.encode(show_entry(entry)), "The entry")
    detail = read_members(row["detail"], "The detail") if "detail" in row else {}
    return row | {name: words for name, words in detail.items() if name == "summary"}


def read_entry(shown: AuditEntryInfo) -> AuditEntry:
    """Return the entry in an answer."""
    members = {name: value for name, value in msgspec.to_builtins(shown).items() if name not in ("number", "hash")}
    return AuditEntry(shown.number, shown.hash, msgspec.json.encode(members))


def show_check(check: AuditCheck) -> VerifiedBody:
    """Return the result of a check as JSON members."""
    return VerifiedBody(
        check.problem is None,
        PositionBody(check.last.number, check.last.hash),
        PositionBody(check.head.number, check.head.hash),
        UNSET if check.problem is None else check.problem,
    )
