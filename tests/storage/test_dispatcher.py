"""Merged calls: calls share a transaction, each has its own result, and a failure does not affect the others."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Sequence

import pytest

from ojster.core.errors import BackendError, BackendUnavailable
from ojster.storage.database import Database
from ojster.storage.inbox import Inbox
from ojster.storage.transaction import Transaction
from tests.waiting import until

pytestmark = pytest.mark.anyio

seen: list[int] = []


def double(tx: Transaction, numbers: Sequence[int]) -> list[int]:
    seen.append(len(numbers))
    return [number * 2 for number in numbers]


def write(tx: Transaction, names: Sequence[str]) -> list[str]:
    for name in names:
        tx.execute("INSERT INTO queues (name, created_at) VALUES (:name, 0)", {"name": name})
        if name.startswith("bad"):
            raise RuntimeError(f"{name} is bad")
    return list(names)


async def test_calls_of_one_turn_share_a_transaction_and_get_their_own_results(database: Database) -> None:
    seen.clear()
    results = await asyncio.gather(*(database.run(double, number) for number in range(100)))
    assert results == [number * 2 for number in range(100)]
    assert len(seen) < 10


async def test_a_call_that_fails_does_not_spoil_its_neighbours(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    names = ["good1", "bad1", "good2", "bad2"]
    results = await asyncio.gather(*(database.run(write, name) for name in names), return_exceptions=True)
    assert [isinstance(result, BackendError) for result in results] == [False, True, False, True]

    def names_of(tx: Transaction, requests: Sequence[None]) -> list[list[str]]:
        return [[name for (name,) in tx.execute("SELECT name FROM queues ORDER BY name")] for _ in requests]

    assert await database.read(names_of, None) == ["good1", "good2"]
    assert "bad1 is bad" in caplog.text


async def test_nothing_of_a_call_is_kept_after_its_answer(database: Database) -> None:
    class Argument:
        pass

    def answer(tx: Transaction, arguments: Sequence[Argument]) -> list[None]:
        return [None for _ in arguments]

    argument = Argument()
    kept = weakref.ref(argument)
    await database.run(answer, argument)
    del argument
    until(lambda: kept() is None)


def test_few_jobs_pass_many() -> None:
    inbox: Inbox[str] = Inbox(1, 1000)
    inbox.put([("many", 1000), ("few", 2), ("more", 700), ("one", 1), ("wake", 0)])
    taken = []
    for late in ("late", "later", ""):
        taken.append(inbox.take())
        inbox.finish()
        if late:
            inbox.put([(late, 1)])
    taken.append(inbox.take())
    assert taken == [["many"], ["few", "one", "wake", "late"], ["more"], ["later"]]


def test_no_take_is_larger_than_it_may_be() -> None:
    inbox: Inbox[int] = Inbox(1, 100)
    inbox.put([(number, 40) for number in range(5)] + [(5, 4000)])
    taken = []
    for _ in range(4):
        taken.append(inbox.take())
        inbox.finish()
    assert taken == [[5], [0, 1], [2, 3], [4]]


async def test_two_loops_may_use_one_database(database: Database) -> None:
    results: list[int] = []

    def elsewhere() -> None:
        async def run() -> None:
            results.extend(await asyncio.gather(*(database.run(double, number) for number in range(50))))

        asyncio.run(run())

    thread = threading.Thread(target=elsewhere)
    thread.start()
    own = await asyncio.gather(*(database.run(double, number) for number in range(50)))
    await asyncio.to_thread(thread.join)
    assert own == results == [number * 2 for number in range(50)]


async def test_a_caller_that_gave_up_does_not_disturb(database: Database) -> None:
    calls = [asyncio.ensure_future(database.run(double, number)) for number in range(10)]
    await asyncio.sleep(0)
    for call in calls[::2]:
        call.cancel()
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert results[1::2] == [2, 6, 10, 14, 18]


async def test_a_closed_database_says_so(database: Database) -> None:
    database.close()
    with pytest.raises(BackendUnavailable):
        await database.run(double, 1)


async def test_what_was_handed_over_before_closing_is_finished(database: Database) -> None:
    call = asyncio.ensure_future(database.run(write, "last"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    await asyncio.to_thread(database.close)
    assert await call == "last"
