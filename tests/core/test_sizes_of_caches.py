"""Caches of parsed requests are bounded in bytes, too: their keys are as large as callers like."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator

import msgspec
import pytest

from ojster.agents.attributes import read_agent
from ojster.core.references import parse_reference
from ojster.events.reaction_rules import read_reactions
from ojster.fleet.ml_resources import read_resources

LARGE = 500_000
MOST_KEPT = 10_000_000


@pytest.fixture
def kept() -> Iterator[Callable[[], int]]:
    tracemalloc.start()
    yield lambda: tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()


def test_references(kept: Callable[[], int]) -> None:
    for number in range(50):
        parse_reference(f"params.a{number}" + "x" * LARGE)
    assert kept() < MOST_KEPT


def test_reactions(kept: Callable[[], int]) -> None:
    for number in range(50):
        notice = {"action": "notify", "channel": "a", "text": f"{number}" + "x" * LARGE}
        read_reactions(msgspec.json.encode({"on_success": [notice]}))
    assert kept() < MOST_KEPT


def test_agents(kept: Callable[[], int]) -> None:
    for number in range(50):
        read_agent({"ext_agent_model": msgspec.Raw(msgspec.json.encode(f"{number}" + "x" * LARGE))})
    assert kept() < MOST_KEPT


def test_resources(kept: Callable[[], int]) -> None:
    for number in range(50):
        read_resources({"ext_ml_unknown": msgspec.Raw(msgspec.json.encode(f"{number}" + "x" * LARGE))})
    assert kept() < MOST_KEPT
