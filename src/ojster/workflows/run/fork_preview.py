"""What a fork would run again, and what it would keep. Nothing is changed."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from ojster.core.calls import SET_BY_SERVICE
from ojster.storage.call import for_each, returns_refusal
from ojster.storage.transaction import Transaction
from ojster.workflows.node import EXPANDED, LEAVES, Kind, Node, body_number
from ojster.workflows.run.fork import ASKED, SEEN_AT, Fork, ForkOrigin, ForkStart
from ojster.workflows.run.graph import LoadedGraph
from ojster.workflows.run.reset import Reset
from ojster.workflows.stored_workflow import StoredWorkflow, get_workflow

MAX_PREVIEWED_STEPS: Final = 200
"""Maximum number of steps that the preview of a fork names."""


class ForkPoint(msgspec.Struct, frozen=True):
    """A workflow, and the step from which a fork would run it again; ``from_step`` as in ``Fork``."""

    workflow_id: str
    from_step: str | None = None
    tenant: Annotated[str | None, SET_BY_SERVICE] = None


class ForkPreview(msgspec.Struct, frozen=True):
    """What a fork would do.

    Parameters
    ----------
    again:
        The paths of the steps that would run again, or for the first time, at most ``MAX_PREVIEWED_STEPS``: jobs,
        gates and whole flows, maps and definitions. Of a flow the keys of what it had asked for since; its function
        runs in any case, and decides what it asks for now.
    again_count, kept_count:
        How many there are, and how many would keep their results.
    takes_args, takes_result:
        Whether the fork may have new arguments, or a result with which the step does not run.
    """

    again: tuple[str, ...]
    again_count: int
    kept_count: int
    takes_args: bool
    takes_result: bool


@for_each
@returns_refusal
def preview_forks(tx: Transaction, point: ForkPoint) -> ForkPreview:
    """Return what forks would do, or why they would be refused."""
    source = get_workflow(tx, point.workflow_id, tenant=point.tenant)
    graph = LoadedGraph(tx)
    origin = ForkOrigin(graph, source)
    start = origin.start_of(Fork(point.workflow_id, point.from_step))
    if origin.is_flow:
        return _of_flow(graph, origin, start, point.from_step)
    return _of_graph(graph, source, None if start.node is None else graph.nodes[start.node])


def _of_graph(graph: LoadedGraph, source: StoredWorkflow, step: Node | None) -> ForkPreview:
    # The same as a fork does to the copied nodes; these are never written.
    reset = Reset(graph, source)
    reset.rerun(step)
    dropped = {node.id for node in reset.dropped}
    shown = [node for node in reset.nodes if node.id not in dropped and _is_counted(graph, node)]
    again = sorted((node for node in shown if not node.has_ended), key=lambda node: _order_of(graph, node))
    return ForkPreview(
        again=tuple(graph.place_of(node) for node in again[:MAX_PREVIEWED_STEPS]),
        again_count=len(again),
        kept_count=len(shown) - len(again),
        takes_args=step is not None and step.kind in (Kind.JOB, Kind.FLOW),
        takes_result=step is not None and step.kind in LEAVES,
    )


def _order_of(graph: LoadedGraph, node: Node) -> tuple[int, ...]:
    """Return the place of a node in its workflow as numbers: elements of maps are created after what follows them."""
    return tuple(inner.position for inner, _ in graph.lineage(node))[::-1]


def _is_counted(graph: LoadedGraph, node: Node) -> bool:
    """Return whether a node is a step that runs by itself.

    Those of branches and compensations run only after a failure. Of a flow, only the flow is known beforehand; of a map
    whose elements will be created again, only the map.
    """
    if any(_is_conditional(inner, container) for inner, container in graph.lineage(node)):
        return False
    return node.kind in LEAVES or node.kind == Kind.FLOW or (node.kind in EXPANDED and not node.total)


def _is_conditional(inner: Node, container: Node) -> bool:
    if container.kind == Kind.FLOW:
        return True
    return inner.position > 0 and container.kind in (Kind.WORKFLOW, Kind.SAGA)


def _of_flow(graph: LoadedGraph, origin: ForkOrigin, start: ForkStart, key: str | None) -> ForkPreview:
    again, again_count, kept_count = _asked(graph.tx, body_number(origin.main.id), start, key)
    takes_args = key is None
    if start.node is not None and start.kind == "run":
        graph.load([start.node])
        takes_args = graph.nodes[start.node].kind in (Kind.JOB, Kind.FLOW)
    return ForkPreview(
        again=again,
        again_count=again_count,
        kept_count=kept_count,
        takes_args=takes_args,
        takes_result=key is not None,
    )


def _asked(tx: Transaction, flow: int, start: ForkStart, key: str | None) -> tuple[tuple[str, ...], int, int]:
    """Return the first keys of what a flow would ask for again, and how much that is, and how much is kept."""
    at = {"flow": flow, "key": key or "", "until": -1 if start.asked_at is None else start.asked_at}
    ((asked, kept),) = tx.execute(f"SELECT count(*), sum(CASE WHEN {_IS_KEPT} THEN 1 ELSE 0 END) {ASKED}", at)
    again = tx.execute(
        f"SELECT key {ASKED} AND NOT ({_IS_KEPT}) ORDER BY asked_at, key LIMIT :most",
        at | {"most": MAX_PREVIEWED_STEPS},
    )
    return tuple(name for (name,) in again), asked - (kept or 0), kept or 0


_IS_KEPT: Final = f"ended_at IS NOT NULL AND key <> :key AND {SEEN_AT} <= :until"
