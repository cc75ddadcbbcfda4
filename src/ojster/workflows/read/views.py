"""Read-only views of workflows: one with its steps, and counts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, Final, assert_never

import msgspec
from msgspec import UnsetType

from ojster.core.errors import OjsterError
from ojster.core.outcome import SKIPPED, Outcome, outcome_of
from ojster.core.tenant import called
from ojster.core.timestamps import format_timestamp
from ojster.jobs.expiration import shown_expiration_delay
from ojster.jobs.queries import only_id_beginning
from ojster.storage.call import for_each
from ojster.storage.transaction import Transaction
from ojster.workflows.node import (
    EXPANDED,
    PARALLEL,
    TWO_PART,
    Kind,
    Node,
    NodeState,
    body_of,
    lineage,
)
from ojster.workflows.read.causes import Cause, find_causes
from ojster.workflows.read.failed_steps import error_members, failed_steps
from ojster.workflows.read.info import ReviewInfo, StepInfo, WorkflowError, WorkflowInfo, with_others
from ojster.workflows.read.node_view import SELECT_WITH_VALUES, NodeView, NodeViews
from ojster.workflows.read.reviews import find_reviews
from ojster.workflows.read.waiting import waits_of, waits_of_flows
from ojster.workflows.run.copies import find_forks
from ojster.workflows.run.results import outcomes
from ojster.workflows.stored_workflow import IS_VISIBLE, WORKFLOW_COLUMNS, StoredWorkflow, find_workflow, shown_state_of
from ojster.workflows.wait import WaitingFor

MAX_WORKFLOW_ERRORS: Final = 100
"""Maximum number of failed steps listed in a workflow's error."""

MOST_SHOWN_STEPS: Final = 1_000
"""Number of steps up to which a workflow is shown whole, unless the caller asks for another."""

FAILED: Final = frozenset({"failed", "compensated", "compensating"})
"""States of workflows that have an error."""

_decode: Final = msgspec.json.decode


class WorkflowRequest(msgspec.Struct, frozen=True):
    """A request to show a workflow. ``tenant``: the caller's tenant; ``None``: any.

    ``most_steps`` is the number of steps, containers among them, up to which it is shown with its steps. ``None``: any.
    """

    id: str
    most_steps: int | None = MOST_SHOWN_STEPS
    tenant: str | None = None


@for_each
def show_workflows(tx: Transaction, request: WorkflowRequest) -> WorkflowInfo | None:
    """Return each workflow, or ``None`` if it does not exist or belongs to another tenant."""
    workflow = find_workflow(tx, request.id, tenant=request.tenant)
    if workflow is None:
        return None
    if request.most_steps is None or workflow.nodes <= request.most_steps:
        return _View(tx, workflow).info()
    return _without_steps(tx, workflow) if request.most_steps else _with_failures(tx, workflow)


def full_ids(tx: Transaction, requests: Sequence[tuple[str, str | None]]) -> list[str | OjsterError]:
    """Return the id of the only workflow of a tenant (``None``: of all) whose id is, or begins with, each text."""
    return [
        id
        if find_workflow(tx, id, tenant=tenant) is not None
        else only_id_beginning(tx, "workflows", id, tenant, IS_VISIBLE)
        for id, tenant in requests
    ]


def _summary(tx: Transaction, workflow: StoredWorkflow) -> WorkflowInfo:
    """Return a workflow without its steps, with what they wait for."""
    return summary_of(workflow, waits_of(tx, workflow.numbers) if workflow.finished_at is None else ())


def _with_failures(tx: Transaction, workflow: StoredWorkflow) -> WorkflowInfo:
    """Return a workflow without its steps, with what they wait for, or why they failed, and its forks."""
    shown = _summary(tx, workflow)
    shown.forks = find_forks(tx, workflow)
    if workflow.state in FAILED:
        shown.error = failed_steps(tx, workflow, shown.error)
    return shown


def _without_steps(tx: Transaction, workflow: StoredWorkflow) -> WorkflowInfo:
    """Return a workflow that has too many steps to be shown with it, with its result or error."""
    shown = _with_failures(tx, workflow)
    shown.steps_omitted = True
    if workflow.state == "completed":
        ((main,),) = tx.execute(
            "SELECT id FROM nodes WHERE parent = :root ORDER BY position LIMIT 1", {"root": workflow.root}
        )
        shown.result = msgspec.Raw(outcomes(tx, [main])[main].result or b"null")
    return shown


