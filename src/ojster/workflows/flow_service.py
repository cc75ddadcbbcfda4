"""Calls about flows: those of the workers that run them, and messages."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec import UNSET

from ojster.core.errors import InvalidRequest, NotFound, OjsterError, PayloadTooLarge
from ojster.core.parsing import check_bounds, read_value
from ojster.core.refusals import size_details
from ojster.core.tenant import NOBODY
from ojster.jobs.scope import CapabilityService, accepted
from ojster.workflows.broadcast import Broadcast
from ojster.workflows.flow import (
    MAX_MESSAGE_BYTES,
    MOST_DIGITS,
    RESERVED,
    FlowAddress,
    FlowMessage,
    FlowReading,
    FlowRecords,
    FlowUpdate,
    Turn,
    UpdateAddress,
    message_of,
)
from ojster.workflows.flow_calls import FlowCalls
from ojster.workflows.read import flow_view
from ojster.workflows.read.flow_info import MOST_MESSAGES, FlowInfo, MessageFilter, MessagePage
from ojster.workflows.run import broadcasts, flow_messages, flow_turns, streams
from ojster.workflows.stream import StreamAddress, StreamAppend, StreamPage
from ojster.workflows.topics import STREAMS, WORKFLOWS, stream_topic, workflow_end_topic, workflow_topic


class FlowService(CapabilityService, FlowCalls):
    """Calls about flows."""

    async def records(self, job_id: str, after: int | None = None) -> FlowRecords:
        """Return all records of the flow that a job runs, or those whose ends have a number after this one.

        Raises
        ------
        NotFound, InvalidRequest
            The job does not exist, or it runs no flow.
        """
        await self.scope.check_job(job_id)
        return await self.scope.look(flow_turns.find_records, FlowReading(job_id, after))

    async def turn(self, item: Turn) -> FlowRecords:
        """Record what a flow has done, and suspend it if it waits; return what has ended for it.

        Raises
        ------
        NotFound, Conflict
            The job does not exist, or the caller does not hold its lease.
        InvalidRequest, InvalidWorkflow
            The job runs no flow, or a step is malformed.
        Forbidden
            The caller could not enqueue a step itself.
        """
        if self.scope.access is not None or self.scope.is_limited:
            item = msgspec.structs.replace(item, access=self.scope.access)
            turns, (refusal,) = await self.scope.check_reports([item], self._refuse_steps)
            accepted(refusal)
            item = turns[0]
        return accepted(await self.database.run(flow_turns.take_turns, item, max(1, len(item.records))))

    async def admit(self, item: Turn) -> Turn:
        """Return the turn of a local step as it may be recorded in a transaction of the caller.

        Raises
        ------
        NotFound, Forbidden
            The caller may not report on the job.
        """
        turns, (refusal,) = await self.scope.check_reports([item])
        accepted(refusal)
        return turns[0]

    def _refuse_steps(self, item: Turn) -> OjsterError | None:
        """Return why the caller may not add the steps of a turn, or ``None``."""
        steps = [bytes(record.step) for record in item.records if record.step is not UNSET]
        return self.scope.refuse_contents(*steps) if steps else None

    async def send(self, message: FlowMessage) -> str:
        """Send a message to a flow, also before it waits for it or starts; return the id of the workflow.

        Raises
        ------
        InvalidRequest
            The name or the idempotency key is empty or too long, or the name begins with ``!``.
        NotFound, Conflict
            The workflow or the step does not exist, is no flow, or has ended; or too many messages wait.
        PayloadTooLarge
            The message is larger than 256 KiB.
        """
        check_bounds("message", message, FlowMessage)
        _check_name(message.name)
        await self._send(message)
        return message.workflow_id

    async def _send(self, message: FlowMessage) -> int:
        self.scope.need_all_queues("A workflow")
        _check_data(message.data)
        message = self.scope.of_tenant(msgspec.structs.replace(message, by=self.scope.who))
        return await self.scope.do(flow_messages.send, message)

    async def broadcast(self, item: Broadcast) -> int:
        """Send a message to all flows that wait for its name and key; return how many waited.

        It is kept for 7 days: flows that begin to wait later receive it if they look back that far.

        Raises
        ------
        InvalidRequest
            The name begins with ``!``.
        Conflict
            10,000 messages with this name and key are kept.
        PayloadTooLarge
            The message is larger than 256 KiB.
        """
        self.scope.need_all_queues("A workflow")
        _check_name(item.name)
        _check_data(item.data)
        tenant = self.scope.tenant or NOBODY
        self.scope.check_tenant(tenant)
        item = msgspec.structs.replace(item, by=self.scope.who, tenant=tenant)
        number = await self.scope.do(broadcasts.store, item)
        while True:
            delivery = await self.database.run(broadcasts.deliver, number)
            if not delivery.has_more:
                return delivery.flows

    async def update(
        self,
        workflow_id: str,
        name: str,
        args: list[Any],
        step: str | None = None,
        idempotency_key: str | None = None,
        *,
        wait_ms: int = 0,
    ) -> FlowUpdate:
        """Ask a flow for something; return the update, with the answer if it comes in ``wait_ms``.

        Raises
        ------
        NotFound, Conflict, PayloadTooLarge
            See ``send``.
        """
        message = FlowMessage(workflow_id, message_of(name), _encode(args), step, idempotency_key)
        return await self._answered(workflow_id, await self._send(message), wait_ms)

    async def find_update(self, workflow_id: str, number: str, wait_ms: int = 0) -> FlowUpdate:
        """Return an update, with the answer if it comes in ``wait_ms``.

        Raises
        ------
        NotFound
            There is no such update.
        """
        if not number.isdecimal() or len(number) > MOST_DIGITS:
            raise NotFound(f"The workflow {workflow_id} has no update {number[:40]!r}.", update_id=number)
        return await self._answered(workflow_id, int(number), wait_ms)

    async def _answered(self, workflow_id: str, number: int, wait_ms: int) -> FlowUpdate:
        address = self.scope.of_tenant(UpdateAddress(workflow_id, number))
        return await self.database.look_until(
            (workflow_topic(workflow_id), WORKFLOWS),
            lambda: self.scope.look(flow_messages.find_update, address),
            lambda update: update.state != "waiting",
            wait_ms / 1000,
        )

    async def show(self, workflow_id: str, step: str | None = None) -> FlowInfo:
        """Return how a flow is: where it waits, what it has published, and what it can be asked.

        Raises
        ------
        NotFound, Conflict
            The workflow or the step does not exist, or is no flow.
        """
        return await self.scope.look(flow_view.show_flow, self.scope.of_tenant(FlowAddress(workflow_id, step)))

    async def messages(self, chosen: MessageFilter) -> MessagePage:
        """Return a page of the messages and updates of a flow, the latest first.

        Raises
        ------
        NotFound, Conflict
            See ``show``.
        """
        limit = min(chosen.limit, MOST_MESSAGES)
        chosen = self.scope.of_tenant(msgspec.structs.replace(chosen, limit=limit))
        return await self.scope.look(flow_view.list_messages, chosen)

    async def published(self, workflow_id: str, step: str | None = None) -> Any:
        """Return what a flow has published last; ``None`` if it has published nothing.

        Raises
        ------
        NotFound, Conflict
            The workflow or the step does not exist, or is no flow.
        """
        address = self.scope.of_tenant(FlowAddress(workflow_id, step))
        value = await self.scope.look(flow_messages.find_published, address)
        return None if value is None else msgspec.json.decode(value)

    async def append(self, item: StreamAppend) -> int:
        """Append values to a stream of the workflow of a job that runs; return the number of the last one.

        Raises
        ------
        NotFound, Conflict
            The job does not exist, or the caller does not hold its lease.
        InvalidRequest
            The job belongs to no workflow; the stream is closed; or there are too many.
        PayloadTooLarge
            A value, or the stream, is too large.
        """
        items, (refusal,) = await self.scope.check_reports([item])
        accepted(refusal)
        return await self.scope.do(streams.append, items[0])

    async def read_stream(self, address: StreamAddress, wait_ms: int = 0) -> StreamPage:
        """Return the chunks of a stream after a position; wait up to ``wait_ms`` for one.

        Raises
        ------
        NotFound
            The workflow does not exist.
        """
        address = self.scope.of_tenant(address)
        id = address.workflow_id
        return await self.database.look_until(
            (stream_topic(id), workflow_end_topic(id), STREAMS, WORKFLOWS),
            lambda: self.scope.look(streams.find_chunks, address),
            lambda page: bool(page.chunks) or page.has_ended,
            wait_ms / 1000,
        )


def _check_name(name: str) -> None:
    if name.startswith(RESERVED):
        text = f"The names of messages do not begin with {RESERVED!r}: {name[:40]!r}."
        raise InvalidRequest(text, field="name")


def _check_data(data: bytes) -> None:
    read_value(data, "data")
    if len(data) > MAX_MESSAGE_BYTES:
        text = f"The message takes {len(data)} bytes; at most {MAX_MESSAGE_BYTES} are allowed."
        raise PayloadTooLarge(text, **size_details(MAX_MESSAGE_BYTES, len(data), "data"))


_encode: Final = msgspec.json.Encoder().encode
