"""Forks: workflows that run again from a step on, as new ones, with what came to an end before that step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Annotated, Final, NoReturn

import msgspec
from msgspec import Raw

from ojster.core.calls import SET_BY_SERVICE
from ojster.core.errors import Conflict, Duplicate, InvalidRequest, NotFound, OjsterError
from ojster.core.ids import is_workflow_id
from ojster.core.json_objects import stored_members
from ojster.jobs.encoding import with_honest_meta
from ojster.jobs.new_job import read_job
from ojster.jobs.schemas import check_args, registered, schema_uri
from ojster.storage.call import for_each, returns_refusal
from ojster.storage.transaction import Later, Transaction
from ojster.tenancy.quotas import check_tenant_limits
from ojster.workflows.flow import BEGIN, RECEIVING
from ojster.workflows.node import LEAVES, Kind, Node, NodeState, body_number
from ojster.workflows.plan.values import LaterJob
from ojster.workflows.run.advance import Advance
from ojster.workflows.run.copies import copy_of, copy_parts, copy_reviews
from ojster.workflows.run.creation import launch
from ojster.workflows.run.flow_files import keep_files
from ojster.workflows.run.graph import SPEC_COLUMNS, LoadedGraph
from ojster.workflows.run.reset import Reset, apply
from ojster.workflows.run.states import change_node
from ojster.workflows.run.steps import find_step, require, wrong_state
from ojster.workflows.stored_workflow import IS_VISIBLE, StoredWorkflow, emit, find_workflow, get_workflow
from ojster.workflows.targets import refuse_target
from ojster.workflows.topics import wake_followers

_encode: Final = msgspec.json.Encoder().encode

MAX_NAMES: Final = 20
"""Maximum number of steps that the refusal of an unknown step names."""

_ASKED_KINDS: Final = "'step', 'run', 'receive', 'receive_many', 'listen', 'listen_many'"
"""Kinds of the records of what a flow asks for, and from which a fork may begin, in SQL."""

ASKED: Final = f"FROM flow_records WHERE flow = :flow AND key NOT LIKE '!%' AND kind IN ({_ASKED_KINDS})"
"""FROM and WHERE for what a flow has asked for."""


class Fork(msgspec.Struct, frozen=True):
    """A request to run a workflow again from a step on, as a new workflow.

    Parameters
    ----------
    workflow_id:
        The workflow that has run.
    from_step:
        The step: of a flow the key of a record, of another workflow the path of a step; ``None``: from the start.
    args:
        New arguments of the step, or of the flow if no step is named: a JSON array; ``None``: those it had.
    result:
        The result of the step, which then does not run; any JSON value.
    id:
        The id of the new workflow; ``None``: a new one.
    by:
        Name of the caller's token, if it is known.
    tenant:
        The tenant that asks; ``None``: any.
    """

    workflow_id: str
    from_step: str | None = None
    args: bytes | None = None
    result: bytes | None = None
    id: str | None = None
    by: Annotated[str | None, SET_BY_SERVICE] = None
    tenant: Annotated[str | None, SET_BY_SERVICE] = None


@for_each
@returns_refusal
def fork_workflows(tx: Transaction, fork: Fork) -> str:
    """Run workflows again from a step on; for each, return the id of the new one or an error."""
    with tx.savepoint():
        # Nothing of it ends while it is copied: a step and what follows from its end belong together.
        return fork_now(tx, get_workflow(tx, fork.workflow_id, tenant=fork.tenant, lock=True), fork)


def fork_now(tx: Transaction, source: StoredWorkflow, fork: Fork) -> str:
    """Run a workflow that is locked again from a step on; return the id of the new one, or raise the refusal."""
    if fork.id is not None and not is_workflow_id(fork.id):
        raise InvalidRequest(f"The id {fork.id[:40]!r} is no id of a workflow. Leave it out.", field="id")
    if fork.id is not None and (known := find_workflow(tx, fork.id)) is not None:
        if (known.forked_from, known.forked_step) == (source.id, fork.from_step):
            return known.id  # the request came before, and its answer was lost
        raise Duplicate(
            f"A workflow with the id {fork.id} exists already. Use another id.", existing_workflow_id=known.id
        )
    origin = ForkOrigin(LoadedGraph(tx), source)
    start = origin.start_of(fork)
    fork = origin.with_args(fork)
    require(tx.refuse_growth())
    require(refuse_target(tx, source.tenant, source.target, source.target_key, source.locks))
    (seq,) = tx.new_numbers("workflows", 1)
    workflow = copy_of(tx, source, seq, fork.id, fork.from_step, fork.by)
    graph = LoadedGraph(tx)
    graph.add(workflow)
    graph.write_new_workflows()
    copy_parts(tx, source, workflow)
    by = workflow.root - source.root
    step = None if start.node is None else start.node + by
    kept = None if not origin.is_flow else _prune(tx, workflow, body_number(origin.main.id) + by, start, fork)
    reset = Reset(graph, workflow)
    if kept is None:
        reset.rerun(None if step is None else graph.nodes[step])
        if step is not None and fork.result is not None:
            done = graph.nodes[step]  # ended before anything starts, it is counted like those that are kept
            change_node(done, NodeState.COMPLETED)
            done.result, done.started_at, done.finished_at = fork.result, tx.now, tx.now
    else:
        reset.rerun_flow(kept, None if step is None or fork.args is None else graph.nodes[step])
    run = Advance(graph)
    nodes = apply(run, workflow, reset)
    copy_reviews(tx, source, workflow)
    changed = None
    if fork.args is not None:
        changed = body_number(origin.main.id) + by if step is None else step
        changed = body_number(changed) if graph.nodes[changed].kind == Kind.FLOW else changed
    jobs = [node for node in nodes if node.kind == Kind.JOB and not node.has_ended]
    _renew(graph, workflow, jobs, changed, fork.args)
    (full,) = check_tenant_limits(tx, [[LaterJob(workflow.tenant, None) for _ in jobs]])
    require(full)
    tx.execute("UPDATE workflows SET version = version + 1 WHERE seq = :seq", {"seq": source.seq})
    wake_followers(tx, source.id, has_ended=source.finished_at is not None)
    emit(
        tx,
        "workflow.created",
        workflow,
        total_steps=workflow.jobs,
        forked_from=source.id,
        from_step=fork.from_step,
    )
    launch(run, workflow)
    run.go()
    return workflow.id


def fork_once(tx: Transaction, source: StoredWorkflow, fork: Fork) -> str:
    """Run a workflow that is locked again from a step on, unless it has been; return the id, or raise the refusal.

    So a bulk operation that was interrupted can be repeated.
    """
    require(refuse_fork(tx, source, fork))
    return fork_now(tx, source, fork)


def refuse_fork(tx: Transaction, source: StoredWorkflow, fork: Fork) -> OjsterError | None:
    """Return why ``fork_once`` would refuse to run a workflow again; ``None``: it would not. It takes no locks."""
    query = f"SELECT id, forked_step FROM workflows WHERE forked_from = :id AND {IS_VISIBLE}"
    for id, step in tx.execute(query, {"id": source.id}):
        if step == fork.from_step:
            message = (
                f"The workflow {source.id} runs again from there as {id} already. Fork it by its id, or fork that."
            )
            return Conflict(message, workflow_id=source.id)
    try:
        ForkOrigin(LoadedGraph(tx), source).start_of(fork)
    except NotFound as refusal:  # of a step: one of a bulk operation would stand for a workflow that is gone
        return Conflict(refusal.message, workflow_id=source.id)
    except OjsterError as refusal:
        return refusal
    busy = refuse_target(tx, source.tenant, source.target, source.target_key, None)
    return None if isinstance(busy, Later) else busy


class ForkStart(msgspec.Struct, frozen=True):
    """Where a workflow begins again.

    Parameters
    ----------
    node:
        The step; ``None``: the start, or what a flow has done without the graph.
    kind, asked_at:
        Of a flow: the kind of the record, and when the flow asked for it, in its time; ``None``: nothing is kept.
    """

    node: int | None = None
    kind: str | None = None
    asked_at: int | None = None


class ForkOrigin:
    """The workflow that is to run again."""

    def __init__(self, graph: LoadedGraph, workflow: StoredWorkflow) -> None:
        graph.workflows[workflow.seq] = workflow
        self._graph = graph
        self._workflow = workflow
        self.main = graph.parts_of(workflow)[0]
        self.is_flow = self.main.kind == Kind.FLOW

    def start_of(self, fork: Fork) -> ForkStart:
        """Return where it begins again, or raise the refusal."""
        if fork.args is not None and fork.result is not None:
            raise InvalidRequest(
                "The fork has both 'args' and 'result'. A step with a result does not run.", field="args"
            )
        if fork.result is not None and fork.from_step is None:
            raise InvalidRequest("A 'result' is that of a step. Name it in 'from_step'.", field="result")
        if self.is_flow:
            return self._record_of(fork)
        if self._workflow.finished_at is None:
            raise wrong_state(
                self._workflow,
                f"The workflow {self._workflow.id} has not finished. Fork it when it has; cancel it first if it is "
                "replaced.",
            )
        if fork.from_step is None:
            if fork.args is not None:
                raise InvalidRequest("The 'args' are those of a step. Name it in 'from_step'.", field="args")
            return ForkStart()
        return ForkStart(self._step_of(fork, fork.from_step).id)

    def with_args(self, fork: Fork) -> Fork:
        """Return the fork with the arguments with which its flow began last, if it begins at its start."""
        if not self.is_flow or fork.from_step is not None or fork.args is not None:
            return fork
        rows = self._graph.tx.execute(
            "SELECT result FROM flow_records WHERE flow = :flow AND key = :key AND result IS NOT NULL",
            {"flow": body_number(self.main.id), "key": BEGIN},
        )
        return msgspec.structs.replace(fork, args=bytes(rows[0][0])) if rows else fork

    def _record_of(self, fork: Fork) -> ForkStart:
        """Return where a flow begins again: at the record with a key."""
        if fork.from_step is None:
            return ForkStart()
        tx, flow = self._graph.tx, body_number(self.main.id)
        rows = tx.execute(f"SELECT kind, asked_at, node {ASKED} AND key = :key", {"flow": flow, "key": fork.from_step})
        if not rows:
            keys = tx.execute(f"SELECT key {ASKED} ORDER BY asked_at, key LIMIT 1000", {"flow": flow})
            self._raise_unknown(fork.from_step, [key for (key,) in keys])
        ((kind, asked_at, node),) = rows
        if fork.args is not None:
            if kind != "run" or node is None:
                raise InvalidRequest(
                    f"{fork.from_step!r} is a {_CALLED.get(kind, kind)}: only the function of the flow has its 'args'. "
                    "Give a 'result', or change the function.",
                    field="args",
                )
            self._graph.load([node])
            self._check_args(self._graph.nodes[node], fork.from_step)
        if (
            kind in ("receive_many", "listen_many")
            and fork.result is not None
            and not fork.result.lstrip().startswith(b"[")
        ):
            raise InvalidRequest(
                f"{fork.from_step!r} receives many messages: its 'result' is an array.", field="result"
            )
        return ForkStart(node, kind, asked_at)

    def _step_of(self, fork: Fork, path: str) -> Node:
        """Return the step with a path, if it can run again."""
        graph = self._graph
        try:
            step = find_step(graph, self._workflow, path)
        except NotFound:
            nodes = graph.load_whole(self._workflow)
            self._raise_unknown(path, [place for node in nodes if (place := graph.place_of(node))])
        if step.was_left_out:
            raise self._refusal(
                f"The step {path!r:.200} never ran, because a step before it did not succeed. Name that."
            )
        for node, container in graph.lineage(step):
            if container.kind == Kind.FLOW:
                if node.position:
                    raise self._refusal(f"The step {path!r:.200} belongs to a flow. Name the flow.")
                step = container if node is step else step
            if node.position and container.kind == Kind.WORKFLOW:
                raise self._refusal(f"The step {path!r:.200} is in a branch, which runs when the steps have ended.")
            if node.position and container.kind == Kind.SAGA:
                raise self._refusal(f"The step {path!r:.200} undoes another. Name the step that it undoes.")
        if fork.args is not None:
            self._check_args(step, path)
        if fork.result is not None and step.kind not in LEAVES:
            raise InvalidRequest(
                f"The step {path!r:.200} is a {step.kind}, whose result comes from its steps. Name one of those.",
                field="result",
            )
        return step

    def _check_args(self, step: Node, shown: str) -> None:
        if step.kind not in (Kind.JOB, Kind.FLOW):
            raise InvalidRequest(
                f"The step {shown!r:.200} is a {step.kind}, which has no 'args' of its own. Name a job in it.",
                field="args",
            )

    def _refusal(self, message: str) -> Conflict:
        return Conflict(message, workflow_id=self._workflow.id)

    def _raise_unknown(self, name: str, known: Sequence[str]) -> NoReturn:
        near = get_close_matches(name, known, MAX_NAMES)
        there = _listed(near or known)
        raise NotFound(
            f"The workflow {self._workflow.id} has no step {name!r:.200}. "
            + (f"{'Similar ones' if near else 'It has'}: {there}." if there else "It has none."),
            resource_type="workflow_step",
            resource_id=name,
        )


_CALLED: Final = {"step": "local step"} | dict.fromkeys(RECEIVING, "message")


def _listed(names: Sequence[str]) -> str:
    more = "" if len(names) <= MAX_NAMES else f" and {len(names) - MAX_NAMES} more"
    return ", ".join(repr(name) for name in names[:MAX_NAMES]) + more


# The time of a flow grows with each end that it sees. So what it had seen when it asked for the step is what had ended
# until then, and nothing that has followed. The last end of all may not be noted as seen: it came after its request.
_SEEN_AT: Final = (
    "coalesce({0}.seen_at, CASE WHEN {0}.ended_at > {0}.asked_at THEN {0}.ended_at ELSE {0}.asked_at + 1 END)"
)

SEEN_AT: Final = _SEEN_AT.format("flow_records")
"""When a flow saw the end of what it had asked for, in its time, in SQL."""

_FORGET: Final = f"""
    DELETE FROM flow_records
    WHERE flow = :flow
        AND kind <> 'begin'
        AND key <> :key
        AND NOT (
            (kind = 'patch' AND asked_at <= :until)
            OR (
                kind IN ({_ASKED_KINDS}, 'cancel')
                AND ended_at IS NOT NULL
                AND {SEEN_AT} <= :until
            )
        )
        AND NOT (
            kind = 'answer'
            AND ended_at <= :until
            AND EXISTS (
                SELECT 1
                FROM flow_records AS r
                WHERE r.flow = :flow AND r.key = flow_records.name AND {_SEEN_AT.format("r")} <= :until
            )
        )
