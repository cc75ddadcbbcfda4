"""Due work: large maps and containers go on, a few children in each transaction, so that nobody else waits long."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from ojster.collections.contents import forget_templates
from ojster.core.durations import SECOND
from ojster.core.errors import OjsterError
from ojster.core.job import NODE_BITS
from ojster.core.json_objects import raw_list
from ojster.jobs.extension import Due
from ojster.storage.transaction import Transaction
from ojster.workflows.node import Kind, Node, NodeState
from ojster.workflows.run.advance import Advance
from ojster.workflows.run.cancellation import abort
from ojster.workflows.run.graph import LoadedGraph
from ojster.workflows.run.maps import ELEMENT_NODES_AT_ONCE, park_map, plant_elements
from ojster.workflows.run.start_quota import MAX_STARTS_OF_WORKFLOW, forget_deferred
from ojster.workflows.stored_workflow import WORKFLOW_COLUMNS, StoredWorkflow

BYTES_AT_ONCE: Final = 4 << 20
"""Size of jobs with resolved references after which a transaction creates no more elements, in bytes."""


MAPS_TO_TRY: Final = 20
"""Maximum number of stored elements whose maps are tried while others have locked their workflows."""


def expand_maps(tx: Transaction) -> Due:
    """Create more children of one map, each map in its turn; return when to go on."""
    query = "SELECT node FROM map_elements WHERE parked = 0 ORDER BY start, node LIMIT :most"
    maps = dict.fromkeys(id for (id,) in tx.execute(query, {"most": MAPS_TO_TRY}))
    if not maps:
        return Due(None)
    locked = _first_free(tx, maps)
    if locked is None:
        return Due(tx.now)  # others have locked the workflows: ``run_due`` tries again soon
    graph, node = locked
    if _goes_on(node):
        _expand(graph, node)
    else:
        park_map(tx, node)  # it goes on when it starts again
    ((is_left,),) = tx.execute("SELECT EXISTS (SELECT 1 FROM map_elements WHERE parked = 0)")
    return Due(tx.now if is_left else None, bool(is_left))


def start_deferred(tx: Transaction) -> Due:
    """Start more children of the containers of one workflow, each workflow in its turn.

    Return when to go on. Those of held workflows wait for the release.
    """
    rows: Sequence[tuple[int, int]] = tx.execute(
        "SELECT workflow, node FROM deferred_starts WHERE parked = 0 AND turn <= :now ORDER BY turn, node LIMIT :most",
        {"now": tx.now, "most": MAX_STARTS_OF_WORKFLOW},
    )
    nodes = list(dict(rows).values())  # one of each workflow
    locked = _first_free(tx, nodes)
    if locked is None and nodes:
        return Due(tx.now)  # others have locked them: ``run_due`` tries again soon
    if locked is not None:
        is_left = _start_more(Advance(locked[0])) or len(nodes) > 1 or len(rows) == MAX_STARTS_OF_WORKFLOW
        if is_left:
            return Due(tx.now, has_more=True)
    ((next_turn,),) = tx.execute("SELECT min(turn) FROM deferred_starts WHERE parked = 0")
    return Due(next_turn)


def _start_more(run: Advance) -> bool:
    """Start more children of containers of the graph's workflow; return whether more of them are left."""
    tx, graph = run.tx, run.graph
    (seq,) = graph.workflows
    rows = tx.execute(  # now that the workflow is locked: before, another transaction may have changed them
        """
        SELECT node, position
        FROM deferred_starts
        WHERE workflow = :seq AND parked = 0 AND turn <= :now
        ORDER BY turn, node
        LIMIT :most
        """,
        {"seq": seq, "now": tx.now, "most": MAX_STARTS_OF_WORKFLOW},
    )
    forget_deferred(tx, [id for id, _ in rows])
    graph.load([id for id, _ in rows])
    for id, position in rows:
        node = graph.nodes[id]
        if node.kind == Kind.GATE:
            _end_gate(run, node)
        elif node.state == NodeState.STARTED:
            run.start_children(node, position)
    run.go()
    return (run.starts.has_deferred and not run.starts.waiting) or len(rows) == MAX_STARTS_OF_WORKFLOW


def _end_gate(run: Advance, gate: Node) -> None:
    """Fail a gate that was not approved in time."""
    run.graph.load_specs([gate])
    timeout = run.graph.specs[gate.id].timeout
    if gate.state == NodeState.BLOCKED and timeout is not None:
        run.fail(gate, "wait_timeout", f"The gate was not approved within {timeout / SECOND:g} seconds.")


def _first_free(tx: Transaction, ids: Iterable[int]) -> tuple[LoadedGraph, Node] | None:
    """Lock the workflow of the first of some nodes that no other transaction has locked; ``None``: there is none."""
    for id in ids:
        seq = id >> NODE_BITS
        # Servers share the work: each takes a workflow that no other transaction advances. A wait could be long,
        # because a worker's report on a large workflow holds this lock to its end.
        query = f"SELECT {WORKFLOW_COLUMNS} FROM workflows WHERE seq = :seq{tx.skip_locked}"
        for row in tx.execute(query, {"seq": seq}):
            graph = LoadedGraph(tx)
            graph.workflows[seq] = StoredWorkflow(*row)
            graph.load([id])
            return graph, graph.nodes[id]
    return None


def _goes_on(node: Node) -> bool:
    """Whether a map is to get more children."""
    return node.state == NodeState.STARTED and node.verdict is None


def _expand(graph: LoadedGraph, node: Node) -> None:
    """Create children of a map, some of its elements at a time.

    Their jobs may replace one another, and so change the map; so it is read anew for the next elements.
    """
    tx = graph.tx
    created = resolved = 0
    while _goes_on(node) and created < ELEMENT_NODES_AT_ONCE and resolved < BYTES_AT_ONCE:
        units = tx.execute(
            "SELECT start, elements FROM map_elements WHERE node = :node AND parked = 0 ORDER BY start LIMIT 1",
            {"node": node.id},
        )
        if not units:
            break
        ((start, elements),) = units
        run, workflow = Advance(graph), graph.workflow_of(node)
        graph.load_specs([node])
        before = workflow.nodes
        try:
            children = plant_elements(graph, node, graph.specs[node.id], raw_list(elements), start)
        except OjsterError as refusal:
            error = {"code": refusal.code, "type": refusal.code, "message": refusal.message}
            abort(run, workflow, node, NodeState.FAILED, error)
            run.go()
            return
        tx.execute("DELETE FROM map_elements WHERE node = :node AND start = :start", {"node": node.id, "start": start})
        if start + len(children) >= node.total:
            forget_templates(tx, node.workflow, node.number)  # its elements have promises of their own
        graph.touch(node)
        run.decide(children)
        run.go()
        resolved += run.step_jobs.resolved
        graph = LoadedGraph(tx)
        graph.lock([node.workflow])
        created += graph.workflow_of(node).nodes - before  # also those of maps inside the elements
        graph.load([node.id])
        node = graph.nodes[node.id]
