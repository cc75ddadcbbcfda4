"""Nodes as they are read: the state, times, result, error, path and names of a step are derived here alone.

The answers about one workflow, its status, lists of steps and pictures show what is said here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import UNSET, Raw, UnsetType

from ojster.core.states import FINISHED
from ojster.core.timestamps import format_optional, format_timestamp
from ojster.jobs.names import WAIT_TYPE
from ojster.storage.transaction import Transaction
from ojster.workflows.node import ENDED, MERGED, Kind, Node, NodeState, is_fallback, lineage, step_of
from ojster.workflows.plan.values import Spec, read_spec
from ojster.workflows.run.graph import NODE_COLUMNS, NODE_COLUMNS_OF_N
from ojster.workflows.run.results import own_error, own_result
from ojster.workflows.wait import WaitingFor

DISPLAY_STATES: Final[dict[str, str]] = {NodeState.READY.value: "held", NodeState.STARTED.value: "active"}


class JobColumns(msgspec.Struct, gc=False):
    """What is read of the job of a node. Times are microseconds since the epoch.

    Parameters
    ----------
    progress, result:
        Read only with ``SELECT_WITH_VALUES``, because they may be large.
    """

    type: str
    queue: str
    state: str
    attempt: int
    max_attempts: int
    enqueued_at: int | None
    started_at: int | None
    finished_at: int | None
    due_at: int | None
    worker_id: str | None
    suspension: str | None
    errors: bytes | None
    progress: bytes | None = None
    result: bytes | None = None


_FROM: Final = "FROM nodes AS n\n    LEFT JOIN jobs AS j ON j.id = n.job_id"
_NAMES: Final = [f"j.{name}" for name in JobColumns.__struct_fields__]

SELECT_NODES: Final = f"""
    SELECT {NODE_COLUMNS_OF_N}, {", ".join(_NAMES[:-2])}
    {_FROM}
"""
"""Reads the columns of ``Node``, and then those of its job."""

SELECT_WITH_VALUES: Final = f"""
    SELECT {NODE_COLUMNS_OF_N}, {", ".join(_NAMES)}
    {_FROM}
