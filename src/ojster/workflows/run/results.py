"""Results of workflow steps, as arguments, conditions and handlers receive them.

The result of a container is built from its children: a chain has the result of its last step; a group, a batch and a
map have an object by index; a graph has an object, by name, of the steps that no other step depends on.
A container that did not succeed has the error of the first step that failed, and ``results``, an object of all its
children.

Spec: ojs-workflows 7
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import chain, groupby
from operator import itemgetter
from typing import Any, Final, assert_never

import msgspec

from ojster.core.job import Job, last_error
from ojster.core.job_flags import RESULT_PRUNED
from ojster.jobs.extension import Foresight
from ojster.storage.memory import Local
from ojster.storage.transaction import Query, Row, Transaction
from ojster.workflows.node import LEAVES, PARALLEL, TWO_PART, Followed, Inputs, Kind, NodeState
from ojster.workflows.run.claimed_steps import STARTED, ClaimedStep
from ojster.workflows.run.graph import LoadedGraph
from ojster.workflows.stored_workflow import StoredWorkflow

_decode: Final = msgspec.json.decode
_encode: Final = msgspec.json.Encoder().encode

# Subqueries, because the planner could execute a join in the other direction, as a scan of all jobs. A result that was
# deleted is empty, which no JSON is.
_COLUMNS: Final = f"""
    n.id, n.parent, n.position, n.kind, n.name, n.state, n.followed, n.total, n.result, n.error,
    (SELECT CASE WHEN j.flags & {RESULT_PRUNED} = 0 THEN j.result ELSE '' END FROM jobs AS j WHERE j.id = n.job_id),
    CASE WHEN n.state <> 'completed' THEN (SELECT j.errors FROM jobs AS j WHERE j.id = n.job_id) END
"""


class NodeOutcome(msgspec.Struct, gc=False):
    """State and result of a node. ``result`` and ``error`` are JSON.

    ``is_part`` marks the jobs of a batch that has completed: they make up its result, however they ended. ``results``
    are those of the children of a container that did not succeed. ``is_deleted``: the result, or a part of it, was
    deleted after the ``result_ttl`` of its job, before the workflow was retried or forked.
    """

    id: int
    parent: int | None
    position: int
    kind: str
    name: str | None
    state: str
    followed: int
    total: int
    result: bytes | None
    error: bytes | None
    is_part: bool = False
    results: bytes | None = None
    is_deleted: bool = False

    @property
    def key(self) -> str:
        """Name of the node among its siblings, or else its index."""
        return self.name or str(self.position)

    @property
    def succeeded_late(self) -> bool:
        """Whether it is a job that was stopped, and whose worker then reported that it had succeeded."""
        return self.kind == Kind.JOB and self.result is not None and self.state in _FAILED

    def shown(self) -> bytes:
        """Return the JSON that later steps receive: the result, or state and error if the node did not succeed."""
        match self.state:
            case NodeState.COMPLETED:
                return self.result or b"null"
            case NodeState.FAILED | NodeState.CANCELLED | NodeState.COMPENSATED:
                results = b"" if self.results is None else b',"results":' + self.results
                return b'{"state":"%b","error":%b%b}' % (self.state.encode(), self.error or b"null", results)
            case _:
                return b"null"


def outcomes(tx: Transaction, ids: Collection[int]) -> dict[int, NodeOutcome]:
    """Return the stored outcomes of nodes, by node id."""
    if not ids:
        return {}
    rows = tx.execute(f"SELECT {_COLUMNS} FROM nodes AS n WHERE n.id {tx.among}", (tx.integers(ids),))
    return _composed(tx, [_outcome(row) for row in rows])


def own_result(state: str, result: bytes | None, of_job: bytes | None) -> bytes | None:
    """Return the result of a node; ``of_job``: that of its job, which may be of a run before a retry."""
    return of_job if result is None and state == NodeState.COMPLETED else result


def own_error(state: str, error: bytes | None, of_job: bytes | None) -> bytes | None:
    """Return why a node failed, or why its last attempt did; ``of_job``: the errors of its job."""
    if error is not None or of_job is None or state == NodeState.COMPLETED:
        return error
    return bytes(last_error(of_job))


def _outcome(row: Sequence[Any]) -> NodeOutcome:
    outcome = NodeOutcome(*row[:10])
    outcome.result = own_result(outcome.state, outcome.result, row[10])
    if outcome.result is not None and not outcome.result:
        outcome.result, outcome.is_deleted = None, True
    outcome.error = own_error(outcome.state, outcome.error, row[11])
    return outcome


def _counts(container: NodeOutcome, child: NodeOutcome) -> bool:
    """Return whether the result of a container is built from this child's, among others."""
    match container.kind:
        case Kind.FLOW:
            return child.position == 0
        case Kind.BATCH | Kind.SAGA:
            return child.position == 0 or _has_failed(container)
        case _ if _has_failed(container):
            return True
        case Kind.CHAIN | Kind.DEFINITION:
            return child.position == container.total - 1
        case Kind.GRAPH:
            return not child.followed & Followed.HERE
        case _:
            return True