def workflow_rows(tx: Transaction, where: str, parameters: dict[str, Any]) -> list[tuple[Any, ...]]:
    """Return the rows of the workflows for which a condition holds."""
    return tx.execute(f"SELECT {WORKFLOW_COLUMNS} FROM workflows WHERE {IS_VISIBLE} AND {where}", parameters)


def summary_of(workflow: StoredWorkflow, waiting_for: Sequence[WaitingFor] = ()) -> WorkflowInfo:
    """Return a workflow without its steps; ``waiting_for``: what steps of it wait for."""
    metadata: dict[str, Any] = _decode(workflow.metadata)
    times = {
        "created_at": workflow.created_at,
        "started_at": workflow.started_at,
        "completed_at": workflow.finished_at,
        "cancelled_at": workflow.cancelled_at,
    }
    reached: dict[str, Any] = {name: format_timestamp(at) for name, at in times.items() if at is not None}
    metadata |= reached
    metadata |= {
        "job_count": workflow.jobs,
        "completed_count": workflow.completed,
        "failed_count": workflow.failed,
        "cancelled_count": workflow.cancelled,
    }
    error = None if workflow.error is None else _decode(workflow.error, type=WorkflowError)
    delay = workflow.expiration_delay
    shown = WorkflowInfo(
        **{name: getattr(workflow, name) for name in _SAME},
        type="chain" if workflow.type == "flow" else workflow.type,
        kind="flow" if workflow.type == "flow" else None,
        state=shown_state_of(workflow),
        finished=workflow.finished_at is not None,
        held=workflow.held_at is not None,
        waiting_for=list(waiting_for),
        params=msgspec.Raw(workflow.params) if workflow.params != b"{}" else msgspec.UNSET,
        error=error,
        definition=None if workflow.definition is None else called(workflow.definition),
        scheduled_at=None if workflow.scheduled_at is None else format_timestamp(workflow.scheduled_at),
        expires_at=None if workflow.expires_at is None else format_timestamp(workflow.expires_at),
        expiration_delay=None if delay is None else shown_expiration_delay(delay),
        metadata=metadata,
        **reached,
    )
    if workflow.others is None:
        return shown
    return with_others(shown, _decode(workflow.others, type=dict[str, msgspec.Raw]))


_SAME: Final = (
    *("id", "name", "version", "retries", "definition_version", "target", "locks", "attempt"),
    *("previous_attempt", "next_attempt", "forked_from", "forked_step", "created_by", "cancelled_by"),
)
"""Members that are shown as they are stored."""


