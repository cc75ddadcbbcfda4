"""Calls of agents' tasks, as a service, a server and its client have them.

Spec: ojs-ai-agents
"""

from __future__ import annotations

from ojster.agents.attributes import AgentState
from ojster.agents.budgets import Account
from ojster.agents.wire import AgentUsageAnswer, AgentUsageBody
from ojster.core.access import DEQUEUE
from ojster.core.calls import Calls, Handled


class AgentCalls(Calls):
    """Calls of agents' tasks."""

    @Handled(
        "POST",
        "/jobs/{id}/agent/usage",
        "account_agent",
        "Jobs",
        AgentUsageAnswer,
        body=AgentUsageBody,
        needs=DEQUEUE,
        once=True,
    )
    async def account(self, item: Account) -> AgentState:
        """Record token usage of an agent's job.

        Answers 429 if the remaining budget is too small for an estimated call.
        """
