"""Agent handlers: model calls within a token budget, tool calls, and delegation.

>>> @app.job("summarize", agent={"model": "large", "fallback_models": ["small"], "token_budget": 8000})
... async def summarize(job: JobContext, text: str) -> str:
...     async def ask(model: str) -> Reply[str]: ...  # call the provider; raise ModelUnavailable if it cannot answer
...     return await job.agent.ask(ask, estimated_tokens=1500)

Spec: ojs-ai-agents
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final, Generic, ParamSpec, Protocol, TypeVar

import msgspec

from ojster.agents.attributes import AgentState, ToolNotFound
from ojster.agents.budgets import Account
from ojster.core.ids import new_id
from ojster.core.job import Job

P = ParamSpec("P")
T = TypeVar("T")
H = TypeVar("H", covariant=True)


class Delegate(Protocol[P, H]):
    """A job type that an agent can delegate to: ``ojster.JobType``."""

    @property
    def options(self) -> Any:
        """The options of the type; ``agent`` among them."""

    @property
    def using(self) -> Callable[..., Any]:
        """Returns the type with other options."""

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> H:
        """Enqueue a job."""


DEFAULT_TOOL_TIMEOUT_MS: Final = 30_000
"""Default timeout of a tool call, in milliseconds."""


class ModelUnavailable(Exception):
    """A model does not answer: rate limit, overload or no connection. Another model may answer."""

    error_type = "AGENT_MODEL_UNAVAILABLE"


class ToolFailed(Exception):
    """A tool raised an exception."""

    error_type = "AGENT_TOOL_EXECUTION_FAILED"


class ToolTimeout(ToolFailed):
    """A tool call took longer than its job's tool timeout."""

    error_type = "AGENT_TOOL_TIMEOUT"


class Reply(msgspec.Struct, Generic[T], frozen=True):
    """A model's answer and the tokens it used."""

    value: T
    prompt_tokens: int = 0
    completion_tokens: int = 0


class Usage(msgspec.Struct):
    """Tokens and model calls of one attempt; useful as part of the job's result.

    Spec: ojs-ai-agents 3.1
    """

    prompt_tokens: int = 0
    completion_tokens: int = 0
    total_tokens: int = 0
    llm_calls: int = 0


class AgentTask:
    """The task of an agent; handlers get it as ``JobContext.agent``.

    Attributes
    ----------
    models:
        Names of the models to ask, in order.
    tools:
        Names of the tools that the job declares.
    usage:
        Usage of this attempt so far.
    """

    def __init__(self, job: Job, worker_id: str, account: Callable[[Account], Awaitable[AgentState]]) -> None:
        said = _read_agent_options(job.envelope)
        self.models = ([said.ext_agent_model] if said.ext_agent_model else []) + said.ext_agent_fallback_models
        self.tools = [str(tool["name"]) for tool in said.ext_agent_tools]
        self.usage = Usage()
        self._tool_timeout = said.ext_agent_tool_timeout_ms / 1000
        self._job = job
        self._worker_id = worker_id
        self._account = account

    async def ask(self, ask: Callable[[str], Awaitable[Reply[T]]], *, estimated_tokens: int) -> T:
        """Ask the models in order until one answers.

        Parameters
        ----------
        ask:
            Function that asks the model with the given name. It raises ``ModelUnavailable`` if the model does not
            answer; such a call must not have used tokens.
        estimated_tokens:
            Estimated tokens of a call. They are charged before the call and replaced by the actual number after it. If
            ``ask`` raises another exception, the estimate stays charged.

        Raises
        ------
        TokenBudgetExceeded
            The budget of the job, or of a job that delegated it, is too small for the call. The model is not asked, and
            the job is not retried.
        ModelUnavailable
            None of the models answers.
        """
        unavailable: list[str] = []
        for model in self.models or [""]:
            await self._record_usage(tokens=estimated_tokens, is_estimate=True)
            try:
                reply = await ask(model)
            except ModelUnavailable as error:
                await self._record_usage(estimated=estimated_tokens)
                unavailable.append(f"{model}: {error}")
                continue
            used = reply.prompt_tokens + reply.completion_tokens
            await self._record_usage(tokens=used, estimated=estimated_tokens, model=model or None)
            self.usage.prompt_tokens += reply.prompt_tokens
            self.usage.completion_tokens += reply.completion_tokens
            self.usage.total_tokens += used
            self.usage.llm_calls += 1
            return reply.value
        raise ModelUnavailable("No model answers. " + "; ".join(unavailable))

    async def use_tool(self, name: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call a tool that the job declares, within the tool timeout, and record its result or error on the job.

        Parameters
        ----------
        function:
            Function to call with the remaining arguments; one that is not a coroutine function runs in a thread. Its
            result must be JSON-serializable.

        Raises
        ------
        ToolNotFound
            The job does not declare the tool.
        ToolTimeout
            The tool took longer than the tool timeout.
        ToolFailed
            The tool raised an exception, which is the cause.
        """
        if name not in self.tools:
            raise ToolNotFound(
                f"The job does not declare the tool {name!r:.80}. Declare it, or use one of: "
                f"{', '.join(self.tools) or 'none'}."
            )
        started = time.perf_counter()
        limit = asyncio.timeout(self._tool_timeout)
        try:
            async with limit:
                result = await _call(function, args, kwargs)
        except Exception as error:
            failure = ToolFailed(f"{name}: {error or type(error).__name__}")
            if limit.expired():
                failure = ToolTimeout(
                    f"The tool {name!r} took longer than {self._tool_timeout:g} s. Raise tool_timeout_ms to allow more."
                )
            await self._record_tool_call(name, started, error=failure)
            raise failure from error
        await self._record_tool_call(name, started, result if isinstance(result, dict) else {"value": result})
        return result

    async def delegate(self, to: Delegate[P, H], *args: P.args, **kwargs: P.kwargs) -> H:
        """Enqueue a job that does part of this job's work. It shares this job's token budget and is one level deeper.

        Raises
        ------
        InvalidRequest
            The new job would exceed the maximum delegation depth (``AGENT_MAX_DELEGATION_DEPTH``).
        """
        child = to.using(agent={**(to.options.agent or {}), "parent_id": self._job.id})
        handle: H = await child.aenqueue(*args, **kwargs)
        return handle

    async def _record_tool_call(
        self, name: str, started: float, result: dict[str, Any] | None = None, error: ToolFailed | None = None
    ) -> None:
        failure = None if error is None else {"code": error.error_type, "message": str(error)}
        took = round((time.perf_counter() - started) * 1000)
        shown = {"tool_call_id": f"call_{new_id()}", "name": name, "result": result, "latency_ms": took}
        await self._record_usage(tool_result=shown | {"error": failure})

    async def _record_usage(self, **said: Any) -> AgentState:
        return await self._account(Account(self._job.id, worker_id=self._worker_id, attempt=self._job.attempt, **said))


async def _call(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if inspect.iscoroutinefunction(function):
        return await function(*args, **kwargs)
    result = await asyncio.to_thread(function, *args, **kwargs)
    return await result if inspect.isawaitable(result) else result


class _AgentOptions(msgspec.Struct):
    ext_agent_model: str | None = None
    ext_agent_fallback_models: list[str] = []
    ext_agent_tools: list[dict[str, Any]] = []
    ext_agent_tool_timeout_ms: int = DEFAULT_TOOL_TIMEOUT_MS


_read_agent_options: Final = msgspec.json.Decoder(_AgentOptions).decode
