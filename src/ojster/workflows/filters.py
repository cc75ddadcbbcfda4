"""Workflow filters, read from JSON members or query parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ojster.core.errors import InvalidRequest
from ojster.jobs.filter_walk import values_of
from ojster.jobs.filters import (
    FilterMembers,
    read_filter,
    read_flag,
    read_moment,
    read_object,
    read_text,
    selects_all,
    states_reader,
    values_reader,
)
from ojster.workflows.read.selection import WorkflowConditions
from ojster.workflows.read.waiting import WAITING_FOR
from ojster.workflows.stored_workflow import ALL_STATES


def workflow_filter_of(members: Mapping[str, Any]) -> WorkflowConditions:
    """Return the filter with these members.

    Raises
    ------
    InvalidRequest
        A member is malformed or unknown. Ignoring it could make the filter match more workflows than intended.
    """
    return WorkflowConditions(**read_filter(members, _MEMBERS))


def narrowing_workflow_filter_of(members: Mapping[str, Any] | None) -> WorkflowConditions:
    """Return the filter with these members; refuse one that selects all workflows, such as one of nothing but nulls.

    Raises
    ------
    InvalidRequest
        It has no condition, or a member is malformed or unknown.
    """
    return narrowing(workflow_filter_of(members or {}))


def narrowing(chosen: WorkflowConditions) -> WorkflowConditions:
    """Return a filter; refuse one that selects all workflows.

    Raises
    ------
    InvalidRequest
        It has no condition.
    """
    if chosen == WorkflowConditions():
        raise selects_all("workflows")
    return chosen


def _waiting_for(name: str, value: Any) -> str:
    if value not in WAITING_FOR:
        message = f"A workflow does not wait for {str(value)[:40]!r}. Use one of {', '.join(WAITING_FOR)}."
        raise InvalidRequest(message, field=name)
    return str(value)


_states: Final = states_reader(ALL_STATES)

_texts: Final = values_reader(read_text)


def _ids(name: str, value: Any) -> tuple[str, ...]:
    return values_of(_texts(name, value))


_MEMBERS: Final[FilterMembers] = {
    "state": ("states", _states, None),
    "states": ("states", _states, None),
    "id": ("ids", _ids, None),
    "ids": ("ids", _ids, None),
    "type": ("type", read_text, None),
    "name": ("name", read_text, None),
    "definition": ("definition", read_text, None),
    "target": ("target", read_text, None),
    "cron_name": ("cron_name", read_text, None),
    "waiting_for": ("waiting_for", _waiting_for, None),
    "held": ("held", read_flag, None),
    "params": ("params", read_object, None),
    "metadata": ("metadata", read_object, None),
    "created_after": ("created_after", read_moment, None),
    "created_before": ("created_before", read_moment, None),
    "finished_after": ("finished_after", read_moment, None),
    "finished_before": ("finished_before", read_moment, None),
}
"""Members of workflow filters."""

WORKFLOW_FILTER_PARAMETERS: Final = tuple(name for name in _MEMBERS if name not in ("states", "ids"))
"""Query parameters of lists of workflows."""
