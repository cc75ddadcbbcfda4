"""Selection of workflows: a filter, and the pages of those that match it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final

import msgspec

from ojster.core.calls import SET_BY_SERVICE
from ojster.core.json_objects import is_same_json
from ojster.storage.transaction import Transaction
from ojster.workflows.read.info import WorkflowPage
from ojster.workflows.read.views import summary_of, workflow_rows
from ojster.workflows.read.waiting import find_waits, waits_for
from ojster.workflows.stored_workflow import IS_VISIBLE, Workflow
from ojster.workflows.wait import WaitingFor

DEFAULT_PAGE: Final = 50

_WINDOW: Final = 1_000
"""Number of workflows whose parameters are read at once."""

MAX_WINDOWS: Final = 20
"""Maximum number of windows that are read for one page: the next page goes on where this one has stopped."""

_decode: Final = msgspec.json.decode


class WorkflowFilter(msgspec.Struct, frozen=True):
    """A filter and page of workflows, newest first. ``None`` matches all. ``before`` is a ``seq``, exclusive.

    ``params`` are members that the parameters must have, with equal values; without them, all match.
    """

    state: str | None = None
    type: str | None = None
    name: str | None = None
    before: Annotated[int, msgspec.Meta(ge=0, lt=10**18)] | None = msgspec.field(name="cursor", default=None)
    limit: Annotated[int, msgspec.Meta(ge=1, lt=10**9)] = DEFAULT_PAGE
    offset: Annotated[int, msgspec.Meta(ge=0, lt=10**9)] = 0
    tenant: Annotated[str | None, SET_BY_SERVICE] = None
    definition: str | None = None
    target: str | None = None
    waiting_for: WaitingFor | None = None
    params: dict[str, Any] = {}


def list_workflows(tx: Transaction, filters: Sequence[WorkflowFilter]) -> list[WorkflowPage]:
    """Return a page of workflows for each filter, without their steps."""
    return [_page(tx, chosen) for chosen in filters]


def _page(tx: Transaction, chosen: WorkflowFilter) -> WorkflowPage:
    where, parameters = _conditions(chosen)
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
    return WorkflowPage([summary_of(workflow, waits.get(workflow.seq, ())) for workflow in workflows], total, before)


def _conditions(chosen: WorkflowFilter) -> tuple[str, dict[str, Any]]:
    """Return the SQL condition of a filter, and its parameters. ``params`` is left out."""
    conditions = ["TRUE"]
    parameters: dict[str, Any] = {}
    if chosen.tenant:
        conditions.append("tenant <> ''")  # uses the partial index of workflows with a tenant
    for name in ("state", "type", "name", "tenant", "definition", "target"):
        if (value := getattr(chosen, name)) is not None:
            conditions.append(f"{name} = :{name}")
            parameters[name] = value
    if chosen.waiting_for is not None:
        conditions.append(waits_for(chosen.waiting_for))
    return " AND ".join(conditions), parameters


def _older(
    tx: Transaction, where: str, parameters: dict[str, Any], before: int | None, limit: int, offset: int = 0
) -> list[Workflow]:
    """Return the newest matching workflows that are older than the one with the number ``before``."""
    bounds = parameters | {"limit": limit, "offset": offset}
    if before is not None:
        where += " AND seq < :before"
        bounds["before"] = before
    rows = workflow_rows(tx, f"{where} ORDER BY seq DESC LIMIT :limit OFFSET :offset", bounds)
    return [Workflow(*row) for row in rows]


def _with_params(
    tx: Transaction, chosen: WorkflowFilter, where: str, parameters: dict[str, Any]
) -> tuple[list[Workflow], int | None]:
    """Return the workflows of a page that have certain parameters, and where the next page begins.

    No index covers parameters, so that each workflow is looked at, at most ``MAX_WINDOWS * _WINDOW`` for a page.
    """
    matching: list[Workflow] = []
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
