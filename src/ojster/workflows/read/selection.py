"""Selection of workflows: a filter, and the pages of those that match it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final

import msgspec

from ojster.core.calls import SET_BY_SERVICE
from ojster.core.json_objects import is_same_json
from ojster.core.parsing import Bounded, PageLimit, PageOffset
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
    tenant:
        Tenant of the workflow; the empty string: no tenant.
    held:
        Whether it is held.
    cron_name:
        Name of the cron job that has started it.
    params:
        Members that its parameters must have, with equal values. No index covers them.
    finished_after:
        Lower bound of the time at which its last job ended.
    """

    states: tuple[str, ...] = ()
    type: str | None = None
    name: str | None = None
    tenant: Annotated[str | None, SET_BY_SERVICE] = None
    definition: str | None = None
    target: str | None = None
    waiting_for: WaitingFor | None = None
    held: bool | None = None
    cron_name: str | None = None
    params: dict[str, Any] = msgspec.field(default_factory=dict)
    created_after: int | None = None
    created_before: int | None = None
    finished_after: int | None = None
    finished_before: int | None = None


class WorkflowFilter(WorkflowConditions, frozen=True):
    """Criteria for workflows, and a page of those that match, newest first. ``before`` is a ``seq``, exclusive."""

    before: int | None = None
    limit: PageLimit = DEFAULT_PAGE
    offset: PageOffset = 0


@for_each
def list_workflows(tx: Transaction, chosen: WorkflowFilter) -> WorkflowPage:
    """Return a page of workflows for each filter, without their steps."""
    where, parameters = conditions(chosen)
    if chosen.params:
        workflows, before = _with_params(tx, chosen, where, parameters)
        total = len(workflows)
    else:
        ((total,),) = tx.execute(f"SELECT count(*) FROM workflows WHERE {IS_VISIBLE} AND {where}", parameters)
        workflows = _older(tx, where, parameters, chosen.before, chosen.limit + 1, chosen.offset)
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
    """Return the SQL condition of a filter, and its parameters. ``params`` is left out."""
    parts = ["TRUE"]
    parameters: dict[str, Any] = {}
    if chosen.tenant:
        parts.append("tenant <> ''")  # uses the partial index of workflows with a tenant
    if chosen.states:
        stored = list(dict.fromkeys("cancelled" if state == "cancelling" else state for state in chosen.states))
        names = [f"state_{number}" for number in range(len(stored))]
        parts.append(f"state = :{names[0]}" if len(names) == 1 else f"state IN (:{', :'.join(names)})")
        parameters |= dict(zip(names, stored, strict=True))
        if "cancelling" not in chosen.states and "cancelled" in stored:
            parts.append(f"NOT ({IS_CANCELLING})")
        elif "cancelled" not in chosen.states and "cancelled" in stored:
            parts.append(f"(state <> 'cancelled' OR ({IS_CANCELLING}))")
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


def walk(tx: Transaction, steps: Sequence[WalkStep[WorkflowConditions]]) -> list[WalkResult[WorkflowConditions]]:
    """Execute one step of each walk over workflows. A step scans at most ``_WINDOW`` rows, however few match."""
    return [take_step(tx, step, "workflows", _WINDOW, _select) for step in steps]


def matches(tx: Transaction, workflow: StoredWorkflow, chosen: WorkflowConditions) -> bool:
    """Return whether a filter selects a workflow, which may have changed since it was read."""
    where, parameters = conditions(chosen)
    rows = tx.execute(f"SELECT params FROM workflows WHERE seq = :seq AND {where}", parameters | {"seq": workflow.seq})
    return any(not chosen.params or _has(params, chosen.params) for (params,) in rows)


def _select(tx: Transaction, chosen: WorkflowConditions, rows: str, bounds: dict[str, Any]) -> list[WalkMatch]:
    where, parameters = conditions(chosen)
    # The rows are called as the table is, because conditions may name it.
    matches = tx.execute(
        f"""
        SELECT id, nodes, params
        FROM {rows} AS workflows
        WHERE {IS_VISIBLE} AND {where}
        ORDER BY seq
        """,
        bounds | parameters,
    )
    # A workflow is as much work as it has steps.
    return [
        WalkMatch(id, max(nodes, 1))
        for id, nodes, params in matches
        if not chosen.params or _has(params, chosen.params)
    ]


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


def _with_params(
    tx: Transaction, chosen: WorkflowFilter, where: str, parameters: dict[str, Any]
) -> tuple[list[StoredWorkflow], int | None]:
    """Return the workflows of a page that have certain parameters, and where the next page begins.

    No index covers parameters, so that each workflow is looked at, at most ``MAX_WINDOWS * _WINDOW`` for a page.
    """
    matching: list[StoredWorkflow] = []
    before = chosen.before
    for _ in range(MAX_WINDOWS):
        window = _older(tx, where, parameters, before, _WINDOW)
        for workflow in window:
            before = workflow.seq
            if _has(workflow.params, chosen.params):
                matching.append(workflow)
                if len(matching) == chosen.limit:
                    return matching, before
        if len(window) < _WINDOW:
            return matching, None
    return matching, before


def _has(params: bytes, wanted: dict[str, Any]) -> bool:
    values = _decode(params)
    return all(name in values and is_same_json(values[name], value) for name, value in wanted.items())
