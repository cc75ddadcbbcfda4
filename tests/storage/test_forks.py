"""Processes that are forked while other threads work on the database, as ``multiprocessing`` does on Linux."""

from __future__ import annotations

import asyncio
import faulthandler
import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import closing

import apsw
import pytest

from ojster import App, BackendUnavailable, Worker
from ojster.service import Service
from ojster.storage.open import open_database
from ojster.storage.sqlite.lock import BUSY_TIMEOUT
from tests.waiting import PATIENCE

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")

FORKS = 40
"""Number of forks of one test."""

HANGS_SECONDS = PATIENCE
"""Time after which a child counts as hanging, in seconds."""


def fork(act: Callable[[], object]) -> int:
    """Run ``act`` in a forked child; return its pid."""
    child = os.fork()
    if child == 0:
        faulthandler.dump_traceback_later(HANGS_SECONDS - 5, file=2)
        try:
            act()
            os._exit(0)
        except BaseException as error:
            os.write(2, f"{type(error).__name__}: {error}\n".encode())
            os._exit(1)
    return child


def statuses(children: list[int]) -> list[int]:
    """Return the exit status of each child; kill those that hang."""
    deadline = time.monotonic() + HANGS_SECONDS
    left, found = dict.fromkeys(children), []
    while left:
        for child in list(left):
            pid, status = os.waitpid(child, os.WNOHANG)
            if pid:
                del left[child]
                found.append(status)
        if time.monotonic() > deadline:
            for child in left:
                os.kill(child, signal.SIGKILL)
        time.sleep(0.01)
    return found


def test_children_that_are_forked_while_jobs_are_written_enqueue(shared_url: str) -> None:
    app = App(shared_url)

    @app.job("t")
    def t(name: str) -> None: ...

    t.enqueue("first")
    stopping = threading.Event()

    def write() -> int:
        written = 0
        while not stopping.is_set():
            t.enqueue_many([("parent",) for _ in range(20)])
            written += 20
        return written

    counts: list[int] = []
    writers = [threading.Thread(target=lambda: counts.append(write())) for _ in range(3)]
    for writer in writers:
        writer.start()
    children = []
    for number in range(FORKS):
        children.append(fork(lambda number=number: t.enqueue(f"child {number}")))  # type: ignore[misc]
        time.sleep(0.005)
    ended = statuses(children)
    stopping.set()
    for writer in writers:
        writer.join()
    assert ended == [0] * FORKS
    counted = app._event_loop_thread.call(app.service().jobs.count())
    assert counted["default"]["available"] == 1 + sum(counts) + FORKS
    app.close()


def test_a_handler_may_fork_children_that_enqueue(shared_url: str) -> None:
    """The worker goes on with other jobs on the same database meanwhile."""
    app = App(shared_url)

    @app.job("child")
    async def child(number: int) -> None: ...

    @app.job("parent")
    def parent(number: int) -> list[int]:
        return statuses([fork(lambda: child.enqueue(number)) for _ in range(2)])

    handles = parent.enqueue_many([(number,) for number in range(FORKS // 2)])
    asyncio.run(work(app))
    assert [handle.result() for handle in handles] == [[0, 0]] * (FORKS // 2)
    counted = app._event_loop_thread.call(app.service().jobs.count())
    assert counted["default"]["completed"] == 3 * (FORKS // 2)
    app.close()


async def work(app: App) -> None:
    await Worker(app, concurrency=8).run(until_empty=True)
    await app.aclose()


def test_a_fork_waits_for_no_lock_of_the_file_that_another_process_holds(file_url: str) -> None:
    app = App(file_url)

    @app.job("t")
    def t(name: str) -> None: ...

    t.enqueue("first")
    with closing(apsw.Connection(file_url.removeprefix("sqlite:///"))) as other:
        other.execute("BEGIN IMMEDIATE")
        waiting = threading.Thread(target=t.enqueue, args=("second",))
        waiting.start()
        outages = app.service().database.outages
        while outages._since is None:
            time.sleep(0.01)
        begun = time.monotonic()
        child = fork(lambda: None)
        assert time.monotonic() - begun < BUSY_TIMEOUT / 1000
        other.execute("ROLLBACK")
    assert statuses([child]) == [0]
    waiting.join(HANGS_SECONDS)
    t.enqueue("third")
    counted = app._event_loop_thread.call(app.service().jobs.count())
    assert counted["default"]["available"] == 3
    app.close()


def test_a_database_that_was_opened_before_the_fork_says_so_in_the_child(shared_url: str) -> None:
    service = Service(open_database(shared_url))

    def use() -> None:
        with pytest.raises(BackendUnavailable, match=r"Open it in the child, or start children with .*'spawn'"):
            asyncio.run(service.jobs.count())
        service.database.close()  # does nothing

    assert statuses([fork(use)]) == [0]
    service.database.close()


def test_the_jobs_of_a_parent_that_are_in_memory_are_not_there_in_a_child() -> None:
    app = App("sqlite:///:memory:")

    @app.job("t")
    def t() -> None: ...

    t.enqueue()

    def use() -> None:
        with pytest.raises(
            BackendUnavailable, match=r"in the memory of the process that was forked.*sqlite:///jobs\.db"
        ):
            t.enqueue()

    assert statuses([fork(use)]) == [0]
    t.enqueue()
    app.close()
