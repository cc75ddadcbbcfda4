"""Agent tasks: jobs with ``ext_agent_*`` attributes.

Most of the attributes are for the handler and are only validated here. The server manages the others: tokens used,
delegation depth, model used, and tool results.

Spec: ojs-ai-agents
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

import msgspec

from ojster.core.errors import InvalidRequest, OjsterError, Unsupported
from ojster.core.json_schema import Check, compile_schema
from ojster.core.parsing import read_value
from ojster.core.short_cache import cache_short

PREFIX: Final = "ext_agent_"

SYSTEM_MANAGED: Final = frozenset(
    PREFIX + name for name in ("tokens_used", "model_used", "tool_results", "delegation_depth")
)
"""Attributes that only the server sets; values from clients are ignored.

Spec: ojs-ai-agents 7.2
"""

DEFAULT_MAX_DELEGATION_DEPTH: Final = 10
"""Default maximum delegation depth.

Spec: ojs-ai-agents 2.3
"""

MAX_AGENT_STATE_BYTES: Final = 262_144
"""Maximum size of the state that the server stores for an agent task, in bytes."""

FINAL_ERRORS: Final = frozenset(
    {
        "AGENT_TOKEN_BUDGET_EXCEEDED",
        "AGENT_MAX_DELEGATION_DEPTH",
        "AGENT_TOOL_NOT_FOUND",
        "AGENT_CONSENSUS_FAILED",
        "AGENT_INVALID_PARAMETER",
    }
)
"""Error codes that are never retried, whatever the retry policy.

