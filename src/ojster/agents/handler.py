"""What does a handler do that is an agent? Ask models within its budget, use tools, delegate. (ojs-ai-agents.md)

>>> @app.job("summarize", agent={"model": "large", "fallback_models": ["small"], "token_budget": 8000})
... async def summarize(job: JobContext, text: str) -> str:
...     async def ask(model: str) -> Reply[str]: ...  # call the provider; raise ModelUnavailable if it cannot answer
...     return await job.agent.ask(ask, estimated_tokens=1500)
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import msgspec

from ojster.agents.attributes import AgentState, ToolNotFound
from ojster.agents.budgets import Account
from ojster.core.ids import new_id
from ojster.core.job import Job

if TYPE_CHECKING:
    from ojster.app import JobHandle, JobType

T = TypeVar("T")

DEFAULT_TOOL_TIMEOUT: Final = 30_000
"""For how long a tool may run, in milliseconds, if its job does not say."""


class ModelUnavailable(Exception):
    """A model does not answer: too many requests, an overload, no connection. Another one may."""

    error_type = "AGENT_MODEL_UNAVAILABLE"


class ToolFailed(Exception):
    """A tool raised an exception."""

    error_type = "AGENT_TOOL_EXECUTION_FAILED"


class ToolTimeout(ToolFailed):
    """A tool took longer than its job allows."""

    error_type = "AGENT_TOOL_TIMEOUT"


class Reply(msgspec.Struct, Generic[T], frozen=True):
    """What a model has answered, and how many tokens that took."""

    value: T
    prompt_tokens: int = 0
    completion_tokens: int = 0


class Usage(msgspec.Struct):
    """What this attempt has used; worth being part of the job's result (section 3.1)."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    total_tokens: int = 0
    llm_calls: int = 0


class AgentTask:
    """An agent's task, as its handler sees it: ``JobContext.agent``.

    Attributes
    ----------
    models:
        Which models to ask, the first first.
    tools:
        The names of the tools that may be used.
    usage:
        What this attempt has used so far.
    """

    def __init__(self, job: Job, worker_id: str, account: Callable[[Account], Awaitable[AgentState]]) -> None:
        said = _said(job.envelope)
        self.models = ([said.ext_agent_model] if said.ext_agent_model else []) + said.ext_agent_fallback_models
        self.tools = [str(tool["name"]) for tool in said.ext_agent_tools]
        self.usage = Usage()
        self._tool_timeout = said.ext_agent_tool_timeout_ms / 1000
        self._job = job
        self._worker_id = worker_id
        self._account = account

    async def ask(self, ask: Callable[[str], Awaitable[Reply[T]]], *, estimated_tokens: int) -> T:
        """Ask the models in their order until one answers.

        Parameters
        ----------
        ask:
            Asks the model of a name; raises ``ModelUnavailable`` if it does not answer, which must have cost nothing.
        estimated_tokens:
            How many tokens the call will take: charged before it is made, and put right afterwards. If it raises
            something else, they stay charged.

        Raises
        ------
        TokenBudgetExceeded
            The job, or one that has delegated it, has too few tokens left. Nobody was asked, and the job is not tried
            again.
        ModelUnavailable
            None of them answers.
        """
        unavailable: list[str] = []
        for model in self.models or [""]:
            await self._note(tokens=estimated_tokens, is_estimate=True)
            try:
                reply = await ask(model)
            except ModelUnavailable as error:
                await self._note(estimated=estimated_tokens)
                unavailable.append(f"{model}: {error}")
                continue
            used = reply.prompt_tokens + reply.completion_tokens
            await self._note(tokens=used, estimated=estimated_tokens, model=model or None)
            self.usage.prompt_tokens += reply.prompt_tokens
            self.usage.completion_tokens += reply.completion_tokens
            self.usage.total_tokens += used
            self.usage.llm_calls += 1
            return reply.value
        raise ModelUnavailable("No model answers. " + "; ".join(unavailable))

    async def use_tool(self, name: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Use a tool that the job has declared, for as long as it allows; what it brings about is noted on the job.

        Parameters
        ----------
        function:
            What to call with the other arguments; a plain function runs in a thread. It returns what JSON can say.

        Raises
        ------
        ToolNotFound
            The job has not declared it.
        ToolTimeout
            It took too long.
        ToolFailed
            It raised an exception, which is the cause.
        """
        if name not in self.tools:
            raise ToolNotFound(f"The job has declared no tool {name!r:.80}; it has: {', '.join(self.tools) or 'none'}.")
        started = time.perf_counter()
        try:
            result = await asyncio.wait_for(_call(function, args, kwargs), self._tool_timeout)
        except TimeoutError as error:
            failure: ToolFailed = ToolTimeout(f"{name} took longer than {self._tool_timeout:g} s.")
            await self._note_tool(name, started, error=failure)
            raise failure from error
        except Exception as error:
            failure = ToolFailed(f"{name}: {error or type(error).__name__}")
            await self._note_tool(name, started, error=failure)
            raise failure from error
        await self._note_tool(name, started, result if isinstance(result, dict) else {"value": result})
        return result

    async def delegate(self, to: JobType[..., Any], *args: Any, **kwargs: Any) -> JobHandle:
        """Enqueue a job that does a part of this one: it shares its budget, and is one level deeper.

        Raises
        ------
        InvalidRequest
            It would be deeper than is allowed (``AGENT_MAX_DELEGATION_DEPTH``).
        """
        child = to.using(agent={**(to.options.agent or {}), "parent_id": self._job.id})
        return await child.aenqueue(*args, **kwargs)

    async def _note_tool(
        self, name: str, started: float, result: dict[str, Any] | None = None, error: ToolFailed | None = None
    ) -> None:
        failure = None if error is None else {"code": error.error_type, "message": str(error)}
        took = round((time.perf_counter() - started) * 1000)
        shown = {"tool_call_id": f"call_{new_id()}", "name": name, "result": result, "latency_ms": took}
        await self._note(tool_result=shown | {"error": failure})

    async def _note(self, **said: Any) -> AgentState:
        return await self._account(Account(self._job.id, worker_id=self._worker_id, attempt=self._job.attempt, **said))


async def _call(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if inspect.iscoroutinefunction(function):
        return await function(*args, **kwargs)
    result = await asyncio.to_thread(function, *args, **kwargs)
    return await result if inspect.isawaitable(result) else result


class _Said(msgspec.Struct):
    ext_agent_model: str | None = None
    ext_agent_fallback_models: list[str] = []
    ext_agent_tools: list[dict[str, Any]] = []
    ext_agent_tool_timeout_ms: int = DEFAULT_TOOL_TIMEOUT


_said: Final = msgspec.json.Decoder(_Said).decode
