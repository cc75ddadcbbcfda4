"""What other processes are told of the moments at which something is due."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from ojster.storage.database import MAX_LOOK_PAUSE_SECONDS, topics_of
from ojster.storage.transaction import Transaction
from tests.conftest import Bench

pytestmark = pytest.mark.anyio

SOON = round(MAX_LOOK_PAUSE_SECONDS * 1e6) - 1


@pytest.mark.parametrize("delay", [0, SOON])
async def test_others_learn_what_is_due_before_they_look_anyway(bench: Bench, delay: int) -> None:
    now = bench.clock.now
    assert await bench.service.database.run(_topics_with_due, delay) == [f"due:{now + delay}"]


async def test_others_are_not_woken_for_what_is_due_after_their_next_look(bench: Bench) -> None:
    assert await bench.service.database.run(_topics_with_due, SOON + 1) == []


def _topics_with_due(tx: Transaction, delays: Sequence[int]) -> list[list[str]]:
    for delay in delays:
        tx.expect(tx.now + delay)
    topics = topics_of(tx)
    tx.effects.due = None
    return [topics for _ in delays]
