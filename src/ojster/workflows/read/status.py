"""Status of one workflow, with the results of its steps, and counts of workflows by state and age."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Final

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from ojster.core.durations import HOUR
from ojster.core.tenant import called
from ojster.core.timestamps import format_optional
from ojster.storage.call import for_each, returns_refusal
from ojster.storage.transaction import Transaction
from ojster.workflows.node import LEAVES, Node, NodeState
from ojster.workflows.read.flow_info import WaitInfo
from ojster.workflows.read.info import WorkflowInfo
from ojster.workflows.read.node_view import SELECT_WITH_VALUES, NodeViews
from ojster.workflows.read.views import summary_of
from ojster.workflows.read.waiting import nodes_that_wait_for_items, waits_of, waits_of_flows
from ojster.workflows.stored_workflow import (
    ALL_STATES,
    FINAL_STATES,
    IS_CANCELLING,
    IS_VISIBLE,
    StoredWorkflow,
    get_workflow,
)
from ojster.workflows.wait import WaitingFor

MAX_BRANCH_RESULTS: Final = 10_000
"""Maximum number of step results returned for each branch. The most recent ones are returned."""

AGE_BUCKETS: Final = ("current", "past_hour", "past_24h", "all_time")
"""Names of the creation-time buckets: less than 1 hour ago, 1 to 2 hours, 2 to 24 hours, 24 hours or more."""


class StepResult(msgspec.Struct, frozen=True, omit_defaults=True):
    """The result of a step that has ended.

    ``name`` is its id, or else its job type or kind. ``display_name`` is its name for people, if it has one.
    ``fallback``: it took the place of the step with this id, which did not succeed.
    """

    name: str
    path: str
    state: str
    result: msgspec.Raw | UnsetType = UNSET
    error: msgspec.Raw | UnsetType = UNSET
    enqueued_at: str | None = None
    started_at: str | None = None
    finished_at: str | None = None
    job_id: str | None = None
    display_name: str | None = None
    fallback: bool = False


class StepInProgress(msgspec.Struct, frozen=True, omit_defaults=True):
    """A step in progress: its job is active, enqueued, or suspended until it is resumed or ``deadline`` has passed.

    A gate, or another step that needs an approval, is ``blocked`` and has no job yet; nor has a step that waits for an
    item that another step promised. A step is ``stopping`` while its
    job has been cancelled or has exceeded its timeout, but its worker has not confirmed that it has stopped. ``waits``:
    what a flow waits for whose function the job runs. Names are those of ``StepResult``.
    """

    name: str
    path: str
    job_id: str | None
    state: str
    attempt: int
    waiting_for: WaitingFor | None = None
    worker_id: str | None = None
    enqueued_at: str | None = None
    started_at: str | None = None
    deadline: str | None = None
    progress: msgspec.Raw | UnsetType = UNSET
    error: msgspec.Raw | UnsetType = UNSET
    display_name: str | None = None
    fallback: bool = False
    waits: list[WaitInfo] = []


class WorkflowStatus(msgspec.Struct, frozen=True):
    """The status of a workflow.

    Parameters
    ----------
    workflow:
        The workflow without its steps.
    results:
        Results of the ended steps, by branch (``steps``, ``on_error``, ``on_cancel``), in the order in which they
        ended. Skipped steps are left out.
    current:
        Steps in progress.
    """

    workflow: WorkflowInfo
    results: dict[str, list[StepResult]]
    current: list[StepInProgress]


class WorkflowStatistics(msgspec.Struct, frozen=True):
    """Number of workflows by state, in each age bucket of ``AGE_BUCKETS``. A workflow counts in one bucket."""

    current: dict[str, int]
    past_hour: dict[str, int]
    past_24h: dict[str, int]
    all_time: dict[str, int]


@for_each
@returns_refusal
def read_status(tx: Transaction, id: str) -> WorkflowStatus:
    """Return the status of each workflow, or a `NotFound`."""
    return _status(tx, get_workflow(tx, id))


_MAY_BE_SHOWN: Final = "n.state NOT IN ('waiting', 'ready', 'skipped')"
"""SQL condition of the nodes that a status shows, and of some others; the many that wait are not read."""


def _status(tx: Transaction, workflow: StoredWorkflow) -> WorkflowStatus:
    expecting = sorted(nodes_that_wait_for_items(tx, workflow.numbers))
    rows = tx.execute(f"{SELECT_WITH_VALUES} WHERE n.id BETWEEN ? AND ? AND {_MAY_BE_SHOWN}", workflow.numbers)
    if expecting:
        rows += tx.execute(f"{SELECT_WITH_VALUES} WHERE n.id {tx.among}", (tx.integers(expecting),))
    views = NodeViews(rows)
    nodes = list(views.nodes.values())
    views.read_containers(tx)
    ended_in: dict[str, list[Node]] = defaultdict(list)
    leaves = [node for node in nodes if node.kind in LEAVES]
    ended = [node for node in leaves if node.finished_at is not None and node.state != NodeState.SKIPPED]
    for node in sorted(ended, key=lambda node: (node.finished_at or 0, node.id)):
        ended_in[_branch_of(views, node)].append(node)
    results = {name: ended_in[name][-MAX_BRANCH_RESULTS:] for name in BRANCHES if name in ended_in}
    blocked = [node for node in nodes if node.state == NodeState.BLOCKED]
    promised = [views.nodes[id] for id in expecting if id in views.nodes]
    started = [node for node in leaves if node.state == NodeState.STARTED and views.has_job(node)]
    current = sorted([*started, *blocked, *promised], key=lambda node: node.id)
    shown = [*current, *(node for ended_nodes in results.values() for node in ended_nodes)]
    ids = {node.id for node in shown} | {named.id for node in shown for named in views.named_by(node)}
    views.read_specs(tx, tx.among, (tx.integers(sorted(ids)),))
    waits = waits_of_flows(tx, [node.id for node in started])
    return WorkflowStatus(
        summary_of(workflow, waits_of(tx, workflow.numbers) if workflow.finished_at is None else ()),
        {name: [_result(views, node) for node in ended_nodes] for name, ended_nodes in results.items()},
        [_current(views, node, waits.get(node.id, [])) for node in current],
    )


BRANCHES: Final = ("steps", "on_error", "on_cancel")
"""The names of the main part and the branches of a workflow."""


def _branch_of(views: NodeViews, node: Node) -> str:
    """Return the name of the branch that contains a node."""
    while node.parent is not None and views.container_of(node).parent is not None:
        node = views.container_of(node)
    return node.name or "steps" if node.position else "steps"


def _result(views: NodeViews, node: Node) -> StepResult:
    view = views.view(node)
    enqueued_at, started_at = view.times
    return StepResult(
        name=view.id or view.type,
        path=view.path,
        state=node.state,
        result=view.result,
        error=view.error,
        enqueued_at=enqueued_at,
        started_at=started_at,
        finished_at=view.completed_at,
        job_id=view.job_id,
        display_name=view.display_name,
        fallback=view.is_fallback,
    )


def _current(views: NodeViews, node: Node, waiting: list[WaitInfo]) -> StepInProgress:
    view = views.view(node)
    step = StepInProgress(
        name=view.id or view.type,
        path=view.path,
        display_name=view.display_name,
        fallback=view.is_fallback,
        job_id=None,
        state=node.state,
        attempt=0,
        waiting_for=view.waiting_for,
    )
    job = view.job
    if job is None:
        return step if step.waiting_for is not None else replace(step, waiting_for="promise")
    waits = view.waiting_for is not None or bool(waiting)
    enqueued_at, started_at = view.times
    return replace(
        step,
        job_id=view.job_id,
        state="waiting" if waits else "stopping" if view.is_stopping else job.state,
        attempt=job.attempt,
        worker_id=None if job.worker_id is None else called(job.worker_id),
        enqueued_at=enqueued_at,
        started_at=started_at,
        deadline=format_optional(job.due_at) if waits else None,
        progress=view.progress,
        error=view.error,
        waits=waiting,
    )


_SHOWN_STATE: Final = f"CASE WHEN {IS_CANCELLING} THEN 'cancelling' ELSE state END"
"""The state of a workflow as callers see it."""


@for_each
def count(tx: Transaction, request: tuple[str | None, str | None]) -> WorkflowStatistics:
    """Return the number of workflows for each pair of a tenant (``None``: all) and a definition (``None``: any)."""
    tenant, definition = request
    where = IS_VISIBLE
    if tenant is not None:
        where += " AND tenant = :tenant"
    if definition is not None:
        where += " AND definition = :definition"
    rows = tx.execute(
        f"""
        SELECT
            {_SHOWN_STATE},
            CASE
                WHEN created_at > :hour THEN 0
                WHEN created_at > :two_hours THEN 1
                WHEN created_at > :day THEN 2
                ELSE 3
            END AS bucket,
            count(*)
        FROM workflows
        WHERE {where}
        GROUP BY 1, bucket
        """,
        {
            "hour": tx.now - HOUR,
            "two_hours": tx.now - 2 * HOUR,
            "day": tx.now - 24 * HOUR,
            "tenant": tenant,
            "definition": definition,
        },
    )
    counted = {(state, bucket): number for state, bucket, number in rows}
    counts = [{state: counted.get((state, place), 0) for state in ALL_STATES} for place in range(len(AGE_BUCKETS))]
    return WorkflowStatistics(*counts)


class WorkflowCounts(msgspec.Struct, frozen=True):
    """Numbers of workflows by state: those not in a final state, and those that finished in the last hour."""

    unfinished: dict[str, int]
    last_hour: dict[str, int]


def count_workflows(tx: Transaction, calls: Sequence[None]) -> list[WorkflowCounts]:
    """Return the numbers of unfinished and of recently finished workflows."""
    unfinished, final = (
        [state for state in ALL_STATES if (state in FINAL_STATES) == is_final] for is_final in (False, True)
    )
    since = {"since": tx.now - HOUR}
    counts = WorkflowCounts(
        {
            state: _number(tx, IS_CANCELLING if state == "cancelling" else "state = :state", {"state": state})
            for state in unfinished
        },
        {state: _number(tx, "state = :state AND finished_at > :since", {"state": state} | since) for state in final},
    )
    return [counts for _ in calls]


def _number(tx: Transaction, where: str, parameters: dict[str, Any]) -> int:
    ((number,),) = tx.execute(f"SELECT count(*) FROM workflows WHERE {where}", parameters)
    return int(number)
