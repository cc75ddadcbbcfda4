"""Endpoint for agents' tasks.

Spec: ojs-ai-agents
"""

from __future__ import annotations

from typing import Final

from ojster.agents.calls import AgentCalls
from ojster.agents.wire import AgentUsageAnswer
from ojster.server.answer import Answer, encode
from ojster.server.declared import arguments_of, endpoints_of
from ojster.server.request import HttpRequest


async def _account(request: HttpRequest) -> Answer:
    state = await request.service.agents.account(**await arguments_of(request, AgentCalls.account))
    shown = AgentUsageAnswer(request.path["id"], state.tokens_used, state.budget, state.left, state)
    return Answer(encode(shown))


ROUTES: Final = endpoints_of(AgentCalls, lambda service: service.agents, {AgentCalls.account: _account})
