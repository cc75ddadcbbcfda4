"""Worker rules: what operators set for a worker, over what the worker reports itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from ojster.core.errors import InvalidRequest
from ojster.fleet.job_types import Types, read_patterns
from ojster.fleet.requirements import MAX_FACT_LENGTH, MAX_FACTS, ProvidedFacts, text_of

_LISTS: Final = {"allowed_types": "allowed", "denied_types": "denied"}


class WorkerRule(msgspec.Struct, frozen=True):
    """What operators set for a worker. ``changed_at`` is in microseconds since the epoch.

    Parameters
    ----------
    enabled:
        Whether the worker gets jobs.
    provides:
        Facts that replace those that it reports; ``None`` removes a fact.
    allowed, denied:
        The job types that it accepts: see ``Types``.
    reason:
        Explanation for people.
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
        """The job types that the worker accepts."""
        return Types(self.allowed, self.denied)

    def correct(self, provided: ProvidedFacts) -> ProvidedFacts:
        """Return a worker's reported capabilities, changed by the rule."""
        facts = dict(provided.facts)
        for name, value in self.provides.items():
            if value is None:
                facts.pop(name, None)
            else:
                facts[name] = (value,)
        return ProvidedFacts(facts)


def read_rule_members(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the members of a rule that a request sets.

    Raises
    ------
    InvalidRequest
        A member is malformed.
    """
    members: dict[str, Any] = {name: value for name, value in request.items() if name in ("enabled", "reason")}
    for name, member in _LISTS.items():
        if name in request:
            members[member] = None if request[name] is None else read_patterns(request[name], name)
    if "provides" in request:
        members["provides"] = _read_facts(request["provides"])
    return members


def _read_facts(written: Mapping[str, Any]) -> dict[str, str | None]:
    if len(written) > MAX_FACTS:
        raise InvalidRequest(f"'provides' can have at most {MAX_FACTS} facts, not {len(written)}.", field="provides")
    facts = {name: None if value is None else text_of(value) for name, value in written.items()}
    for name, value in facts.items():
        if not 0 < len(name) <= MAX_FACT_LENGTH or (value is not None and len(value) > MAX_FACT_LENGTH):
            message = (
                f"{name[:40]!r} in 'provides' is too long or empty: names have 1 to {MAX_FACT_LENGTH} characters, "
                f"values at most {MAX_FACT_LENGTH}."
            )
            raise InvalidRequest(message, field="provides")
    return facts
