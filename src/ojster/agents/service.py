"""Calls of agents."""

from __future__ import annotations

from ojster.agents import budgets
from ojster.agents.attributes import AgentState
from ojster.agents.budgets import Account
from ojster.agents.calls import AgentCalls
from ojster.jobs.scope import CapabilityService


class AgentService(CapabilityService, AgentCalls):
    """Calls of agents' tasks."""

    async def account(self, item: Account) -> AgentState:
        """Charge tokens, or the estimate for a call, to an agent job; return its new state.

        Raises
        ------
        NotFound, Conflict
            The job does not exist, or the caller does not hold its lease.
        TokenBudgetExceeded
            The estimate is higher than the number of tokens left.
        ToolNotFound
            The job does not declare the tool.

        Spec: ojs-ai-agents 3
        """
        await self.scope.check_job(item.job_id)
        return await self.scope.do(budgets.account, self.scope.with_worker(item))
