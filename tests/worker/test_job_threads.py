"""The threads of plain functions: no call waits behind a slow one, short ones share a thread, and none is lost."""

from __future__ import annotations

import asyncio
import random
import sys
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from contextvars import ContextVar
from typing import Any

import pytest

from ojster.handlers.raised import Raised
from ojster.worker.job_threads import JobThreads
from tests.waiting import PATIENCE

pytestmark = pytest.mark.anyio

place: ContextVar[str] = ContextVar("place")


def threads_at_most(most: int) -> closing[JobThreads]:
    return closing(JobThreads(most))


class Held:
    """A function that runs until it may end."""

    def __init__(self) -> None:
        self.begun, self.may_end = threading.Event(), threading.Event()

    def __call__(self) -> str:
        self.begun.set()
        self.may_end.wait(PATIENCE)
        return "first"


@pytest.mark.parametrize("most", [1, 2, 50])
async def test_as_many_blocking_calls_run_at_once_as_there_are_threads(most: int) -> None:
    together = threading.Barrier(most)
    with threads_at_most(most) as threads:
        calls = [threads.submit(lambda: together.wait(PATIENCE)) for _ in range(most * 4)]
        async with asyncio.timeout(PATIENCE):
            places = Counter([await call.ended for call in calls])
    assert places == dict.fromkeys(range(most), 4)


async def test_short_calls_end_while_those_before_them_block() -> None:
    may_end = threading.Event()
    with threads_at_most(4) as threads:
        try:
            blocked = [threads.submit(lambda: may_end.wait(PATIENCE)) for _ in range(3)]
            async with asyncio.timeout(PATIENCE):
                for _ in range(20):
                    short = [threads.submit(lambda: 7) for _ in range(5)]
                    assert [await call.ended for call in short] == [7] * 5
            assert not any(call.ended.done() for call in blocked)
        finally:
            may_end.set()
        async with asyncio.timeout(PATIENCE):
            assert [await call.ended for call in blocked] == [True] * 3


async def test_calls_that_end_in_one_turn_of_the_loop_wake_it_once(monkeypatch: pytest.MonkeyPatch) -> None:
    woken: list[Callable[[], Any]] = []
    done = threading.Event()
    with threads_at_most(1) as threads:
        monkeypatch.setattr(asyncio.get_running_loop(), "call_soon_threadsafe", woken.append)
        calls = [threads.submit(lambda number=number: number) for number in range(50)]  # type: ignore[misc]
        threads.submit(done.set)
        assert done.wait(PATIENCE), "the event loop does nothing meanwhile"
        monkeypatch.undo()
        assert len(woken) == 1
        assert not any(call.ended.done() for call in calls)
        woken[0]()
        assert [call.ended.result() for call in calls] == list(range(50))


async def test_a_worker_whose_system_has_no_more_threads_makes_do_with_those_that_it_has(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    first = Held()
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with threads_at_most(5) as threads:
        monkeypatch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="No thread can be started"):
            threads.submit(lambda: None)
        monkeypatch.setattr(threading.Thread, "start", start)
        calls = [threads.submit(first)]
        first.begun.wait(PATIENCE)
        monkeypatch.setattr(threading.Thread, "start", refuse)
        calls += [threads.submit(lambda: "second"), threads.submit(lambda: "third")]
        monkeypatch.undo()
        first.may_end.set()
        async with asyncio.timeout(PATIENCE):
            assert [await call.ended for call in calls] == ["first", "second", "third"]
    assert "cannot start another thread" in caplog.text


LEAVES = """
import asyncio, atexit, threading
from ojster.worker.job_threads import JobThreads

begun, closed = threading.Event(), threading.Event()
atexit.register(closed.set)

def outlasts_the_main_thread():
    print("threads that it starts are daemons:", threading.Thread().daemon)
    begun.set()
    threading.main_thread().join()
    print("closed too early" if closed.wait(0.2) else "ended")

async def main():
    threads = JobThreads(2)
    together = threading.Barrier(2)
    for call in [threads.submit(together.wait) for _ in range(2)]:
        await call.ended
    threads.submit(outlasts_the_main_thread)
    begun.wait()

asyncio.run(main())
"""


async def test_the_interpreter_waits_for_functions_and_closes_nothing_before_and_not_for_idle_threads() -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", LEAVES, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    async with asyncio.timeout(PATIENCE):
        said, _ = await process.communicate()
    assert (said.decode().splitlines(), process.returncode) == (
        ["threads that it starts are daemons: False", "ended"],
        0,
    )


