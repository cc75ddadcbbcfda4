"""Steps that a running workflow adds to itself."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from functools import partial

import msgspec

from ojster.collections.contents import promise
from ojster.core.access import Access
from ojster.core.errors import InvalidRequest
from ojster.core.job import NODE_BITS, Job
from ojster.core.json_objects import raw_list
from ojster.storage.transaction import Transaction
from ojster.tenancy.quotas import charge_growth
from ojster.workflows.node import TWO_PART, Followed, Kind, Node
from ojster.workflows.plan.members import refusal_of
from ojster.workflows.plan.nested_definitions import with_nested
from ojster.workflows.plan.planned_jobs import add_defaults, check_kinds, check_queues
from ojster.workflows.plan.planner import plan_addition
from ojster.workflows.plan.values import AddedSteps, PlanContext
from ojster.workflows.run.advance import Advance
from ojster.workflows.run.graph import LoadedGraph, locking, nodes_around
from ojster.workflows.run.maps import add_to_mirrors, by_number, mirrors_of


def grow_all(tx: Transaction, added: Sequence[tuple[Job, Sequence[bytes], Access | None]]) -> list[list[Node]]:
    """Add steps to the containers of active jobs: at the end of a chain, in parallel in a group, a graph or a flow.

    Return the new children of the container of each job. Nothing is added if the job's node was told to stop.

    Parameters
    ----------
    added:
        Each job with its steps, and with what the worker that adds them may do; ``None``: everything.

    Raises
    ------
    InvalidRequest
        A job has no workflow, or its container does not accept steps.
    InvalidWorkflow
        The steps are invalid.
    TenantLimitExceeded
        The tenant would have more waiting jobs than it may.
    Forbidden
        The worker could not enqueue the steps itself.
    """
    for job, _, _ in added:
        if job.node is None:
            raise InvalidRequest(f"The job {job.id} belongs to no workflow. Only workflow jobs can append steps.")
    nodes = [job.node for job, _, _ in added if job.node is not None]
    graph = LoadedGraph(tx)
    _load_around(graph, nodes)
    fresh = [_add_steps(graph, *each) for each in added]
    run = Advance(graph)
    run.decide(itertools.chain.from_iterable(fresh))
    run.go()
    return fresh


def _load_around(graph: LoadedGraph, nodes: Sequence[int]) -> None:
    """Lock the workflows of nodes, and read the nodes and all that contains them, those of all jobs together."""
    tx = graph.tx
    seqs = {node >> NODE_BITS for node in nodes}
    ids = tx.integers(nodes)
    parents = tx.among_rows(f"SELECT parent FROM nodes WHERE id {tx.among}")
    specs = f"SELECT id, spec FROM node_specs WHERE id {parents}"
    roots = [seq << NODE_BITS for seq in seqs]  # what contains most of the containers
    graph.take_in(*tx.execute_together([locking(tx, seqs), nodes_around(tx, [*nodes, *roots]), (specs, (ids,))]))
    around = _parents(graph, nodes)
    while around:
        graph.load(around)
        around = _parents(graph, around)


def _parents(graph: LoadedGraph, nodes: Sequence[int]) -> list[int]:
    """Return the containers of loaded nodes."""
    return [parent for node in nodes if (parent := graph.nodes[node].parent) is not None]


def _add_steps(graph: LoadedGraph, job: Job, steps: Sequence[bytes], access: Access | None) -> list[Node]:
    """Add steps to the container of a job's node in a graph; return its new children."""
    tx = graph.tx
    node = graph.nodes[job.node or 0]
    container = _growing_container(graph, node, job)
    if node.verdict is not None:
        return []  # it was told to stop, so nothing new starts
    workflow = graph.workflow_of(node)
    base = workflow.root
    # New steps may refer to those beside them; not in a flow, which may have thousands.
    siblings = [] if container.kind == Kind.FLOW else graph.children_with_names(container)
    spec = graph.specs[container.id]
    mirrors = mirrors_of(graph, workflow, spec)
    ordered = spec.mirrors if container.kind != Kind.GROUP else []
    undone_first = [graph.idle_children(graph.nodes[base | number]) for number in ordered]
    added = AddedSteps(
        container=by_number(container),
        path="$.append",
        place=graph.place_of(container),
        inherited=spec.inherited,
        first=workflow.nodes,
        outer=partial(_look_outside, graph, container),
        known={sibling.name: by_number(sibling) for sibling in siblings if sibling.name is not None},
        last=by_number(siblings[-1]) if container.kind == Kind.CHAIN else None,
        level=sum(node.kind not in TWO_PART for node, _ in graph.lineage(container)),
        mirrors=mirrors,
        heads=[[by_number(head) for head in heads] for heads in undone_first],
    )
    raw_steps = with_nested(tx, {"steps": msgspec.Raw(b"[%b]" % b",".join(steps))}, workflow.tenant)["steps"]
    context = PlanContext(tx.now, tx.settings.largest_job, workflow.id, workflow.tenant, workflow.metadata)
    planned = plan_addition(context, raw_list(raw_steps), added)
    if planned.unknown:  # the report has no place for warnings; for what jobs keep, it must not be lost
        raise refusal_of(planned.unknown)
    plan = planned.plan
    check_kinds(plan, access)
    charge_growth(tx, workflow.tenant, plan.job_count, plan.job_count)
    add_defaults(tx, plan, workflow.tenant)
    check_queues(plan, access)
    planted = graph.plant(plan, workflow)
    promise(tx, workflow.seq, plan.promises)
    for source, _ in plan.edges:
        if source < plan.nodes[0].id:
            before = graph.nodes[base | source]
            before.followed |= Followed.HERE
            graph.touch(before)
    add_to_mirrors(graph, workflow, spec, planted)
    followed = Counter(base | target for _, target in plan.edges)
    for head in itertools.chain.from_iterable(undone_first):
        head.waiting += followed[head.id]
        graph.touch(head)
    fresh = [item for item in planted if item.parent == container.id]
    container.total += len(fresh)
    container.unfinished += len(fresh)
    graph.touch(container)
    return fresh


def _growing_container(graph: LoadedGraph, node: Node, job: Job) -> Node:
    """Return the container that the steps of a node are added to."""
    container = graph.container_of(node)
    while container.kind == Kind.FALLBACK:
        inner, container = container, graph.container_of(container)
        if container.kind == Kind.SAGA and not inner.position:  # what undoes the step and its fallback
            container = graph.container_of(container)
    graph.load_specs([container])
    if container.kind in TWO_PART or graph.specs[container.id].is_undoing:
        raise InvalidRequest(
            f"The job {job.id} cannot append steps here. "
            "Append steps in a chain, a group or a graph that is not a compensation."
        )
    return container


def _look_outside(graph: LoadedGraph, container: Node, name: str) -> int | None:
    """Return the number of the nearest step with a name that precedes steps added to a container, if any."""
    inner: Node | None = None
    node: Node | None = container
    while node is not None:
        place = node
        if place.kind in TWO_PART and inner is not None and inner.position:
            while place.kind in TWO_PART:
                place = graph.children(place)[0]
        if place.kind in (Kind.CHAIN, Kind.GRAPH) or place is not node:
            for child in graph.named_children(place, name):
                before = place is not node or inner is None or place.kind == Kind.GRAPH
                if child is not inner and (before or (inner is not None and child.position < inner.position)):
                    return child.number
        inner, node = node, None if node.parent is None else graph.container_of(node)
    return None
