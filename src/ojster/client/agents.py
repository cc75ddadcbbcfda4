"""Calls of agents' tasks, made to a server."""

from __future__ import annotations

from urllib.parse import quote

import msgspec

from ojster.agents.attributes import AgentState
from ojster.agents.budgets import Account
from ojster.client.connection import RemoteCapability


class RemoteAgents(RemoteCapability):
    """Calls of agents' tasks."""

    async def account(self, item: Account) -> AgentState:
        """Record token use and tool results of an agent's job. Not retried, to charge no tokens twice."""
        body = msgspec.structs.asdict(item)
        path = f"/jobs/{quote(body.pop('job_id'), safe='')}/agent/usage"
        answer = await self._connection.call("POST", path, body, patience=0.0)
        return msgspec.json.decode(answer["agent"], type=AgentState)