async def test_a_call_that_has_not_begun_can_be_cancelled_and_never_runs() -> None:
    first = Held()
    ran: list[str] = []

    with threads_at_most(1) as threads:
        running = threads.submit(first)
        waiting = [threads.submit(lambda: ran.append("cancelled")), threads.submit(lambda: ran.append("last"))]
        await asyncio.to_thread(first.begun.wait, PATIENCE)
        assert threads.cancel(waiting[0])
        assert not threads.cancel(waiting[0])
        assert not threads.cancel(running)
        first.may_end.set()
        async with asyncio.timeout(PATIENCE):
            assert await running.ended == "first"
            await waiting[1].ended
        assert not threads.cancel(waiting[1])
    assert ran == ["last"]


@pytest.mark.parametrize("is_told", [False, True])
async def test_a_call_that_nobody_waits_for_any_more_still_has_an_outcome(is_told: bool) -> None:
    returns = threading.Event()

    def work() -> str:
        returns.set()
        return "late"

    with threads_at_most(1) as threads:
        call = threads.submit(work)
        call.ended.cancel()
        if is_told:  # the event loop learns of it before somebody asks again
            returns.wait(PATIENCE)
            async with asyncio.timeout(PATIENCE):
                await threads.submit(lambda: None).ended
        async with asyncio.timeout(PATIENCE):
            assert await call.wait_again() == "late"


@pytest.mark.parametrize("kind", [ValueError, StopIteration, asyncio.CancelledError, SystemExit, KeyboardInterrupt])
async def test_whatever_a_call_raises_is_its_outcome_and_the_thread_goes_on(kind: type[BaseException]) -> None:
    def fails() -> None:
        raise kind

    with threads_at_most(1) as threads:
        calls = [threads.submit(fails), threads.submit(lambda: "next")]
        async with asyncio.timeout(PATIENCE):
            outcome = await calls[0].ended
            assert await calls[1].ended == "next"
    assert isinstance(outcome, Raised)
    assert type(outcome.error) is kind


async def test_each_call_has_a_copy_of_the_context_in_which_it_was_made() -> None:
    def change() -> str:
        before = place.get()
        place.set("changed")
        return before

    with threads_at_most(1) as threads:
        calls = []
        for name in ("first", "second"):
            place.set(name)
            calls.append(threads.submit(change))
        async with asyncio.timeout(PATIENCE):
            assert [await call.ended for call in calls] == ["first", "second"]
    assert place.get() == "second"


async def test_a_running_call_outlives_the_end_of_the_threads_and_what_waits_never_begins() -> None:
    first = Held()
    ran: list[int] = []

    with threads_at_most(1) as threads:
        running = threads.submit(first)
        threads.submit(lambda: ran.append(1))
        await asyncio.to_thread(first.begun.wait, PATIENCE)
    with pytest.raises(RuntimeError, match="closed"):
        threads.submit(lambda: ran.append(2))
    first.may_end.set()
    async with asyncio.timeout(PATIENCE):
        assert await running.ended == "first"
    assert ran == []


async def test_what_waits_still_runs_when_the_interpreter_ends_if_the_event_loop_can_learn_of_it() -> None:
    first = Held()

    with threads_at_most(1) as threads:
        calls = [threads.submit(first), threads.submit(lambda: "second")]
        threads.finish()
        with pytest.raises(RuntimeError, match="closed"):
            threads.submit(lambda: "third")
        first.may_end.set()
        async with asyncio.timeout(PATIENCE):
            assert [await call.ended for call in calls] == ["first", "second"]


async def test_each_of_many_calls_runs_once_or_was_cancelled() -> None:
    rounds, choose = 40, random.Random(58)
    ran: list[int] = []
    with threads_at_most(6) as threads:
        for first in range(0, rounds * 25, 25):
            pause = threading.Event()

            def work(number: int, pause: threading.Event | None) -> int:
                if pause is not None:
                    pause.wait(PATIENCE)
                ran.append(number)
                return number

            slow = set(choose.sample(range(first, first + 25), choose.randrange(6)))
            calls = {
                number: threads.submit(lambda number=number, held=pause if number in slow else None: work(number, held))  # type: ignore[misc]
                for number in range(first, first + 25)
            }
            await asyncio.sleep(0)
            cancelled = {number for number in calls if choose.random() < 0.3 and threads.cancel(calls[number])}
            async with asyncio.timeout(PATIENCE):
                for number in calls.keys() - cancelled - slow:
                    assert await calls[number].ended == number
                pause.set()
                for number in slow - cancelled:
                    assert await calls[number].ended == number
            assert sorted(ran) == sorted(calls.keys() - cancelled)
            ran.clear()
