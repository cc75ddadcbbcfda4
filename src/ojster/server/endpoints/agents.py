"""Endpoint for agents' tasks.

Spec: ojs-ai-agents
"""

from __future__ import annotations

from typing import Final

from ojster.agents.budgets import Account
from ojster.agents.wire import AGENT_USAGE, AgentUsageAnswer, AgentUsageBody
from ojster.core.access import DEQUEUE
from ojster.server.answer import Answer, encode
from ojster.server.request import HttpRequest
from ojster.server.route import BASE, Route


async def account_agent(request: HttpRequest) -> Answer:
    """Record token usage of an agent's job. Answers 429 if the remaining budget is too small for an estimated call."""
    body = await request.read(AGENT_USAGE)
    item = Account(
        request.path["id"],
        body.tokens,
        body.estimated,
        body.is_estimate,
        body.model,
        body.tool_result,
        body.worker_id,
        body.attempt,
    )
    state = await request.service.agents.account(item)
    return Answer(encode(AgentUsageAnswer(item.job_id, state.tokens_used, state.budget, state.left, state)))


ROUTES: Final = (
    Route(
        "POST",
        f"{BASE}/jobs/{{id}}/agent/usage",
        account_agent,
        "Jobs",
        AgentUsageBody,
        AgentUsageAnswer,
        needs=DEQUEUE,
    ),
)