def _has_failed(container: NodeOutcome) -> bool:
    return container.state in _FAILED and not container.is_part


_FAILED: Final = (NodeState.FAILED, NodeState.CANCELLED, NodeState.COMPENSATED)


def _composed(tx: Transaction, outcomes: list[NodeOutcome]) -> dict[int, NodeOutcome]:
    """Set the results of ended containers, level by level; return all outcomes by node id."""
    everything = {outcome.id: outcome for outcome in outcomes}
    levels: list[list[NodeOutcome]] = []
    level = [outcome for outcome in outcomes if _is_composed(outcome)]
    if not level:
        return everything
    while level:
        levels.append(level)
        rows = tx.execute(
            f"SELECT {_COLUMNS} FROM nodes AS n WHERE n.parent {tx.among} ORDER BY n.parent, n.position",
            (tx.integers([container.id for container in level]),),
        )
        members = [member for member in map(_outcome, rows) if _counts(everything[member.parent or 0], member)]
        for member in members:
            container = everything[member.parent or 0]
            member.is_part = container.kind == Kind.BATCH or (container.kind == Kind.SAGA and container.is_part)
        everything |= {member.id: member for member in members if member.id not in everything}
        level = [member for member in members if _is_composed(member)]
    children: dict[int, list[NodeOutcome]] = defaultdict(list)
    for member in everything.values():
        if member.parent is not None:
            children[member.parent].append(member)
    for level in reversed(levels):
        for member in level:
            target = everything[member.id]
            inside = sorted(children[member.id], key=lambda child: child.position)
            target.is_deleted = any(child.is_deleted for child in inside)
            if target.state in _FAILED:
                target.error = target.error or _error_of(inside)
            if _has_failed(target):
                target.results = _results_of(target, inside)
            else:
                target.result = _result_of(target, inside)
    return everything


def _error_of(children: Sequence[NodeOutcome]) -> bytes | None:
    """Return the error of the first child that failed, or else of the first that was cancelled."""
    for states in ((NodeState.FAILED, NodeState.COMPENSATED), (NodeState.CANCELLED,)):
        for child in children:
            if child.state in states and child.error is not None:
                return child.error
    return None


def _results_of(container: NodeOutcome, children: Sequence[NodeOutcome]) -> bytes | None:
    if container.kind in (Kind.BATCH, Kind.SAGA):
        main = children[0]
        return main.result if main.results is None else main.results
    return object_of(children, by_index=container.kind in PARALLEL)


def _is_composed(outcome: NodeOutcome) -> bool:
    return outcome.kind not in LEAVES and (outcome.state in (NodeState.COMPLETED, *_FAILED) or outcome.is_part)


def _result_of(container: NodeOutcome, children: Sequence[NodeOutcome]) -> bytes:
    match Kind(container.kind):
        case Kind.GRAPH:
            return object_of(child for child in children if not child.followed & Followed.HERE)
        case Kind.GROUP | Kind.MAP:
            return object_of(children, by_index=True)
        case Kind.CHAIN | Kind.DEFINITION:
            return children[-1].shown() if children else b"null"
        case Kind.FALLBACK:
            ran = [child for child in children if child.state == NodeState.COMPLETED]
            return ran[-1].shown() if ran else b"null"
        case Kind.BATCH | Kind.SAGA | Kind.FLOW | Kind.WORKFLOW:
            first = children[0]
            return (first.result or b"null") if first.is_part else first.shown()
        case Kind.JOB | Kind.GATE:
            raise AssertionError(f"A {container.kind} has a result of its own.")
        case kind:
            assert_never(kind)


def object_of(members: Iterable[NodeOutcome], *, by_index: bool = False) -> bytes:
    """Return the outputs of members as a JSON object, by name or by index."""
    return b"{%b}" % b",".join(
        [b"%b:%b" % (_encode(str(member.position) if by_index else member.key), member.shown()) for member in members]
    )


# Failures of workflows


