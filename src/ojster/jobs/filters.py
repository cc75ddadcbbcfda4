"""Job filters, read from JSON members or query parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from ojster.core.errors import InvalidRequest
from ojster.core.states import STATE_NAMES, JobState
from ojster.core.timestamps import parse_timestamp
from ojster.jobs.failure import pattern_of
from ojster.jobs.filter_walk import JobFilter
from ojster.jobs.names import check_queue_name


def filter_of(conditions: Mapping[str, Any]) -> JobFilter:
    """Return the filter with these members.

    A time bound of a state (``completed_before``) implies that state, unless ``state`` is given.

    Raises
    ------
    InvalidRequest
        A member is malformed or unknown. Ignoring it could make the filter match more jobs than intended.

    Spec: ojs-bulk-operations 6.1; ojs-admin-api 6.5, 7.1
    """
    members: dict[str, Any] = {}
    implied: list[str] = []
    for name, value in conditions.items():
        known = _MEMBERS.get(name)
        if known is None:
            raise InvalidRequest(f"The filter has no member {name[:40]!r}. Use {', '.join(_MEMBERS)}.", field=name)
        if value is None:
            continue
        target, read, state = known
        if target in members:
            raise InvalidRequest(f"The filter sets {target!r} twice; remove {name!r}.", field=name)
        members[target] = read(name, value)
        implied += [state] if state else []
    if implied and "states" not in members:
        members["states"] = tuple(dict.fromkeys(implied))
    return JobFilter(**members)


def narrowing_filter_of(conditions: Mapping[str, Any] | None) -> JobFilter:
    """Return the filter with these members; refuse one that selects all jobs, such as one of nothing but nulls.

    Raises
    ------
    InvalidRequest
        It has no condition, or a member is malformed or unknown.
    """
    chosen = filter_of(conditions or {})
    if chosen == JobFilter():
        raise InvalidRequest("'filter' is empty, which would select all jobs. Add a condition.", field="filter")
    return chosen


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str) or not value or "\0" in value:
        raise InvalidRequest(f"{name!r} of the filter must be a non-empty string, not {value!r:.40}.", field=name)
    return value


def _pattern(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise InvalidRequest(f"{name!r} of the filter must be a string, not {value!r:.40}.", field=name)
    return pattern_of(value)


def _queue(name: str, value: Any) -> str:
    return check_queue_name(_text(name, value))


def _states(name: str, value: Any) -> tuple[str, ...]:
    states = value.split(",") if isinstance(value, str) else value
    if not isinstance(states, list) or not states:
        raise InvalidRequest(f"{name!r} of the filter must be a state or a non-empty array of states.", field=name)
    for state in states:
        if not isinstance(state, str) or state not in STATE_NAMES:
            raise InvalidRequest(f"Unknown state {state!r:.40}. Use {', '.join(JobState)}.", field=name)
    return tuple(dict.fromkeys(states))


def _whole(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) > 2**31:
        raise InvalidRequest(f"{name!r} of the filter must be an integer, not {value!r:.40}.", field=name)
    return value


def _moment(name: str, value: Any) -> int:
    try:
        return parse_timestamp(_text(name, value))
    except InvalidRequest as error:
        raise InvalidRequest(f"{name!r} of the filter: {error.message}", field=name) from None


def _meta(name: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict) or not value:
        raise InvalidRequest(f"{name!r} of the filter must be an object with at least one member.", field=name)
    return value


_Reader = Callable[[str, Any], Any]

_MEMBERS: Final[dict[str, tuple[str, _Reader, str | None]]] = {
    "type": ("type", _text, None),
    "job_type": ("type", _text, None),
    "queue": ("queue", _queue, None),
    "state": ("states", _states, None),
    "states": ("states", _states, None),
    "cron_name": ("cron_name", _text, None),
    "error_type": ("error_type", _text, None),
    "error_pattern": ("error_pattern", _pattern, None),
    "priority": ("priority", _whole, None),
    "meta": ("meta", _meta, None),
    "since": ("created_after", _moment, None),
    "until": ("created_before", _moment, None),
    "created_after": ("created_after", _moment, None),
    "created_before": ("created_before", _moment, None),
    "enqueued_after": ("enqueued_after", _moment, None),
    "enqueued_before": ("enqueued_before", _moment, None),
    "completed_after": ("finished_after", _moment, "completed"),
    "completed_before": ("finished_before", _moment, "completed"),
    "cancelled_after": ("finished_after", _moment, "cancelled"),
    "cancelled_before": ("finished_before", _moment, "cancelled"),
    "discarded_after": ("finished_after", _moment, "discarded"),
    "discarded_before": ("finished_before", _moment, "discarded"),
    "finished_after": ("finished_after", _moment, None),
    "finished_before": ("finished_before", _moment, None),
    "older_than": ("finished_before", _moment, None),
}
"""For each filter member: the ``JobFilter`` field that it sets, its reader, and the state that it implies."""
