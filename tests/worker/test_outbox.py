"""A worker reports outcomes with its next fetch, if there is one; and nothing is left behind."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from ojster.api.app import App
from ojster.core.errors import BackendError, BackendUnavailable, OjsterError, PayloadTooLarge
from ojster.core.job import Job
from ojster.jobs.claim_policy import Claim
from ojster.jobs.filter_walk import JobFilter
from ojster.jobs.messages import Acknowledgement, FailureReport, Release
from ojster.jobs.queries import JobPage, Page
from ojster.worker import reporting
from ojster.worker.outbox import OutcomeReports
from ojster.worker.reporting import Reporter
from ojster.worker.worker import Worker
from tests.conftest import Bench
from tests.waiting import PATIENCE

pytestmark = pytest.mark.anyio

REQUEST = Claim(("default",), 1, "w")
DONE = Acknowledgement("job", None, "w", 1)


class Jobs:
    """Records the calls that an outbox makes."""

    def __init__(self, bench: Bench) -> None:
        self.calls: list[tuple[str, int]] = []
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.may_release = asyncio.Event()
        self.may_release.set()
        self.next: list[Job] | OjsterError = []
        self.outcome: OjsterError | None = None
        self.error: Exception | None = None
        self.held: list[Job] = []
        """The active jobs of the worker, of which a page has one."""
        self.released: list[str] = []
        self.bench = bench

    async def acknowledge(self, items: Sequence[Acknowledgement]) -> list[Any]:
        self.calls.append(("acknowledge", len(items)))
        return [None for _ in items]

    async def acknowledge_and_fetch(
        self, items: Sequence[Acknowledgement], request: Claim
    ) -> tuple[list[Any], list[Job] | OjsterError]:
        self.calls.append(("acknowledge and fetch", len(items)))
        await self.may_answer.wait()
        if self.error is not None:
            raise self.error
        return [self.outcome for _ in items], self.next

    async def fail(self, items: Sequence[FailureReport]) -> list[Any]:
        self.calls.append(("fail", len(items)))
        return [None for _ in items]

    async def release(self, items: Sequence[Release]) -> list[Any]:
        self.calls.append(("release", len(items)))
        self.released += [item.job_id for item in items]
        await self.may_release.wait()
        return [None for _ in items]

    async def fetch(self, request: Claim, wait: float = 0.0) -> list[Job]:
        self.calls.append(("fetch", 0))
        return []

    async def select(self, chosen: JobFilter, page: Page) -> JobPage:
        self.calls.append(("select", 0))
        first = 0 if page.before is None else page.before
        jobs = self.held[first : first + 1]
        return JobPage(jobs, 0, first + 1 if self.held[first + 1 :] else None)


@pytest.fixture
def jobs(bench: Bench) -> Jobs:
    return Jobs(bench)


@pytest.fixture
def client(jobs: Jobs) -> Any:
    return SimpleNamespace(jobs=jobs)


@pytest.fixture
def outbox() -> OutcomeReports:
    return OutcomeReports(Reporter("w", 30.0), "w", lambda: None)


async def test_outcomes_of_one_turn_go_out_in_one_call(outbox: OutcomeReports, client: Any, jobs: Jobs) -> None:
    outbox.tell(client, DONE)
    outbox.tell(client, DONE)
    await outbox.drain(client)
    assert jobs.calls == [("acknowledge", 2)]


async def test_outcomes_wait_for_others_while_the_worker_holds_more_jobs(client: Any, jobs: Jobs) -> None:
    outbox = OutcomeReports(Reporter("w", 30.0), "w", lambda: None, lambda: True)
    for _ in range(3):
        outbox.tell(client, DONE)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert jobs.calls == []
    while not jobs.calls:
        await asyncio.sleep(0.001)
    assert jobs.calls == [("acknowledge", 3)]


async def test_a_worker_waits_for_no_more_jobs_than_can_begin(outbox: OutcomeReports, client: Any, jobs: Jobs) -> None:
    wanted: list[tuple[int, float]] = []

    async def fetch(request: Claim, wait: float = 0.0) -> list[Job]:
        wanted.append((request.count, wait))
        return []

    jobs.fetch = fetch  # type: ignore[method-assign]
    await outbox.fetch(client, Claim(("default",), 90, "w"), 20.0, 4)
    await outbox.fetch(client, Claim(("default",), 4, "w"), 20.0, 4)
    assert wanted == [(90, 0.0), (4, 20.0), (4, 20.0)]


async def test_outcomes_that_wait_for_a_fetch_go_with_it(
    outbox: OutcomeReports, client: Any, jobs: Jobs, bench: Bench
) -> None:
    jobs.next = [await bench.push()]
    outbox.waits_for_fetch = True
    outbox.tell(client, DONE)
    await asyncio.sleep(0)
    assert jobs.calls == []
    assert await outbox.fetch(client, REQUEST, 20.0, 1) == jobs.next
    assert jobs.calls == [("acknowledge and fetch", 1)]
    assert outbox.is_empty


@pytest.mark.parametrize("found", [[], BackendUnavailable("no")])
async def test_a_fetch_that_brings_nothing_is_followed_by_one_that_waits(
    outbox: OutcomeReports, client: Any, jobs: Jobs, found: list[Job] | OjsterError
) -> None:
    jobs.next = found
    outbox.waits_for_fetch = True
    outbox.tell(client, DONE)
    assert await outbox.fetch(client, REQUEST, 20.0, 1) == []
    assert jobs.calls == [("acknowledge and fetch", 1), ("fetch", 0)]


async def test_other_outcomes_do_not_hold_up_the_fetch(
    outbox: OutcomeReports, client: Any, jobs: Jobs, bench: Bench
) -> None:
    """Jobs that it brought would wait without heartbeats."""
    jobs.next = [await bench.push()]
    outbox.waits_for_fetch = True
    outbox.tell(client, Release("job", "w", 1))
    outbox.tell(client, DONE)
    jobs.may_release.clear()
    assert await outbox.fetch(client, REQUEST, 20.0, 1) == jobs.next
    jobs.may_release.set()
    await outbox.drain(client)
    assert sorted(jobs.calls) == [("acknowledge and fetch", 1), ("release", 1)]


@pytest.mark.parametrize("error", [BackendUnavailable("away"), BackendError("no"), ValueError("an answer of no use")])
async def test_a_report_that_fails_is_tried_again_beside_the_next_fetch(
    outbox: OutcomeReports, client: Any, jobs: Jobs, error: Exception
) -> None:
    jobs.error = error
    outbox.waits_for_fetch = True
    outbox.tell(client, DONE)
    assert await outbox.fetch(client, REQUEST, 20.0, 1) == []
    await outbox.drain(client)
    assert sorted(jobs.calls) == [("acknowledge", 1), ("acknowledge and fetch", 1), ("fetch", 0), ("select", 0)]


@pytest.mark.parametrize(("error", "is_sent"), [(BackendUnavailable("away"), True), (BackendError("no"), False)])
async def test_only_a_report_that_the_server_answers_with_an_error_is_given_up_before_the_outage_ends(
    client: Any, jobs: Jobs, monkeypatch: pytest.MonkeyPatch, error: Exception, is_sent: bool
) -> None:
    monkeypatch.setattr(reporting, "ERROR_PATIENCE_SECONDS", 0.0)
    answers: list[Exception | None] = [error, error, None]

    async def acknowledge(items: Sequence[Acknowledgement]) -> list[Any]:
        if (answer := answers.pop(0)) is not None:
            raise answer
        return [None for _ in items]

    jobs.acknowledge = acknowledge  # type: ignore[method-assign]
    await Reporter("w", 0.0).send(client, [DONE])
    assert (answers == []) == is_sent


async def test_a_result_that_is_refused_fails_the_job(
    outbox: OutcomeReports, client: Any, jobs: Jobs, bench: Bench
) -> None:
    jobs.next, jobs.outcome = [await bench.push()], PayloadTooLarge("too large")
    outbox.waits_for_fetch = True
    outbox.tell(client, DONE)
    assert await outbox.fetch(client, REQUEST, 20.0, 1) == jobs.next
    await outbox.drain(client)
    assert jobs.calls == [("acknowledge and fetch", 1), ("fail", 1)]


async def test_jobs_that_come_too_late_are_given_back(
    outbox: OutcomeReports, client: Any, jobs: Jobs, bench: Bench
) -> None:
    """The worker was told to be quiet meanwhile."""
    jobs.next = [await bench.push()]
    jobs.may_answer.clear()
    outbox.waits_for_fetch = True
    outbox.tell(client, DONE)
    fetching = asyncio.create_task(outbox.fetch(client, REQUEST, 20.0, 1))
    while not jobs.calls:
        await asyncio.sleep(0)
    fetching.cancel()
    await asyncio.gather(fetching, return_exceptions=True)
    jobs.may_answer.set()
    await outbox.drain(client)
    assert jobs.calls == [("acknowledge and fetch", 1), ("release", 1)]


@pytest.mark.parametrize("concurrency", [1, 3])
async def test_a_full_worker_makes_one_call_for_a_job(shared_url: str, concurrency: int) -> None:
    app = App(shared_url)

    @app.job("t")
    async def t(number: int) -> int:
        await asyncio.sleep(0)
        return number

    calls = {"acknowledge": 0, "both": 0}
    jobs = app.service().jobs
    both = jobs.acknowledge_and_fetch

    async def counted(items: Any, request: Claim | None) -> Any:
        calls["acknowledge" if request is None else "both"] += 1
        return await both(items, request)

    jobs.acknowledge_and_fetch = counted  # type: ignore[method-assign]
    handles = await t.aenqueue_many([(number,) for number in range(30)])
    await Worker(app, concurrency=concurrency, prefetch=0).run(until_empty=True)
    assert [await handle.aresult(PATIENCE) for handle in handles] == list(range(30))
    assert calls["both"] <= 30
    assert calls["both"] > calls["acknowledge"]
    await app.aclose()


@pytest.mark.parametrize("call", ["fetch", "acknowledge_and_fetch"])
async def test_a_worker_runs_all_jobs_before_it_ends_if_the_answer_to_a_fetch_is_lost(
    shared_url: str, call: str
) -> None:
    app = App(shared_url)

    @app.job("t", retry=1)
    async def t() -> None: ...

    made = getattr(app.service().jobs, call)
    lost: list[Any] = []

    async def without_answer(*arguments: Any) -> Any:
        answer = await made(*arguments)
        if not lost and arguments[-1] is not None:
            lost.append(answer)
            raise BackendUnavailable("The connection was lost before the answer came.")
        return answer

    setattr(app.service().jobs, call, without_answer)
    handles = await t.aenqueue_many([()] * 3)
    await asyncio.wait_for(Worker(app, concurrency=1, prefetch=0).run(until_empty=True), PATIENCE)
    assert lost
    assert [(await handle.arefresh()).state for handle in handles] == ["completed"] * 3
    await app.aclose()


@pytest.mark.parametrize("call", ["fetch", "acknowledge_and_fetch"])
async def test_a_worker_that_goes_on_runs_the_jobs_of_a_lost_answer_beside_those_that_it_has(
    shared_url: str, call: str
) -> None:
    app = App(shared_url)
    begun, may_end = asyncio.Event(), asyncio.Event()
    runs: list[str] = []

    @app.job("long", retry=1)
    async def long() -> None:
        runs.append("long")
        begun.set()
        await may_end.wait()

    @app.job("t", retry=1)
    async def t() -> None:
        runs.append("t")

    made = getattr(app.service().jobs, call)
    lost: list[Any] = []

    async def without_answer(*arguments: Any) -> Any:
        answer = await made(*arguments)
        fetched = answer if call == "fetch" else answer[1]
        if not lost and begun.is_set() and fetched:
            lost.append(fetched)
            raise BackendUnavailable("The connection was lost before the answer came.")
        return answer

    setattr(app.service().jobs, call, without_answer)
    first = await long.aenqueue()
    worker = Worker(app, concurrency=2, prefetch=0, lease=3600)
    running = asyncio.create_task(worker.run())
    async with asyncio.timeout(PATIENCE):
        await begun.wait()
        handles = await t.aenqueue_many([()] * 3)
        for handle in handles:
            await handle.aresult()
        may_end.set()
        await first.aresult()
    worker.stop()
    await running
    assert lost
    assert runs == ["long", "t", "t", "t"]
    await app.aclose()


async def test_only_jobs_of_which_the_worker_knows_nothing_are_handed_back_after_a_lost_answer(
    outbox: OutcomeReports, client: Any, jobs: Jobs, bench: Bench
) -> None:
    running, reported, ended, missed = jobs.held = [await bench.push() for _ in range(4)]
    jobs.may_release.clear()

    async def acknowledge(items: Sequence[Acknowledgement]) -> list[Any]:
        await jobs.may_release.wait()
        return [None for _ in items]

    jobs.acknowledge = acknowledge  # type: ignore[method-assign]
    outbox.tell(client, Release(reported.id, "w", 1))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    outbox.waits_for_fetch = True
    outbox.tell(client, Acknowledgement(ended.id, None, "w", 1))
    jobs.error = BackendUnavailable("the answer was lost")
    fetching = asyncio.create_task(outbox.fetch(client, REQUEST, 20.0, 1, lambda: [running.id]))
    while len(jobs.released) < 2:
        await asyncio.sleep(0)
    jobs.may_release.set()
    await fetching
    await outbox.drain(client)
    assert jobs.released == [reported.id, missed.id]
    assert jobs.calls.count(("select", 0)) == 4


async def test_jobs_of_a_lost_answer_are_looked_for_until_the_server_answers(
    outbox: OutcomeReports, client: Any, jobs: Jobs, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs.held = [await bench.push()]

    async def away(*_: Any) -> Any:
        raise BackendUnavailable("away")

    with monkeypatch.context() as patch:
        patch.setattr(jobs, "fetch", away)
        with pytest.raises(BackendUnavailable):
            await outbox.fetch(client, REQUEST, 20.0, 1)
        patch.setattr(jobs, "select", away)
        with pytest.raises(BackendUnavailable):
            await outbox.fetch(client, REQUEST, 20.0, 1)
    await outbox.fetch(client, REQUEST, 20.0, 1)
    await outbox.fetch(client, REQUEST, 20.0, 1)
    assert jobs.calls == [("select", 0), ("release", 1), ("fetch", 0), ("fetch", 0)]


async def test_an_outcome_is_reported_at_once_when_the_worker_stops_beside_a_job_that_goes_on(shared_url: str) -> None:
    app = App(shared_url)
    go_on = asyncio.Event()

    @app.job("long")
    async def long() -> None:
        await go_on.wait()

    @app.job("short")
    async def short() -> str:
        worker.stop()
        return "done"

    worker = Worker(app, concurrency=2, grace=60)
    await long.aenqueue()
    handle = await short.aenqueue()
    running = asyncio.create_task(worker.run())
    assert await handle.aresult(PATIENCE) == "done"
    go_on.set()
    await running
    await app.aclose()


async def test_a_worker_that_is_quiet_for_a_moment_goes_on(shared_url: str) -> None:
    app = App(shared_url)

    @app.job("t")
    async def t() -> str:
        return "done"

    worker = Worker(app)
    running = asyncio.create_task(worker.run())
    while worker._fetching is None:
        await asyncio.sleep(0.01)
    worker.quiet()
    worker.resume()
    assert await (await t.aenqueue()).aresult(PATIENCE) == "done"
    worker.stop()
    await running
    await app.aclose()
