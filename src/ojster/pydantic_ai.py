"""Durable agents: in a flow, each model request and each tool call of a Pydantic AI agent is a step.

Needs ``ojster[pydantic-ai]``. Outside of flows, the agent runs as always.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any, ClassVar, Final, Literal

from pydantic_ai.agent import Agent, EventStreamHandler
from pydantic_ai.capabilities import WrapRunHandler
from pydantic_ai.durable_exec import (
    JSON_CODEC,
    BaseDurabilityCapability,
    CallableOperationBackend,
    DurabilityEngineSpec,
    DurableOperationId,
    JournalOperationNamer,
    ModelRequestId,
    RoleBasedOperationConfig,
    ToolsetCallToolId,
    conversation_id_from_run_id,
)
from pydantic_ai.exceptions import UsageLimitExceeded, UserError
from pydantic_ai.models import Model
from pydantic_ai.run import AgentRunResult
from pydantic_ai.tools import AgentDepsT, RunContext

from ojster.agents.attributes import TokenBudgetExceeded
from ojster.handlers import flow_loop
from ojster.handlers.agent_steps import ESTIMATED_TOKENS, AgentSteps, current_flow, numbered, step
from ojster.handlers.flow_threads import StepExecutor
from ojster.handlers.job_options import Retry

__all__ = ["TOOL_METADATA", "FlowBackend", "FlowDurability", "current_flow"]

TOOL_METADATA: Final = "ojster"
"""Member of a tool's metadata: ``False`` runs the tool in the function of the flow, where it can use the flow."""

_RETRY: Final = Retry(max_attempts=5, give_up_on=[UserError, UsageLimitExceeded, TokenBudgetExceeded])


class FlowDurability(BaseDurabilityCapability[AgentDepsT]):
    """A capability that makes an agent durable in flows.

    Each model request, each call of a tool and each look for the tools of an MCP server is a local step: once its
    result is recorded, it never runs again. A tool with ``metadata={"ojster": False}`` runs in the function of the flow
    instead, where it may run jobs, wait for messages and sleep with ``current_flow()``.

    Parameters
    ----------
    models:
        Further models of the agent, by the name that ``agent.run(model=…)`` gives them; none by default.
    event_stream_handler:
        Gets the events of the agent; none by default. It runs in steps.
    name:
        Name of the agent in the names of steps; by default that of the agent. Do not change it while flows run.
    retry:
        How often, and after which pauses, a model request is made again that raises an exception. By default 5 times at
        most, after 1, 2, 4 and 8 seconds. ``job.retry`` does not apply: a request is no job.
    estimated_tokens:
        Tokens that a request is charged in advance if the flow has a token budget
        (``@app.flow(agent={"token_budget": 50_000})``); 1,000 by default. The tokens that it has used replace them.

    Examples
    --------
    >>> from ojster import App, Flow
    >>> from ojster.pydantic_ai import FlowDurability
    >>> from ojster.testing import JobTester
    >>> from pydantic_ai import Agent
    >>> from pydantic_ai.models.test import TestModel
    >>> app = App()
    >>> agent = Agent(TestModel(custom_output_text="Rome"), name="guide", capabilities=[FlowDurability()])
    >>> @app.flow("trip.ask")
    ... async def ask(flow: Flow, question: str) -> str:
    ...     return (await agent.run(question)).output
    >>> with JobTester(app) as jobs:
    ...     run = ask.start("Where to?")
    ...     jobs.finish(run)
    ...     run.result()
    'Rome'
    """

    # Nobody enters a toolset for the whole run: the function of the flow has no connections. Each step does.
    engine_spec: ClassVar = DurabilityEngineSpec(
        engine_name="Ojster",
        durable_unit_noun="step",
        durable_container_noun="flow",
        codec=JSON_CODEC,
        toolset_lifecycles={"function": "enter-never", "mcp": "enter-never", "dynamic": "enter-never"},
        tool_config_key=TOOL_METADATA,
        unsupported_runtime_toolset_kinds=frozenset({"function", "mcp", "dynamic"}),  # their calls would be no steps
    )

    def __init__(
        self,
        *,
        models: Mapping[str, Model] | None = None,
        event_stream_handler: EventStreamHandler[AgentDepsT] | None = None,
        name: str | None = None,
        retry: Retry = _RETRY,
        estimated_tokens: int = ESTIMATED_TOKENS,
    ) -> None:
        super().__init__(models=models, event_stream_handler=event_stream_handler, name=name)
        self._retry = retry
        self._estimated_tokens = estimated_tokens

    @property
    def in_durable_context(self) -> bool:
        """Whether the function of a flow runs at the moment."""
        return current_flow() is not None

    def get_durable_operation_backend(self) -> FlowBackend:
        """Return what makes steps of the agent's operations.

        Returns
        -------
        CallableOperationBackend
            The backend.
        """
        return FlowBackend(self.name, self._retry, self._estimated_tokens)

    def get_default_run_id(self) -> str | None:
        """Return the id of a run that has none: the same each time the flow runs.

        Returns
        -------
        str or None
            The id; ``None`` outside of flows.
        """
        flow = current_flow()
        return None if flow is None else f"{flow.id}/{numbered(flow, self.name + '.run')}"

    def get_default_conversation_id(self, run_id: str) -> str | None:
        """Return the id of the conversation of a run: the same each time the flow runs.

        Returns
        -------
        str or None
            The id; ``None`` outside of flows.
        """
        return conversation_id_from_run_id(run_id) if self.in_durable_context else None

    def get_run_clock(self) -> Callable[[], datetime] | None:
        """Return the clock of the flow, which time limits of runs are measured with.

        Returns
        -------
        Callable or None
            The clock; ``None`` outside of flows.
        """
        flow = current_flow()
        return None if flow is None else lambda: flow.now

    async def wrap_run(self, ctx: RunContext[AgentDepsT], *, handler: WrapRunHandler) -> AgentRunResult[Any]:
        """Run the agent; in a flow, its plain functions outside of steps are called without a thread.

        Returns
        -------
        AgentRunResult
            The result.
        """
        if not self.in_durable_context:
            return await super().wrap_run(ctx, handler=handler)
        unwinding = flow_loop.UNWINDS.set(True)
        try:
            with Agent.using_thread_executor(StepExecutor()):
                return await super().wrap_run(ctx, handler=handler)
        finally:
            flow_loop.UNWINDS.reset(unwinding)


