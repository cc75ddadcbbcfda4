"""Job filters, read from JSON members or query parameters."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

import msgspec
from msgspec import Struct

from ojster.core.errors import InvalidRequest
from ojster.core.states import JobState
from ojster.core.timestamps import format_timestamp, parse_timestamp
from ojster.jobs.failure import pattern_of
from ojster.jobs.filter_walk import JobFilter
from ojster.jobs.names import check_queue_name

FilterReader = Callable[[str, Any], Any]
"""Reads a member of a filter: takes its name and its value, and raises ``InvalidRequest``."""

FilterMembers = Mapping[str, tuple[str, FilterReader, str | None]]
"""For each filter member: the field that it sets, its reader, and the state that it implies."""


def filter_of(conditions: Mapping[str, Any]) -> JobFilter:
    """Return the filter with these members.

    A time bound of a state (``completed_before``) implies that state, unless ``state`` is given.

    Raises
    ------
    InvalidRequest
        A member is malformed or unknown. Ignoring it could make the filter match more jobs than intended.

    Spec: ojs-bulk-operations 6.1; ojs-admin-api 6.5, 7.1
    """
    return JobFilter(**read_filter(conditions, _MEMBERS))


def read_filter(conditions: Mapping[str, Any], known_members: FilterMembers) -> dict[str, Any]:
    """Return the fields of a filter with these members; raises as ``filter_of``."""
    members: dict[str, Any] = {}
    implied: list[str] = []
    for name, value in conditions.items():
        known = known_members.get(name)
        if known is None:
            raise InvalidRequest(f"The filter has no member {name[:40]!r}. Use {', '.join(known_members)}.", field=name)
        if value is None:
            continue
        target, read, state = known
        if target in members:
            raise InvalidRequest(f"The filter sets {target!r} twice; remove {name!r}.", field=name)
        members[target] = read(name, value)
        implied += [state] if state else []
    if implied and "states" not in members:
        members["states"] = tuple(dict.fromkeys(implied))
    return members


def narrowing_filter_of(conditions: Mapping[str, Any] | None) -> JobFilter:
    """Return the filter with these members; refuse one that selects all jobs, such as one of nothing but nulls.

    Raises
    ------
    InvalidRequest
        It has no condition, or a member is malformed or unknown.
    """
    chosen = filter_of(conditions or {})
    if msgspec.structs.replace(chosen, internal=False) == JobFilter():
        raise selects_all("jobs")
    return chosen


def selects_all(what: str) -> InvalidRequest:
    """Return the refusal of a filter without a condition; ``what`` are the items that it would select."""
    return InvalidRequest(f"'filter' is empty, which would select all {what}. Add a condition.", field="filter")


def filter_members(chosen: Struct) -> dict[str, Any]:
    """Return the members of a request from which a filter is read again; its tenant is that of the caller."""
    members = msgspec.structs.asdict(chosen)
    members["states"] = list(members["states"]) or None
    for name, value in members.items():
        if name.endswith(("_after", "_before")) and value is not None:
            members[name] = format_timestamp(value)
    return {name: value for name, value in members.items() if value not in (None, {}, ()) and name != "tenant"}


def read_text(name: str, value: Any) -> str:
    """Read a non-empty string."""
    if not isinstance(value, str) or not value or "\0" in value:
        raise InvalidRequest(f"{name!r} of the filter must be a non-empty string, not {value!r:.40}.", field=name)
    return value


def _pattern(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise InvalidRequest(f"{name!r} of the filter must be a string, not {value!r:.40}.", field=name)
    return pattern_of(value)


def _queue(name: str, value: Any) -> str:
    return check_queue_name(read_text(name, value))


def states_reader(known: Collection[str]) -> FilterReader:
    """Return a reader of some of the known states: one, several with commas, or an array."""

    def read(name: str, value: Any) -> tuple[str, ...]:
        states = value.split(",") if isinstance(value, str) else value
        if not isinstance(states, list) or not states:
            raise InvalidRequest(f"{name!r} of the filter must be a state or a non-empty array of states.", field=name)
        for state in states:
            if not isinstance(state, str) or state not in known:
                raise InvalidRequest(f"Unknown state {state!r:.40}. Use {', '.join(known)}.", field=name)
        return tuple(dict.fromkeys(states))

    return read


def _whole(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) > 2**31:
        raise InvalidRequest(f"{name!r} of the filter must be an integer, not {value!r:.40}.", field=name)
    return value


def _flag(name: str, value: Any) -> bool:
    if value not in (True, False, "true", "false"):
        raise InvalidRequest(f"{name!r} of the filter must be true or false, not {value!r:.40}.", field=name)
    return value in (True, "true")


def read_moment(name: str, value: Any) -> int:
    """Read a time, and return it in microseconds since the epoch."""
    try:
        return parse_timestamp(read_text(name, value))
    except InvalidRequest as error:
        raise InvalidRequest(f"{name!r} of the filter: {error.message}", field=name) from None


def read_object(name: str, value: Any) -> dict[str, Any]:
    """Read a JSON object with at least one member."""
    if not isinstance(value, dict) or not value:
        raise InvalidRequest(f"{name!r} of the filter must be an object with at least one member.", field=name)
    return value


_states: Final = states_reader(tuple(JobState))

_MEMBERS: Final[FilterMembers] = {
    "type": ("type", read_text, None),
    "job_type": ("type", read_text, None),
    "queue": ("queue", _queue, None),
    "state": ("states", _states, None),
    "states": ("states", _states, None),
    "cron_name": ("cron_name", read_text, None),
    "error_type": ("error_type", read_text, None),
    "error_pattern": ("error_pattern", _pattern, None),
    "priority": ("priority", _whole, None),
    "meta": ("meta", read_object, None),
    "since": ("created_after", read_moment, None),
    "until": ("created_before", read_moment, None),
    "created_after": ("created_after", read_moment, None),
    "created_before": ("created_before", read_moment, None),
    "enqueued_after": ("enqueued_after", read_moment, None),
    "enqueued_before": ("enqueued_before", read_moment, None),
    "completed_after": ("finished_after", read_moment, "completed"),
    "completed_before": ("finished_before", read_moment, "completed"),
    "cancelled_after": ("finished_after", read_moment, "cancelled"),
    "cancelled_before": ("finished_before", read_moment, "cancelled"),
    "discarded_after": ("finished_after", read_moment, "discarded"),
    "discarded_before": ("finished_before", read_moment, "discarded"),
    "finished_after": ("finished_after", read_moment, None),
    "finished_before": ("finished_before", read_moment, None),
    "older_than": ("finished_before", read_moment, None),
    "internal": ("internal", _flag, None),
}
"""Members of job filters."""
