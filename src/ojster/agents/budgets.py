"""How many tokens do agents use, and who delegates to whom? (ojs-ai-agents.md)

A call of a model is charged before it is made, as it is estimated, and put right when it is known what it took. What a
job uses, those have used that have delegated it, in the same transaction: no budget is exceeded by calls that run at
once, nor by a delegation. If an attempt dies in the middle of a call, its estimate stays charged.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from ojster.agents.attributes import (
    LARGEST_STATE,
    Agent,
    AgentState,
    DelegatedTooDeep,
    InvalidAgentParameter,
    TokenBudgetExceeded,
    ToolNotFound,
    decode_state,
    encode_state,
    tools_of,
)
from ojster.core.errors import OjsterError, PayloadTooLarge
from ojster.core.job import Job
from ojster.jobs.leases import refusal_of
from ojster.storage.transaction import Transaction


class Account(msgspec.Struct, frozen=True):
    """What an agent's task has used. Worker and attempt are checked if they are given.

    Parameters
    ----------
    tokens:
        How many tokens it has used, or, with ``is_estimate``, what a call will use that is about to be made: that is
        refused if there are too few left.
    estimated:
        As how many the same was charged before, as an estimate.
    model:
        Which model has answered.
    tool_result:
        What a tool has brought about (section 5).
    """

    job_id: str
    tokens: int = 0
    estimated: int = 0
    is_estimate: bool = False
    model: str | None = None
    tool_result: dict[str, Any] | None = None
    worker_id: str | None = None
    attempt: int | None = None


def account(tx: Transaction, items: Sequence[Account]) -> list[AgentState | OjsterError]:
    """Note what agents use; for each return how its task stands, or why it is refused."""
    results: list[AgentState | OjsterError] = []
    for item in items:
        job = tx.lock_jobs([item.job_id]).get(item.job_id)
        refusal = refusal_of(job, item)
        if refusal is not None:
            results.append(refusal)
            continue
        assert job is not None
        try:
            results.append(_account(tx, job, item))
        except OjsterError as error:
            results.append(error)
    return results


def _account(tx: Transaction, job: Job, item: Account) -> AgentState:
    state = state_of(job)
    if item.tool_result is not None:
        _note_tool(tx, job, state, item.tool_result)
    if item.model is not None:
        state.model_used = item.model
        state.llm_calls += 1
    if state.estimated_in != job.attempt:  # estimates of an attempt that has died stay charged
        state.estimated_in, state.estimated = job.attempt, 0
    if item.estimated > state.estimated:
        raise InvalidAgentParameter(
            f"{item.estimated} tokens were not charged as an estimate, but {state.estimated}.", field="estimated"
        )
    state.estimated += (item.tokens if item.is_estimate else 0) - item.estimated
    chain = [(job, state), *_delegators(tx, state)]
    if item.is_estimate:
        for one, its in chain:
            if its.left is not None and item.tokens > its.left:
                raise _exceeded(one, its, item.tokens)
    for one, its in chain:
        its.tokens_used += item.tokens - item.estimated
        one.agent = encode_state(its)
        if len(one.agent) > LARGEST_STATE:
            raise PayloadTooLarge(
                f"What the tools of the job {one.id} have brought about takes more than {LARGEST_STATE} bytes.",
                limit=LARGEST_STATE,
            )
    tx.execute_many("UPDATE jobs SET agent = ? WHERE seq = ?", [(one.agent, one.seq) for one, _ in chain])
    return state


def state_of(job: Job) -> AgentState:
    """Return what is kept of an agent's task."""
    return AgentState() if job.agent is None else decode_state(job.agent)


def _delegators(tx: Transaction, state: AgentState) -> Iterator[tuple[Job, AgentState]]:
    """Return who has delegated a task, and who has delegated to them, and so on, as far as they are still known."""
    while state.parent_id is not None:
        parent = tx.lock_jobs([state.parent_id]).get(state.parent_id)
        if parent is None:
            return
        state = state_of(parent)
        yield parent, state


def _exceeded(job: Job, state: AgentState, wanted: int) -> TokenBudgetExceeded:
    return TokenBudgetExceeded(
        f"Of the {state.budget} tokens of the job {job.id}, {state.tokens_used} are used; the call needs {wanted}.",
        ext_agent_tokens_used=state.tokens_used,
        ext_agent_token_budget=state.budget,
        ext_agent_model_used=state.model_used,
        ext_agent_llm_calls=state.llm_calls,
        ext_agent_tool_calls=len(state.tool_results),
        estimated_tokens=wanted,
        job_id=job.id,
    )


def _note_tool(tx: Transaction, job: Job, state: AgentState, result: dict[str, Any]) -> None:
    name = result.get("name")
    for member in ("tool_call_id", "name"):
        if not isinstance(result.get(member), str):
            raise InvalidAgentParameter(f"The result of a tool must have a '{member}'.", field=f"tool_result.{member}")
    error = result.get("error")
    if error is not None and not (
        isinstance(error, dict) and all(isinstance(error.get(part), str) for part in ("code", "message"))
    ):
        raise InvalidAgentParameter(
            "The 'error' of a tool must be null, or have a 'code' and a 'message'.", field="tool_result.error"
        )
    tx.envelopes([job])
    known = tools_of(job.envelope)
    if name not in known:
        shown = ", ".join(known) or "none"
        raise ToolNotFound(f"The job {job.id} has declared no tool {name!r:.80}; it has: {shown}.", tool=name)
    state.tool_results = [*state.tool_results, {"result": None, "error": None, **result}]


def begin_task(tx: Transaction, job: Job, agent: Agent) -> None:
    """Give a new job what the server keeps of an agent's task; it inherits from who delegates it (section 3.3).

    Raises
    ------
    InvalidAgentParameter
        Who is said to delegate it is not running.
    DelegatedTooDeep
        It would be deeper than is allowed.
    """
    state = AgentState(budget=agent.budget, checks_output=agent.checks_output, parent_id=agent.parent_id)
    if agent.parent_id is not None:
        parent = tx.lock_jobs([agent.parent_id]).get(agent.parent_id)
        if parent is None or parent.tenant != job.tenant or parent.state != "active":
            raise InvalidAgentParameter(
                f"The job {agent.parent_id:.80} is said to delegate this one, and is not active.",
                field="ext_agent_parent_id",
            )
        above = state_of(parent)
        state.depth = above.depth + 1
        state.max_depth = above.max_depth
        state.inherited = [] if agent.max_depth is not None else ["max_delegation_depth"]
        if agent.budget is None and above.left is not None:
            state.budget = above.left
            state.inherited.append("token_budget")
    state.max_depth = state.max_depth if agent.max_depth is None else agent.max_depth
    if state.depth and state.depth >= state.max_depth:
        raise DelegatedTooDeep(
            f"Delegation depth {state.depth} reaches the maximum of {state.max_depth}; the job is not created.",
            ext_agent_delegation_depth=state.depth,
            ext_agent_max_delegation_depth=state.max_depth,
            ext_agent_parent_id=agent.parent_id,
        )
    job.agent = encode_state(state)
