"""What do operators say of a worker, over what it says of itself? (seed 003: static metadata, allow and deny lists)"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from ojster.core.errors import InvalidRequest
from ojster.core.timestamps import format_timestamp, parse_timestamp
from ojster.fleet.job_types import Types, read_patterns
from ojster.fleet.requirements import LONGEST_TEXT, MOST_FACTS, Provided, text_of

_LISTS: Final = {"allowed_types": "allowed", "denied_types": "denied"}


class WorkerRule(msgspec.Struct, frozen=True):
    """What operators say of a worker. ``changed_at`` is in microseconds since the epoch.

    Parameters
    ----------
    enabled:
        Whether it is given jobs.
    provides:
        What it provides, by fact; ``None``: nothing of that kind, whatever it says.
    allowed, denied:
        Jobs of which types it is given: see ``Types``.
    reason:
        Why, for people to read.
    """

    id: str
    enabled: bool = True
    provides: dict[str, str | None] = {}
    allowed: tuple[str, ...] | None = None
    denied: tuple[str, ...] = ()
    reason: str | None = None
    changed_at: int = 0

    @property
    def types(self) -> Types:
        """Jobs of which types it is given."""
        return Types(self.allowed, self.denied)

    def correct(self, provided: Provided) -> Provided:
        """Return what a worker provides that says this of itself."""
        facts = dict(provided.facts)
        for name, value in self.provides.items():
            if value is None:
                facts.pop(name, None)
            else:
                facts[name] = (value,)
        return Provided(facts)

    def to_wire(self) -> dict[str, Any]:
        """Return it as JSON shows it."""
        return {
            "id": self.id,
            "enabled": self.enabled,
            "provides": self.provides,
            "allowed_types": self.allowed,
            "denied_types": self.denied,
            "reason": self.reason,
            "changed_at": format_timestamp(self.changed_at),
        }


def read_rule(shown: Mapping[str, Any]) -> WorkerRule:
    """Return a rule that JSON shows so; the inverse of ``WorkerRule.to_wire``."""
    members = read_rule_members({name: value for name, value in shown.items() if name not in ("id", "changed_at")})
    return WorkerRule(id=shown["id"], changed_at=parse_timestamp(shown["changed_at"]), **members)


def read_rule_members(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return members of a rule as a request says them.

    Raises
    ------
    InvalidRequest
        One is malformed.
    """
    members: dict[str, Any] = {name: value for name, value in given.items() if name in ("enabled", "reason")}
    for name, member in _LISTS.items():
        if name in given:
            members[member] = None if given[name] is None else read_patterns(given[name], name)
    if "provides" in given:
        members["provides"] = _read_facts(given["provides"])
    return members


def _read_facts(given: Mapping[str, Any]) -> dict[str, str | None]:
    if len(given) > MOST_FACTS:
        raise InvalidRequest(f"'provides' has more than {MOST_FACTS} facts.", field="provides")
    facts = {name: None if value is None else text_of(value) for name, value in given.items()}
    for name, value in facts.items():
        if not 0 < len(name) <= LONGEST_TEXT or (value is not None and len(value) > LONGEST_TEXT):
            message = f"Names and values of 'provides' have 1 to {LONGEST_TEXT} characters, unlike {name[:40]!r}."
            raise InvalidRequest(message, field="provides")
    return facts
