"""What does a job say of the agent that it is a task of? The attributes ``ext_agent_*``. (ojs-ai-agents.md)

Most of them are for the handler, and are only checked here. The server keeps what the client must not: how many tokens
were used, how deep a delegation is, which model answered, and what tools brought about.
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

PREFIX: Final = "ext_agent_"

SYSTEM_MANAGED: Final = frozenset(
    PREFIX + name for name in ("tokens_used", "model_used", "tool_results", "delegation_depth")
)
"""What only the server sets; a client's values are ignored (section 7.2)."""

DEEPEST_DELEGATION: Final = 10
"""How deep agents delegate to agents, if nobody says otherwise (section 2.3)."""

LARGEST_STATE: Final = 262_144
"""How many bytes what the server keeps of an agent's task may take."""

FINAL_ERRORS: Final = frozenset(
    {
        "AGENT_TOKEN_BUDGET_EXCEEDED",
        "AGENT_MAX_DELEGATION_DEPTH",
        "AGENT_TOOL_NOT_FOUND",
        "AGENT_CONSENSUS_FAILED",
        "AGENT_INVALID_PARAMETER",
    }
)
"""Errors after which a job is not tried again, whatever its policy says (section 6.3)."""


class InvalidAgentParameter(InvalidRequest):
    """An attribute of an agent's task is malformed, or outside of its range."""

    code = error_type = "AGENT_INVALID_PARAMETER"


class DelegatedTooDeep(InvalidRequest):
    """An agent delegates that must not (section 3.3)."""

    code = error_type = "AGENT_MAX_DELEGATION_DEPTH"


class ToolNotFound(InvalidRequest):
    """A tool was used that the task has not declared (section 3.4)."""

    code = error_type = "AGENT_TOOL_NOT_FOUND"


class TokenBudgetExceeded(OjsterError):
    """There are too few tokens left for a call (section 3.1)."""

    code = error_type = "AGENT_TOKEN_BUDGET_EXCEEDED"
    status = 429
    retryable = False


class OutputRefused(OjsterError):
    """The result of a task does not have the shape that was agreed on (section 2.4)."""

    code = error_type = "AGENT_OUTPUT_SCHEMA_VIOLATION"
    status = 422


class Agent(msgspec.Struct, frozen=True):
    """What the server needs to know of an agent's task.

    Parameters
    ----------
    budget:
        How many tokens it and those to which it delegates may use.
    parent_id:
        Which job has delegated it.
    max_depth:
        How deep a delegation may be.
    checks_output:
        Whether its result must have a shape.
    """

    budget: int | None = None
    parent_id: str | None = None
    max_depth: int | None = None
    checks_output: bool = False


class AgentState(msgspec.Struct, omit_defaults=True):
    """What the server keeps of an agent's task, as JSON.

    Attributes
    ----------
    tokens_used:
        By itself and by those to which it delegated; those of calls that run now as they were estimated.
    estimated, estimated_in:
        How many of them are estimates of calls that run, and of which attempt.
    inherited:
        Attributes that it has from the job that delegated it.
    """

    tokens_used: int = 0
    budget: int | None = None
    parent_id: str | None = None
    depth: int = 0
    max_depth: int = DEEPEST_DELEGATION
    checks_output: bool = False
    model_used: str | None = None
    llm_calls: int = 0
    tool_results: list[dict[str, Any]] = []
    estimated: int = 0
    estimated_in: int = 0
    inherited: list[str] = []

    @property
    def left(self) -> int | None:
        """How many tokens may still be used; ``None``: any number."""
        return None if self.budget is None else max(0, self.budget - self.tokens_used)

    def to_json(self) -> bytes:
        """Return what is shown of it among the attributes of its job, with a comma before each."""
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


def is_agents(names: Mapping[str, Any]) -> bool:
    """Whether a job with attributes of these names is a task of an agent."""
    return any(name.startswith(PREFIX) for name in names)


def read_agent(members: Mapping[str, msgspec.Raw]) -> Agent:
    """Return what the server needs to know of a task with these attributes.

    Attributes that are not known, and such as are ``null``, mean nothing.

    Raises
    ------
    InvalidAgentParameter
        One of them is malformed, or outside of its range.
    """
    given = {name: bytes(raw) for name, raw in members.items() if name.startswith(PREFIX)}
    return _read(tuple(sorted(given.items())))


