"""Many promises and many lookups in one request: the time grows with their sum, not with their product."""

from __future__ import annotations

import time
from typing import Any

import msgspec

from ojster.core.json_objects import read_members
from ojster.workflows.plan.request import read_workflow
from tests.conftest import START


def planning_time(lookup: Any, size: int) -> float:
    """Return the seconds to plan a workflow of at most 64 KiB with promises and lookups."""
    promising = [{"type": "a", "args": [], "provides": [f"{i:x}.{j:x}" for j in range(20)]} for i in range(size)]
    seeking = {"type": "b", "args": [{"$lookup": [lookup] * (10 * size)}]}
    body = msgspec.json.encode({"type": "chain", "steps": [*promising, seeking]})
    assert len(body) <= 65_536
    started = time.process_time()
    read_workflow(read_members(body), START, largest=1_048_576)
    return time.process_time() - started


def test_lookups_that_match_nothing_are_planned_quickly() -> None:
    assert planning_time("internal/x", 190) < 0.5


def test_lookups_that_match_everything_are_planned_quickly() -> None:
    assert planning_time({"collection": "internal"}, 100) < 0.5
