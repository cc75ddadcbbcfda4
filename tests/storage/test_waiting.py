"""Parked calls: first come, first served, and no wake-up is missed between looking and parking."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ojster.storage.call import LongPoll, PendingCall
from ojster.storage.dispatcher import Dispatcher, _LoopCalls
from ojster.storage.parked import MAX_NEWS, ParkedCalls

pytestmark = pytest.mark.anyio


def call(*names: str) -> PendingCall:
    topics = {name: (name,) for name in names}
    port: Any = _LoopCalls(asyncio.get_running_loop(), Dispatcher([], "none"))
    return PendingCall(
        port, lambda tx, arguments: arguments, (1,), LongPoll(topics, lambda result: True, lambda result: None)
    )


async def test_those_who_came_first_are_served_first_also_after_they_looked_in_vain() -> None:
    room = ParkedCalls()
    first, second, third = call("q"), call("q"), call("q")
    room.keep([first, second], room.moment())
    room.keep([third], room.moment())
    taken = room.take({"q": 2})
    assert taken == [first, second]
    room.keep(taken, room.moment())
    assert room.take({"q": 3}) == [first, second, third]


async def test_who_looked_before_the_news_is_to_look_again() -> None:
    room = ParkedCalls()
    waiting, since = call("a", "b"), room.moment()
    assert room.announce(["b"]) == []
    assert room.keep([waiting], since).again == [waiting]
    assert room.keep([waiting], room.moment()) == ([], [])
    assert room.announce(["b", "c"]) == ["b"]


async def test_a_call_is_taken_for_one_of_its_queues_only() -> None:
    room = ParkedCalls()
    waiting = call("a", "b")
    room.keep([waiting], room.moment())
    assert room.take({"a": 1, "b": 1}) == [waiting]
    assert room.topics() == []


async def test_a_call_that_looked_before_give_up_is_not_parked() -> None:
    room = ParkedCalls()
    waiting, looking, since = call("q"), call("q"), room.moment()
    room.keep([waiting], since)
    assert room.give_up() == [waiting]
    assert room.keep([looking], since).given_up == [looking]
    assert room.keep([looking], room.moment()) == ([], [])


async def test_whoever_has_gone_is_forgotten() -> None:
    room = ParkedCalls()
    gone, cancelled = call("a", "b"), call("a")
    room.keep([gone, cancelled], room.moment())
    room.forget(gone)
    assert room.topics() == ["a"]
    cancelled.future.cancel()
    room.forget(cancelled)
    room.keep([cancelled], room.moment())
    assert room.topics() == []


async def test_news_of_many_queues_are_forgotten_together_and_whoever_looked_before_looks_again() -> None:
    room = ParkedCalls()
    waiting, since = call("a"), room.moment()
    room.announce(["a"])
    for number in range(2 * MAX_NEWS):
        room.announce([f"q{number}"])
    assert len(room._news) <= MAX_NEWS + 1
    assert room.keep([waiting], since).again == [waiting]
    assert room.keep([waiting], room.moment()) == ([], [])
