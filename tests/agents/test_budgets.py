"""Agents: token budgets and delegation depths under concurrency, parameter checks, tools, and agents in Python."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from ojster import App, JobContext, Worker
from ojster.agents.attributes import (
    MAX_AGENT_STATE_BYTES,
    DelegationTooDeep,
    InvalidAgentParameter,
    OutputSchemaViolation,
    TokenBudgetExceeded,
    ToolNotFound,
    read_agent,
)
from ojster.agents.budgets import Account
from ojster.core.errors import Conflict, OjsterError, PayloadTooLarge
from ojster.core.job import Job
from ojster.core.json_objects import read_members
from ojster.handlers.agent import ModelUnavailable, Reply, ToolFailed, ToolTimeout
from ojster.jobs.job_json import to_json
from ojster.jobs.messages import Acknowledgement
from tests.conftest import Bench

pytestmark = pytest.mark.anyio

SEARCH = {"name": "search", "description": "Search.", "parameters": {"type": "object"}}
TITLED = {"type": "object", "required": ["title"], "properties": {"title": {"type": "string"}}}


def members_of(type: str = "agent", options: dict[str, Any] | None = None, **agent: Any) -> dict[str, msgspec.Raw]:
    job = {"type": type, "args": [], "options": options or {}}
    return read_members(msgspec.json.encode(job | {f"ext_agent_{name}": value for name, value in agent.items()}))


async def push(bench: Bench, **agent: Any) -> Job:
    (pushed,) = await bench.service.jobs.enqueue([members_of(**agent)])
    return pushed.job


async def running(bench: Bench, **agent: Any) -> Job:
    await push(bench, **agent)
    return await bench.fetch_one()


async def shown(bench: Bench, job: Job) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.json.decode(to_json(await bench.find(job)))
    return {name.removeprefix("ext_agent_"): value for name, value in found.items() if name.startswith("ext_agent_")}


async def call(bench: Bench, job: Job, tokens: int) -> int | None:
    return (await bench.service.agents.account(Account(job.id, tokens, is_estimate=True))).left


@pytest.mark.parametrize(
    "agent",
    [
        {"temperature": 2.1},
        {"temperature": -0.1},
        {"temperature": "warm"},
        {"voting_threshold": 0},
        {"voting_threshold": 1.1},
        {"token_budget": -1},
        {"token_budget": 1.5},
        {"max_tokens": 0},
        {"model": ""},
        {"fallback_models": "small"},
        {"fallback_models": [1]},
        {"tool_choice": "maybe"},
        {"output_format": "pdf"},
        {"retrieval_strategy": "guess"},
        {"consensus_required": "yes"},
        {"context_window": 5, "max_tokens": 4},
        {"context_sources": [{"type": "vector_db", "name": "x"}]},
        {"context_sources": [{"type": "oracle", "name": "x", "endpoint": "y"}]},
        {"output_schema": []},
        {"output_schema": {"type": "nothing"}},
        {"tools": {}},
        {"tools": [SEARCH, SEARCH]},
        {"tools": [SEARCH | {"name": "Search"}]},
        {"tools": [SEARCH | {"parameters": {"type": "nothing"}}]},
        {"tools": [{"name": "search", "parameters": {}}]},
        {"tools": [{"name": "search", "description": "x"}]},
    ],
)
def test_what_is_out_of_range_is_refused(agent: dict[str, Any]) -> None:
    with pytest.raises(InvalidAgentParameter, match="ext_agent_") as refused:
        read_agent(members_of(**agent))
    assert refused.value.to_wire()["code"] == "AGENT_INVALID_PARAMETER"


def test_what_is_in_range_or_not_known_is_taken() -> None:
    agent: dict[str, Any] = {
        "temperature": 2,
        "voting_threshold": 1,
        "something_new": {"x": 1},
        "model": None,
        "tools": [SEARCH],
    }
    assert read_agent(members_of(**agent, context_window=4, max_tokens=4)).budget is None


async def test_server_set_members_are_ignored_and_all_others_kept(bench: Bench) -> None:
    lies: dict[str, Any] = {
        "tokens_used": -500,
        "delegation_depth": 3,
        "model_used": "best",
        "tool_results": [{"name": "x"}],
    }
    job = await push(bench, model="large", token_budget=100, something_new=[1], **lies)
    kept: dict[str, Any] = {"model": "large", "token_budget": 100, "something_new": [1]}
    assert await shown(bench, job) == kept | {"tokens_used": 0, "delegation_depth": 0}


async def test_a_budget_is_never_exceeded_by_calls_that_run_at_once(bench: Bench) -> None:
    job = await running(bench, token_budget=1000)

    async def one() -> bool:
        try:
            await call(bench, job, 300)
        except TokenBudgetExceeded:
            return False
        return True

    assert sum(await asyncio.gather(*[one() for _ in range(10)])) == 3
    assert (await shown(bench, job))["tokens_used"] == 900
    state = await bench.service.agents.account(Account(job.id, 50, 300, model="large"))
    assert (state.tokens_used, state.left, state.llm_calls) == (650, 350, 1)
    assert (await shown(bench, job))["model_used"] == "large"
    assert await call(bench, job, 350) == 0
    with pytest.raises(TokenBudgetExceeded, match="needs 1") as refused:
        await call(bench, job, 1)
    assert refused.value.details["ext_agent_tokens_used"] == 1000


async def test_a_refund_cannot_exceed_the_estimate(bench: Bench) -> None:
    job = await running(bench, token_budget=1000)
    await bench.service.agents.account(Account(job.id, 100))
    await call(bench, job, 300)
    with pytest.raises(InvalidAgentParameter, match="'estimated' is 301"):
        await bench.service.agents.account(Account(job.id, 0, 301))
    await bench.service.agents.account(Account(job.id, 20, 200))
    await bench.service.agents.account(Account(job.id, 0, 100))
    with pytest.raises(InvalidAgentParameter):
        await bench.service.agents.account(Account(job.id, 0, 1))
    assert (await shown(bench, job))["tokens_used"] == 120
    await call(bench, job, 300)
    await bench.fail(job)
    await bench.run_due(after=10)
    again = await bench.fetch_one()
    with pytest.raises(InvalidAgentParameter):
        await bench.service.agents.account(Account(again.id, 0, 300))
    assert (await shown(bench, again))["tokens_used"] == 420


async def test_token_usage_survives_a_retry(bench: Bench) -> None:
    job = await running(bench, token_budget=1000)
    await call(bench, job, 700)
    await bench.fail(job)
    await bench.run_due(after=10)
    again = await bench.fetch_one()
    with pytest.raises(TokenBudgetExceeded):
        await call(bench, again, 400)


async def test_only_the_lease_holder_can_report_usage(bench: Bench) -> None:
    job = await push(bench, token_budget=1000)
    with pytest.raises(Conflict):
        await call(bench, job, 1)
    job = await bench.fetch_one(worker_id="w")
    for wrong in (Account(job.id, 1, worker_id="another"), Account(job.id, 1, attempt=2)):
        with pytest.raises(Conflict):
            await bench.service.agents.account(wrong)


async def test_delegated_jobs_use_the_budgets_of_all_ancestors(bench: Bench) -> None:
    root = await running(bench, token_budget=1000, max_delegation_depth=3)
    await call(bench, root, 100)
    child = await running(bench, parent_id=root.id)
    assert await shown(bench, child) == {
        "parent_id": root.id,
        "delegation_depth": 1,
        "max_delegation_depth": 3,
        "token_budget": 900,
        "tokens_used": 0,
    }
    grandchild = await running(bench, parent_id=child.id, token_budget=5000)
    await call(bench, grandchild, 600)
    assert [(await shown(bench, job))["tokens_used"] for job in (root, child, grandchild)] == [700, 600, 600]
    with pytest.raises(TokenBudgetExceeded, match=child.id):
        await call(bench, grandchild, 301)
    await call(bench, root, 300)
    with pytest.raises(TokenBudgetExceeded):
        await call(bench, child, 1)


async def test_a_delegation_too_deep_or_without_an_active_parent_is_refused(bench: Bench) -> None:
    root = await running(bench, max_delegation_depth=2)
    child = await running(bench, parent_id=root.id)
    with pytest.raises(DelegationTooDeep, match="maximum of 2"):
        await push(bench, parent_id=child.id)
    deeper = await push(bench, parent_id=child.id, max_delegation_depth=4)
    assert (await shown(bench, deeper))["delegation_depth"] == 2
    await bench.ack(child)
    for parent in (child.id, deeper.id, "nobody"):
        with pytest.raises(InvalidAgentParameter, match="which is not an active job"):
            await push(bench, parent_id=parent)
    assert (await bench.service.jobs.count("default"))["default"]["available"] == 1


async def test_tools_that_are_not_declared_are_refused_and_all_others_noted(bench: Bench) -> None:
    job = await running(bench, tools=[SEARCH])
    done = {"tool_call_id": "c1", "name": "search", "result": {"hits": 3}, "latency_ms": 5}
    failed = {"tool_call_id": "c2", "name": "search", "error": {"code": "X", "message": "no"}}
    for result in (done, failed):
        await bench.service.agents.account(Account(job.id, tool_result=result))
    assert (await shown(bench, job))["tool_results"] == [done | {"error": None}, failed | {"result": None}]
    with pytest.raises(ToolNotFound, match=r"'shell'\. Declared tools: search"):
        await bench.service.agents.account(Account(job.id, tool_result=done | {"name": "shell"}))
    for wrong in ({"name": "search"}, done | {"error": "no"}):
        with pytest.raises(InvalidAgentParameter):
            await bench.service.agents.account(Account(job.id, tool_result=wrong))
    with pytest.raises(PayloadTooLarge):
        await bench.service.agents.account(
            Account(job.id, tool_result=done | {"result": {"x": "y" * MAX_AGENT_STATE_BYTES}})
        )
    assert len((await shown(bench, job))["tool_results"]) == 2


@pytest.mark.parametrize("code", ["AGENT_TOKEN_BUDGET_EXCEEDED", "AGENT_TOOL_NOT_FOUND", "AGENT_MAX_DELEGATION_DEPTH"])
async def test_permanent_agent_errors_discard_the_job(bench: Bench, code: str) -> None:
    for options, dead in (({}, False), ({"retry": {"max_attempts": 9, "on_exhaustion": "dead_letter"}}, True)):
        await bench.service.jobs.enqueue([members_of(options=options)])
        job = await bench.fail(await bench.fetch_one(), "Whatever", code)
        assert (job.state, bool(job.dead)) == ("discarded", dead)


async def test_transient_agent_errors_are_retried(bench: Bench) -> None:
    job = await running(bench, model="large")
    assert (await bench.fail(job, "X", "AGENT_MODEL_UNAVAILABLE")).state == "retryable"


async def test_a_result_that_violates_its_schema_fails_the_attempt(bench: Bench) -> None:
    job = await running(bench, output_schema=TITLED)
    other = await running(bench)
    refused, done = await bench.service.jobs.acknowledge(
        [Acknowledgement(job.id, b'{"title": 3}'), Acknowledgement(other.id, b'{"title": 3}')]
    )
    assert isinstance(refused, OutputSchemaViolation)
    assert not isinstance(done, OjsterError)
    found = await bench.find(job)
    assert (found.state, found.error and found.error["code"]) == ("retryable", "AGENT_OUTPUT_SCHEMA_VIOLATION")
    await bench.run_due(after=10)
    assert (await bench.ack(await bench.fetch_one(), b'{"title": "x"}')).state == "completed"


async def test_a_workflow_ends_when_the_output_of_its_last_attempt_is_refused(bench: Bench) -> None:
    step = {"type": "a", "args": [], "options": {"retry": {"max_attempts": 1}}, "ext_agent_output_schema": TITLED}
    body = {"type": "chain", "steps": [step, {"type": "b", "args": []}]}
    made = await bench.service.workflows.create(read_members(msgspec.json.encode(body)))
    job = await bench.fetch_one()
    await bench.service.jobs.acknowledge([Acknowledgement(job.id)])
    assert (await bench.service.workflows.show(made.id)).state == "failed"


async def test_an_agent_in_python_asks_models_in_order_and_uses_its_tools(shared_url: str) -> None:
    app, asked = App(shared_url), list[str]()

    @app.job("analyze")
    async def analyze(job: JobContext) -> int:
        async def ask(model: str) -> Reply[int]:
            return Reply(7, 100, 50)

        return await job.agent.ask(ask, estimated_tokens=200)

    @app.job(
        "research",
        agent={"model": "large", "fallback_models": ["small"], "token_budget": 1000, "tools": [SEARCH]},
        retry=1,
    )
    async def research(job: JobContext, topic: str) -> dict[str, Any]:
        async def ask(model: str) -> Reply[str]:
            asked.append(model)
            if model == "large":
                raise ModelUnavailable("429")
            return Reply(topic.upper(), 300, 20)

        def search(query: str) -> list[str]:
            if query == "nothing":
                raise LookupError(query)
            return [query]

        answer = await job.agent.ask(ask, estimated_tokens=500)
        assert await job.agent.use_tool("search", search, "x") == ["x"]
        with pytest.raises(ToolFailed, match="nothing"):
            await job.agent.use_tool("search", search, "nothing")
        with pytest.raises(ToolNotFound):
            await job.agent.use_tool("shell", search, "x")
        await job.agent.delegate(analyze)
        return {"answer": answer, "usage": job.agent.usage}

    handle = await research.aenqueue("owls")
    await Worker(app).run(until_empty=True)
    assert asked == ["large", "small"]
    assert (await handle.aresult()) == {
        "answer": "OWLS",
        "usage": {"prompt_tokens": 300, "completion_tokens": 20, "total_tokens": 320, "llm_calls": 1},
    }
    found = msgspec.json.decode(to_json(await app.client().jobs.find(handle.id)))
    assert (found["ext_agent_tokens_used"], found["ext_agent_model_used"]) == (470, "small")
    assert [(one["result"], one["error"]) for one in found["ext_agent_tool_results"]] == [
        ({"value": ["x"]}, None),
        (None, {"code": "AGENT_TOOL_EXECUTION_FAILED", "message": "search: nothing"}),
    ]
    await app.aclose()


async def test_an_agent_in_python_stops_at_its_budget_and_times_out_tools(shared_url: str) -> None:
    app = App(shared_url)

    @app.job("greedy", agent={"token_budget": 100}, retry=5)
    async def greedy(job: JobContext) -> None:
        async def ask(model: str) -> Reply[None]:
            raise AssertionError("nobody is asked")

        await job.agent.ask(ask, estimated_tokens=101)

    @app.job("slow", agent={"tools": [SEARCH], "tool_timeout_ms": 10})
    async def slow(job: JobContext) -> str:
        try:
            await job.agent.use_tool("search", asyncio.sleep, 60)
        except ToolTimeout as error:
            return error.error_type
        return "in time"

    ended, slept = await greedy.aenqueue(), await slow.aenqueue()
    await Worker(app).run(until_empty=True)
    job = await app.client().jobs.find(ended.id)
    assert (job.state, job.error and job.error["type"]) == ("discarded", "AGENT_TOKEN_BUDGET_EXCEEDED")
    assert await slept.aresult() == "AGENT_TOOL_TIMEOUT"
    await app.aclose()


async def test_a_tool_that_raises_a_timeout_of_its_own_has_failed(shared_url: str) -> None:
    app = App(shared_url)

    async def search() -> None:
        raise TimeoutError("the index did not answer")

    @app.job("asks", agent={"tools": [SEARCH]})
    async def asks(job: JobContext) -> list[str]:
        with pytest.raises(ToolFailed) as raised:
            await job.agent.use_tool("search", search)
        return [raised.value.error_type, str(raised.value)]

    handle = await asks.aenqueue()
    await Worker(app).run(until_empty=True)
    assert await handle.aresult() == ["AGENT_TOOL_EXECUTION_FAILED", "search: the index did not answer"]
    await app.aclose()
