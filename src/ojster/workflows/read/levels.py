"""One level of a workflow's graph: the steps in a container, in pages, with the arrows between them.

A picture of a workflow of 100,000 steps shows its containers folded, and reads what is in one when it is unfolded.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Annotated, Any, Final

import msgspec

from ojster.core.calls import SET_BY_SERVICE
from ojster.core.errors import NotFound
from ojster.core.parsing import Bounded, PageLimit
from ojster.storage.call import for_each, returns_refusal
from ojster.storage.transaction import Transaction
from ojster.workflows.node import LEAVES, MERGED, Kind, Node
from ojster.workflows.read.flow_levels import flow_steps
from ojster.workflows.read.node_view import SELECT_NODES, node_of
from ojster.workflows.read.step_pages import StepRow, describe
from ojster.workflows.run.graph import NODE_COLUMNS
from ojster.workflows.stored_workflow import StoredWorkflow, find_workflow

DEFAULT_LEVEL_STEPS: Final = 100
"""Number of steps in a page, unless the caller asks for another."""

MOST_LEVEL_STEPS: Final = 500
"""Maximum number of steps in a page."""


class LevelRequest(Bounded, frozen=True):
    """The container whose steps to show by its ``number``, 0 for the workflow, from the position ``after`` on.

    A ``limit`` of more than ``MOST_LEVEL_STEPS`` counts as that.
    """

    workflow_id: str
    number: Annotated[int, msgspec.Meta(ge=0, lt=10**9)] = msgspec.field(name="of", default=0)
    after: Annotated[int, msgspec.Meta(ge=-1, lt=10**9)] = msgspec.field(name="cursor", default=-1)
    limit: PageLimit = DEFAULT_LEVEL_STEPS
    tenant: Annotated[str | None, SET_BY_SERVICE] = None


class LevelStep(StepRow):
    """A step in a picture.

    Parameters
    ----------
    number:
        Its number in the workflow: with it, what is in a container is asked for. Steps of a flow that are no steps of
        the graph have negative ones, each of its own in the flow.
    after:
        Numbers of the steps of this page that it follows.
    is_container, is_branch:
        Whether there are steps in it; and whether it runs only if those beside it end in a certain way, such as a
        callback, a compensation or a fallback.
    """

    number: int = 0
    after: Sequence[int] = ()
    is_container: bool = False
    is_branch: bool = False


class Level(msgspec.Struct, frozen=True):
    """The steps in a container; ``next_after``: the position from which on there are others; ``total``: of all."""

    steps: list[LevelStep]
    total: int
    next_after: int | None


@for_each
@returns_refusal
def show_levels(tx: Transaction, request: LevelRequest) -> Level:
    """Return a page of each container, or ``NotFound``."""
    workflow = find_workflow(tx, request.workflow_id, tenant=request.tenant)
    container = None if workflow is None else _node(tx, workflow, request.number)
    if workflow is None or container is None or container.kind in LEAVES:
        message = f"There is no workflow {request.workflow_id} with a container {request.number}."
        raise NotFound(message, resource_type="workflow")
    main, branches = container, []
    while main.kind in MERGED:
        rows = _children(tx, main.id, -1, MOST_LEVEL_STEPS)  # the first of them is shown as the container itself
        main = node_of(rows[0])
        branches += rows[1:]
    if main.kind == Kind.FLOW:
        return _show_flow(tx, workflow, main, request)
    page = _children(tx, main.id, request.after, request.limit + 1)
    shown = page[: request.limit]
    next_after = node_of(shown[-1]).position if len(page) > request.limit else None
    if request.after >= 0:
        branches = []
    steps = [_step(node, row, workflow, is_branch=False) for node, row in describe(tx, shown)]
    steps += [_step(node, row, workflow, is_branch=True) for node, row in describe(tx, branches)]
    _connect(tx, workflow, steps, [node_of(row) for row in (*shown, *branches)])
    return Level(steps, main.total, next_after)


def _show_flow(tx: Transaction, workflow: StoredWorkflow, flow: Node, request: LevelRequest) -> Level:
    """Return a page of what the function of a flow has asked for, in its order."""
    asked, total, next_after = flow_steps(tx, flow, workflow.root, request.after + 1, request.limit)
    steps = [
        LevelStep(
            **msgspec.structs.asdict(step.row),
            number=step.number,
            after=step.after,
            is_container=step.node is not None and step.node.kind not in (Kind.JOB, Kind.GATE),
        )
        for step in asked
    ]
    return Level(steps, total, next_after)


def _node(tx: Transaction, workflow: StoredWorkflow, number: int) -> Node | None:
    first, last = workflow.numbers
    if first + number > last:
        return None
    rows = tx.execute(f"SELECT {NODE_COLUMNS} FROM nodes WHERE id = :id", {"id": first + number})
    return Node(*rows[0]) if rows else None


def _children(tx: Transaction, parent: int, after: int, limit: int) -> list[Any]:
    return tx.execute(
        f"{SELECT_NODES} WHERE n.parent = :parent AND n.position > :after ORDER BY n.position LIMIT :limit",
        {"parent": parent, "after": after, "limit": limit},
    )


def _step(node: Node, row: StepRow, workflow: StoredWorkflow, *, is_branch: bool) -> LevelStep:
    return LevelStep(
        **msgspec.structs.asdict(row),
        number=node.id - workflow.root,
        is_container=node.kind not in LEAVES,
        is_branch=is_branch,
    )


def _connect(tx: Transaction, workflow: StoredWorkflow, steps: Sequence[LevelStep], nodes: Sequence[Node]) -> None:
    """Add the numbers of predecessors to the steps. A step after a hidden one follows what comes before that.

    ``nodes``: those of the page, hidden ones among them.
    """
    ids = [node.id for node in nodes]
    arrows: dict[int, list[int]] = defaultdict(list)
    if ids:
        query = f"SELECT source, target FROM node_edges WHERE target {tx.among}"
        for source, target in tx.execute(query, (tx.integers(ids),)):
            arrows[target - workflow.root].append(source - workflow.root)
    here = {step.number for step in steps}
    hidden = {id - workflow.root for id in ids} - here
    for step in steps:
        before, waiting = set[int](), list(arrows[step.number])
        while waiting:
            number = waiting.pop()
            if number in hidden:
                waiting += arrows[number]
            elif number in here:
                before.add(number)
        step.after = sorted(before)
