"""A flow with its records, as a file: what a test or a debugger needs to run its function again."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw, UnsetType

from ojster.client.file_transfer import restore, restore_json
from ojster.client.interface import Client
from ojster.core.errors import NotFound
from ojster.core.states import FINISHED
from ojster.files.file import may_refer, referred_file
from ojster.workflows.flow import CANCELLATION, FlowRecord, FlowRecords
from ojster.workflows.read.step_pages import StepFilter


class ExportedFlow(msgspec.Struct, frozen=True, kw_only=True):
    """A flow as it was when it was exported.

    Parameters
    ----------
    workflow_id, flow:
        The workflow, and the number of the flow in it.
    job_id, type, args, meta, state:
        The job that runs the function: its id, its type, which is the name of the flow, its arguments, which codecs may
        have encoded, its metadata and its state.
    exported_at:
        The time of the server, in microseconds since the epoch.
    records:
        What the flow has asked for, and how it has ended. Results that are kept as files are in it.
    waited_at:
        The time at which it left a worker last, to wait.
    """

    workflow_id: str
    flow: int
    job_id: str
    type: str
    args: list[Any]
    state: str
    exported_at: int
    records: list[FlowRecord]
    meta: dict[str, Any] = {}
    waited_at: int | None = None

    @property
    def has_ended(self) -> bool:
        """Whether the function has come to its end. One that was stopped, or has failed, may go on from its records."""
        was_cancelled = any(record.key == CANCELLATION for record in self.records)
        return self.state == "completed" or (self.state == "cancelled" and was_cancelled)

    @property
    def known(self) -> FlowRecords:
        """What a worker gets that runs the flow."""
        return FlowRecords(
            self.workflow_id, 0, self.exported_at, self.records, flow=self.flow, waited_at=self.waited_at
        )


async def export_flow(client: Client, workflow_id: str, step: str | None = None) -> ExportedFlow:
    """Return a flow with its records.

    Parameters
    ----------
    client:
        A client of the database or the server.
    workflow_id:
        The workflow.
    step:
        Path of the step that is the flow; ``None``: the workflow is the flow.

    Raises
    ------
    NotFound
        The workflow or the step does not exist, is no flow, or has not begun; or a large result is gone.
    """
    exported = await _without_results(client, workflow_id, step)
    records = [await _whole(client, record, exported.job_id) for record in exported.records]
    return msgspec.structs.replace(exported, records=records)


async def export_parts(client: Client, workflow_id: str, step: str | None = None) -> AsyncIterator[bytes]:
    """Yield the JSON of ``export_flow``, one large result at a time; raises as that does."""
    exported = await _without_results(client, workflow_id, step)
    for name in exported.__struct_fields__:
        if name != "records":
            yield b'%b"%b":%b' % (
                b"," if name != "workflow_id" else b"{",
                name.encode(),
                _encode(getattr(exported, name)),
            )
    yield b',"records":['
    for place, record in enumerate(exported.records):
        yield (b",\n" if place else b"\n") + _encode(await _whole(client, record, exported.job_id))
    yield b"\n]}\n"


async def _without_results(client: Client, workflow_id: str, step: str | None) -> ExportedFlow:
    """Return a flow with its records, in which large results are references."""
    job_id = await _job_of(client, workflow_id, step)
    job = await client.jobs.find(job_id)
    known = await client.flows.records(job_id)
    return ExportedFlow(
        workflow_id=known.workflow_id,
        flow=known.flow,
        job_id=job.id,
        type=job.type,
        args=await restore(client, job.args, job.id),
        meta=job.meta,
        state=job.state if job.state in FINISHED else "running",
        exported_at=known.now,
        records=known.records,
        waited_at=known.waited_at,
    )


_encode: Final = msgspec.json.Encoder().encode


async def _job_of(client: Client, workflow_id: str, step: str | None) -> str:
    """Return the id of the job that runs the function: the first of the flow."""
    job_ids: list[str | UnsetType | None] = []
    if step is not None:
        whole = await client.workflows.show(workflow_id)
        flows = [shown for shown in whole.walk() if (shown.path, shown.type) == (step, "flow")]
        job_ids = [inner.job_id for shown in flows for inner in shown.children]
    elif (await client.workflows.show(workflow_id, steps=False)).kind == "flow":
        job_ids = [shown.job_id for shown in (await client.workflows.steps(StepFilter(workflow_id, limit=2))).steps]
    for job_id in job_ids:
        if isinstance(job_id, str):
            return job_id
    what = f"The workflow {workflow_id}" if step is None else f"The step {step!r} of the workflow {workflow_id}"
    raise NotFound(f"{what} is no flow that has begun. Name the step that is the flow: --step.", step=step)


async def _whole(client: Client, record: FlowRecord, job_id: str) -> FlowRecord:
    result: Raw | UnsetType = record.result
    if result is not UNSET:
        result = Raw(await restore_json(client, bytes(result), job_id))
        if may_refer(bytes(result)) and _has_reference(msgspec.json.decode(result)):
            message = f"The result of {record.key!r} is a file that is gone, or too large to be loaded."
            raise NotFound(f"{message} Without it, the flow cannot be exported.", resource_type="file")
    return msgspec.structs.replace(record, result=result)


def _has_reference(value: Any) -> bool:
    """Return whether a JSON value has the reference to a result anywhere: results of several jobs are one value."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return referred_file(value) is not None or any(map(_has_reference, inner))
