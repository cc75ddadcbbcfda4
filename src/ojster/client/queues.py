"""Calls about queues, made to a server."""

from __future__ import annotations

from ojster.client.connection import RemoteCapability
from ojster.queues.answer_wire import QueueCreatedAnswer
from ojster.queues.calls import QueueCalls
from ojster.queues.queues import Queue


class RemoteQueues(RemoteCapability, QueueCalls):
    """Calls about queues."""

    async def create(self, name: str) -> Queue:
        """Create a queue."""
        return (await self._connection.ask(QueueCreatedAnswer, "POST", "/queues", {"name": name})).value()
