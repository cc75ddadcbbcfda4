"""Workflows without a type, as the official SDKs send them: steps with ids, some of which are callbacks.

The SDKs for Go, Java, Python and Ruby send chains, groups and batches alike: a list of steps with ids, and with
``depends_on`` where one follows others. A callback of a batch depends on all jobs of it. It names its event in
``options.callback_type``, or has the event as its id.
"""

from __future__ import annotations

from typing import Final

import msgspec

from ojster.core.json_objects import Members, raw_list, read_members
from ojster.workflows.node import Rule

_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.decode

_RULES: Final = {"on_complete": Rule.FINISHED, "on_success": Rule.SUCCEEDED, "on_failure": Rule.FAILED}


def is_graph(members: Members) -> bool:
    """Whether a request without a type is a graph: at least one step has an ``id`` or ``depends_on``."""
    if "type" in members or "job_type" in members:
        return False
    return any("depends_on" in step or "id" in step for step in _steps_of(members))


def read_callbacks(members: Members) -> Members:
    """Return the members of a graph without a type, in which each callback has the ``when`` that its event means."""
    steps = _steps_of(members)
    event_of = {position: event for position, step in enumerate(steps) if (event := _event_of(step)) is not None}
    if not event_of:
        return members
    jobs = {_text(step, "id") for position, step in enumerate(steps) if position not in event_of}
    for position, event in event_of.items():
        step = steps[position]
        if _names_in(step) == jobs:
            step.setdefault("when", msgspec.Raw(_encode(_RULES[event].value)))
    return members | {"steps": msgspec.Raw(_encode(steps))}


def _steps_of(members: Members) -> list[Members]:
    """Return the members of each step; nothing if one is not an object, which the planner reports."""
    raw = bytes(members.get("steps", b""))
    if raw[:1] != b"[" or not (b'"id"' in raw or b'"depends_on"' in raw):
        return []
    steps = raw_list(raw)
    return [read_members(step, "A step") for step in steps] if all(bytes(step)[:1] == b"{" for step in steps) else []


def _event_of(step: Members) -> str | None:
    """Return the event of a batch for which a step is the callback; ``None`` if it is none."""
    options = bytes(step.get("options", b"null"))
    said = _text(read_members(options, "options"), "callback_type") if options[:1] == b"{" else None
    event = said or (_text(step, "id") or "").replace("-", "_")
    return event if event in _RULES else None


def _names_in(step: Members) -> set[str | None] | None:
    try:
        return set(_decode(step.get("depends_on", b"null"), type=list[str | None]))
    except msgspec.ValidationError:
        return None


def _text(members: Members, name: str) -> str | None:
    raw = bytes(members.get(name, b"null"))
    return str(_decode(raw)) if raw[:1] == b'"' else None
