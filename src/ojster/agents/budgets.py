"""Token accounting and delegation of agent jobs.

A model call is charged with an estimate before it runs, and corrected to the actual use afterwards. The tokens of a job
are also charged to every job above it in the delegation chain, in the same transaction, so neither concurrent calls nor
delegation can get around a budget. If an attempt dies during a call, its estimate stays charged.

Spec: ojs-ai-agents
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from ojster.agents.attributes import (
    MAX_AGENT_STATE_BYTES,
    Agent,
    AgentState,
    DelegationTooDeep,
    InvalidAgentParameter,
    TokenBudgetExceeded,
    ToolNotFound,
    decode_state,
    encode_state,
    tools_of,
)
from ojster.core.errors import PayloadTooLarge
from ojster.core.job import Job
from ojster.jobs.leases import refusal_of
from ojster.storage.call import for_each, returns_refusal
from ojster.storage.transaction import Transaction


class Account(msgspec.Struct, frozen=True):
    """Tokens or a tool result to record for an agent job. Worker and attempt are checked if given.

    Parameters
    ----------
    tokens:
        Tokens used; with ``is_estimate``, the estimate for the next call, which is refused if fewer tokens are left.
    estimated:
        Tokens charged before as the estimate for the same call.
    model:
        Name of the model that answered.
    tool_result:
        Result of a tool call.

    Spec: ojs-ai-agents 5
    """

    job_id: str
    tokens: int = 0
    estimated: int = 0
    is_estimate: bool = False
    model: str | None = None
    tool_result: dict[str, Any] | None = None
    worker_id: str | None = None
    attempt: int | None = None


@for_each
@returns_refusal
def account(tx: Transaction, item: Account) -> AgentState:
    """Record the token use and tool results of agent jobs; return each new state, or its refusal."""
    job = tx.lock_jobs([item.job_id]).get(item.job_id)
    refusal = refusal_of(job, item)
    if refusal is not None:
        raise refusal
    assert job is not None
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
            f"'estimated' is {item.estimated}, but only {state.estimated} tokens are charged as an estimate. "
            "Send at most that number.",
            field="estimated",
        )
    state.estimated += (item.tokens if item.is_estimate else 0) - item.estimated
    chain = [(job, state), *_delegators(tx, state)]
    if item.is_estimate:
        for ancestor, its in chain:
            if its.left is not None and item.tokens > its.left:
                raise _exceeded(ancestor, its, item.tokens)
    for ancestor, its in chain:
        its.tokens_used += item.tokens - item.estimated
        ancestor.agent = encode_state(its)
        if len(ancestor.agent) > MAX_AGENT_STATE_BYTES:
            raise PayloadTooLarge(
                f"The agent state of job {ancestor.id}, with its tool results, exceeds {MAX_AGENT_STATE_BYTES} bytes. "
                "Record smaller tool results.",
                limit=MAX_AGENT_STATE_BYTES,
            )
    tx.execute_many(
        "UPDATE jobs SET agent = ? WHERE seq = ?", [(ancestor.agent, ancestor.seq) for ancestor, _ in chain]
    )
    return state


def state_of(job: Job) -> AgentState:
    """Return the stored agent state of a job, or an empty one."""
    return AgentState() if job.agent is None else decode_state(job.agent)


def _delegators(tx: Transaction, state: AgentState) -> Iterator[tuple[Job, AgentState]]:
    """Yield the jobs above a task in the delegation chain, nearest first, until one no longer exists."""
    while state.parent_id is not None:
        parent = tx.lock_jobs([state.parent_id]).get(state.parent_id)
        if parent is None:
            return
        state = state_of(parent)
        yield parent, state


def _exceeded(job: Job, state: AgentState, wanted: int) -> TokenBudgetExceeded:
    return TokenBudgetExceeded(
        f"The token budget of job {job.id} is too small for the call: {state.tokens_used} of {state.budget} tokens are "
        f"used, and the call needs {wanted}. Make a smaller call, or run the job with a larger budget.",
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
            raise InvalidAgentParameter(
                f"'tool_result.{member}' is missing or not a string. Send a string.", field=f"tool_result.{member}"
            )
    error = result.get("error")
    if error is not None and not (
        isinstance(error, dict) and all(isinstance(error.get(part), str) for part in ("code", "message"))
    ):
        raise InvalidAgentParameter(
            "'tool_result.error' must be null, or an object with the strings 'code' and 'message'.",
            field="tool_result.error",
        )
    tx.load_envelopes([job])
    known = tools_of(job.envelope)
    if name not in known:
        shown = ", ".join(known) or "none"
        raise ToolNotFound(f"Job {job.id} does not declare the tool {name!r:.80}. Declared tools: {shown}.", tool=name)
    state.tool_results = [*state.tool_results, {"result": None, "error": None, **result}]


def begin_task(tx: Transaction, job: Job, agent: Agent) -> None:
    """Set the agent state of a new job, with the limits that it inherits from the delegating job.

    Raises
    ------
    InvalidAgentParameter
        The delegating job is not an active job of the same tenant.
    DelegationTooDeep
        The delegation depth would reach the maximum.

    Spec: ojs-ai-agents 3.3
    """
    state = AgentState(budget=agent.budget, checks_output=agent.checks_output, parent_id=agent.parent_id)
    if agent.parent_id is not None:
        parent = tx.lock_jobs([agent.parent_id]).get(agent.parent_id)
        if parent is None or parent.tenant != job.tenant or parent.state != "active":
            raise InvalidAgentParameter(
                f"'ext_agent_parent_id' is {agent.parent_id:.80}, which is not an active job of this tenant. "
                "Name the active job that delegates.",
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
    if state.depth >= state.max_depth:
        raise DelegationTooDeep(
            f"Delegation depth {state.depth} reaches the maximum of {state.max_depth}; the job is not created.",
            ext_agent_delegation_depth=state.depth,
            ext_agent_max_delegation_depth=state.max_depth,
            ext_agent_parent_id=agent.parent_id,
        )
    job.agent = encode_state(state)
