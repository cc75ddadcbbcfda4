"""Agents of Pydantic AI in flows: what a model or a tool has answered is not asked for again."""

from __future__ import annotations

from collections.abc import AsyncIterable
from typing import Any

import pytest
from pydantic_ai import Agent, DeferredToolRequests, DeferredToolResults, FunctionToolset
from pydantic_ai.messages import (
    AgentStreamEvent,
    ModelMessage,
    ModelResponse,
    PartDeltaEvent,
    TextPart,
    TextPartDelta,
    ToolCallPart,
)
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.models.test import TestModel
from pydantic_ai.toolsets import DynamicToolset

from ojster import App, Flow, Retry, Worker, current_job
from ojster.handlers.flow_export import export_flow
from ojster.pydantic_ai import FlowDurability, current_flow
from ojster.testing import JobTester, crash_everywhere

pytestmark = [pytest.mark.anyio, pytest.mark.thorough]


def says(*answers: list[ToolCallPart] | str | Exception, calls: list[str] | None = None) -> FunctionModel:
    """A model that gives these answers, by the number of messages before it."""

    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        if calls is not None:
            calls.append("model")
        said = answers[min(len(messages) // 2, len(answers) - 1)]
        if isinstance(said, Exception):
            raise said
        return ModelResponse(parts=[TextPart(said)] if isinstance(said, str) else said)

    return FunctionModel(answer)


def guide(calls: list[str]) -> tuple[App, Any]:
    """An agent with a plain tool, one that runs a job, and functions that Pydantic AI calls in threads."""
    app = App()
    asks = [ToolCallPart("weather", {"city": "Rome"}), ToolCallPart("weather", {"city": "Oslo"})]
    model = says([*asks, ToolCallPart("book", {"city": "Rome"})], "Go to Rome", calls=calls)
    agent = Agent(model, name="guide", capabilities=[FlowDurability()])

    @app.job("hotel.book")
    def book_hotel(city: str) -> str:
        calls.append(f"book {city}")
        return f"a room in {city}"

    @agent.instructions
    def instructions() -> str:
        return "You are a guide."

    @agent.output_validator
    def shout(text: str) -> str:
        return text + "!"

    @agent.tool_plain
    def weather(city: str) -> str:
        calls.append(f"weather {city}")
        assert current_flow() is None, "it is a step"
        return f"sunny in {city}"

    @agent.tool_plain(metadata={"ojster": False})
    async def book(city: str) -> str:
        flow = current_flow()
        assert flow is not None
        if not await flow.receive("approval", bool):
            return "not allowed"
        return await flow.run(book_hotel, city)

    @app.flow("trip")
    async def trip(flow: Flow, question: str) -> str:
        first = await agent.run(question)
        await flow.sleep(3600)
        second = await agent.run("Sure?", message_history=first.all_messages())
        assert first.run_id.startswith(flow.id)
        return f"{first.output} {second.output}"

    return app, trip


def test_an_agent_dies_anywhere_and_asks_nothing_twice() -> None:
    calls: list[str] = []
    _, trip = guide(calls)

    def script(run: Any, jobs: JobTester) -> None:
        calls.clear()
        run.send("approval", True)

    crash_everywhere(trip, "Where to?", script=script, effects=lambda: sorted(set(calls)))
    assert sorted(set(calls)) == ["book Rome", "model", "weather Oslo", "weather Rome"]


async def test_steps_are_named_by_what_the_agent_does(shared_url: str) -> None:
    calls: list[str] = []
    app, trip = guide(calls)
    app.url = shared_url
    try:
        run = await trip.astart("Where to?")
        await run.asend("approval", True)
        await Worker(app).run(until_empty=True)
        records = (await export_flow(app.client(), run.id)).records
        keys = {record.key for record in records if record.kind == "step"}
        assert keys == {"guide.model", "guide.model#2", "guide.weather", "guide.weather#2"}
        assert calls == ["model", "weather Rome", "weather Oslo", "book Rome", "model"]
    finally:
        await app.aclose()


async def test_outside_of_flows_the_agent_runs_as_always() -> None:
    agent = Agent(TestModel(custom_output_text="hello"), name="plain", capabilities=[FlowDurability()])
    assert (await agent.run("Hi")).output == "hello"


def test_a_person_approves_a_tool() -> None:
    app = App()
    model = says([ToolCallPart("delete", {"file": "a"})], "Done")
    agent = Agent(model, name="cleaner", output_type=[str, DeferredToolRequests], capabilities=[FlowDurability()])
    deleted: list[str] = []

    @agent.tool_plain(requires_approval=True)
    def delete(file: str) -> str:
        deleted.append(file)
        return f"{file} is deleted"

    @app.flow("clean")
    async def clean(flow: Flow) -> str:
        result: Any = await agent.run("Clean up")
        while isinstance(result.output, DeferredToolRequests):
            flow.publish([call.tool_name for call in result.output.approvals])
            answers = DeferredToolResults()
            for call in result.output.approvals:
                answers.approvals[call.tool_call_id] = await flow.receive("approval", bool)
            result = await agent.run(message_history=result.all_messages(), deferred_tool_results=answers)
        return str(result.output)

    with JobTester(app) as jobs:
        run = clean.start()
        jobs.drain()
        assert (run.published(), deleted) == (["delete"], [])
        run.send("approval", True)
        jobs.finish(run)
        assert (run.result(), deleted) == ("Done", ["a"])


def test_a_request_to_a_model_is_made_again_after_a_pause() -> None:
    app = App()
    outcomes = iter([ConnectionError("down"), ConnectionError("down"), None])

    def model(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        if (outcome := next(outcomes)) is not None:
            raise outcome
        return ModelResponse(parts=[TextPart("up")])

    agent = Agent(FunctionModel(model), name="patient", capabilities=[FlowDurability(retry=Retry(jitter=False))])

    @app.flow("ask")
    async def ask(flow: Flow) -> list[Any]:
        began = flow.now
        answer = (await agent.run("Hi")).output
        return [answer, (flow.now - began).total_seconds()]

    with JobTester(app) as jobs:
        run = ask.start()
        jobs.finish(run)
        assert run.result() == ["up", pytest.approx(3.0, abs=0.5)]


@pytest.mark.parametrize("retry", [Retry(max_attempts=1), Retry(give_up_on=[ConnectionError])])
def test_a_flow_fails_with_what_the_model_has_raised_last(retry: Retry) -> None:
    app = App()
    agent = Agent(says(ConnectionError("down")), name="down", capabilities=[FlowDurability(retry=retry)])

    @app.flow("ask")
    async def ask(flow: Flow) -> str:
        return (await agent.run("Hi")).output

    with JobTester(app) as jobs:
        run = ask.start()
        jobs.finish(run)
        error = run.refresh().error
        assert error is not None
        assert "ConnectionError: down" in error.message


def test_the_token_budget_of_a_flow_holds_for_its_agents() -> None:
    app = App()
    agent = Agent(says("ok"), name="thrifty", capabilities=[FlowDurability(estimated_tokens=500)])

    @app.flow("ask", agent={"token_budget": 600})
    async def ask(flow: Flow) -> int:
        await agent.run("word " * 200)
        await agent.run("word " * 200)
        return 0

    with JobTester(app) as jobs:
        run = ask.start()
        jobs.finish(run)
        error = run.refresh().error
        assert error is not None
        assert "AGENT_TOKEN_BUDGET_EXCEEDED" in error.message
        assert "of 600 tokens are used" in error.message


@pytest.mark.parametrize("late", [False, True])
def test_tools_that_are_made_for_each_run_are_steps_too_or_refused(late: bool) -> None:
    app = App()
    calls: list[int] = []

    def double(n: int) -> int:
        calls.append(n)
        return 2 * n

    made = DynamicToolset[Any](lambda context: FunctionToolset([double]), id="made")
    agent = Agent(
        says([ToolCallPart("double", {"n": 4})], "8"),
        name="dynamic",
        toolsets=[] if late else [made],
        capabilities=[FlowDurability()],
    )

    @app.flow("ask")
    async def ask(flow: Flow) -> str:
        answer = (await agent.run("4 * 2", toolsets=[made] if late else None)).output
        await flow.sleep(60)
        return answer

    with JobTester(app) as jobs:
        run = ask.start()
        jobs.finish(run)
        if late:
            error = run.refresh().error
            assert error is not None
            assert "toolset" in error.message
        else:
            assert (run.result(), calls) == ("8", [4])


def test_what_a_model_says_goes_to_a_durable_stream_while_it_says_it() -> None:
    app = App()

    async def tell(context: Any, events: AsyncIterable[AgentStreamEvent]) -> None:
        tokens = current_job().stream("tokens")
        async for event in events:
            if isinstance(event, PartDeltaEvent) and isinstance(event.delta, TextPartDelta):
                await tokens.aappend(event.delta.content_delta)

    durability = FlowDurability[None](event_stream_handler=tell)
    agent = Agent(TestModel(custom_output_text="Go to Rome"), name="guide", capabilities=[durability])

    @app.flow("ask")
    async def ask(flow: Flow) -> str:
        answer = (await agent.run("Where to?")).output
        await flow.sleep(60)  # it runs again from its start, and the model is not asked again
        return answer

    with JobTester(app) as jobs:
        run = ask.start()
        jobs.finish(run)
        assert list(run.stream("tokens", str)) == ["Go ", "to ", "Rome"]
        assert run.result() == "Go to Rome"
