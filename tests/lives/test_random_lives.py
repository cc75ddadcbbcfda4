"""Whatever callers, workers and operators do, the tables agree, everything can end, and retention leaves nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from random import Random

import pytest

from tests.amount import cases
from tests.conftest import Bench, Http
from tests.faithful.spec_answers import SpecAnswers
from tests.lives.invariants import broken, left, unfinished
from tests.lives.life import Life

pytestmark = pytest.mark.anyio

ACTIONS = 400
TOGETHER = 6
"""Maximum number of actions at the same time."""

LOOKED_AFTER = 25
MOST_ROUNDS = 2_000


@pytest.fixture(autouse=True)
def answers_follow_the_specification(spec_check: SpecAnswers | None) -> Iterator[None]:
    """Pass over answers with states that the specification has not foreseen for them, such as those of duplicates."""
    yield
    if spec_check is not None:
        spec_check.unexplained()


async def live(http: Http, bench: Bench, seed: int) -> None:
    """Live a life, and check what holds of it."""
    rng = Random(seed)
    life = Life(http, bench, rng)
    await life.begin()
    for number in range(ACTIONS):
        together = rng.randint(1, TOGETHER) if seed % 2 else 1
        await asyncio.gather(*(life.go_on() for _ in range(together)))
        if number % LOOKED_AFTER == 0:
            assert await bench.run(broken, None) == {}, f"the life {seed}, after {number} actions"
    await life.end()
    for number in range(MOST_ROUNDS):
        await life.work(to_the_end=True)
        if number % 10 == 9:
            await life.pass_seconds(600)
            if not (waiting := await bench.run(unfinished, None)):
                break
            await life.release(id for id, *_ in waiting)
    assert not (stuck := await bench.run(unfinished, None)), f"the life {seed}: {stuck}"
    assert await bench.run(broken, None) == {}, f"the life {seed}, at its end"
    await life.forget()
    assert await bench.run(left, None) == [], f"the life {seed}"
    assert await bench.run(broken, None) == {}, f"the life {seed}, after its retention"


async def test_a_life_breaks_no_rule_and_leaves_nothing(http: Http, bench: Bench) -> None:
    await live(http, bench, 1)


@pytest.mark.thorough
@pytest.mark.soak
@pytest.mark.parametrize("seed", range(2, 2 + cases(48)))
async def test_many_lives_break_no_rule_and_leave_nothing(http: Http, bench: Bench, seed: int) -> None:
    await live(http, bench, seed)
