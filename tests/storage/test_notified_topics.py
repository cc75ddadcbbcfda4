"""What other processes are told of the moments at which something is due."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from ojster.storage.database import TOLD_SECONDS, topics_of
from ojster.storage.memory import Memory
from ojster.storage.transaction import Transaction
from tests.conftest import Bench

pytestmark = pytest.mark.anyio

SOON = round(TOLD_SECONDS * 1e6) - 1


@pytest.mark.parametrize("delay", [0, SOON])
async def test_others_learn_what_is_due_before_they_look_anyway(bench: Bench, delay: int) -> None:
    now = bench.clock.now
    assert await bench.service.database.run(_topics_with_due, delay) == [f"due:{now + delay}"]


async def test_others_are_not_woken_for_what_is_due_after_their_next_look(bench: Bench) -> None:
    assert await bench.service.database.run(_topics_with_due, SOON + 1) == []


async def test_others_learn_all_from_transactions_of_callers_which_may_be_committed_late(bench: Bench) -> None:
    topics = await bench.service.database.run(_topics_of_caller, SOON + 1)
    assert topics == [f"due:{bench.clock.now + SOON + 1}"]


def _topics_of_caller(tx: Transaction, delays: Sequence[int]) -> list[list[str]]:
    own, tx.memory = tx.memory, Memory(is_callers=True)
    topics = _topics_with_due(tx, delays)
    tx.memory = own
    return topics


def _topics_with_due(tx: Transaction, delays: Sequence[int]) -> list[list[str]]:
    for delay in delays:
        tx.expect(tx.now + delay)
    topics = topics_of(tx)
    tx.effects.due = None
    return [topics for _ in delays]
