"""Pinning of flows that have not ended to another version of their code."""

from __future__ import annotations

import operator
from typing import Final

import msgspec

from ojster.core.errors import Conflict, NotFound, OjsterError
from ojster.core.job import Job
from ojster.core.job_table import JOB_COLUMNS
from ojster.core.json_objects import raw_list, stored_members
from ojster.core.states import FINISHED, JobState
from ojster.jobs.versions import version_number
from ojster.storage.transaction import Held, Transaction
from ojster.workflows.node import ENDED_STATES, EXPANDED, Kind, body_number
from ojster.workflows.plan.nested_definitions import HOLDERS
from ojster.workflows.plan.rules import CALLBACKS
from ojster.workflows.plan.values import Spec, read_spec
from ojster.workflows.run.advance import Advance
from ojster.workflows.run.steps import require, wrong_state
from ojster.workflows.stored_workflow import StoredWorkflow, emit

_encode: Final = msgspec.json.Encoder().encode


class Pin(msgspec.Struct, frozen=True):
    """Pins the flows with the name ``flow`` to ``version``; with ``from_version``, only those that are pinned to it."""

    flow: str = ""
    version: str = ""
    from_version: str | None = None


def refuse_pin(tx: Transaction, workflow: StoredWorkflow, pin: Pin) -> OjsterError | None:
    """Return why the flows of a workflow cannot be pinned; ``None`` if they can. ``NotFound``: it has none of them."""
    if workflow.finished_at is not None:
        return wrong_state(
            workflow,
            f"The workflow {workflow.id} is {workflow.state}, and keeps its version. Retry or fork it first.",
        )
    specs = _flows_to_pin(tx, workflow, pin)
    if not specs:
        pinned = "" if pin.from_version is None else f" of the version {pin.from_version}"
        message = f"The workflow {workflow.id} has no flow {pin.flow!r}{pinned} to pin to {pin.version}."
        return NotFound(message, resource_type="flow", resource_id=pin.flow)
    query = f"SELECT worker_id FROM jobs WHERE node {tx.among} AND state = 'active' LIMIT 1"
    if running := tx.execute(query, (tx.integers(list(specs)),)):
        return _runs(workflow, pin, running[0][0])
    return None


def pin_now(run: Advance, workflow: StoredWorkflow, pin: Pin) -> None:
    """Pin the flows of a workflow that is locked; raise the refusal."""
    tx = run.tx
    require(refuse_pin(tx, workflow, pin))
    specs = _flows_to_pin(tx, workflow, pin)
    tx.execute_many("UPDATE node_specs SET spec = ? WHERE id = ?", [(spec.to_json(), id) for id, spec in specs.items()])
    query = f"SELECT {JOB_COLUMNS} FROM jobs WHERE node {tx.among}"
    nodes = (tx.integers(list(specs)),)
    # Here the workflow is locked before the jobs, so locked ones are not waited for: their transactions may wait here.
    jobs = [Job(*row) for row in tx.execute(query + tx.skip_locked, nodes)]
    if len(jobs) < len(tx.execute(query, nodes)):
        raise Held(f"A flow of the workflow {workflow.id} is being changed.")
    jobs = [job for job in jobs if job.state not in FINISHED]
    tx.load_envelopes(jobs)
    for job in jobs:
        if job.state == JobState.ACTIVE:
            raise _runs(workflow, pin, job.worker_id)
        job.version, job.envelope = version_number(pin.version), _with_version(job.envelope, pin.version)
        tx.execute("UPDATE jobs SET version = :version WHERE seq = :seq", {"version": job.version, "seq": job.seq})
        tx.store_envelopes([job])
        if job.state == JobState.AVAILABLE:
            tx.offer(job)
    run.graph.change(workflow)
    emit(tx, "workflow.pinned", workflow, flow=pin.flow, version=pin.version)


def _flows_to_pin(tx: Transaction, workflow: StoredWorkflow, pin: Pin) -> dict[int, Spec]:
    """Return what the nodes of the flows to pin need to start, pinned, and the maps that create some later; by node."""
    kinds = ", ".join(f"'{kind}'" for kind in sorted({Kind.FLOW, *EXPANDED}))
    nodes = tx.execute(
        f"SELECT id, kind FROM nodes WHERE id BETWEEN ? AND ? AND kind IN ({kinds}) AND state NOT IN ({ENDED_STATES})",
        workflow.numbers,
    )
    ids = tx.integers([body_number(id) if kind == Kind.FLOW else id for id, kind in nodes])
    rows = tx.execute(f"SELECT id, spec FROM node_specs WHERE id {tx.among} ORDER BY id", (ids,))
    specs = {id: _pinned(read_spec(spec), pin) for id, spec in rows}
    return {id: spec for id, spec in specs.items() if spec is not None}


def _pinned(spec: Spec, pin: Pin) -> Spec | None:
    """Return what a node needs to start, with its flows pinned; ``None`` if it has none of those to pin."""
    if isinstance(spec.template, msgspec.Raw):
        template = _pinned_steps(spec.template, pin)
        return None if template is spec.template else msgspec.structs.replace(spec, template=template)
    if not isinstance(spec.request, msgspec.Raw) or not _is_meant(spec.request, pin):
        return None
    return msgspec.structs.replace(spec, request=msgspec.Raw(_with_version(bytes(spec.request), pin.version)))


def _pinned_steps(steps: msgspec.Raw, pin: Pin) -> msgspec.Raw:
    """Return a step of a request, or a list of them, with its flows pinned; the same object if there are none."""
    text = bytes(steps)
    if b'"flow"' not in text or text[:1] not in (b"[", b"{"):
        return steps
    if text[:1] == b"[":
        listed = raw_list(steps)
        pinned = [_pinned_steps(step, pin) for step in listed]
        return steps if all(map(operator.is_, listed, pinned)) else msgspec.Raw(_encode(pinned))
    members = stored_members(steps)
    inside = {name: members[name] for name in (*HOLDERS, *CALLBACKS) if name in members}
    changed = {name: new for name, raw in inside.items() if (new := _pinned_steps(raw, pin)) is not raw}
    if members.get("type") == msgspec.Raw(b'"flow"') and "job" in members and _is_meant(members["job"], pin):
        changed["job"] = msgspec.Raw(_with_version(bytes(members["job"]), pin.version))
    return msgspec.Raw(_encode(members | changed)) if changed else steps


def _is_meant(request: msgspec.Raw, pin: Pin) -> bool:
    job = msgspec.json.decode(request, type=_Request)
    pinned = None if job.version is None else version_number(job.version)
    wanted = pin.from_version is None or pinned == version_number(pin.from_version)
    return job.type == pin.flow and wanted and pinned != version_number(pin.version)


class _Request(msgspec.Struct):
    type: str
    version: str | None = None


def _with_version(request: bytes, version: str) -> bytes:
    return _encode(stored_members(request) | {"version": msgspec.Raw(_encode(version))})


def _runs(workflow: StoredWorkflow, pin: Pin, worker: str | None) -> Conflict:
    return wrong_state(
        workflow,
        f"The flow {pin.flow!r} of the workflow {workflow.id} runs on the worker {worker!r}. Pin it when it waits.",
    )
