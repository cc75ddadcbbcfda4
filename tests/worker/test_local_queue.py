"""Jobs that a worker has fetched and that have not begun: how many it holds, and that it keeps them from nobody."""

from __future__ import annotations

import asyncio
import threading
from functools import partial
from typing import Any

import pytest

from ojster import App, Worker
from ojster.core.durations import SECOND
from ojster.core.errors import BackendUnavailable
from ojster.core.job import Job
from ojster.core.job_flags import BITS
from ojster.fleet.workers import Heartbeat
from ojster.service import Service
from ojster.worker import worker
from ojster.worker.backup_heartbeat import BackupHeartbeat
from ojster.worker.local_queue import (
    HORIZON_SECONDS,
    LEAST_TIMEOUT,
    MAX_HELD_SECONDS,
    PAUSE_SECONDS,
    LocalQueue,
    may_wait,
)
from tests.waiting import PATIENCE

pytestmark = pytest.mark.anyio


class Watched:
    """A local queue with a clock that moves only when it is told to, and the jobs that it hands back."""

    def __init__(self, most: int = 500) -> None:
        self.now = 0.0
        self.handed_back: list[str] = []
        self.queue = LocalQueue(most, lambda job: self.handed_back.append(job.id), lambda: self.now)

    def end(self, count: int) -> None:
        self.queue.note_ends(count)
        self.now += HORIZON_SECONDS * 1.001  # sums of such numbers are not exact

    def hold(self, *ids: str) -> None:
        self.queue.hold([job(id) for id in ids])


def job(id: str, timeout: int | None = None) -> Job:
    return Job(1, id, "t", "default", "active", 0, 1, 3, 0, timeout=timeout)


@pytest.mark.parametrize(("most", "ended", "room"), [(500, 0, 0), (500, 7, 7), (500, 900, 500), (0, 7, 0)])
def test_as_many_jobs_are_held_as_have_just_ended(most: int, ended: int, room: int) -> None:
    watched = Watched(most)
    assert watched.queue.room == 0
    watched.end(ended)
    assert watched.queue.room == room
    watched.now += 10
    assert watched.queue.room == 0, "after a pause, nobody knows how long the next jobs take"


def test_more_are_fetched_when_half_of_them_have_begun() -> None:
    watched = Watched()
    watched.end(4)
    watched.hold("a", "b", "c", "d")
    rooms = []
    for expected in ("a", "b", "c", "d"):
        taken = watched.queue.take()
        assert taken is not None
        assert taken.id == expected
        rooms.append(watched.queue.room)
    assert rooms == [0, 2, 3, 4]
    assert watched.queue.take() is None


def test_what_does_not_begin_soon_is_handed_back() -> None:
    watched = Watched()
    watched.hold("a")
    watched.now += MAX_HELD_SECONDS / 2
    watched.hold("b")
    watched.now += MAX_HELD_SECONDS / 2
    watched.queue.hand_back_overdue()
    assert (watched.handed_back, len(watched.queue)) == (["a"], 1)
    watched.queue.hand_back_all()
    assert (watched.handed_back, watched.queue.jobs) == (["a", "b"], [])


def test_jobs_with_short_timeouts_are_not_held_and_no_others_for_a_while() -> None:
    watched = Watched()
    watched.queue.hold([job("a", LEAST_TIMEOUT - 1), job("b", LEAST_TIMEOUT), job("c", 60 * SECOND)])
    assert (watched.handed_back, len(watched.queue)) == (["a"], 2)
    watched.queue.take_all()
    watched.end(9)
    assert watched.queue.room == 0
    watched.now += PAUSE_SECONDS
    watched.queue.room  # noqa: B018  (measures from now on)
    watched.end(9)
    assert watched.queue.room == 9


def test_jobs_that_were_cancelled_are_handed_back() -> None:
    watched = Watched()
    watched.hold("a", "b", "c")
    watched.queue.hand_back([watched.queue.jobs[1], job("a")])
    assert (watched.handed_back, [one.id for one in watched.queue.jobs]) == (["b"], ["a", "c"]), "a was fetched anew"


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a worker hold fifty jobs when it fetches for the first time, as if many had just ended."""
    rooms = iter([50])
    monkeypatch.setattr(LocalQueue, "room", property(lambda self: next(rooms, 0)))


async def counts(service: Service) -> dict[str, int]:
    return (await service.jobs.count()).get("default", {})


async def until_available(service: Service, number: int) -> None:
    async with asyncio.timeout(PATIENCE):
        while (await counts(service)).get("available", 0) != number:
            await asyncio.sleep(0.01)


async def test_short_jobs_take_few_calls_and_each_runs_once(shared_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job takes a millisecond of the clock that the queue sees, however busy the machine is."""
    app = App(shared_url)
    ran: list[int] = []
    monkeypatch.setattr(worker, "LocalQueue", partial(LocalQueue, clock=lambda: len(ran) / 1_000))

    @app.job("t")
    async def t(number: int) -> None:
        ran.append(number)

    jobs = app.service().jobs
    both, calls = jobs.acknowledge_and_fetch, 0

    async def counted(items: Any, request: Any) -> Any:
        nonlocal calls
        calls += 1
        return await both(items, request)

    jobs.acknowledge_and_fetch = counted  # type: ignore[method-assign]
    await t.aenqueue_many([(number,) for number in range(2_000)])
    await Worker(app, concurrency=2).run(until_empty=True)
    assert sorted(ran) == list(range(2_000))
    assert calls < 500
    await app.aclose()


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("ending", ["it goes on", "the worker stops", "the worker is quiet"])
async def test_jobs_behind_a_long_one_are_handed_back(shared_url: str, ending: str) -> None:
    app = App(shared_url)
    began, go_on = asyncio.Event(), asyncio.Event()

    @app.job("long")
    async def long() -> None:
        began.set()
        await go_on.wait()

    @app.job("short")
    async def short() -> None: ...

    service: Service = app.service()
    handle = await long.aenqueue()
    await short.aenqueue_many([() for _ in range(20)])
    worker = Worker(app, concurrency=1)
    running = asyncio.create_task(worker.run())
    await began.wait()
    if ending == "the worker is quiet":
        worker.quiet()
    elif ending == "the worker stops":
        worker.stop(grace=0)
        await running
        await until_available(service, 21)
        found = await service.jobs.select()
        assert {(one.attempt, one.losses) for one in found.jobs} == {(0, 0)}
        await app.aclose()
        return
    await until_available(service, 20)
    worker.resume()
    go_on.set()
    async with asyncio.timeout(PATIENCE):
        while (await counts(service)).get("completed", 0) != 21:
            await asyncio.sleep(0.01)
    await handle.arefresh()
    assert handle.job.attempt == 1
    worker.stop()
    await running
    await app.aclose()