Spec: ojs-ai-agents 6.3
"""


class InvalidAgentParameter(InvalidRequest):
    """An attribute of an agent task is malformed or out of range."""

    code = error_type = "AGENT_INVALID_PARAMETER"


class DelegationTooDeep(InvalidRequest):
    """A delegation exceeds the maximum depth.

    Spec: ojs-ai-agents 3.3
    """

    code = error_type = "AGENT_MAX_DELEGATION_DEPTH"


class ToolNotFound(InvalidRequest):
    """The task used a tool that it does not declare.

    Spec: ojs-ai-agents 3.4
    """

    code = error_type = "AGENT_TOOL_NOT_FOUND"


class TokenBudgetExceeded(OjsterError):
    """The remaining token budget is too small for a call.

    Spec: ojs-ai-agents 3.1
    """

    code = error_type = "AGENT_TOKEN_BUDGET_EXCEEDED"
    status = 429
    retryable = False


class OutputSchemaViolation(OjsterError):
    """The result of a task does not match its ``output_schema``.

    Spec: ojs-ai-agents 2.4
    """

    code = error_type = "AGENT_OUTPUT_SCHEMA_VIOLATION"
    status = 422


class Agent(msgspec.Struct, frozen=True):
    """The attributes of an agent task that the server uses.

    Parameters
    ----------
    budget:
        Maximum number of tokens for the task and its delegates together; ``None``: unlimited.
    parent_id:
        Id of the job that delegated it.
    max_depth:
        Maximum delegation depth.
    checks_output:
        Whether its result must match a schema.
    """

    budget: int | None = None
    parent_id: str | None = None
    max_depth: int | None = None
    checks_output: bool = False


class AgentState(msgspec.Struct, omit_defaults=True):
    """The state of an agent task, which the server stores as JSON.

    Attributes
    ----------
    tokens_used:
        Tokens used by the task and its delegates, including the estimates of running calls.
    estimated, estimated_in:
        Estimated tokens of running calls, and the attempt that made them.
    inherited:
        Names of the attributes inherited from the delegating job.
    """

    tokens_used: int = 0
    budget: int | None = None
    parent_id: str | None = None
    depth: int = 0
    max_depth: int = DEFAULT_MAX_DELEGATION_DEPTH
    checks_output: bool = False
    model_used: str | None = None
    llm_calls: int = 0
    tool_results: list[dict[str, Any]] = []
    estimated: int = 0
    estimated_in: int = 0
    inherited: list[str] = []

    @property
    def left(self) -> int | None:
        """The number of tokens left in the budget; ``None``: unlimited."""
        return None if self.budget is None else max(0, self.budget - self.tokens_used)

    def to_json(self) -> bytes:
        """Return its attributes for the JSON of the job, each preceded by a comma."""
        shown: dict[str, Any] = {"delegation_depth": self.depth}
        if self.budget is not None or self.tokens_used:
            shown["tokens_used"] = self.tokens_used
        if "token_budget" in self.inherited:
            shown["token_budget"] = self.budget
        if "max_delegation_depth" in self.inherited:
            shown["max_delegation_depth"] = self.max_depth
        if self.model_used is not None:
            shown["model_used"] = self.model_used
        if self.tool_results:
            shown["tool_results"] = self.tool_results
        return b"".join(b',"%b%b":%b' % (PREFIX.encode(), name.encode(), _encode(shown[name])) for name in shown)


_encode: Final = msgspec.json.Encoder().encode
encode_state: Final = _encode
decode_state: Final = msgspec.json.Decoder(AgentState).decode


def is_agent_task(names: Mapping[str, Any]) -> bool:
    """Return whether a job with these attribute names is an agent task."""
    return any(name.startswith(PREFIX) for name in names)


def read_agent(members: Mapping[str, msgspec.Raw]) -> Agent:
    """Return the agent task described by these attributes. Unknown and ``null`` attributes are ignored.

    Raises
    ------
    InvalidAgentParameter
        An attribute is malformed or out of range.
    """
    own_members = {name: bytes(raw) for name, raw in members.items() if name.startswith(PREFIX)}
    return _read(tuple(sorted(own_members.items())))


@cache_short(1024)
def _read(members: tuple[tuple[str, bytes], ...]) -> Agent:
    values = {name.removeprefix(PREFIX): read_value(raw, name) for name, raw in members if name not in SYSTEM_MANAGED}
    agent = {name: value for name, value in values.items() if value is not None}
    _check_simple(agent)
    _check_tools(agent.get("tools", []))
    for source in agent.get("context_sources", []):
        if not isinstance(source, dict) or source.get("type") not in _SOURCES:
            raise _wrong("context_sources", f"an array of objects with a 'type' of {', '.join(_SOURCES)}", source)
        if not all(isinstance(source.get(name), str) for name in ("name", "endpoint")):
            raise _wrong("context_sources", "an array of objects with a 'name' and an 'endpoint'", source)
    if agent.get("context_window", 0) > agent.get("max_tokens", _LARGEST):
        raise _wrong("context_window", f"at most '{PREFIX}max_tokens'", agent["context_window"])
    if "output_schema" in agent:
        _check_schema("output_schema", agent["output_schema"])
    return Agent(
        agent.get("token_budget"),
        agent.get("parent_id"),
        agent.get("max_delegation_depth"),
        "output_schema" in agent,
    )


_LARGEST: Final = 10**12
_SOURCES: Final = ("vector_db", "document_store", "api")
_TEXTS: Final = ("model", "provider", "parent_id", "role", "team_id")
_COUNTS: Final = {  # name: minimum
    "max_tokens": 1,
    "token_budget": 0,
    "tool_timeout_ms": 1,
    "max_delegation_depth": 0,
    "context_window": 0,
}
_CHOICES: Final = {
    "tool_choice": ("auto", "required", "none"),
    "output_format": ("json", "text", "markdown"),
    "retrieval_strategy": ("similarity", "mmr", "hybrid"),
}
_STRUCTURED: Final = (
    "temperature",
    "voting_threshold",
    "consensus_required",
    "fallback_models",
    "tools",
    "context_sources",
    "output_schema",
)

ATTRIBUTES: Final = frozenset(PREFIX + name for name in (*_TEXTS, *_COUNTS, *_CHOICES, *_STRUCTURED))
"""The attributes of requests."""

NEED_CONTEXT: Final = frozenset({"model", "fallback_models", "token_budget", "tools", "tool_timeout_ms"})
"""The attributes, without their prefix, that only ``JobContext.agent`` applies."""

_TOOL_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,63}")


def _check_simple(agent: Mapping[str, Any]) -> None:
    for name in _TEXTS:
        if name in agent and not (isinstance(agent[name], str) and agent[name]):
            raise _wrong(name, "a string that is not empty", agent[name])
    for name, least in _COUNTS.items():
        if name in agent and not (type(agent[name]) is int and least <= agent[name] <= _LARGEST):
            raise _wrong(name, f"an integer from {least} to {_LARGEST}", agent[name])
    for name, choices in _CHOICES.items():
        if name in agent and agent[name] not in choices:
            raise _wrong(name, "one of " + ", ".join(choices), agent[name])
    _check_sampling(agent)
    models = agent.get("fallback_models", [])
    if not isinstance(models, list) or not all(isinstance(model, str) and model for model in models):
        raise _wrong("fallback_models", "an array of names", models)
    for name in ("tools", "context_sources"):
        if not isinstance(agent.get(name, []), list):
            raise _wrong(name, "an array of objects", agent[name])


def _check_sampling(agent: Mapping[str, Any]) -> None:
    if "temperature" in agent and not (_is_number(agent["temperature"]) and 0 <= agent["temperature"] <= 2):
        raise _wrong("temperature", "a number from 0.0 to 2.0", agent["temperature"])
    threshold = agent.get("voting_threshold", 1)
    if not (_is_number(threshold) and 0 < threshold <= 1):
        raise _wrong("voting_threshold", "a number greater than 0.0 and at most 1.0", threshold)
    if not isinstance(agent.get("consensus_required", False), bool):
        raise _wrong("consensus_required", "true or false", agent["consensus_required"])


def _check_tools(tools: list[Any]) -> None:
    """Check that the tools are well-formed and have different names.

    Spec: ojs-ai-agents 4
    """
    names: set[str] = set()
    for tool in tools:
        if not isinstance(tool, dict):
            raise _wrong("tools", "an array of objects", tool)
        name = tool.get("name")
        if not isinstance(name, str) or not _TOOL_NAME.fullmatch(name):
            raise _wrong("tools", "an array of tools with a lower-case 'name' of at most 64 characters", name)
        if name in names:
            raise _wrong("tools", "an array of tools with different names", name)
        names.add(name)
        if not isinstance(tool.get("description"), str):
            raise _wrong("tools", f"an array of tools with a 'description', missing in {name!r}", tool)
        _check_schema("tools", tool.get("parameters"))


def _check_schema(name: str, schema: Any) -> None:
    if not isinstance(schema, dict):
        raise _wrong(name, "a JSON Schema, or an array of tools with a JSON Schema in 'parameters'", schema)
    try:
        compile_schema(schema)
    except Unsupported:
        return  # this server cannot check values against it either
    except InvalidRequest as error:
        raise InvalidAgentParameter(f"'{PREFIX}{name}': {error.message}", field=PREFIX + name) from None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _wrong(name: str, meaning: str, value: Any) -> InvalidAgentParameter:
    return InvalidAgentParameter(
        f"The '{PREFIX}{name}' attribute must be {meaning}, not {value!r:.80}.", field=PREFIX + name
    )


class _Declared(msgspec.Struct):
    ext_agent_output_schema: msgspec.Raw = msgspec.Raw(b"true")
    ext_agent_tools: list[dict[str, Any]] | None = None


_declared: Final = msgspec.json.Decoder(_Declared).decode


def tools_of(envelope: bytes) -> list[str]:
    """Return the names of the tools that a job may use."""
    return [tool["name"] for tool in _declared(envelope).ext_agent_tools or []]


def check_output(envelope: bytes, result: bytes | None) -> list[str]:
    """Return the violations of ``output_schema`` in a job's result; empty if none, or if no validator is installed."""
    check = _compiled(bytes(_declared(envelope).ext_agent_output_schema))
    if check is None:
        return []
    try:
        value = None if result is None else msgspec.json.decode(result)
    except msgspec.DecodeError as error:
        return [f"The result is not valid JSON: {error}."]
    return [problem.replace("args", "result", 1) for problem in check(value)]


@lru_cache(maxsize=256)
def _compiled(schema: bytes) -> Check | None:
    with contextlib.suppress(Unsupported):
        return compile_schema(msgspec.json.decode(schema))
    return None
