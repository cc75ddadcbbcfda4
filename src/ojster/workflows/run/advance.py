"""Workflow progress: from nodes that have ended to nodes that start, with one function for all constructs.

An ended node (a job, a gate, a stopped container) is counted in its successors and its container. These then start,
are skipped, are cancelled or end in turn, until nothing changes. One transaction at a time advances a workflow: the one
in which its job ended. So everything happens exactly once. The cost depends on the number of changed nodes, not on the
size of the workflow.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec
from msgspec import UNSET

from ojster.collections.outputs import collect_outputs
from ojster.core.errors import Duplicate, OjsterError, PayloadTooLarge
from ojster.core.job import NODE_BITS, Job
from ojster.core.json_objects import raw_list
from ojster.core.references import Unresolvable, resolve
from ojster.core.states import JobState
from ojster.jobs.expiration import kept_until
from ojster.jobs.names import kind
from ojster.jobs.new_job import NewJob
from ojster.jobs.push import admit
from ojster.storage.transaction import Held, Later, Transaction
from ojster.tenancy.quotas import forget_announced
from ojster.workflows.node import (
    TWO_PART,
    Kind,
    Node,
    NodeState,
    count_ended_child,
    count_ended_predecessor,
    decide,
    final_state_of,
)
from ojster.workflows.plan.conditions import InvalidCondition
from ojster.workflows.plan.nested_definitions import refuse_params
from ojster.workflows.plan.reader import MAX_MAP_ELEMENTS
from ojster.workflows.plan.values import Spec
from ojster.workflows.run.claimed_steps import note_step
from ojster.workflows.run.flow_wakeups import end_awaited
from ojster.workflows.run.foresight import foreseen
from ojster.workflows.run.graph import LoadedGraph
from ojster.workflows.run.maps import begin_map, go_on_with_map
from ojster.workflows.run.results import NodeOutcome, outcomes, why_failed
from ojster.workflows.run.start_quota import CONDITION_SECONDS, Starts, defer_starts
from ojster.workflows.run.states import change_node, change_workflow
from ojster.workflows.run.step_jobs import StepJobs, StepValues
from ojster.workflows.run.turns import wake_next
from ojster.workflows.run.undoing import compared_nodes, is_left_to_undo
from ojster.workflows.stored_workflow import BRANCH_TIMEOUT, StoredWorkflow, WorkflowState, emit

_decode: Final = msgspec.json.decode
_encode: Final = msgspec.json.Encoder().encode

_END_OF_JOB: Final[dict[str, NodeState]] = {
    JobState.COMPLETED: NodeState.COMPLETED,
    JobState.DISCARDED: NodeState.FAILED,
    JobState.CANCELLED: NodeState.CANCELLED,
}


ENDED_FLOWS: Final = "flows that have ended before what they have asked for"
"""What is known in a transaction: containers of flows, whose other steps are to be cancelled."""


def advance(tx: Transaction) -> None:
    """Advance the workflows of the jobs that ended in this transaction."""
    while tx.effects.ended:
        collect_outputs(tx)
        ended, tx.effects.ended = tx.effects.ended, []
        nodes = {job.node: job for job in ended if job.node is not None}
        graph = LoadedGraph(tx)
        graph.lock_around(nodes, foreseen(tx, nodes))
        run = Advance(graph)
        for id, job in nodes.items():
            node = graph.nodes.get(id)
            if node is not None and node.job_id == job.id and not node.has_ended:
                run.end_with_job(node, job)
        run.go()


class Advance:
    """The propagation of changes through the workflows of a graph."""

    def __init__(self, graph: LoadedGraph) -> None:
        self.graph = graph
        self.tx = graph.tx
        self._ended: list[Node] = []
        self._ready: list[Node] = []
        self._opened: dict[int, dict[int, int]] = {}
        """The containers that have started, by workflow and id, each with the first position to start."""
        self._jobs: dict[int, Job] = {}
        """Ended jobs, by node id."""
        self._admitted: list[tuple[Node, NewJob]] = []
        self._awaited: list[int] = []
        """Steps of flows that have ended."""
        self.step_jobs = StepJobs(graph)
        self.starts = Starts()
        self._seconds = 0.0
        """How long the conditions in this transaction have taken."""

    def go(self) -> None:
        """Propagate changes until nothing changes, and write them.

        Other workflows are advanced too, if a new job replaced (and so cancelled) one of their jobs.
        """
        while self._ended or self._ready or self._opened or self._admitted:
            if self._ended:
                self._spread()
            elif self._ready:
                self._begin()
            elif self._opened:
                self._open()
            else:
                self._enqueue()
        self.starts.write(self.tx, self.graph.workflows)
        self.graph.write()
        end_awaited(self.tx, self._awaited)
        self._awaited = []
        advance(self.tx)

    # Changes from outside

    def end_with_job(self, node: Node, job: Job) -> None:
        """End a node whose job has ended."""
        self._jobs[node.id] = job
        workflow = self.graph.workflow_of(node)
        if workflow.started_at is None and job.started_at is not None:
            workflow.started_at = job.started_at  # the claim skipped the locked workflow
            self.graph.change(workflow)
            emit(self.tx, "workflow.started", workflow, total_steps=workflow.jobs)
        change_node(node, _END_OF_JOB[job.state])
        node.finished_at = self.tx.now
        self.graph.touch_ended_job(node)
        self._ended.append(node)

    def end(
        self, node: Node, state: NodeState, *, error: dict[str, Any] | None = None, result: bytes | None = None
    ) -> None:
        """End a node."""
        change_node(node, state)
        node.finished_at = self.tx.now
        node.result = result
        node.error = None if error is None else _encode(error)
        self.graph.touch(node)
        self._ended.append(node)

    def fail(self, node: Node, code: str, message: str, **more: Any) -> None:
        """End a node with an error that has a code, a message, and more members."""
        self.end(node, NodeState.FAILED, error={"code": code, "type": code, "message": message} | more)

    def start(self, nodes: Iterable[Node]) -> None:
        """Start nodes with ended predecessors, unless a condition, an approval or a hold prevents it."""
        self._ready += nodes

    def decide(self, nodes: Iterable[Node]) -> None:
        """Start, skip or cancel waiting nodes, if their predecessors decide it."""
        for node in nodes:
            self._decide(node)

    # Consequences of ended nodes

    def _spread(self) -> None:
        """Update the successors and the containers of ended nodes."""
        ended, self._ended = self._ended, []
        graph = self.graph
        graph.load(node.parent for node in ended if node.parent is not None)
        for before, node in graph.followers(ended):
            if node.state == NodeState.WAITING:
                count_ended_predecessor(node, before)
                graph.touch(node)
                self._decide(node)
        closing: list[Node] = []
        for node in ended:
            container = graph.parent_of(node)
            self._count(node)
            if container is None:
                self._finish(node)
                continue
            count_ended_child(container, node)
            graph.touch(container)
            self._tell(node, container)
            if container.kind == Kind.WORKFLOW:
                self._go_on_after(container)
            elif container.kind == Kind.FLOW:
                self._end_in_flow(container, node)
            if not container.unfinished and container.state == NodeState.STARTED:
                closing.append(container)
        self.close(closing)

    def _end_in_flow(self, flow: Node, node: Node) -> None:
        """Note the end of a flow's function, which decides how the flow ends, or of a step that it may wait for."""
        if node.position:
            self._awaited.append(node.id)
            return
        flow.verdict = flow.verdict or node.state
        if flow.unfinished:
            self.tx.known[ENDED_FLOWS][flow.id] = ()

    def _go_on_after(self, root: Node) -> None:
        """Limit the time of the branches of a workflow when a part of it has ended; start a branch that waits for it.

        ``on_cancel`` waits for ``on_error`` if the workflow was cancelled while ``on_error`` ran.
        """
        workflow = self.graph.workflow_of(root)
        workflow.due_at = self.tx.now + BRANCH_TIMEOUT
        self.graph.change(workflow)
        if root.unfinished != 1 or workflow.state != WorkflowState.CANCELLED:
            return
        last = self.graph.children(root)[-1]
        is_ready = any(node is last for node in self._ready)  # if its rule has started it: the usual cancellation
        if last.state == NodeState.WAITING and not is_ready:
            self.start([last])

    def _decide(self, node: Node) -> None:
        state = decide(node)
        if state is None:
            return
        container = self.graph.parent_of(node)
        if container is not None and container.state != NodeState.STARTED:
            return  # decided when the container starts, if it ever does
        first = self._opened.get(node.workflow, {}).get(node.parent or 0)
        if first is not None and node.position >= first:
            return  # decided with the other children of its container: see ``_open``
        if container is not None and not self.starts.room_of(self.graph.workflow_of(node)):
            self.starts.defer(container.id, node.position)
            return
        if state == NodeState.STARTED:
            self._ready.append(node)
            if container is not None:
                self.starts.take(self.graph.workflow_of(node), node)
        else:
            self.end(node, state, error=_UPSTREAM if state == NodeState.CANCELLED else None)

    def close(self, containers: Sequence[Node]) -> None:
        """End containers that have no unfinished children."""
        children = self.graph.children_of([container for container in containers if container.kind in TWO_PART])
        for container in containers:
            end = container.verdict or final_state_of(container, children.get(container.id, []))
            self.end(container, NodeState(end))

    def _count(self, node: Node) -> None:
        """Add an ended job to the counts of its workflow."""
        if node.kind != Kind.JOB:
            return
        workflow = self.graph.workflow_of(node)
        workflow.completed += node.state == NodeState.COMPLETED
        workflow.failed += node.state == NodeState.FAILED
        workflow.cancelled += node.state == NodeState.CANCELLED
        self.graph.change(workflow)

    def _finish(self, root: Node) -> None:
        """Finish a workflow that has no running nodes."""
        workflow = self.graph.workflow_of(root)
        workflow.finished_at = self.tx.now
        workflow.due_at = workflow.held_at = None
        if workflow.expiration_delay is not None:
            workflow.kept_until = kept_until(self.tx.now, workflow.expiration_delay)
        was_cancelled = workflow.state == WorkflowState.CANCELLED
        if workflow.state not in (WorkflowState.CANCELLED, WorkflowState.RETRIED):
            change_workflow(workflow, root.state)
        self.graph.change(workflow)
        wake_next(self.tx, workflow)
        lasted = (self.tx.now - (workflow.started_at or workflow.created_at)) // 1000
        if workflow.state == WorkflowState.COMPLETED:
            emit(self.tx, "workflow.completed", workflow, total_steps=workflow.jobs, duration_ms=lasted)
        elif workflow.state not in (WorkflowState.CANCELLED, WorkflowState.RETRIED):
            emit(self.tx, "workflow.failed", workflow, duration_ms=lasted, **why_failed(self.graph, workflow))
        elif workflow.state == WorkflowState.CANCELLED and not was_cancelled:
            emit(self.tx, "workflow.cancelled", workflow)

    def _tell(self, node: Node, container: Node) -> None:
        """Emit the event of a completed or failed step."""
        if node.state not in (NodeState.COMPLETED, NodeState.FAILED) or container.kind in TWO_PART:
            return
        noun = "step" if container.kind in (Kind.CHAIN, Kind.GRAPH) else "job"
        verb = "completed" if node.state == NodeState.COMPLETED else "failed"
        workflow, job = self.graph.workflow_of(node), self._jobs.get(node.id)
        started = job.started_at if job is not None else node.started_at
        more: dict[str, Any] = {"duration_ms": (self.tx.now - (started or self.tx.now)) // 1000}
        if verb == "failed":
            more["error"] = job.error if job is not None else node.error and _decode(node.error)
        emit(
            self.tx,
            f"workflow.{noun}_{verb}",
            workflow,
            step_id=node.name or str(node.position),
            step_index=node.position,
            step_type=job.type if job is not None else node.kind,
            job_id=node.job_id,
            remaining_steps=container.unfinished,
            steps_remaining=workflow.jobs - workflow.completed - workflow.failed - workflow.cancelled,
            **more,
        )

    # Starting nodes

    def _begin(self) -> None:
        """Start the ready nodes; skip, block, hold or fail those that cannot start."""
        ready, self._ready = self._ready, []
        graph = self.graph
        graph.load_specs(ready)
        known = self._known_to(ready)
        for node in ready:
            workflow, spec = graph.workflow_of(node), graph.specs[node.id]
            if self._is_for_later(node, spec):
                continue
            graph.touch(node)
            if workflow.held_at is not None:
                change_node(node, NodeState.READY)
                continue
            values = self.step_jobs.values(workflow, spec, known)
            try:
                if not self._is_wanted(node, spec, values):
                    self.end(node, NodeState.SKIPPED)
                elif node.manual and not node.approved:
                    self._block(node, workflow, spec)
                else:
                    self._start(node, spec, values)
            except (Unresolvable, InvalidCondition) as error:
                code = "unresolvable_reference" if isinstance(error, Unresolvable) else "condition_failed"
                self.fail(node, code, str(error))
            except (msgspec.DecodeError, RecursionError) as error:
                self.fail(node, "unreadable", f"A referenced value cannot be decoded: {error}")
            except OjsterError as error:
                self._refuse(node, error)

    def _known_to(self, nodes: Sequence[Node]) -> dict[int, NodeOutcome]:
        """Return the outcomes of the steps that nodes refer to, by node id."""
        wanted: set[int] = set()
        for node in nodes:
            spec = self.graph.specs[node.id]
            base = node.workflow << NODE_BITS
            wanted.update(base | number for number in spec.names.values())
            wanted.update(compared_nodes(node, spec))
        if not wanted:
            return {}
        self.graph.write_nodes()
        return outcomes(self.tx, wanted)

    def _is_wanted(self, node: Node, spec: Spec, values: StepValues) -> bool:
        if not is_left_to_undo(self.tx, node, spec, values.known):
            return False
        if spec.condition is None:
            return True
        began = time.perf_counter()
        try:
            return values.satisfy(spec.condition)
        finally:
            self._seconds += time.perf_counter() - began

    def _is_for_later(self, node: Node, spec: Spec) -> bool:
        """Leave a node to a later transaction if the conditions of this one have taken too long already."""
        if spec.condition is None or self._seconds < CONDITION_SECONDS or node.state != NodeState.WAITING:
            return False
        container = self.graph.parent_of(node)
        if container is None:
            return False
        self.starts.defer(container.id, node.position)
        return True

    def _block(self, node: Node, workflow: StoredWorkflow, spec: Spec) -> None:
        change_node(node, NodeState.BLOCKED)
        if spec.timeout is not None:
            defer_starts(self.tx, {node.id: 0}, self.graph.workflows, self.tx.now + spec.timeout)
        self.graph.change(workflow)
        emit(self.tx, "workflow.step_blocked", workflow, step_id=self.graph.step_id_of(node))

    def _start(self, node: Node, spec: Spec, values: StepValues) -> None:
        match node.kind:
            case Kind.GATE:
                self.end(node, NodeState.COMPLETED, result=node.result or b"null")
                return
            case Kind.JOB:
                job = self.graph.jobs.pop(node.id, None) or self.step_jobs.make(node, spec, values)
                job.node = node.id
                if node.job_id is not None:
                    job.envelope = job.envelope[:-1] + b',"supersedes":"%b"}' % node.job_id.encode()
                self._admitted.append((node, job))
                return
            case Kind.MAP | Kind.DEFINITION if not node.total:
                self._expand(node, spec, values)
            case Kind.MAP:
                go_on_with_map(self.tx, node)
        change_node(node, NodeState.STARTED)
        node.started_at = self.tx.now
        self.note_compensation(node)
        if not node.unfinished:
            self.close([node])
            return
        self.start_children(node)

    def start_children(self, container: Node, first: int = 0) -> None:
        """Start the children of a started container that wait for nothing, from a position on; many in steps."""
        opened = self._opened.setdefault(container.workflow, {})
        opened[container.id] = min(first, opened.get(container.id, first))

    def _open(self) -> None:
        """Start the children of started containers, as many as there is room for; the others are for later."""
        opened, self._opened = self._opened, {}
        firsts = {id: first for containers in opened.values() for id, first in containers.items()}
        limits = {seq: self.starts.room_of(self.graph.workflows[seq]) + 1 for seq in opened}
        children = self.graph.first_children(dict(sorted(firsts.items())), limits)
        for seq, containers in opened.items():
            room = self.starts.room_of(self.graph.workflows[seq])  # others have taken of it
            for child in children[seq][:room]:
                self._decide(child)
            for left in children[seq][room : room + 1]:
                for id, first in containers.items():
                    if id >= (left.parent or 0):
                        self.starts.defer(id, left.position if id == left.parent else first)

    def note_compensation(self, node: Node) -> None:
        """Set the workflow to ``compensating`` when the compensation of its main saga starts."""
        saga, workflow = self.graph.parent_of(node), self.graph.workflow_of(node)
        is_main = saga is not None and saga.kind == Kind.SAGA and saga.parent == workflow.root and not saga.position
        if is_main and node.position and workflow.state == WorkflowState.RUNNING:
            change_workflow(workflow, WorkflowState.COMPENSATING)
            self.graph.change(workflow)

    def _expand(self, node: Node, spec: Spec, values: StepValues) -> None:
        """Create the children of a map, one group of nodes for each element."""
        assert spec.over is not UNSET
        over = resolve(spec.over, values.look_up, self.step_jobs.lookup_resolver(node))
        if over.lstrip()[:1] != b"[":
            raise Unresolvable(f"'over' of a map must be an array, not {kind(over.lstrip())}. Refer to a list.")
        elements = raw_list(over)
        if len(elements) > MAX_MAP_ELEMENTS:
            raise PayloadTooLarge(
                f"The map has {len(elements)} elements; at most {MAX_MAP_ELEMENTS} are allowed. Split the array."
            )
        if spec.params_schema is not UNSET:
            refuse_params(spec.display_name or "", spec.params_schema, elements[0])
        workflow = self.graph.workflow_of(node)
        before = workflow.nodes
        begin_map(self.graph, node, spec, elements)
        self.starts.note_map(workflow, node, workflow.nodes - before)

    def _enqueue(self) -> None:
        """Enqueue the jobs of nodes, all at once."""
        admitted, self._admitted = self._admitted, []
        results = admit(self.tx, [[job] for _, job in admitted])
        forget_announced(self.tx)  # from now on, they count as jobs
        for (node, job), result in zip(admitted, results, strict=True):
            if isinstance(result, Later):
                self._start_later(node, result)
                continue
            if isinstance(result, OjsterError):
                self._refuse(node, result)
                continue
            (pushed,) = result
            if pushed.existing:
                error = {"code": "duplicate", "message": f"A job with this unique key exists: {pushed.job.id}."}
                self.end(node, NodeState.SKIPPED, error=error)
                continue
            change_node(node, NodeState.STARTED)
            node.started_at = self.tx.now
            if node.job_id is not None:
                self.tx.execute(  # not that of the workflow of which this one is a fork
                    "UPDATE jobs SET superseded_by = :new WHERE id = :old AND node = :node",
                    {"new": job.id, "old": node.job_id, "node": node.id},
                )
            node.job_id = job.id
            self.graph.touch(node)
            self._foresee_claim(node)
            container = self.graph.nodes.get(node.parent or 0)
            if container is not None and container.kind == Kind.BATCH and node.position:
                workflow = self.graph.workflow_of(node)
                emit(self.tx, "workflow.callback_fired", workflow, callback=node.name, job_id=job.id)

    def _start_later(self, node: Node, why: Later) -> None:
        """Leave a node whose unique key another transaction holds to a later transaction."""
        if node.parent is None or node.state != NodeState.WAITING:
            raise Held(why.message)
        self.starts.defer(node.parent, node.position, waits=True)

    def _foresee_claim(self, node: Node) -> None:
        """Note what a claim in this transaction must know of a step, if everything is loaded."""
        if node.source is None or node.source in self.graph.nodes:
            source = None if node.source is None else self.graph.nodes[node.source]
            note_step(self.tx, node, source, self.graph.workflow_of(node))

    def _refuse(self, node: Node, refusal: OjsterError) -> None:
        """Fail a node if its job or its children cannot be created."""
        is_known = isinstance(refusal, Duplicate) and "existing_job_id" in refusal.details
        more = {"existing_job_id": refusal.details["existing_job_id"]} if is_known else {}
        self.fail(node, refusal.code, refusal.message, **more)


_UPSTREAM: Final = {"code": "dependency_failed", "message": "A predecessor step did not succeed."}