@pytest.mark.usefixtures("eager")
async def test_jobs_behind_one_that_blocks_the_event_loop_are_handed_back(shared_url: str) -> None:
    app = App(shared_url)
    go_on = threading.Event()

    @app.job("long")
    async def long() -> None:
        go_on.wait(PATIENCE)

    @app.job("short")
    async def short() -> None: ...

    await long.aenqueue()
    await short.aenqueue_many([() for _ in range(20)])
    thread = threading.Thread(target=lambda: asyncio.run(Worker(app, concurrency=1).run(until_empty=True)))
    thread.start()
    other = App(shared_url)
    try:
        await until_available(other.service(), 20)
    finally:
        go_on.set()
        await asyncio.to_thread(thread.join, 30)
    assert (await counts(other.service()))["completed"] == 21
    await other.aclose()
    await app.aclose()


@pytest.mark.parametrize(
    ("change", "waits"),
    [
        ({}, True),
        ({"timeout": LEAST_TIMEOUT - 1}, False),
        ({"limit_key": "k"}, False),
        ({"flags": BITS["on_success"]}, True),
        ({"flags": BITS["on_assignment"]}, False),
        ({"seq": 0, "envelope": b'{"rate_limit":{"key":"k"}}'}, False),
        ({"seq": 0, "envelope": b'{"event_reactions":{"on_assignment":[]}}'}, False),
        ({"envelope": b'{"args":["' + b"x" * 20_000 + b'"]}'}, False),
    ],
)
def test_jobs_for_which_the_fetch_counts_do_not_wait(change: dict[str, Any], waits: bool) -> None:
    one = job("a")
    for name, value in change.items():
        setattr(one, name, value)
    assert may_wait(one) is waits


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("handler", ["coroutine", "function"])
async def test_a_worker_that_is_cancelled_begins_nothing_more(shared_url: str, handler: str) -> None:
    app = App(shared_url)
    began, ran = asyncio.Event(), 0

    @app.job("long", retry=1)
    async def long() -> None:
        began.set()
        await asyncio.sleep(30)

    def count() -> None:
        nonlocal ran
        ran += 1

    async def acount() -> None:
        count()

    short = app.job("short", retry=1)(count if handler == "function" else acount)
    await long.aenqueue()
    await short.aenqueue_many([() for _ in range(20)])
    running = asyncio.create_task(Worker(app, concurrency=1).run())
    await began.wait()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert ran == 0
    assert (await counts(app.service()))["available"] == 20
    await app.aclose()


class Lossy:
    """A client whose release fails once."""

    def __init__(self, error: BaseException) -> None:
        self.error: BaseException | None = error
        self.calls: list[tuple[str, int]] = []
        self.jobs = self.fleet = self

    async def release(self, items: Any) -> None:
        self.calls.append(("release", len(items)))
        if self.error is not None:
            raised, self.error = self.error, None
            raise raised

    async def beat(self, heartbeat: Heartbeat, wait: float) -> None:
        self.calls.append(("beat", len(heartbeat.active_jobs)))


async def test_a_backup_heartbeat_that_cannot_hand_jobs_back_keeps_them_and_their_leases() -> None:
    watched = Watched()
    watched.hold("a", "b")
    client: Any = Lossy(BackendUnavailable("away"))

    def heartbeat() -> Heartbeat:
        return Heartbeat("w", tuple(one.id for one in watched.queue.jobs))

    backup = BackupHeartbeat(lambda: client, heartbeat, lambda: 1.0, lambda: watched.queue.jobs, watched.queue)
    await backup._send()
    assert (client.calls, [one.id for one in watched.queue.jobs]) == ([("release", 2), ("beat", 2)], ["a", "b"])
    await backup._send()
    assert (client.calls[2:], watched.queue.jobs) == ([("release", 2), ("beat", 0)], [])
