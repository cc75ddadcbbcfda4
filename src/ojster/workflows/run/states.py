"""The transitions of nodes and workflows, and the functions that change their states."""

from __future__ import annotations

from typing import Final

from ojster.core.state_machine import StateMachine
from ojster.workflows.node import ENDED, Node, NodeState
from ojster.workflows.stored_workflow import HIDDEN, StoredWorkflow, WorkflowState

_BEFORE_START: Final = frozenset(
    {
        NodeState.BLOCKED,
        NodeState.READY,
        NodeState.STARTED,
        NodeState.COMPLETED,
        NodeState.FAILED,
        NodeState.CANCELLED,
        NodeState.SKIPPED,
    }
)

NODE_STATES: Final = StateMachine(
    "node",
    {
        NodeState.WAITING: _BEFORE_START | {NodeState.WAITING},
        NodeState.BLOCKED: (_BEFORE_START - {NodeState.BLOCKED}) | {NodeState.WAITING},
        NodeState.READY: (_BEFORE_START - {NodeState.READY}) | {NodeState.WAITING},
        NodeState.STARTED: frozenset(
            {
                NodeState.COMPLETED,
                NodeState.FAILED,
                NodeState.CANCELLED,
                NodeState.COMPENSATED,
            }
        ),
        **{state: frozenset({NodeState.WAITING}) for state in ENDED},
    },
)
"""All transitions of nodes; ``change_node`` refuses any other.

Nodes that have ended, or are about to start, wait again when they, or what they follow, are retried. Nodes that could
start wait when they get another dependency.
"""

_RETRY: Final = frozenset({WorkflowState.RUNNING, HIDDEN})

WORKFLOW_STATES: Final = StateMachine(
    "workflow",
    {
        WorkflowState.PENDING: frozenset({WorkflowState.RUNNING, WorkflowState.CANCELLED}),
        WorkflowState.RUNNING: frozenset(
            {
                WorkflowState.COMPENSATING,
                WorkflowState.COMPLETED,
                WorkflowState.FAILED,
                WorkflowState.CANCELLED,
                WorkflowState.RETRIED,
            }
        ),
        WorkflowState.COMPENSATING: frozenset(
            {WorkflowState.COMPENSATED, WorkflowState.FAILED, WorkflowState.CANCELLED},
        ),
        WorkflowState.FAILED: _RETRY,
        WorkflowState.CANCELLED: _RETRY,
        WorkflowState.COMPENSATED: _RETRY,
        WorkflowState.COMPLETED: frozenset({HIDDEN}),
        WorkflowState.RETRIED: frozenset({HIDDEN}),
        HIDDEN: frozenset({WorkflowState.PENDING}),
    },
)
"""All transitions of workflows; ``change_workflow`` refuses any other. A retry of failed steps runs one again."""


def change_node(node: Node, state: NodeState) -> None:
    """Change the state of a node; raises ``IllegalTransition`` if the table lacks the transition."""
    after = state._value_  # ``value`` is a property, which takes longer
    NODE_STATES.check(node.state, after)
    node.state = after


def change_workflow(workflow: StoredWorkflow, state: str) -> None:
    """Change the state of a workflow; raises ``IllegalTransition`` if the table lacks the transition."""
    WORKFLOW_STATES.check(workflow.state, state)
    workflow.state = state