@lru_cache(maxsize=1024)
def _read(given: tuple[tuple[str, bytes], ...]) -> Agent:
    values = {name.removeprefix(PREFIX): read_value(raw, name) for name, raw in given if name not in SYSTEM_MANAGED}
    agent = {name: value for name, value in values.items() if value is not None}
    _check_simple(agent)
    _check_tools(agent.get("tools", []))
    for source in agent.get("context_sources", []):
        if not isinstance(source, dict) or source.get("type") not in _SOURCES:
            raise _wrong("context_sources", f"made of objects whose 'type' is one of {', '.join(_SOURCES)}", source)
        if not all(isinstance(source.get(name), str) for name in ("name", "endpoint")):
            raise _wrong("context_sources", "made of objects with a 'name' and an 'endpoint'", source)
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
_COUNTS: Final = {  # and the least that each may be
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
_TOOL_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,63}")


def _check_simple(agent: Mapping[str, Any]) -> None:
    for name in _TEXTS:
        if name in agent and not (isinstance(agent[name], str) and agent[name]):
            raise _wrong(name, "a string that is not empty", agent[name])
    for name, least in _COUNTS.items():
        if name in agent and not (type(agent[name]) is int and least <= agent[name] <= _LARGEST):
            raise _wrong(name, f"an integer from {least} on", agent[name])
    for name, choices in _CHOICES.items():
        if name in agent and agent[name] not in choices:
            raise _wrong(name, "one of " + ", ".join(choices), agent[name])
    if "temperature" in agent and not (_is_number(agent["temperature"]) and 0 <= agent["temperature"] <= 2):
        raise _wrong("temperature", "a number from 0.0 to 2.0", agent["temperature"])
    threshold = agent.get("voting_threshold", 1)
    if not (_is_number(threshold) and 0 < threshold <= 1):
        raise _wrong("voting_threshold", "a number greater than 0.0 and at most 1.0", threshold)
    if not isinstance(agent.get("consensus_required", False), bool):
        raise _wrong("consensus_required", "true or false", agent["consensus_required"])
    models = agent.get("fallback_models", [])
    if not isinstance(models, list) or not all(isinstance(model, str) and model for model in models):
        raise _wrong("fallback_models", "an array of names", models)
    for name in ("tools", "context_sources"):
        if not isinstance(agent.get(name, []), list):
            raise _wrong(name, "an array of objects", agent[name])


def _check_tools(tools: list[Any]) -> None:
    """Refuse tools that are malformed, or have the name of another (section 4)."""
    names: set[str] = set()
    for tool in tools:
        if not isinstance(tool, dict):
            raise _wrong("tools", "made of objects", tool)
        name = tool.get("name")
        if not isinstance(name, str) or not _TOOL_NAME.fullmatch(name):
            raise _wrong("tools", "made of tools whose 'name' is a lower-case word of at most 64 characters", name)
        if name in names:
            raise _wrong("tools", "made of tools with different names", name)
        names.add(name)
        if not isinstance(tool.get("description"), str):
            raise _wrong("tools", f"made of tools with a 'description', which {name!r} lacks", tool)
        _check_schema("tools", tool.get("parameters"))


def _check_schema(name: str, schema: Any) -> None:
    if not isinstance(schema, dict):
        raise _wrong(name, "a JSON Schema, or have one for its parameters", schema)
    try:
        compile_schema(schema)
    except Unsupported:
        return  # nor can anything be checked by it
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
    """Return what is wrong with a job's result, as far as this server can check it."""
    check = _compiled(bytes(_declared(envelope).ext_agent_output_schema))
    if check is None:
        return []
    try:
        value = None if result is None else msgspec.json.decode(result)
    except msgspec.DecodeError as error:
        return [f"It cannot be read: {error}."]
    return [problem.replace("args", "result", 1) for problem in check(value)]


@lru_cache(maxsize=256)
def _compiled(schema: bytes) -> Check | None:
    with contextlib.suppress(Unsupported):
        return compile_schema(msgspec.json.decode(schema))
    return None