"""

_PUT_BACK: Final = """
    UPDATE flow_messages
    SET taken_by = NULL, answered_at = NULL, answer = NULL, error = NULL
    WHERE flow = :flow AND taken_by <> '!restarted' AND NOT EXISTS (
        SELECT 1
        FROM flow_records AS r
        WHERE r.flow = :flow AND r.key = flow_messages.taken_by AND r.ended_at IS NOT NULL
    )
"""

_PUT_BROADCASTS_BACK: Final = """
    UPDATE broadcast_receivers
    SET taken = -abs(taken)
    WHERE flow = :flow
        AND key NOT LIKE '!restarted%'
        AND key NOT IN (SELECT r.key FROM flow_records AS r WHERE r.flow = :flow AND r.ended_at IS NOT NULL)
"""

_ASK_AGAIN: Final = """
    UPDATE flow_messages
    SET answered_at = NULL, answer = NULL, error = NULL
    WHERE flow = :flow AND answered_at IS NOT NULL AND taken_by <> '!restarted' AND NOT EXISTS (
        SELECT 1
        FROM flow_records AS r
        WHERE r.flow = :flow AND r.kind = 'answer' AND r.name = flow_messages.taken_by
    )
"""


def _prune(tx: Transaction, workflow: StoredWorkflow, flow: int, start: ForkStart, fork: Fork) -> set[int]:
    """Forget what a flow had not seen when it asked for a step; return the steps of the graph that it keeps.

    Messages that it had not received wait for it again, also those that came later.
    """
    if start.asked_at is None:
        tx.execute("DELETE FROM flow_records WHERE flow = :flow", {"flow": flow})
    else:
        tx.execute(_FORGET, {"flow": flow, "until": start.asked_at, "key": fork.from_step})
        at = {"flow": flow, "key": fork.from_step}
        if fork.result is not None:
            tx.execute(
                """
                UPDATE flow_records
                SET ended_at = :now, place = NULL, seen_at = NULL, node = NULL, result = :result, error = NULL
                WHERE flow = :flow AND key = :key
                """,
                at | {"now": tx.now, "result": fork.result},
            )
        elif fork.args is not None:
            tx.execute(
                """
                UPDATE flow_records
                SET ended_at = NULL, place = NULL, seen_at = NULL, result = NULL, error = NULL
                WHERE flow = :flow AND key = :key
                """,
                at,
            )
        else:
            tx.execute("DELETE FROM flow_records WHERE flow = :flow AND key = :key", at)
    tx.execute(_PUT_BACK, {"flow": flow})
    tx.execute(_PUT_BROADCASTS_BACK, {"flow": flow})
    tx.execute(_ASK_AGAIN, {"flow": flow})
    keep_files(tx, workflow, flow)
    rows = tx.execute("SELECT node FROM flow_records WHERE flow = :flow AND node IS NOT NULL", {"flow": flow})
    return {node for (node,) in rows}


def _renew(
    graph: LoadedGraph, workflow: StoredWorkflow, jobs: Iterable[Node], changed: int | None, args: bytes | None
) -> None:
    """Write the id of the workflow into the requests of jobs that are to run, and new arguments into one of them."""
    tx, own_id = graph.tx, Raw(_encode(workflow.id))
    rows = []
    jobs = list(jobs)
    graph.load_specs(jobs)
    for node in jobs:
        spec = graph.specs[node.id]
        assert spec.request is not msgspec.UNSET
        members = stored_members(spec.request) | {"workflow_id": own_id}
        if node.id == changed and args is not None:
            members["args"] = Raw(args)
            spec.has_references = False
            job = read_job(dict(members), tx.now, largest=tx.settings.largest_job, tenant=workflow.tenant, is_step=True)
            check_args(registered(tx), job, members["args"], schema_uri(members))
            members = with_honest_meta(members)
        spec.request = Raw(_encode(members))
        rows.append((node.id, spec.to_json()))
    tx.update_rows("node_specs", SPEC_COLUMNS, rows)
