"""Durable agents: in a flow, each model request and each tool call of the OpenAI Agents SDK is a step.

Needs ``ojster[openai-agents]``. Outside of flows, the agent runs as always.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any, Final

from agents.models.interface import Model, ModelProvider
from pydantic import TypeAdapter

from agents import (
    Agent,
    ApplyPatchTool,
    ComputerTool,
    CustomTool,
    FunctionTool,
    Handoff,
    LocalShellTool,
    ModelResponse,
    RunConfig,
    Runner,
    RunResult,
    RunState,
    ShellTool,
    UserError,
)
from ojster.agents.attributes import TokenBudgetExceeded
from ojster.handlers import flow_loop
from ojster.handlers.agent_steps import ESTIMATED_TOKENS, AgentSteps, current_flow, step
from ojster.handlers.job_options import Retry

__all__ = ["FlowRunner", "current_flow", "in_flow"]

_IN_FLOW: Final = "_ojster_in_flow"
"""Attribute of a tool that runs in the function of the flow: see ``in_flow``."""

_RETRY: Final = Retry(max_attempts=5, give_up_on=[UserError, TokenBudgetExceeded])

_LOCAL: Final = (ApplyPatchTool, ComputerTool, CustomTool, LocalShellTool, ShellTool)
"""Tools that do something on the worker, which would be no step."""

_answers: Final = TypeAdapter(ModelResponse)


def in_flow(tool: FunctionTool) -> FunctionTool:
    """Let a tool run in the function of the flow instead of a step.

    There it may run jobs, wait for messages and sleep with ``current_flow()``.

    Parameters
    ----------
    tool:
        A tool that ``function_tool`` has made of a coroutine function.

    Returns
    -------
    FunctionTool
        The same tool.
    """
    setattr(tool, _IN_FLOW, True)
    return tool


class FlowRunner:
    """Runs agents; in a flow, each of their model requests and tool calls is a local step.

    Once its result is recorded, a step never runs again. Handoffs and the agents behind them are durable, too. An agent
    that is a tool (``as_tool``) is one step as a whole. MCP servers and tools that work on the worker's machine are
    refused in flows: call them in a tool or a job.

    Parameters
    ----------
    retry:
        How often, and after which pauses, a model request is made again that raises an exception. By default 5 times at
        most, after 1, 2, 4 and 8 seconds.
    estimated_tokens:
        Tokens that a request is charged in advance if the flow has a token budget
        (``@app.flow(agent={"token_budget": 50_000})``); 1,000 by default. The tokens that it has used replace them.

    Examples
    --------
    >>> from agents import Agent
    >>> from agents.testing import ScriptedModel, assistant_message
    >>> from ojster import App, Flow
    >>> from ojster.openai_agents import FlowRunner
    >>> from ojster.testing import JobTester
    >>> app = App()
    >>> guide = Agent(name="guide", model=ScriptedModel([[assistant_message("Rome")]]))
    >>> @app.flow("trip.ask")
    ... async def ask(flow: Flow, question: str) -> str:
    ...     return (await FlowRunner().run(guide, question)).final_output
    >>> with JobTester(app) as jobs:
    ...     run = ask.start("Where to?")
    ...     jobs.finish(run)
    ...     run.result()
    'Rome'
    """

    def __init__(self, *, retry: Retry = _RETRY, estimated_tokens: int = ESTIMATED_TOKENS) -> None:
        self._steps = AgentSteps(retry, estimated_tokens, _tokens_of)

    async def run(
        self,
        agent: Agent[Any],
        input: str | list[Any] | RunState[Any],
        *,
        run_config: RunConfig | None = None,
        **options: Any,
    ) -> RunResult:
        """Run an agent, as ``Runner.run`` does.

        Parameters
        ----------
        agent, input:
            The agent, and what it is asked; or the state of a run that waited for an approval.
        run_config, options:
            Those of ``Runner.run``. In a flow there are no traces: they would come again whenever the flow runs again.

        Returns
        -------
        RunResult
            The result.

        Raises
        ------
        UserError
            In a flow: the agent has MCP servers, or tools that work on the worker's machine; or it has a ``session``.
        """
        if current_flow() is None:
            return await Runner.run(agent, input, run_config=run_config, **options)
        if options.get("session") is not None:
            raise UserError("A session would be written again whenever the flow runs again. Pass 'input' instead.")
        config = run_config or RunConfig()
        own = _DurableProvider(config.model_provider, self)
        model = config.model if config.model is None else self._durable_model(config.model, own, "model")
        durable = replace(config, model=model, model_provider=own, tracing_disabled=True)
        unwinding = flow_loop.UNWINDS.set(True)
        try:
            return await Runner.run(_Durable(self, own).agent(agent), input, run_config=durable, **options)
        finally:
            flow_loop.UNWINDS.reset(unwinding)

    def _durable_model(self, model: str | Model, provider: _DurableProvider, name: str) -> Model:
        chosen = (lambda: provider.inner.get_model(model)) if isinstance(model, str) else (lambda: model)
        return model if isinstance(model, _DurableModel) else _DurableModel(chosen, name, self._steps)


def _tokens_of(answer: Any) -> tuple[int, int]:
    usage = answer.get("usage") or {}
    return usage.get("input_tokens", 0), usage.get("output_tokens", 0)


class _Durable:
    """Copies of agents whose models and tools are steps: one of each, so that handoffs in circles end."""

    def __init__(self, runner: FlowRunner, provider: _DurableProvider) -> None:
        self._runner = runner
        self._provider = provider
        self._copies: dict[int, Agent[Any]] = {}

    def agent(self, agent: Agent[Any]) -> Agent[Any]:
        if (known := self._copies.get(id(agent))) is not None:
            return known
        if agent.mcp_servers:
            raise UserError(f"The agent {agent.name!r} has MCP servers. In a flow, call them in a tool or in a job.")
        name = f"{agent.name}.model"
        model = self._runner._durable_model(agent.model or self._provider.default, self._provider, name)
        copy = self._copies[id(agent)] = agent.clone(model=model)
        self._copies[id(copy)] = copy
        copy.tools = [self._tool(agent, tool) for tool in agent.tools]
        copy.handoffs = [self._handoff(handoff) for handoff in agent.handoffs]
        return copy

    def _handoff(self, handoff: Agent[Any] | Handoff[Any, Any]) -> Agent[Any] | Handoff[Any, Any]:
        if isinstance(handoff, Agent):
            return self.agent(handoff)

        async def hand_over(context: Any, arguments: str) -> Any:
            return self.agent(await handoff.on_invoke_handoff(context, arguments))

        return replace(handoff, on_invoke_handoff=hand_over)

    def _tool(self, agent: Agent[Any], tool: Any) -> Any:
        if isinstance(tool, _LOCAL):
            raise UserError(f"The tool {tool.name!r} works on the worker's machine. In a flow, call it in a job.")
        if not isinstance(tool, FunctionTool) or getattr(tool, _IN_FLOW, False):
            return tool

        async def invoke(context: Any, arguments: str) -> Any:
            flow = current_flow()
            if flow is None:
                return await tool.on_invoke_tool(context, arguments)
            return await step(flow, f"{agent.name}.{tool.name}", lambda: tool.on_invoke_tool(context, arguments))

        return replace(tool, on_invoke_tool=invoke)


class _DurableProvider(ModelProvider):
    """The models of another provider, whose requests are steps."""

    default: Final = ""
    """Stands for the provider's own choice of a model."""

    def __init__(self, inner: ModelProvider, runner: FlowRunner) -> None:
        self.inner = inner
        self._runner = runner

    def get_model(self, model_name: str | None) -> Model:
        return self._runner._durable_model(model_name or self.default, self, "model")


class _DurableModel(Model):
    """A model whose requests are steps."""

    def __init__(self, model: Callable[[], Model], name: str, steps: AgentSteps) -> None:
        self._model = model
        self._name = name
        self._steps = steps

    async def get_response(self, *args: Any, **kwargs: Any) -> ModelResponse:
        """Return the recorded answer, or ask the model in a step."""
        flow = current_flow()
        if flow is None:
            return await self._model().get_response(*args, **kwargs)

        async def ask() -> object:
            model = self._model()
            return _answers.dump_python(await model.get_response(*args, **kwargs), mode="json")

        return _answers.validate_python(await self._steps.request(flow, self._name, ask))

    async def stream_response(self, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        """Refuse: the events of a stream would come again whenever the flow runs again."""
        if current_flow() is not None:
            raise UserError("An agent in a flow cannot be streamed: its steps give whole answers. Use run(…).")
        async for event in self._model().stream_response(*args, **kwargs):
            yield event
