"""Status of one workflow, with the results of its steps, and counts of workflows by state and age."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec
from msgspec import UNSET, UnsetType

from ojster.core.durations import HOUR
from ojster.core.errors import OjsterError
from ojster.core.job import last_error
from ojster.core.states import FINISHED
from ojster.core.tenant import called
from ojster.core.timestamps import format_optional
from ojster.jobs.names import WAIT_TYPE
from ojster.jobs.queries import no_workflow
from ojster.storage.call import for_each
from ojster.storage.transaction import Transaction
from ojster.workflows.node import Kind, NodeState, is_fallback, place_of, step_of
from ojster.workflows.plan.values import Spec, read_spec
from ojster.workflows.read.info import WorkflowInfo
from ojster.workflows.read.views import job_type_of, summary_of, times_of_step
from ojster.workflows.read.waiting import nodes_that_wait_for_items, waits_of
from ojster.workflows.stored_workflow import ALL_STATES, IS_VISIBLE, Workflow, find_workflow
from ojster.workflows.wait import WaitingFor

MAX_BRANCH_RESULTS: Final = 10_000
"""Maximum number of step results returned for each branch. The most recent ones are returned."""

AGE_BUCKETS: Final = ("current", "past_hour", "past_24h", "all_time")
"""Names of the creation-time buckets: less than 1 hour ago, 1 to 2 hours, 2 to 24 hours, 24 hours or more."""

_decode: Final = msgspec.json.decode


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
    job has been cancelled or has exceeded its timeout, but its worker has not confirmed that it has stopped. Names are
    those of ``StepResult``.
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


_COLUMNS: Final = (
    "n.id, n.parent, n.position, n.kind, n.name, n.state, n.result, n.error, n.started_at, n.finished_at, "
    "j.id, j.type, j.state, j.attempt, j.enqueued_at, j.started_at, j.due_at, j.worker_id, j.progress, j.result, "
    "j.errors, j.suspension"
)


class _Row(msgspec.Struct):
    id: int
    parent: int | None
    position: int
    kind: str
    name: str | None
    state: str
    result: bytes | None
    error: bytes | None
    started_at: int | None
    finished_at: int | None
    job_id: Any
    job_type: str | None
    job_state: str | None
    attempt: int | None
    job_enqueued_at: int | None
    job_started_at: int | None
    due_at: int | None
    worker_id: str | None
    progress: bytes | None
    job_result: bytes | None
    errors: bytes | None
    suspension: str | None


@for_each
def read_status(tx: Transaction, id: str) -> WorkflowStatus | OjsterError:
    """Return the status of each workflow, or a `NotFound`."""
    workflow = find_workflow(tx, id)
    return no_workflow(id) if workflow is None else _status(tx, workflow)


def _status(tx: Transaction, workflow: Workflow) -> WorkflowStatus:
    rows = [
        _Row(*row)
        for row in tx.execute(
            f"""
            SELECT {_COLUMNS}
            FROM nodes AS n
            LEFT JOIN jobs AS j ON j.id = n.job_id
            WHERE n.id BETWEEN ? AND ?
            ORDER BY n.id
            """,
            workflow.numbers,
        )
    ]
    places = _Places(rows)
    ended_in: dict[str, list[_Row]] = defaultdict(list)
    leaves = [row for row in rows if row.kind in (Kind.JOB, Kind.GATE)]
    ended = [row for row in leaves if row.finished_at is not None and row.state != NodeState.SKIPPED]
    for row in sorted(ended, key=lambda row: (row.finished_at or 0, row.id)):
        ended_in[places.branch_of(row)].append(row)
    results = {name: ended_in[name][-MAX_BRANCH_RESULTS:] for name in BRANCHES if name in ended_in}
    blocked = [row for row in rows if row.state == NodeState.BLOCKED]
    expecting = nodes_that_wait_for_items(tx, workflow.numbers)
    promised = [row for row in rows if row.id in expecting]
    started = [row for row in leaves if row.state == NodeState.STARTED and row.job_id is not None]
    current = sorted([*started, *blocked, *promised], key=lambda row: row.id)
    places.read_names(tx, [*current, *(row for rows in results.values() for row in rows)])
    return WorkflowStatus(
        summary_of(workflow, waits_of(tx, workflow.numbers) if workflow.finished_at is None else ()),
        {name: [_result(row, places) for row in rows] for name, rows in results.items()},
        [_current(row, places) for row in current],
    )


BRANCHES: Final = ("steps", "on_error", "on_cancel")
"""The names of the main part and the branches of a workflow."""


class _Places:
    """The positions and names of nodes in their workflow."""

    def __init__(self, rows: Sequence[_Row]) -> None:
        self._rows = {row.id: row for row in rows}
        self._specs: dict[int, Spec] = {}

    def read_names(self, tx: Transaction, rows: Iterable[_Row]) -> None:
        """Read the names of nodes from their specifications."""
        ids = tx.integers(sorted({self._named(row).id for row in rows} | {row.id for row in rows}))
        specs = tx.execute(f"SELECT id, spec FROM node_specs WHERE id {tx.among}", (ids,))
        self._specs = {id: read_spec(spec) for id, spec in specs}

    def _named(self, row: _Row) -> _Row:
        """Return the node with the name of a step for people: of one with a fallback, both together have it."""
        container = self._rows[row.parent or 0]
        return container if container.kind == Kind.FALLBACK and not row.position else row

    def name_of(self, row: _Row) -> str:
        """Return the id of a step, or else its job type or kind."""
        name = step_of(row, self._container_of).name or row.job_type
        if name is None and row.kind == Kind.JOB:
            name = job_type_of(self._specs[row.id])
        return name or row.kind

    def display_name_of(self, row: _Row) -> str | None:
        """Return the name of a step for people."""
        return self._specs[self._named(row).id].display_name

    def branch_of(self, row: _Row) -> str:
        """Return the name of the branch that contains a node."""
        while row.parent is not None and self._rows[row.parent].parent is not None:
            row = self._rows[row.parent]
        return row.name or "steps" if row.position else "steps"

    def path_of(self, row: _Row) -> str:
        """Return the path of a node, as used in requests."""
        return place_of(row, self._container_of)

    def is_fallback(self, row: _Row) -> bool:
        """Return whether a node takes the place of a step that did not succeed."""
        return is_fallback(row, self._container_of)

    def _container_of(self, row: _Row) -> _Row:
        return self._rows[row.parent or 0]


def _result(row: _Row, places: _Places) -> StepResult:
    result = row.job_result if row.job_result is not None and row.state == NodeState.COMPLETED else row.result
    error: Any = row.error
    if error is None and row.errors is not None and row.state != NodeState.COMPLETED:
        error = last_error(row.errors)
    enqueued_at, started_at = times_of_step(row.started_at, row.job_type, row.job_enqueued_at, row.job_started_at)
    return StepResult(
        name=places.name_of(row),
        path=places.path_of(row),
        state=row.state,
        result=UNSET if result is None else msgspec.Raw(result),
        error=UNSET if error is None else msgspec.Raw(error),
        enqueued_at=enqueued_at,
        started_at=started_at if row.kind == Kind.JOB else format_optional(row.started_at),
        finished_at=format_optional(row.finished_at),
        job_id=None if row.job_id is None else str(row.job_id),
        display_name=places.display_name_of(row),
        fallback=places.is_fallback(row),
    )


def _current(row: _Row, places: _Places) -> StepInProgress:
    name, path, shown = places.name_of(row), places.path_of(row), places.display_name_of(row)
    if row.state in (NodeState.BLOCKED, NodeState.WAITING):
        what: WaitingFor = "gate" if row.state == NodeState.BLOCKED else "promise"
        takes_place = places.is_fallback(row)
        return StepInProgress(name, path, None, row.state, 0, what, display_name=shown, fallback=takes_place)
    waits = row.job_state == "pending" and row.suspension is not None
    state = "stopping" if row.job_state in FINISHED else row.job_state or ""
    enqueued_at, started_at = times_of_step(row.started_at, row.job_type, row.job_enqueued_at, row.job_started_at)
    return StepInProgress(
        name=name,
        path=path,
        display_name=shown,
        fallback=places.is_fallback(row),
        job_id=str(row.job_id),
        state="waiting" if waits else state,
        attempt=row.attempt or 0,
        waiting_for=_waiting_for(row) if waits else None,
        worker_id=None if row.worker_id is None else called(row.worker_id),
        enqueued_at=enqueued_at,
        started_at=started_at,
        deadline=format_optional(row.due_at) if waits else None,
        progress=UNSET if row.progress is None else msgspec.Raw(row.progress),
        error=UNSET if row.errors is None else last_error(row.errors),
    )


def _waiting_for(row: _Row) -> WaitingFor:
    if row.job_type != WAIT_TYPE:
        return "suspension"
    return "delay" if row.suspension == "delay" else "form"


def count(tx: Transaction, requests: Sequence[tuple[str | None, str | None]]) -> list[WorkflowStatistics]:
    """Return the number of workflows for each pair of a tenant (``None``: all) and a definition (``None``: any)."""
    return [_count(tx, tenant, definition) for tenant, definition in requests]


def _count(tx: Transaction, tenant: str | None, definition: str | None) -> WorkflowStatistics:
    where = IS_VISIBLE
    if tenant is not None:
        where += " AND tenant = :tenant"
    if definition is not None:
        where += " AND definition = :definition"
    rows = tx.execute(
        f"""
        SELECT
            state,
            CASE
                WHEN created_at > :hour THEN 0
                WHEN created_at > :two_hours THEN 1
                WHEN created_at > :day THEN 2
                ELSE 3
            END AS bucket,
            count(*)
        FROM workflows
        WHERE {where}
        GROUP BY state, bucket
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
