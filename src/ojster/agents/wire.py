"""The JSON of requests and answers about agents."""

from __future__ import annotations

from msgspec import Struct

from ojster.agents.attributes import AgentState
from ojster.core.calls import Arguments
from ojster.core.wire import Count, FromWorker, Identifier, Json, Tokens


class AgentUsageBody(FromWorker, Arguments):
    """Tokens that an agent's task has used, or, with ``is_estimate``, that its next call will use.

    ``estimated`` is the estimate that was charged before for the same call.
    """

    tokens: Tokens = 0
    estimated: Tokens = 0
    is_estimate: bool = False
    model: Identifier | None = None
    tool_result: dict[str, Json] | None = None
    worker_id: Identifier | None = None
    attempt: Count | None = None


class AgentUsageAnswer(Struct):
    """The tokens that an agent's job has used, its budget, and what is left of it."""

    job_id: str
    tokens_used: int
    token_budget: int | None
    tokens_left: int | None
    agent: AgentState

    def value(self) -> AgentState:
        return self.agent
