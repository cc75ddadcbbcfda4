"""Job filters, read from JSON members or query parameters."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final

import msgspec
from msgspec import Struct

from ojster.core.errors import InvalidRequest
from ojster.core.parsing import meant_by
from ojster.core.states import JobState
from ojster.core.timestamps import format_timestamp, parse_timestamp
from ojster.jobs.failure import pattern_of
from ojster.jobs.filter_walk import JobFilter, values_of
from ojster.jobs.names import check_queue_name
from ojster.jobs.search import member_of

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
            hint = "" if (meant := meant_by(name, known_members)) is None else f" Did you mean {meant!r}?"
            known_names = ", ".join(known_members)
            raise InvalidRequest(f"The filter has no member {name[:40]!r}.{hint} Use {known_names}.", field=name)
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
    return narrowing(filter_of(conditions or {}))


def narrowing(chosen: JobFilter) -> JobFilter:
    """Return a filter; refuse one that selects all jobs.

    Raises
    ------
    InvalidRequest
        It has no condition.
    """
    if msgspec.structs.replace(chosen, internal=False) == JobFilter():
        raise selects_all("jobs")
    return chosen


def selects_all(what: str) -> InvalidRequest:
    """Return the refusal of a filter without a condition; ``what`` are the items that it would select."""
    return InvalidRequest(f"'filter' is empty, which would select all {what}. Add a condition.", field="filter")


def filter_members(chosen: Struct) -> dict[str, Any]:
    """Return the members of a request from which a filter is read again; its tenant is that of the caller."""
    members = msgspec.structs.asdict(chosen)
    for name, value in members.items():
        if name.endswith(("_after", "_before")) and value is not None:
            members[name] = format_timestamp(value)
        elif isinstance(chosen, JobFilter) and name in VALUE_LISTS and value is not None:
            members[name] = list(values_of(value))  # as one text, it could be several
        elif isinstance(value, tuple):
            members[name] = list(value)
    return {name: value for name, value in members.items() if value not in (None, {}, [], ()) and name != "tenant"}


def read_text(name: str, value: Any) -> str:
    """Read a non-empty string."""
    if not isinstance(value, str) or not value or "\0" in value:
        raise InvalidRequest(f"{name!r} of the filter must be a non-empty string, not {value!r:.40}.", field=name)
    if len(value) > MAX_TEXT:
        raise InvalidRequest(f"{name!r} of the filter is longer than {MAX_TEXT} characters. Shorten it.", field=name)
    return value


MAX_VALUES: Final = 100
"""Maximum number of values of a condition."""

MAX_TEXT: Final = 1_000
"""Maximum length of a value of a condition, in characters."""

VALUE_LISTS: Final = frozenset({"queue", "type", "cron_name", "error_type", "worker", "workflow", "tag", "where"})
"""Conditions that take several values."""

_ESCAPED: Final = re.compile(r"\\([\\,])|,")


def split_values(text: str) -> list[str]:
    r"""Return the values in a text with commas between them.

    In a value, ``\,`` is a comma and ``\\`` a backslash. A backslash before another character stands for itself.
    """
    parts = [""]
    end = 0
    for match in _ESCAPED.finditer(text):
        parts[-1] += text[end : match.start()] + (match[1] or "")
        end = match.end()
        if match[1] is None:
            parts.append("")
    parts[-1] += text[end:]
    return parts


def joined_values(values: Iterable[str]) -> str:
    """Return values as one text; the inverse of ``split_values``."""
    return ",".join(value.replace("\\", "\\\\").replace(",", "\\,") for value in values)


def shown_value(name: str, value: Any) -> Any:
    """Return a condition of ``JobFilter`` as a query parameter; the inverse of its reader."""
    if name in VALUE_LISTS or name == "states":
        return joined_values(values_of(value)) or None
    return format_timestamp(value) if name in ("created_after", "created_before") and value is not None else value


def values_reader(read: Callable[[str, Any], str]) -> FilterReader:
    """Return a reader of a value or several: a text with commas between them, or an array."""

    def read_values(name: str, value: Any) -> str | tuple[str, ...]:
        texts = split_values(value) if isinstance(value, str) else value
        if not isinstance(texts, list) or not texts:
            raise InvalidRequest(
                f"{name!r} of the filter must be a non-empty string or an array of strings, not {value!r:.40}.",
                field=name,
            )
        if len(texts) > MAX_VALUES:
            raise InvalidRequest(f"{name!r} of the filter has {len(texts)} values; use {MAX_VALUES}.", field=name)
        values = tuple(dict.fromkeys(read(name, text) for text in texts))
        return values[0] if len(values) == 1 else values

    return read_values


def _where(name: str, value: Any) -> tuple[str, ...]:
    conditions = _conditions(name, value)
    return (conditions,) if isinstance(conditions, str) else conditions


def _condition(name: str, value: Any) -> str:
    member_of(read_text(name, value))
    return str(value)


_conditions: Final = values_reader(_condition)


def _part_of_id(name: str, value: Any) -> str:
    text = read_text(name, value).lower().removeprefix("…")
    if not is_part_of_id(text):
        raise InvalidRequest(
            f"{name!r} of the filter must be 4 to 36 characters of the beginning or the end of a job's id, "
            f"not {value!r:.40}.",
            field=name,
        )
    return text


def is_part_of_id(text: str) -> bool:
    """Return whether a text can be the beginning or the end of a job's id."""
    return _PART_OF_ID.fullmatch(text) is not None


_PART_OF_ID: Final = re.compile(r"[0-9a-f-]{4,36}")


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


def read_flag(name: str, value: Any) -> bool:
    """Read ``true`` or ``false``, in a query as a text."""
    if not isinstance(value, bool) and value not in ("true", "false"):
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
_texts: Final = values_reader(read_text)

_MEMBERS: Final[FilterMembers] = {
    "type": ("type", _texts, None),
    "job_type": ("type", _texts, None),
    "queue": ("queue", values_reader(_queue), None),
    "state": ("states", _states, None),
    "states": ("states", _states, None),
    "cron_name": ("cron_name", _texts, None),
    "error_type": ("error_type", _texts, None),
    "error_text": ("error_text", read_text, None),
    "error_pattern": ("error_pattern", _pattern, None),
    "worker": ("worker", _texts, None),
    "workflow": ("workflow", _texts, None),
    "tag": ("tag", _texts, None),
    "where": ("where", _where, None),
    "id": ("id", _part_of_id, None),
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
    "dead": ("dead", read_flag, None),
    "internal": ("internal", read_flag, None),
}
"""Members of job filters."""