def unhandled_failures(root: str, condition: str = "kind = 'job' OR has_error") -> str:
    """Return a query for the ids of the nodes whose own failure made their workflow fail, the first one first.

    A failure inside a container that succeeded all the same, or that may fail, is left out: the callbacks of a batch, a
    fallback or ``allow_failure`` have handled it.

    Parameters
    ----------
    root:
        SQL expression for the id of the workflow's root.
    condition:
        SQL condition for the nodes, by default for jobs, and for others that failed by themselves.
    """
    return f"""
        SELECT id
        FROM (
            WITH RECURSIVE unhandled (id, kind, state, has_error, finished_at) AS (
                SELECT id, kind, state, error IS NOT NULL, finished_at
                FROM nodes
                WHERE id = {root}
                UNION ALL
                SELECT n.id, n.kind, n.state, n.error IS NOT NULL, n.finished_at
                FROM nodes AS n
                JOIN unhandled AS c ON n.parent = c.id
                WHERE n.tolerated = 0 AND n.state NOT IN ('completed', 'skipped')
            )
            SELECT id, kind, state, has_error, finished_at
            FROM unhandled
        ) AS unhandled
        WHERE state = 'failed' AND ({condition})
        ORDER BY finished_at, id
    """


_FIRST_FAILURE: Final = f"""
    SELECT
        CASE WHEN c.kind = 'fallback' THEN c.name ELSE n.name END,
        CASE WHEN c.kind = 'fallback' THEN c.position ELSE n.position END,
        n.job_id, n.error, j.type, j.errors
    FROM nodes AS n
    JOIN nodes AS c ON c.id = n.parent
    LEFT JOIN jobs AS j ON j.id = n.job_id
    WHERE n.id = ({unhandled_failures(":root", "kind = 'job'")} LIMIT 1)
"""
"""Selects the job step that failed first. A step with a fallback, and the fallback, have the id of both together."""


def why_failed(graph: LoadedGraph, workflow: StoredWorkflow) -> dict[str, Any]:
    """Return the cause of a failed workflow, for its event."""
    if workflow.error is not None:
        return {"error": _decode(workflow.error)}
    graph.write_nodes()
    rows = graph.tx.execute(_FIRST_FAILURE, {"root": workflow.root})
    for name, position, job_id, error, type, errors in rows:
        return {
            "failed_step_id": name or str(position),
            "failed_step_type": type,
            "failed_job_id": job_id,
            "error": (reason := own_error(NodeState.FAILED, error, errors)) and _decode(reason),
        }
    return {}


# Inputs of jobs


def add_parent_results(tx: Transaction, jobs: Sequence[Job], steps: Sequence[ClaimedStep]) -> None:
    """Add to claimed jobs of workflows the results that their steps request (``parent_results``)."""
    sources = {step.node: step.source for step in steps if step.source is not None}
    wishes = {step.source: step.inputs for step in steps if step.source is not None and step.inputs is not None}
    if steps:
        _HABIT(tx).is_immediate = tx.known[STARTED].keys() >= {step.node for step in steps}
    inputs = _inputs_of(tx, wishes) if wishes else {}
    for job in jobs:
        if job.node is not None:
            job.parent_results = inputs.get(sources.get(job.node, -1), b"[]")


MAX_STEPS_BEFORE: Final = 100
"""Number of earlier steps of a chain whose results a step receives, so that a long chain costs the same at its end."""

_STEPS_BEFORE: Final = {
    Inputs.BEFORE: f"""
        JOIN nodes AS n ON n.parent = s.parent
            AND n.position < s.position
            AND n.position >= s.position - {MAX_STEPS_BEFORE}
    """,
    Inputs.NEEDED: (
        "JOIN node_edges AS e ON e.target = s.id JOIN nodes AS n ON n.id = e.source AND n.parent + 0 = s.parent"
    ),
}
"""Joins that find the nodes ``n`` with the results that a node ``s`` requests.

``+ 0`` keeps the planner from reading all children of the container by their parent.
"""


# Narrow, because the step of a long chain receives a hundred of them. Others than completed leaves have errors, or are
# composed: they are read with the rest of their columns.
_PLAIN_COLUMNS: Final = f"""
    n.id,
    n.position,
    n.name,
    n.state = '{NodeState.COMPLETED}' AND n.kind IN ({", ".join(f"'{kind}'" for kind in sorted(LEAVES))}),
    COALESCE(n.result, (SELECT j.result FROM jobs AS j WHERE j.id = n.job_id))
"""


def _queries_before(tx: Transaction, kinds: Mapping[int, Inputs]) -> list[Query]:
    """Return the queries of the results that sources request, as far as one query finds them."""
    ids = tx.integers(kinds)
    return [
        (
            f"""
            SELECT s.id, {_PLAIN_COLUMNS}
            FROM nodes AS s {before}
            WHERE s.id {tx.among} AND s.inputs = '{wish}'
            ORDER BY s.id, n.position
            """,
            (ids,),
        )
        for wish, before in _STEPS_BEFORE.items()
        if wish in kinds.values()
    ]


class _Habit(msgspec.Struct):
    """What the last claim of steps in this process has shown."""

    is_immediate: bool = False
    """Whether all of its steps had started in its transaction."""


