"""Calls about flows, made to a server."""

from __future__ import annotations

from urllib.parse import quote

from msgspec import Raw

from ojster.client.connection import RemoteCapability
from ojster.core.ids import new_id
from ojster.workflows.flow import FlowMessage, FlowRecords, Turn
from ojster.workflows.flow_calls import FlowCalls
from ojster.workflows.flow_wire import FlowAnswer, MessageBody, SentAnswer, TurnBody


class RemoteFlows(RemoteCapability, FlowCalls):
    """Calls about flows."""

    async def records(self, job_id: str, after: int | None = None) -> FlowRecords:
        """Return all records of the flow that a job runs, or those whose ends have a number after this one."""
        path = f"/jobs/{quote(job_id, safe='')}/flow" + ("" if after is None else f"?after={after}")
        return (await self._connection.ask(FlowAnswer, "GET", path)).content()

    async def turn(self, item: Turn) -> FlowRecords:
        """Record what a flow has done, and suspend it if it waits; return what has ended for it."""
        path = f"/jobs/{quote(item.job_id, safe='')}/flow"
        return (await self._connection.ask(FlowAnswer, "POST", path, TurnBody.of(item))).content()

    async def send(self, message: FlowMessage) -> str:
        """Send a message to a flow. It is kept once, also if the request is made again."""
        key = message.idempotency_key or new_id()
        body = MessageBody(message.name, Raw(message.data), message.step, key)
        path = f"/workflows/{quote(message.workflow_id, safe='')}/messages"
        return (await self._connection.ask(SentAnswer, "POST", path, body)).workflow_id
