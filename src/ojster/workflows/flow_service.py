"""Calls about flows: those of the workers that run them, and messages."""

from __future__ import annotations

import msgspec

from ojster.core.errors import PayloadTooLarge
from ojster.core.parsing import read_value
from ojster.jobs.scope import CapabilityService, accepted
from ojster.workflows.flow import MAX_MESSAGE_BYTES, FlowMessage, FlowRecords, Turn
from ojster.workflows.run import flow_turns


class FlowService(CapabilityService):
    """Calls about flows."""

    async def records(self, job_id: str) -> FlowRecords:
        """Return all records of the flow that a job runs.

        Raises
        ------
        NotFound, InvalidRequest
            The job does not exist, or it runs no flow.
        """
        await self.scope.check_job(job_id)
        return await self.scope.look(flow_turns.find_records, job_id)

    async def turn(self, item: Turn) -> FlowRecords:
        """Record what a flow has done, and suspend it if it waits; return what has ended for it.

        Raises
        ------
        NotFound, Conflict
            The job does not exist, or the caller does not hold its lease.
        InvalidRequest, InvalidWorkflow
            The job runs no flow, or a step is malformed.
        """
        turns, (refusal,) = await self.scope.check_reports([item])
        accepted(refusal)
        return accepted(await self.database.run(flow_turns.take_turns, turns[0], max(1, len(item.records))))

    async def send(self, message: FlowMessage) -> str:
        """Send a message to a flow, also before it waits for it or starts; return the id of the workflow.

        Raises
        ------
        NotFound, Conflict
            The workflow or the step does not exist, is no flow, or has ended; or too many messages wait.
        PayloadTooLarge
            The message is larger than 256 KiB.
        """
        read_value(message.data, "data")
        if len(message.data) > MAX_MESSAGE_BYTES:
            text = f"The message takes {len(message.data)} bytes; at most {MAX_MESSAGE_BYTES} are allowed."
            raise PayloadTooLarge(text, limit=MAX_MESSAGE_BYTES)
        message = self.scope.of_tenant(msgspec.structs.replace(message, by=self.scope.who))
        return await self.scope.do(flow_turns.send, message)
