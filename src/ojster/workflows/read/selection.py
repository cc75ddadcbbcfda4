"""Selection of workflows: a filter, and the pages of those that match it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from ojster.core.calls import SET_BY_SERVICE
from ojster.core.json_objects import is_same_json
from ojster.core.parsing import Bounded, PageLimit, PageOffset
from ojster.jobs.filters import MAX_VALUES
from ojster.jobs.sweeps import WalkMatch, WalkResult, WalkStep, take_step
from ojster.storage.call import for_each
from ojster.storage.transaction import Transaction
from ojster.workflows.read.failed_steps import first_failures
from ojster.workflows.read.info import WorkflowPage
from ojster.workflows.read.views import FAILED, summary_of, workflow_rows
from ojster.workflows.read.waiting import find_waits, waits_for
from ojster.workflows.stored_workflow import IS_CANCELLING, IS_VISIBLE, StoredWorkflow
from ojster.workflows.wait import WaitingFor

DEFAULT_PAGE: Final = 50

_WINDOW: Final = 1_000
"""Number of workflows whose parameters are read at once."""

MAX_WINDOWS: Final = 20
"""Maximum number of windows that are read for one page: the next page goes on where this one has stopped."""

_decode: Final = msgspec.json.decode


class WorkflowConditions(Bounded, frozen=True):
    """Criteria for workflows; those left out match all. Times are microseconds since the epoch, bounds excluded.

    Parameters
    ----------
    states:
        Allowed states; empty: all.
    ids:
        Allowed ids; empty: all.
    tenant:
        Tenant of the workflow; the empty string: no tenant.
    held:
        Whether it is held.
    cron_name:
        Name of the cron job that has started it.
    params, metadata:
        Members that its parameters, or its metadata, must have, with equal values. No index covers them.
    finished_after:
        Lower bound of the time at which its last job ended.
    """

    states: tuple[str, ...] = ()
    ids: Annotated[tuple[str, ...], Meta(max_length=MAX_VALUES)] = ()
    type: str | None = None
    name: str | None = None
    tenant: Annotated[str | None, SET_BY_SERVICE] = None
    definition: str | None = None
    target: str | None = None
    waiting_for: WaitingFor | None = None
    held: bool | None = None
    cron_name: str | None = None
    params: dict[str, Any] = msgspec.field(default_factory=dict)
    metadata: dict[str, Any] = msgspec.field(default_factory=dict)
    created_after: int | None = None
    created_before: int | None = None
    finished_after: int | None = None
    finished_before: int | None = None

    @property
    def is_searched(self) -> bool:
        """Whether it has conditions on JSON, which the database does not look into."""
        return bool(self.params or self.metadata)

    def accepts(self, params: bytes, metadata: bytes) -> bool:
        """Return whether the parameters and the metadata of a workflow have the members that they must have."""
        return _has(params, self.params) and _has(metadata, self.metadata)


class WorkflowFilter(WorkflowConditions, frozen=True):
    """Criteria for workflows, and a page of those that match, newest first. ``before`` is a ``seq``, exclusive."""

    before: int | None = None
    limit: PageLimit = DEFAULT_PAGE
    offset: PageOffset = 0


@for_each
def list_workflows(tx: Transaction, chosen: WorkflowFilter) -> WorkflowPage:
    """Return a page of workflows for each filter, without their steps."""
    where, parameters = conditions(chosen)
    if chosen.is_searched:
        workflows, before = _searched(tx, chosen, where, parameters)
        total = len(workflows)
    else:
        ((total,),) = tx.execute(f"SELECT count(*) FROM workflows WHERE {IS_VISIBLE} AND {where}", parameters)
        # After the last match, the database would look for another one through the rest of the workflows.
        wanted = max(0, min(chosen.limit + 1, total - chosen.offset))
        workflows = _older(tx, where, parameters, chosen.before, wanted, chosen.offset)
        more = len(workflows) > chosen.limit
        workflows = workflows[: chosen.limit]
        before = workflows[-1].seq if more else None
    waits = find_waits(tx, [workflow.seq for workflow in workflows if workflow.finished_at is None])
    failed = [workflow for workflow in workflows if workflow.state in FAILED and workflow.error is None]
    errors = first_failures(tx, failed)
    shown = [summary_of(workflow, waits.get(workflow.seq, ())) for workflow in workflows]
    for workflow, info in zip(workflows, shown, strict=True):
        info.error = errors.get(workflow.seq, info.error)
    return WorkflowPage(shown, total, before)


def conditions(chosen: WorkflowConditions) -> tuple[str, dict[str, Any]]:
    """Return the SQL condition of a filter, and its parameters. ``params`` and ``metadata`` are left out."""
    parts = ["TRUE"]
    parameters: dict[str, Any] = {}
    if chosen.tenant:
        parts.append("tenant <> ''")  # uses the partial index of workflows with a tenant
    if chosen.states:
        parts.append(_in_states(chosen.states, parameters))
    if chosen.ids:
        parts.append(_one_of("id", chosen.ids, parameters))
    for name in ("type", "name", "tenant", "definition", "target", "cron_name"):
        if (value := getattr(chosen, name)) is not None:
            parts.append(f"{name} = :{name}")
            parameters[name] = value
    for event in ("created", "finished"):
        for side, sign in (("after", ">"), ("before", "<")):
            if (moment := getattr(chosen, f"{event}_{side}")) is not None:
                parts.append(f"{event}_at {sign} :{event}_{side}")
                parameters[f"{event}_{side}"] = moment
    if chosen.held is not None:
        parts.append(f"held_at IS {'NOT ' * chosen.held}NULL")
    if chosen.waiting_for is not None:
        parts.append(waits_for(chosen.waiting_for))
    return " AND ".join(parts), parameters


def _in_states(states: Sequence[str], parameters: dict[str, Any]) -> str:
    """Return the condition that a workflow is shown in one of some states, and add them to the parameters."""
    stored = list(dict.fromkeys("cancelled" if state == "cancelling" else state for state in states))
    condition = _one_of("state", stored, parameters)
    if "cancelled" not in stored or {"cancelled", "cancelling"} <= set(states):
        return condition
    return f"{condition} AND {f'NOT ({IS_CANCELLING})' if 'cancelled' in states else _NOT_JUST_CANCELLED}"


_NOT_JUST_CANCELLED: Final = f"(state <> 'cancelled' OR ({IS_CANCELLING}))"


def _one_of(column: str, values: Sequence[str], parameters: dict[str, Any]) -> str:
    """Return the condition that a column has one of some values, and add them to the parameters."""
    marks = {f"{column}_{number}": value for number, value in enumerate(values)}
    parameters |= marks
    return f"{column} = :{column}_0" if len(marks) == 1 else f"{column} IN (:{', :'.join(marks)})"


def walk(tx: Transaction, steps: Sequence[WalkStep[WorkflowConditions]]) -> list[WalkResult[WorkflowConditions]]:
    """Execute one step of each walk over workflows. A step scans at most ``_WINDOW`` rows, however few match.

    Workflows with certain ids are found by the index of these, in one step.
    """
    return [
        _walked(_select(tx, step.chosen, "workflows", {}))
        if step.chosen.ids
        else take_step(tx, step, "workflows", _WINDOW, _select)
        for step in steps
    ]


def _walked(matches: Sequence[WalkMatch]) -> WalkResult[WorkflowConditions]:
    return WalkResult([match.id for match in matches], None, [match.weight for match in matches])


def matches(tx: Transaction, workflow: StoredWorkflow, chosen: WorkflowConditions) -> bool:
    """Return whether a filter selects a workflow, which may have changed since it was read."""
    where, parameters = conditions(chosen)
    query = f"SELECT params, metadata FROM workflows WHERE seq = :seq AND {where}"
    rows = tx.execute(query, parameters | {"seq": workflow.seq})
    return any(chosen.accepts(params, metadata) for params, metadata in rows)


def _select(tx: Transaction, chosen: WorkflowConditions, rows: str, bounds: dict[str, Any]) -> list[WalkMatch]:
    where, parameters = conditions(chosen)
    # The rows are called as the table is, because conditions may name it.
    matches = tx.execute(
        f"""
        SELECT id, nodes, params, metadata
        FROM {rows} AS workflows
        WHERE {IS_VISIBLE} AND {where}
        ORDER BY seq
        """,
        bounds | parameters,
    )
    # A workflow is as much work as it has steps.
    return [WalkMatch(id, max(nodes, 1)) for id, nodes, params, metadata in matches if chosen.accepts(params, metadata)]


def _older(
    tx: Transaction, where: str, parameters: dict[str, Any], before: int | None, limit: int, offset: int = 0
) -> list[StoredWorkflow]:
    """Return the newest matching workflows that are older than the one with the number ``before``."""
    bounds = parameters | {"limit": limit, "offset": offset}
    if before is not None:
        where += " AND seq < :before"
        bounds["before"] = before
    rows = workflow_rows(tx, f"{where} ORDER BY seq DESC LIMIT :limit OFFSET :offset", bounds)
    return [StoredWorkflow(*row) for row in rows]


def _searched(
    tx: Transaction, chosen: WorkflowFilter, where: str, parameters: dict[str, Any]
) -> tuple[list[StoredWorkflow], int | None]:
    """Return the workflows of a page that have certain members, and where the next page begins.

    No index covers these, so that each workflow is looked at, at most ``MAX_WINDOWS * _WINDOW`` for a page.
    """
    matching: list[StoredWorkflow] = []
    before = chosen.before
    for _ in range(MAX_WINDOWS):
        window = _older(tx, where, parameters, before, _WINDOW)
        for workflow in window:
            before = workflow.seq
            if chosen.accepts(workflow.params, workflow.metadata):
                matching.append(workflow)
                if len(matching) == chosen.limit:
                    return matching, before
        if len(window) < _WINDOW:
            return matching, None
    return matching, before


def _has(members: bytes, wanted: dict[str, Any]) -> bool:
    if not wanted:
        return True
    values = _decode(members)
    return all(name in values and is_same_json(values[name], value) for name, value in wanted.items())
