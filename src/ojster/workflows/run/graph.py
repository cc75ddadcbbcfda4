"""Workflows and their nodes in a transaction: rows that are read on demand and written once."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from copy import copy
from operator import attrgetter
from typing import Any, Final

from ojster.core.job import NODE_BITS
from ojster.core.references import is_index
from ojster.jobs.new_job import NewJob
from ojster.storage.transaction import ColumnType, Query, Row, Transaction
from ojster.workflows.node import Followed, Kind, Node, NodeState, lineage, place_of, step_of
from ojster.workflows.plan.values import Plan, Spec, read_spec
from ojster.workflows.stored_workflow import WORKFLOW_COLUMNS, StoredWorkflow, delete_nodes
from ojster.workflows.topics import wake_followers

CHILDREN_AT_ONCE: Final = 500
"""Number of nodes in containers whose children are read together."""

FEW_NODES: Final = 8
"""Number of ended nodes up to which they are written with the other changed ones."""

_OTHERS_OF_WORKFLOW: Final[dict[str, ColumnType]] = {
    **dict.fromkeys(("id", "type", "name", "state", "tenant", "definition", "target", "target_key", "locks"), "text"),
    **dict.fromkeys(("on_lost_worker", "previous_attempt", "next_attempt", "created_by", "cancelled_by"), "text"),
    **dict.fromkeys(("forked_from", "forked_step"), "text"),
    "cron_name": "text",
    **dict.fromkeys(("params", "metadata", "error", "start", "others"), "bytea"),
}
_WORKFLOW_TYPES: Final[dict[str, ColumnType]] = {
    name: _OTHERS_OF_WORKFLOW.get(name, "bigint") for name in StoredWorkflow.__struct_fields__
}
_CHANGING: Final[dict[str, ColumnType]] = {
    name: _WORKFLOW_TYPES[name]
    for name in (
        "seq",
        "state",
        "version",
        "started_at",
        "cancelled_at",
        "finished_at",
        "due_at",
        "held_at",
        "nodes",
        "jobs",
        "completed",
        "failed",
        "cancelled",
        "retries",
        "error",
        "target_key",
        "locks",
        "next_attempt",
        "kept_until",
        "cancelled_by",
        "resolved_bytes",
    )
}
"""Columns that change in an existing workflow."""

_OTHERS: Final[dict[str, ColumnType]] = {
    "kind": "text",
    "name": "text",
    "rule": "text",
    "inputs": "text",
    "state": "text",
    "verdict": "text",
    "job_id": "uuid",
    "result": "bytea",
    "error": "bytea",
}
_NODE_TYPES: Final[dict[str, ColumnType]] = {name: _OTHERS.get(name, "bigint") for name in Node.__struct_fields__}
NODE_COLUMNS: Final = ", ".join(_NODE_TYPES)
NODE_COLUMNS_OF_N: Final = ", ".join(f"n.{name}" for name in _NODE_TYPES)

_NODE_CHANGING: Final[dict[str, ColumnType]] = {
    name: _NODE_TYPES[name]
    for name in (
        "id",
        "followed",
        "state",
        "approved",
        "verdict",
        "waiting",
        "failed_before",
        "cancelled_before",
        "unmet",
        "total",
        "unfinished",
        "completed",
        "failed",
        "cancelled",
        "broken",
        "lost",
        "job_id",
        "result",
        "error",
        "started_at",
        "finished_at",
    )
}
SPEC_COLUMNS: Final[dict[str, ColumnType]] = {"id": "bigint", "spec": "bytea"}
_EDGE: Final[dict[str, ColumnType]] = {"source": "bigint", "target": "bigint", "promised": "bigint"}

_node_row: Final = attrgetter(*_NODE_TYPES)
_changing_node_row: Final = attrgetter(*_NODE_CHANGING)
workflow_row: Final = attrgetter(*_WORKFLOW_TYPES)
_changing_workflow_row: Final = attrgetter(*_CHANGING)

_FOLLOWERS: Final = f"""
    SELECT e.source, p.spec, {NODE_COLUMNS_OF_N}
    FROM node_edges AS e
    JOIN nodes AS n ON n.id = e.target
    LEFT JOIN node_specs AS p ON p.id = n.id AND n.waiting <= 1
    WHERE e.source {{among}}
    ORDER BY e.source, e.target
