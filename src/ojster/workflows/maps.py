"""The elements of maps: one group of nodes for each element of an array."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import UNSET

from ojster.collections.contents import promise
from ojster.core.references import INDEX
from ojster.workflows.graph import Graph
from ojster.workflows.node import Node
from ojster.workflows.plan_defaults import add_defaults
from ojster.workflows.plan_values import Spec
from ojster.workflows.planner import Planner


def plant_elements(graph: Graph, node: Node, spec: Spec, elements: Sequence[msgspec.Raw]) -> None:
    """Create the children of a map, one group of nodes for each element."""
    assert spec.template is not UNSET
    tx, workflow, place = graph.tx, graph.workflow_of(node), graph.place_of(node)
    source = None if node.source is None else node.source - workflow.root
    stand_in = msgspec.structs.replace(node, id=node.number, source=source, total=0)
    plans = []
    first = workflow.nodes
    for index, element in enumerate(elements):
        planner = Planner(
            tx.now,
            tx.settings.largest_job,
            workflow_id=workflow.id,
            tenant=workflow.tenant,
            metadata=workflow.metadata,
            first=first,
            outer=spec.names.get,
            bindings=spec.bindings | {spec.item: element, INDEX: msgspec.Raw(b"%d" % index)},
        )
        stand_in.total = index
        planner.more([spec.template], stand_in, "$.do", place, spec.inherited)
        add_defaults(tx, planner.plan, workflow.tenant)
        plans.append(planner.plan)
        first += len(planner.plan.nodes)
    for plan in plans:
        graph.plant(plan, workflow)
        promise(tx, workflow.seq, plan.promises)
