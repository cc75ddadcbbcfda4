"""The elements of maps: one group of nodes for each element of an array.

A large map is expanded in steps, so that no transaction takes long: elements whose nodes do not exist yet are stored
(``map_elements``), and ``ojster.workflows.run.expansion`` goes on with them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec import UNSET

from ojster.collections.contents import forget_templates, promise
from ojster.core.errors import PayloadTooLarge
from ojster.core.references import INDEX
from ojster.storage.transaction import ColumnType, Transaction
from ojster.tenancy.quotas import charge_growth
from ojster.workflows.node import MAX_NODES, Kind, Node
from ojster.workflows.plan.planned_jobs import add_defaults
from ojster.workflows.plan.planner import plan_addition
from ojster.workflows.plan.values import AddedSteps, Mirrors, Plan, PlanContext, Spec
from ojster.workflows.run.graph import LoadedGraph
from ojster.workflows.run.start_quota import SMALL_PARAMS
from ojster.workflows.stored_workflow import StoredWorkflow

ELEMENT_NODES_AT_ONCE: Final = 50
"""Number of nodes after which a transaction creates no more elements of a map, so that nobody else waits long."""

ELEMENTS_AT_ONCE: Final = 16
"""Number of elements that are created at once if their jobs may be large."""

_COLUMNS: Final[dict[str, ColumnType]] = {
    "node": "bigint",
    "start": "bigint",
    "number": "bigint",
    "elements": "bytea",
    "tenant": "text",
    "jobs": "bigint",
}


def begin_map(graph: LoadedGraph, node: Node, spec: Spec, elements: Sequence[msgspec.Raw]) -> None:
    """Create the first children of a map, and store the elements for which there are none yet.

    Raises
    ------
    PayloadTooLarge
        The workflow would have too many nodes.
    TenantLimitExceeded
        The tenant would have more waiting jobs than it may.
    """
    workflow = graph.workflow_of(node)
    if not elements:
        forget_templates(graph.tx, workflow.seq, node.number)
        return
    (plan,) = _plan(graph, node, spec, elements[:1], 0)
    nodes_of_one = len(plan.nodes)
    if (nodes := workflow.nodes + nodes_of_one * len(elements)) > MAX_NODES:
        raise PayloadTooLarge(f"The workflow would have {nodes} nodes; at most {MAX_NODES} are allowed.")
    jobs_of_one = plan.job_count
    may_be_large = bool(spec.names) or len(workflow.params) > SMALL_PARAMS
    unit_size = max(1, ELEMENTS_AT_ONCE // nodes_of_one)
    now = unit_size if may_be_large else max(1, ELEMENT_NODES_AT_ONCE // nodes_of_one)
    charge_growth(graph.tx, workflow.tenant, jobs_of_one * len(elements), jobs_of_one * min(now, len(elements)))
    plant_elements(graph, node, spec, elements[:now], 0)
    node.total = node.unfinished = len(elements)  # not before: a map that is refused begins anew when it is retried
    rows = []
    for start in range(now, len(elements), unit_size):
        unit = elements[start : start + unit_size]
        jobs = jobs_of_one * len(unit)
        rows.append((node.id, start, len(unit), msgspec.json.encode(unit), workflow.tenant, jobs))
    if rows:
        graph.tx.insert_rows("map_elements", _COLUMNS, rows)
        graph.tx.expect(graph.tx.now)
    else:
        forget_templates(graph.tx, workflow.seq, node.number)  # its elements have promises of their own


def plant_elements(
    graph: LoadedGraph, node: Node, spec: Spec, elements: Sequence[msgspec.Raw], start: int
) -> list[Node]:
    """Create the children of a map for the elements from ``start`` on; return them."""
    workflow = graph.workflow_of(node)
    planted: list[Node] = []
    for plan in _plan(graph, node, spec, elements, start):
        add_defaults(graph.tx, plan, workflow.tenant)
        planted += graph.plant(plan, workflow)
        promise(graph.tx, workflow.seq, plan.promises)
    add_to_mirrors(graph, workflow, spec, planted)
    return [item for item in planted if item.parent == node.id]


def mirrors_of(graph: LoadedGraph, workflow: StoredWorkflow, spec: Spec) -> Mirrors:
    """Return copies of the containers that undo a container, with their places, as ``AddedSteps`` has them."""
    ids = [workflow.root | number for number in spec.mirrors]
    graph.load(ids)
    nodes = [graph.nodes[id] for id in ids]
    graph.load_specs(nodes)
    return [(by_number(node), graph.place_of(node), graph.specs[node.id].settled_by) for node in nodes]


def by_number(node: Node) -> Node:
    """Return a copy of a node for the planner, which identifies nodes by number, not by id."""
    source = None if node.source is None else node.source & (MAX_NODES - 1)
    return msgspec.structs.replace(node, id=node.number, source=source)


def add_to_mirrors(graph: LoadedGraph, workflow: StoredWorkflow, spec: Spec, planted: Sequence[Node]) -> None:
    """Count new nodes that undo the new steps of a container in the containers that undo it."""
    for number in spec.mirrors:
        mirror = graph.nodes[workflow.root | number]
        added = sum(item.parent == mirror.id for item in planted)
        mirror.total += added
        mirror.unfinished += added
        graph.touch(mirror)


def _plan(graph: LoadedGraph, node: Node, spec: Spec, elements: Sequence[msgspec.Raw], start: int) -> list[Plan]:
    assert spec.template is not UNSET
    tx, workflow, place = graph.tx, graph.workflow_of(node), graph.place_of(node)
    container, mirrors = by_number(node), mirrors_of(graph, workflow, spec)
    context = PlanContext(tx.now, tx.settings.largest_job, workflow.id, workflow.tenant, workflow.metadata)
    plans: list[Plan] = []
    first = workflow.nodes
    for index, element in enumerate(elements, start):
        container.total = index
        added = AddedSteps(
            container=container,
            path="$.do",
            place=place,
            inherited=spec.inherited,
            first=first,
            outer=spec.names.get,
            bindings=spec.bindings | {spec.item: element, INDEX: msgspec.Raw(b"%d" % index)},
            mirrors=mirrors,
        )
        plan = plan_addition(context, [spec.template], added).plan
        for mirror, _, _ in mirrors:
            mirror.total += sum(item.parent == mirror.id for item in plan.nodes)
        plans.append(plan)
        first += len(plan.nodes)
    return plans


def park_map(tx: Transaction, node: Node) -> bool:
    """Create no more children of a map that is stopped; return whether any were missing."""
    # Those that are parked were taken off the counter when it was stopped before.
    query = "SELECT sum(number) FROM map_elements WHERE node = :node AND parked = 0"
    ((missing,),) = tx.execute(query, {"node": node.id})
    if not missing:
        return False
    tx.execute("UPDATE map_elements SET parked = 1 WHERE node = :node", {"node": node.id})
    node.unfinished -= int(missing)
    return True


def parked_of(tx: Transaction, workflow: StoredWorkflow) -> dict[int, int]:
    """Return how many children of each stopped map of a workflow will not be created, by the map's id."""
    rows = tx.execute(
        "SELECT node, sum(number) FROM map_elements WHERE node BETWEEN ? AND ? AND parked = 1 GROUP BY node",
        workflow.numbers,
    )
    return {id: int(number) for id, number in rows}


def count_announced(tx: Transaction, tenant: str) -> int:
    """Return the number of jobs that the elements of a tenant's maps become for which there are no nodes yet."""
    ((jobs,),) = tx.execute(
        "SELECT coalesce(sum(jobs), 0) FROM map_elements WHERE tenant = :tenant AND parked = 0 AND tenant <> ''",
        {"tenant": tenant},
    )
    return int(jobs)


def go_on_with_map(tx: Transaction, node: Node) -> None:
    """Let a map that runs again create the children that it has not created before."""
    if node.kind == Kind.MAP:
        tx.execute("UPDATE map_elements SET parked = 0 WHERE node = :node", {"node": node.id})
        tx.expect(tx.now)


def forget_elements(tx: Transaction, maps: Sequence[int]) -> None:
    """Forget the elements of maps that begin from the start."""
    tx.execute_many("DELETE FROM map_elements WHERE node = ?", [(id,) for id in maps])
