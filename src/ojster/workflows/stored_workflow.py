"""A workflow as it is stored, and its states."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from ojster.core.durations import WEEK
from ojster.core.ids import is_workflow_id
from ojster.core.job import NODE_BITS
from ojster.jobs.queries import no_workflow
from ojster.storage.transaction import Transaction


class WorkflowState:
    """States of a workflow. Spec: ojs-workflows 8, 14.4"""

    PENDING: Final = "pending"
    """Waits for its scheduled time."""
    RUNNING: Final = "running"
    COMPENSATING: Final = "compensating"
    CANCELLING: Final = "cancelling"
    """Shown of a cancelled workflow that has not ended: it cleans up, or its jobs stop. Stored as ``cancelled``."""
    COMPLETED: Final = "completed"
    FAILED: Final = "failed"
    CANCELLED: Final = "cancelled"
    RETRIED: Final = "retried"
    """Runs again as a whole, as another workflow."""
    COMPENSATED: Final = "compensated"


_FINAL: Final = ("completed", "failed", "cancelled", "retried", "compensated")
ALL_STATES: Final = ("pending", "running", "compensating", "cancelling", *_FINAL)
FINAL_STATES: Final = frozenset(_FINAL)

BRANCH_TIMEOUT: Final = WEEK
"""Maximum duration of a branch (``on_error`` or ``on_cancel``), in microseconds: it keeps the workflow's locks."""


class StoredWorkflow(msgspec.Struct, gc=False):
    """A workflow as it is stored. Times are microseconds since the epoch.

    ``finished_at`` is when its last job ended: a cancelled workflow is ``cancelled`` at once, and finished when its
    active jobs have ended.
    """

    seq: int = 0
    id: str = ""
    type: str = ""
    name: str | None = None
    state: str = WorkflowState.PENDING
    version: int = 0
    created_at: int = 0
    started_at: int | None = None
    cancelled_at: int | None = None
    finished_at: int | None = None
    due_at: int | None = None
    scheduled_at: int | None = None
    expires_at: int | None = None
    timeout: int | None = None
    held_at: int | None = None
    nodes: int = 0
    jobs: int = 0
    completed: int = 0
    failed: int = 0
    cancelled: int = 0
    retries: int = 0
    params: bytes = b"{}"
    metadata: bytes = b"{}"
    error: bytes | None = None
    tenant: str = ""
    definition: str | None = None
    """The stored name of the definition that it is started from."""
    definition_version: int | None = None
    target: str | None = None
    target_key: str | None = None
    """Key that no other unfinished workflow may have: see ``ojster.workflows.definition``."""
    start: bytes | None = None
    """Its other members as JSON, without definition, parameters and metadata."""
    locks: str | None = None
    on_lost_worker: str | None = None
    attempt: int = 1
    previous_attempt: str | None = None
    next_attempt: str | None = None
    expiration_delay: int | None = None
    kept_until: int | None = None
    created_by: str | None = None
    """The name of its creator's token, if it is known."""
    cancelled_by: str | None = None
    resolved_bytes: int = 0
    """The size of its jobs with resolved references, which is limited (``Settings.largest_workflow``)."""
    others: bytes | None = None
    """The members of its request that the server does not know, as JSON, with which it is shown."""
    cron_name: str | None = None
    """The stored name of the cron job that started it."""
    turn_line: int = 0
    """The line of workflows of its cron job that start one after the other; 0: it starts at once."""
    forked_from: str | None = None
    """The id of the workflow that runs again as this one."""
    forked_step: str | None = None
    """The name of the step from which on it does; ``None``: from its start."""

    @property
    def root(self) -> int:
        """The id of its root node."""
        return self.seq << NODE_BITS

    @property
    def numbers(self) -> tuple[int, int]:
        """The first and the last id that its nodes can have."""
        return self.root, ((self.seq + 1) << NODE_BITS) - 1


_OF_SPECIFICATION: Final = ("chain", "group", "batch")

IS_CANCELLING: Final = f"state = 'cancelled' AND finished_at IS NULL AND type NOT IN {_OF_SPECIFICATION}"
"""SQL condition of workflows that are shown as ``cancelling``.

Those of the specification are ``cancelled`` at once, as it says (8.1), also while active jobs or callbacks finish.
"""


def shown_state_of(workflow: StoredWorkflow) -> str:
    """Return the state of a workflow as callers see it."""
    if workflow.state != WorkflowState.CANCELLED or workflow.finished_at is not None:
        return workflow.state
    return WorkflowState.CANCELLED if workflow.type in _OF_SPECIFICATION else WorkflowState.CANCELLING


WORKFLOW_COLUMNS: Final = ", ".join(StoredWorkflow.__struct_fields__)

HIDDEN: Final = "hidden"
"""State of a workflow that is hidden from callers: it is being deleted, or its nodes are still being created.

The former has a ``finished_at``.
"""

IS_VISIBLE: Final = f"state <> '{HIDDEN}'"
"""Condition on a workflow: callers can see it."""


def find_workflow(tx: Transaction, id: str, *, tenant: str | None = None, lock: bool = False) -> StoredWorkflow | None:
    """Return the workflow with an id, if there is one that callers can see.

    Parameters
    ----------
    tenant:
        The tenant that it must belong to; ``None``, the default: any.
    lock:
        Whether to lock it until the transaction ends.
    """
    if not is_workflow_id(id):
        return None
    # Only one transaction at a time changes a workflow: it decides by nodes and counts that it has read.
    rows = tx.execute(
        f"SELECT {WORKFLOW_COLUMNS} FROM workflows WHERE id = :id AND {IS_VISIBLE}" + (tx.for_update if lock else ""),
        {"id": id},
    )
    workflow = StoredWorkflow(*rows[0]) if rows else None
    return workflow if workflow is not None and tenant in (None, workflow.tenant) else None


def get_workflow(tx: Transaction, id: str, *, tenant: str | None = None, lock: bool = False) -> StoredWorkflow:
    """Return the workflow with an id, or raise ``NotFound``. See ``find_workflow``."""
    if (workflow := find_workflow(tx, id, tenant=tenant, lock=lock)) is None:
        raise no_workflow(id)
    return workflow


def emit(tx: Transaction, type: str, workflow: StoredWorkflow, **data: Any) -> None:
    """Record an event of a workflow.

    Spec: ojs-workflows appendix B
    """
    tx.emit_of(type, workflow.id, workflow.tenant, facts_of(workflow.id, workflow.type, workflow.name) | data)


def facts_of(id: str, type: str, name: str | None) -> dict[str, Any]:
    """Return what events say about a workflow. Clients of the specification know chains, groups and batches.

    A workflow without a name has an empty one: events must have a text there.

    Spec: ojs-events 4.4
    """
    facts = {"workflow_id": id, "workflow_type": type, "workflow_name": name or ""}
    return facts | {"workflow_type": "chain", "workflow_kind": "flow"} if type == "flow" else facts


def delete_nodes(tx: Transaction, ids: Sequence[int]) -> None:
    """Delete nodes with their specifications, edges and reviews."""
    if ids:
        id_list = tx.integers(ids)
        for table, column in (
            ("node_specs", "id"),
            ("node_edges", "source"),
            ("node_edges", "target"),
            ("node_reviews", "node"),
            ("map_elements", "node"),
            ("deferred_starts", "node"),
            ("flow_records", "flow"),
            ("flow_messages", "flow"),
            ("broadcast_receivers", "flow"),
            ("early_answers", "node"),
            ("nodes", "id"),
        ):
            tx.execute(f"DELETE FROM {table} WHERE {column} {tx.among}", (id_list,))