class FlowBackend(CallableOperationBackend[None]):
    """Makes local steps of the operations of an agent.

    Parameters
    ----------
    agent:
        Name of the agent.
    retry, estimated_tokens:
        See ``FlowDurability``.
    """

    def __init__(self, agent: str, retry: Retry, estimated_tokens: int) -> None:
        config = RoleBasedOperationConfig[None](
            model=None, event=None, capability=None, tool=None, resolve_tool=_config_of_tool
        )
        super().__init__(namer=_Names(agent), config=config)
        self._steps = AgentSteps(retry, estimated_tokens, _tokens_of)

    async def execute(
        self,
        *,
        operation_id: DurableOperationId,
        name: str,
        body: Callable[[], Awaitable[object]],
        cache_key: tuple[object, ...],
        config: None,
    ) -> object:
        """Return the recorded result of an operation, or run it as a step.

        Returns
        -------
        object
            A JSON value.
        """
        flow = current_flow()
        if flow is None:  # outside of flows, or in a step
            return await body()
        if isinstance(operation_id, ModelRequestId):
            return await self._steps.request(flow, name, body)
        return await step(flow, name, body)


def _tokens_of(answer: Any) -> tuple[int, int]:
    usage = answer.get("response", answer).get("usage", {})
    return usage.get("input_tokens", 0), usage.get("output_tokens", 0)


class _Names(JournalOperationNamer):
    """Names of steps that say what an agent does: ``guide.model``, ``guide.find_hotel``."""

    def __init__(self, agent: str) -> None:
        super().__init__(agent)
        self._agent = agent

    def invocation_name(self, operation_id: DurableOperationId, *, label: str | None) -> Any:
        standard = super().invocation_name(operation_id, label=label)
        match operation_id:
            case ModelRequestId(model_id=None):
                return replace(standard, operation_name=f"{self._agent}.model")
            case ModelRequestId(model_id=model):
                return replace(standard, operation_name=f"{self._agent}.model.{model}")
            case ToolsetCallToolId():
                return replace(standard, operation_name=f"{self._agent}.{label}")
        return standard


def _config_of_tool(operation_id: DurableOperationId, tool: Any, name: str) -> Literal[False] | None:
    metadata = getattr(getattr(tool, "tool_def", None), "metadata", None) or {}
    return False if metadata.get(TOOL_METADATA) is False else None