_HABIT: Final = Local[_Habit](_Habit)

_FORESEEN: Final = "results that were read ahead"
"""What is known in a transaction, by source."""


def foresee_inputs(tx: Transaction, limit: int) -> Foresight | None:
    """Return how to read ahead what the steps receive that have started in this transaction.

    It is read in vain if a claim gets other jobs. So it is read only for as many as the claim can get, and where the
    last claim got such steps. What a step receives no longer changes when it has started.
    """
    kinds: dict[int, Inputs] = {}
    if _HABIT(tx).is_immediate:
        kinds = {source: inputs for source, inputs in tx.known[STARTED].values() if inputs in _STEPS_BEFORE}
    if not 0 < len(kinds) <= limit:
        return None

    def keep(rows: Sequence[list[Row]]) -> None:
        tx.known[_FORESEEN] = dict.fromkeys(kinds, ()) | _by_source(chain.from_iterable(rows))

    return Foresight(_queries_before(tx, kinds), keep)


def _by_source(rows: Iterable[Row]) -> dict[int, tuple[Row, ...]]:
    """Return rows of ``_queries_before``, by their source."""
    return {source: tuple(some) for source, some in groupby(rows, key=itemgetter(0))}


def _inputs_of(tx: Transaction, kinds: Mapping[int, Inputs]) -> dict[int, bytes]:
    """Return the inputs from each source, as JSON; ``kinds``: what each of them requests.

    They are an object by name, or an array by index, or an object by index if the first ones are left out.
    """
    before: dict[int, tuple[Row, ...]] = tx.known.pop(_FORESEEN, {})
    for query in _queries_before(tx, {source: kinds[source] for source in kinds if source not in before}):
        before |= _by_source(tx.execute(*query))
    inputs: dict[int, bytes] = {}
    members_of: dict[int, list[NodeOutcome]] = {}
    by_name = {source for source, kind in kinds.items() if kind == Inputs.NEEDED}
    others: dict[int, list[int]] = {}
    for source, kind in kinds.items():
        if kind == Inputs.MEMBERS:
            container, members_of[source] = _members_before(tx, source)
            if container == Kind.GRAPH:
                by_name.add(source)
        elif (plain := _plain_inputs(kind, before.get(source, ()))) is not None:
            inputs[source] = plain
        else:
            others[source] = [row[1] for row in before[source]]
    known = outcomes(tx, {node for nodes in others.values() for node in nodes})
    composed = _composed(tx, [member for members in members_of.values() for member in members])
    shown = {source: [known[node] for node in nodes] for source, nodes in others.items()}
    shown |= {source: [composed[member.id] for member in members] for source, members in members_of.items()}
    for source, members in shown.items():
        if source in by_name:
            inputs[source] = object_of(members)
        elif kinds[source] == Inputs.BEFORE and members and members[0].position:
            inputs[source] = object_of(members, by_index=True)
        else:
            inputs[source] = b"[%b]" % b",".join([member.shown() for member in members])
    return inputs


def _plain_inputs(kind: Inputs, rows: Sequence[Row]) -> bytes | None:
    """Return the inputs that rows of ``_queries_before`` make if all are completed jobs or gates; else ``None``.

    What this does is specified by ``NodeOutcome.shown`` and the way through ``outcomes``.
    """
    is_named = kind == Inputs.NEEDED
    is_object = is_named or bool(rows and rows[0][2])
    parts = [b"{" if is_object else b"["]  # results may be large: each is copied once
    for _, _, position, name, is_plain, result in rows:
        if not is_plain:
            return None
        if is_object:
            parts.append(b"%b:" % _encode(name or str(position)) if is_named else b'"%d":' % position)
        parts.append(result or b"null")
        parts.append(b",")
    if rows:
        parts.pop()
    parts.append(b"}" if is_object else b"]")
    return b"".join(parts)


def _members_before(tx: Transaction, source: int) -> tuple[str, list[NodeOutcome]]:
    """Return the kind of the container that precedes a node, and the members of that container."""
    # "+ 0": see _STEPS_BEFORE
    ((id, kind),) = tx.execute(
        """
        SELECT n.id, n.kind
        FROM node_edges AS e
        JOIN nodes AS s ON s.id = e.target
        JOIN nodes AS n ON n.id = e.source AND n.parent + 0 = s.parent
        WHERE e.target = ?
        """,
        (source,),
    )
    while kind in TWO_PART:
        ((id, kind),) = tx.execute("SELECT id, kind FROM nodes WHERE parent = ? AND position = 0", (id,))
    rows = tx.execute(f"SELECT {_COLUMNS} FROM nodes AS n WHERE n.parent = ? ORDER BY n.position", (id,))
    return kind, [_outcome(row) for row in rows]