"""


def queries_around(tx: Transaction, ids: Collection[int]) -> list[Query]:
    """Return the queries that lock and read the workflows of nodes, and read the nodes, containers and followers."""
    followers = (_FOLLOWERS.format(among=tx.among), (tx.integers(ids),))
    return [locking(tx, {id >> NODE_BITS for id in ids}), nodes_around(tx, ids), followers]


def nodes_around(tx: Transaction, ids: Collection[int]) -> Query:
    """Return the query that reads nodes and their containers."""
    among, id_list = tx.among, tx.integers(ids)
    read = f"""
        SELECT {NODE_COLUMNS}
        FROM nodes
        WHERE id {among}
        UNION ALL
        SELECT {NODE_COLUMNS}
        FROM nodes
        WHERE id {tx.among_rows(f"SELECT parent FROM nodes WHERE id {among}")}
    """
    return read, (id_list, id_list)


def locking(tx: Transaction, seqs: Collection[int]) -> Query:
    """Return the query that locks and reads workflows."""
    # One transaction at a time advances a workflow: the counts of its nodes are read, and written back. In the order
    # of numbers, so that transactions with several workflows do not wait in a circle.
    query = f"SELECT {WORKFLOW_COLUMNS} FROM workflows WHERE seq {tx.among} ORDER BY seq{tx.for_update}"
    return query, (tx.integers(sorted(seqs)),)


class LoadedGraph:
    """Nodes of locked workflows, which no other transaction changes until this one ends.

    Changes in memory (``touch``) are written by ``write``, all at once.
    """

    def __init__(self, tx: Transaction) -> None:
        self.tx = tx
        self.workflows: dict[int, StoredWorkflow] = {}
        self.nodes: dict[int, Node] = {}
        self.specs: dict[int, Spec] = {}
        self.jobs: dict[int, NewJob] = {}
        """Jobs of new nodes that are ready to be inserted."""
        self._touched: dict[int, Node] = {}
        self._ended_jobs: dict[int, Node] = {}
        self._new: dict[int, Node] = {}
        self._new_edges: dict[int, list[int]] = {}
        self._new_promised: set[tuple[int, int]] = set()
        """Those of the new edges that follow from promised items."""
        self._new_children: dict[int, list[Node]] = {}
        self._changed: dict[int, StoredWorkflow] = {}
        self._new_workflows: dict[int, StoredWorkflow] = {}
        self._edges_ahead: dict[int, list[Row]] = {}
        """Edges that were read before they were asked for, by source. They serve once: others may be added later."""

    # Reading

    def lock(self, seqs: Collection[int]) -> None:
        """Lock workflows against other transactions, and read them."""
        self._add_workflows(self.tx.execute(*locking(self.tx, seqs)))

    def lock_around(self, ids: Collection[int], foreseen: Sequence[list[Row]] | None = None) -> None:
        """Lock the workflows of nodes, and read them, the nodes, their containers and followers: in one message.

        ``foreseen``: what ``queries_around`` has read of exactly these nodes; ``None``: nothing.
        """
        workflows, nodes, edges = foreseen or self.tx.execute_together(queries_around(self.tx, ids))
        self._edges_ahead = {id: [] for id in ids}
        for edge in edges:
            self._edges_ahead[edge[0]].append(edge)
        self.take_in(workflows, nodes)

    def take_in(self, workflows: Iterable[Row], nodes: Iterable[Row], specs: Iterable[Row] = ()) -> None:
        """Keep rows that were read of locked workflows."""
        self._add_workflows(workflows)
        for row in nodes:
            self._add(Node(*row))
        self.specs |= {id: read_spec(spec) for id, spec in specs}

    def _add_workflows(self, rows: Iterable[Row]) -> None:
        self.workflows |= {row[0]: StoredWorkflow(*row) for row in rows}

    def load(self, ids: Iterable[int]) -> None:
        """Read the nodes that are not loaded."""
        if missing := [id for id in dict.fromkeys(ids) if id not in self.nodes]:
            self._read(f"id {self.tx.among}", (self.tx.integers(missing),))

    def root_of(self, workflow: StoredWorkflow) -> Node:
        """Read and return the root of a workflow."""
        self.load([workflow.root])
        return self.nodes[workflow.root]

    def parts_of(self, workflow: StoredWorkflow) -> list[Node]:
        """Return the main part of a workflow, and its branches for errors and cancellation."""
        return self.children(self.root_of(workflow))

    def load_whole(self, workflow: StoredWorkflow) -> list[Node]:
        """Read and return all nodes of a workflow, by number."""
        return self._read("id BETWEEN ? AND ? ORDER BY id", workflow.numbers)

    def live_nodes(self, workflow: StoredWorkflow) -> list[Node]:
        """Read and return the nodes of a workflow that have not ended, by number."""
        states = "state IN ('waiting', 'blocked', 'ready', 'started')"
        return self._read(f"id BETWEEN ? AND ? AND {states} ORDER BY id", workflow.numbers)

    def _read(self, where: str, parameters: Sequence[Any]) -> list[Node]:
        """Read and return the nodes that fulfil a condition in SQL; those that are loaded stay as they are."""
        rows = self.tx.execute(f"SELECT {NODE_COLUMNS} FROM nodes WHERE {where}", parameters)
        return [self._add(Node(*row)) for row in rows]

    def _add(self, node: Node) -> Node:
        return self.nodes.setdefault(node.id, node)

    def workflow_of(self, node: Node) -> StoredWorkflow:
        """Return the workflow of a node."""
        return self.workflows[node.id >> NODE_BITS]  # as `node.workflow`; a step asks for it nine times

    def parent_of(self, node: Node) -> Node | None:
        """Return the container of a node, which must be loaded; ``None`` for the root."""
        return None if node.parent is None else self.nodes[node.parent]

    def lineage(self, node: Node) -> Iterator[tuple[Node, Node]]:
        """Yield a node with its container, and so on, up to the root; loads them."""
        return lineage(node, self.container_of)

    def place_of(self, node: Node) -> str:
        """Return the place of a node in its workflow (``ojster.workflows.node.place_of``); loads its containers."""
        return place_of(node, self.container_of)

    def step_id_of(self, node: Node) -> str:
        """Return the id of a step, as events call it, or else its index; loads its containers."""
        step = step_of(node, self.container_of)
        return step.name or str(step.position)

    def container_of(self, node: Node) -> Node:
        """Read and return the container of a node that is not the root."""
        assert node.parent is not None
        self.load([node.parent])
        return self.nodes[node.parent]

    def followers(self, nodes: Iterable[Node]) -> list[tuple[Node, Node]]:
        """Return the pairs of an ended node and one of its successors, whose containers are loaded.

        A container that ended without having started takes the place of the nodes inside it. Successors that wait for
        nothing else are loaded with their specifications.
        """
        followed = {node.id: node for node in nodes if node.followed}
        ahead, self._edges_ahead = self._edges_ahead, {}
        if not followed:
            return []
        for container in [node for node in followed.values() if node.followed & Followed.INSIDE]:
            if container.started_at is None:
                followed |= dict.fromkeys((node.id for node in self.followed_inside(container)), container)
        pairs = [(source, target) for source in followed for target in self._new_edges.get(source, ())]
        stored = [id for id in followed if id not in self._new]
        edges = [edge for id in stored for edge in ahead.get(id, ())]
        if missing := [id for id in stored if id not in ahead]:
            edges += self.tx.execute(_FOLLOWERS.format(among=self.tx.among), (self.tx.integers(missing),))
        for source, spec, *row in edges:
            node = self._add(Node(*row))
            pairs.append((source, node.id))
            if spec is not None and node.id not in self.specs:
                self.specs[node.id] = read_spec(spec)
        if any(node.followed & ~Followed.HERE for node in followed.values()):
            self.load([parent for _, target in pairs if (parent := self.nodes[target].parent) is not None])
        return [(followed[source], self.nodes[target]) for source, target in pairs]

    def followed_inside(self, container: Node) -> Iterator[Node]:
        """Yield the nodes inside a container that have successors in other containers."""
        containers = [container]
        while containers:
            for node in self.children(containers.pop()):
                if node.followed & Followed.ELSEWHERE:
                    yield node
                if node.followed & Followed.INSIDE:
                    containers.append(node)

    def successors(self, ids: Collection[int]) -> list[Node]:
        """Read and return the nodes that wait, or have waited, for one of these to end."""
        rows = self.tx.execute(f"SELECT target FROM node_edges WHERE source {self.tx.among}", (self.tx.integers(ids),))
        targets = [target for (target,) in rows] + [target for id in ids for target in self._new_edges.get(id, ())]
        self.load(targets)
        return [self.nodes[target] for target in targets]

    def children(self, container: Node, condition: str = "", *parameters: Any) -> list[Node]:
        """Return all children of a container, in order of position, or those that fulfil a condition in SQL."""
        fresh = self._new_children.get(container.id, [])
        if container.id in self._new:
            return fresh
        return self._read(f"parent = ?{condition} ORDER BY position", (container.id, *parameters)) + fresh

    def children_of(self, containers: Sequence[Node]) -> dict[int, list[Node]]:
        """Return all children of several containers, by container id, in order of position."""
        by_container: dict[int, list[Node]] = {container.id: [] for container in containers}
        if known := [container.id for container in containers if container.id not in self._new]:
            where = f"parent {self.tx.among} ORDER BY parent, position"
            for node in self._read(where, (self.tx.integers(known),)):
                by_container[node.parent or 0].append(node)
        for id, children in by_container.items():
            children += self._new_children.get(id, ())
        return by_container

    def first_children(self, containers: Mapping[int, int], limits: Mapping[int, int]) -> dict[int, list[Node]]:
        """Return the children of containers that can be decided, by workflow: what they wait for matters no more.

        Parameters
        ----------
        containers:
            Ids of containers in ascending order, each with the position from which on to look.
        limits:
            After how many children the rest of a workflow, given by its ``seq``, is not looked at.
        """
        startable: dict[int, list[Node]] = {seq: [] for seq in limits}
        changed = [child for child in self._touched.values() if child.parent in containers]  # not written yet
        for group, first in self._alike(containers):
            wanting = {id for id in group if len(startable[id >> NODE_BITS]) < limits[id >> NODE_BITS]}
            looked = [child for child in changed if child.parent in wanting]
            looked += [child for id in wanting for child in self._new_children.get(id, ())]
            if stored := [id for id in group if id in wanting and id not in self._new]:
                # For one container, the index gives the order; for several, some versions of PostgreSQL sort all.
                chosen, order = ("= ?", "position") if len(stored) == 1 else (self.tx.among, "parent, position")
                limit = limits[stored[0] >> NODE_BITS] if len(stored) == 1 else CHILDREN_AT_ONCE
                looked += self._read(
                    f"""
                    parent {chosen}
                        AND position >= ?
                        AND state = 'waiting'
                        AND (waiting = 0 OR unmet > 0)
                    ORDER BY {order}
                    LIMIT ?
                    """,
                    (stored[0] if len(stored) == 1 else self.tx.integers(stored), first, limit + len(changed)),
                )
            for node in {child.id: child for child in looked}.values():
                if node.position >= first and node.state == NodeState.WAITING and (not node.waiting or node.unmet):
                    startable[node.workflow].append(node)
        for children in startable.values():
            children.sort(key=lambda child: (child.parent, child.position))
        return startable

    def _alike(self, containers: Mapping[int, int]) -> Iterator[tuple[list[int], int]]:
        """Yield groups of containers of the same position whose children are read together, because they are few."""
        group: list[int] = []
        size = position = 0
        for id, first in containers.items():
            number = self.nodes[id].total
            if group and (first != position or size + number > CHILDREN_AT_ONCE):
                yield group, position
                group, size = [], 0
            group.append(id)
            size, position = size + number, first
        if group:
            yield group, position

    def named_children(self, container: Node, *names: str) -> list[Node]:
        """Return the children of a container that have one of these names or positions."""
        named: list[Node] = []
        for name in names:
            position = int(name) if is_index(name) else -1
            named += self.children(container, " AND (name = ? OR position = ?)", name, position)
        return [child for child in named if child.name in names or str(child.position) in names]

    def idle_children(self, container: Node) -> list[Node]:
        """Return the children of a container that wait for no other."""
        return self.children(container, " AND waiting = 0")

    def children_with_names(self, container: Node) -> list[Node]:
        """Return the children of a container that have a name, and its last one."""
        return self.children(container, " AND (name IS NOT NULL OR position = ?)", container.total - 1)

    def load_specs(self, nodes: Iterable[Node]) -> None:
        """Read the specifications of nodes."""
        if missing := [node.id for node in nodes if node.id not in self.specs]:
            query = f"SELECT id, spec FROM node_specs WHERE id {self.tx.among}"
            self.take_in((), (), self.tx.execute(query, (self.tx.integers(missing),)))

    # Changing

    def add(self, workflow: StoredWorkflow) -> None:
        """Add a new workflow, which ``write`` inserts."""
        self.workflows[workflow.seq] = self._new_workflows[workflow.seq] = workflow

    def plant(self, plan: Plan, workflow: StoredWorkflow) -> list[Node]:
        """Add copies of a plan's nodes to a workflow. The plan stays unchanged: the transaction may run again."""
        base = workflow.root
        planted = []
        for model, spec in zip(plan.nodes, plan.specs, strict=True):
            node = copy(model)
            planted.append(node)
            number = node.id
            node.id = base | number
            if node.parent is not None:
                node.parent |= base
                self._new_children.setdefault(node.parent, []).append(node)
            if node.source is not None:
                node.source |= base
            self.nodes[node.id] = self._new[node.id] = node
            self.specs[node.id] = spec
            if number in plan.jobs:
                self.jobs[node.id] = plan.jobs[number]
        for source, target in plan.edges:
            self._new_edges.setdefault(base | source, []).append(base | target)
        self._new_promised |= {(base | source, base | target) for source, target in plan.promised}
        workflow.nodes = max([workflow.nodes, *[node.number + 1 for node in planted[-1:]]])
        workflow.jobs += sum(node.kind == Kind.JOB for node in planted)
        self.change(workflow)
        return planted

    def connect(self, before: Node, after: Node) -> None:
        """Add an edge between existing nodes."""
        self._new_edges.setdefault(before.id, []).append(after.id)

    def drop(self, dropped: Sequence[Node], nodes: Sequence[Node]) -> list[Node]:
        """Delete some of these nodes, and return the others. Their jobs stay."""
        ids = [node.id for node in dropped]
        delete_nodes(self.tx, ids)
        for id in ids:
            del self.nodes[id]
        return [node for node in nodes if node.id in self.nodes]

    def touch(self, node: Node) -> None:
        """Mark a node as changed."""
        if node.id not in self._new:
            self._touched[node.id] = node
            self._ended_jobs.pop(node.id, None)

    def touch_ended_job(self, node: Node) -> None:
        """Mark a node that ended with its job: the most frequent change, written with fewer columns."""
        if node.id not in self._new and node.id not in self._touched:
            self._ended_jobs[node.id] = node

    def change(self, workflow: StoredWorkflow) -> None:
        """Mark a workflow as changed, and increase its version."""
        if workflow.seq not in self._changed:
            self._changed[workflow.seq] = workflow
            workflow.version += 1

    def write_nodes(self) -> None:
        """Write the changed and the new nodes."""
        tx = self.tx
        if len(self._ended_jobs) <= FEW_NODES:  # then a statement costs more than columns
            self._touched |= self._ended_jobs
            self._ended_jobs.clear()
        tx.update_rows("nodes", _NODE_CHANGING, [_changing_node_row(node) for node in self._touched.values()])
        alike: dict[str, list[int]] = {}
        for node in self._ended_jobs.values():
            alike.setdefault(node.state, []).append(node.id)
        for state, ids in alike.items():
            query = f"UPDATE nodes SET state = ?, finished_at = ? WHERE id {tx.among}"
            tx.execute(query, (state, tx.now, tx.integers(ids)))
        tx.insert_rows("nodes", _NODE_TYPES, [_node_row(node) for node in self._new.values()])
        tx.insert_rows("node_specs", SPEC_COLUMNS, [(id, self.specs[id].to_json()) for id in self._new])
        edges = [
            (source, target, int((source, target) in self._new_promised))
            for source, targets in self._new_edges.items()
            for target in targets
        ]
        tx.insert_rows("node_edges", _EDGE, edges)
        piles = (self._touched, self._ended_jobs, self._new, self._new_edges, self._new_promised, self._new_children)
        for pile in piles:
            pile.clear()

    def write(self) -> None:
        """Write all changes."""
        self.write_nodes()
        changed = [workflow for seq, workflow in self._changed.items() if seq not in self._new_workflows]
        self.tx.update_rows("workflows", _CHANGING, [_changing_workflow_row(workflow) for workflow in changed])
        self.write_new_workflows()
        for workflow in self._changed.values():
            self.tx.expect(workflow.due_at)
            wake_followers(self.tx, workflow.id, has_ended=workflow.finished_at is not None)
        self._changed.clear()

    def write_new_workflows(self) -> None:
        """Insert the new workflows, so that queries find them; later changes of them are written like any other."""
        rows = [workflow_row(workflow) for workflow in self._new_workflows.values()]
        self.tx.insert_rows("workflows", _WORKFLOW_TYPES, rows)
        self._new_workflows.clear()
