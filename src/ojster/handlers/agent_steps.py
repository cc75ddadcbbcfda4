"""What an agent does in a flow, as local steps: requests to models, which are made again after a pause, and tools."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from contextvars import copy_context
from typing import Any, Final
from weakref import WeakKeyDictionary

import msgspec

from ojster.core.durations import SECOND
from ojster.handlers import flow_loop
from ojster.handlers.agent import Reply
from ojster.handlers.error_types import class_name
from ojster.handlers.flow import Flow
from ojster.handlers.flow_errors import StepFailed
from ojster.handlers.job_options import Retry
from ojster.jobs.policy_wire import parse_retry_policy

ESTIMATED_TOKENS: Final = 1_000
"""Default estimate of the tokens of a model request."""

TokensOf = Callable[[Any], tuple[int, int]]
"""Returns the input and output tokens of a recorded answer of a model."""


def current_flow() -> Flow | None:
    """Return the flow whose function calls this; ``None`` elsewhere, also in steps of a flow.

    Returns
    -------
    Flow or None
        The flow.

    Examples
    --------
    >>> from ojster.pydantic_ai import current_flow
    >>> current_flow() is None
    True
    """
    loop = asyncio._get_running_loop()
    return loop.flow if isinstance(loop, flow_loop.FlowLoop) else None


class AgentSteps:
    """Makes local steps of what an agent does.

    Parameters
    ----------
    retry:
        How often, and after which pauses, a model request is made again that raises an exception.
    estimated_tokens:
        Tokens that a request is charged in advance if the flow has a token budget.
    tokens_of:
        What an answer says of the tokens that it has taken.
    """

    def __init__(self, retry: Retry, estimated_tokens: int, tokens_of: TokensOf) -> None:
        self._policy = parse_retry_policy(msgspec.json.decode(msgspec.json.encode(retry.to_wire())))
        self._estimated_tokens = estimated_tokens
        self._tokens_of = tokens_of

    async def request(self, flow: Flow, name: str, body: Callable[[], Awaitable[object]]) -> Any:
        """Return the recorded answer of a model, or ask it; again after a pause if that raises an exception."""
        key = first = numbered(flow, name)
        attempt = 1
        while True:
            try:
                return await flow.keyed(key).step(name, _in_context(self._within_budget(flow, body)))
            except Exception as error:
                if attempt >= self._policy.max_attempts or self._policy.forbids(_type_of(error)):
                    raise
            await flow.sleep(self._policy.delay(attempt, flow.random.random()) / SECOND)
            attempt += 1
            key = f"{first}/{attempt}"

    def _within_budget(self, flow: Flow, body: Callable[[], Awaitable[object]]) -> Callable[[], Awaitable[object]]:
        if b'"ext_agent' not in flow.job.job.envelope:  # the flow is no agent task: nobody counts its tokens
            return body

        async def request(model: str) -> Reply[object]:
            answer = await body()
            return Reply(answer, *self._tokens_of(answer))

        return lambda: flow.job.agent.ask(request, estimated_tokens=self._estimated_tokens)


async def step(flow: Flow, name: str, body: Callable[[], Awaitable[object]]) -> Any:
    """Return the recorded result of something, or do it as a step."""
    return await flow.keyed(numbered(flow, name)).step(name, _in_context(body))


_numbers: Final[WeakKeyDictionary[flow_loop.FlowLoop, Counter[str]]] = WeakKeyDictionary()


def numbered(flow: Flow, name: str) -> str:
    """Return a key that says how often something has come in a flow, in whichever task.

    The tasks of an agent are the library's. Keys with their names would change with its versions.
    """
    loop = flow._execution.loop
    counts = _numbers.setdefault(loop, Counter())
    counts[name] += 1
    return name if counts[name] == 1 else f"{name}#{counts[name]}"


def _in_context(body: Callable[[], Awaitable[object]]) -> Callable[[], Awaitable[object]]:
    """Return a step that has the context variables of the agent's run, such as its trace."""
    context = copy_context()

    async def run() -> object:
        return await body()

    async def step() -> object:
        return await asyncio.create_task(run(), context=context)

    return step


def _type_of(error: Exception) -> str:
    return str(error.error["type"]) if isinstance(error, StepFailed) else class_name(type(error))
