"""Agents of the OpenAI Agents SDK in flows: what a model or a tool has answered is not asked for again."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

pytest.importorskip("agents", reason="The OpenAI Agents SDK is not installed")

from agents.mcp import MCPServerStdio
from agents.models.interface import Model, ModelProvider
from agents.testing import assistant_message, function_call

from agents import (
    Agent,
    LocalShellTool,
    ModelResponse,
    RunConfig,
    Runner,
    SQLiteSession,
    Usage,
    UserError,
    function_tool,
    handoff,
)
from ojster import App, Flow, Retry, Worker
from ojster.handlers.flow_export import export_flow
from ojster.openai_agents import FlowRunner, current_flow, in_flow
from ojster.testing import JobTester, crash_everywhere

pytestmark = [pytest.mark.anyio, pytest.mark.thorough]

RUNNER = FlowRunner()


class Says(Model):
    """A model that gives these answers, by the number of answers of tools that it has got."""

    def __init__(self, *answers: Any, calls: list[str] | None = None) -> None:
        self._answers = answers
        self._calls = [] if calls is None else calls

    async def get_response(self, system_instructions: Any, input: Any, *args: Any, **kwargs: Any) -> ModelResponse:
        """Answer."""
        self._calls.append("model")
        items = [] if isinstance(input, str) else input
        done = sum(item.get("type") == "function_call_output" for item in items)
        said = self._answers[min(done, len(self._answers) - 1)]
        if isinstance(said, Exception):
            raise said
        output = [assistant_message(said)] if isinstance(said, str) else said
        return ModelResponse(
            output=output,
            usage=Usage(requests=1, input_tokens=300, output_tokens=200, total_tokens=500),
            response_id=None,
        )

    def stream_response(self, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        """Say nothing."""
        raise NotImplementedError


def guide(calls: list[str]) -> tuple[App, Any]:
    """An agent with a plain tool, and one that runs in the flow."""
    app = App()

    @app.job("hotel.book")
    def book_hotel(city: str) -> str:
        calls.append(f"book {city}")
        return f"a room in {city}"

    @function_tool
    def weather(city: str) -> str:
        calls.append(f"weather {city}")
        assert current_flow() is None, "it is a step"
        return f"sunny in {city}"

    @in_flow
    @function_tool
    async def book(city: str) -> str:
        flow = current_flow()
        assert flow is not None
        if not await flow.receive("approval", bool):
            return "not allowed"
        return await flow.run(book_hotel, city)

    asks = [function_call("weather", {"city": city}, call_id=city) for city in ("Rome", "Oslo")]
    books = [function_call("book", {"city": "Rome"}, call_id="book")]
    model = Says(asks, "unused", books, "Go to Rome", calls=calls)
    agent = Agent(name="guide", model=model, tools=[weather, book])

    @app.flow("trip")
    async def trip(flow: Flow, question: str) -> str:
        first = await RUNNER.run(agent, question)
        await flow.sleep(3600)
        second = await RUNNER.run(agent, [*first.to_input_list(), {"role": "user", "content": "Sure?"}])
        return f"{first.final_output} {second.final_output}"

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
        keys = sorted(record.key for record in records if record.kind == "step")
        assert keys == [
            "guide.model",
            "guide.model#2",
            "guide.model#3",
            "guide.weather",
            "guide.weather#2",
        ]
        assert sorted(calls) == ["book Rome", *["model"] * 3, "weather Oslo", "weather Rome"]
    finally:
        await app.aclose()


async def test_outside_of_flows_the_agent_runs_as_always() -> None:
    agent = Agent(name="plain", model=Says("hello"))
    silent = RunConfig(tracing_disabled=True)
    assert (await RUNNER.run(agent, "Hi", run_config=silent)).final_output == "hello"


@pytest.mark.parametrize("how", ["agent", "handoff"])
def test_agents_behind_handoffs_are_durable_too(how: str) -> None:
    app, calls = App(), list[str]()
    refunds = Agent(name="refunds", model=Says("refunded", calls=calls))
    target: Any = refunds if how == "agent" else handoff(refunds)
    hand_over = [function_call("transfer_to_refunds", {}, call_id="1")]
    triage = Agent(name="triage", model=Says(hand_over, calls=calls), handoffs=[target])
    refunds.handoffs = [triage]

    @app.flow("ask")
    async def ask(flow: Flow) -> str:
        answer = str((await RUNNER.run(triage, "My money!")).final_output)
        await flow.sleep(60)  # it runs again from its start
        return answer

    with JobTester(app) as jobs:
        run = ask.start()
        jobs.finish(run)
        assert (run.result(), calls) == ("refunded", ["model", "model"])


def test_a_person_approves_a_tool() -> None:
    app, deleted = App(), list[str]()

    @function_tool(needs_approval=True)
    def delete(file: str) -> str:
        deleted.append(file)
        return f"{file} is deleted"

    agent = Agent(
        name="cleaner", model=Says([function_call("delete", {"file": "a"}, call_id="1")], "Done"), tools=[delete]
    )

    @app.flow("clean")
    async def clean(flow: Flow) -> str:
        result = await RUNNER.run(agent, "Clean up")
        while result.interruptions:
            state = result.to_state()
            for item in result.interruptions:
                flow.publish(item.name)
                if await flow.receive("approval", bool):
                    state.approve(item)
                else:
                    state.reject(item)
            result = await RUNNER.run(agent, state)
        return str(result.final_output)

    with JobTester(app) as jobs:
        run = clean.start()
        jobs.drain()
        assert (run.published(), deleted) == ("delete", [])
        run.send("approval", True)
        jobs.finish(run)
        assert (run.result(), deleted) == ("Done", ["a"])


@pytest.mark.parametrize("failures", [2, 9])
def test_a_request_to_a_model_is_made_again_after_a_pause(failures: int) -> None:
    app = App()
    left = [ConnectionError("down")] * failures

    class Failing(Says):
        async def get_response(self, *args: Any, **kwargs: Any) -> ModelResponse:
            if left:
                raise left.pop()
            return await super().get_response(*args, **kwargs)

    class Provider(ModelProvider):
        def get_model(self, model_name: str | None) -> Model:
            assert current_flow() is None, "a provider opens connections, so it is asked in a step"
            assert model_name == "large"
            return Failing("up")

    agent = Agent(name="patient", model="large")

    @app.flow("ask")
    async def ask(flow: Flow) -> list[Any]:
        began = flow.now
        runner = FlowRunner(retry=Retry(max_attempts=3, jitter=False))
        answer = (await runner.run(agent, "Hi", run_config=RunConfig(model_provider=Provider()))).final_output
        return [answer, (flow.now - began).total_seconds()]

    with JobTester(app) as jobs:
        run = ask.start()
        jobs.finish(run)
        if failures < 3:
            assert run.result() == ["up", pytest.approx(3.0, abs=0.5)]
        else:
            error = run.refresh().error
            assert error is not None
            assert "ConnectionError: down" in error.message


def test_the_token_budget_of_a_flow_holds_for_its_agents() -> None:
    app = App()
    agent = Agent(name="thrifty", model=Says("ok"))
    runner = FlowRunner(estimated_tokens=500)

    @app.flow("ask", agent={"token_budget": 600})
    async def ask(flow: Flow) -> None:
        await runner.run(agent, "one")
        await runner.run(agent, "two")

    with JobTester(app) as jobs:
        run = ask.start()
        jobs.finish(run)
        error = run.refresh().error
        assert error is not None
        assert "500 of 600 tokens are used" in error.message


@pytest.mark.parametrize("what", ["MCP servers", "session", "works on the worker's machine", "cannot be streamed"])
def test_what_would_be_no_step_is_refused_in_a_flow(what: str) -> None:
    app = App()
    more: dict[str, Any] = {}
    if what == "MCP servers":
        more["mcp_servers"] = [MCPServerStdio({"command": "none"})]
    elif what.startswith("works"):
        more["tools"] = [LocalShellTool(executor=lambda request: "")]
    agent = Agent(name="odd", model=Says("ok"), **more)

    @app.flow("ask")
    async def ask(flow: Flow) -> str:
        try:
            if what == "cannot be streamed":
                copy = agent.clone(model=FlowRunner()._durable_model(Says("ok"), None, "m"))  # type: ignore[arg-type]
                async for _ in Runner.run_streamed(
                    copy, "Hi", run_config=RunConfig(tracing_disabled=True)
                ).stream_events():
                    pass
            session = SQLiteSession("s") if what == "session" else None
            await RUNNER.run(agent, "Hi", session=session)
        except UserError as refusal:
            return str(refusal)
        return ""

    with JobTester(app) as jobs:
        run = ask.start()
        jobs.finish(run)
        assert what in run.result()