class _View:
    """A workflow with its nodes and jobs loaded."""

    def __init__(self, tx: Transaction, workflow: StoredWorkflow) -> None:
        self._tx = tx
        self._workflow = workflow
        self._children: dict[int, list[Node]] = defaultdict(list)
        self._views = NodeViews(
            tx.execute(f"{SELECT_WITH_VALUES} WHERE n.id BETWEEN ? AND ? ORDER BY n.id", workflow.numbers)
        )
        self._nodes = self._views.nodes
        for node in sorted(self._nodes.values(), key=lambda node: node.position):
            if node.parent is not None:
                self._children[node.parent].append(node)
        self._views.read_specs(tx, "BETWEEN ? AND ?", workflow.numbers)
        self._names: dict[int, list[str]] = defaultdict(list)
        """Ids of the predecessors of a node in its container."""
        self._places: dict[int, list[str]] = defaultdict(list)
        """Paths of its predecessors in other containers."""
        self._reviews: dict[int, list[ReviewInfo]] = {}
        self._superseded: dict[int, list[str]] = {}
        self._causes: dict[int, Cause] = {}
        flows = [body_of(node) for node in self._nodes.values() if node.kind == Kind.FLOW and not node.has_ended]
        self._waits = waits_of_flows(tx, flows)

    def info(self) -> WorkflowInfo:
        self._read_relations()
        workflow = self._workflow
        shown = _summary(self._tx, workflow)
        shown.forks = find_forks(self._tx, workflow)
        main, *branches = self._children[workflow.root]
        self._fill(shown, main)
        for branch in branches:
            setattr(shown, branch.name or "", self._step(branch))
        if main.state == NodeState.COMPLETED:
            shown.result = msgspec.Raw(outcomes(self._tx, [main.id])[main.id].result or b"null")
        if workflow.state in FAILED:
            shown.error = self._error(main, shown.error)
        elif workflow.state == "cancelled" and shown.error is None and (error := self._error(main, None)).errors:
            shown.error = error
        return shown

    def _read_relations(self) -> None:
        numbers = self._workflow.numbers
        for source, target in self._tx.execute(
            "SELECT source, target FROM node_edges WHERE source BETWEEN ? AND ? ORDER BY source", numbers
        ):
            if source not in self._nodes or target not in self._nodes:
                continue  # added after the nodes were read
            before = self._nodes[source]
            if before.parent == self._nodes[target].parent:
                self._names[target].append(before.name or str(before.position))
            else:
                self._places[target].append(self._views.path_of(before))
        self._reviews = find_reviews(self._tx, "BETWEEN ? AND ?", numbers)
        self._superseded = superseded_jobs(self._tx, self._nodes.values(), "BETWEEN ? AND ?", numbers)
        self._causes = find_causes(self._tx, self._views, list(self._nodes.values()))

    def _fill(self, shown: WorkflowInfo | StepInfo, container: Node) -> None:
        """Add the children of a container to its view, in the fields for its kind."""
        children = self._children[container.id]
        match Kind(container.kind):
            case Kind.BATCH:
                self._fill(shown, children[0])
                shown.callbacks = {child.name or "": self._step(child) for child in children[1:]}
            case Kind.SAGA:
                self._fill(shown, children[0])
                undone = [self._step_in(children[1], child) for child in self._children[children[1].id]]
                for compensation in undone:
                    compensation.name = compensation.name or compensation.type  # its id is the undone step's
                shown.compensations = [*shown.compensations, *undone]  # those of a batch come after those of its jobs
            case Kind.FALLBACK:
                assert isinstance(shown, StepInfo)
                shown.steps = [self._step(children[0])]
                second = shown.fallback = self._step(children[1])
                second.name = second.name or second.type  # its id is that of the step that it takes the place of
            case Kind.CHAIN | Kind.GROUP | Kind.GRAPH | Kind.MAP | Kind.DEFINITION | Kind.FLOW:
                noun = "jobs" if container.kind in PARALLEL else "steps"
                setattr(shown, noun, [self._step_in(container, child) for child in children])
                setattr(shown, f"{noun}_total", container.total)
                setattr(shown, f"{noun}_completed", container.completed)
            case Kind.JOB | Kind.GATE | Kind.WORKFLOW:
                raise AssertionError(f"A {container.kind} is not shown as a container.")
            case kind:
                assert_never(kind)

    def _step_in(self, container: Node, node: Node) -> StepInfo:
        step = self._step(node)
        if container.kind == Kind.GRAPH or node.id in self._places:
            names = self._names.get(node.id, []) if container.kind == Kind.GRAPH else []
            step.depends_on = names + self._places.get(node.id, [])
        return step

    def _step(self, node: Node) -> StepInfo:
        """Return the view of a node, with the steps inside it."""
        view = self._views.view(node)
        spec = view.spec
        shown = StepInfo(
            index=node.position,
            path=view.path,
            type=view.type,
            state=view.state,
            id=view.id,
            name=view.display_name,
            step=spec.step,
            group=spec.group,
            visible=spec.visible,
            when=node.rule if node.rule in ("finished", "failed") else None,
            condition=spec.condition,
            allow_failure=bool(node.tolerated),
            manual=bool(node.manual),
            approved=bool(node.approved),
            reviews=self._reviews.get(node.id, []),
            superseded_job_ids=self._superseded.get(node.id, []),
            because=self._causes.get(node.id),
        )
        shown.enqueued_at, shown.started_at = view.times
        shown.completed_at, shown.result, shown.error = view.completed_at, view.result, view.error
        shown.stop_requested_at = view.stop_requested_at
        if node.kind == Kind.JOB:
            self._show_job(shown, view)
        elif node.kind != Kind.GATE and (node.kind not in EXPANDED or self._children[node.id]):
            self._fill(shown, node)
        if shown.outcome is None:
            unknown = None if node.kind == Kind.JOB else b"{}"
            error = shown.error if isinstance(shown.error, msgspec.Raw) else unknown
            shown.outcome = outcome_of(shown.state, error)
        return with_others(shown, spec.others) if spec.others else shown

    def _show_job(self, shown: StepInfo, view: NodeView) -> None:
        """Show the job of a step."""
        shown.job_id, job = view.job_id, view.job
        if job is None:
            return
        shown.queue, shown.attempt, shown.max_attempts = job.queue, job.attempt, job.max_attempts
        if view.node.state == NodeState.STARTED:
            shown.progress = view.progress
            shown.state = "active" if job.state == "active" or view.is_stopping else "pending"
            shown.stopping = view.is_stopping
            shown.on_hold = job.state == "pending" and job.suspension in ("complete", "again")
        if job.suspension == SKIPPED and view.node.state == NodeState.COMPLETED:
            shown.outcome = Outcome.SKIPPED
        shown.waits = self._waits.get(view.node.id, [])

    def _error(self, main: Node, cause: WorkflowError | None) -> WorkflowError:
        """Return the error of a workflow, completed with the steps that failed or were rejected."""
        error = cause or WorkflowError("step_failed", "A step failed.")
        for node in self._nodes.values():
            if not _has_failed(node) or self._is_handled(node) or len(error.errors) >= MAX_WORKFLOW_ERRORS:
                continue
            if node.job_id is not None:
                error.failed_job_ids.append(node.job_id)
            error.errors.append(self._error_of(node))
        steps, others = main, list[Node]()
        while steps.kind in TWO_PART:
            steps, *after = self._children[steps.id]
            others += after
        for child in [*self._children[steps.id], *others]:
            if child.state in (NodeState.FAILED, NodeState.COMPENSATED) and not child.tolerated:
                error.failed_step = child.name or str(child.position)
                if steps.kind == Kind.CHAIN and child.parent == steps.id:
                    error.failed_step_index = child.position
                if cause is None:
                    error.message = f"The step {error.failed_step!r} failed."
                    if steps.kind == Kind.FLOW:  # its function says why
                        error.message = "{type}: {message}".format_map(self._error_of(child))
                break
        else:
            if cause is None and error.errors:
                error.code, error.message = error.errors[0]["code"], error.errors[0]["message"]
        return error

    def _is_handled(self, node: Node) -> bool:
        """Return whether a container around a node succeeded although the node failed."""
        return any(container.succeeded for _, container in lineage(node, self._views.container_of))

    def _error_of(self, node: Node) -> dict[str, Any]:
        view = self._views.view(node)
        known: dict[str, Any] = {} if isinstance(view.error, UnsetType) else _decode(view.error)
        replaces = {"fallback": True} if view.is_fallback else {}
        step = view.id or str(self._views.step_of(node).position)
        return {"job_id": node.job_id, "step": step, "path": view.path, **replaces, **error_members(known)}


def superseded_jobs(
    tx: Transaction, nodes: Iterable[Node], among: str, parameters: Sequence[Any]
) -> dict[int, list[str]]:
    """Return the ids of the jobs of earlier attempts of steps, oldest first, by node id.

    Parameters
    ----------
    nodes:
        The steps.
    among, parameters:
        The SQL condition that the ids of their nodes fulfil, and its values.
    """
    ids: dict[int, list[str]] = defaultdict(list)
    for node, id in tx.execute(
        f"SELECT node, id FROM jobs WHERE node {among} AND superseded_by IS NOT NULL ORDER BY seq", parameters
    ):
        ids[node].append(str(id))
    for step in nodes:
        if step.job_id is not None and step.started_at is None:  # it was reset, and has no new job yet
            ids[step.id].append(step.job_id)
    return ids


def _has_failed(node: Node) -> bool:
    """Return whether a node itself failed or was rejected, as opposed to its children or predecessors."""
    if node.tolerated:
        return False
    if node.state == NodeState.FAILED:
        return node.kind == Kind.JOB or node.error is not None
    return node.state == NodeState.CANCELLED and node.error is not None and b'"code":"rejected"' in node.error
