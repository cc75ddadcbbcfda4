"""Calls about queues, made to a server."""

from __future__ import annotations

from ojster.client.connection import RemoteCapability
from ojster.queues.answer_wire import QueueCreatedAnswer
from ojster.queues.calls import QueueCalls
from ojster.queues.queues import Queue
from ojster.queues.wire import QueueConfigBody


class RemoteQueues(RemoteCapability, QueueCalls):
    """Calls about queues."""

    async def create(self, name: str, body: QueueConfigBody | None = None) -> Queue:
        """Create a queue with its configuration."""
        wanted = {"name": name} if body is None else {"name": name, "config": body}
        return (await self._connection.ask(QueueCreatedAnswer, "POST", "/queues", wanted)).value()