"""

_WIDTH: Final = len(Node.__struct_fields__)


def node_of(row: Sequence[Any]) -> Node:
    """Return the node in a row of ``SELECT_NODES`` or ``SELECT_WITH_VALUES``."""
    return Node(*row[:_WIDTH])


class NodeView(msgspec.Struct, gc=False):
    """A node as it is read.

    Parameters
    ----------
    job:
        Its job; ``None`` if it has none yet: that of a run before a retry is not shown.
    spec:
        What is stored of it.
    above:
        The state of the nearest container around it that has ended; ``None``: none has.
    path:
        Its path, as used in requests.
    id:
        The name by which other steps refer to it. A step with a fallback shares it with both its parts.
    display_name:
        Its name for people. That of a step with a fallback is the name of its first part, too.
    is_fallback:
        Whether it takes the place of a step that did not succeed.
    """

    node: Node
    job: JobColumns | None
    spec: Spec
    above: str | None
    path: str
    id: str | None
    display_name: str | None
    is_fallback: bool

    @property
    def state(self) -> str:
        """Its state. A node that has not ended takes the end of the container around it."""
        state = self.node.state
        if self.above is not None and state not in ENDED:
            return "skipped" if self.above == NodeState.SKIPPED else "cancelled"
        return DISPLAY_STATES.get(state, state)

    @property
    def type(self) -> str:
        """The job type, or the kind of container."""
        if self.job is not None:
            return self.job.type
        return job_type_of(self.spec) if self.node.kind == Kind.JOB else self.node.kind

    @property
    def job_id(self) -> str | None:
        """The id of its job."""
        return self.node.job_id if self.node.started_at is not None else None

    @property
    def times(self) -> tuple[str | None, str | None]:
        """When its job last became available, and when it was started after that.

        A wait, a gate and a container start when their turn comes. A job that is enqueued again keeps the start of its
        attempt before, from which nobody could tell how long it ran.
        """
        job = self.job
        if job is None:
            return None, None if self.node.kind == Kind.JOB else format_optional(self.node.started_at)
        if job.type == WAIT_TYPE:
            return None, format_optional(self.node.started_at)
        has_started = job.started_at is not None and (job.enqueued_at is None or job.enqueued_at <= job.started_at)
        return format_optional(job.enqueued_at), format_optional(job.started_at) if has_started else None

    @property
    def stop_requested_at(self) -> str | None:
        """When its job was ended while a worker ran it; from then until the step ends, the worker stops."""
        job, end = self.job, self.node.finished_at
        if job is None or job.finished_at is None or job.started_at is None:
            return None
        has_waited = self.is_stopping or (end is not None and job.finished_at < end)
        return format_timestamp(job.finished_at) if has_waited else None

    @property
    def completed_at(self) -> str | None:
        """When it ended."""
        return format_optional(self.node.finished_at)

    @property
    def result(self) -> Raw | UnsetType:
        """Its result, also one that came after it had ended otherwise."""
        result = own_result(self.node.state, self.node.result, None if self.job is None else self.job.result)
        return UNSET if result is None else Raw(result)

    @property
    def error(self) -> Raw | UnsetType:
        """Why it failed, or why its last attempt did."""
        error = own_error(self.node.state, self.node.error, None if self.job is None else self.job.errors)
        return UNSET if error is None else Raw(error)

    @property
    def progress(self) -> Raw | UnsetType:
        """The last progress of its job while that runs."""
        if self.job is None or self.job.progress is None or self.node.state != NodeState.STARTED:
            return UNSET
        return Raw(self.job.progress)

    @property
    def is_stopping(self) -> bool:
        """Whether its job was ended, and its worker has not confirmed that it has stopped."""
        return self.job is not None and self.node.state == NodeState.STARTED and self.job.state in FINISHED

    @property
    def waiting_for(self) -> WaitingFor | None:
        """What it waits for: an approval, or what its suspended job waits for."""
        if self.node.state == NodeState.BLOCKED:
            return "gate"
        if self.job is None or self.job.state != "pending" or self.job.suspension in (None, "flow"):
            return None
        if self.job.type != WAIT_TYPE:
            return "suspension"
        return "delay" if self.job.suspension == "delay" else "form"


class _Surroundings(NamedTuple):
    """What a container says of the nodes in it.

    ``place`` is its path, and ``end`` the state of the nearest container that has ended: itself or one around it.
    """

    place: str
    end: str | None
    is_fallback: bool
    hides_first_part: bool


class NodeViews:
    """Nodes of a workflow as they are read, with their jobs, specifications and places.

    Parameters
    ----------
    rows:
        Rows of ``SELECT_NODES`` or ``SELECT_WITH_VALUES``.
    """

    def __init__(self, rows: Iterable[Sequence[Any]]) -> None:
        self.nodes: dict[int, Node] = {}
        self._jobs: dict[int, Sequence[Any]] = {}
        self._specs: dict[int, Spec] = {}
        self._surroundings: dict[int, _Surroundings] = {}
        for row in rows:
            node = self.nodes[row[0]] = node_of(row)
            if node.started_at is not None and row[_WIDTH] is not None:
                self._jobs[node.id] = row

    def read_containers(self, tx: Transaction) -> None:
        """Read the containers around the nodes that are not among them."""
        while missing := {node.parent for node in self.nodes.values() if node.parent is not None} - self.nodes.keys():
            rows = tx.execute(f"SELECT {NODE_COLUMNS} FROM nodes WHERE id {tx.among}", (tx.integers(sorted(missing)),))
            self.nodes |= {row[0]: Node(*row) for row in rows}

    def add(self, nodes: Iterable[Node]) -> None:
        """Add nodes of which only the path is asked for; their containers have to be read then."""
        for node in nodes:
            self.nodes.setdefault(node.id, node)

    def spec_of(self, node: Node) -> Spec:
        """Return the specification of a node, which was read before."""
        return self._specs[node.id]

    def ended_around(self, node: Node) -> Node | None:
        """Return the nearest container around a node that has ended; ``None``: none has."""
        while node.parent is not None:
            node = self.nodes[node.parent]
            if node.has_ended:
                return node
        return None

    def read_specs(self, tx: Transaction, among: str, parameters: Sequence[Any]) -> None:
        """Read the specifications of the nodes whose ids fulfil a condition in SQL, which views need."""
        rows = tx.execute(f"SELECT id, spec FROM node_specs WHERE id {among}", parameters)
        self._specs |= {id: read_spec(spec) for id, spec in rows}

    def view(self, node: Node) -> NodeView:
        """Return how a node is read; its specification and its containers were read before."""
        row, spec = self._jobs.get(node.id), self._specs[node.id]
        job = None if row is None else JobColumns(*row[_WIDTH:])
        if node.parent is None:
            return NodeView(node, job, spec, None, "", None, spec.display_name, is_fallback=False)
        around = self._around(node.parent)
        path, id, name = self.path_of(node), node.name, spec.display_name
        if not around.is_fallback:
            return NodeView(node, job, spec, around.end, path, id, name, is_fallback=False)
        if name is None:
            names = (self._specs[container.id].display_name for container in self.named_by(node))
            name = next((display_name for display_name in names if display_name is not None), None)
        id, replaces = step_of(node, self.container_of).name, is_fallback(node, self.container_of)
        return NodeView(node, job, spec, around.end, path, id, name, is_fallback=replaces)

    def has_job(self, node: Node) -> bool:
        """Return whether a node has a job in this run of the workflow."""
        return node.id in self._jobs

    def container_of(self, node: Node) -> Node:
        """Return the container of a node."""
        return self.nodes[node.parent or 0]

    def path_of(self, node: Node) -> str:
        """Return the path of a node, as used in requests."""
        if node.parent is None:
            return ""
        around = self._around(node.parent)
        if around.hides_first_part and not node.position:
            return around.place
        name = node.name or str(node.position)
        return f"{around.place}.{name}" if around.place else name

    def _around(self, id: int) -> _Surroundings:
        """Return what a container says of the nodes in it, which are many."""
        if (known := self._surroundings.get(id)) is None:
            container = self.nodes[id]
            end: str | None = container.state
            if not container.has_ended:
                end = None if container.parent is None else self._around(container.parent).end
            known = self._surroundings[id] = _Surroundings(
                self.path_of(container), end, container.kind == Kind.FALLBACK, container.kind in MERGED
            )
        return known

    def step_of(self, node: Node) -> Node:
        """Return the step that a node is a part of: a step with a fallback, for both its parts."""
        return step_of(node, self.container_of)

    def named_by(self, node: Node) -> Iterator[Node]:
        """Yield the containers that may have the name of a node: its step with a fallback, and a saga made for that."""
        may_be_hidden = False
        while not node.position and node.parent is not None:
            around = self._around(node.parent)
            if not around.is_fallback and not (may_be_hidden and around.hides_first_part):
                return
            node, may_be_hidden = self.container_of(node), True
            yield node

    def is_visible(self, node: Node) -> bool:
        """Return whether neither a node nor a container around it is hidden in lists and pictures."""
        around = (container for _, container in lineage(node, self.container_of))
        return all(self._specs[inner.id].visible for inner in (node, *around))

    def is_first_part(self, node: Node) -> bool:
        """Return whether a node is shown as its container: the steps of a batch or saga, or of the workflow."""
        return not node.position and node.parent is not None and self._around(node.parent).hides_first_part


class _Typed(msgspec.Struct):
    type: str = ""


_decode_type: Final = msgspec.json.Decoder(_Typed).decode


def job_type_of(spec: Spec) -> str:
    """Return the type of the job of a step."""
    assert spec.request is not UNSET
    return _decode_type(spec.request).type
